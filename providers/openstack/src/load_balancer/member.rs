//! Members of pools, as they are kept.
//!
//! With a thousand nodes behind a thousand ports this is a million members: each is as small as it can be, what is the
//! same in all pools is there once, and lists are shared, not copied.

use std::{
    collections::{HashMap, HashSet},
    sync::Arc,
};

use super::{
    bodies::MemberBody,
    member_id::MemberId,
    responses::{self, Provisioning},
};

/// What is the same for all members that are one node.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub(crate) struct Host {
    pub(crate) name: String,
    pub(crate) address: String,
    pub(crate) subnet_id: String,
    pub(crate) monitor_address: Option<String>,
}

/// A member of a pool.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Member {
    /// Empty for one that we made and have not seen since.
    pub(crate) id: MemberId,
    pub(crate) host: Arc<Host>,
    pub(crate) weight: Option<i64>,
    pub(crate) protocol_port: u16,
    pub(crate) monitor_port: Option<u16>,
    pub(crate) backup: Option<bool>,
    pub(crate) admin_state_up: Option<bool>,
    pub(crate) provisioning_status: Provisioning,
}

/// Address and port of a member.
pub(crate) type Identity<'a> = (&'a str, u16);

impl Member {
    /// What tells it from the other members of its pool; never changes.
    pub(crate) fn identity(&self) -> Identity<'_> {
        (&self.host.address, self.protocol_port)
    }

    /// One that is sent like this, as it will be read but for its id.
    pub(crate) fn expected(body: &MemberBody) -> Self {
        Self {
            id: MemberId::default(),
            host: Arc::new(Host {
                name: body.name.clone(),
                address: body.address.clone(),
                subnet_id: body.subnet_id.clone(),
                monitor_address: body.monitor_address.clone(),
            }),
            protocol_port: body.protocol_port,
            monitor_port: body.monitor_port,
            // Octavia's defaults.
            weight: Some(body.weight.unwrap_or(1)),
            backup: Some(body.backup.unwrap_or(false)),
            admin_state_up: Some(body.admin_state_up.unwrap_or(true)),
            provisioning_status: Provisioning::Active,
        }
    }
}

impl From<responses::Member> for Member {
    fn from(record: responses::Member) -> Self {
        Self {
            id: MemberId::from(record.id.as_str()),
            host: Arc::new(Host {
                name: record.name,
                address: record.address,
                subnet_id: record.subnet_id,
                monitor_address: record.monitor_address,
            }),
            weight: record.weight,
            protocol_port: record.protocol_port,
            monitor_port: record.monitor_port,
            backup: record.backup,
            admin_state_up: record.admin_state_up,
            provisioning_status: record.provisioning_status,
        }
    }
}

/// Members by what tells them apart. A pool may have one for each of thousands of nodes, so nobody looks through all of
/// them for each of them.
pub(crate) fn by_identity(members: &[Member]) -> HashMap<Identity<'_>, &Member> {
    members.iter().map(|member| (member.identity(), member)).collect()
}

/// The hosts of all members that are kept, each once.
#[derive(Debug, Default)]
pub(crate) struct Hosts {
    all: HashSet<Arc<Host>>,
    /// How many there may be before those that no member has any more are dropped.
    room: usize,
}

impl Hosts {
    /// The member with the host that all others have that are the same node.
    pub(crate) fn share(&mut self, member: Member) -> Member {
        let host = match self.all.get(&member.host) {
            Some(host) => Arc::clone(host),
            None => self.add(&member.host),
        };
        Member { host, ..member }
    }

    fn add(&mut self, host: &Arc<Host>) -> Arc<Host> {
        if self.all.len() >= self.room {
            self.all.retain(|host| Arc::strong_count(host) > 1);
            self.room = (2 * self.all.len()).max(64);
        }
        self.all.insert(Arc::clone(host));
        Arc::clone(host)
    }

    #[cfg(test)]
    pub(crate) fn len(&self) -> usize {
        self.all.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn member(node: usize) -> Member {
        Member::from(responses::Member {
            address: format!("10.0.{}.{}", node / 250, node % 250),
            ..responses::Member::default()
        })
    }

    #[test]
    fn a_member_is_small() {
        assert!(size_of::<Member>() <= 64, "{}", size_of::<Member>());
    }

    #[test]
    fn hosts_are_shared_and_dropped_with_their_last_member() {
        let mut hosts = Hosts::default();
        for node in 0..1000 {
            let (one, other) = (hosts.share(member(node)), hosts.share(member(node)));
            assert!(Arc::ptr_eq(&one.host, &other.host));
        }
        assert!(hosts.len() <= 64, "{}", hosts.len());
        let kept: Vec<_> = (0..1000).map(|node| hosts.share(member(node))).collect();
        assert!(hosts.len() >= kept.len());
    }
}
