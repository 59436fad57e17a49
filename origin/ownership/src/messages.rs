//! What the core is told, and what it wants done.

use std::time::Instant;

use weir_protocol::name::{NodeName, RepositoryName};

use super::records::{Claim, Digests, NodeRecord};

/// Names a request to the record store. The caller gives up at the deadline; the core ignores later answers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Request {
    /// Unique in a run of the core.
    pub id: u64,
    /// The end of the attempt.
    pub deadline: Instant,
}

/// What the caller of the core must do. `V` is the engine's version of a record.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Action<V> {
    /// Read this node's own record: [`Answer::Node`].
    ReadNode(Request),
    /// Write this node's own record: [`Answer::Written`] or [`Answer::Conflict`].
    WriteNode {
        /// The request.
        request: Request,
        /// The version to replace; `None` if there must be no record.
        expect: Option<V>,
        /// The new record.
        record: NodeRecord,
    },
    /// Read the records of all nodes: [`Answer::Nodes`]. All reads must begin after this action.
    ReadNodes(Request),
    /// Delete the record of a node that ended long ago, if it is still this one. It needs no answer.
    DeleteNode(NodeRecord),
    /// List the records of repositories: [`Answer::Repositories`].
    ListRepositories(Request),
    /// Read the record of a repository: [`Answer::Repository`].
    ReadRepository {
        /// The request.
        request: Request,
        /// The repository.
        repository: RepositoryName,
    },
    /// Write the claim into the record of a repository: [`Answer::Written`] or [`Answer::Conflict`]. All else in the
    /// record stays as it was in the version that is replaced, which is the one that was just read.
    WriteRepository {
        /// The request.
        request: Request,
        /// The repository.
        repository: RepositoryName,
        /// The version to replace; `None` if there must be no record.
        expect: Option<V>,
        /// The new claim.
        claim: Claim,
    },
    /// Start the worker and the writer of a repository.
    Start {
        /// The repository.
        repository: RepositoryName,
        /// The fence of the own claim.
        fence: u64,
        /// The version of the record, which the writer replaces with its first write.
        version: V,
    },
    /// Stop the worker and the writer of a repository, then answer with [`Event::Stopped`].
    Stop {
        /// The repository.
        repository: RepositoryName,
    },
    /// The session has ended: stop all workers and writers, abandon [`Action::Stop`]s, and vouch for nothing. Then answer
    /// with [`Event::AllStopped`].
    StopAll,
    /// Ask a node whether it is ready to own a repository: [`Event::Asked`] there, then [`Event::Ready`] here.
    AskReady {
        /// The node to ask.
        node: NodeName,
        /// The repository.
        repository: RepositoryName,
    },
    /// Tell a node that a repository was released for it: [`Event::Told`] there. The message may be lost.
    Tell {
        /// The next owner.
        node: NodeName,
        /// The repository.
        repository: RepositoryName,
    },
    /// Prepare to own a repository: get its mirror.
    Prepare {
        /// The repository.
        repository: RepositoryName,
    },
    /// The node has left the cluster. Nothing else follows.
    Left,
}

/// What has happened.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Event<V> {
    /// Time has passed; due at [`Core::wake_at`](super::Core::wake_at).
    Tick,
    /// The record store answered.
    Answered {
        /// [`Request::id`].
        request: u64,
        /// The answer.
        answer: Answer<V>,
    },
    /// These repositories are to have an owner, whether or not they have a record.
    Defined(Vec<RepositoryName>),
    /// The owner of a repository asks whether this node is ready to own it. The answer is no unless
    /// [`Action::Prepare`] follows.
    Asked {
        /// The repository.
        repository: RepositoryName,
    },
    /// A node answered [`Action::AskReady`].
    Ready {
        /// The node that was asked.
        node: NodeName,
        /// The repository.
        repository: RepositoryName,
        /// Whether it is ready.
        is_ready: bool,
    },
    /// The owner of a repository has released it for this node.
    Told {
        /// The repository.
        repository: RepositoryName,
    },
    /// The writer of a repository found a record that it did not write.
    Superseded {
        /// The repository.
        repository: RepositoryName,
    },
    /// The answer to [`Action::Stop`]: nothing fetches, publishes or deletes objects of the repository any more.
    Stopped {
        /// The repository.
        repository: RepositoryName,
        /// No write of the writer has an unknown outcome.
        is_settled: bool,
    },
    /// The answer to [`Action::StopAll`].
    AllStopped,
    /// The node has read its configuration again.
    Described(Digests),
    /// Hand everything over, then leave.
    Drain,
}

/// The answer to a request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Answer<V> {
    /// The own record, if there is one.
    Node(Option<(NodeRecord, V)>),
    /// The readable records of all nodes.
    Nodes(Vec<NodeRecord>),
    /// The names of all records of repositories, with their versions if the listing has them.
    Repositories(Vec<(RepositoryName, Option<V>)>),
    /// The claim of a repository, if it has a record.
    Repository(Option<(Claim, V)>),
    /// The write is durable and has this version.
    Written(V),
    /// Nothing was written: the record has another version.
    Conflict,
    /// The read failed, or the write may have been committed or may still be.
    Unknown,
}
