//! Requests and responses that are passed on: all but what belongs to one connection.

use std::pin::Pin;
use std::task::{Context, Poll};

use bytes::Bytes;
use http::{HeaderMap, HeaderName, header};
use http_body::{Body as HttpBody, Frame, SizeHint};
use hyper::body::Incoming;
use tokio::sync::OwnedSemaphorePermit;
use weir_runtime::serve::BoxError;

use super::route::{CALLER, CALLER_ROLE, CLUSTER, SECRET};

/// What belongs to the connection of the client, or authenticates the client at this origin alone.
const NOT_FORWARDED: [HeaderName; 14] = [
    header::HOST,
    header::CONNECTION,
    HeaderName::from_static("keep-alive"),
    HeaderName::from_static("proxy-connection"),
    header::TE,
    header::TRANSFER_ENCODING,
    header::UPGRADE,
    header::EXPECT,
    header::CONTENT_LENGTH,
    header::AUTHORIZATION,
    CALLER,
    CALLER_ROLE,
    CLUSTER,
    SECRET,
];

/// The headers of a request that the owner receives.
pub(super) fn headers(mut headers: HeaderMap) -> HeaderMap {
    for name in NOT_FORWARDED {
        headers.remove(name);
    }
    headers
}

/// The body of an answer as it arrives. Counts as a forwarded request until it ends.
pub(super) struct AnswerBody {
    pub(super) body: Incoming,
    pub(super) _permit: OwnedSemaphorePermit,
}

impl HttpBody for AnswerBody {
    type Data = Bytes;
    type Error = BoxError;

    fn poll_frame(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, BoxError>>> {
        Pin::new(&mut self.body).poll_frame(cx).map_err(Into::into)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn credentials_and_the_connection_s_headers_stay_here() {
        let names = [
            "host",
            "authorization",
            "weir-caller",
            "weir-caller-role",
            "weir-member-secret",
            "transfer-encoding",
            "if-match",
            "x-hub-signature-256",
        ];
        let sent: HeaderMap = names.iter().map(|name| (HeaderName::from_static(name), "x".parse().unwrap())).collect();
        let mut left: Vec<String> = headers(sent).keys().map(ToString::to_string).collect();
        left.sort();
        assert_eq!(left, ["if-match", "x-hub-signature-256"]);
    }
}
