//! The members of pools. Listings only show their IDs.
//!
//! A member's address and port never change. So a pool whose member IDs are known has the known members. Only the
//! weight, backup and monitor port may differ, so they are read before a whole list is sent and by the slow resync.
//! Octavia does not return the IDs of added members: if a listing has as many new IDs as members were added, they are
//! theirs. A listing that is older than the last change of the pool is ignored.

use std::{
    collections::{BTreeSet, HashMap},
    sync::Arc,
};

use parking_lot::Mutex;
use tokio::time::Instant;

use crate::load_balancer::{
    member::{Hosts, Member},
    member_id::MemberId,
    responses::{self, Pool},
};

/// The known members of pools.
#[derive(Debug, Default)]
pub(crate) struct Members(Mutex<Store>);

#[derive(Debug, Default)]
struct Store {
    pools: HashMap<String, KnownMembers>,
    /// The pools of each load balancer.
    by_balancer: HashMap<String, Vec<String>>,
    hosts: Hosts,
}

impl Store {
    fn keep(&mut self, members: impl IntoIterator<Item = Member>) -> Arc<[Member]> {
        let members = members.into_iter();
        members.map(|member| self.hosts.share(member)).collect()
    }
}

#[derive(Debug, Default)]
struct KnownMembers {
    /// Listed members have an ID; members that were only sent have none.
    members: Arc<[Member]>,
    /// The listed IDs of the members without an ID, in no order.
    unnamed: BTreeSet<MemberId>,
    /// When the pool was last read or changed.
    since: Option<Instant>,
}

impl KnownMembers {
    fn since(since: Instant, members: Arc<[Member]>) -> Self {
        Self {
            members,
            since: Some(since),
            unnamed: BTreeSet::new(),
        }
    }

    fn ids(&self) -> BTreeSet<&MemberId> {
        let ids = self.members.iter().map(|member| &member.id);
        ids.filter(|id| !id.is_empty()).chain(&self.unnamed).collect()
    }

    /// The number of members whose IDs are not known.
    fn sent(&self) -> usize {
        self.members.iter().filter(|member| member.id.is_empty()).count()
    }

    /// Adopts the IDs of a listing. False: they cannot belong to the known members.
    fn follow(&mut self, listed: &BTreeSet<&MemberId>) -> bool {
        // Another client may have deleted one of the members whose IDs are not known.
        if !self.unnamed.iter().all(|id| listed.contains(id)) {
            return false;
        }
        let known = self.ids();
        let new: Vec<MemberId> =
            listed.iter().filter(|id| !known.contains(*id)).map(|id| (*id).clone()).collect();
        if self.unnamed.len() + new.len() != self.sent() {
            return false;
        }
        self.retain(|member| member.id.is_empty() || listed.contains(&member.id));
        self.unnamed.extend(new);
        true
    }

    fn retain(&mut self, stays: impl Fn(&Member) -> bool) {
        if !self.members.iter().all(&stays) {
            let members = self.members.iter();
            self.members = members.filter(|member| stays(member)).cloned().collect();
        }
    }
}

impl Members {
    /// The members of a listed pool, if they are known. `as_of`: when the pool had the listed IDs; `None` for now.
    pub(super) fn of(&self, pool: &Pool, as_of: Option<Instant>) -> Option<Arc<[Member]>> {
        let listed: BTreeSet<&MemberId> = pool.members.iter().map(|member| &member.id).collect();
        let mut store = self.0.lock();
        if listed.is_empty() && !store.pools.contains_key(&pool.id) {
            let nothing = KnownMembers {
                since: as_of,
                ..KnownMembers::default()
            };
            store.pools.insert(pool.id.clone(), nothing);
            return Some(Arc::default());
        }
        let known = store.pools.get_mut(&pool.id)?;
        let is_older = as_of.is_some_and(|as_of| known.since.is_some_and(|since| as_of < since));
        if is_older || known.follow(&listed) {
            Some(Arc::clone(&known.members))
        } else {
            store.pools.remove(&pool.id);
            None
        }
    }

    /// Stores the members of the pool from a read that began at `began`.
    pub(crate) fn read(&self, pool: &str, members: Vec<responses::Member>, began: Instant) -> Arc<[Member]> {
        let mut store = self.0.lock();
        let members = store.keep(members.into_iter().map(Member::from));
        let known = KnownMembers::since(began, Arc::clone(&members));
        store.pools.insert(pool.to_owned(), known);
        members
    }

