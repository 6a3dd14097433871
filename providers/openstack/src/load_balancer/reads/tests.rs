//! Reads and writes of load balancers against the simulated cloud: what they find, and how many requests that takes.
#![allow(clippy::unwrap_used, clippy::expect_used)]

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use ccm_core::{
    BuildContext, ErrorKind, Freshness, Outcome, Priority,
    client::{ClientMetrics, Fence},
    load_balancer::Ask,
};
use ccm_sim::{
    Action, Fault,
    openstack::{Config, NetworkSpec, OpenStack, SecretSpec, ServerSpec, SubnetSpec},
};
use serde_json::json;

use super::*;
use crate::{
    client::Gates,
    config::{self, Environment, Files},
    error::{is_busy, is_stale},
    load_balancer::{
        bodies::{
            FloatingIpChange, ListenerChange, LoadBalancerChange, MemberBody, MonitorChange, NewFloatingIp,
            NewListener, NewLoadBalancer, NewMonitor, NewPersistence, NewPool, NewRule, NewSecurityGroup,
            PoolChange, PortChange, Set, Tags,
        },
        features::{Capabilities, Feature},
        records::Provisioning,
        secrets::SecretRef,
        writes::Writes,
    },
    view::Generation,
};

/// The simulated cloud and the reads of it.
struct World {
    sim: OpenStack,
    api: Api,
    reads: Reads,
    subnet: String,
}

impl World {
    async fn new() -> Self {
        Self::with(Config::default()).await
    }

