//! A change of a repository's state that waits for its writer.

use tokio::sync::oneshot;
use weir_protocol::name::ServiceName;

use super::attempt::AttemptTime;
use super::draft::{Draft, VisibleChange};
use super::error::PublishError;
use super::protection::Protection;

/// Applies a change to a draft, or says why it cannot be made.
type Apply = dyn FnOnce(Result<&mut Draft<'_>, PublishError>) -> Applied + Send;

/// Tells whoever asked.
type Reply = dyn FnOnce(Result<(), PublishError>) + Send;

/// A change that waits.
pub(super) struct PendingChange {
    /// The services whose rows it reads or changes.
    pub(super) services: Vec<ServiceName>,
    /// Keeps its objects from deletion.
    pub(super) attempt: Option<(Protection, AttemptTime)>,
    apply: Box<Apply>,
}

/// What a change leaves to do when the draft is written.
#[derive(Default)]
pub(super) struct Applied {
    /// What is shown once it is durable.
    pub(super) shown: Vec<VisibleChange>,
    reply: Option<Box<Reply>>,
}

impl PendingChange {
    /// A change, and its answer. When `apply` fails it must have changed nothing.
    pub(super) fn new<T, E>(
        services: Vec<ServiceName>,
        apply: impl FnOnce(&mut Draft<'_>) -> Result<(T, Vec<VisibleChange>), E> + Send + 'static,
    ) -> (Self, oneshot::Receiver<Result<T, E>>)
    where
        T: Send + 'static,
        E: From<PublishError> + Send + 'static,
    {
        let (done, answer) = oneshot::channel();
        // Whoever asked may have gone: what was begun is finished all the same.
        let apply = move |draft: Result<&mut Draft<'_>, PublishError>| match draft.map_err(E::from).and_then(apply) {
            Ok((value, shown)) => {
                let reply = move |durable: Result<(), PublishError>| {
                    let _ = done.send(durable.map(|()| value).map_err(E::from));
                };
                Applied { shown, reply: Some(Box::new(reply)) }
            }
            Err(error) => {
                let _ = done.send(Err(error));
                Applied::default()
            }
        };
        (Self { services, attempt: None, apply: Box::new(apply) }, answer)
    }

    /// Applies it to a draft.
    pub(super) fn apply(self, draft: &mut Draft<'_>) -> Applied {
        (self.apply)(Ok(draft))
    }

    /// It cannot be made.
    pub(super) fn refuse(self, error: PublishError) {
        (self.apply)(Err(error));
    }
}

impl Applied {
    /// Tells whoever asked.
    pub(super) fn reply(&mut self, durable: Result<(), PublishError>) {
        if let Some(reply) = self.reply.take() {
            reply(durable);
        }
    }
}
