//! A change of a repository's state, queued for its writer.

use tokio::sync::oneshot;
use weir_protocol::name::ServiceName;

use super::attempt::AttemptTime;
use super::protection::Protection;
use crate::decide::draft::{Draft, VisibleChange};
use crate::error::PublishError;

/// Applies the change to a draft, or passes on the error.
type Apply = dyn FnOnce(Result<&mut Draft<'_>, PublishError>) -> Applied + Send;

/// Answers the caller.
type Reply = dyn FnOnce(Result<(), PublishError>) + Send;

pub(crate) struct PendingChange {
    pub(crate) services: Vec<ServiceName>,
    /// Protects its objects from garbage collection.
    pub(crate) attempt: Option<(Protection, AttemptTime)>,
    apply: Box<Apply>,
}

/// The rest of a change after it was applied.
#[derive(Default)]
pub(crate) struct Applied {
    /// Becomes visible once the draft is durable.
    pub(crate) visible: Vec<VisibleChange>,
    reply: Option<Box<Reply>>,
}

impl PendingChange {
    /// A change, and the receiver of its result. If `apply` fails, it must leave the draft unchanged.
    pub(crate) fn new<T, E>(
        services: Vec<ServiceName>,
        apply: impl FnOnce(&mut Draft<'_>) -> Result<(T, Vec<VisibleChange>), E> + Send + 'static,
    ) -> (Self, oneshot::Receiver<Result<T, E>>)
    where
        T: Send + 'static,
        E: From<PublishError> + Send + 'static,
    {
        let (done, answer) = oneshot::channel();
        // The caller may have gone; the change is completed anyway.
        let apply = move |draft: Result<&mut Draft<'_>, PublishError>| match draft.map_err(E::from).and_then(apply) {
            Ok((value, visible)) => {
                let reply = move |durable: Result<(), PublishError>| {
                    let _ = done.send(durable.map(|()| value).map_err(E::from));
                };
                Applied { visible, reply: Some(Box::new(reply)) }
            }
            Err(error) => {
                let _ = done.send(Err(error));
                Applied::default()
            }
        };
        (Self { services, attempt: None, apply: Box::new(apply) }, answer)
    }

    pub(crate) fn apply(self, draft: &mut Draft<'_>) -> Applied {
        (self.apply)(Ok(draft))
    }

    /// Fails the change.
    pub(crate) fn refuse(self, error: PublishError) {
        (self.apply)(Err(error));
    }
}

impl Applied {
    /// Answers the caller.
    pub(crate) fn reply(&mut self, durable: Result<(), PublishError>) {
        if let Some(reply) = self.reply.take() {
            reply(durable);
        }
    }
}
