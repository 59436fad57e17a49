//! Pure: who owns a repository, as far as this origin knows.

use weir_ownership::Claim;
use weir_protocol::name::RepositoryName;

use super::{Member, View};

/// Who answers for a repository.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Owner {
    /// This origin.
    Me,
    /// Another living member.
    Other(Member),
    /// Nobody: its owner died, started again or released it, and no member has claimed it since.
    Nobody,
}

/// The owner of a repository by the claim in its last known record. A claim holds as long as its session lives: an owner
/// that was restarted claims again.
pub(crate) fn owner(view: &View, repository: &RepositoryName, claim: Option<&Claim>) -> Owner {
    if view.has_session && view.owned.contains_key(repository) {
        return Owner::Me;
    }
    let claim = claim.filter(|claim| !claim.is_released);
    let member = claim.and_then(|claim| view.others.get(&claim.owner).filter(|member| member.session == claim.session));
    member.cloned().map_or(Owner::Nobody, Owner::Other)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;
    use std::time::SystemTime;

    use weir_ownership::{Digests, NodeState, SessionId};

    use super::*;
    use crate::cluster::{Owned, OwnedRepositories};

    fn member(name: &str, session: u64) -> Member {
        Member {
            name: name.parse().unwrap(),
            url: format!("https://{name}.example:7400"),
            zone: None,
            weight: 1,
            state: NodeState::Active,
            session: SessionId(session),
            digests: Digests::default(),
            knows_shards: true,
            knows_blobs: true,
            knows_staged: true,
        }
    }

    fn claim(name: &str, session: u64) -> Claim {
        Claim { owner: name.parse().unwrap(), session: SessionId(session), fence: 1, is_released: false }
    }

    #[test]
    fn a_claim_holds_while_its_session_lives() {
        let (mine, theirs): (RepositoryName, RepositoryName) = ("mine".parse().unwrap(), "theirs".parse().unwrap());
        let other = member("origin-2", 20);
        let mut view = View {
            me: member("origin-1", 10),
            has_session: true,
            is_name_taken: false,
            sees_members: true,
            others: BTreeMap::from([(other.name.clone(), other.clone())]),
            owned: OwnedRepositories::default(),
            agree: true,
        };
        view.owned.insert(mine.clone(), Owned { fence: 1, since: SystemTime::UNIX_EPOCH });
        assert_eq!(owner(&view, &mine, None), Owner::Me);
        assert_eq!(owner(&view, &theirs, Some(&claim("origin-2", 20))), Owner::Other(other));
        for claim in [
            None,
            Some(claim("origin-2", 19)),
            Some(claim("origin-3", 20)),
            Some(Claim { is_released: true, ..claim("origin-2", 20) }),
            // A record that has just been claimed, or is not mine any more.
            Some(claim("origin-1", 10)),
        ] {
            assert_eq!(owner(&view, &theirs, claim.as_ref()), Owner::Nobody, "{claim:?}");
        }
        view.has_session = false;
        assert_eq!(owner(&view, &mine, Some(&claim("origin-1", 10))), Owner::Nobody);
    }
}
