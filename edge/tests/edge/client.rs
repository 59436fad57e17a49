//! Clients of all three versions of HTTP, with one face.

use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use bytes::{Buf, Bytes, BytesMut};
use http::{HeaderMap, Request, Response, StatusCode};
use http_body_util::{BodyExt, Full};
use hyper::body::Incoming;
use hyper_rustls::{HttpsConnector, HttpsConnectorBuilder};
use hyper_util::client::legacy::Client as PoolingClient;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::TokioExecutor;
use quinn::crypto::rustls::QuicClientConfig;
use weir_runtime::http_client::{Http2Client, http2_client};
use weir_runtime::serve::BoxError;
use weir_runtime::tls;

type H3Stream = h3::client::RequestStream<h3_quinn::BidiStream<Bytes>, Bytes>;

#[derive(Clone)]
pub(crate) struct Client {
    address: SocketAddr,
    kind: Kind,
}

type Http1Client = PoolingClient<HttpsConnector<HttpConnector>, Full<Bytes>>;

#[derive(Clone)]
enum Kind {
    Http1(Box<Http1Client>),
    Http2(Box<Http2Client<Full<Bytes>>>),
    Quic(h3::client::SendRequest<h3_quinn::OpenStreams, Bytes>),
}

/// An answer whose body is read at the caller's pace.
pub(crate) struct Download {
    pub(crate) status: StatusCode,
    pub(crate) headers: HeaderMap,
    body: Body,
}

enum Body {
    Tcp(Incoming),
    Quic(Box<H3Stream>),
}

/// An answer, read to its end.
#[derive(Debug)]
pub(crate) struct Reply {
    pub(crate) status: u16,
    pub(crate) headers: HeaderMap,
    /// An error when it was cut short; the status is then 0 when not even the head came.
    pub(crate) body: Result<Bytes, String>,
}

impl Client {
    /// `version`: `h1`, `h2` or `h3`.
    pub(crate) async fn connect(version: &str, address: SocketAddr, pki: &Path) -> Self {
        Self::connect_as(None, version, address, pki).await
    }

    /// With the certificate of this name, or with none.
    pub(crate) async fn connect_as(certificate: Option<&str>, version: &str, address: SocketAddr, pki: &Path) -> Self {
        let files = certificate.map(|name| (pki.join(format!("{name}.pem")), pki.join(format!("{name}.key"))));
        let identity = files.as_ref().map(|(certificate, key)| (certificate.as_path(), key.as_path()));
        let tls = tls::client_config(&pki.join("ca.pem"), identity).unwrap();
        let kind = match version {
            "h1" => {
                let connector = HttpsConnectorBuilder::new().with_tls_config(tls).https_only().enable_http1().build();
                Kind::Http1(Box::new(PoolingClient::builder(TokioExecutor::new()).build(connector)))
            }
            "h2" => Kind::Http2(Box::new(http2_client(tls))),
            "h3" => Kind::Quic(quic(address, tls).await),
            other => unreachable!("{other}"),
        };
        Self { address, kind }
    }

    /// Sends a request and waits for the head of the answer.
    pub(crate) async fn begin(&mut self, method: &str, path: &str, headers: &[(&str, &str)]) -> Download {
        self.try_begin(method, path, headers, Bytes::new()).await.unwrap()
    }

    async fn try_begin(
        &mut self,
        method: &str,
        path: &str,
        headers: &[(&str, &str)],
        body: Bytes,
    ) -> Result<Download, BoxError> {
        let mut request = Request::builder().method(method).uri(format!("https://{}{path}", self.address));
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        match &mut self.kind {
            Kind::Http1(client) => Ok(Download::of(client.request(request.body(Full::new(body))?).await?)),
            Kind::Http2(client) => Ok(Download::of(client.request(request.body(Full::new(body))?).await?)),
            Kind::Quic(client) => {
                let mut stream = client.send_request(request.body(())?).await?;
                if !body.is_empty() {
                    stream.send_data(body).await?;
                }
                stream.finish().await?;
                let (head, ()) = stream.recv_response().await?.into_parts();
                Ok(Download { status: head.status, headers: head.headers, body: Body::Quic(Box::new(stream)) })
            }
        }
    }