    async fn with(config: Config) -> Self {
        let sim = OpenStack::start(config).await.unwrap();
        let (api, metrics) = connect(&sim.cloud_conf()).await;
        let reads = Reads::new(api.clone(), &metrics);
        let subnet = reads
            .api
            .list::<super::super::records::Subnet>(&[("name", "private-0")], Priority::User)
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
    fn body(&self, name: &str) -> NewLoadBalancer {
        NewLoadBalancer {
            name: name.into(),
            description: "d".into(),
            provider: "amphora".into(),
            tags: vec![name.into()],
            vip_subnet_id: self.subnet.clone(),
            listeners: vec![NewListener {
                name: "l0".into(),
                protocol: "TCP",
                protocol_port: 80,
                connection_limit: -1,
                default_pool: Some(NewPool {
                    name: "p0".into(),
                    protocol: "TCP",
                    lb_algorithm: "ROUND_ROBIN".into(),
                    members: vec![member("10.0.0.101")],
                    healthmonitor: Some(monitor("")),
                    ..NewPool::default()
                }),
                ..NewListener::default()
            }],
            ..NewLoadBalancer::default()
        }
    }

    async fn make(&self, name: &str) -> LoadBalancer {
        let made = self
            .writes()
            .create_load_balancer(&self.body(name))
            .await
            .unwrap();
        self.settled(&made.id).await;
        made
    }

    async fn settled(&self, id: &str) {
        let state = self.reads.state(id, Priority::User).await.unwrap().unwrap();
        assert_eq!(state.provisioning_status, Provisioning::Active);
    }

    /// The calls since the last time, by kind.
    fn calls(&self) -> BTreeMap<String, u64> {
        let mut counts = self.sim.call_counts();
        self.sim.clear_calls();
        counts.retain(|_, count| *count > 0);
        counts
    }

    async fn children(&self, id: &str, ask: Ask) -> Children {
        let balancer = self.reads.load_balancer(id, ask).await.unwrap().unwrap();
        self.reads.children(&balancer, ask).await.unwrap()
    }

    async fn addresses(&self, children: &Children) -> Vec<String> {
        let members = self
            .reads
            .members(&children.pools, Contents::Which, Priority::User)
            .await
            .unwrap();
        let mut addresses: Vec<_> = members
            .iter()
            .flat_map(|members| members.iter())
            .map(|member| member.address.clone())
            .collect();
        addresses.sort();
        addresses
    }
}

async fn connect(conf: &str) -> (Api, ClientMetrics) {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("cloud.conf");
    std::fs::write(&path, conf).unwrap();
    let metrics = ClientMetrics::default();
    let context = BuildContext {
        cloud_config: Some(path),
        cluster_name: "kubernetes".into(),
        user_agent: "test".into(),
        metrics: metrics.clone(),
        fence: Fence::default(),
    };
    let path = context.cloud_config.as_deref();
    let loaded = config::load(path, &Environment::default(), &mut Files::default()).unwrap();
    let settings = loaded.settings;
    let gates = Gates::new(settings.request_timeout, &settings.quotas, &context);
    let api = Api::connect(settings.connection, &gates, "test", &Generation::default())
        .await
        .unwrap();
    (api, metrics)
}

fn member(address: &str) -> MemberBody {
    MemberBody {
        address: address.into(),
        protocol_port: 30080,
        name: format!("node-{address}"),
        ..MemberBody::default()
    }
}

fn monitor(pool: &str) -> NewMonitor {
    NewMonitor {
        pool_id: pool.into(),
        name: "m0".into(),
        kind: "TCP",
        delay: 5,
        timeout: 3,
        max_retries: 1,
        max_retries_down: 3,
        ..NewMonitor::default()
    }
}

fn lately() -> Ask {
    Ask {
        freshness: Freshness::AtMost(Duration::from_secs(3600)),
        priority: Priority::User,
    }
}

fn now() -> Ask {
    lately().anew()
}

fn counts(pairs: &[(&str, u64)]) -> BTreeMap<String, u64> {
    pairs
        .iter()
        .map(|(op, count)| ((*op).to_owned(), *count))
        .collect()
}

#[tokio::test]
async fn one_listing_of_each_kind_serves_all_load_balancers() {
    let world = World::new().await;
    let mut ids = Vec::new();
    for i in 0..7 {
        ids.push(world.make(&format!("lb-{i}")).await.id);
    }
    let reads = Reads::new(world.api.clone(), &ClientMetrics::default());
    let fresh = World { reads, ..world };
    fresh.calls();
    for id in &ids {
        let children = fresh.children(id, lately()).await;
        assert_eq!(
            (
                children.listeners.len(),
                children.pools.len(),
                children.monitors.len()
            ),
            (1, 1, 1)
        );
        assert_eq!(fresh.addresses(&children).await, ["10.0.0.101"]);
    }
    let expected = counts(&[
        ("loadbalancer_list", 1),
        ("loadbalancer_listener_list", 1),
        ("loadbalancer_pool_list", 1),
        ("loadbalancer_healthmonitor_list", 1),
        ("loadbalancer_member_list", 7),
    ]);
    assert_eq!(fresh.calls(), expected, "members once, cold");
    // A second look, also one that wants to know how it is now, needs no members.
    for id in &ids {
        fresh.addresses(&fresh.children(id, lately()).await).await;
    }
    assert_eq!(fresh.calls(), counts(&[]));
    fresh.addresses(&fresh.children(&ids[0], now()).await).await;
    assert!(!fresh.calls().contains_key("loadbalancer_member_list"));
    let queries: Vec<_> = fresh.sim.calls();
    assert!(queries.is_empty());
}

#[tokio::test]
async fn listings_are_of_the_project_alone() {
    let world = World::new().await;
    world.reads.load_balancers(None, now()).await.unwrap();
    world.reads.floating_ips(None, now()).await.unwrap();
    world.reads.security_groups(None, now()).await.unwrap();
    let project = format!("project_id={}", world.sim.project_id());
    let calls = world.sim.calls();
    assert_eq!(calls.len(), 3);
    for call in calls {
        assert!(
            call.query.contains(&project) && call.query.contains("limit=1000"),
            "{}",
            call.query
        );
    }
}

#[tokio::test]
async fn listings_of_many_pages_are_read_to_the_end() {
    let mut config = Config::default();
    config.settings.load_balancing.max_limit = 2;
    let world = World::with(config).await;
    for i in 0..5 {
        world.make(&format!("lb-{i}")).await;
    }
    let listing = world.reads.load_balancers(None, now()).await.unwrap();
    assert_eq!(listing.len(), 5);
    assert_eq!(listing.by_key("lb-3").count(), 1);
}

#[tokio::test]
async fn what_we_made_is_known_without_reading_it_again() {
    let world = World::new().await;
    let before = world.reads.load_balancers(None, lately()).await.unwrap();
    assert_eq!(before.len(), 0);
    world.make("first").await;
    world.children(&world.make("web").await.id, lately()).await;
    world.calls();

    let made = world.make("other").await;
    let listing = world.reads.load_balancers(None, lately()).await.unwrap();
    let found = listing.by_key("other").next().unwrap();
    assert_eq!(found.id, made.id);
    assert_eq!(found.provisioning_status, Provisioning::Active);
    assert!(!found.vip_address.is_empty());
    let children = world.children(&made.id, lately()).await;
    assert_eq!(children.listeners.len(), 1);
    assert_eq!(children.pools[0].listeners[0].id, children.listeners[0].id);
    assert_eq!(children.monitors[0].pools[0].id, children.pools[0].id);
    assert_eq!(world.addresses(&children).await, ["10.0.0.101"]);
    assert_eq!(
        world.calls(),
        counts(&[("loadbalancer_create", 1), ("loadbalancer_get", 1)]),
        "the creation and a look whether it is done"
    );

    // And it is what a listing says.
    let fresh = world.children(&made.id, now()).await;
    assert_eq!(children.listeners, fresh.listeners);
    assert_eq!(children.pools, fresh.pools);
    assert_eq!(children.monitors, fresh.monitors);
}

#[tokio::test]
async fn a_node_that_joins_costs_one_write_and_one_read() {
    let world = World::new().await;
    let made = world.make("web").await;
    let other = world.make("other").await;
    let pool = world.children(&made.id, lately()).await.pools[0].id.clone();
    world.addresses(&world.children(&other.id, lately()).await).await;
    for (i, address) in ["10.0.0.102", "10.0.0.103"].into_iter().enumerate() {
        world.calls();
        world
            .writes()
            .add_members(&made.id, &pool, &[member(address)])
            .await
            .unwrap();
        world.settled(&made.id).await;
        let known = world.addresses(&world.children(&made.id, lately()).await).await;
        assert_eq!(known.len(), 2 + i);
        world.addresses(&world.children(&other.id, lately()).await).await;
        let expected = counts(&[
            ("loadbalancer_members_update", 1),
            ("loadbalancer_get", 1),
            ("loadbalancer_pool_list", 1),
        ]);
        assert_eq!(world.calls(), expected);
    }
    let exactly = world.reads.members_uncached(&pool, Priority::User).await.unwrap();
    assert_eq!(exactly.len(), 3);
    assert!(exactly.iter().all(|member| !member.id.is_empty()));
}

#[tokio::test]
async fn members_that_somebody_else_changed_are_read_again() {
    let world = World::new().await;
    let made = world.make("web").await;
    let pool = Arc::clone(&world.children(&made.id, lately()).await.pools[0]);
    let members = world
        .reads
        .members_uncached(&pool.id, Priority::User)
        .await
        .unwrap();
    let weight = json!({"weight": 7});
    world
        .sim
        .patch_object(&members[0].id, weight.as_object().unwrap())
        .unwrap();
    for (contents, weight) in [(Contents::Which, 1), (Contents::Exactly, 7)] {
        let members = world
            .reads
            .members(std::slice::from_ref(&pool), contents, Priority::User)
            .await
            .unwrap();
        assert_eq!(members[0][0].weight, Some(weight), "{contents:?}");
    }
    world.sim.delete_object(&members[0].id).unwrap();
    let children = world.children(&made.id, now()).await;
    assert_eq!(world.addresses(&children).await, [""; 0]);
}

#[tokio::test]
async fn whether_a_load_balancer_exists_is_asked_by_its_id() {
    let world = World::new().await;
    let made = world.make("web").await;
    let gone = "00000000-0000-0000-0000-000000000000";
    assert!(world.reads.load_balancer(gone, now()).await.unwrap().is_none());
    assert_eq!(
        world.calls().get("loadbalancer_get"),
        Some(&2),
        "with the one while it was made"
    );
    // Made by somebody else since the listing was read.
    world.reads.load_balancers(None, now()).await.unwrap();
    let (api, metrics) = connect(&world.sim.cloud_conf()).await;
    let elsewhere = Reads::new(api.clone(), &metrics);
    let other = Writes::new(&api, &elsewhere, Priority::User)
        .create_load_balancer(&world.body("later"))
        .await
        .unwrap();
    let found = world.reads.load_balancer(&other.id, lately()).await.unwrap();
    assert_eq!(found.unwrap().name, "later");

    world.writes().delete_load_balancer(&made.id, true).await.unwrap();
    assert_eq!(world.reads.state(&made.id, Priority::User).await.unwrap(), None);
    assert!(
        world
            .reads
            .load_balancer(&made.id, lately())
            .await
            .unwrap()
            .is_none()
    );
    world
        .writes()
        .delete_load_balancer(&made.id, true)
        .await
        .expect("that there is none is no error");
}

#[tokio::test]
async fn a_load_balancer_at_work_is_busy() {
    let mut config = Config::default();
    config.settings.load_balancing.create_time = Duration::from_secs(3600);
    let world = World::with(config).await;
    let made = world
        .writes()
        .create_load_balancer(&world.body("web"))
        .await
        .unwrap();
    let state = world
        .reads
        .state(&made.id, Priority::User)
        .await
        .unwrap()
        .unwrap();
    assert!(state.provisioning_status.is_pending() && state.updated_at.is_none());
    let pool = made.pools[0].id.clone();
    let error = world
        .writes()
        .add_members(&made.id, &pool, &[member("10.0.0.102")])
        .await
        .unwrap_err();
    assert!(is_busy(&error).is_some(), "{error:?}");
    assert_eq!(world.calls()["loadbalancer_members_update"], 1, "not sent again");
}

#[tokio::test]
async fn a_write_whose_answer_was_lost_is_not_sent_again_and_is_looked_up() {
    let world = World::new().await;
    let made = world.make("web").await;
    let pool = world.children(&made.id, lately()).await.pools[0].clone();
    world
        .sim
        .add_fault(Fault::on("loadbalancer_members_update", Action::CommitThenDrop).once());
    world.calls();
    let error = world
        .writes()
        .add_members(&made.id, &pool.id, &[member("10.0.0.102")])
        .await
        .unwrap_err();
    assert_eq!(error.outcome(), Outcome::Unknown, "{error:?}");
    assert_eq!(world.calls()["loadbalancer_members_update"], 1);
    let children = world.children(&made.id, lately()).await;
    assert_eq!(world.addresses(&children).await, ["10.0.0.101", "10.0.0.102"]);

    let listener = NewListener {
        loadbalancer_id: made.id.clone(),
        name: "l1".into(),
        protocol: "UDP",
        protocol_port: 53,
        connection_limit: -1,
        ..NewListener::default()
    };
    for action in [Action::CommitThenDrop, Action::Truncate { bytes: Some(9) }] {
        world
            .sim
            .add_fault(Fault::on("loadbalancer_listener_create", action).once());
        world.calls();
        let port = listener.protocol_port
            + u16::try_from(world.children(&made.id, now()).await.listeners.len()).unwrap();
        let listener = NewListener {
            protocol_port: port,
            ..listener.clone()
        };
        let error = world.writes().create_listener(&listener).await.unwrap_err();
        assert_eq!(error.outcome(), Outcome::Unknown, "{error:?}");
        assert_eq!(world.calls()["loadbalancer_listener_create"], 1);
        let children = world.children(&made.id, lately()).await;
        assert!(children.listeners.iter().any(|found| found.protocol_port == port));
    }
}

#[tokio::test]
async fn listeners_pools_and_monitors_are_made_changed_and_deleted() {
    let world = World::new().await;
    let made = world.make("web").await;
    world.children(&made.id, lately()).await;
    let body = NewListener {
        loadbalancer_id: made.id.clone(),
        name: "l1".into(),
        protocol: "TCP",
        protocol_port: 443,
        connection_limit: 5,
        tags: vec!["web".into()],
        ..NewListener::default()
    };
    let listener = world.writes().create_listener(&body).await.unwrap();
    let body = NewPool {
        listener_id: listener.id.clone(),
        name: "p1".into(),
        protocol: "TCP",
        lb_algorithm: "ROUND_ROBIN".into(),
        ..NewPool::default()
    };
    let pool = world.writes().create_pool(&made.id, &body).await.unwrap();
    let check = world
        .writes()
        .create_monitor(&made.id, &monitor(&pool.id))
        .await
        .unwrap();
    world
        .writes()
        .set_members(&made.id, &pool.id, &[member("10.0.0.1"), member("10.0.0.2")])
        .await
        .unwrap();
    let change = ListenerChange {
        connection_limit: Set::To(9),
        allowed_cidrs: Set::To(vec!["10.0.0.0/8".into()]),
        ..ListenerChange::default()
    };
    world
        .writes()
        .update_listener(&made.id, &listener.id, &change)
        .await
        .unwrap();
    world.settled(&made.id).await;
    let kept = world.children(&made.id, lately()).await;
    let fresh = world.children(&made.id, now()).await;
    assert_eq!(kept.listeners, fresh.listeners);
    assert_eq!(kept.pools, fresh.pools);
    assert_eq!(kept.monitors, fresh.monitors);
    let seen = fresh
        .listeners
        .iter()
        .find(|seen| seen.id == listener.id)
        .unwrap();
    assert_eq!(
        (seen.connection_limit, seen.default_pool_id.as_str()),
        (Some(9), pool.id.as_str())
    );
    assert_eq!(seen.allowed_cidrs.as_deref().unwrap(), ["10.0.0.0/8"]);
    assert_eq!(
        world.addresses(&fresh).await,
        ["10.0.0.1", "10.0.0.101", "10.0.0.2"]
    );

    world
        .writes()
        .delete_monitor(&made.id, &pool.id, &check.id)
        .await
        .unwrap();
    world
        .writes()
        .delete_monitor(&made.id, &pool.id, &check.id)
        .await
        .unwrap();
    let left = world.children(&made.id, lately()).await;
    assert_eq!(left.monitors.len(), 1);
    world.writes().delete_pool(&made.id, &pool.id).await.unwrap();
    world
        .writes()
        .delete_listener(&made.id, &listener.id)
        .await
        .unwrap();
    world.settled(&made.id).await;
    let left = world.children(&made.id, lately()).await;
    assert_eq!((left.listeners.len(), left.pools.len()), (1, 1));
}

#[tokio::test]
async fn floating_addresses_are_found_by_port_and_by_address() {
    let world = World::new().await;
    let made = world.make("web").await;
    let network = world
        .reads
        .discovery
        .default_external_network(Priority::User)
        .await
        .unwrap()
        .unwrap();
    let none = world
        .reads
        .floating_ips(Some(&made.vip_port_id), lately())
        .await
        .unwrap();
    assert_eq!(none.by_key(&made.vip_port_id).count(), 0);
    let body = NewFloatingIp {
        floating_network_id: network.id.clone(),
        port_id: made.vip_port_id.clone(),
        description: "Floating IP for x".into(),
        ..NewFloatingIp::default()
    };
    let floating = world.writes().create_floating_ip(&body).await.unwrap();
    world.calls();
    let listing = world
        .reads
        .floating_ips(Some(&made.vip_port_id), lately())
        .await
        .unwrap();
    for key in [&made.vip_port_id, &floating.floating_ip_address] {
        assert_eq!(listing.by_key(key).next().unwrap().id, floating.id);
    }
    assert_eq!(world.calls(), counts(&[]), "known from the answer");
    let detach = FloatingIpChange { port_id: Set::Clear };
    let detached = world
        .writes()
        .update_floating_ip(&made.vip_port_id, &floating.id, &detach)
        .await
        .unwrap();
    assert_eq!(detached.port_id, "");
    let listing = world.reads.floating_ips(None, lately()).await.unwrap();
    assert_eq!(listing.by_key(&made.vip_port_id).count(), 0);
    world
        .writes()
        .delete_floating_ip(&made.vip_port_id, &floating.id)
        .await
        .unwrap();
    let listing = world.reads.floating_ips(None, lately()).await.unwrap();
    assert!(listing.by_id(&floating.id).is_none());
    // A second one for an address that has one.
    world.writes().create_floating_ip(&body).await.unwrap();
    let error = world.writes().create_floating_ip(&body).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::AlreadyExists, "{error:?}");
}

