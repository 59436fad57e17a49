//! `POST /v1/observed`: what the agents of an edge run. Only edges send it, and each origin keeps it for itself.

use bytes::Bytes;
use http::{Method, Request, Response, StatusCode};
use weir_observed::{Rejected, Taken};
use weir_protocol::name::NodeName;
use weir_protocol::observed::{EdgeObserved, MAX_MESSAGE_BYTES, NAME_TWICE};
use weir_protocol::problem::Problem;
use weir_runtime::identity::{Identity, Role};
use weir_runtime::serve::{Body, Peer, RequestBody};

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
            Err(error) => Err(error.into()),
            Ok(body) => self.take_in(body, name).await,
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

    async fn take_in(&self, body: Bytes, name: &NodeName) -> Result<Taken, Problem> {
        let Some(in_progress) = self.observed.begin(name).await else { return Err(problems::too_many_messages()) };
        let (name, deliveries, catalog) = (name.clone(), self.deliveries.clone(), self.catalog.clone());
        let count = move |delivered: &[_]| {
            // It ends with the work, also when the edge has disconnected before.
            let _in_progress = in_progress;
            deliveries.count(delivered, &catalog.snapshot());
        };
        let taken = self.observed.apply(move || read(&body, &name), count);
        taken.await.unwrap_or_else(|| Err(problems::overloaded().into())).map_err(|NotTaken(problem)| problem)
    }
}

/// Why a message was not taken in.
struct NotTaken(Problem);

impl From<Problem> for NotTaken {
    fn from(problem: Problem) -> Self {
        Self(problem)
    }
}

impl From<Rejected> for NotTaken {
    fn from(why: Rejected) -> Self {
        let detail = format!("{why}.");
        Self(match why {
            Rejected::Resync => Problem::new(StatusCode::CONFLICT, "resync", "What came before is missing", detail),
            Rejected::NameTwice => {
                Problem::new(StatusCode::TOO_MANY_REQUESTS, NAME_TWICE, "Another edge has this name", detail)
                    .retry_after(LATEST)
            }
            Rejected::Edges => {
                Problem::new(StatusCode::TOO_MANY_REQUESTS, "limit-reached", "The limit is reached", detail)
                    .retry_after(LATEST)
            }
        })
    }
}

/// Reads a message of the edge with this name.
fn read(body: &[u8], name: &NodeName) -> Result<EdgeObserved, NotTaken> {
    let message = EdgeObserved::parse(body).map_err(|error| Problem::malformed(format!("{error}.")))?;
    if message.edge == *name {
        return Ok(message);
    }
    let detail = format!("The message names edge `{}`, but the certificate is that of edge `{name}`.", message.edge);
    let title = "The certificate is that of another edge";
    Err(Problem::new(StatusCode::FORBIDDEN, "not-this-edge", title, detail).into())
}
