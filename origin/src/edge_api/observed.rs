//! `POST /v1/observed`: what the agents of an edge run. Only edges send it, and each origin keeps it for itself.

use http::{Method, Request, Response, StatusCode};
use tokio::task::spawn_blocking;
use weir_observed::{Rejected, Taken};
use weir_protocol::observed::{EdgeObserved, MAX_MESSAGE_BYTES};
use weir_protocol::problem::Problem;
use weir_runtime::identity::{Identity, Role};
use weir_runtime::serve::{Body, Peer, RequestBody, RequestBodyError};

use super::EdgeApi;
use super::problems::{self, LATEST};

impl EdgeApi {
    /// Takes in a message of an edge.
    pub(super) async fn observed(&self, request: Request<RequestBody>, peer: &Peer) -> Result<Response<Body>, Problem> {
        if request.method() != Method::POST {
            return Err(Problem::method_not_allowed("POST"));
        }
        let Some(Identity { role: Role::Edge, name }) = &peer.identity else { return Err(problems::not_an_edge()) };
        let answer = match request.into_body().read(MAX_MESSAGE_BYTES).await {
            Err(error @ (RequestBodyError::TooLong(_) | RequestBodyError::TooSlow | RequestBodyError::BrokeOff)) => {
                Err(Problem::malformed(error.to_string()))
            }
            Ok(body) => {
                let (observed, name) = (self.observed.clone(), name.clone());
                // A long message takes some milliseconds.
                let accept = move || {
                    let message =
                        EdgeObserved::parse(&body).map_err(|error| Problem::malformed(format!("{error}.")))?;
                    if message.edge != name {
                        let edge = message.edge;
                        let detail =
                            format!("The message names edge `{edge}`, but the certificate is that of edge `{name}`.");
                        let title = "The certificate is that of another edge";
                        return Err(Problem::new(StatusCode::FORBIDDEN, "not-this-edge", title, detail));
                    }
                    observed.apply(message).map_err(rejected)
                };
                spawn_blocking(accept).await.map_err(|_| problems::overloaded())?
            }
        };
        let result = match &answer {
            Ok(Taken::Whole) => "accepted",
            Ok(Taken::Part(_)) => "limited",
            Err(problem) => match problem.status() {
                StatusCode::TOO_MANY_REQUESTS => "limited",
                StatusCode::CONFLICT => "resync",
                _ => "refused",
            },
        };
        self.metrics.observed_messages.with_label_values(&[result]).inc();
        answer?;
        let mut response = Response::new(Body::Empty);
        *response.status_mut() = StatusCode::NO_CONTENT;
        Ok(response)
    }
}

fn rejected(why: Rejected) -> Problem {
    let detail = format!("{why}.");
    match why {
        Rejected::Resync => Problem::new(StatusCode::CONFLICT, "resync", "What came before is missing", detail),
        Rejected::Edges => {
            let problem = Problem::new(StatusCode::TOO_MANY_REQUESTS, "limit-reached", "The limit is reached", detail);
            problem.retry_after(LATEST)
        }
    }
}
