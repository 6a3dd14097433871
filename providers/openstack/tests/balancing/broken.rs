//! Broken load balancers, and clouds without Octavia.

use std::{sync::Arc, time::Duration};

use ccm_core::{
    Freshness,
    load_balancer::{OwnershipTag, PartState, ServiceEvent},
};
use ccm_sim::{Action, Fault};
use serde_json::json;
use tokio::time::Instant;

use crate::stage::{ID, MANAGED, Stage, advance_to, annotate, service};

fn failures(stage: &Stage) -> Vec<String> {
    let reports = stage.reports.iter();
    let failed = reports.filter_map(|report| match &report.state {
        PartState::Failed(error) => Some(error.report()),
        _ => None,
    });
    failed.collect()
}

#[tokio::test]
async fn one_of_ours_that_was_never_active_is_recreated() {
    let mut stage = Stage::new(2, "").await;
    stage.sim.fail_next_changes(1);
    stage.services.push(service("web", &[80, 443]));
    stage.settle_in_trouble().await;
    stage.assert_no_complaints();
    let balancers = stage.balancers();
    assert_eq!(balancers.len(), 1);
    assert_eq!(balancers[0].loadbalancer.provisioning_status, "ACTIVE");
    assert_eq!((balancers[0].listeners.len(), balancers[0].members.len()), (2, 4));
    let counts = stage.sim.call_counts();
    assert_eq!((counts["loadbalancer_create"], counts["loadbalancer_delete"]), (2, 1));
    assert_ne!(stage.address("web"), "");
}

#[tokio::test]
async fn pools_and_members_in_error_are_repaired() {
    for config in ["", "provider-requires-serial-api-calls = true"] {
        let mut stage = Stage::new(2, config).await;
        stage.services.push(service("web", &[80]));
        stage.settle().await;
        // Octavia refuses changes of its members, although the load balancer is ACTIVE.
        let pool = stage.balancers().remove(0).pools.remove(0);
        stage.sim.set_provisioning_status(&pool.id, "ERROR").unwrap();
        stage.join();
        stage.settle().await;
        assert_eq!(stage.complaints(), [""; 0], "{config}");
        assert_eq!(stage.balancers()[0].members.len(), 3, "{config}");
        let member = stage.balancers().remove(0).members.remove(0);
        stage.sim.set_provisioning_status(&member.id, "ERROR").unwrap();
        stage.restart().await;
        stage.settle().await;
        let balancer = stage.balancers().remove(0);
        let members = balancer.members.iter().map(|member| &member.provisioning_status);
        let pools = balancer.pools.iter().map(|pool| &pool.provisioning_status);
        assert!(members.chain(pools).all(|status| status == "ACTIVE"), "{config}");
    }
}

/// The attributes of a new load balancer, and whether it has the cluster's tag.
const CREATIONS: [(&str, bool); 4] = [
    ("", false),
    ("provider-requires-serial-api-calls = true", true),
    ("provider-requires-serial-api-calls = true", false),
    ("provider-requires-serial-api-calls = true\nfailover-in-error = true", false),
];

async fn creating(config: &str, known: bool) -> Stage {
    let mut stage = Stage::new(2, config).await;
    if !known {
        stage.ownership_tag = OwnershipTag::Unknown;
    }
    stage.sim.fail_next_changes(1);
    stage.services.push(service("web", &[80, 443]));
    stage
}

#[tokio::test]
async fn a_failed_creation_is_repeated_whatever_is_known_and_however_it_is_sent() {
    for (config, known) in CREATIONS {
        let mut stage = creating(config, known).await;
        stage.settle_in_trouble().await;
        assert_eq!(stage.complaints(), [""; 0], "{config} {known}");
        let balancers = stage.balancers();
        assert_eq!(balancers.len(), 1, "{config} {known}");
        assert_eq!(balancers[0].loadbalancer.provisioning_status, "ACTIVE");
        assert_eq!((balancers[0].listeners.len(), balancers[0].members.len()), (2, 4));
        let counts = stage.sim.call_counts();
        let counts = (counts["loadbalancer_create"], counts["loadbalancer_delete"]);
        assert_eq!(counts, (2, 1), "{config} {known}");
        assert_ne!(stage.address("web"), "");

        // A load balancer that worked once does not count as one of failed creation.
        let id = &balancers[0].loadbalancer.id;
        stage.sim.set_provisioning_status(id, "ERROR").unwrap();
        stage.services = vec![service("web", &[80, 443])];
        stage.read.freshness = Freshness::now();
        stage.settle().await;
        assert_eq!(&stage.balancers()[0].loadbalancer.id, id, "{config} {known}");
    }
}

