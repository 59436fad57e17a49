//! What was found, and what became of it.

use serde::Serialize;

use super::faults::faults;
use super::look::Seen;
use super::mend::Fate;
use crate::data_dir::DataDir;

/// What was found.
#[derive(Debug, Default, Serialize)]
pub struct Report {
    /// Versions, current and superseded ones, that can be read.
    pub versions: u64,
    /// Blobs that were read.
    pub blobs: u64,
    /// Their bytes.
    pub bytes: u64,
    /// Repositories and services that operators defined.
    pub definitions: u64,
    /// Everything that is not as it should be.
    pub found: Vec<Found>,
}

/// Something that is not as it should be.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Found {
    /// What is wrong.
    pub fault: Fault,
    /// With what.
    pub object: String,
    /// In plain words.
    pub detail: String,
    /// What became of it.
    pub outcome: Outcome,
    /// How, in plain words.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub remark: Option<String>,
}

/// What can be wrong.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Fault {
    /// A database contradicts its checksums, and can be repaired.
    Database,
    /// A document of an operator cannot be read, or the rules of this version refuse it.
    RefusedDefinition,
    /// A row of the publications cannot be read.
    UnreadableRow,
    /// The last generation of a service is not the last one.
    GenerationBehind,
    /// A version does not bear the signatures it should.
    WrongSignature,
    /// What is written down of who names which blob is wrong.
    WrongIndex,
    /// A blob's bytes are not those of its name.
    DamagedBlob,
    /// A blob cannot be read.
    UnreadableBlob,
    /// A form that a version names cannot be had.
    MissingForm,
    /// What stands beside a blob is not that blob's.
    WrongPieces,
    /// The same of the list of fragments.
    WrongFragments,
    /// A blob that no version names. No damage: the origin's sweeps remove it.
    Unnamed,
    /// What a process that was killed left. No damage: the origin removes it.
    LeftOver,
    /// A file that is none of the origin's. No damage; it stays.
    Foreign,
}

/// What became of a fault.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Outcome {
    /// It is as it was found.
    Left,
    /// It is no more, and nothing is lost.
    Mended,
    /// It is no more, and neither is what it was about.
    Lost,
}

impl Fault {
    /// Whether something is lost, or will be missed.
    pub fn is_damage(self) -> bool {
        !matches!(self, Self::Unnamed | Self::LeftOver | Self::Foreign)
    }

    pub(super) fn can_be_mended(self) -> bool {
        !matches!(self, Self::RefusedDefinition | Self::UnreadableBlob | Self::Unnamed | Self::Foreign)
    }
}

impl Report {
    pub(super) fn new(seen: &Seen, data_dir: &DataDir) -> Self {
        let examined = seen.blobs.values();
        Self {
            versions: seen.state.versions.len() as u64,
            blobs: seen.blobs.len() as u64,
            bytes: examined.map(|blob| blob.size).sum(),
            definitions: seen.definitions,
            found: faults(seen, data_dir),
        }
    }

    /// Says of each fault what became of it, by what was seen after all was mended that could be.
    pub(super) fn conclude(&mut self, after: &Self, fates: &[Fate]) {
        for found in &mut self.found {
            let fate = fates.iter().find(|fate| fate.fault == found.fault && fate.object == found.object);
            found.remark = fate.map(|fate| fate.remark.clone());
            let is_left = after.found.iter().any(|left| (left.fault, &left.object) == (found.fault, &found.object));
            found.outcome = match fate {
                _ if is_left => Outcome::Left,
                Some(fate) if fate.is_lost => Outcome::Lost,
                _ => Outcome::Mended,
            };
        }
        // What only mending brought to light.
        let known = |new: &Found| self.found.iter().any(|old| (old.fault, &old.object) == (new.fault, &new.object));
        let new: Vec<Found> = after.found.iter().filter(|new| new.fault.is_damage() && !known(new)).cloned().collect();
        self.found.extend(new);
    }

    /// As fsck(8) has them. 0: no damage. 1: all damage was mended. 4: damage is left, or something is lost.
    pub fn exit_code(&self) -> u8 {
        let damage = || self.found.iter().filter(|found| found.fault.is_damage());
        match damage().all(|found| found.outcome == Outcome::Mended) {
            true if damage().next().is_none() => 0,
            true => 1,
            false => 4,
        }
    }
}
