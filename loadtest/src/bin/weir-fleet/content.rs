//! What a service's directory holds at each of its changes. Pure: a directory shows by itself whether it is one change's.

use anyhow::{Context, bail, ensure};
use weir_loadtest::tree::{Entry, Tree};
use weir_protocol::digest::ObjectDigest;

/// The files of a service, and which of them a change touches.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Content {
    pub(crate) files: usize,
    /// A change touches one file in turn, instead of all.
    pub(crate) one_file: bool,
    /// Lines of a file, of about 60 bytes.
    pub(crate) lines: usize,
}

impl Content {
    /// The last change of a file as of a change of its service; 0: the first commit.
    fn last_change(self, file: usize, change: usize) -> usize {
        let since = (change + self.files - file) % self.files;
        if self.one_file { change.saturating_sub(since) } else { change }
    }

    pub(crate) fn file_name(file: usize) -> String {
        format!("file-{file}")
    }

    /// The files that a change touches, with their bytes.
    pub(crate) fn changed(self, service: usize, change: usize) -> impl Iterator<Item = (String, String)> {
        let touched = (0..self.files).filter(move |file| change == 0 || self.last_change(*file, change) == change);
        touched.map(move |file| (Self::file_name(file), self.text(service, file, change)))
    }

    /// Every fortieth line differs from that of other changes; half of each is words.
    fn text(self, service: usize, file: usize, change: usize) -> String {
        let line = |line: usize| {
            let of = if line % 40 == 3 { change } else { 0 };
            let digest = ObjectDigest::of(format!("{service} {file} {of} {line}").as_bytes());
            format!("the value of this line is {} and no other\n", &digest.hex()[..24])
        };
        let head = format!("service {service} file {file} change {change}\n");
        [head].into_iter().chain((0..self.lines).map(line)).collect()
    }

    /// The change whose content a directory has.
    ///
    /// # Errors
    /// It is not that of one change of this service.
    pub(crate) fn change_of(self, service: usize, tree: &Tree) -> anyhow::Result<usize> {
        let mut change = 0;
        for entry in tree.values() {
            let Entry::File { contents, .. } = entry else { bail!("there is something else than files") };
            let head = contents.split(|byte| *byte == b'\n').next().unwrap_or_default();
            let number = std::str::from_utf8(head)?.rsplit(' ').next().context("a head has words")?;
            change = change.max(number.parse()?);
        }
        ensure!(tree.len() == self.files, "there are {} files instead of {}", tree.len(), self.files);
        for file in 0..self.files {
            let name = Self::file_name(file);
            let contents = self.text(service, file, self.last_change(file, change)).into_bytes();
            let is_it = tree.get(name.as_bytes()) == Some(&Entry::File { executable: false, contents });
            ensure!(is_it, "{name} is not that of change {change}");
        }
        Ok(change)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tree(content: Content, service: usize, change: usize) -> Tree {
        let mut tree = Tree::new();
        for (name, text) in (0..=change).flat_map(|change| content.changed(service, change)) {
            tree.insert(name.into_bytes(), Entry::File { executable: false, contents: text.into_bytes() });
        }
        tree
    }

    #[test]
    fn a_directory_is_that_of_one_change_or_wrong() -> anyhow::Result<()> {
        for one_file in [false, true] {
            let content = Content { files: 3, one_file, lines: 50 };
            for change in 0..8 {
                let whole = tree(content, 1, change);
                assert_eq!(content.change_of(1, &whole)?, change);
                assert!(content.change_of(2, &whole).is_err(), "another service");
                let mut mixed = tree(content, 1, change + 2);
                let name = Content::file_name((change + 1) % 3).into_bytes();
                mixed.insert(name.clone(), whole[&name].clone());
                assert!(content.change_of(1, &mixed).is_err(), "change {change} in {}", change + 2);
                mixed.remove(&name);
                assert!(content.change_of(1, &mixed).is_err(), "a file is missing");
            }
        }
        assert_eq!(Content { files: 3, one_file: true, lines: 1 }.changed(0, 4).count(), 1);
        Ok(())
    }
}
