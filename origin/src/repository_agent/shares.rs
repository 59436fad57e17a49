//! How places are divided: who may have the next one. Pure.
//!
//! No host gets more than its bound, and a further one only while more places are free than it holds: however many a host
//! has, others find some. Large fetches, which may take hours, get at most half of all places and half of a host's, so that
//! what is mirrored already is kept up to date beside them.

use std::collections::HashMap;
use std::sync::Arc;

use super::state::WaitsFor;

/// Who wants a place.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Who {
    pub(super) host: Arc<str>,
    /// It fetches a repository for the first time, or files of LFS.
    pub(super) large: bool,
}

/// Places that are taken, of a number of them.
#[derive(Debug)]
pub(super) struct Shares {
    all: usize,
    of_a_host: usize,
    taken: Taken,
    hosts: HashMap<Arc<str>, Taken>,
}

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Taken {
    pub(super) places: usize,
    /// Of these by large fetches.
    pub(super) large: usize,
}

impl Shares {
    /// So many places, and so many of them for one host; each at least 1.
    pub(super) fn new(all: usize, of_a_host: usize) -> Self {
        Self { all, of_a_host, taken: Taken::default(), hosts: HashMap::new() }
    }

    /// Takes a place. The error is what there is none for.
    pub(super) fn take(&mut self, who: &Who) -> Result<(), WaitsFor> {
        let of_the_host = self.hosts.get(&who.host).copied().unwrap_or_default();
        let free = self.all - self.taken.places;
        if free == 0 {
            return Err(WaitsFor::Place);
        }
        let share = of_the_host.places == 0 || of_the_host.places < free;
        if !share || of_the_host.places >= self.of_a_host {
            return Err(WaitsFor::HostPlace);
        }
        let large = (self.taken.large, of_the_host.large);
        if who.large && (large.0 >= half(self.all) || large.1 >= half(self.of_a_host)) {
            return Err(WaitsFor::LargePlace);
        }
        for taken in [&mut self.taken, self.hosts.entry(who.host.clone()).or_default()] {
            taken.places += 1;
            taken.large += usize::from(who.large);
        }
        Ok(())
    }

    /// Gives back a place that was taken.
    pub(super) fn give_back(&mut self, who: &Who) {
        let Some(of_the_host) = self.hosts.get_mut(&who.host) else { return };
        for taken in [&mut self.taken, of_the_host] {
            taken.places -= 1;
            taken.large -= usize::from(who.large);
        }
        self.hosts.retain(|_, taken| taken.places > 0);
    }

    /// What is taken now.
    pub(super) fn taken(&self) -> Taken {
        self.taken
    }

    /// What the host has that has the most.
    pub(super) fn taken_by_the_busiest_host(&self) -> usize {
        self.hosts.values().map(|taken| taken.places).max().unwrap_or(0)
    }
}

/// Half of the places, and at least one.
pub(super) fn half(places: usize) -> usize {
    places.div_ceil(2)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn who(host: &str, large: bool) -> Who {
        Who { host: host.into(), large }
    }

    /// How many a host gets that takes all it can.
    fn all_it_can(shares: &mut Shares, who: &Who) -> usize {
        std::iter::repeat_with(|| shares.take(who)).take_while(Result::is_ok).count()
    }

    #[test]
    fn two_greedy_hosts_leave_places_for_others() {
        let mut shares = Shares::new(8, 4);
        assert_eq!(all_it_can(&mut shares, &who("a", false)), 4);
        assert_eq!(shares.take(&who("a", false)), Err(WaitsFor::HostPlace));
        assert_eq!(all_it_can(&mut shares, &who("b", false)), 2);
        assert_eq!(shares.take(&who("b", false)), Err(WaitsFor::HostPlace));
        assert_eq!(all_it_can(&mut shares, &who("c", false)), 1);
        assert_eq!(all_it_can(&mut shares, &who("d", false)), 1);
        assert_eq!(shares.take(&who("e", false)), Err(WaitsFor::Place));
        shares.give_back(&who("a", false));
        assert_eq!(shares.take(&who("a", false)), Err(WaitsFor::HostPlace), "it goes to who has none");
        assert_eq!(shares.take(&who("e", false)), Ok(()));
    }

    #[test]
    fn large_fetches_get_half() {
        let mut shares = Shares::new(8, 4);
        assert_eq!(all_it_can(&mut shares, &who("a", true)), 2);
        assert_eq!(shares.take(&who("a", true)), Err(WaitsFor::LargePlace));
        assert_eq!(all_it_can(&mut shares, &who("b", true)), 2);
        assert_eq!(shares.take(&who("c", true)), Err(WaitsFor::LargePlace), "half of all");
        assert_eq!(shares.take(&who("a", false)), Ok(()));
        assert_eq!(shares.take(&who("c", false)), Ok(()));
        assert_eq!(shares.taken(), Taken { places: 6, large: 4 });
        let mut one = Shares::new(1, 1);
        assert_eq!(all_it_can(&mut one, &who("a", true)), 1);
    }

    proptest! {
        #[test]
        fn whatever_comes_and_goes_the_bounds_hold_and_who_has_none_gets_the_last(
            all in 1usize..12, of_a_host in 1usize..6,
            steps in prop::collection::vec((0usize..5, any::<bool>(), any::<bool>()), 0..200),
        ) {
            let mut shares = Shares::new(all, of_a_host);
            let mut held: Vec<Who> = Vec::new();
            for (host, large, comes) in steps {
                let who = who(&host.to_string(), large);
                if comes {
                    let has = |large: bool| held.iter().filter(|one| one.host == who.host && (!large || one.large)).count();
                    let (has, large_there, full) = (has(false), has(true), held.len() == all);
                    let large_in_all = held.iter().filter(|one| one.large).count();
                    match shares.take(&who) {
                        Ok(()) => {
                            prop_assert!(!full && has < of_a_host);
                            prop_assert!(!large || large_in_all < half(all) && large_there < half(of_a_host));
                            held.push(who);
                        }
                        Err(WaitsFor::Place) => prop_assert!(full),
                        Err(WaitsFor::LargePlace) => prop_assert!(large),
                        Err(_) => prop_assert!(has > 0),
                    }
                } else if let Some(at) = held.iter().position(|one| *one == who) {
                    shares.give_back(&held.swap_remove(at));
                }
                let large = held.iter().filter(|one| one.large).count();
                prop_assert_eq!(shares.taken(), Taken { places: held.len(), large });
            }
        }
    }
}
