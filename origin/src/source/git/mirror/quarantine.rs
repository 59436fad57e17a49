//! Where a fetch lands: a folder of objects in front of the mirror's own. A pack is written and indexed there, within what it
//! may take, and nothing of it counts before it was looked at and is admitted.

use std::cell::{Cell, RefCell};
use std::collections::BTreeSet;
use std::fs::{self, File};
use std::io::{self, BufRead, BufReader, Read};
use std::path::{Path, PathBuf};
use std::process::Command;

use gix::ObjectId;
use gix::error::ErrorExt;
use gix::odb::pack;
use gix::odb::store::init::Options;
use tempfile::{NamedTempFile, TempDir};
use tokio::io::{AsyncReadExt, AsyncWriteExt};

use super::indexing::PackReader;
use super::memory::{FetchMemory, MemoryReservation};
use super::program::Program;
use super::stale_files::INCOMING_PREFIX;
use super::upstream_session::UpstreamSession;
use super::{FetchProgress, MirrorError, SLOTS, git_program, indexing, limits, memory_estimate, shallow, size};
use crate::data_dir::without_path;
use crate::outside_program::Bounds;

/// What a program ends with that wrote more to a file than it may, as a shell says it: 128 and the signal's number.
const FILE_TOO_LARGE: i32 = 128 + 25;

/// What the program says of a pack that it has indexed: one word, and its name.
const MAX_OUTPUT_BYTES: u64 = 128;

/// What one fetch brings.
pub(super) struct Quarantine<'a> {
    repo: &'a gix::Repository,
    session: &'a UpstreamSession<'a>,
    progress: &'a FetchProgress,
    memory: &'a FetchMemory,
    /// Of that memory, since the pack began.
    reserved: RefCell<Option<MemoryReservation<'a>>>,
    dir: TempDir,
}

/// A program that ended.
struct GitOutput {
    output: Vec<u8>,
    code: Option<i32>,
    stderr: String,
}

impl<'a> Quarantine<'a> {
    /// A folder for what comes. It goes with this.
    pub(super) fn new(
        repo: &'a gix::Repository,
        session: &'a UpstreamSession<'a>,
        progress: &'a FetchProgress,
        memory: &'a FetchMemory,
    ) -> io::Result<Self> {
        let dir = tempfile::Builder::new().prefix(INCOMING_PREFIX).tempdir_in(repo.git_dir())?;
        for folder in ["pack", "info"] {
            fs::create_dir(dir.path().join(folder))?;
        }
        fs::write(dir.path().join("info/alternates"), "../objects\n")?;
        shallow::copy(repo.git_dir(), dir.path())?;
        Ok(Self { repo, session, progress, memory, reserved: RefCell::default(), dir })
    }

    /// Which commits are without their parents, as the upstream says.
    pub(super) fn shallow_file(&self) -> PathBuf {
        self.dir.path().join(shallow::FILE)
    }

    /// Receives a pack.
    pub(super) fn receive(&self, pack: &mut dyn BufRead) -> gix::Result<()> {
        let temporary = || NamedTempFile::new_in(&self.dir).map_err(|error| without_path(&error).raise());
        let (data, mut index) = (temporary()?, temporary()?);
        let (session, progress, since_entry) = (self.session, self.progress, Cell::new(0));
        let (copy, since_entry) = (Some(data.as_file()), &since_entry);
        let mut reader = PackReader { pack, session, progress, copy, since_entry, has_ended: false };
        let (hash, reserve) = (self.repo.object_hash(), |objects| self.reserve_memory(objects));
        let Some(name) = indexing::index(&mut reader, data.path(), &mut index, hash, &reserve)? else {
            reader.copy = None;
            let came = data.reopen().map_err(|error| without_path(&error).raise())?;
            return self.index_by_program(&mut BufReader::new(came.chain(reader)));
        };
        let place = self.dir.path().join(format!("pack/pack-{name}.pack"));
        data.persist(&place).map_err(|error| without_path(&error.error).raise())?;
        index.persist(place.with_extension("idx")).map_err(|error| without_path(&error.error).raise())?;
        self.check_size(&place)
    }

