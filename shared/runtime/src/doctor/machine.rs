//! This machine: the files that the configuration names, certificates, and the disk.

use std::path::Path;
use std::time::SystemTime;

use bytesize::ByteSize;
use rustix::fs::statvfs;

use super::Findings;
use super::network::SOON;
use crate::file_check::FileCheck;
use crate::tls;

impl Findings {
    /// What is wrong with the files of a configuration.
    pub fn files(&mut self, files: &FileCheck) {
        for error in &files.errors {
            self.fail("configuration", error, "Correct the file, or the key that names it.");
        }
        for missing in &files.missing {
            self.warn("configuration", missing, "Put it there: it is read when it is needed.");
        }
        for warning in &files.warnings {
            self.warn("configuration", warning, "It works, and should not stay so.");
        }
        if self.found.is_empty() {
            self.ok("configuration", "all files that it names can be used");
        }
    }

    /// Until when a certificate of this process counts. `key`: where the configuration names it. One that cannot be read is an
    /// error of the files.
    pub fn certificate(&mut self, key: &str, file: &Path) {
        let Ok(ends) = tls::not_after(file) else { return };
        let message = format!("{key} ends on {}", humantime::format_rfc3339_seconds(ends));
        if ends < SystemTime::now() + SOON {
            self.warn("certificate", message, "Renew it: the process takes a changed file without a restart.");
        } else {
            self.ok("certificate", message);
        }
    }

    /// Whether a directory has free space. Below `little`, which is for `purpose`, it is a warning. `is`: what was found of it
    /// before.
    pub fn free_space(&mut self, directory: &Path, is: &str, little: ByteSize, purpose: &str) {
        let shown = directory.display();
        // One that will be created is on the disk of what is above it.
        match directory.ancestors().find_map(|path| statvfs(path).ok()) {
            Some(of) if of.f_files > 0 && of.f_favail == 0 => {
                self.fail("disk", format!("{shown}: no inode is free"), "Remove files, or use a larger file system.");
            }
            Some(of) => {
                let free = ByteSize::b(of.f_bavail.saturating_mul(of.f_frsize));
                let message = format!("{shown} {is}, and {free} are free");
                if free < little {
                    self.warn("disk", message, format!("Make sure that {purpose}."));
                } else {
                    self.ok("disk", message);
                }
            }
            None => self.warn("disk", format!("the free space of {shown} is unknown"), "Look at `df`."),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::doctor::Verdict;

    #[test]
    fn a_disk_with_little_space_and_a_certificate_that_ends_are_warnings() {
        let dir = tempfile::tempdir().unwrap();
        crate::certificates::write(dir.path(), &[]).unwrap();
        let mut findings = Findings::new("this machine");
        findings.files(&FileCheck::default());
        findings.certificate("[tls]", &dir.path().join("edge.pem"));
        findings.certificate("[tls]", &dir.path().join("no-such-file.pem"));
        findings.free_space(&dir.path().join("new/cache"), "is writable", ByteSize::b(0), "it fits");
        findings.free_space(dir.path(), "is writable", ByteSize::eib(15), "it fits");
        let verdicts: Vec<_> = findings.found.iter().map(|finding| (finding.check, finding.verdict)).collect();
        let (ok, warn) = (Verdict::Ok, Verdict::Warn);
        assert_eq!(verdicts, [("configuration", ok), ("certificate", ok), ("disk", ok), ("disk", warn)]);
        assert_eq!(findings.found[3].advice.as_deref(), Some("Make sure that it fits."));
    }
}
