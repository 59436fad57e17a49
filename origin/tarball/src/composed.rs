//! Contents that are composed of parts, each in a folder of its own.

use super::{Contents, KeyWriter, TarballError, Walk};
use crate::folder_path::FolderPath;

/// Contents that are composed of parts: at most one at or above any path.
#[derive(Debug, Clone)]
pub struct ComposedTree<'a, C> {
    /// In the order of the tarball.
    parts: Vec<(&'a FolderPath, C)>,
}

/// A file of a part.
#[derive(Debug)]
pub struct PartFile<F> {
    part: usize,
    file: F,
}

/// The position of a part's folder in a tarball: bytes, with a slash at the end.
pub fn position(to: &FolderPath) -> Vec<u8> {
    [to.as_str().as_bytes(), b"/"].concat()
}

impl<'a, C> ComposedTree<'a, C> {
    /// Composes parts. They are in the order of [`position`], and no folder is equal to another or inside it.
    pub fn new(parts: Vec<(&'a FolderPath, C)>) -> Self {
        debug_assert!(parts.is_sorted_by_key(|(to, _)| position(to)));
        Self { parts }
    }
}

impl<C: Contents> Contents for ComposedTree<'_, C> {
    type File = PartFile<C::File>;

    fn walk(&self, into: &mut Walk<'_, Self::File>) -> Result<(), TarballError> {
        let mut above: Vec<&str> = Vec::new();
        for (part, (to, contents)) in self.parts.iter().enumerate() {
            let names: Vec<&str> = to.components().collect();
            let common = names.iter().zip(&above).take_while(|(name, above)| name == above).count();
            above.drain(common..).for_each(|_| into.leave());
            for (depth, name) in names.iter().enumerate().skip(common) {
                into.count()?;
                if !into.visit(name.as_bytes(), true, |_| false)? {
                    // The filters leave out the whole part.
                    return Err(TarballError::Empty.of_part(part));
                }
                if depth + 1 < names.len() {
                    into.enter();
                    above.push(name);
                } else {
                    let file = |file| PartFile { part, file };
                    let walked = into.part(|into| into.convert(file, |into| contents.walk(into)));
                    walked.map_err(|error| error.of_part(part))?;
                }
            }
        }
        above.iter().for_each(|_| into.leave());
        Ok(())
    }

    fn identify(file: &Self::File, executable: bool, key: &mut KeyWriter) {
        C::identify(&file.file, executable, key);
    }

    fn read(
        &self,
        path: &[u8],
        PartFile { part, file }: &Self::File,
        buffer: &mut Vec<u8>,
    ) -> Result<(), TarballError> {
        self.parts[*part].1.read(path, file, buffer).map_err(|error| error.of_part(*part))
    }

    fn read_in_pieces(
        &self,
        path: &[u8],
        PartFile { part, file }: &Self::File,
        take: &mut dyn FnMut(u64, Vec<u8>) -> Result<(), TarballError>,
    ) -> Result<(), TarballError> {
        self.parts[*part].1.read_in_pieces(path, file, take).map_err(|error| error.of_part(*part))
    }
}
