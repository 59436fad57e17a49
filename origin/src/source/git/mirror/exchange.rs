//! One connection to an upstream: list, compare, and fetch if something moved.

use std::io::BufRead;
use std::os::unix::ffi::OsStrExt;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, PoisonError};

use gix::ThreadSafeRepository;
use gix::bstr::BStr;
use gix::protocol::transport::Protocol;
use gix::protocol::transport::client::blocking_io::Transport;
use gix::protocol::transport::client::git::ConnectMode;
use gix::protocol::transport::client::git::blocking_io::Connection;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;

use super::astray::AstrayRefs;
use super::attempt::Attempt;
use super::conversation::Conversation;
use super::program::Program;
use super::quarantine::Quarantine;
use super::refs::{self, Difference, Refs};
use super::wire::{Incoming, Outgoing};
use super::{FetchMemory, FetchProgress, MirrorError, Poll, git_program, http, listing, size, ssh};
use crate::source::{Address, Upstream};

/// The port of `git://`.
const GIT_DAEMON_PORT: u16 = 9418;

/// Brings the mirror up to date over one connection, or a few requests. `astray`: the refs that could not be followed before.
pub(super) fn poll(
    repo: &ThreadSafeRepository,
    upstream: &Upstream,
    progress: &FetchProgress,
    astray: &Mutex<AstrayRefs>,
    memory: &FetchMemory,
    (interrupt, may_fetch): (&AtomicBool, &dyn Fn() -> bool),
) -> Result<Poll, MirrorError> {
    let attempt = Attempt::new(upstream, interrupt)?;
    let exchange =
        Exchange { repo: &repo.to_thread_local(), attempt: &attempt, progress, astray, memory, interrupt, may_fetch };
    let result = exchange.begin();
    progress.asked(attempt.requests());
    result
}

/// Opens a connection over TCP, to the first address that answers.
fn connect(attempt: &Attempt, host: &str, port: u16) -> Result<TcpStream, MirrorError> {
    let egress = &attempt.upstream.egress;
    egress.check_host(host)?;
    attempt.asks();
    attempt.wait(async {
        let mut last = MirrorError::Connect { cause: "it has no address".to_owned(), timeout: false };
        for address in egress.resolve(host, port).await? {
            last = match tokio::time::timeout(attempt.connect_timeout(), TcpStream::connect(address)).await {
                Ok(Ok(socket)) => return Ok(socket),
                Ok(Err(error)) => MirrorError::Connect { cause: error.to_string(), timeout: false },
                Err(_) => MirrorError::Connect { cause: "no connection came about in time".to_owned(), timeout: true },
            };
        }
        Err(last)
    })?
}

fn halves<'a, R: AsyncRead + Unpin, W: AsyncWrite + Unpin>(
    attempt: &'a Attempt<'a>,
    (read, write): (R, W),
) -> (Incoming<'a, R>, Outgoing<'a, W>) {
    (Incoming::new(read, attempt), Outgoing::new(write, attempt))
}

struct Exchange<'a> {
    repo: &'a gix::Repository,
    attempt: &'a Attempt<'a>,
    progress: &'a FetchProgress,
    astray: &'a Mutex<AstrayRefs>,
    memory: &'a FetchMemory,
    interrupt: &'a AtomicBool,
    may_fetch: &'a dyn Fn() -> bool,
}

