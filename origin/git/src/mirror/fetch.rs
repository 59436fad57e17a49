//! A poll of an upstream over one connection: lists refs, compares them, and fetches if any changed. Only after a failed
//! fetch it connects again, to find the refs that cause it.

use std::cell::RefCell;
use std::collections::HashSet;
use std::io::BufRead;
use std::os::unix::ffi::OsStrExt;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use gix::ThreadSafeRepository;
use gix::bstr::{BStr, BString, ByteSlice};
use gix::protocol::transport::Protocol;
use gix::protocol::transport::client::blocking_io::Transport;
use gix::protocol::transport::client::git::ConnectMode;
use gix::protocol::transport::client::git::blocking_io::Connection;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;
use weir_upstream::http::UpstreamSession;
use weir_upstream::{Address, Upstream, UpstreamError};

use super::git_session::GitSession;
use super::left_out::{LeftOut, RETRY_INTERVAL};
use super::passes::{Group, fetch_parts};
use super::peeling::RefError;
use super::program::Program;
use super::protocol_session::ProtocolSession;
use super::quarantine::Quarantine;
use super::refs::{self, Difference, Refs};
use super::socket::{SocketReader, SocketWriter};
use super::{FetchMemory, FetchProgress, MirrorError, Poll, git_program, http, listing, size, ssh};
use crate::revision::{Revision, follows, further_refs};

/// The port of `git://`.
const GIT_DAEMON_PORT: u16 = 9418;

/// What a poll has found so far.
#[derive(Default)]
struct Found {
    /// The mirror's refs before the poll.
    before: Option<Refs>,
    advertised: Refs,
    /// What the current fetch requests.
    requested: Option<Group>,
}

/// Updates the mirror over one connection, or several HTTP requests. `left_out`: the refs that earlier polls left out.
pub(super) fn poll(
    repo: &ThreadSafeRepository,
    upstream: &Upstream,
    revisions: &HashSet<Revision>,
    progress: &FetchProgress,
    left_out: &Mutex<LeftOut>,
    memory: &FetchMemory,
    (interrupt, may_fetch): (&AtomicBool, &dyn Fn() -> bool),
) -> Result<Poll, MirrorError> {
    let found = RefCell::<Found>::default();
    let fetch = |group: Option<&Group>| {
        found.borrow_mut().requested = None;
        let repo = &repo.to_thread_local();
        let run = || {
            let session = &GitSession::new(upstream, interrupt)?;
            let found = &found;
            let fetch =
                Fetch { repo, session, revisions, progress, left_out, memory, interrupt, may_fetch, group, found };
            let result = fetch.connect();
            progress.count_requests(session.network.requests());
            result
        };
        run().map_err(|error| {
            let failed = found.borrow().requested.clone().filter(|_| error.may_be_a_ref());
            (error, failed)
        })
    };
    match fetch(None) {
        Ok(Poll::Changed { .. }) => {}
        Ok(poll) => return Ok(poll),
        Err((error, None)) => return Err(error),
        Err((error, Some(failed))) => {
            let leave_out = &mut |group: &Group, error: &MirrorError| {
                let (found, retry_at) = (found.borrow(), Instant::now() + RETRY_INTERVAL);
                for (name, id) in found.advertised.iter().filter(|(_, id)| group.ids.contains(id)) {
                    lock(left_out).add(name, *id, error.clone(), Some(retry_at));
                }
            };
            fetch_parts(failed, error, &mut |group| fetch(Some(group)).map(drop), leave_out)?;
        }
    }
    let Found { before, advertised, .. } = found.take();
    let refs = advertised.len();
    if before != Some(refs::mirrored(&repo.to_thread_local())?) {
        return Ok(Poll::Changed { refs });
    }
    match lock(left_out).failure(|name| follows(revisions, name.as_bstr())) {
        Some(error) => Err(error.clone()),
        None => Ok(Poll::Unchanged { refs }),
    }
}

fn lock(left_out: &Mutex<LeftOut>) -> MutexGuard<'_, LeftOut> {
    left_out.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Connects over TCP to the first address that accepts.