    /// Stores the members of the pool after it was created or the whole list was sent. Existing members keep their IDs.
    /// False: their IDs are ambiguous.
    pub(crate) fn replaced(&self, pool: &str, members: Vec<Member>) -> bool {
        let mut store = self.0.lock();
        let before = store.pools.remove(pool).unwrap_or_default();
        let ids: HashMap<_, _> =
            before.members.iter().map(|member| (member.identity(), &member.id)).collect();
        let members = members.into_iter().map(|member| {
            let same = ids.get(&member.identity());
            let id = same.map(|id| (*id).clone()).unwrap_or_default();
            Member { id, ..member }
        });
        let kept = store.keep(members);
        // The IDs of the remaining members are not known, so the members have to be read.
        let ambiguous = !before.unnamed.is_empty();
        if !ambiguous {
            let known = KnownMembers::since(Instant::now(), kept);
            store.pools.insert(pool.to_owned(), known);
        }
        !ambiguous
    }

    /// Adds members to those of the pool. False: its other members are not known.
    pub(crate) fn added(&self, pool: &str, members: impl IntoIterator<Item = Member>) -> bool {
        let mut store = self.0.lock();
        let added = store.keep(members);
        let Some(known) = store.pools.get_mut(pool) else {
            return false;
        };
        known.since = Some(Instant::now());
        let mut members = known.members.to_vec();
        let places: HashMap<_, _> = known.members.iter().map(Member::identity).zip(0..).collect();
        for member in added.iter() {
            let place = places.get(&member.identity());
            match place.and_then(|place| members.get_mut(*place)) {
                Some(before) => {
                    *before = Member {
                        id: std::mem::take(&mut before.id),
                        ..member.clone()
                    };
                }
                None => members.push(Member {
                    id: MemberId::default(),
                    ..member.clone()
                }),
            }
        }
        known.members = members.into();
        true
    }

    /// Removes the member with this ID from the pool. False: its other members are not known.
    pub(crate) fn removed(&self, pool: &str, id: &MemberId) -> bool {
        let mut store = self.0.lock();
        let Some(known) = store.pools.get_mut(pool) else {
            return false;
        };
        let before = known.members.len();
        known.retain(|member| member.id != *id);
        known.since = Some(Instant::now());
        if known.members.len() == before && known.sent() > 0 {
            // It may be one of those whose IDs are not known.
            store.pools.remove(pool);
            return false;
        }
        true
    }

    /// Stores which pools a load balancer has.
    pub(super) fn set_pools(&self, balancer: &str, pools: Vec<String>) {
        self.0.lock().by_balancer.insert(balancer.to_owned(), pools);
    }

    /// Drops the members of all pools of a deleted load balancer.
    pub(crate) fn forget_all(&self, balancer: &str) {
        let mut store = self.0.lock();
        let pools = store.by_balancer.remove(balancer).unwrap_or_default();
        pools.iter().for_each(|pool| drop(store.pools.remove(pool)));
    }

