//! The answer to the creation of a load balancer: it and everything below it.

use serde::{Deserialize, de::DeserializeOwned};
use serde_json::Value;

use super::Below;
use crate::load_balancer::records::{Listener, LoadBalancer, Member, Monitor, Pool, Ref};

/// A new load balancer, and what is below it as listings will show it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Graph {
    pub(super) balancer: LoadBalancer,
    /// `None`: the answer does not say enough of them.
    pub(super) children: Option<NewChildren>,
}

/// What is below a new load balancer.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct NewChildren {
    pub(super) listeners: Vec<Listener>,
    /// Each with its members.
    pub(super) pools: Vec<(Pool, Vec<Member>)>,
    pub(super) monitors: Vec<Monitor>,
}

impl<'de> Deserialize<'de> for Graph {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        #[derive(Deserialize)]
        struct Document {
            loadbalancer: Value,
        }
        let Document { loadbalancer } = Document::deserialize(deserializer)?;
        let balancer = LoadBalancer::deserialize(&loadbalancer).map_err(serde::de::Error::custom)?;
        let children = children(&balancer, &loadbalancer);
        Ok(Self { balancer, children })
    }
}

fn children(balancer: &LoadBalancer, document: &Value) -> Option<NewChildren> {
    let mut children = NewChildren::default();
    let owner = vec![Ref {
        id: balancer.id.clone(),
    }];
    for mut listener in parts::<Listener>(document, "listeners")? {
        // Octavia may show no more than its id.
        if listener.protocol.is_empty() {
            return None;
        }
        listener.loadbalancers.clone_from(&owner);
        listener.settle();
        children.listeners.push(listener);
    }
    for document in document.get("pools")?.as_array()? {
        let mut pool = Pool::deserialize(document).ok()?;
        let members = parts::<Member>(document, "members")?;
        if pool.protocol.is_empty() || members.iter().any(|member| member.address.is_empty()) {
            return None;
        }
        pool.loadbalancers.clone_from(&owner);
        pool.settle();
        match document.get("healthmonitor") {
            None | Some(Value::Null) => {}
            Some(monitor) => {
                let mut monitor = Monitor::deserialize(monitor).ok()?;
                monitor.pools = vec![Ref { id: pool.id.clone() }];
                monitor.settle();
                pool.healthmonitor_id.clone_from(&monitor.id);
                children.monitors.push(monitor);
            }
        }
        children.pools.push((pool, members));
    }
    Some(children)
}

fn parts<T: DeserializeOwned>(document: &Value, key: &str) -> Option<Vec<T>> {
    let parts = document.get(key)?.as_array()?;
    parts
        .iter()
        .map(|part| serde_json::from_value(part.clone()).ok())
        .collect()
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use serde_json::json;

    use super::*;

    #[test]
    fn what_is_below_is_taken_only_if_all_of_it_is_told() {
        let read = |below: Value| -> Graph {
            let mut balancer = json!({"id": "b", "provisioning_status": "PENDING_CREATE"});
            for (key, value) in below.as_object().unwrap() {
                balancer[key] = value.clone();
            }
            serde_json::from_value(json!({"loadbalancer": balancer})).unwrap()
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
        assert_eq!(
            (
                listener.loadbalancers[0].id.as_str(),
                listener.default_pool_id.as_str()
            ),
            ("b", "p")
        );
        let (pool, members) = &children.pools[0];
        assert_eq!(
            (pool.healthmonitor_id.as_str(), pool.members[0].id.as_str()),
            ("h", "m")
        );
        assert_eq!(members[0].identity(), ("10.0.0.1", 30000));
        assert_eq!(children.monitors[0].pools, [Ref { id: "p".into() }]);

        assert_eq!(
            read(json!({"listeners": [], "pools": []})).children,
            Some(NewChildren::default())
        );
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
