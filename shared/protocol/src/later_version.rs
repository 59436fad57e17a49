//! Reads a staged version. Descriptors contain it, and it is one.

use crate::descriptor::{Descriptor, Publication};
use crate::staged::Staged;

impl Staged {
    /// The descriptor of the later version. `None`: this version does not understand it, or it is not later than the one in
    /// force, so that everybody gets that one.
    pub fn later_than(&self, in_force: &Publication) -> Option<Descriptor> {
        let later = Descriptor::parse(self.descriptor.get().to_owned().into()).ok()?;
        let publication = later.publication();
        let is_later = publication.generation > in_force.generation && publication.digest != in_force.digest;
        (publication.service == in_force.service && is_later).then_some(later)
    }
}