fn connect_tcp(session: &UpstreamSession, host: &str, port: u16) -> Result<TcpStream, UpstreamError> {
    let egress = &session.upstream.egress;
    egress.check_host(host)?;
    session.count_request();
    session.wait(async {
        let mut last = UpstreamError::Connect { cause: "its host name has no address".to_owned(), timeout: false };
        for address in egress.resolve(host, port).await? {
            last = match tokio::time::timeout(session.connect_timeout(), TcpStream::connect(address)).await {
                Ok(Ok(socket)) => return Ok(socket),
                Ok(Err(error)) => UpstreamError::Connect { cause: error.to_string(), timeout: false },
                Err(_) => UpstreamError::Connect { cause: "the connection timed out".to_owned(), timeout: true },
            };
        }
        Err(last)
    })?
}

fn split<'a, R: AsyncRead + Unpin, W: AsyncWrite + Unpin>(
    session: &'a GitSession<'a>,
    (read, write): (R, W),
) -> (SocketReader<'a, R>, SocketWriter<'a, W>) {
    (SocketReader::new(read, session), SocketWriter::new(write, session))
}

struct Fetch<'a> {
    repo: &'a gix::Repository,
    session: &'a GitSession<'a>,
    /// What services follow.
    revisions: &'a HashSet<Revision>,
    progress: &'a FetchProgress,
    left_out: &'a Mutex<LeftOut>,
    memory: &'a FetchMemory,
    interrupt: &'a AtomicBool,
    may_fetch: &'a dyn Fn() -> bool,
    /// A part of a fetch that failed and was permitted.
    group: Option<&'a Group>,
    found: &'a RefCell<Found>,
}

