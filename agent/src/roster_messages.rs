//! What others tell the roster: another configuration, and the lists of edges.

use std::collections::BTreeSet;
use std::time::Duration;

use anyhow::Context;
use tokio::sync::{mpsc, oneshot};
use weir_protocol::name::ServiceName;

use crate::config::Config;
use crate::edge_client::Edges;
use crate::selection::Selection;

/// The most messages that wait for the roster.
pub(crate) const MAX_MESSAGES: usize = 8;

/// What the roster reacts to.
pub(crate) enum Message {
    /// The configuration has changed, with its edges.
    Configured(Box<(Config, Edges)>, oneshot::Sender<()>),
    /// An edge said which services there are. The answer: whether all are to be asked.
    Listed(List, oneshot::Sender<bool>),
    /// All edges were asked for this selection. `None`: one that counts did not answer.
    AllListed(Selection, Option<BTreeSet<ServiceName>>),
    /// All tasks of a service have ended.
    Ended(ServiceName),
}

/// The services that there are, as an edge says.
pub(crate) struct List {
    pub(crate) services: BTreeSet<ServiceName>,
    /// What it was asked for.
    pub(crate) selection: Selection,
    /// Over what the first polls of new services are spread, if not over the agent's own `spread`.
    pub(crate) spread: Option<Duration>,
}

/// Sends to the roster.
#[derive(Clone)]
pub(crate) struct RosterHandle(pub(crate) mpsc::Sender<Message>);

impl RosterHandle {
    /// Follows the services of a configuration, at its edges. Blocks.
    ///
    /// # Errors
    /// The agent is stopping. Nothing has changed.
    pub(crate) fn configure(&self, config: Config, edges: Edges) -> anyhow::Result<()> {
        let (done, result) = oneshot::channel();
        // An error: the result never comes.
        let _ = self.0.blocking_send(Message::Configured(Box::new((config, edges)), done));
        result.blocking_recv().context("the agent is stopping")
    }

    /// An edge said which services there are. Returns once they are followed, and whether all edges are to be asked: lists
    /// lack a service for long.
    pub(crate) async fn listed(&self, list: List) -> bool {
        let (done, applied) = oneshot::channel();
        let _ = self.0.send(Message::Listed(list, done)).await;
        applied.await.unwrap_or_default()
    }

    /// All edges were asked, and list these services together. `None`: one that counts did not answer.
    pub(crate) async fn all_listed(&self, selection: Selection, services: Option<BTreeSet<ServiceName>>) {
        let _ = self.0.send(Message::AllListed(selection, services)).await;
    }
}
