//! `POST /v1/observed`, and `…/via/{shield}` through a shield: what the agents of an edge run. Only edges send it, and each
//! origin keeps it for itself.

use bytes::Bytes;
use http::{Method, Request, Response, StatusCode};
use weir_observed::{Rejected, Taken};
use weir_protocol::name::{EdgeName, NodeName};
use weir_protocol::observed::{EdgeObserved, MAX_MESSAGE_BYTES, NAME_TWICE};
use weir_protocol::problem::Problem;
use weir_runtime::identity::{Identity, Role};
use weir_runtime::serve::{Body, Peer, RequestBody};

use super::EdgeApi;
use super::problems::{self, LATEST};

impl EdgeApi {
    /// Takes in a message of an edge, or of a shield with this name about an edge behind it.
    pub(super) async fn observed(
        &self,
        request: Request<RequestBody>,
        peer: &Peer,
        shield: Option<NodeName>,
    ) -> Result<Response<Body>, Problem> {
        if request.method() != Method::POST {
            return Err(Problem::method_not_allowed("POST"));
        }
        let Some(Identity { role: Role::Edge, name }) = &peer.identity else { return Err(problems::not_an_edge()) };
        let answer = match request.into_body().read(MAX_MESSAGE_BYTES).await {
            Err(error) => Err(error.into()),
            Ok(body) => self.take_in(body, name, shield).await,
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

    async fn take_in(&self, body: Bytes, name: &NodeName, shield: Option<NodeName>) -> Result<Taken, Problem> {
        let Some(in_progress) = self.observed.begin(name).await else { return Err(problems::too_many_messages()) };
        let (name, deliveries, catalog) = (name.clone(), self.deliveries.clone(), self.catalog.clone());
        let count = move |delivered: &[_]| {
            // It ends with the work, also when the edge has disconnected before.
            let _in_progress = in_progress;
            deliveries.count(delivered, &catalog.snapshot());
        };
        let taken = self.observed.apply(move || read(&body, &name, shield.as_ref()), count);
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
            Rejected::Edges | Rejected::EdgesOfIdentity { .. } => {
                Problem::new(StatusCode::TOO_MANY_REQUESTS, "limit-reached", "The limit is reached", detail)
                    .retry_after(LATEST)
            }
        })
    }
}

/// Reads a message that came with the certificate of this identity: of an edge with it, or through a shield with it.
fn read(body: &[u8], name: &NodeName, shield: Option<&NodeName>) -> Result<(EdgeObserved, Option<EdgeName>), NotTaken> {
    let message = EdgeObserved::parse(body).map_err(|error| Problem::malformed(format!("{error}.")))?;
    // What a shield says of its edges is its claim.
    if shield.is_some() || message.edge == *name {
        return Ok((message, shield.map(|shield| EdgeName::of(name, Some(shield)))));
    }
    let detail = format!("The message names edge `{}`, but the certificate is that of edge `{name}`.", message.edge);
    let title = "The certificate is that of another edge";
    Err(Problem::new(StatusCode::FORBIDDEN, "not-this-edge", title, detail).into())
}
