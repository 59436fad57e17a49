//! Where a fetch lands: a folder of objects in front of the mirror's own. A pack is written and indexed there, within what it
//! may take, and nothing of it counts before it was looked at and is admitted.

use std::cell::Cell;
use std::collections::BTreeSet;
use std::fs;
use std::io::{self, BufRead, BufReader, Read};
use std::path::Path;
use std::process::Command;

use gix::ObjectId;
use gix::error::ErrorExt;
use gix::odb::pack;
use gix::odb::store::init::Options;
use tempfile::{NamedTempFile, TempDir};
use tokio::io::{AsyncReadExt, AsyncWriteExt};

use super::attempt::Attempt;
use super::indexing::Incoming;
use super::leftovers::INCOMING_PREFIX;
use super::program::Program;
use super::{FetchProgress, MirrorError, OBJECTS_AT_A_TIME, SLOTS, Upstream, git_program, indexing, size, weight};
use crate::data_dir::without_path;
use crate::outside_program::Bounds;

/// What an object takes of the memory while its pack is indexed, however small it is.
const BYTES_OF_AN_OBJECT: u64 = 256;

/// What the objects of an index take of it when all are looked at, beside the index itself, which has 28 bytes for each.
const TIMES_AN_INDEX: u64 = 8;

/// What a program ends with that wrote more to a file than it may, as a shell says it: 128 and the signal's number.
const FILE_TOO_LARGE: i32 = 128 + 25;

/// What the program says of a pack that it has indexed: one word, and its name.
const SAID_BYTES: u64 = 128;

/// What one fetch brings.
pub(super) struct Quarantine<'a> {
    repo: &'a gix::Repository,
    attempt: &'a Attempt<'a>,
    progress: &'a FetchProgress,
    dir: TempDir,
}

/// A program that ended.
struct Ended {
    output: Vec<u8>,
    code: Option<i32>,
    complaint: String,
}

impl<'a> Quarantine<'a> {
    /// A folder for what comes. It goes with this.
    pub(super) fn new(
        repo: &'a gix::Repository,
        attempt: &'a Attempt<'a>,
        progress: &'a FetchProgress,
    ) -> io::Result<Self> {
        let dir = tempfile::Builder::new().prefix(INCOMING_PREFIX).tempdir_in(repo.git_dir())?;
        for folder in ["pack", "info"] {
            fs::create_dir(dir.path().join(folder))?;
        }
        fs::write(dir.path().join("info/alternates"), "../objects\n")?;
        Ok(Self { repo, attempt, progress, dir })
    }

    /// Receives a pack.
    pub(super) fn receive(&self, pack: &mut dyn BufRead) -> gix::Result<()> {
        let temporary = || NamedTempFile::new_in(&self.dir).map_err(|error| without_path(&error).raise());
        let (data, mut index) = (temporary()?, temporary()?);
        let (attempt, progress, since_entry) = (self.attempt, self.progress, Cell::new(0));
        let mut incoming = Incoming { pack, attempt, progress, copy: Some(data.as_file()), since_entry: &since_entry };
        let Some(name) = indexing::index(&mut incoming, data.path(), &mut index, self.repo.object_hash())? else {
            incoming.copy = None;
            let came = data.reopen().map_err(|error| without_path(&error).raise())?;
            return self.index_by_program(&mut BufReader::new(came.chain(incoming)));
        };
        let place = self.dir.path().join(format!("pack/pack-{name}.pack"));
        data.persist(&place).map_err(|error| without_path(&error.error).raise())?;
        index.persist(place.with_extension("idx")).map_err(|error| without_path(&error.error).raise())?;
        Ok(())
    }

    /// Has a pack completed and indexed within so much memory and no more, however long that takes.
    fn index_by_program(&self, pack: &mut dyn BufRead) -> gix::Result<()> {
        let mut head = [0; 12];
        pack.read_exact(&mut head).map_err(ErrorExt::raise)?;
        let (_, objects) = pack::data::header::decode(&head)?;
        let bounds =
            Bounds { memory: self.memory(objects).map_err(|error| self.fail(error))?, file: self.attempt.room() };
        let command = git_program::index_pack(self.repo.git_dir(), self.dir.path(), bounds);
        let ended = self.run(command, &mut Read::chain(&head[..], pack))?;
        let output = String::from_utf8_lossy(&ended.output);
        let Some(name) = output.lines().next().and_then(|line| line.strip_prefix("pack\t")) else {
            return Err(self.fail(self.refusal(&ended)));
        };
        self.look_at(&self.dir.path().join(format!("pack/pack-{name}.pack")))
    }

