//! Forms of versions that are lost, made again: by what a mirror holds, or from the other form.

use std::fmt::Display;

use weir_shared::descriptor::{Descriptor, Representation};
use weir_shared::encoding::Encoding;

use super::faults::object_of;
use super::mend::Fate;
use super::report::Fault;
use crate::catalog::{Definitions, Refused, Written};
use crate::publication::{Reference, Version};
use crate::repository_agent::{NotRestored, Restorer};
use crate::service::Service;

/// Makes the forms again that a version lacks, and says of each what became of it. What cannot be made again, and never
/// will be, is dropped with the version, unless it is what a service is at.
pub(super) fn make_again(
    defined: &Definitions,
    restorer: &Restorer,
    version: &Version,
    lacking: &[&Representation],
) -> anyhow::Result<Vec<Fate>> {
    let (mut fates, mut dropped) = (Vec::new(), None);
    // The gzip form is made from the other one.
    let zstd_first = |form: &&&Representation| form.encoding != Encoding::Zstd;
    let mut lacking: Vec<_> = lacking.iter().collect();
    lacking.sort_by_key(zstd_first);
    for form in lacking {
        let (is_lost, remark) = match &dropped {
            Some(remark) => (true, String::clone(remark)),
            None => outcome(restorer, version, made_again(defined, restorer, version, form.encoding)?)?,
        };
        if is_lost {
            dropped = Some(remark.clone());
        }
        fates.push(Fate { object: object_of(version, form), fault: Fault::MissingForm, is_lost, remark });
    }
    Ok(fates)
}

/// Whether a form is lost, and a remark. The argument says what it was made from, or why it was not.
fn outcome(
    restorer: &Restorer,
    version: &Version,
    made: Result<&'static str, NotRestored>,
) -> anyhow::Result<(bool, String)> {
    Ok(match made {
        Ok(from) => (false, format!("made again from {from}")),
        Err(NotRestored::Now(reason)) => {
            (false, format!("not made again: {reason}; the origin tries again when somebody asks for it"))
        }
        Err(NotRestored::Ever(reason)) if version.is_current => {
            (false, format!("not made again: {reason}; the origin publishes the service anew by its next poll"))
        }
        Err(NotRestored::Ever(reason)) => {
            restorer.publisher.forget_version(&version.service, &version.digest)?;
            (true, format!("dropped: {reason}, and nothing can make it again"))
        }
    })
}

fn made_again(
    defined: &Definitions,
    restorer: &Restorer,
    version: &Version,
    encoding: Encoding,
) -> anyhow::Result<Result<&'static str, NotRestored>> {
    let publisher = &restorer.publisher;
    let Some(descriptor) = publisher.version(&version.service, &version.digest)? else {
        return Ok(Err(NotRestored::Now("the version is gone".to_owned())));
    };
    // For its name: what it follows is asked of its document alone.
    let named = Service::refused(version.service.clone(), descriptor.publication().repository.clone(), None)?;
    let min_free = restorer.limits.min_free.as_u64();
    // A disk that is full, or refuses one of them, is no reason to leave the others.
    let failed = |error: &dyn Display| NotRestored::Now(restorer.data_dir.redact(&error.to_string()));
    if encoding == Encoding::Gzip {
        let zstd = descriptor.representation(Encoding::Zstd).map(|zstd| publisher.open_verified(&zstd.digest));
        let Some(zstd) = zstd else { return Ok(Err(NotRestored::Now("it has no zstd form".to_owned()))) };
        let made = zstd.map_err(|error| failed(&error)).and_then(|zstd| {
            let made = publisher.with_gzip(&named, &version.digest, zstd.reader(), min_free);
            made.map_err(|error| failed(&error))
        });
        return Ok(made.map(|_| "its zstd form"));
    }
    let has_gzip = descriptor
        .representation(Encoding::Gzip)
        .is_some_and(|gzip| publisher.blobs().contains(&gzip.digest, gzip.size));
    let Err(reason) = from_git(defined, restorer, version, descriptor)? else { return Ok(Ok("the mirror")) };
    if !has_gzip {
        return Ok(Err(reason));
    }
    // The same tarball in other bytes, as after a build by another version of the program.
    let made = publisher.zstd_from_gzip(&named, &version.digest, min_free);
    Ok(made.map(|()| "its gzip form").map_err(|error| failed(&error)))
}

/// Makes the zstd form of a version again, by what the mirror of its repository holds.
fn from_git(
    defined: &Definitions,
    restorer: &Restorer,
    version: &Version,
    descriptor: Descriptor,
) -> anyhow::Result<Result<(), NotRestored>> {
    let not_defined = |what: &str| Ok(Err(NotRestored::Now(format!("{what} is not defined (any more)"))));
    let refused = |why: &Refused| Ok(Err(NotRestored::Now(format!("its document is refused: {}", why.reason))));
    let document = match defined.services.get(&version.service).map(|service| &service.document) {
        Some(Written::Taken(document)) => document,
        Some(Written::Refused(why)) => return refused(why),
        None => return not_defined("the service"),
    };
    let repository = match defined.repositories.get(&document.repository).map(|repository| &repository.document) {
        Some(Written::Taken(repository)) => repository,
        Some(Written::Refused(why)) => return refused(why),
        None => return not_defined("its repository"),
    };
    let service = Service::new(document, version.is_current.then(|| descriptor.clone()))?;
    let stated = Reference { descriptor, current: version.is_current };
    Ok(restorer.restore(repository, &service, &stated))
}
