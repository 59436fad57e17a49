//! Checks the files of a mirror. Git does not sync all its files, so a power loss may truncate, empty or zero any of
//! them; and disks fail.

use std::fs::{self, File};
use std::io::{self, ErrorKind, Read, Seek, SeekFrom};
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};

use gix::hash::Kind;
use gix::{ObjectId, Repository};

use super::error::describe;

/// The size of a read while a checksum is computed.
const READ_BYTES: usize = 256 << 10;

/// Checks that every pack matches its index and is complete, and that the objects of all refs exist. Returns a
/// description of the damage, if any.
///
/// # Errors
/// The files cannot be read for another reason (too many open files, no permission), so the result is unknown.
pub(super) fn quick_check(repository: &Repository) -> io::Result<Option<String>> {
    // gix does not need it, but the git program does, which repacks.
    if let Some(damage) = head_is_a_ref(repository.git_dir()).or_else(damage_from_io)? {
        return Ok(Some(damage));
    }
    for pack in packs(repository.git_dir())? {
        if let Some(damage) = trailers_match(&pack, repository.object_hash()).or_else(damage_from_io)? {
            return Ok(Some(damage));
        }
    }
    match first_missing_tip(repository) {
        Ok(None) => Ok(None),
        Ok(Some(name)) => Ok(Some(format!("the object of `{name}` is missing"))),
        Err(error) => classify(repository.git_dir(), &error),
    }
}

/// Also verifies the checksums of all packs and indices.
///
/// # Errors
/// As [`quick_check`], and if `stop` is set.
pub(super) fn full_check(repository: &Repository, stop: &AtomicBool) -> io::Result<Option<String>> {
    for pack in packs(repository.git_dir())? {
        for file in [&pack, &pack.with_extension("idx")] {
            if let Some(damage) = checksum_matches(file, repository.object_hash(), stop).or_else(damage_from_io)? {
                return Ok(Some(damage));
            }
        }
    }
    quick_check(repository)
}

/// Whether an object is missing or corrupt. Returns a description of the damage, if any.
///
/// # Errors
/// As [`quick_check`].
pub(super) fn check_object(repository: &Repository, id: ObjectId) -> io::Result<Option<String>> {
    match repository.find_object(id) {
        Ok(object) => match gix::objs::compute_hash(id.kind(), object.kind, &object.data) {
            Ok(found) if found == id => Ok(None),
            _ => Ok(Some(format!("the contents of object {id} do not match its id"))),
        },
        Err(error) => classify(repository.git_dir(), &error),
    }
}

/// Classifies an error of gix: damage, unless the files cannot be read at the moment.
pub(super) fn classify(directory: &Path, error: &gix::Error) -> io::Result<Option<String>> {
    for name in ["HEAD", "config", "packed-refs"] {
        can_be_read(&directory.join(name))?;
    }
    for pack in packs(directory)? {
        can_be_read(&pack)?;
        can_be_read(&pack.with_extension("idx"))?;
    }
    Ok(Some(describe(error)))
}

fn can_be_read(file: &Path) -> io::Result<()> {
    let read = File::open(file).and_then(|mut file| file.read(&mut [0; 1]));
    match read {
        Err(error) if !is_damage(&error) => Err(error),
        _ => Ok(()),
    }
}

/// Whether an I/O error means that a file is missing, truncated or unreadable for good.
fn is_damage(error: &io::Error) -> bool {
    /// The disk cannot read a block.
    const EIO: i32 = 5;
    matches!(error.kind(), ErrorKind::NotFound | ErrorKind::UnexpectedEof | ErrorKind::InvalidData)
        || error.raw_os_error() == Some(EIO)
}

fn damage_from_io(error: io::Error) -> io::Result<Option<String>> {
    if is_damage(&error) {
        Ok(Some(format!("a pack or its index cannot be read: {}", error.kind())))
    } else {
        Err(error)
    }
}

fn packs(directory: &Path) -> io::Result<Vec<std::path::PathBuf>> {
    let entries = match fs::read_dir(directory.join("objects/pack")) {
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(Vec::new()),
        entries => entries?,
    };
    let paths = entries.map(|entry| Ok(entry?.path())).collect::<io::Result<Vec<_>>>()?;
    Ok(paths.into_iter().filter(|path| path.extension().is_some_and(|ending| ending == "pack")).collect())
}

fn head_is_a_ref(directory: &Path) -> io::Result<Option<String>> {
    let head = fs::read(directory.join("HEAD"))?;
    Ok((!head.starts_with(b"ref: refs/")).then(|| "its HEAD is empty or malformed".to_owned()))
}

