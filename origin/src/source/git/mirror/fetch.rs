//! A poll of an upstream over one connection: lists refs, compares them, and fetches if any changed.

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

use super::broken_refs::BrokenRefs;
use super::program::Program;
use super::protocol_session::ProtocolSession;
use super::quarantine::Quarantine;
use super::refs::{self, Difference, Refs};
use super::socket::{SocketReader, SocketWriter};
use super::upstream_session::UpstreamSession;
use super::{FetchMemory, FetchProgress, MirrorError, Poll, git_program, http, listing, size, ssh};
use crate::source::{Address, Upstream};

/// The port of `git://`.
const GIT_DAEMON_PORT: u16 = 9418;

/// Updates the mirror over one connection, or several HTTP requests. `broken`: the refs that earlier polls could not
/// follow.
pub(super) fn poll(
    repo: &ThreadSafeRepository,
    upstream: &Upstream,
    progress: &FetchProgress,
    broken: &Mutex<BrokenRefs>,
    memory: &FetchMemory,
    (interrupt, may_fetch): (&AtomicBool, &dyn Fn() -> bool),
) -> Result<Poll, MirrorError> {
    let session = UpstreamSession::new(upstream, interrupt)?;
    let fetch =
        Fetch { repo: &repo.to_thread_local(), session: &session, progress, broken, memory, interrupt, may_fetch };
    let result = fetch.connect();
    progress.count_requests(session.requests());
    result
}

/// Connects over TCP to the first address that accepts.
fn connect_tcp(session: &UpstreamSession, host: &str, port: u16) -> Result<TcpStream, MirrorError> {
    let egress = &session.upstream.egress;
    egress.check_host(host)?;
    session.count_request();
    session.wait(async {
        let mut last = MirrorError::Connect { cause: "its host name has no address".to_owned(), timeout: false };
        for address in egress.resolve(host, port).await? {
            last = match tokio::time::timeout(session.connect_timeout(), TcpStream::connect(address)).await {
                Ok(Ok(socket)) => return Ok(socket),
                Ok(Err(error)) => MirrorError::Connect { cause: error.to_string(), timeout: false },
                Err(_) => MirrorError::Connect { cause: "the connection timed out".to_owned(), timeout: true },
            };
        }
        Err(last)
    })?
}

fn split<'a, R: AsyncRead + Unpin, W: AsyncWrite + Unpin>(
    session: &'a UpstreamSession<'a>,
    (read, write): (R, W),
) -> (SocketReader<'a, R>, SocketWriter<'a, W>) {
    (SocketReader::new(read, session), SocketWriter::new(write, session))
}

struct Fetch<'a> {
    repo: &'a gix::Repository,
    session: &'a UpstreamSession<'a>,
    progress: &'a FetchProgress,
    broken: &'a Mutex<BrokenRefs>,
    memory: &'a FetchMemory,
    interrupt: &'a AtomicBool,
    may_fetch: &'a dyn Fn() -> bool,
}