#[tokio::test]
async fn a_floating_ip_is_created_while_the_load_balancer_is_and_outlives_its_failure() {
    let mut stage = Stage::new(2, MANAGED).await;
    stage.sim.fail_next_changes(1);
    stage
        .sim
        .configure(|settings| settings.load_balancing.create_time = Duration::from_secs(7));
    stage.services.push(service("web", &[80, 443]));
    stage.pass_once().await;
    let address = stage.sim.floating_ips().remove(0).address;
    assert_eq!(stage.balancers()[0].loadbalancer.provisioning_status, "PENDING_CREATE");
    assert_eq!(stage.address("web"), "", "it does not serve yet");

    stage.settle_in_trouble().await;
    stage.assert_no_complaints();
    let counts = stage.sim.call_counts();
    assert_eq!((counts["loadbalancer_create"], counts["loadbalancer_delete"]), (2, 1));
    assert_eq!((counts["floating_ip_create"], counts["floating_ip_update"]), (1, 1));
    assert_eq!(stage.address("web"), address.to_string());

    // Without load balancer and Service, it is reported.
    let id = stage.balancers()[0].loadbalancer.id.clone();
    stage.sim.delete_object(&id).unwrap();
    stage.services.clear();
    stage.read.freshness = Freshness::now();
    let orphans = stage.cloud.load_balancers().unwrap();
    let orphans = orphans.discover(&stage.request()).await.unwrap().orphans.unwrap();
    let expected = format!("floating IP {address} of Service shop/web");
    assert!(orphans.iter().any(|orphan| orphan.what == expected && !orphan.deletable), "{orphans:?}");
}

#[tokio::test]
async fn a_creation_that_failed_before_a_restart_is_reported_with_the_command() {
    for (config, known) in &CREATIONS[..3] {
        let mut stage = creating(config, *known).await;
        stage.pass_once().await;
        // The program is killed while it waits.
        stage.sim.advance_clock(Duration::from_secs(60));
        let id = stage.balancers()[0].loadbalancer.id.clone();
        assert_eq!(stage.balancers()[0].loadbalancer.provisioning_status, "ERROR");
        stage.restart().await;
        stage.settle_in_trouble().await;
        let failures = failures(&stage).join("\n");
        let command = format!("openstack loadbalancer delete --cascade {id}");
        assert!(failures.contains(&command), "{config} {known}: {failures}");
        assert_eq!(stage.balancers()[0].loadbalancer.id, id);
        assert!(!stage.sim.call_counts().contains_key("loadbalancer_delete"));
        stage.sim.delete_object(&id).unwrap();
        stage.read.freshness = Freshness::now();
        stage.settle_in_trouble().await;
        assert_eq!(stage.complaints(), [""; 0], "{config} {known}");
        assert_ne!(stage.address("web"), "");
    }
}

#[tokio::test]
async fn a_load_balancer_in_error_fails_the_pass_until_it_is_repaired() {
    let mut stage = Stage::new(1, "").await;
    stage.services.push(service("web", &[80]));
    stage.settle().await;
    let id = stage.balancers()[0].loadbalancer.id.clone();
    let address = stage.address("web");
    stage.sim.set_provisioning_status(&id, "ERROR").unwrap();
    stage.restart().await;
    stage.settle().await;
    let failures = failures(&stage).join("\n");
    assert!(failures.contains("is in ERROR") && failures.contains("failover-in-error"), "{failures}");
    assert_eq!(stage.address("web"), address);
    stage.sim.set_provisioning_status(&id, "ACTIVE").unwrap();
    stage.restart().await;
    stage.settle_well().await;
    assert!(!stage.sim.call_counts().contains_key("loadbalancer_failover"));
}

