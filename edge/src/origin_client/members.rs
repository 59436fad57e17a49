//! Who belongs to which cluster, and who is asked and followed. Pure.
//!
//! An origin that names no members is a cluster of its own. Members of a cluster answer for each other; different clusters
//! partition the services among them.

use weir_cache::OriginId;
use weir_protocol::members::Member;

/// The known origins, by their ids.
#[derive(Debug, Default)]
pub(super) struct MemberTable(Vec<Row>);

#[derive(Debug)]
struct Row {
    /// The first origin that was known of its cluster.
    cluster: OriginId,
    is_configured: bool,
    /// The last list of its cluster names it.
    member: Option<Member>,
    is_followed: bool,
    /// The last list that it sent names these.
    named: Vec<OriginId>,
}

impl MemberTable {
    pub(super) fn add(&mut self, is_configured: bool) {
        self.0.push(Row { cluster: self.0.len(), is_configured, member: None, is_followed: false, named: Vec::new() });
    }

    /// An origin that has left the cluster of `source`, and whose id a new member of it may have. `is_taken`: ids that the
    /// list which is being applied needs.
    pub(super) fn vacant(&self, source: OriginId, is_taken: impl Fn(OriginId) -> bool) -> Option<OriginId> {
        let is_vacant = |id: &OriginId| {
            let row = &self.0[*id];
            let has_left = !row.is_configured && !row.is_followed && row.member.is_none();
            has_left && *id != source && self.share_a_cluster(source, *id) && !is_taken(*id)
        };
        (0..self.0.len()).find(is_vacant)
    }

    /// The id is that of another origin of the same cluster from now on.
    pub(super) fn clear(&mut self, id: OriginId) {
        let cluster = self.0[id].cluster;
        self.0[id] = Row { cluster, is_configured: false, member: None, is_followed: false, named: Vec::new() };
        // These lists named the other one.
        self.0.iter_mut().for_each(|row| row.named.retain(|named| *named != id));
    }

    /// Applies a list that `source` sent: all members with their ids. One that was known apart from its cluster joins only
    /// once its own list names `source` too: a list alone gives no power over the services of others.
    pub(super) fn apply(&mut self, source: OriginId, list: &[(OriginId, Member)]) {
        // Without members the source has no session, and knows of no other's.
        if list.is_empty() {
            return;
        }
        self.0[source].named = list.iter().map(|(id, _)| *id).collect();
        let joins = |id: &OriginId| self.is_new(*id) || self.0[*id].named.contains(&source);
        let joining = list.iter().map(|(id, _)| *id).filter(joins).map(|id| self.0[id].cluster);
        let merged: Vec<_> = joining.chain([self.0[source].cluster]).collect();
        let cluster = merged.iter().copied().min().unwrap_or(source);
        for (id, row) in self.0.iter_mut().enumerate().filter(|(_, row)| merged.contains(&row.cluster)) {
            row.cluster = cluster;
            row.member = list.iter().find(|(listed, _)| *listed == id).map(|(_, member)| member.clone());
        }
    }

    /// Whether it is known only because the list that is being applied names it.
    fn is_new(&self, id: OriginId) -> bool {
        let row = &self.0[id];
        let is_alone = self.0.iter().filter(|other| other.cluster == row.cluster).count() == 1;
        !row.is_configured && is_alone && row.member.is_none() && row.named.is_empty()
    }

    /// The member of this id as the last list of its cluster describes it.
    pub(super) fn member(&self, id: OriginId) -> Option<&Member> {
        self.0.get(id)?.member.as_ref()
    }

    pub(super) fn share_a_cluster(&self, one: OriginId, other: OriginId) -> bool {
        one == other || self.0[one].cluster == self.0[other].cluster
    }

    /// Whether a list names an origin that has not named its sender yet. They are one cluster once it does: members that
    /// have just started do not know of each other.
    pub(super) fn is_unsettled(&self) -> bool {
        let named = |(id, row): (OriginId, &Row)| row.named.iter().any(|other| !self.share_a_cluster(id, *other));
        self.0.iter().enumerate().any(named)
    }

    /// Whether there is one cluster only.
    pub(super) fn is_one_cluster(&self) -> bool {
        let mut in_use = (0..self.0.len()).filter(|id| self.is_in_use(*id));
        let first = in_use.next();
        first.is_none_or(|first| in_use.all(|id| self.share_a_cluster(first, id)))
    }

    /// Whether the stream of an origin is to be followed: it is listed, or its cluster has no list.
    pub(super) fn is_to_be_followed(&self, id: OriginId) -> bool {
        let row = &self.0[id];
        let is_listed = |other: &Row| other.cluster == row.cluster && other.member.is_some();
        row.member.is_some() || (row.is_configured && !self.0.iter().any(is_listed))
    }

    /// Marks an origin as followed or not. Returns what it was.
    pub(super) fn set_followed(&mut self, id: OriginId, is_followed: bool) -> bool {
        std::mem::replace(&mut self.0[id].is_followed, is_followed)
    }

    pub(super) fn is_followed(&self, id: OriginId) -> bool {
        self.0[id].is_followed
    }

    pub(super) fn followed(&self) -> impl Iterator<Item = OriginId> {
        (0..self.0.len()).filter(|id| self.is_followed(*id))
    }