#[tokio::test]
async fn security_groups_come_with_their_rules() {
    let world = World::new().await;
    let body = NewSecurityGroup {
        name: "lb-sg-x".into(),
        description: "d".into(),
    };
    world.reads.security_groups(None, lately()).await.unwrap();
    let group = world.writes().create_security_group(&body).await.unwrap();
    let rule = NewRule {
        security_group_id: group.id.clone(),
        direction: "ingress",
        ethertype: "IPv4",
        protocol: "tcp".into(),
        port_range_min: 30080,
        port_range_max: 30080,
        remote_ip_prefix: "10.0.0.0/8".into(),
    };
    world.writes().create_rule("lb-sg-x", &rule).await.unwrap();
    let error = world.writes().create_rule("lb-sg-x", &rule).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::AlreadyExists);
    let egress = group.rules[0].id.clone();
    world
        .writes()
        .delete_rule(("lb-sg-x", &group.id), &egress)
        .await
        .unwrap();
    let ids = |listing: &Listing<SecurityGroup>| {
        let group = listing.by_key("lb-sg-x").next().unwrap();
        let mut ids: Vec<_> = group.rules.iter().map(|rule| rule.id.clone()).collect();
        ids.sort();
        ids
    };
    let kept = world.reads.security_groups(None, lately()).await.unwrap();
    let fresh = world.reads.security_groups(None, now()).await.unwrap();
    assert_eq!(ids(&kept), ids(&fresh));
    assert_eq!(ids(&fresh).len(), 2, "the default ones are two");
    let mut apart: Vec<_> = world.reads.rules(&group.id, Priority::User).await.unwrap();
    apart.sort_by(|a, b| a.id.cmp(&b.id));
    assert_eq!(
        apart.iter().map(|rule| rule.id.clone()).collect::<Vec<_>>(),
        ids(&fresh)
    );
    world
        .writes()
        .delete_security_group("lb-sg-x", &group.id)
        .await
        .unwrap();
    let kept = world.reads.security_groups(None, lately()).await.unwrap();
    assert_eq!(kept.by_key("lb-sg-x").count(), 0);
}