#[tokio::test]
async fn failover_is_requested_if_the_config_allows_it() {
    let mut stage = Stage::new(1, "failover-in-error = true").await;
    stage.services.push(service("web", &[80]));
    stage.settle().await;
    let id = stage.balancers()[0].loadbalancer.id.clone();
    let address = stage.address("web");
    stage.sim.set_provisioning_status(&id, "ERROR").unwrap();
    stage.restart().await;
    stage.settle().await;
    // Octavia allows it only to administrators.
    let failures = failures(&stage).join("\n");
    assert!(failures.contains("403"), "{failures}");
    stage.become_admin();
    stage.restart().await;
    stage.sim.clear_calls();
    stage.service("web").ports = service("web", &[80, 443]).ports;
    stage.settle_in_trouble().await;
    stage.assert_no_complaints();
    assert_eq!(stage.sim.call_counts()["loadbalancer_failover"], 1);
    let balancer = stage.balancers().remove(0);
    assert_eq!(balancer.loadbalancer.provisioning_status, "ACTIVE");
    assert_eq!((balancer.loadbalancer.id, balancer.listeners.len()), (id, 2));
    assert_eq!(stage.address("web"), address);
}

#[tokio::test]
async fn a_cloud_without_octavia_reports_the_fix_and_deletes_nothing() {
    let mut stage = Stage::new(1, "").await;
    stage.services.push(service("web", &[80]));
    stage.settle().await;
    stage.sim.configure(|settings| settings.load_balancing.enabled = false);
    stage.service("web").deleting = true;
    stage.restart().await;
    let error = stage.discovery_error().await;
    assert!(
        error.contains("load-balancer") && error.contains("enabled=false into [LoadBalancer]"),
        "{error}"
    );
    stage.sim.configure(|settings| settings.load_balancing.enabled = true);
    stage.sim.revoke_tokens();
    stage.sim.advance_clock(Duration::from_secs(1));
    stage.restart().await;
    stage.settle().await;
    assert!(stage.services.is_empty() && stage.balancers().is_empty());
}

/// Runs all due parts for a time. Returns the distinct Events of members.
async fn wait_out(stage: &mut Stage, time: Duration) -> Vec<ServiceEvent> {
    let end = Instant::now() + time;
    let mut warnings = Vec::new();
    loop {
        stage.pass_once().await;
        for event in stage.reports.iter().flat_map(|report| &report.events) {
            if !warnings.contains(event) {
                warnings.push(event.clone());
            }
        }
        let until = stage.reports.iter().filter_map(|report| match report.state {
            PartState::Parked { until, .. } => Some(until),
            _ => None,
        });
        let until = until.min().unwrap();
        if until > end {
            return warnings;
        }
        advance_to(until).await;
    }
}

#[tokio::test]
async fn one_left_pending_is_polled_alone_with_growing_waits_and_reported_once() {
    let mut stage = Stage::new(2, "").await;
    stage.services.push(service("web", &[80]));
    stage.settle().await;
    let id = stage.balancers()[0].loadbalancer.id.clone();
    stage.sim.set_provisioning_status(&id, "PENDING_UPDATE").unwrap();
    stage.restart().await;
    // A plan has no steps either, since the objects below it are not known.
    let balancers = stage.cloud.load_balancers().unwrap();
    let plans = balancers.plan(&stage.request(), None).await.unwrap();
    let [plan] = &plans[..] else { panic!("{plans:?}") };
    assert!(plan.steps.is_empty() && !matches!(plan.state, PartState::Done), "{plan:?}");
    stage.restart().await;
    stage.service("web").ports = service("web", &[80, 443]).ports;
    stage.sim.clear_calls();
    assert_eq!(wait_out(&mut stage, Duration::from_secs(240)).await, []);
    let early = stage.sim.call_counts();
    assert_eq!(early["loadbalancer_list"], 1, "{early:?}");
    let warnings = wait_out(&mut stage, Duration::from_secs(26 * 60)).await;
    let [event] = warnings.as_slice() else {
        panic!("{warnings:?}")
    };
    assert!(event.warning && &*event.service.name == "web", "{event:?}");
    assert!(
        event.message.contains("is PENDING_UPDATE") && event.message.contains("for 5 minutes"),
        "{}",
        event.message
    );
    let counts = stage.sim.call_counts();
    assert_eq!(counts["loadbalancer_list"], 1, "{counts:?}");
    assert!((30..=60).contains(&counts["loadbalancer_get"]), "{counts:?}");
    assert_eq!(stage.cost().0, 0, "nothing is sent meanwhile");
    // The change ends, which is observed within a minute.
    stage.sim.set_provisioning_status(&id, "ACTIVE").unwrap();
    let began = Instant::now();
    stage.settle().await;
    assert!(began.elapsed() < Duration::from_secs(70), "{:?}", began.elapsed());
    stage.assert_no_complaints();
    assert_eq!(stage.balancers()[0].listeners.len(), 2);
}