    /// Whether a pack and its index may be that large.
    fn check_size(&self, pack: &Path) -> gix::Result<()> {
        let bytes = |file: &Path| fs::metadata(file).map(|data| data.len()).map_err(MirrorError::local("be measured"));
        let room = || self.session.check_pack_and_index(bytes(pack)?, bytes(&pack.with_extension("idx"))?);
        room().map_err(|error| self.record(error))
    }

    /// Waits for the memory that may be taken from now on.
    fn reserve_memory(&self, objects: usize) -> Result<(), MirrorError> {
        let host = self.session.upstream.url.host().unwrap_or_default();
        let wait = || {
            self.progress.waiting_for_memory();
            self.session.check_interrupt()
        };
        let reserved = self.memory.reserve(host, self.memory_limit(objects as u64)?, wait)?;
        *self.reserved.borrow_mut() = Some(reserved);
        Ok(())
    }

    /// Has a pack completed and indexed within so much memory and no more, however long that takes.
    fn index_by_program(&self, pack: &mut dyn BufRead) -> gix::Result<()> {
        let mut head = [0; 12];
        pack.read_exact(&mut head).map_err(ErrorExt::raise)?;
        let (_, objects) = pack::data::header::decode(&head)?;
        let bounds = Bounds {
            memory: self.memory_limit(objects.into()).map_err(|error| self.record(error))?,
            file: self.session.max_pack_bytes(),
        };
        let command = git_program::index_pack(self.repo.git_dir(), self.dir.path(), bounds);
        let ended = self.run(command, &mut Read::chain(&head[..], pack))?;
        let output = String::from_utf8_lossy(&ended.output);
        let name = output.lines().next().and_then(|line| line.strip_prefix("pack\t"));
        let Some(name) = name.filter(|_| ended.code == Some(0)) else {
            let limit = self.session.upstream.max_object;
            return Err(self.record(self.classify(&ended, MirrorError::ObjectTooLarge { limit })));
        };
        self.check_indexed(&self.dir.path().join(format!("pack/pack-{name}.pack")))
    }

    /// Whether a pack as it was written, with what completes it, is within what is taken, and can be read.
    fn check_indexed(&self, path: &Path) -> gix::Result<()> {
        let hash = self.repo.object_hash();
        let (pack, index) =
            (pack::data::File::at(path, hash)?, pack::index::File::at(path.with_extension("idx"), hash)?);
        let (objects, limit) = (index.num_objects() as usize, self.session.upstream.max_objects);
        if objects > limit {
            return Err(self.record(MirrorError::TooManyObjects { objects, limit }));
        }
        self.check_size(path)?;
        let named = |name: ObjectId| index.lookup(name).map(|at| index.pack_offset_at_index(at));
        let estimate = memory_estimate::check_pack(&pack, &index.sorted_offsets(), named, self.session)?;
        estimate.map(|_| ()).map_err(|error| self.record(error))
    }

    /// The mirror with what came.
    pub(super) fn repository(&self) -> gix::Result<gix::Repository> {
        let mut repo = self.repo.clone();
        let options = Options {
            slots: SLOTS,
            alloc_limit_bytes: usize::try_from(
                self.session.upstream.max_object.saturating_mul(limits::OBJECTS_IN_MEMORY),
            )
            .ok(),
            ..Options::default()
        };
        let objects = gix::odb::at_opts(self.dir.path(), repo.object_hash(), None, options);
        repo.objects = objects.map_err(|error| without_path(&error).raise())?.into();
        Ok(repo)
    }

