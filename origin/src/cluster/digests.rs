//! What the members of a cluster should have in common, as short digests.

use weir_ownership::Digests;
use weir_publish::Signer;
use weir_rollout::Plan;
use weir_source::ServiceConfig;
use weir_upstream::RepositoryConfig;

use crate::catalog::version;
use crate::config::OciConfig;
use crate::config::rollouts::by_name;

/// The digests of the documents of a configuration file, whatever their order and the folder of the files that they name,
/// and of what signs descriptors. `oci` counts once it is on: origins of the release before do not know it.
pub(crate) fn digests(
    (repositories, services, rollouts): (&[RepositoryConfig], &[ServiceConfig], &[Plan]),
    oci: OciConfig,
    signer: &Signer,
) -> Digests {
    let (mut repositories, mut services) = (repositories.to_vec(), services.to_vec());
    repositories.sort_by(|one, other| one.name.cmp(&other.name));
    services.sort_by(|one, other| one.name.cmp(&other.name));
    for (_, path) in repositories.iter_mut().flat_map(RepositoryConfig::files_mut) {
        *path = path.file_name().map(Into::into).unwrap_or_default();
    }
    // What is not used is not part of it, because members of earlier releases do not know it.
    let configuration = match (oci.enabled, rollouts.is_empty()) {
        (true, true) => version(&(repositories, services, oci)),
        (false, true) => version(&(repositories, services)),
        (_, false) => version(&(repositories, services, oci, by_name(rollouts))),
    };
    Digests { configuration: Some(configuration), signing_keys: Some(version(&signer.signs_with())) }
}

#[cfg(test)]
mod tests {
    use weir_protocol::token::SigningKey;

    use super::*;

    #[test]
    fn order_and_folders_do_not_matter() {
        let repository = |name: &str, ca: &str| {
            let mut repository = RepositoryConfig::new(name.parse().unwrap(), "https://git.example.org/x");
            repository.ca = Some(ca.into());
            repository
        };
        let with = |repositories: &[RepositoryConfig], enabled| {
            digests((repositories, &[], &[]), OciConfig { enabled }, &Signer::default())
        };
        let of = |repositories: &[RepositoryConfig]| with(repositories, false);
        let one = of(&[repository("a", "/etc/weir/ca.pem"), repository("b", "ca.pem")]);
        assert_eq!(one, of(&[repository("b", "ca.pem"), repository("a", "/srv/ca.pem")]));
        assert_ne!(one, of(&[repository("a", "ca.pem")]));
        assert_ne!(with(&[], true), of(&[]));
        assert_ne!(one, of(&[repository("a", "ca.pem"), repository("b", "other.pem")]));
        let signed_by = |signer: &Signer| digests((&[], &[], &[]), OciConfig { enabled: false }, signer).signing_keys;
        let signer = Signer::new(vec![SigningKey::generate().unwrap().0]);
        let without_cosign = signed_by(&signer);
        assert_ne!(signed_by(&signer.with_cosign(true)), without_cosign);
    }
}