    /// Whether a pack as it was written, with what completes it, is within what is taken, and can be read.
    fn look_at(&self, path: &Path) -> gix::Result<()> {
        let hash = self.repo.object_hash();
        let (pack, index) =
            (pack::data::File::at(path, hash)?, pack::index::File::at(path.with_extension("idx"), hash)?);
        let (objects, limit) = (index.num_objects() as usize, self.attempt.upstream.max_objects);
        if objects > limit {
            return Err(self.fail(MirrorError::TooManyObjects { objects, limit }));
        }
        self.attempt.has_room(pack.data_len() as u64).map_err(|error| self.fail(error))?;
        let named = |name: ObjectId| index.lookup(name).map(|at| index.pack_offset_at_index(at));
        let weight = weight::check(&pack, &index.sorted_offsets(), named, self.attempt)?;
        weight.map(|_| ()).map_err(|error| self.fail(error))
    }

    /// The mirror with what came.
    pub(super) fn repository(&self) -> gix::Result<gix::Repository> {
        let mut repo = self.repo.clone();
        let options = Options {
            slots: SLOTS,
            alloc_limit_bytes: usize::try_from(self.attempt.upstream.max_object.saturating_mul(OBJECTS_AT_A_TIME)).ok(),
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
        let bounds = Bounds { memory: self.memory(0).map_err(|error| self.fail(error))?, file: 0 };
        let command = git_program::connected(self.repo.git_dir(), self.dir.path(), bounds);
        let ended = self.run(command, &mut tips.as_bytes())?;
        if ended.code != Some(0) {
            return Err(self.fail(self.refusal(&ended)));
        }
        self.take_over().map_err(|error| self.fail(MirrorError::local("take over what was fetched")(error)))
    }

    /// With its index a pack counts, so that comes last.
    fn take_over(&self) -> io::Result<()> {
        let (from, to) = (self.dir.path().join("pack"), self.repo.objects.store_ref().path().join("pack"));
        let mut names = fs::read_dir(&from)?.map(|entry| Ok(entry?.file_name())).collect::<io::Result<Vec<_>>>()?;
        names.sort_by_key(|name| Path::new(name).extension().is_some_and(|ending| ending == "idx"));
        names.iter().try_for_each(|name| fs::rename(from.join(name), to.join(name)))
    }

    /// The address space for a program that indexes so many objects, or looks at all of them.
    fn memory(&self, objects: u32) -> Result<u64, MirrorError> {
        let measured = |objects: &Path| size::of_indices(objects).map_err(MirrorError::local("be measured"));
        let indices = measured(self.repo.objects.store_ref().path())? + measured(self.dir.path())?;
        Ok(address_space(indices, objects, self.attempt.upstream.max_object))
    }

    /// Gives a program its input, and waits for its end.
    fn run(&self, command: Command, input: &mut dyn BufRead) -> gix::Result<Ended> {
        let (attempt, progress) = (self.attempt, self.progress.clone());
        let started = Program::start_and_hear(attempt, command, move |line| progress.told(line));
        let start = MirrorError::local("start the git program");
        let (program, socket) = started.map_err(|error| self.fail(start(error)))?;
        let (read, mut write) = socket.into_split();
        loop {
            let bytes = input.fill_buf().map_err(ErrorExt::raise)?;
            if bytes.is_empty() {
                break;
            }
            let written = attempt.wait_patiently(write.write_all(bytes)).map_err(|error| self.fail(error))?;
            if written.is_err() {
                // It has had enough, and says why.
                break;
            }
            let length = bytes.len();
            input.consume(length);
        }
        drop(write);
        let (mut output, mut read) = (Vec::new(), read.take(SAID_BYTES));
        // An error says no more than its end.
        let _ = attempt.wait_patiently(read.read_to_end(&mut output)).map_err(|error| self.fail(error))?;
        let (code, complaint) = program.end(attempt);
        Ok(Ended { output, code, complaint })
    }

    /// Why a program does not take what came.
    fn refusal(&self, ended: &Ended) -> MirrorError {
        let Upstream { max_object, .. } = *self.attempt.upstream;
        if ended.code == Some(FILE_TOO_LARGE) {
            return self.attempt.no_room();
        }
        if git_program::lacks_memory(&ended.complaint) {
            return MirrorError::ObjectTooLarge { limit: max_object };
        }
        let path = self.repo.git_dir().as_os_str().as_encoded_bytes();
        git_program::complaint("fetch", &ended.complaint, path).unwrap_or_else(|| {
            let cause = "the git program broke off over what it sent".to_owned();
            MirrorError::Upstream { step: "fetch", cause }
        })
    }

    fn fail(&self, error: MirrorError) -> gix::Error {
        self.attempt.fail(error).raise()
    }
}

/// So much memory, and no more: for the program itself, for what it has of each object, and for the objects that it holds at a
/// time to make one of them, each of them as large as may be.
fn address_space(indices: u64, objects: u32, max_object: u64) -> u64 {
    let of_indices = indices.saturating_mul(TIMES_AN_INDEX);
    let of_objects = u64::from(objects) * BYTES_OF_AN_OBJECT;
    let held = max_object.saturating_mul(OBJECTS_AT_A_TIME);
    git_program::OWN_MEMORY.saturating_add(of_indices).saturating_add(of_objects).saturating_add(held)
}