impl Exchange<'_> {
    /// Connects by the URL's scheme, and goes through with it.
    fn begin(&self) -> Result<Poll, MirrorError> {
        let upstream = self.attempt.upstream;
        let unsupported = |reason| MirrorError::UnsupportedUrl { url: upstream.url.to_string(), reason };
        match upstream.url.address().map_err(unsupported)? {
            Address::Http(url) => self.run(http::transport(self.attempt, url)?),
            Address::Git { host, port, path } => {
                let socket = connect(self.attempt, host, port.unwrap_or(GIT_DAEMON_PORT))?;
                let (path, virtual_host) = (path.as_str(), Some((host.as_str(), *port)));
                let (incoming, outgoing) = halves(self.attempt, socket.into_split());
                let mode = ConnectMode::Daemon;
                self.run(Connection::new(incoming, outgoing, Protocol::V2, path, virtual_host, mode, false))
            }
            Address::Local(path) => {
                let path = path.as_os_str().as_bytes();
                let command = git_program::upload_pack(path);
                let started = Program::start(self.attempt, command);
                let started = started.map_err(MirrorError::local("start the git program for a local upstream"))?;
                self.with_program(path, started, |step, said| git_program::complaint(step, said, path))
            }
            Address::Ssh(address) => ssh::in_turn(
                ssh::tries(self.attempt, address)?,
                || self.attempt.has_heard(),
                |each| {
                    self.attempt.asks();
                    let command = ssh::upload_pack(self.attempt, address, each)?;
                    let started = Program::start(self.attempt, command);
                    let started = started.map_err(MirrorError::local("start the ssh program"))?;
                    self.with_program(address.path.as_bytes(), started, ssh::complaint)
                },
            ),
        }
    }

    /// Talks to a program; when it breaks off, what it complained about says why.
    fn with_program(
        &self,
        path: &[u8],
        (program, socket): (Program, tokio::net::UnixStream),
        complaint: impl Fn(&'static str, &str) -> Option<MirrorError>,
    ) -> Result<Poll, MirrorError> {
        let (incoming, outgoing) = halves(self.attempt, socket.into_split());
        let (path, virtual_host) = (BStr::new(path), None::<(String, _)>);
        let mode = ConnectMode::Process;
        let transport = Connection::new(incoming, outgoing, Protocol::V2, path, virtual_host, mode, false);
        self.run(transport).map_err(|error| match error {
            MirrorError::Upstream { step, .. } => complaint(step, &program.complaint(self.attempt)).unwrap_or(error),
            other => other,
        })
    }

    fn run(&self, transport: impl Transport) -> Result<Poll, MirrorError> {
        let refspecs = refs::refspecs(&self.attempt.upstream.further_refs)?;
        self.progress.listing();
        let begun = Conversation::begin(transport, refspecs, self.progress);
        let mut conversation = begun.map_err(|error| self.failed(&error))?;
        listing::check(conversation.refs(), self.attempt.upstream.max_refs)?;
        let advertised = refs::advertised(conversation.refs());
        let mirrored = refs::mirrored(self.repo)?;
        if advertised.is_empty() {
            return Err(match mirrored.len() {
                0 => MirrorError::EmptyRepository,
                mirrored => MirrorError::NothingAdvertised { mirrored },
            });
        }
        let format = conversation.refs().object_hash;
        if format != self.repo.object_hash() {
            return Err(MirrorError::OtherObjectFormat { format, mirrored: mirrored.len() });
        }
        let refs = advertised.len();
        let mut astray = self.astray.lock().unwrap_or_else(PoisonError::into_inner);
        astray.retain(&advertised);
        let difference = Difference::between(&mirrored, &advertised, &astray);
        if difference.is_none() {
            return astray.error(false).map_or(Ok(Poll::Unchanged { refs }), Err);
        }
        let mut changed = !difference.gone.is_empty();
        refs::delete(self.repo, difference.gone)?;
        if difference.moved && !(self.may_fetch)() {
            return Ok(Poll::Moved);
        }
        if difference.moved {
            let measured = size::of(self.repo.git_dir()).map_err(MirrorError::local("be measured"))?;
            self.attempt.fetch_begins(self.progress, measured.bytes);
            self.progress.preparing();
            let fetched = self.fetch(&mut conversation, &advertised);
            changed |= refs::mirrored(self.repo)?.iter().any(|(name, id)| mirrored.get(name) != Some(id));
            *astray = fetched?;
        }
        astray.error(changed).map_or(Ok(Poll::Changed { refs }), Err)
    }

    /// Fetches what moved, and moves the refs.
    fn fetch(
        &self,
        conversation: &mut Conversation<impl Transport>,
        advertised: &Refs,
    ) -> Result<AstrayRefs, MirrorError> {
        let quarantine = Quarantine::new(self.repo, self.attempt, self.progress, self.memory);
        let quarantine = quarantine.map_err(MirrorError::local("have a folder for what comes"))?;
        let receive = |pack: &mut dyn BufRead| quarantine.receive(pack);
        let received =
            conversation.fetch(self.repo, &quarantine.shallow_file(), receive, self.progress, self.interrupt);
        received.map_err(|error| self.failed(&error))?;
        let both = quarantine.repository().map_err(MirrorError::mirror("read what was fetched"))?;
        refs::follow(&both, advertised, self.interrupt, |tips| {
            quarantine.admit(tips).map_err(|error| self.failed(&error))
        })
    }

    fn failed(&self, error: &gix::Error) -> MirrorError {
        if self.interrupt.load(Ordering::Relaxed) {
            return MirrorError::Interrupted;
        }
        self.attempt.failure().unwrap_or_else(|| MirrorError::exchange(self.attempt.step(), error))
    }
}
