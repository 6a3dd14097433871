//! The answer to the creation of a load balancer with everything below it.

use serde::{Deserialize, Deserializer, de};
use serde_json::value::RawValue;

use super::below::Below;
use crate::load_balancer::responses::{Listener, LoadBalancer, Member, Monitor, Pool, Ref};

/// A new load balancer and the objects below it, as listings will show them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Graph {
    pub(super) balancer: LoadBalancer,
    /// `None`: the answer does not contain enough of them.
    pub(super) children: Option<NewChildren>,
}

/// The objects below a new load balancer.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct NewChildren {
    pub(super) listeners: Vec<Listener>,
    /// The pools with their members.
    pub(super) pools: Vec<(Pool, Vec<Member>)>,
    pub(super) monitors: Vec<Monitor>,
}

#[derive(Deserialize)]
struct BalancerChildren<'a> {
    listeners: Vec<Listener>,
    #[serde(borrow)]
    pools: Vec<&'a RawValue>,
}

#[derive(Deserialize)]
struct PoolChildren {
    members: Vec<Member>,
    healthmonitor: Option<Monitor>,
}

/// Parses the answer layer by layer. With a thousand nodes it is the largest answer, too large for a parsed tree of all
/// of it.
impl<'de> Deserialize<'de> for Graph {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        #[derive(Deserialize)]
        struct GraphDocument {
            loadbalancer: Box<RawValue>,
        }
        let GraphDocument { loadbalancer } = GraphDocument::deserialize(deserializer)?;
        let written = loadbalancer.get();
        let balancer: LoadBalancer = serde_json::from_str(written).map_err(de::Error::custom)?;
        let children = children(&balancer, written);
        Ok(Self { balancer, children })
    }
}

fn children(balancer: &LoadBalancer, written: &str) -> Option<NewChildren> {
    let owner = vec![Ref {
        id: balancer.id.clone(),
    }];
    let mut below: BalancerChildren<'_> = serde_json::from_str(written).ok()?;
    for listener in &mut below.listeners {
        // Octavia may return only its ID.
        if listener.protocol.is_empty() {
            return None;
        }
        listener.loadbalancers.clone_from(&owner);
        listener.settle();
    }
    let (mut pools, mut monitors) = (Vec::new(), Vec::new());
    for written in below.pools {
        let mut pool: Pool = serde_json::from_str(written.get()).ok()?;
        let PoolChildren {
            members,
            healthmonitor,
        } = serde_json::from_str(written.get()).ok()?;
        if pool.protocol.is_empty() || members.iter().any(|member| member.address.is_empty()) {
            return None;
        }
        pool.loadbalancers.clone_from(&owner);
        pool.settle();
        if let Some(mut monitor) = healthmonitor {
            monitor.pools = vec![Ref { id: pool.id.clone() }];
            monitor.settle();
            pool.healthmonitor_id.clone_from(&monitor.id);
            monitors.push(monitor);
        }
        pools.push((pool, members));
    }
    Some(NewChildren {
        listeners: below.listeners,
        pools,
        monitors,
    })
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use serde_json::{Value, json};

    use super::*;

    #[test]
    fn children_are_used_only_if_the_answer_is_complete() {
        let read = |below: Value| -> Graph {
            let mut balancer = json!({"id": "b", "provisioning_status": "PENDING_CREATE"});
            for (key, value) in below.as_object().unwrap() {
                balancer[key] = value.clone();
            }
            serde_json::from_str(&json!({"loadbalancer": balancer}).to_string()).unwrap()
        };
        let full = read(json!({
            "listeners": [{"id": "l", "protocol": "TCP", "protocol_port": 80, "default_pool_id": "p"}],
            "pools": [{"id": "p", "protocol": "TCP", "listeners": [{"id": "l"}],
                "members": [{"id": "m", "address": "10.0.0.1", "protocol_port": 30000}],
                "healthmonitor": {"id": "h", "type": "TCP"}}]}));
        assert!(full.balancer.provisioning_status.is_pending());
        assert_eq!(full.balancer.listeners, [Ref { id: "l".into() }]);
        let children = full.children.unwrap();
        let listener = &children.listeners[0];
        assert_eq!((listener.loadbalancers[0].id.as_str(), listener.default_pool_id.as_str()), ("b", "p"));
        let (pool, members) = &children.pools[0];
        assert_eq!((pool.healthmonitor_id.as_str(), pool.members[0].id.to_string()), ("h", "m".to_owned()));
        assert_eq!((members[0].address.as_str(), members[0].protocol_port), ("10.0.0.1", 30000));
        assert_eq!(children.monitors[0].pools, [Ref { id: "p".into() }]);

        assert_eq!(read(json!({"listeners": [], "pools": []})).children, Some(NewChildren::default()));
        for less in [
            json!({}),
            json!({"listeners": [{"id": "l"}], "pools": []}),
            json!({"listeners": [], "pools": [{"id": "p", "protocol": "TCP", "members": [{"id": "m"}]}]}),
            json!({"listeners": [], "pools": [{"id": "p"}]}),
        ] {
            assert_eq!(read(less.clone()).children, None, "{less}");
        }
    }
}
