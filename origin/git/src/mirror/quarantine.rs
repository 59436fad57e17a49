//! The quarantine of a fetch: an object directory in front of the mirror's. The pack is written, indexed and checked
//! there, and migrates into the mirror only if it is complete and within the limits.

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
use weir_upstream::outside_program::Bounds;
use weir_upstream::{UpstreamError, without_path};

use super::git_session::GitSession;
use super::indexing::PackReader;
use super::memory::{FetchMemory, MemoryReservation};
use super::program::Program;
use super::stale_files::INCOMING_PREFIX;
use super::{
    FetchProgress, MirrorError, SLOTS, git_program, git_progress, indexing, limits, memory_estimate, shallow, size,
};

/// The shell's exit code for a program that exceeded its file size limit: 128 and the number of SIGXFSZ.
const FILE_TOO_LARGE: i32 = 128 + 25;

/// The longest output of `git index-pack`: a word and the name of the pack.
const MAX_OUTPUT_BYTES: u64 = 128;

/// The quarantine of one fetch.
pub(super) struct Quarantine<'a> {
    repo: &'a gix::Repository,
    session: &'a GitSession<'a>,
    progress: &'a FetchProgress,
    memory: &'a FetchMemory,
    /// Reserved since the header of the pack.
    reserved: RefCell<Option<MemoryReservation<'a>>>,
    dir: TempDir,
}

/// The result of a program.
struct GitOutput {
    output: Vec<u8>,
    code: Option<i32>,
    stderr: String,
}

