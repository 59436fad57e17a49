//! `POST /v1/observed`: what the agents of an edge run. Only edges send it, and each origin keeps it for itself.

use http::{Method, Request, Response, StatusCode};
use tokio::task::spawn_blocking;
use weir_observed::{Rejected, Taken};
use weir_protocol::observed::{EdgeObserved, MAX_MESSAGE_BYTES};
use weir_runtime::identity::{Identity, Role};
use weir_runtime::serve::{Body, Peer, RequestBody, RequestBodyError};

use super::EdgeApi;
use super::failure::Failure;

impl EdgeApi {
    /// Takes in a message of an edge.
    pub(super) async fn observed(&self, request: Request<RequestBody>, peer: &Peer) -> Result<Response<Body>, Failure> {
        if request.method() != Method::POST {
            return Err(Failure::UsePost);
        }
        let Some(Identity { role: Role::Edge, name }) = &peer.identity else { return Err(Failure::NotAnEdge) };
        let answer = match request.into_body().read(MAX_MESSAGE_BYTES).await {
            Err(error @ (RequestBodyError::TooLong(_) | RequestBodyError::TooSlow | RequestBodyError::BrokeOff)) => {
                Err(Failure::Malformed(error.to_string()))
            }
            Ok(body) => {
                let (observed, name) = (self.observed.clone(), name.clone());
                // A long message takes some milliseconds.
                let accept = move || {
                    let message =
                        EdgeObserved::parse(&body).map_err(|error| Failure::Malformed(format!("{error}.")))?;
                    if message.edge != name {
                        return Err(Failure::NotThisEdge(message.edge, name));
                    }
                    observed.apply(message).map_err(Failure::Observed)
                };
                spawn_blocking(accept).await.map_err(|_| Failure::Overloaded)?
            }
        };
        let result = match &answer {
            Ok(Taken::Whole) => "accepted",
            Ok(Taken::Part(_)) | Err(Failure::Observed(Rejected::Edges)) => "limited",
            Err(Failure::Observed(Rejected::Resync)) => "resync",
            Err(_) => "refused",
        };
        self.metrics.observed_messages.with_label_values(&[result]).inc();
        answer?;
        let mut response = Response::new(Body::Empty);
        *response.status_mut() = StatusCode::NO_CONTENT;
        Ok(response)
    }
}