    pub(crate) async fn send(&mut self, method: &str, path: &str, headers: &[(&str, &str)]) -> Reply {
        self.send_with(method, path, headers, Bytes::new()).await
    }

    /// With a body.
    pub(crate) async fn post(&mut self, path: &str, headers: &[(&str, &str)], body: impl Into<Bytes>) -> Reply {
        self.send_with("POST", path, headers, body.into()).await
    }

    async fn send_with(&mut self, method: &str, path: &str, headers: &[(&str, &str)], body: Bytes) -> Reply {
        match self.try_begin(method, path, headers, body).await {
            Ok(download) => download.finish().await,
            // A reset may overtake the head.
            Err(error) => Reply { status: 0, headers: HeaderMap::new(), body: Err(error.to_string()) },
        }
    }

    pub(crate) async fn get(&mut self, path: &str, headers: &[(&str, &str)]) -> Reply {
        self.send("GET", path, headers).await
    }

    pub(crate) async fn head(&mut self, path: &str, headers: &[(&str, &str)]) -> Reply {
        self.send("HEAD", path, headers).await
    }
}

impl Download {
    fn of(response: Response<Incoming>) -> Self {
        let (head, body) = response.into_parts();
        Self { status: head.status, headers: head.headers, body: Body::Tcp(body) }
    }

    /// The next part of the body.
    pub(crate) async fn next(&mut self) -> Option<Result<Bytes, String>> {
        match &mut self.body {
            Body::Tcp(body) => loop {
                match body.frame().await? {
                    Ok(frame) => {
                        if let Ok(data) = frame.into_data() {
                            return Some(Ok(data));
                        }
                    }
                    Err(error) => return Some(Err(error.to_string())),
                }
            },
            Body::Quic(stream) => match stream.recv_data().await {
                Ok(None) => None,
                Ok(Some(mut data)) => Some(Ok(data.copy_to_bytes(data.remaining()))),
                Err(error) => Some(Err(error.to_string())),
            },
        }
    }

    pub(crate) async fn finish(mut self) -> Reply {
        let mut bytes = BytesMut::new();
        let mut failure = None;
        while let Some(part) = self.next().await {
            match part {
                Ok(part) => bytes.extend_from_slice(&part),
                Err(error) => {
                    failure = Some(error);
                    break;
                }
            }
        }
        let body = failure.map_or(Ok(bytes.freeze()), Err);
        Reply { status: self.status.as_u16(), headers: self.headers, body }
    }
}

impl Reply {
    pub(crate) fn header(&self, name: &str) -> &str {
        self.headers.get(name).map_or("", |value| value.to_str().unwrap())
    }

    pub(crate) fn bytes(&self) -> &Bytes {
        self.body.as_ref().unwrap()
    }

    pub(crate) fn problem(&self) -> serde_json::Value {
        assert_eq!(self.header("content-type"), "application/problem+json", "{self:?}");
        serde_json::from_slice(self.bytes()).unwrap()
    }
}

async fn quic(address: SocketAddr, tls: rustls::ClientConfig) -> h3::client::SendRequest<h3_quinn::OpenStreams, Bytes> {
    let (endpoint, connection) = quic_connection(address, tls).await;
    let (mut driver, requests) =
        h3::client::builder().send_grease(false).build(h3_quinn::Connection::new(connection)).await.unwrap();
    tokio::spawn(async move {
        let _endpoint = endpoint;
        driver.wait_idle().await
    });
    requests
}

/// A bare connection that announces HTTP/3.
async fn quic_connection(address: SocketAddr, mut tls: rustls::ClientConfig) -> (quinn::Endpoint, quinn::Connection) {
    tls.alpn_protocols = vec![b"h3".to_vec()];
    let mut config = quinn::ClientConfig::new(Arc::new(QuicClientConfig::try_from(tls).unwrap()));
    let mut transport = quinn::TransportConfig::default();
    transport.keep_alive_interval(Some(Duration::from_secs(5)));
    config.transport_config(Arc::new(transport));
    let endpoint = quinn::Endpoint::client("127.0.0.1:0".parse().unwrap()).unwrap();
    let connection = endpoint.connect_with(config, address, "127.0.0.1").unwrap().await.unwrap();
    (endpoint, connection)
}