#[tokio::test]
async fn ports_of_many_servers_are_read_together_and_changed_only_as_they_were_read() {
    let world = World::new().await;
    let servers = world
        .sim
        .create_servers(200, &ServerSpec::named("node-{i}"))
        .unwrap();
    let servers: Vec<&str> = servers.iter().map(String::as_str).collect();
    let found = world.reads.ports_of(&servers, lately()).await.unwrap();
    assert_eq!(world.calls(), counts(&[("port_list", 2)]));
    assert_eq!(found.len(), 200);
    world.reads.ports_of(&servers[5..9], lately()).await.unwrap();
    assert_eq!(world.calls(), counts(&[]));

    let port = &found[servers[0]][0];
    assert!(port.port_security_enabled == Some(true) && !port.fixed_ips[0].subnet_id.is_empty());
    let group = NewSecurityGroup {
        name: "g".into(),
        description: String::new(),
    };
    let group = world.writes().create_security_group(&group).await.unwrap().id;
    let mut groups = port.security_groups.clone();
    groups.push(group.clone());
    let change = PortChange {
        security_groups: Set::To(groups),
    };
    let changed = world.writes().update_port(port, &change).await.unwrap();
    assert!(changed.security_groups.contains(&group));
    let error = world.writes().update_port(port, &change).await.unwrap_err();
    assert!(is_stale(&error), "{error:?}");
    world.calls();
    let again = world.reads.ports_of(&servers, lately()).await.unwrap();
    assert_eq!(
        world.calls(),
        counts(&[("port_list", 1)]),
        "only the one that was changed"
    );
    assert_eq!(again[servers[0]][0].revision_number, changed.revision_number);
    let with = world.reads.ports_with(&[&group], Priority::User).await.unwrap();
    assert_eq!(with.len(), 1);
}