impl Fetch<'_> {
    /// Connects with the transport of the URL's scheme, and runs the poll.
    fn connect(&self) -> Result<Poll, MirrorError> {
        let upstream = self.session.upstream;
        let unsupported = |reason| MirrorError::UnsupportedUrl { url: upstream.url.to_string(), reason };
        match upstream.url.address().map_err(unsupported)? {
            Address::Http(url) => self.run(http::transport(self.session, url)?),
            Address::Git { host, port, path } => {
                let socket = connect_tcp(self.session, host, port.unwrap_or(GIT_DAEMON_PORT))?;
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
                self.with_program(path, started, |step, stderr| git_program::classify_stderr(step, stderr, path))
            }
            Address::Ssh(address) => ssh::try_each(
                ssh::targets(self.session, address)?,
                || self.session.has_received(),
                |target| {
                    self.session.count_request();
                    let command = ssh::upload_pack(self.session, address, target)?;
                    let started = Program::start(self.session, command);
                    let started = started.map_err(MirrorError::local("start the ssh program"))?;
                    self.with_program(address.path.as_bytes(), started, ssh::classify_stderr)
                },
            ),
        }
    }

    /// Runs the poll over a program. If the program fails, its standard error explains why.
    fn with_program(
        &self,
        path: &[u8],
        (program, socket): (Program, tokio::net::UnixStream),
        classify: impl Fn(&'static str, &str) -> Option<MirrorError>,
    ) -> Result<Poll, MirrorError> {
        let (reader, writer) = split(self.session, socket.into_split());
        let (path, virtual_host) = (BStr::new(path), None::<(String, _)>);
        let mode = ConnectMode::Process;
        let transport = Connection::new(reader, writer, Protocol::V2, path, virtual_host, mode, false);
        self.run(transport).map_err(|error| match error {
            MirrorError::Upstream { step, .. } => classify(step, &program.into_stderr(self.session)).unwrap_or(error),
            other => other,
        })
    }

    fn run(&self, transport: impl Transport) -> Result<Poll, MirrorError> {
        self.progress.listing();
        let opened = ProtocolSession::open(transport, &self.session.upstream.further_refs, self.progress);
        let mut protocol = opened.map_err(|error| self.classify(&error))?;
        listing::check(protocol.refs(), self.session.upstream.max_refs)?;
        let advertised = refs::advertised(protocol.refs());
        let mirrored = refs::mirrored(self.repo)?;
        if advertised.is_empty() {
            return Err(match mirrored.len() {
                0 => MirrorError::EmptyRepository,
                mirrored => MirrorError::NothingAdvertised { mirrored },
            });
        }
        let format = protocol.refs().object_hash;
        if format != self.repo.object_hash() {
            return Err(MirrorError::OtherObjectFormat { format, mirrored: mirrored.len() });
        }
        let refs = advertised.len();
        let mut broken = self.broken.lock().unwrap_or_else(PoisonError::into_inner);
        broken.retain(&advertised);
        let difference = Difference::between(&mirrored, &advertised, &broken);
        if difference.is_none() {
            return broken.error(false).map_or(Ok(Poll::Unchanged { refs }), Err);
        }
        let mut changed = !difference.deleted.is_empty();
        refs::delete(self.repo, difference.deleted)?;
        if difference.changed && !(self.may_fetch)() {
            return Ok(Poll::Deferred);
        }
        if difference.changed {
            let measured = size::measure(self.repo.git_dir()).map_err(MirrorError::local("be measured"))?;
            self.session.begin_fetch(self.progress, measured.bytes);
            self.progress.preparing();
            let fetched = self.fetch(&mut protocol, &advertised);
            changed |= refs::mirrored(self.repo)?.iter().any(|(name, id)| mirrored.get(name) != Some(id));
            *broken = fetched?;
        }
        broken.error(changed).map_or(Ok(Poll::Changed { refs }), Err)
    }

    /// Fetches missing objects and updates the refs.
    fn fetch(
        &self,
        protocol: &mut ProtocolSession<impl Transport>,
        advertised: &Refs,
    ) -> Result<BrokenRefs, MirrorError> {
        let quarantine = Quarantine::new(self.repo, self.session, self.progress, self.memory);
        let quarantine = quarantine.map_err(MirrorError::local("create a quarantine folder"))?;
        let receive = |pack: &mut dyn BufRead| quarantine.receive(pack);
        let received = protocol.fetch(self.repo, &quarantine.shallow_file(), receive, self.progress, self.interrupt);
        received.map_err(|error| self.classify(&error))?;
        let both = quarantine.repository().map_err(MirrorError::local_gix("read the quarantine"))?;
        refs::update(&both, advertised, self.interrupt, |tips| {
            quarantine.admit(tips).map_err(|error| self.classify(&error))
        })
    }

    fn classify(&self, error: &gix::Error) -> MirrorError {
        if self.interrupt.load(Ordering::Relaxed) {
            return MirrorError::Interrupted;
        }
        self.session.take_failure().unwrap_or_else(|| MirrorError::protocol(self.session.step(), error))
    }
}
