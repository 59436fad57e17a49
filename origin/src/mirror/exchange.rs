//! One connection to an upstream: list, compare, and fetch if something moved.

use std::any::Any;
use std::net::{TcpStream, ToSocketAddrs};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use gix::ThreadSafeRepository;
use gix::bstr::BString;
use gix::protocol::transport::Protocol;
use gix::protocol::transport::client::blocking_io::Transport;
use gix::protocol::transport::client::git::ConnectMode;
use gix::protocol::transport::client::git::blocking_io::Connection;
use gix::remote::Direction;
use gix::remote::fetch::Tags;
use gix::url::Scheme;

use super::git_program::UploadPack;
use super::patient_read::PatientRead;
use super::refs::{self, Difference};
use super::{FetchProgress, MirrorError, Poll, Upstream, credentials, http};

/// The port of `git://`.
const GIT_DAEMON_PORT: u16 = 9418;

/// A connection over TCP takes at most this long to come about, and never longer than a stalled read may.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(20);

/// Connects by the URL's scheme and brings the mirror up to date.
pub(super) fn poll(
    repo: &ThreadSafeRepository,
    upstream: &Upstream,
    progress: &FetchProgress,
    interrupt: &AtomicBool,
) -> Result<Poll, MirrorError> {
    let unsupported = |reason| MirrorError::UnsupportedUrl { url: upstream.redacted_url(), reason };
    let url = gix::url::parse(upstream.url.as_bytes()).map_err(|_| unsupported("it is not a URL or path"))?;
    let exchange = Exchange { repo: &repo.to_thread_local(), upstream, progress, interrupt };
    match url.scheme {
        Scheme::Https | Scheme::Http => {
            let (transport, options) = http::transport(upstream, url.clone())?;
            exchange.run(url, transport, Some(options))
        }
        Scheme::Git => {
            let host = url.host().ok_or_else(|| unsupported("it names no host"))?.to_owned();
            let socket = connect(&host, url.port.unwrap_or(GIT_DAEMON_PORT), upstream.stall_timeout)?;
            let broken = |e: std::io::Error| MirrorError::Connect { cause: e.to_string(), timeout: false };
            let read = PatientRead::new(socket.try_clone().map_err(broken)?, upstream.stall_timeout, interrupt);
            let (path, virtual_host) = (url.path.clone(), Some((host, url.port)));
            let read = read.map_err(broken)?;
            let transport = Connection::new(read, socket, Protocol::V2, path, virtual_host, ConnectMode::Daemon, false);
            exchange.run(url, transport, None)
        }
        Scheme::File => {
            let started = UploadPack::start(&url.path);
            let (program, socket) =
                started.map_err(MirrorError::local("start the git program for a local upstream"))?;
            let broken = MirrorError::local("talk to the git program");
            let read =
                socket.try_clone().and_then(|socket| PatientRead::new(socket, upstream.stall_timeout, interrupt));
            let (read, path) = (read.map_err(broken)?, url.path.clone());
            let virtual_host = None::<(String, _)>;
            let transport =
                Connection::new(read, socket, Protocol::V2, path, virtual_host, ConnectMode::Process, false);
            exchange.run(url, transport, None).map_err(|error| match error {
                MirrorError::Upstream { step, cause } => {
                    MirrorError::Upstream { step, cause: program.complaint().unwrap_or(cause) }
                }
                other => other,
            })
        }
        Scheme::Ssh => Err(unsupported("SSH is not supported yet, use https")),
        _ => Err(unsupported("the scheme is none of https, http, git and file")),
    }
}

fn connect(host: &str, port: u16, stall_timeout: Duration) -> Result<TcpStream, MirrorError> {
    let failed = |error: std::io::Error| MirrorError::Connect {
        timeout: error.kind() == std::io::ErrorKind::TimedOut,
        cause: error.to_string(),
    };
    let mut last = std::io::Error::new(std::io::ErrorKind::NotFound, "the host name has no address");
    for address in (host.trim_matches(['[', ']']), port).to_socket_addrs().map_err(failed)? {
        match TcpStream::connect_timeout(&address, CONNECT_TIMEOUT.min(stall_timeout)) {
            Ok(socket) => {
                socket.set_write_timeout(Some(stall_timeout)).map_err(failed)?;
                return Ok(socket);
            }
            Err(error) => last = error,
        }
    }
    Err(failed(last))
}

struct Exchange<'a> {
    repo: &'a gix::Repository,
    upstream: &'a Upstream,
    progress: &'a FetchProgress,
    interrupt: &'a AtomicBool,
}

impl Exchange<'_> {
    fn run(
        &self,
        url: gix::Url,
        transport: impl Transport,
        options: Option<Box<dyn Any>>,
    ) -> Result<Poll, MirrorError> {
        let remote = self.repo.remote_at_without_url_rewrite(url).map_err(MirrorError::mirror("take the URL"))?;
        let refspecs: Vec<_> = refs::refspecs(&self.upstream.further_refs).into_iter().map(BString::from).collect();
        let remote = remote.with_fetch_tags(Tags::None).with_refspecs(&refspecs, Direction::Fetch);
        let remote = remote.map_err(MirrorError::mirror("take the refspecs"))?;
        let mut connection = remote
            .to_connection_with_transport(transport)
            .with_credentials(|action| credentials::answer(self.upstream, action));
        if let Some(options) = options {
            connection.set_transport_options(options);
        }
        self.progress.listing();
        let listed = connection.prepare_fetch(self.progress.root(), Default::default());
        let prepared = listed.map_err(|error| self.failed("list refs", &error))?;
        let advertised = refs::advertised(prepared.ref_map());
        let mirrored = refs::mirrored(self.repo)?;
        if advertised.is_empty() {
            return Err(match mirrored.len() {
                0 => MirrorError::EmptyRepository,
                mirrored => MirrorError::NothingAdvertised { mirrored },
            });
        }
        let format = prepared.ref_map().object_hash;
        if format != self.repo.object_hash() {
            return Err(MirrorError::OtherObjectFormat { format, mirrored: mirrored.len() });
        }
        let refs = advertised.len();
        let difference = Difference::between(&mirrored, &advertised);
        if difference.is_none() {
            return Ok(Poll::Unchanged { refs });
        }
        refs::delete(self.repo, difference.gone)?;
        if difference.moved {
            let received = prepared.with_write_packed_refs_only(true).receive(self.progress.root(), self.interrupt);
            received.map_err(|error| self.failed("fetch", &error))?;
            refs::remove_empty_ref_directories(self.repo.git_dir())?;
            // gix passes over a ref that it will not move; a mirror that silently stays behind would be worse than none.
            if !Difference::between(&refs::mirrored(self.repo)?, &advertised).is_none() {
                let cause = "some refs could not be moved".to_owned();
                return Err(MirrorError::Local { what: "update its refs", cause });
            }
        }
        Ok(Poll::Changed { refs })
    }

    fn failed(&self, step: &'static str, error: &gix::Error) -> MirrorError {
        if self.interrupt.load(Ordering::Relaxed) {
            return MirrorError::Interrupted;
        }
        MirrorError::exchange(step, self.upstream.stall_timeout, error)
    }
}
