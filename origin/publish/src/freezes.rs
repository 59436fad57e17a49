//! The freezes of services, as publications look them up.

use std::fmt;
use std::sync::{Arc, PoisonError, RwLock};
use std::time::SystemTime;

use weir_protocol::name::ServiceName;
use weir_rollout::Freeze;

/// Which services are frozen: nothing new of them is published. Clones share it.
#[derive(Debug, Clone)]
pub struct Freezes(Arc<RwLock<Known>>);

/// The stored freezes. `None`: they could not be read yet, so nothing new is published of any service.
type Known = Option<Arc<Vec<Freeze>>>;

/// Why nothing new of a service is published.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Frozen {
    /// By this freeze.
    By(Freeze),
    /// Whether it is frozen could not be read yet.
    Unknown,
}

impl Default for Freezes {
    fn default() -> Self {
        Self(Arc::new(RwLock::new(Some(Arc::default()))))
    }
}

impl Freezes {
    /// Replaces all freezes. `None`: what there is could not be read yet.
    pub fn set(&self, freezes: Option<Vec<Freeze>>) {
        *self.0.write().unwrap_or_else(PoisonError::into_inner) = freezes.map(Arc::new);
    }

    /// Those in force. `None`: they could not be read yet.
    pub fn in_force(&self, now: SystemTime) -> Option<Vec<Freeze>> {
        self.known().map(|all| all.iter().filter(|freeze| freeze.is_in_force(now)).cloned().collect())
    }

    /// What freezes a service now: of several the one that ends last.
    pub fn of(&self, service: &ServiceName, now: SystemTime) -> Option<Frozen> {
        let Some(all) = self.known() else { return Some(Frozen::Unknown) };
        let freezes = all.iter().filter(|freeze| freeze.is_in_force(now) && freeze.covers(service));
        freezes.max_by_key(|freeze| (freeze.until.is_none(), freeze.until)).cloned().map(Frozen::By)
    }

    fn known(&self) -> Known {
        self.0.read().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

impl fmt::Display for Frozen {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::By(freeze) => freeze.fmt(f),
            Self::Unknown => f.write_str("the freezes could not be read since the start of this origin"),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn of_several_freezes_the_one_that_ends_last_is_told_and_what_was_never_read_freezes_all() {
        let now = SystemTime::UNIX_EPOCH + Duration::from_hours(1);
        let freeze = |name: &str, until: Option<u64>| Freeze {
            name: name.parse().unwrap(),
            services: vec!["shop-*".parse().unwrap()],
            until: until.map(|seconds| now + Duration::from_secs(seconds)),
            reason: None,
        };
        let (freezes, shop) = (Freezes::default(), "shop-a".parse().unwrap());
        assert_eq!(freezes.of(&shop, now), None);
        freezes.set(Some(vec![freeze("long", Some(9)), freeze("ended", Some(0)), freeze("short", Some(1))]));
        assert_eq!(freezes.of(&shop, now), Some(Frozen::By(freeze("long", Some(9)))));
        assert_eq!(freezes.of(&"blog".parse().unwrap(), now), None);
        assert_eq!(freezes.of(&shop, now + Duration::from_secs(9)), None);
        assert_eq!(freezes.in_force(now).unwrap().len(), 2);
        freezes.set(Some(vec![freeze("long", Some(9)), freeze("open", None)]));
        assert_eq!(freezes.of(&shop, now), Some(Frozen::By(freeze("open", None))));
        freezes.set(None);
        assert_eq!((freezes.of(&shop, now), freezes.in_force(now)), (Some(Frozen::Unknown), None));
    }
}
