//! Every annotation in its place: what the Go cloud controller reads of an existing load balancer, and what it leaves alone.

use ccm_core::{Freshness, testkit};
use ccm_provider_openstack::NAME;
use serde_json::json;

use crate::{
    features::quiet,
    stage::{Stage, annotate, service},
};

/// What the Go cloud controller does with an annotation that is added to a Service with a load balancer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Use {
    /// It updates objects.
    Update,
    /// It reads the annotation only when it creates the object.
    Create,
    /// Only the status of the Service changes.
    Status,
    /// It writes the annotation.
    Written,
    /// It names the load balancer.
    Identity,
    /// It does not know the annotation. Only this program writes it.
    Ours,
    /// It does not know the annotation. Here the status changes.
    OursStatus,
}

const TABLE: &[(&str, &str, Use)] = &[
    ("service.beta.kubernetes.io/openstack-internal-load-balancer", "true", Use::Update),
    ("service.beta.kubernetes.io/load-balancer-source-ranges", "10.0.0.0/8", Use::Update),
    ("load-balancer-id", "", Use::Identity),
    ("load-balancer-address", "", Use::Written),
    ("enable-ingress-hostname", "true", Use::OursStatus),
    ("hostname", "web.example", Use::Status),
    ("class", "", Use::Create),
    ("floating-network-id", "", Use::Create),
    ("floating-subnet-id", "", Use::Create),
    ("floating-subnet", "no-*", Use::Create),
    ("floating-subnet-tags", "none", Use::Create),
    ("keep-floatingip", "true", Use::Create),
    ("subnet-id", "00000000-0000-4000-8000-000000000001", Use::Create),
    ("network-id", "00000000-0000-4000-8000-000000000001", Use::Create),
    ("port-id", "00000000-0000-4000-8000-000000000001", Use::Create),
    ("member-subnet-id", "", Use::Create),
    ("connection-limit", "7", Use::Update),
    ("lb-method", "LEAST_CONNECTIONS", Use::Update),
    ("proxy-protocol", "true", Use::Update),
    ("x-forwarded-for", "true", Use::Update),
    ("default-tls-container-ref", "", Use::Update),
    ("timeout-client-data", "7", Use::Update),
    ("timeout-member-connect", "7", Use::Update),
    ("timeout-member-data", "7", Use::Update),
    ("timeout-tcp-inspect", "7", Use::Update),
    ("enable-health-monitor", "false", Use::Update),
    ("health-monitor-delay", "7", Use::Update),
    ("health-monitor-timeout", "4", Use::Update),
    ("health-monitor-max-retries", "7", Use::Update),
    ("health-monitor-max-retries-down", "7", Use::Update),
    ("flavor-id", "00000000-0000-4000-8000-000000000001", Use::Create),
    ("availability-zone", "elsewhere", Use::Create),
    ("load-balancer-tags", "mine", Use::Update),
    ("listener-tags", "mine", Use::Update),
    ("pool-tags", "mine", Use::Update),
    ("applied-load-balancer-tags", "other", Use::Ours),
    ("applied-listener-tags", "other", Use::Ours),
    ("applied-pool-tags", "other", Use::Ours),
    ("node-selector", "pool=none", Use::Update),
];

fn full(name: &str) -> String {
    match name.contains('/') {
        true => name.to_owned(),
        false => format!("loadbalancer.openstack.org/{name}"),
    }
}

#[tokio::test]
async fn annotations_act_on_an_existing_load_balancer_where_the_go_program_reads_them() {
    // The first column of the reference.
    let reference = (testkit::provider(NAME).config_reference)();
    let rows = reference.lines().filter_map(|line| line.strip_prefix("| `")?.split_once('`'));
    let mut known: Vec<_> = rows.map(|(name, _)| name.to_owned()).filter(|name| name.contains('/')).collect();
    let mut listed: Vec<_> = TABLE.iter().map(|(name, ..)| full(name)).collect();
    known.sort();
    listed.sort();
    assert_eq!(listed, known);

    let mut stage = Stage::new(1, "create-monitor = true").await;
    stage.services.push(service("web", &[80]));
    stage.settle_well().await;
    for (name, value, used) in TABLE.iter().filter(|(_, value, _)| !value.is_empty()) {
        // PROXY shows the effect on the host name.
        if *used == Use::OursStatus {
            annotate(stage.service("web"), &full("proxy-protocol"), Some("true"));
            stage.settle_well().await;
        }
        let before = stage.service("web").ingress.clone();
        stage.sim.clear_calls();
        annotate(stage.service("web"), &full(name), Some(value));
        stage.settle().await;
        let writes = stage.cost().0;
        assert_eq!(writes > 0, *used == Use::Update, "{name}: {:?}", stage.sim.call_counts());
        if matches!(used, Use::Status | Use::OursStatus) {
            assert_ne!(stage.service("web").ingress, before, "{name}");
        }
        annotate(stage.service("web"), &full(name), None);
        annotate(stage.service("web"), &full("proxy-protocol"), None);
        stage.settle_well().await;
    }
}

#[tokio::test]
async fn what_no_one_names_and_the_go_program_leaves_alone_is_left_alone() {
    let mut stage = Stage::new(1, "create-monitor = true\nmanage-security-groups = true").await;
    stage.services.push(service("web", &[80]));
    stage.settle_well().await;
    let balancer = stage.balancers().remove(0);
    let by_hand = [
        (&balancer.loadbalancer, json!({"admin_state_up": false, "description": "mine"})),
        (
            &balancer.listeners[0],
            json!({"admin_state_up": false, "description": "mine", "name": "mine"}),
        ),
        (
            &balancer.pools[0],
            json!({"admin_state_up": false, "description": "mine", "name": "mine"}),
        ),
        (&balancer.healthmonitors[0], json!({"admin_state_up": false, "name": "mine"})),
        (&balancer.members[0], json!({"weight": 7, "backup": true, "admin_state_up": false})),
    ];
    for (object, fields) in by_hand {
        stage.sim.patch_object(&object.id, fields.as_object().unwrap()).unwrap();
    }
    // With a new process, at a comparison with the cloud, and after nodes changed.
    quiet(&mut stage).await;
    stage.read.freshness = Freshness::now();
    stage.sim.clear_calls();
    stage.settle().await;
    assert_eq!(stage.cost().0, 0, "{:?}", stage.sim.call_counts());
    stage.join();
    stage.settle_well().await;
    let now = stage.balancers().remove(0);
    let old = now.members.iter().find(|member| member.id == balancer.members[0].id).unwrap();
    assert_eq!(old.attributes["weight"], 7);
    assert_eq!(now.listeners[0].attributes["admin_state_up"], false);
    assert_eq!(now.pools[0].attributes["description"], "mine");
}