#[tokio::test]
async fn networks_and_subnets_are_read_once_and_what_is_missing_is_asked_again() {
    let world = World::new().await;
    let discovery = &world.reads.discovery;
    for _ in 0..3 {
        discovery
            .default_external_network(Priority::User)
            .await
            .unwrap()
            .unwrap();
        discovery.subnet(&world.subnet, Priority::User).await.unwrap();
    }
    assert_eq!(
        world.calls(),
        counts(&[("network_list", 1), ("subnet_list", 1), ("subnet_get", 1)])
    );
    let network = world
        .sim
        .create_network(&NetworkSpec {
            name: "dmz".into(),
            external: true,
            ..NetworkSpec::default()
        })
        .unwrap();
    let subnet = SubnetSpec {
        name: "dmz-1".into(),
        cidr: Some("198.51.100.0/24".parse().unwrap()),
        tags: vec!["a".into()],
        ..SubnetSpec::default()
    };
    world.sim.create_subnet(&network, &subnet).unwrap();
    let subnets = discovery.subnets_of(&network, Priority::User).await.unwrap();
    assert_eq!((subnets[0].name.as_str(), subnets[0].ip_version), ("dmz-1", 4));
    assert_eq!(subnets[0].tags, ["a"]);
    assert!(
        discovery
            .subnet("nowhere", Priority::User)
            .await
            .unwrap()
            .is_none()
    );
}