    /// Drops the members of a pool after a write without an answer, or after its deletion.
    pub(crate) fn forget(&self, pool: &str) {
        self.0.lock().pools.remove(pool);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::load_balancer::responses::Ref;

    fn record(id: &str, address: &str) -> responses::Member {
        responses::Member {
            id: id.into(),
            address: address.into(),
            protocol_port: 30000,
            ..responses::Member::default()
        }
    }

    fn member(id: &str, address: &str) -> Member {
        record(id, address).into()
    }

    fn listed(ids: &[&str]) -> Pool {
        Pool {
            id: "p".into(),
            members: ids.iter().map(|id| Ref { id: (*id).into() }).collect(),
            ..Pool::default()
        }
    }

    /// `id@address` of the known members; `None` if they have to be read.
    fn known(members: &Members, ids: &[&str]) -> Option<Vec<String>> {
        let known = members.of(&listed(ids), None)?;
        Some(known.iter().map(|member| format!("{}@{}", member.id, member.host.address)).collect())
    }

    fn two() -> Members {
        let members = Members::default();
        let both = vec![record("a", "10.0.0.1"), record("b", "10.0.0.2")];
        members.read("p", both, Instant::now());
        members
    }

    #[test]
    fn the_same_ids_are_the_same_members() {
        let members = two();
        assert_eq!(known(&members, &["b", "a"]).unwrap(), ["a@10.0.0.1", "b@10.0.0.2"]);
        assert!(known(&members, &["a", "b", "c"]).is_none(), "somebody added one");
        assert!(known(&members, &["a", "b"]).is_none(), "after which nothing is known");
    }

    #[test]
    fn an_unknown_pool_is_read_unless_it_is_empty() {
        let members = Members::default();
        assert!(known(&members, &["a"]).is_none());
        assert_eq!(known(&members, &[]).unwrap(), [""; 0]);
    }

    #[test]
    fn a_load_balancer_deleted_by_another_client_is_removed() {
        assert_eq!(known(&two(), &["b"]).unwrap(), ["b@10.0.0.2"]);
        let members = two();
        assert_eq!(known(&members, &[]).unwrap(), [""; 0]);
    }

    #[test]
    fn as_many_new_ids_as_were_added_are_theirs() {
        let members = two();
        members.added("p", [member("", "10.0.0.3")]);
        assert!(known(&members, &["a", "b", "c", "d"]).is_none(), "one more than we added");
        let members = two();
        members.added("p", [member("", "10.0.0.3")]);
        let expected = ["a@10.0.0.1", "b@10.0.0.2", "@10.0.0.3"];
        assert_eq!(known(&members, &["a", "b", "c"]).unwrap(), expected);
        assert_eq!(known(&members, &["a", "b", "c"]).unwrap(), expected);
        assert!(known(&members, &["a", "b", "d"]).is_none(), "ours was replaced");
    }

    #[test]
    fn an_added_member_that_is_not_listed_is_not_cached() {
        let members = two();
        members.added("p", [member("", "10.0.0.3")]);
        assert!(known(&members, &["a", "b"]).is_none());
    }

    #[test]
    fn adding_an_existing_member_updates_it() {
        let members = two();
        let heavier = Member {
            weight: Some(7),
            ..member("", "10.0.0.2")
        };
        members.added("p", [heavier]);
        let now = members.of(&listed(&["a", "b"]), None).unwrap();
        assert_eq!(now.len(), 2);
        assert_eq!(now.iter().map(|member| member.weight).max().unwrap(), Some(7));
    }

    #[test]
    fn a_whole_list_keeps_the_ids_of_those_that_stay() {
        let members = two();
        members.replaced("p", vec![member("", "10.0.0.2"), member("", "10.0.0.9")]);
        assert_eq!(known(&members, &["b", "x"]).unwrap(), ["b@10.0.0.2", "@10.0.0.9"]);
        // After another change, the IDs are ambiguous.
        members.replaced("p", vec![member("", "10.0.0.9")]);
        assert!(known(&members, &["x"]).is_none());
    }

    #[test]
    fn a_load_balancer_that_we_deleted_is_removed() {
        let members = two();
        members.removed("p", &"a".into());
        assert_eq!(known(&members, &["b"]).unwrap(), ["b@10.0.0.2"]);
        members.forget("p");
        assert!(known(&members, &["b"]).is_none());
    }

    #[test]
    fn members_of_a_deleted_load_balancer_are_dropped() {
        let members = two();
        members.set_pools("lb", vec!["p".to_owned()]);
        members.forget_all("other");
        assert!(known(&members, &["a", "b"]).is_some());
        members.forget_all("lb");
        assert!(known(&members, &["a", "b"]).is_none());
    }

    #[test]
    fn a_listing_from_before_our_change_is_ignored() {
        let members = two();
        let before = Instant::now();
        members.added("p", [member("", "10.0.0.3")]);
        let old = members.of(&listed(&["a", "b"]), Some(before)).unwrap();
        assert_eq!(old.len(), 3);
        let later = Some(Instant::now() + std::time::Duration::from_secs(1));
        assert!(members.of(&listed(&["a", "b"]), later).is_none());
        let members = two();
        members.removed("p", &"a".into());
        let old = members.of(&listed(&["a", "b"]), Some(before)).unwrap();
        assert_eq!(old.len(), 1);
    }
}