#[tokio::test]
async fn many_load_balancers_left_pending_share_their_polls() {
    const MANY: usize = 60;
    let mut stage = Stage::new(1, "").await;
    let names = (0..MANY).map(|number| format!("web-{number}"));
    stage.services = names.map(|name| service(&name, &[80])).collect();
    stage.settle().await;
    for balancer in stage.balancers() {
        let id = &balancer.loadbalancer.id;
        stage.sim.set_provisioning_status(id, "PENDING_UPDATE").unwrap();
    }
    stage.restart().await;
    stage.sim.clear_calls();
    let warnings = wait_out(&mut stage, Duration::from_secs(10 * 60)).await;
    assert_eq!(warnings.len(), MANY);
    let counts = stage.sim.call_counts();
    let polls = counts["loadbalancer_list"] + counts.get("loadbalancer_get").copied().unwrap_or_default();
    // Not one poll for each load balancer; real time passes, too.
    assert!(polls < 5 * MANY as u64, "{counts:?}");
}

#[tokio::test]
async fn without_a_version_of_octavia_members_follow_and_deletions_go_on() {
    let page = |code| Action::Status {
        code,
        body: Some("<html>This is not Octavia</html>".to_owned()),
        headers: [("Content-Type".to_owned(), "text/html".to_owned())].into(),
    };
    for action in [
        Action::status(403),
        Action::status(404),
        page(404),
        page(200),
        Action::status(500),
    ] {
        let mut stage = Stage::new(2, MANAGED).await;
        for name in ["stays", "goes"] {
            stage.services.push(service(name, &[80, 443]));
        }
        stage.settle().await;
        let before = stage.balancers();
        let address = stage.address("stays");
        stage.sim.add_fault(Fault::on("version_list", action.clone()));
        stage.restart().await;
        stage.sim.clear_calls();
        stage.join();
        stage.service("goes").deleting = true;
        stage.services.push(service("new", &[80]));
        stage.settle().await;
        let what = format!("{action:?}");
        let complaints = stage.complaints();
        assert!(
            complaints.iter().all(|text| text.contains("version of Octavia")),
            "{what}: {complaints:?}"
        );
        assert!(!complaints.is_empty(), "{what}");
        let [stays] = &stage.balancers()[..] else {
            panic!("{what}: {:?}", stage.balancers())
        };
        let was = before.iter().find(|balancer| balancer.loadbalancer.id == stays.loadbalancer.id).unwrap();
        assert_eq!((stays.members.len(), was.members.len()), (6, 4), "{what}");
        assert_eq!(stays.listeners, was.listeners, "{what}");
        assert_eq!(stage.address("stays"), address, "{what}");
        assert_eq!(stage.services.len(), 2, "{what}");
        // The new node has the security group of the other Service, too.
        assert_eq!(stage.sim.call_counts()["port_update"], 3, "{what}");
        // The version can be read again, which is noticed within ten minutes.
        stage.sim.clear_faults();
        advance_to(Instant::now() + Duration::from_secs(600)).await;
        stage.settle().await;
        assert_eq!(stage.complaints(), [""; 0], "{what}");
        assert_eq!(stage.balancers().len(), 2, "{what}");
    }
}