/// Whether a pack has its signature and the checksum in its index.
fn trailers_match(pack: &Path, format: Kind) -> io::Result<Option<String>> {
    let mut start = [0; 4];
    File::open(pack)?.read_exact(&mut start)?;
    let pack_trailer = trailer(pack, format.len_in_bytes())?;
    let index_trailer = trailer(&pack.with_extension("idx"), 2 * format.len_in_bytes())?;
    let matches =
        start == *b"PACK" && index_trailer.starts_with(&pack_trailer) && pack_trailer.iter().any(|byte| *byte != 0);
    Ok((!matches).then(|| "a pack does not match its index".to_owned()))
}

fn trailer(file: &Path, bytes: usize) -> io::Result<Vec<u8>> {
    let mut file = File::open(file)?;
    if file.metadata()?.len() < bytes as u64 {
        return Err(ErrorKind::UnexpectedEof.into());
    }
    file.seek(SeekFrom::End(-(bytes as i64)))?;
    let mut end = vec![0; bytes];
    file.read_exact(&mut end)?;
    Ok(end)
}

/// Whether the checksum at the end of a pack or index is right.
fn checksum_matches(path: &Path, format: Kind, stop: &AtomicBool) -> io::Result<Option<String>> {
    let expected = trailer(path, format.len_in_bytes())?;
    let file = File::open(path)?;
    let mut rest = file.metadata()?.len() - expected.len() as u64;
    let mut hasher = gix::hash::hasher(format);
    let mut reader = file.take(rest);
    let mut buffer = vec![0; READ_BYTES];
    while rest > 0 {
        if stop.load(Ordering::Relaxed) {
            return Err(io::Error::other("the check was interrupted"));
        }
        let read = reader.read(&mut buffer)?;
        if read == 0 {
            return Err(ErrorKind::UnexpectedEof.into());
        }
        hasher.update(&buffer[..read]);
        rest -= read as u64;
    }
    let matches = hasher.try_finalize().is_ok_and(|found| found.as_slice() == expected);
    Ok((!matches).then(|| "the checksum of a pack or its index is wrong".to_owned()))
}

fn first_missing_tip(repository: &Repository) -> gix::Result<Option<String>> {
    for reference in repository.references()?.all()? {
        let reference = reference?;
        if let Some(id) = reference.try_id()
            && repository.try_find_header(id)?.is_none()
        {
            return Ok(Some(reference.name().as_bstr().to_string()));
        }
    }
    Ok(None)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn temporary_errors_are_not_damage() {
        for error in [ErrorKind::NotFound.into(), ErrorKind::UnexpectedEof.into(), io::Error::from_raw_os_error(5)] {
            assert!(is_damage(&error), "{error}");
        }
        // Too many open files, no permission, no memory.
        for code in [24, 13, 12] {
            let error = io::Error::from_raw_os_error(code);
            assert!(!is_damage(&error) && damage_from_io(error).is_err(), "{code}");
        }
    }

    #[test]
    fn an_interrupted_check_reports_no_damage() {
        let dir = tempfile::tempdir().unwrap();
        let pack = dir.path().join("pack-1.pack");
        fs::write(&pack, [0; 100]).unwrap();
        let check = |stop| checksum_matches(&pack, Kind::Sha1, &AtomicBool::new(stop)).or_else(damage_from_io);
        assert!(check(false).unwrap().is_some() && check(true).is_err());
    }

    #[test]
    fn a_pack_must_match_its_index() {
        let dir = tempfile::tempdir().unwrap();
        let pack = dir.path().join("pack-1.pack");
        let put = |pack_bytes: &[u8], index_bytes: &[u8]| {
            fs::write(&pack, pack_bytes).unwrap();
            fs::write(pack.with_extension("idx"), index_bytes).unwrap();
            trailers_match(&pack, Kind::Sha1).or_else(damage_from_io).unwrap().is_none()
        };
        let (sum, own, zero) = ([7; 20], [9; 20], [0; 20]);
        let whole = [&b"PACK..."[..], &sum].concat();
        let index = [&b"index"[..], &sum, &own].concat();
        assert!(put(&whole, &index));
        assert!(!put(&whole[..whole.len() - 1], &index), "cut short");
        assert!(!put(b"", &index) && !put(&whole, b""), "empty");
        assert!(!put(&[&b"PACK..."[..], &zero].concat(), &[zero, zero].concat()), "zeroes");
        fs::remove_file(pack.with_extension("idx")).unwrap();
        assert!(trailers_match(&pack, Kind::Sha1).or_else(damage_from_io).unwrap().is_some(), "gone");
    }
}
