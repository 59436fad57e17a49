//! A session of Git's protocol: lists refs, negotiates and requests a pack.
//!
//! The messages are those of gix. Its high-level fetch is not used, because it also resolves the pack and updates refs,
//! without the limits and rules of a mirror.

use std::collections::BTreeSet;
use std::io::BufRead;
use std::path::Path;
use std::sync::atomic::AtomicBool;

use gix::negotiate::{Algorithm, Graph, Negotiator};
use gix::odb::store::RefreshMode;
use gix::progress::DynNestedProgress;
use gix::protocol::fetch::negotiate::{self, Action, Round, one_round};
use gix::protocol::fetch::{Arguments, Negotiate, RefMap, Response, Shallow, Tags};
use gix::protocol::transport::Service;
use gix::protocol::transport::client::blocking_io::Transport;
use gix::protocol::{Handshake, SendFlushOnDrop};

use super::git_progress::GixProgress;
use super::refs::Refs;
use super::{AGENT, FetchProgress, listing};
use crate::commit::ReadableCommits;

/// A session after its listing of refs. Ends with a flush when it is dropped.
pub(super) struct ProtocolSession<T: Transport> {
    transport: SendFlushOnDrop<T>,
    handshake: Handshake,
    refs: RefMap,
}

impl<T: Transport> ProtocolSession<T> {
    /// Lists branches, tags, `HEAD` and `further_refs`.
    pub(super) fn open(transport: T, further_refs: &BTreeSet<String>, progress: &FetchProgress) -> gix::Result<Self> {
        let mut transport = SendFlushOnDrop::new(transport, false);
        // The transport sends the credentials; no helper is asked for any.
        let nobody = |_| Ok(None);
        let inner = &mut transport.inner;
        let mut handshake = gix::protocol::handshake(
            &mut *inner,
            Service::UploadPack,
            nobody,
            Vec::new(),
            &mut GixProgress::new(progress),
        )?;
        let refs = match handshake.refs.take() {
            Some(refs) => refs,
            None => listing::request(inner, &handshake.capabilities, further_refs)?,
        };
        let refs = listing::map(refs, &handshake.capabilities, further_refs)?;
        Ok(Self { transport, handshake, refs })
    }

    /// The listed refs.
    pub(super) fn refs(&self) -> &RefMap {
        &self.refs
    }

    /// Requests missing objects of these refs and passes the pack to `receive`, unless none is missing. `shallow` is the
    /// file of shallow commits, which the upstream may change.
    pub(super) fn fetch(
        &mut self,
        repo: &gix::Repository,
        wanted: &Refs,
        shallow: &Path,
        receive: impl FnOnce(&mut dyn BufRead) -> gix::Result<()>,
        progress: &FetchProgress,
        interrupt: &AtomicBool,
    ) -> gix::Result<()> {
        self.refs.mappings.retain(|mapping| mapping.local.as_ref().is_some_and(|name| wanted.contains_key(name)));
        let mut known = repo.clone();
        // A missing object is looked up once, without a refresh of the packs.
        known.objects.refresh = RefreshMode::Never;
        known.objects.unset_object_cache();
        let mut negotiation = Negotiation {
            repo: &known,
            graph: Graph::new(ReadableCommits(&known.objects), None),
            negotiator: Algorithm::Consecutive.into_negotiator(),
            refs: &self.refs,
        };
        let context = gix::protocol::fetch::Context {
            handshake: &mut self.handshake,
            transport: &mut self.transport.inner,
            user_agent: agent(),
            trace_packetlines: false,
        };
        let options = gix::protocol::fetch::Options {
            shallow_file: shallow.to_owned(),
            shallow: &Shallow::NoChange,
            tags: Tags::None,
            reject_shallow_remote: false,
        };
        let whole =
            |pack: &mut dyn BufRead, _: &mut dyn DynNestedProgress, _: &AtomicBool| receive(pack).map(|()| true);
        gix::protocol::fetch(&mut negotiation, whole, GixProgress::new(progress), interrupt, context, options)?;
        Ok(())
    }
}

/// The origin's user agent.
pub(super) fn agent() -> (&'static str, Option<String>) {
    ("agent", Some(gix::protocol::agent(AGENT)))
}

/// The negotiation of common commits by gix.
struct Negotiation<'a> {
    repo: &'a gix::Repository,
    graph: Graph<'a, 'a>,
    negotiator: Box<dyn Negotiator>,
    refs: &'a RefMap,
}

impl Negotiate for Negotiation<'_> {
    fn mark_complete_and_common_ref(&mut self) -> gix::Result<Action> {
        let borrows_from_none = || Ok(std::iter::empty::<(gix::RefStore, gix::OdbHandle)>());
        negotiate::mark_complete_and_common_ref(
            &self.repo.objects,
            &self.repo.refs,
            borrows_from_none,
            &mut *self.negotiator,
            &mut self.graph,
            self.refs,
            &Shallow::NoChange,
            |_| false,
        )
    }

    fn add_wants(&mut self, arguments: &mut Arguments, known: &[bool]) -> bool {
        negotiate::add_wants(&self.repo.objects, arguments, self.refs, known, &Shallow::NoChange, |_| false)
    }

    fn one_round(
        &mut self,
        state: &mut one_round::State,
        arguments: &mut Arguments,
        before: Option<&Response>,
    ) -> gix::Result<(Round, bool)> {
        negotiate::one_round(&mut *self.negotiator, &mut self.graph, state, arguments, before)
    }
}