    /// Whether an origin may be sent requests: it is followed, or is configured and may help when no other does.
    pub(super) fn is_in_use(&self, id: OriginId) -> bool {
        self.0[id].is_followed || self.0[id].is_configured
    }

    /// The origins to ask, one after the other: the owner, the members of its cluster, the others.
    pub(super) fn order(&self, owner: Option<OriginId>) -> Vec<OriginId> {
        let (first, count) = (owner.unwrap_or_default(), self.0.len());
        // Each owner has another successor, so that the requests for one that is down are spread.
        let mut order: Vec<_> = (first..count).chain(0..first.min(count)).filter(|id| self.is_in_use(*id)).collect();
        let is_elsewhere = |id| owner.is_some_and(|owner| !self.share_a_cluster(owner, id));
        order.sort_by_key(|id| (is_elsewhere(*id), !self.is_followed(*id)));
        order
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use weir_protocol::members::MemberState;

    fn table(configured: usize, learnt: usize) -> MemberTable {
        let mut table = MemberTable::default();
        (0..configured + learnt).for_each(|id| table.add(id < configured));
        table
    }

    fn list(ids: &[OriginId]) -> Vec<(OriginId, Member)> {
        let member = |id: &OriginId| Member {
            name: format!("o{id}").parse().unwrap(),
            url: format!("https://o{id}:1"),
            zone: None,
            state: MemberState::Active,
        };
        ids.iter().map(|id| (*id, member(id))).collect()
    }

    fn follow(table: &mut MemberTable) -> Vec<OriginId> {
        for id in 0..table.0.len() {
            let is_followed = table.is_to_be_followed(id);
            table.set_followed(id, is_followed);
        }
        table.followed().collect()
    }

    #[test]
    fn origins_without_lists_are_clusters_of_their_own() {
        let mut table = table(3, 0);
        assert_eq!(follow(&mut table), [0, 1, 2]);
        assert!(!table.is_one_cluster() && !table.share_a_cluster(0, 1) && table.share_a_cluster(1, 1));
        assert_eq!(table.order(Some(1)), [1, 2, 0]);
        assert_eq!(table.order(None), [0, 1, 2]);
        table.apply(2, &[]);
        assert!(table.is_to_be_followed(2), "it has no session");
    }

    #[test]
    fn a_list_makes_a_cluster_and_a_name_for_several_members_is_the_last_resort() {
        let mut table = table(1, 3);
        table.apply(0, &list(&[1, 2, 3]));
        assert_eq!(follow(&mut table), [1, 2, 3]);
        assert!(table.is_one_cluster());
        assert_eq!(table.order(Some(2)), [2, 3, 1, 0]);
        // One leaves, and comes back.
        table.apply(3, &list(&[1, 3]));
        assert!(!table.is_to_be_followed(2));
        assert_eq!(table.order(Some(2)), [2, 3, 1, 0], "its stream is still open");
        assert_eq!(follow(&mut table), [1, 3]);
        assert_eq!(table.order(Some(2)), [3, 1, 0]);
        table.apply(1, &list(&[1, 2, 3]));
        assert_eq!(follow(&mut table), [1, 2, 3]);
    }

    #[test]
    fn only_a_member_of_the_same_cluster_gets_the_id_of_one_that_left() {
        let mut table = table(2, 2);
        table.apply(0, &list(&[0, 2, 3]));
        assert_eq!(follow(&mut table), [0, 1, 2, 3]);
        let vacant = |table: &MemberTable, source| table.vacant(source, |_| false);
        assert_eq!(vacant(&table, 0), None);
        table.apply(0, &list(&[0, 3]));
        assert_eq!(vacant(&table, 0), None, "its stream is still open");
        assert_eq!(follow(&mut table), [0, 1, 3]);
        assert_eq!((vacant(&table, 0), vacant(&table, 3), vacant(&table, 1)), (Some(2), Some(2), None));
        assert_eq!(table.vacant(0, |id| id == 2), None, "the list has given it away");
        table.clear(2);
        table.apply(0, &list(&[0, 2, 3]));
        assert_eq!(follow(&mut table), [0, 1, 2, 3]);
        assert!(table.share_a_cluster(0, 2) && !table.share_a_cluster(1, 2));
    }

    #[test]
    fn lists_merge_clusters_and_leave_others_alone() {
        let mut table = table(3, 1);
        table.apply(1, &list(&[1, 3]));
        assert_eq!(follow(&mut table), [0, 1, 2, 3]);
        assert!(table.share_a_cluster(1, 3) && !table.share_a_cluster(0, 1) && !table.is_one_cluster());
        assert_eq!(table.order(Some(3)), [3, 1, 0, 2]);
        assert!(!table.is_unsettled());
        table.apply(0, &list(&[0, 1, 3]));
        assert!(table.is_unsettled());
        assert!(!table.share_a_cluster(0, 1) && !table.share_a_cluster(0, 3), "nobody there has named it");
        table.apply(1, &list(&[0, 1]));
        assert!(table.share_a_cluster(0, 3) && !table.is_unsettled(), "both name each other");
        assert_eq!(follow(&mut table), [0, 1, 2]);
    }
}
