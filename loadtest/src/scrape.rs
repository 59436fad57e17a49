//! Reads a role's admin listener: readiness, status, metrics.

use std::net::SocketAddr;

use anyhow::{Context, ensure};
use bytes::Bytes;
use http::{Request, StatusCode};
use http_body_util::{BodyExt, Empty};
use hyper_util::rt::TokioIo;
use tokio::net::TcpStream;

/// Requests a path of an admin listener over plain HTTP/1.1.
///
/// # Errors
/// The listener is not there, or the response is incomplete.
pub async fn get(admin: SocketAddr, path: &str) -> anyhow::Result<(StatusCode, String)> {
    let stream = TcpStream::connect(admin).await?;
    let (mut sender, connection) = hyper::client::conn::http1::handshake(TokioIo::new(stream)).await?;
    let connection = tokio::spawn(connection);
    let request = Request::get(path).header("host", admin.to_string()).body(Empty::<Bytes>::new())?;
    let response = sender.send_request(request).await?;
    let status = response.status();
    let body = response.into_body().collect().await?.to_bytes();
    drop(sender);
    connection.abort();
    Ok((status, String::from_utf8_lossy(&body).into_owned()))
}

/// A snapshot of a role's metrics.
#[derive(Debug, Clone)]
pub struct Metrics(String);

impl Metrics {
    /// Reads `/metrics`.
    ///
    /// # Errors
    /// The request failed, or the status is not `200`.
    pub async fn read(admin: SocketAddr) -> anyhow::Result<Self> {
        let (status, text) = get(admin, "/metrics").await?;
        ensure!(status == StatusCode::OK, "/metrics answered {status}");
        Ok(Self(text))
    }

    /// The sum over all series of a name whose labels include all of `labels` (each as `name="value"`); 0 when there is
    /// none.
    pub fn sum(&self, name: &str, labels: &[&str]) -> f64 {
        self.series(name)
            .filter(|(found, _)| labels.iter().all(|label| found.contains(label)))
            .map(|(_, value)| value)
            .sum()
    }

    /// The labels and values of all series of a name.
    pub fn series<'a>(&'a self, name: &'a str) -> impl Iterator<Item = (&'a str, f64)> {
        self.0.lines().filter_map(move |line| {
            let rest = line.strip_prefix(name)?;
            let (labels, value) = match rest.strip_prefix('{') {
                Some(rest) => rest.rsplit_once("} ")?,
                None => ("", rest.strip_prefix(' ')?),
            };
            Some((labels, value.trim().parse().ok()?))
        })
    }
}

/// Reads `/status` as JSON.
///
/// # Errors
/// The request failed, or the response is not JSON.
pub async fn status(admin: SocketAddr) -> anyhow::Result<serde_json::Value> {
    let (_, text) = get(admin, "/status").await?;
    serde_json::from_str(&text).context("/status is JSON")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn series_are_summed_by_name_and_labels() {
        let metrics =
            Metrics("# HELP a b\na{x=\"1\",y=\"2\"} 3\na{x=\"1\",y=\"3\"} 4\na{x=\"2\"} 5\nab 7\nc 1e3\n".to_owned());
        assert_eq!(metrics.sum("a", &[]), 12.0);
        assert_eq!(metrics.sum("a", &["x=\"1\""]), 7.0);
        assert_eq!(metrics.sum("c", &[]), 1000.0);
        assert_eq!(metrics.sum("missing", &[]), 0.0);
    }
}