#[tokio::test]
async fn a_node_port_that_neutron_refuses_stops_no_service() {
    let mut stage = Stage::new(2, MANAGED).await;
    for name in ["stays", "goes"] {
        stage.services.push(service(name, &[80]));
    }
    stage.settle().await;
    stage.join();
    let server = stage.nodes[2].view.provider_id.clone().unwrap();
    let id = server.trim_start_matches("openstack:///");
    let mut groups = stage.sim.security_groups().into_iter();
    let foreign = groups.find(|group| group.name == "default").unwrap();
    let message = format!("Security group {} does not exist", foreign.id);
    let kind = "SecurityGroupNotFound";
    let body = json!({"NeutronError": {"type": kind, "message": message, "detail": ""}});
    let answer = Action::Status {
        code: 404,
        body: Some(body.to_string()),
        headers: Default::default(),
    };
    let mut refused = Fault::on("port_update", answer);
    refused.path = Some(stage.sim.server_ports(id).remove(0));
    stage.sim.add_fault(refused);
    stage.service("goes").deleting = true;
    stage.services.push(service("new", &[81]));
    stage.join();
    stage.settle().await;
    assert!(!stage.address("new").is_empty());
    assert_eq!(stage.services.len(), 2, "the deleted Service has left");
    let complaints = stage.complaints();
    let is_named = |text: &String| text.contains("cannot change security groups of node port");
    assert!(!complaints.is_empty() && complaints.iter().all(is_named), "{complaints:?}");
    stage.sim.clear_faults();
    stage.sim.clear_calls();
    advance_to(Instant::now() + Duration::from_secs(600)).await;
    stage.settle_well().await;
    // The other node joined its groups despite the refusals.
    assert_eq!(stage.sim.call_counts()["port_update"], 1);
}

#[tokio::test]
async fn a_deleted_security_group_keeps_no_other_group_from_new_nodes() {
    let mut stage = Stage::new(1, MANAGED).await;
    for (name, port) in [("a", 80), ("b", 81)] {
        stage.services.push(service(name, &[port]));
    }
    let selector = "loadbalancer.openstack.org/node-selector";
    annotate(stage.service("b"), selector, Some("pool=edge"));
    stage.settle().await;
    let ports_of = |stage: &Stage, name: &str| {
        let mut groups = stage.sim.security_groups().into_iter();
        let group = groups.find(|group| group.name == format!("lb-sg-uid-{name}-shop-{name}"));
        group.map_or_else(Vec::new, |group| group.ports)
    };
    let groups = stage.sim.security_groups();
    let unused = groups.iter().find(|group| group.name.ends_with("-b")).unwrap();
    stage.sim.delete_group(&unused.id).unwrap();
    stage.join();
    Arc::make_mut(&mut stage.nodes[1].view).labels = [("pool", "edge")].into_iter().collect();
    stage.pass_once().await;
    assert_eq!((ports_of(&stage, "a").len(), ports_of(&stage, "b").len()), (2, 0));
    let complaints = stage.complaints();
    assert!(
        matches!(&*complaints, [text] if text.contains("security group lb-sg-uid-b-shop-b")),
        "{complaints:?}"
    );
    stage.settle_well().await;
    assert_eq!((ports_of(&stage, "a").len(), ports_of(&stage, "b").len()), (2, 1));
}

#[tokio::test]
async fn a_service_leaves_a_shared_load_balancer_in_error_when_it_is_repaired() {
    let mut stage = Stage::new(1, "").await;
    stage.services.push(service("web", &[80]));
    stage.settle().await;
    let id = stage.balancers()[0].loadbalancer.id.clone();
    let mut other = service("other", &[81]);
    annotate(&mut other, ID, Some(&id));
    stage.services.push(other);
    stage.settle().await;
    stage.sim.set_provisioning_status(&id, "ERROR").unwrap();
    stage.service("web").deleting = true;
    stage.settle().await;
    assert_eq!((stage.services.len(), stage.balancers()[0].listeners.len()), (2, 2));
    stage.sim.set_provisioning_status(&id, "ACTIVE").unwrap();
    stage.restart().await;
    stage.settle().await;
    assert_eq!((stage.services.len(), stage.balancers()[0].listeners.len()), (1, 1));
}