    /// Lets into the mirror what came, if all is there that these objects lead to. What leads to nothing stays outside.
    pub(super) fn admit(&self, tips: &BTreeSet<ObjectId>) -> gix::Result<()> {
        if tips.is_empty() {
            return Ok(());
        }
        let tips: String = tips.iter().map(|tip| format!("{tip}\n")).collect();
        let bounds = Bounds { memory: self.memory_limit(0).map_err(|error| self.record(error))?, file: 0 };
        let merged = shallow::merge(self.repo, &self.repository()?, self.dir.path());
        merged.map_err(|error| self.record(MirrorError::local("keep what is shallow")(error)))?;
        let command = git_program::check_connectivity(self.repo.git_dir(), self.dir.path(), bounds);
        let ended = self.run(command, &mut tips.as_bytes())?;
        if ended.code != Some(0) {
            let limit = self.session.upstream.max_object;
            return Err(self.record(self.classify(&ended, MirrorError::CheckTooLarge { limit })));
        }
        self.migrate().map_err(|error| self.record(MirrorError::local("take over what was fetched")(error)))
    }

    /// With its index a pack counts, so that comes last. All of it is on the disk before a ref leads to it.
    fn migrate(&self) -> io::Result<()> {
        let (from, to) = (self.dir.path().join("pack"), self.repo.objects.store_ref().path().join("pack"));
        let mut names = fs::read_dir(&from)?.map(|entry| Ok(entry?.file_name())).collect::<io::Result<Vec<_>>>()?;
        names.sort_by_key(|name| Path::new(name).extension().is_some_and(|ending| ending == "idx"));
        shallow::install(self.dir.path(), self.repo.git_dir())?;
        for name in names {
            File::open(from.join(&name))?.sync_all()?;
            fs::rename(from.join(&name), to.join(&name))?;
        }
        File::open(to)?.sync_all()
    }

    /// The address space for a program that indexes so many objects, or looks at all of them.
    fn memory_limit(&self, objects: u64) -> Result<u64, MirrorError> {
        let measured = |objects: &Path| size::of_indices(objects).map_err(MirrorError::local("be measured"));
        let indices = measured(self.repo.objects.store_ref().path())? + measured(self.dir.path())?;
        Ok(limits::address_space(indices, objects, self.session.upstream.max_object))
    }

    /// Gives a program its input, and waits for its end.
    fn run(&self, command: Command, input: &mut dyn BufRead) -> gix::Result<GitOutput> {
        let (session, progress) = (self.session, self.progress.clone());
        let started = Program::start_with_stderr(session, command, move |line| progress.parse_line(line));
        let start = MirrorError::local("start the git program");
        let (program, socket) = started.map_err(|error| self.record(start(error)))?;
        let (read, mut write) = socket.into_split();
        loop {
            let bytes = input.fill_buf().map_err(ErrorExt::raise)?;
            if bytes.is_empty() {
                break;
            }
            let written = session.wait_without_timeout(write.write_all(bytes)).map_err(|error| self.record(error))?;
            if written.is_err() {
                // It has had enough, and says why.
                break;
            }
            let length = bytes.len();
            input.consume(length);
        }
        drop(write);
        let (mut output, mut read) = (Vec::new(), read.take(MAX_OUTPUT_BYTES));
        // An error says no more than its end.
        let _ = session.wait_without_timeout(read.read_to_end(&mut output)).map_err(|error| self.record(error))?;
        let (code, stderr) = program.end(session);
        Ok(GitOutput { output, code, stderr })
    }

    /// Why a program does not take what came; `out_of_memory`, if that is why.
    fn classify(&self, ended: &GitOutput, out_of_memory: MirrorError) -> MirrorError {
        if ended.code == Some(FILE_TOO_LARGE) {
            return self.session.too_large();
        }
        if git_program::is_out_of_memory(&ended.stderr) {
            return out_of_memory;
        }
        let path = self.repo.git_dir().as_os_str().as_encoded_bytes();
        git_program::classify_stderr("fetch", &ended.stderr, path).unwrap_or_else(|| {
            let cause = "the git program broke off over what it sent".to_owned();
            MirrorError::Upstream { step: "fetch", cause }
        })
    }

    fn record(&self, error: MirrorError) -> gix::Error {
        self.session.record(error).raise()
    }
}
