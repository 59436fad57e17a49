//! How places are divided: who may have the next one. Pure.
//!
//! No host gets more than its bound, and a further one only while more places are free than it holds: however many a host
//! has, others find some. Large fetches, which may take hours, have places of their own, half as many and divided likewise:
//! so what is mirrored already is kept up to date beside them, however few places there are.

use std::collections::HashMap;
use std::sync::Arc;

use super::state::WaitsFor;

/// Who wants a place.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Who {
    pub(super) host: Arc<str>,
    /// It fetches a repository from its beginning.
    pub(super) large: bool,
}

/// Places for fetches, and those for large ones.
#[derive(Debug)]
pub(super) struct Shares {
    changes: Pool,
    large: Pool,
}

/// Places that are taken.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Taken {
    /// By those who fetch what changed.
    pub(super) changes: usize,
    /// By large fetches.
    pub(super) large: usize,
}

impl Shares {
    /// So many places, and so many of them for one host; each at least 1.
    pub(super) fn new(all: usize, of_a_host: usize) -> Self {
        Self { changes: Pool::new(all, of_a_host), large: Pool::new(half(all), half(of_a_host)) }
    }

    /// Takes a place. The error is what there is none for.
    pub(super) fn take(&mut self, who: &Who) -> Result<(), WaitsFor> {
        let taken = self.pool(who).take(&who.host);
        taken.map_err(|what| if who.large { WaitsFor::LargePlace } else { what })
    }

    /// Gives back a place that was taken.
    pub(super) fn give_back(&mut self, who: &Who) {
        self.pool(who).give_back(&who.host);
    }

    /// What is taken now.
    pub(super) fn taken(&self) -> Taken {
        Taken { changes: self.changes.taken, large: self.large.taken }
    }

    /// What the host has that fetches the most changes.
    pub(super) fn taken_by_the_busiest_host(&self) -> usize {
        self.changes.hosts.values().copied().max().unwrap_or(0)
    }

    fn pool(&mut self, who: &Who) -> &mut Pool {
        if who.large { &mut self.large } else { &mut self.changes }
    }
}

/// A number of places.
#[derive(Debug)]
struct Pool {
    all: usize,
    of_a_host: usize,
    taken: usize,
    hosts: HashMap<Arc<str>, usize>,
}

impl Pool {
    fn new(all: usize, of_a_host: usize) -> Self {
        Self { all, of_a_host, taken: 0, hosts: HashMap::new() }
    }

    fn take(&mut self, host: &Arc<str>) -> Result<(), WaitsFor> {
        let of_the_host = self.hosts.get(host).copied().unwrap_or(0);
        let free = self.all - self.taken;
        if free == 0 {
            return Err(WaitsFor::Place);
        }
        let share = of_the_host == 0 || of_the_host < free;
        if !share || of_the_host >= self.of_a_host {
            return Err(WaitsFor::HostPlace);
        }
        self.taken += 1;
        self.hosts.insert(host.clone(), of_the_host + 1);
        Ok(())
    }

    fn give_back(&mut self, host: &Arc<str>) {
        let Some(of_the_host) = self.hosts.get_mut(host) else { return };
        self.taken -= 1;
        *of_the_host -= 1;
        if *of_the_host == 0 {
            self.hosts.remove(host);
        }
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
    fn large_fetches_have_places_of_their_own() {
        let mut shares = Shares::new(8, 4);
        assert_eq!(all_it_can(&mut shares, &who("a", true)), 2);
        assert_eq!(shares.take(&who("a", true)), Err(WaitsFor::LargePlace));
        assert_eq!(all_it_can(&mut shares, &who("b", true)), 1, "the last is for who has none");
        assert_eq!(all_it_can(&mut shares, &who("c", true)), 1);
        assert_eq!(shares.take(&who("d", true)), Err(WaitsFor::LargePlace));
        assert_eq!(all_it_can(&mut shares, &who("a", false)), 4);
        assert_eq!(shares.taken(), Taken { changes: 4, large: 4 });
    }

    #[test]
    fn however_few_places_there_are_a_first_clone_holds_up_no_change() {
        for (all, of_a_host) in [(1, 1), (2, 1), (2, 2), (8, 1)] {
            let mut shares = Shares::new(all, of_a_host);
            assert!(all_it_can(&mut shares, &who("a", true)) > 0);
            assert_eq!(shares.take(&who("a", false)), Ok(()), "{all} {of_a_host}");
        }
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
                    let (all, of_a_host) = if large { (half(all), half(of_a_host)) } else { (all, of_a_host) };
                    let has = held.iter().filter(|one| **one == who).count();
                    let full = held.iter().filter(|one| one.large == large).count() == all;
                    match shares.take(&who) {
                        Ok(()) => {
                            prop_assert!(!full && has < of_a_host);
                            held.push(who);
                        }
                        Err(what) => {
                            prop_assert!(full || has > 0);
                            prop_assert_eq!(what == WaitsFor::LargePlace, large);
                        }
                    }
                } else if let Some(at) = held.iter().position(|one| *one == who) {
                    shares.give_back(&held.swap_remove(at));
                }
                let large = held.iter().filter(|one| one.large).count();
                prop_assert_eq!(shares.taken(), Taken { changes: held.len() - large, large });
            }
        }
    }
}
