//! Members of pools, as they are stored.
//!
//! A thousand nodes and a thousand ports make a million members. So each one is small, data that all pools share is
//! stored once, and lists are shared, not copied.

use std::{
    collections::{HashMap, HashSet},
    fmt,
    sync::Arc,
};

use serde::{Serialize, Serializer};

use super::{
    member_id::MemberId,
    responses::{self, Provisioning},
};

/// The data that all members for one node share. Serialized in Octavia's format.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, Serialize)]
pub(crate) struct Host {
    #[serde(skip_serializing_if = "String::is_empty")]
    pub(crate) name: String,
    pub(crate) address: String,
    #[serde(skip_serializing_if = "String::is_empty")]
    pub(crate) subnet_id: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) monitor_address: Option<String>,
    /// Names of further nodes with this address. An existing member for one of them stays. Desired members only.
    #[serde(skip)]
    pub(crate) other_names: Vec<String>,
}

/// A member of a pool. Octavia sets fields that a list omits to their defaults, also for existing members.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub(crate) struct Member {
    /// Empty for a member that was created and has not been listed since.
    #[serde(skip)]
    pub(crate) id: MemberId,
    #[serde(flatten, serialize_with = "shared")]
    pub(crate) host: Arc<Host>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) weight: Option<i64>,
    pub(crate) protocol_port: u16,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) monitor_port: Option<u16>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) backup: Option<bool>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) admin_state_up: Option<bool>,
    #[serde(skip)]
    pub(crate) provisioning_status: Provisioning,
}

fn shared<S: Serializer>(host: &Arc<Host>, serializer: S) -> Result<S::Ok, S::Error> {
    Host::serialize(host, serializer)
}

/// Address and port of a member.
pub(crate) type MemberIdentity<'a> = (&'a str, u16);

impl fmt::Display for Member {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.host.address, self.protocol_port)
    }
}

impl Member {
    /// Identifies the member in its pool; never changes.
    pub(crate) fn identity(&self) -> MemberIdentity<'_> {
        (&self.host.address, self.protocol_port)
    }

    /// Whether its health check is the desired one, and its last change has not failed: that is sent again.
    pub(crate) fn is_checked_as(&self, desired: &Self) -> bool {
        self.monitor_port == desired.monitor_port && self.provisioning_status != Provisioning::Error
    }

    /// The member as Octavia stores it after it was sent, without its ID.
    pub(crate) fn expected(&self) -> Self {
        let mut host = Arc::clone(&self.host);
        if !host.other_names.is_empty() {
            Arc::make_mut(&mut host).other_names.clear();
        }
        Self {
            id: MemberId::default(),
            host,
            // Octavia's defaults.
            weight: Some(self.weight.unwrap_or(1)),
            backup: Some(self.backup.unwrap_or(false)),
            admin_state_up: Some(self.admin_state_up.unwrap_or(true)),
            provisioning_status: Provisioning::Active,
            ..*self
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
                ..Host::default()
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

/// Indexes members by identity. A pool may have thousands of members.
pub(crate) fn by_identity(members: &[Member]) -> HashMap<MemberIdentity<'_>, &Member> {
    members.iter().map(|member| (member.identity(), member)).collect()
}

/// The distinct hosts of all stored members.
#[derive(Debug, Default)]
pub(crate) struct Hosts {
    all: HashSet<Arc<Host>>,
    /// When there are more, unused hosts are dropped.
    room: usize,
}

impl Hosts {
    /// Returns the member with the shared host of its node.
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
