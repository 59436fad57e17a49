//! What is said to an upstream in Git's protocol: which refs it has, and what of them is wanted.
//!
//! The words are gix's. What it has for whole fetches would resolve the pack and move the refs as well; both are done
//! elsewhere, where it is known how much a mirror may take and that its refs go wherever the upstream's go.

use std::io::BufRead;
use std::path::Path;
use std::sync::atomic::AtomicBool;

use gix::negotiate::{Algorithm, Graph, Negotiator};
use gix::odb::store::RefreshMode;
use gix::progress::DynNestedProgress;
use gix::protocol::fetch::negotiate::{self, Action, Round, one_round};
use gix::protocol::fetch::{Arguments, Negotiate, RefMap, Response, Shallow, Tags, refmap};
use gix::protocol::transport::Service;
use gix::protocol::transport::client::blocking_io::Transport;
use gix::protocol::{Handshake, SendFlushOnDrop};
use gix::refspec::RefSpec;

use super::{FetchProgress, USER_AGENT};

/// An upstream that has listed its refs. It is told when nothing more is wanted.
pub(super) struct ProtocolSession<T: Transport> {
    transport: SendFlushOnDrop<T>,
    handshake: Handshake,
    refs: RefMap,
}

impl<T: Transport> ProtocolSession<T> {
    /// Asks for the refs that these refspecs name.
    pub(super) fn open(transport: T, fetch_refspecs: Vec<RefSpec>, progress: &FetchProgress) -> gix::Result<Self> {
        let mut transport = SendFlushOnDrop::new(transport, false);
        let wanted = refmap::init::Context { fetch_refspecs, extra_refspecs: Vec::new() };
        // Credentials are the transport's own. Nobody else is asked for any.
        let nobody = |_| Ok(None);
        let inner = &mut transport.inner;
        let mut handshake =
            gix::protocol::handshake(&mut *inner, Service::UploadPack, nobody, Vec::new(), &mut progress.root())?;
        let listing = handshake.prepare_lsrefs_or_extract_refmap(agent(), true, wanted)?;
        let refs = listing.fetch_blocking(progress.root(), inner, false)?;
        Ok(Self { transport, handshake, refs })
    }

    /// The refs, as the upstream names them.
    pub(super) fn refs(&self) -> &RefMap {
        &self.refs
    }

    /// Asks for what the refs lead to and is not here; `receive` is given the pack. It is not called when all is here. `shallow`:
    /// the list of commits without their parents, which the upstream changes.
    pub(super) fn fetch(
        &mut self,
        repo: &gix::Repository,
        shallow: &Path,
        receive: impl FnOnce(&mut dyn BufRead) -> gix::Result<()>,
        progress: &FetchProgress,
        interrupt: &AtomicBool,
    ) -> gix::Result<()> {
        let mut known = repo.clone();
        // What is not here is looked for once, and not again after each miss.
        known.objects.refresh = RefreshMode::Never;
        known.objects.unset_object_cache();
        let mut negotiation = Negotiation {
            repo: &known,
            graph: known.revision_graph(None),
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
        gix::protocol::fetch(&mut negotiation, whole, progress.root(), interrupt, context, options)?;
        Ok(())
    }
}

/// How the origin calls itself.
fn agent() -> (&'static str, Option<String>) {
    ("agent", Some(gix::protocol::agent(USER_AGENT)))
}

/// What both sides have, as gix finds it out.
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