#[tokio::test]
async fn secrets_are_looked_up_in_barbican() {
    let world = World::new().await;
    let secret = |container| {
        let spec = SecretSpec {
            container,
            ..SecretSpec::default()
        };
        world.sim.create_secret(&spec).unwrap()
    };
    let (one, container) = (secret(false), secret(true));
    let discovery = &world.reads.discovery;
    for (reference, there) in [
        (one.clone(), true),
        (container, true),
        ("secrets/00000000-0000-0000-0000-000000000000".to_owned(), false),
    ] {
        let reference = SecretRef::parse(&reference).unwrap();
        let found = discovery.secret_exists(&reference, Priority::User).await.unwrap();
        assert_eq!(found, there, "{reference:?}");
    }
    let mut config = Config::default();
    config.settings.key_manager = false;
    let without = World::with(config).await;
    let error = without
        .reads
        .discovery
        .secret_exists(&SecretRef::parse(&one).unwrap(), Priority::User)
        .await
        .unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unsupported);
    assert!(error.to_string().contains("key-manager"), "{error}");
}

#[tokio::test]
async fn the_version_is_asked_until_it_is_known() {
    let mut config = Config::default();
    config.settings.load_balancing.max_minor = 11;
    let world = World::with(config).await;
    world
        .sim
        .add_fault(Fault::on("version_list", Action::status(403)).once());
    assert!(world.reads.version(Priority::User).await.is_err());
    for _ in 0..3 {
        let version = world.reads.version(Priority::User).await.unwrap();
        let capabilities = Capabilities::of(version, "amphora");
        assert!(capabilities.has(Feature::AdditiveMembers) && !capabilities.has(Feature::AllowedCidrs));
    }
    assert_eq!(world.calls(), counts(&[("version_list", 2)]));
}

