//! The calls that Services cost.

use std::{collections::BTreeMap, time::Duration};

use ccm_core::{
    Freshness, Priority,
    load_balancer::{PartState, ReadOptions, ServiceView},
};

use crate::stage::{Stage, advance_to, service};

const GROUPS: &str = "manage-security-groups = true\ncreate-monitor = true";

/// The read options after a change of a Service.
fn changed() -> ReadOptions {
    ReadOptions {
        freshness: Freshness::now(),
        priority: Priority::User,
    }
}

/// The read options of the slow resync.
fn drift() -> ReadOptions {
    ReadOptions {
        priority: Priority::Background,
        ..changed()
    }
}

fn services(count: u16) -> Vec<ServiceView> {
    let names = (0..count).map(|number| format!("web-{number}"));
    names.map(|name| service(&name, &[80, 443, 8080])).collect()
}

/// The calls since the last check, without authentication.
fn calls(stage: &Stage) -> BTreeMap<&'static str, usize> {
    let mut all = BTreeMap::new();
    for call in stage.sim.calls() {
        if call.service != "identity" {
            *all.entry(call.op).or_default() += 1;
        }
    }
    stage.sim.clear_calls();
    all
}

/// One page of each listing for Services.
fn pages() -> BTreeMap<&'static str, usize> {
    BTreeMap::from([
        ("loadbalancer_list", 1),
        ("loadbalancer_listener_list", 1),
        ("loadbalancer_pool_list", 1),
        ("loadbalancer_healthmonitor_list", 1),
        ("floating_ip_list", 1),
        ("security_group_list", 1),
        ("port_list", 1),
    ])
}

#[tokio::test]
async fn one_service_is_created_with_few_reads() {
    let mut stage = Stage::new(6, GROUPS).await;
    stage.services = services(1);
    stage.read = changed();
    stage.settle_well().await;
    let (writes, reads) = stage.cost();
    assert_eq!(writes, 14);
    // Including one poll of the load balancer.
    assert_eq!(reads, 9, "{:?}", calls(&stage));
}

#[tokio::test]
async fn a_slow_creation_costs_few_polls() {
    for (seconds, most) in [(7, 30), (30, 42)] {
        let mut stage = Stage::new(6, GROUPS).await;
        let takes = Duration::from_secs(seconds);
        stage.sim.configure(|settings| settings.load_balancing.create_time = takes);
        stage.services = services(1);
        stage.read = changed();
        let began = tokio::time::Instant::now();
        stage.settle_well().await;
        assert_eq!(stage.balancers()[0].loadbalancer.provisioning_status, "ACTIVE");
        assert!(began.elapsed() >= takes, "{:?}", began.elapsed());
        let (writes, reads) = stage.cost();
        assert!(writes + reads <= most, "{seconds} s: {:?}", calls(&stage));
    }
}

#[tokio::test]
async fn many_creations_share_their_polls() {
    let mut stage = Stage::new(2, "").await;
    stage
        .sim
        .configure(|settings| settings.load_balancing.create_time = Duration::from_secs(30));
    stage.services = services(20);
    stage.read = changed();
    stage.pass_once().await;
    calls(&stage);
    // Until all exist.
    for _ in 0..100 {
        let until = stage.reports.iter().filter_map(|report| match report.state {
            PartState::Parked { until, .. } => Some(until),
            _ => None,
        });
        let Some(until) = until.min() else { break };
        advance_to(until).await;
        stage.pass_once().await;
    }
    assert_eq!(stage.balancers().len(), 20);
    let polls = calls(&stage);
    let one_by_one = polls.get("loadbalancer_get").copied().unwrap_or_default();
    assert!(one_by_one <= 20, "{polls:?}");
    assert!(polls["loadbalancer_list"] <= 30, "{polls:?}");
}

#[tokio::test]
async fn a_leaving_service_costs_a_page_of_each_relevant_kind_and_no_read_of_the_objects_below() {
    let mut stage = Stage::new(6, GROUPS).await;
    stage.services = services(1);
    stage.settle().await;
    stage.restart().await;
    stage.settle().await;
    stage.service("web-0").deleting = true;
    stage.read = changed();
    calls(&stage);
    stage.run_through().await;
    let counted = calls(&stage);
    let expected = BTreeMap::from([
        // Whether other Services or clusters use it.
        ("loadbalancer_list", 1),
        // Whether the cluster owns its floating IP.
        ("floating_ip_list", 1),
        ("security_group_list", 1),
        // The ports that have the group.
        ("port_list", 1),
        // Whether it was deleted.
        ("loadbalancer_get", 1),
        ("floating_ip_delete", 1),
        ("loadbalancer_delete", 1),
        ("security_group_delete", 1),
        ("port_update", 6),
    ]);
    assert_eq!(counted, expected);
    stage.settle_well().await;
    assert!(stage.services.is_empty() && stage.balancers().is_empty());
}

#[tokio::test]
async fn a_node_that_joins_is_read_once_for_all_services() {
    let mut stage = Stage::new(2, GROUPS).await;
    stage.services = services(4);
    stage.settle().await;
    stage.join();
    calls(&stage);
    stage.settle_well().await;
    let expected = BTreeMap::from([
        ("loadbalancer_members_update", 12),
        ("loadbalancer_get", 12),
        ("port_list", 1),
        ("port_update", 1),
    ]);
    assert_eq!(calls(&stage), expected);
}

#[tokio::test]
async fn a_restart_reads_pages_and_each_pool_once() {
    let mut stage = Stage::new(2, GROUPS).await;
    stage.services = services(5);
    stage.settle().await;
    stage.restart().await;
    stage.read = changed();
    calls(&stage);
    stage.settle_well().await;
    let mut expected = pages();
    expected.extend([
        ("loadbalancer_member_list", 15),
        ("version_list", 1),
        ("network_list", 1),
        ("subnet_list", 1),
        ("subnet_get", 1),
    ]);
    assert_eq!(calls(&stage), expected);
}

#[tokio::test]
async fn members_are_read_pool_by_pool_in_the_slow_check_alone() {
    let mut stage = Stage::new(2, GROUPS).await;
    stage.services = services(3);
    stage.settle().await;
    calls(&stage);

    // After a change of a Service, everything is read except users' settings of members.
    stage.read = changed();
    stage.settle().await;
    assert_eq!(calls(&stage), pages());

    stage.read = drift();
    stage.settle().await;
    let mut expected = pages();
    expected.insert("loadbalancer_member_list", 9);
    assert_eq!(calls(&stage), expected);

    // And nothing at all without changes.
    stage.read.freshness = Freshness::AtMost(Duration::from_secs(3600));
    stage.settle().await;
    assert_eq!(calls(&stage), BTreeMap::new());
}
