//! Reads and writes of load balancers against the simulated cloud: their results and their requests.
#![allow(clippy::unwrap_used, clippy::expect_used)]

mod changes;
mod listings;
mod network;
mod real;

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use ccm_core::{
    Environment, ErrorKind, Freshness, Priority, RequestOutcome, Retry, client::ClientMetrics,
    config::ConfigFiles, load_balancer::ReadOptions, plan::WriteConflict, testkit,
};
use ccm_sim::{
    Action, Fault, Moment,
    openstack::{Config, NetworkSpec, OpenStack, SecretSpec, ServerSpec, SubnetSpec},
};
use serde_json::{Value, json};

use super::*;
use crate::{
    client::{Gates, Generation},
    config,
    load_balancer::{
        features::{Capabilities, Feature},
        member::Host,
        responses::Provisioning,
        secrets::SecretRef,
        writes::Writes,
    },
};

/// The simulated cloud and its reads.
struct Fixture {
    sim: OpenStack,
    api: Api,
    reads: Reads,
    subnet: String,
}

impl Fixture {
    async fn new() -> Self {
        Self::with(Config::default()).await
    }

    async fn with(config: Config) -> Self {
        let sim = OpenStack::start(config).await.unwrap();
        let (api, metrics) = connect(&sim.cloud_conf()).await;
        let reads = Reads::new(api.clone(), &metrics);
        let subnet = reads
            .api
            .list::<super::super::responses::Subnet>(&[("name", "private-0")], Priority::User)
            .await
            .unwrap()
            .remove(0)
            .id;
        sim.clear_calls();
        Self {
            sim,
            api,
            reads,
            subnet,
        }
    }

    fn writes(&self) -> Writes<'_> {
        Writes::new(&self.api, &self.reads, Priority::User)
    }

    /// A load balancer with one TCP port, one member and a health monitor.
    fn body(&self, name: &str) -> Value {
        json!({
            "name": name,
            "description": "d",
            "provider": "amphora",
            "tags": [name],
            "vip_subnet_id": self.subnet.clone(),
            "listeners": [{
                "name": "l0",
                "protocol": "TCP",
                "protocol_port": 80,
                "connection_limit": -1,
                "default_pool": {
                    "name": "p0",
                    "protocol": "TCP",
                    "lb_algorithm": "ROUND_ROBIN",
                    "members": [member("10.0.0.101")],
                    "healthmonitor": monitor(""),
                },
            }],
        })
    }

    async fn make(&self, name: &str) -> LoadBalancer {
        let created = self.writes().create_load_balancer(&self.body(name), 1).await.unwrap().balancer;
        self.settled(&created.id).await;
        created
    }

    async fn settled(&self, id: &str) {
        let state = self.reads.state(id, Priority::User).await.unwrap().unwrap();
        assert_eq!(state.provisioning_status, Provisioning::Active);
    }

    /// The calls since the last check, by kind.
    fn calls(&self) -> BTreeMap<String, u64> {
        let mut counts = self.sim.call_counts();
        self.sim.clear_calls();
        counts.retain(|_, count| *count > 0);
        counts
    }

    async fn children(&self, id: &str, read: ReadOptions) -> Children {
        let balancer = self.reads.load_balancer(id, read).await.unwrap().unwrap();
        self.reads.children(&balancer, read).await.unwrap()
    }

    async fn addresses(&self, children: &Children) -> Vec<String> {
        let members = self.reads.members(children, Contents::Which, Priority::User).await.unwrap();
        let mut addresses: Vec<_> = members
            .iter()
            .flat_map(|members| members.iter())
            .map(|member| member.host.address.clone())
            .collect();
        addresses.sort();
        addresses
    }
}

async fn connect(conf: &str) -> (Api, ClientMetrics) {
    let (_folder, context) = testkit::context(conf, Environment::default());
    let loaded = config::load(&context, &mut ConfigFiles::default()).unwrap();
    let settings = loaded.value.settings;
    let gates = Gates::new(settings.request_timeout, &settings.quotas, &context);
    let api = Api::connect(settings.connection, &gates, "test", &Generation::default()).await.unwrap();
    (api, context.metrics)
}

fn member(address: &str) -> Member {
    Member {
        host: Arc::new(Host {
            address: address.into(),
            name: format!("node-{address}"),
            ..Host::default()
        }),
        protocol_port: 30080,
        ..Member::default()
    }
}

fn monitor(pool: &str) -> Value {
    let monitor = json!({"name": "m0", "type": "TCP", "delay": 5, "timeout": 3, "max_retries": 1, "max_retries_down": 3});
    let Value::Object(mut monitor) = monitor else {
        unreachable!()
    };
    if !pool.is_empty() {
        monitor.insert("pool_id".into(), pool.into());
    }
    monitor.into()
}

fn lately() -> ReadOptions {
    ReadOptions {
        freshness: Freshness::AtMost(Duration::from_secs(3600)),
        priority: Priority::User,
    }
}

fn now() -> ReadOptions {
    lately().uncached()
}

fn counts(pairs: &[(&str, u64)]) -> BTreeMap<String, u64> {
    pairs.iter().map(|(op, count)| ((*op).to_owned(), *count)).collect()
}