#[tokio::test]
async fn a_cloud_without_octavia_says_so() {
    let mut config = Config::default();
    config.settings.load_balancing.enabled = false;
    let world = World::with(config).await;
    let reason = world.reads.missing().await.unwrap().unwrap();
    assert!(reason.contains("load-balancer"), "{reason}");
    assert_eq!(World::new().await.reads.missing().await.unwrap(), None);
}

#[tokio::test]
async fn a_failed_listing_is_an_error_and_not_an_empty_one() {
    let world = World::new().await;
    let made = world.make("web").await;
    for action in [Action::status(404), Action::status(403), Action::EmptyJson] {
        world
            .sim
            .add_fault(Fault::on("loadbalancer_pool_list", action.clone()));
        let balancer = world.reads.load_balancer(&made.id, now()).await.unwrap().unwrap();
        let priority = Priority::User;
        let freshness = Freshness::now();
        let failed = world.reads.children(&balancer, Ask { freshness, priority }).await;
        let kind = failed.unwrap_err().kind();
        assert_ne!(kind, ErrorKind::NotFound, "{action:?}");
        world.sim.clear_faults();
    }
}

#[tokio::test]
async fn small_changes_are_folded_into_the_listings() {
    let world = World::new().await;
    let made = world.make("web").await;
    let children = world.children(&made.id, lately()).await;
    let (pool, check) = (children.pools[0].id.clone(), children.monitors[0].id.clone());
    let tags = LoadBalancerChange {
        tags: Set::To(vec!["web".into(), "other".into()]),
        ..LoadBalancerChange::default()
    };
    world
        .writes()
        .update_load_balancer(&made.id, &tags)
        .await
        .unwrap();
    world.settled(&made.id).await;
    let slow = MonitorChange {
        delay: Set::To(9),
        ..MonitorChange::default()
    };
    world
        .writes()
        .update_monitor(&made.id, &check, &slow)
        .await
        .unwrap();
    let sticky = PoolChange {
        session_persistence: Set::To(NewPersistence::SOURCE_IP),
        ..PoolChange::default()
    };
    world
        .writes()
        .update_pool(&made.id, &pool, &sticky)
        .await
        .unwrap();
    world.settled(&made.id).await;
    world.calls();
    let listing = world.reads.load_balancers(None, lately()).await.unwrap();
    assert_eq!(listing.by_id(&made.id).unwrap().tags, ["web", "other"]);
    let children = world.children(&made.id, lately()).await;
    assert_eq!(children.monitors[0].delay, 9);
    let persistence = children.pools[0].session_persistence.clone();
    assert_eq!(persistence.unwrap().kind, "SOURCE_IP");
    assert_eq!(world.calls(), counts(&[]));
    let clear = PoolChange {
        session_persistence: Set::Clear,
        ..PoolChange::default()
    };
    let cleared = world.writes().update_pool(&made.id, &pool, &clear).await.unwrap();
    assert_eq!(cleared.session_persistence, None);
    world.settled(&made.id).await;

    // One by one, for providers that can do no better.
    let one = world
        .writes()
        .create_member(&made.id, &pool, &member("10.0.0.110"))
        .await
        .unwrap();
    world.settled(&made.id).await;
    let children = world.children(&made.id, lately()).await;
    assert_eq!(world.addresses(&children).await, ["10.0.0.101", "10.0.0.110"]);
    for _ in 0..2 {
        world
            .writes()
            .delete_member(&made.id, &pool, &one.id)
            .await
            .unwrap();
        world.settled(&made.id).await;
    }
    world.calls();
    let children = world.children(&made.id, lately()).await;
    assert_eq!(world.addresses(&children).await, ["10.0.0.101"]);
    assert!(!world.calls().contains_key("loadbalancer_member_list"));
}