impl<'a> Quarantine<'a> {
    /// Creates the folder, which is removed on drop.
    pub(super) fn new(
        repo: &'a gix::Repository,
        session: &'a GitSession<'a>,
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

    /// The file of shallow commits, which the upstream may change.
    pub(super) fn shallow_file(&self) -> PathBuf {
        self.dir.path().join(shallow::FILE)
    }

    /// Receives and indexes a pack.
    pub(super) fn receive(&self, pack: &mut dyn BufRead) -> gix::Result<()> {
        let temporary = || NamedTempFile::new_in(&self.dir).map_err(|error| without_path(&error).raise());
        let (data, mut index) = (temporary()?, temporary()?);
        let (session, progress, since_entry) = (self.session, self.progress, Cell::new(0));
        let (copy, since_entry) = (Some(data.as_file()), &since_entry);
        let mut reader = PackReader { pack, session, progress, copy, since_entry, has_ended: false };
        let (hash, reserve) = (self.repo.object_hash(), |objects| self.reserve_memory(objects));
        let Some(name) = indexing::index(&mut reader, data.path(), &mut index, hash, &reserve)? else {
            reader.copy = None;
            let received = data.reopen().map_err(|error| without_path(&error).raise())?;
            return self.index_by_program(&mut BufReader::new(received.chain(reader)));
        };
        let path = self.dir.path().join(format!("pack/pack-{name}.pack"));
        data.persist(&path).map_err(|error| without_path(&error.error).raise())?;
        index.persist(path.with_extension("idx")).map_err(|error| without_path(&error.error).raise())?;
        self.check_size(&path)
    }

    /// Checks the size of a pack and its index.
    fn check_size(&self, pack: &Path) -> gix::Result<()> {
        let bytes = |file: &Path| fs::metadata(file).map(|data| data.len()).map_err(MirrorError::local("be measured"));
        let check = || self.session.check_pack_and_index(bytes(pack)?, bytes(&pack.with_extension("idx"))?);
        check().map_err(|error| self.record(error))
    }

    /// Waits for memory for this many objects.
    fn reserve_memory(&self, objects: usize) -> Result<(), MirrorError> {
        let host = self.session.upstream.config.url.host().unwrap_or_default();
        let wait = || {
            self.progress.waiting_for_memory();
            self.session.network.check_interrupt().map_err(MirrorError::from)
        };
        let reserved = self.memory.reserve(host, self.memory_limit(objects as u64)?, wait)?;
        *self.reserved.borrow_mut() = Some(reserved);
        Ok(())
    }

    /// Indexes a pack with the git program, within a memory limit and without a timeout.
    fn index_by_program(&self, pack: &mut dyn BufRead) -> gix::Result<()> {
        let mut head = [0; 12];
        pack.read_exact(&mut head).map_err(ErrorExt::raise)?;
        let (_, objects) = pack::data::header::decode(&head)?;
        let bounds = Bounds {
            memory: self.memory_limit(objects.into()).map_err(|error| self.record(error))?,
            file: self.session.max_pack_bytes(),
        };
        let command = git_program::index_pack(self.repo.git_dir(), self.dir.path(), bounds);
        let result = self.run(command, &mut Read::chain(&head[..], pack))?;
        let output = String::from_utf8_lossy(&result.output);
        let name = output.lines().next().and_then(|line| line.strip_prefix("pack\t"));
        let Some(name) = name.filter(|_| result.code == Some(0)) else {
            let limit = self.session.upstream.limits.max_object.as_u64();
            return Err(self.record(self.classify(&result, MirrorError::ObjectTooLarge { limit })));
        };
        self.check_indexed(&self.dir.path().join(format!("pack/pack-{name}.pack")))
    }

    /// Checks a pack that the git program has completed: number and sizes of objects, and memory.
    fn check_indexed(&self, path: &Path) -> gix::Result<()> {
        let hash = self.repo.object_hash();
        let (pack, index) =
            (pack::data::File::at(path, hash)?, pack::index::File::at(path.with_extension("idx"), hash)?);
        let (objects, limit) = (index.num_objects() as usize, self.session.upstream.limits.max_objects);
        if objects > limit {
            return Err(self.record(MirrorError::TooManyObjects { objects, limit }));
        }
        self.check_size(path)?;
        let offset_of = |id: ObjectId| index.lookup(id).map(|at| index.pack_offset_at_index(at));
        let estimate = memory_estimate::check_pack(&pack, &index.sorted_offsets(), offset_of, self.session)?;
        estimate.map(|_| ()).map_err(|error| self.record(error))
    }

    /// The mirror with the quarantine.
    pub(super) fn repository(&self) -> gix::Result<gix::Repository> {
        let mut repo = self.repo.clone();
        let options = Options {
            slots: SLOTS,
            alloc_limit_bytes: usize::try_from(limits::object_memory(self.session.upstream.limits.max_object.as_u64()))
                .ok(),
            ..Options::default()
        };
        let objects = gix::odb::at_opts(self.dir.path(), repo.object_hash(), None, options);
        repo.objects = objects.map_err(|error| without_path(&error).raise())?.into();
        Ok(repo)
    }

    /// Migrates the objects into the mirror if all objects exist that these tips reach. Without tips, nothing migrates.
    pub(super) fn admit(&self, tips: &BTreeSet<ObjectId>) -> gix::Result<()> {
        if tips.is_empty() {
            return Ok(());
        }
        let tips: String = tips.iter().map(|tip| format!("{tip}\n")).collect();
        let bounds = Bounds { memory: self.memory_limit(0).map_err(|error| self.record(error))?, file: 0 };
        let merged = shallow::merge(self.repo, &self.repository()?, self.dir.path());
        merged.map_err(|error| self.record(MirrorError::local("merge the shallow commits")(error)))?;
        let command = git_program::check_connectivity(self.repo.git_dir(), self.dir.path(), bounds);
        let result = self.run(command, &mut tips.as_bytes())?;
        if result.code != Some(0) {
            let limit = self.session.upstream.limits.max_object.as_u64();
            return Err(self.record(self.classify(&result, MirrorError::CheckTooLarge { limit })));
        }
        self.migrate().map_err(|error| self.record(MirrorError::local("migrate the fetched objects")(error)))
    }

    /// Readers see a pack once its index exists, so indices are moved last. All is synced before refs are updated.
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

    /// The address space for a git process that indexes this many objects.
    fn memory_limit(&self, objects: u64) -> Result<u64, MirrorError> {
        let measured = |objects: &Path| size::index_bytes(objects).map_err(MirrorError::local("be measured"));
        let indices = measured(self.repo.objects.store_ref().path())? + measured(self.dir.path())?;
        Ok(limits::address_space(indices, objects, self.session.upstream.limits.max_object.as_u64()))
    }

    /// Passes input to a program, and waits for its end.
    fn run(&self, command: Command, input: &mut dyn BufRead) -> gix::Result<GitOutput> {
        let (session, progress) = (self.session, self.progress.clone());
        let started =
            Program::start_with_stderr(session, command, move |line| git_progress::show_line(&progress, line));
        let start = MirrorError::local("start the git program");
        let (program, socket) = started.map_err(|error| self.record(start(error)))?;
        let (read, mut write) = socket.into_split();
        loop {
            let bytes = input.fill_buf().map_err(ErrorExt::raise)?;
            if bytes.is_empty() {
                break;
            }
            let written =
                session.network.wait_without_timeout(write.write_all(bytes)).map_err(|error| self.record(error))?;
            if written.is_err() {
                // The program has stopped reading, and reports why.
                break;
            }
            let length = bytes.len();
            input.consume(length);
        }
        drop(write);
        let (mut output, mut read) = (Vec::new(), read.take(MAX_OUTPUT_BYTES));
        // A read error means the same as the end of the output.
        let _ =
            session.network.wait_without_timeout(read.read_to_end(&mut output)).map_err(|error| self.record(error))?;
        let (code, stderr) = program.end(session);
        Ok(GitOutput { output, code, stderr })
    }

    /// Classifies the failure of a program. `out_of_memory` is the error for its memory limit.
    fn classify(&self, result: &GitOutput, out_of_memory: MirrorError) -> MirrorError {
        if result.code == Some(FILE_TOO_LARGE) {
            return self.session.too_large();
        }
        if git_program::is_out_of_memory(&result.stderr) {
            return out_of_memory;
        }
        let path = self.repo.git_dir().as_os_str().as_encoded_bytes();
        git_program::classify_stderr("fetch", &result.stderr, path).unwrap_or_else(|| {
            let cause = "the git program failed on the received data".to_owned();
            UpstreamError::Protocol { step: "fetch", cause }.into()
        })
    }

    fn record(&self, error: impl Into<MirrorError>) -> gix::Error {
        self.session.record(error).raise()
    }
}