impl Fetch<'_> {
    /// Connects with the transport of the URL's scheme, and runs the poll.
    fn connect(&self) -> Result<Poll, MirrorError> {
        let upstream = self.session.upstream;
        let unsupported = |reason| UpstreamError::UnsupportedUrl { url: upstream.config.url.to_string(), reason };
        match upstream.config.url.address().map_err(unsupported)? {
            Address::Http(url) => self.run(http::transport(self.session, url)?),
            Address::Oci(_) => Err(unsupported("registries have no repositories of Git").into()),
            Address::Git { host, port, path } => {
                let socket = connect_tcp(&self.session.network, host, port.unwrap_or(GIT_DAEMON_PORT))?;
                let (path, virtual_host) = (path.as_str(), Some((host.as_str(), *port)));
                let (reader, writer) = split(self.session, socket.into_split());
                let mode = ConnectMode::Daemon;
                self.run(Connection::new(reader, writer, Protocol::V2, path, virtual_host, mode, false))
            }
            Address::Local(path) => {
                let path = path.as_os_str().as_bytes();
                let command = git_program::upload_pack(path);
                let started = Program::start(self.session, command);
                let started = started.map_err(MirrorError::local("start the git program for a local upstream"))?;
                self.with_program("git", path, started, |step, stderr| git_program::classify_stderr(step, stderr, path))
            }
            Address::Ssh(address) => ssh::try_each(
                ssh::targets(self.session, address)?,
                || self.session.has_received(),
                |target| {
                    self.session.network.count_request();
                    let command = ssh::upload_pack(self.session, address, target)?;
                    let started = Program::start(self.session, command);
                    let started = started.map_err(MirrorError::local("start the ssh program"))?;
                    self.with_program("ssh", address.path.as_bytes(), started, |step, stderr| {
                        ssh::classify_stderr(step, stderr).map(MirrorError::from)
                    })
                },
            ),
        }
    }

    /// Runs the poll over a program. If the program fails, its standard error explains why, or else its exit status.
    fn with_program(
        &self,
        name: &str,
        path: &[u8],
        (program, socket): (Program, tokio::net::UnixStream),
        classify: impl Fn(&'static str, &str) -> Option<MirrorError>,
    ) -> Result<Poll, MirrorError> {
        let (reader, writer) = split(self.session, socket.into_split());
        let (path, virtual_host) = (BStr::new(path), None::<(String, _)>);
        let mode = ConnectMode::Process;
        let transport = Connection::new(reader, writer, Protocol::V2, path, virtual_host, mode, false);
        self.run(transport).map_err(|error| match error {
            MirrorError::Upstream(UpstreamError::Protocol { step, cause }) if !self.session.has_error() => {
                let (code, stderr) = program.end(self.session);
                let status = code.filter(|code| *code != 0);
                let status = status.map_or(String::new(), |code| format!("; `{name}` ended with status {code}"));
                let cause = match classify(step, &stderr) {
                    // A banner may hide what the server sent instead.
                    Some(MirrorError::Upstream(UpstreamError::Protocol { cause: said, .. })) => {
                        format!("{said}{status} ({cause})")
                    }
                    Some(classified) => return classified,
                    None => format!("{cause}{status}"),
                };
                UpstreamError::Protocol { step, cause }.into()
            }
            other => other,
        })
    }

    fn run(&self, transport: impl Transport) -> Result<Poll, MirrorError> {
        let upstream = self.session.upstream;
        self.progress.listing();
        let opened = ProtocolSession::open(transport, &further_refs(self.revisions), self.progress);
        let mut protocol = opened.map_err(|error| self.classify(&error))?;
        let is_followed = |name: &BString| follows(self.revisions, name.as_bstr());
        let (advertised, unusable) = listing::select(protocol.refs(), upstream.limits.max_refs, is_followed)?;
        let mirrored = refs::mirrored(self.repo)?;
        if advertised.is_empty() && unusable.is_empty() {
            return Err(match mirrored.len() {
                0 => MirrorError::EmptyRepository,
                mirrored => MirrorError::NothingAdvertised { mirrored },
            });
        }
        let format = protocol.refs().object_hash;
        if format != self.repo.object_hash() {
            return Err(MirrorError::OtherObjectFormat { format, mirrored: mirrored.len() });
        }
        let (refs, now) = (advertised.len(), Instant::now());
        lock(self.left_out).listed(&advertised, unusable);
        let Difference { deleted, mut wanted, in_the_way } =
            Difference::between(&mirrored, &advertised, &lock(self.left_out), is_followed, now);
        if let Some(group) = self.group {
            let ids: HashSet<_> = group.ids.iter().collect();
            wanted.retain(|_, id| ids.contains(id));
        }
        let mut found = self.found.borrow_mut();
        found.before.get_or_insert(mirrored);
        found.advertised = advertised;
        if deleted.is_empty() && wanted.is_empty() {
            return Ok(Poll::Unchanged { refs });
        }
        refs::delete(self.repo, deleted)?;
        if !wanted.is_empty() {
            if self.group.is_none() && !(self.may_fetch)() {
                return Ok(Poll::Deferred);
            }
            // Those that failed before come last: they must not stop the others.
            let is_fresh = |name: &BString| is_followed(name) && !lock(self.left_out).has(name);
            found.requested = Some(Group::new(&wanted, is_fresh));
            drop(found);
            self.fetch(&mut protocol, &wanted, in_the_way)?;
        }
        Ok(Poll::Changed { refs })
    }

    /// Fetches missing objects of these refs and updates the refs.
    fn fetch(
        &self,
        protocol: &mut ProtocolSession<impl Transport>,
        wanted: &Refs,
        in_the_way: Vec<BString>,
    ) -> Result<(), MirrorError> {
        let measured = size::measure(self.repo.git_dir()).map_err(MirrorError::local("be measured"))?;
        self.session.begin_fetch(self.progress, measured.bytes);
        self.progress.preparing();
        let quarantine = Quarantine::new(self.repo, self.session, self.progress, self.memory);
        let quarantine = quarantine.map_err(MirrorError::local("create a quarantine folder"))?;
        let receive = |pack: &mut dyn BufRead| quarantine.receive(pack);
        let shallow = quarantine.shallow_file();
        let received = protocol.fetch(self.repo, wanted, &shallow, receive, self.progress, self.interrupt);
        received.map_err(|error| self.classify(&error))?;
        let both = quarantine.repository().map_err(MirrorError::local_gix("read the quarantine"))?;
        refs::delete(self.repo, in_the_way)?;
        let broken = refs::update(&both, wanted, self.interrupt, |tips| {
            quarantine.admit(tips).map_err(|error| self.classify(&error))
        })?;
        let (mut left_out, now) = (lock(self.left_out), Instant::now());
        wanted.keys().for_each(|name| left_out.remove(name));
        for (name, error) in broken {
            let retry_at = match error {
                RefError::Missing => Some(now + RETRY_INTERVAL),
                // A tag stays broken as long as its id is the same.
                RefError::TooManyTags | RefError::BrokenTag => None,
            };
            left_out.add(&name, wanted[&name], error.of(&name), retry_at);
        }
        Ok(())
    }

    fn classify(&self, error: &gix::Error) -> MirrorError {
        if self.interrupt.load(Ordering::Relaxed) {
            return UpstreamError::Interrupted.into();
        }
        let failure = self.session.take_failure();
        self.session.explain(failure.unwrap_or_else(|| MirrorError::protocol(self.session.network.step(), error)))
    }
}