#[tokio::test]
async fn tags_of_groups_and_ports_are_changed() {
    let world = World::new().await;
    let body = NewSecurityGroup {
        name: "g".into(),
        description: "d".into(),
    };
    let group = world.writes().create_security_group(&body).await.unwrap();
    let tags = Tags {
        tags: vec!["kube_cluster_id_1".into()],
    };
    world
        .writes()
        .set_security_group_tags(&group.id, &tags)
        .await
        .unwrap();
    let listing = world.reads.security_groups(None, now()).await.unwrap();
    assert_eq!(listing.by_id(&group.id).unwrap().tags, tags.tags);
    let server = world.sim.create_server(&ServerSpec::named("n")).unwrap();
    let ports = world.reads.ports_of(&[&server], now()).await.unwrap();
    world
        .writes()
        .delete_port_tag(&ports[&server][0], "none")
        .await
        .unwrap();
}

#[tokio::test]
async fn a_change_that_is_led_elsewhere_is_no_success() {
    let world = World::new().await;
    let made = world.make("web").await;
    let listing = format!("/RegionOne/load-balancer/v2.0/lbaas/loadbalancers/{}", made.id);
    world.sim.add_fault(
        Fault::on(
            "loadbalancer_members_update",
            Action::Status {
                code: 302,
                body: None,
                headers: [("Location".to_owned(), listing)].into(),
            },
        )
        .once(),
    );
    let pool = &made.pools[0].id;
    let error = world
        .writes()
        .set_members(&made.id, pool, &[member("10.0.0.9")])
        .await
        .unwrap_err();
    assert_eq!(
        (error.kind(), error.outcome()),
        (ErrorKind::Unexpected, Outcome::Unknown),
        "{error:?}"
    );
}

#[tokio::test]
async fn a_quota_that_is_reached_is_told_from_a_right_that_is_missing() {
    let mut config = Config::default();
    for (what, limit) in [("load_balancer", 1), ("floatingip", 0)] {
        config.settings.resource_quotas.insert(what.to_owned(), limit);
    }
    let world = World::with(config).await;
    world.make("web").await;
    let error = world
        .writes()
        .create_load_balancer(&world.body("more"))
        .await
        .unwrap_err();
    assert_eq!(error.kind(), ErrorKind::QuotaExceeded, "{error:?}");
    let network = world
        .reads
        .discovery
        .external_networks(Priority::User)
        .await
        .unwrap()[0]
        .id
        .clone();
    let body = NewFloatingIp {
        floating_network_id: network,
        ..NewFloatingIp::default()
    };
    let error = world.writes().create_floating_ip(&body).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::QuotaExceeded, "{error:?}");
    let mut ovn = world.body("ovn");
    ovn.provider = "ovn".into();
    ovn.listeners[0].protocol = "HTTP";
    let error = world.writes().create_load_balancer(&ovn).await.unwrap_err();
    assert!(
        matches!(error.kind(), ErrorKind::Unsupported | ErrorKind::QuotaExceeded),
        "{error:?}"
    );
}
