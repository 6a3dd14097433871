//! Load balancers: the calls, and the objects that they leave.

use std::{
    collections::BTreeSet,
    ops::{Deref, DerefMut},
    sync::Arc,
    time::Duration,
};

use ccm_core::{
    Cloud,
    load_balancer::{Policy, Protocol, ServiceNode, ServiceType, SessionAffinity},
    testkit::{
        cluster::{TestCluster, advance_to, annotate, service},
        nodes::service_node,
    },
};
use ccm_testbed::{
    gce::GceOptions,
    observe::assert_has,
    proxy::{Action, Request, Rule, gce_refusal, is_gce_write},
    test_cloud::{GceCloud, TestCloud as _},
};
use reqwest::Method;
use serde_json::{Value, json};

use crate::stage::build_with;

/// The ID of the cluster, which is in the names of shared objects.
pub(crate) const CLUSTER_ID: &str = "c1";
/// The name of the load balancer of the Service `web`.
const WEB: &str = "auidweb";
pub(crate) const INTERNAL: &str = "networking.gke.io/load-balancer-type";
pub(crate) const NOTHING: Vec<String> = Vec::new();
/// Flags of deny rules.
const DENY: [(&str, &str); 2] = [
    ("enable-l4-deny-firewall", "true"),
    ("enable-l4-deny-firewall-rollback-cleanup", "true"),
];
/// The kinds of objects of load balancers.
const KINDS: [&str; 8] = [
    "addresses",
    "backendServices",
    "firewalls",
    "forwardingRules",
    "healthChecks",
    "httpHealthChecks",
    "instanceGroups",
    "targetPools",
];

/// A provider without state.
pub(crate) async fn start(gce: &GceCloud, conf: &str, flags: &[(&str, &str)]) -> Arc<dyn Cloud> {
    start_as(CLUSTER_ID, gce, conf, flags).await
}

/// A provider without state, for the cluster with this ID.
pub(crate) async fn start_as(id: &str, gce: &GceCloud, conf: &str, flags: &[(&str, &str)]) -> Arc<dyn Cloud> {
    let cloud = build_with(gce, conf, flags).await.unwrap();
    cloud.cluster_id().unwrap().set(Ok(id));
    cloud
}

/// Creates an instance and returns its node.
pub(crate) async fn node(gce: &GceCloud, name: &str) -> ServiceNode {
    let machine = gce.create_machine(name).await.unwrap();
    service_node(name, &machine.provider_id, Vec::new())
}

/// A cluster in a project of its own.
pub(crate) struct Project {
    pub(crate) gce: GceCloud,
    pub(crate) cluster: TestCluster,
    pub(crate) conf: String,
    flags: Vec<(&'static str, &'static str)>,
}

impl Deref for Project {
    type Target = TestCluster;

    fn deref(&self) -> &TestCluster {
        &self.cluster
    }
}

impl DerefMut for Project {
    fn deref_mut(&mut self) -> &mut TestCluster {
        &mut self.cluster
    }
}

impl Project {
    pub(crate) async fn with(
        options: &GceOptions,
        nodes: usize,
        more: &str,
        flags: &[(&'static str, &'static str)],
    ) -> Self {
        let gce = GceCloud::start_with(options).await.unwrap();
        let conf = format!("{}{more}", gce.config());
        let mut cluster = TestCluster::new(start(&gce, &conf, flags).await, advance_to);
        for at in 1..=nodes {
            cluster.nodes.push(node(&gce, &format!("node-{at}")).await);
        }
        gce.proxy.forget();
        let flags = flags.to_vec();
        Self {
            gce,
            cluster,
            conf,
            flags,
        }
    }

    /// A project with three nodes, each in its own zone.
    pub(crate) async fn new() -> Self {
        Self::with(&GceOptions::default(), 3, "", &[]).await
    }

    /// Reconciles until nothing changes; returns the calls that wrote.
    pub(crate) async fn settle(&mut self) -> Vec<String> {
        self.gce.proxy.forget();
        self.cluster.settle().await.unwrap();
        self.writes()
    }

    pub(crate) fn writes(&self) -> Vec<String> {
        self.gce.proxy.writes().into_iter().map(|request| request.name).collect()
    }

    /// As [`Self::settle`], and asserts that no Service has a problem.
    pub(crate) async fn settle_well(&mut self) -> Vec<String> {
        let writes = self.settle().await;
        self.assert_no_complaints();
        writes
    }

    /// Restarts the process without state.
    pub(crate) async fn restart(&mut self) {
        self.cluster.cloud = start(&self.gce, &self.conf, &self.flags).await;
    }

    /// Asserts that neither this process nor the next one writes.
    pub(crate) async fn assert_settled(&mut self) {
        assert_eq!(self.settle_well().await, NOTHING);
        self.restart().await;
        assert_eq!(self.settle_well().await, NOTHING);
    }

    /// The objects of a kind.
    pub(crate) async fn objects(&self, kind: &str) -> Vec<Value> {
        self.gce.objects(&[kind]).await.unwrap().into_values().collect()
    }

    /// The object of a kind with this name.
    pub(crate) async fn object(&self, kind: &str, name: &str) -> Value {
        let objects = self.objects(kind).await;
        let found = objects.iter().find(|object| object["name"] == name);
        found.unwrap_or_else(|| panic!("no {name} in {objects:#?}")).clone()
    }

    /// The names of the objects of all kinds.
    pub(crate) async fn names(&self) -> Vec<String> {
        let objects = self.gce.objects(&KINDS).await.unwrap();
        let short = |path: &String| path.rsplit('/').take(2).collect::<Vec<_>>().join(" of ");
        let mut names: Vec<_> = objects.keys().map(short).collect();
        names.sort();
        names
    }

    /// Reserves an address.
    pub(crate) async fn reserve(&self, name: &str, more: &Value) -> String {
        let mut body = json!({"name": name});
        body.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        self.gce.call(Method::POST, "regions/us-central1/addresses", Some(&body)).await.unwrap();
        self.object("addresses", name).await["address"].as_str().unwrap().to_owned()
    }

    /// The address in the status of a Service.
    pub(crate) fn address(&mut self, name: &str) -> String {
        self.service(name).ingress[0].ip.as_deref().unwrap().to_owned()
    }

    /// Deletes all Services, and asserts that only these objects are left. Returns the calls that wrote.
    pub(crate) async fn delete(&mut self, left: &[&str]) -> Vec<String> {
        for service in &mut self.cluster.services {
            service.deleting = true;
        }
        let writes = self.settle_well().await;
        assert!(self.services.is_empty());
        assert_eq!(self.names().await, left);
        writes
    }
}

/// The last components of the links in a list.
fn last(links: &Value) -> Vec<&str> {
    let links = links.as_array().unwrap().iter();
    links.map(|link| link.as_str().unwrap().rsplit('/').next().unwrap()).collect()
}

#[tokio::test]
async fn an_external_service_has_the_objects_of_the_go_program() {
    let mut project = Project::new().await;
    project.services.push(service("web", &[80, 443, 444]));
    let mut writes = project.settle_well().await;
    writes.sort();
    assert_eq!(
        writes,
        [
            "addresses.delete",
            "addresses.insert",
            "firewalls.insert",
            "firewalls.insert",
            "forwardingRules.insert",
            "httpHealthChecks.insert",
            "targetPools.insert",
        ]
    );
    let address = project.address("web");
    let rule = project.object("forwardingRules", WEB).await;
    assert_eq!((&rule["IPAddress"], &rule["portRange"]), (&json!(address), &json!("80-444")));
    assert_eq!(rule["description"], "{\"kubernetes.io/service-name\":\"shop/web\"}");
    let pool = project.object("targetPools", WEB).await;
    assert_eq!(last(&pool["instances"]), ["node-1", "node-2", "node-3"]);
    assert_eq!(last(&pool["healthChecks"]), ["k8s-c1-node"]);
    let firewall = project.object("firewalls", "k8s-fw-auidweb").await;
    assert_eq!(firewall["destinationRanges"], json!([address]));
    assert_eq!(firewall["allowed"], json!([{"IPProtocol": "tcp", "ports": ["80", "443-444"]}]));
    assert_eq!(firewall["targetTags"], json!(["node"]));
    assert_eq!(firewall["sourceRanges"], json!(["0.0.0.0/0"]));
    assert_has(firewall["description"].as_str().unwrap(), &["shop/web", &address]);
    // It serves the addresses of all load balancers.
    let shared = project.object("firewalls", "k8s-c1-node-http-hc").await;
    assert!(shared.get("destinationRanges").is_none(), "{shared}");
    let check = project.object("httpHealthChecks", "k8s-c1-node").await;
    assert_eq!((&check["port"], &check["requestPath"]), (&json!(10256), &json!("/healthz")));
    project.assert_settled().await;

    // A second one shares the health check.
    project.services.push(service("api", &[80]));
    project.settle_well().await;
    assert_ne!(project.address("api"), project.address("web"));
    assert_eq!(project.objects("httpHealthChecks").await.len(), 1);
    project.assert_settled().await;
    project.delete(&[]).await;
}

#[tokio::test]
async fn the_address_survives_changes_that_replace_the_forwarding_rule() {
    let mut project = Project::new().await;
    project.services.push(service("web", &[80, 443]));
    project.settle_well().await;
    let address = project.address("web");

    // Other ports need another forwarding rule, and the address is reserved before it is deleted.
    project.service("web").ports = service("web", &[443, 8080]).ports;
    let writes = project.settle_well().await;
    let deleted = writes.iter().position(|write| write == "forwardingRules.delete").unwrap();
    let reserved = writes.iter().position(|write| write == "addresses.insert").unwrap();
    assert!(reserved < deleted, "{writes:?}");
    assert_eq!(project.address("web"), address);
    assert_eq!(project.object("forwardingRules", WEB).await["portRange"], "443-8080");
    project.assert_settled().await;

    // Other clients do not.
    project.service("web").source_ranges = Some(vec!["10.0.0.0/8".into()]);
    assert_eq!(project.settle_well().await, ["firewalls.patch"]);
    project.service("web").session_affinity = SessionAffinity::ClientIp {
        timeout_seconds: None,
    };
    project.settle_well().await;
    assert_eq!(project.object("targetPools", WEB).await["sessionAffinity"], "CLIENT_IP");
    assert_eq!(project.address("web"), address);

    // The health check is that of the Service, and back.
    let web = project.service("web");
    (web.external_policy, web.health_check_node_port) = (Policy::Local, 32000);
    project.settle_well().await;
    assert_eq!(project.object("httpHealthChecks", WEB).await["port"], 32000);
    assert_eq!(project.objects("httpHealthChecks").await.len(), 1);
    project.object("firewalls", "k8s-auidweb-http-hc").await;
    project.assert_settled().await;
    let web = project.service("web");
    (web.external_policy, web.health_check_node_port) = (Policy::Cluster, 0);
    for port in &mut web.ports {
        port.protocol = Protocol::Udp;
    }
    project.settle_well().await;
    assert_eq!(project.object("forwardingRules", WEB).await["IPProtocol"], "UDP");
    assert_eq!(project.address("web"), address);
    assert_eq!(project.objects("addresses").await, [Value::Null; 0]);
    project.assert_settled().await;
    project.delete(&[]).await;
}

#[tokio::test]
async fn nodes_leave_and_join_with_one_write() {
    let mut project = Project::new().await;
    project.services.push(service("web", &[80]));
    project.settle_well().await;
    let left = project.nodes.pop().unwrap();
    assert_eq!(project.settle_well().await, ["targetPools.removeInstance"]);
    let pool = project.object("targetPools", WEB).await;
    assert_eq!(last(&pool["instances"]), ["node-1", "node-2"]);
    project.nodes.push(left);
    let joined = node(&project.gce, "node-4").await;
    project.nodes.push(joined);
    assert_eq!(project.settle_well().await, ["targetPools.addInstance"]);
    assert_eq!(project.object("targetPools", WEB).await["instances"].as_array().unwrap().len(), 4);
    project.assert_settled().await;
    project.delete(&[]).await;
}

#[tokio::test]
async fn an_internal_service_has_the_objects_of_the_go_program() {
    let mut project = Project::new().await;
    project.services.push(service("web", &[80, 443]));
    annotate(project.service("web"), INTERNAL, Some("Internal"));
    project.settle_well().await;
    let address = project.address("web");
    let rule = project.object("forwardingRules", WEB).await;
    assert_eq!(rule["IPAddress"], json!(address));
    assert_eq!(
        (&rule["loadBalancingScheme"], &rule["ports"]),
        (&json!("INTERNAL"), &json!(["443", "80"]))
    );
    let backend = project.object("backendServices", WEB).await;
    let backends = backend["backends"].as_array().unwrap();
    assert_eq!(backends.len(), 3);
    assert_eq!(last(&backend["healthChecks"]), ["k8s-c1-node"]);
    let groups = project.objects("instanceGroups").await;
    assert!(groups.iter().all(|group| group["name"] == "k8s-ig--c1"), "{groups:#?}");
    project.object("firewalls", "k8s-c1-node-hc").await;
    let firewall = project.object("firewalls", "k8s-fw-auidweb").await;
    assert_eq!(firewall["destinationRanges"], json!([address]));
    project.assert_settled().await;

    // A zone loses its last node: the backend service drops the group, and the group becomes empty.
    let left = project.nodes.pop().unwrap();
    project.settle_well().await;
    let backend = project.object("backendServices", WEB).await;
    assert_eq!(backend["backends"].as_array().unwrap().len(), 2);
    let groups = project.objects("instanceGroups").await;
    let mut sizes: Vec<_> =
        groups.iter().map(|group| group["instances"].as_array().map_or(0, Vec::len)).collect();
    sizes.sort_unstable();
    assert_eq!(sizes, [0, 1, 1], "{groups:#?}");
    project.nodes.push(left);
    project.settle_well().await;
    project.assert_settled().await;

    // More than five ports are all ports; clients in all regions.
    project.service("web").ports = service("web", &[1, 2, 3, 4, 5, 6]).ports;
    annotate(
        project.service("web"),
        "networking.gke.io/internal-load-balancer-allow-global-access",
        Some("true"),
    );
    project.settle_well().await;
    let rule = project.object("forwardingRules", WEB).await;
    assert_eq!((&rule["allPorts"], &rule["allowGlobalAccess"]), (&json!(true), &json!(true)));
    assert_eq!(project.address("web"), address);
    project.assert_settled().await;

    // Another protocol, which a backend service cannot get while a rule refers to it.
    for port in &mut project.service("web").ports {
        port.protocol = Protocol::Udp;
    }
    project.settle_well().await;
    assert_eq!(project.object("backendServices", WEB).await["protocol"], "UDP");
    project.assert_settled().await;

    // To an external one: the address changes, and nothing internal is left.
    annotate(project.service("web"), INTERNAL, None);
    project.settle_well().await;
    assert_ne!(project.address("web"), address);
    for kind in ["backendServices", "healthChecks", "instanceGroups", "addresses"] {
        assert_eq!(project.objects(kind).await, [Value::Null; 0], "{kind}");
    }
    project.assert_settled().await;
    project.delete(&[]).await;
}

/// The Go program tries all zones of the region.
#[tokio::test]
async fn groups_are_deleted_only_in_zones_that_have_one() {
    let mut project = Project::new().await;
    project.services.push(service("web", &[80]));
    annotate(project.service("web"), INTERNAL, Some("Internal"));
    project.settle_well().await;
    let mut writes = project.delete(&[]).await;
    writes.retain(|write| write.starts_with("instanceGroups."));
    assert_eq!(writes, ["instanceGroups.delete"; 3]);
}

/// The Go program writes for the only destination the address of the Service that came first, also after its deletion.
#[tokio::test]
async fn health_checks_reach_the_addresses_of_all_services() {
    let mut project = Project::new().await;
    project.services.push(service("web", &[80]));
    project.settle_well().await;
    // As the Go program left it.
    let shared = "k8s-c1-node-http-hc";
    let destination = json!({"destinationRanges": [project.address("web")]});
    let path = format!("global/firewalls/{shared}");
    project.gce.call(Method::PATCH, &path, Some(&destination)).await.unwrap();
    project.restart().await;
    project.services.push(service("api", &[80]));
    project.settle_well().await;
    let firewall = project.object("firewalls", shared).await;
    let destinations = firewall["destinationRanges"].as_array().map_or(0, Vec::len);
    assert_eq!(destinations, 0, "{firewall}");
    project.assert_settled().await;
    project.delete(&[]).await;
}

/// In the Go program, every pass fails from then on.
#[tokio::test]
async fn a_load_balancer_keeps_its_tier_without_the_annotation() {
    const TIER: &str = "cloud.google.com/network-tier";
    let mut project = Project::new().await;
    project.services.push(service("web", &[80]));
    annotate(project.service("web"), TIER, Some("Standard"));
    project.settle_well().await;
    let address = project.address("web");
    annotate(project.service("web"), TIER, None);
    assert_eq!(project.settle_well().await, NOTHING);
    project.service("web").ports = service("web", &[443]).ports;
    project.settle_well().await;
    let rule = project.object("forwardingRules", WEB).await;
    assert_eq!((&rule["networkTier"], &rule["IPAddress"]), (&json!("STANDARD"), &json!(address)));
    project.assert_settled().await;
    project.delete(&[]).await;
}

/// The Go program does the whole work again, since the annotation changes the Service.
#[tokio::test]
async fn the_annotation_with_a_name_costs_no_call() {
    let flags = [("enable-l4-lb-annotations", "true")];
    let mut project = Project::with(&GceOptions::default(), 2, "", &flags).await;
    project.services.push(service("web", &[80]));
    project.settle_well().await;
    let annotation = project.service("web").annotation("networking.gke.io/target-pool").map(str::to_owned);
    assert_eq!(annotation.as_deref(), Some(WEB));
    assert_eq!(project.settle_well().await, NOTHING);
    let calls: Vec<_> = project.gce.proxy.requests().into_iter().map(|request| request.name).collect();
    assert_eq!(calls, [""; 0]);
    project.delete(&[]).await;
}

/// In the Go program, the address comes back only because nobody took it.
#[tokio::test]
async fn a_deleted_forwarding_rule_gets_another_address_if_its_own_is_taken_and_nobody_reserved_it() {
    for is_reserved in [false, true] {
        let mut project = Project::new().await;
        project.services.push(service("web", &[80]));
        project.settle_well().await;
        let address = project.address("web");
        let own = format!("projects/{}/regions/us-central1/forwardingRules/{WEB}", project.gce.project());
        project.gce.remove(&own).await.unwrap();
        // The ephemeral address is the next free one.
        let mut left = vec!["theirs of forwardingRules", "theirs of targetPools"];
        if is_reserved {
            project.reserve("theirs", &json!({"networkTier": "PREMIUM"})).await;
            left.insert(0, "theirs of addresses");
        }
        let target = "regions/us-central1/targetPools";
        project.gce.call(Method::POST, target, Some(&json!({"name": "theirs"}))).await.unwrap();
        let mut rule = json!({
            "name": "theirs", "IPProtocol": "TCP", "portRange": "80-80", "target": format!("{target}/theirs"),
        });
        if is_reserved {
            rule["IPAddress"] = json!(address);
        }
        project
            .gce
            .call(Method::POST, "regions/us-central1/forwardingRules", Some(&rule))
            .await
            .unwrap();
        assert_eq!(project.object("forwardingRules", "theirs").await["IPAddress"], json!(address));

        project.restart().await;
        project.cluster.settle_despite_failures().await.unwrap();
        if is_reserved {
            // It may have been reserved for this Service, so that no other address takes its place.
            project.assert_complaints(&["forwardingRules/theirs uses this address and port"]);
        } else {
            project.assert_no_complaints();
            assert_ne!(project.address("web"), address);
            let firewall = project.object("firewalls", "k8s-fw-auidweb").await;
            assert_eq!(firewall["destinationRanges"], json!([project.address("web")]));
            project.assert_settled().await;
        }
        project.delete(&left).await;
    }
}

#[tokio::test]
async fn internal_services_share_groups_and_backend_services() {
    let mut project = Project::new().await;
    for name in ["web", "api"] {
        project.services.push(service(name, &[80]));
        annotate(project.service(name), INTERNAL, Some("Internal"));
        annotate(project.service(name), "alpha.cloud.google.com/load-balancer-backend-share", Some("true"));
    }
    project.settle_well().await;
    let backends = project.objects("backendServices").await;
    assert_eq!(backends.len(), 1);
    assert_eq!(backends[0]["name"], "k8s-c1-internal-tcp-nmv1-6eef6648406c333a");
    assert_eq!(project.objects("instanceGroups").await.len(), 3);
    project.assert_settled().await;
    project.service("api").service_type = ServiceType::ClusterIp;
    project.settle_well().await;
    assert_eq!(project.objects("backendServices").await.len(), 1);
    project.assert_settled().await;
    // It has no finalizer any more.
    project.services.pop();
    project.delete(&[]).await;
}

#[tokio::test]
async fn deny_rules_come_after_the_rules_that_admit_traffic() {
    let mut project = Project::new().await;
    project.services.push(service("web", &[80]));
    project.settle_well().await;
    project.flags = DENY.to_vec();
    project.restart().await;
    let writes = project.settle_well().await;
    assert_eq!(writes, ["firewalls.patch", "firewalls.patch", "firewalls.insert"]);
    let deny = project.object("firewalls", "k8s-fw-auidweb-deny").await;
    assert_eq!((&deny["priority"], &deny["denied"]), (&json!(1000), &json!([{"IPProtocol": "all"}])));
    assert_eq!(project.object("firewalls", "k8s-fw-auidweb").await["priority"], 999);
    project.assert_settled().await;
    project.flags = vec![DENY[1]];
    project.restart().await;
    let writes = project.settle_well().await;
    assert_eq!(project.objects("firewalls").await.len(), 2, "{writes:?}");
    assert_eq!(project.object("firewalls", "k8s-fw-auidweb").await["priority"], 1000);
    project.assert_settled().await;
    project.delete(&[]).await;
}

#[tokio::test]
async fn a_reserved_address_is_used_and_never_released() {
    let mut project = Project::new().await;
    let first = project.reserve("mine", &json!({"networkTier": "PREMIUM"})).await;
    let second = project.reserve("other", &json!({"networkTier": "PREMIUM"})).await;
    let standard = project.reserve("standard", &json!({"networkTier": "STANDARD"})).await;
    project.services.push(service("web", &[80]));
    project.service("web").load_balancer_ip = first.as_str().into();
    let writes = project.settle_well().await;
    assert!(!writes.contains(&"addresses.insert".to_owned()), "{writes:?}");
    assert_eq!(project.address("web"), first);
    project.assert_settled().await;
    project.service("web").load_balancer_ip = second.as_str().into();
    project.settle_well().await;
    assert_eq!(project.address("web"), second);
    // The address stays when it is no longer requested.
    project.service("web").load_balancer_ip = "".into();
    assert_eq!(project.settle_well().await, NOTHING);
    assert_eq!(project.address("web"), second);
    // One of another tier is refused, and the load balancer stays.
    project.service("web").load_balancer_ip = standard.as_str().into();
    assert_eq!(project.settle().await, NOTHING);
    project.assert_complaints(&["belongs to the Standard network tier, not to Premium"]);
    annotate(project.service("web"), "cloud.google.com/network-tier", Some("Standard"));
    project.settle_well().await;
    assert_eq!(project.address("web"), standard);
    assert_eq!(project.object("forwardingRules", WEB).await["networkTier"], "STANDARD");
    // Without the annotation, it keeps its tier.
    annotate(project.service("web"), "cloud.google.com/network-tier", None);
    project.service("web").load_balancer_ip = "".into();
    assert_eq!(project.settle_well().await, NOTHING);
    project.service("web").load_balancer_ip = "203.0.113.7".into();
    assert_eq!(project.settle().await, NOTHING);
    project.assert_complaints(&["203.0.113.7 is neither reserved in region us-central1"]);
    project
        .delete(&["mine of addresses", "other of addresses", "standard of addresses"])
        .await;
}

#[tokio::test]
async fn an_internal_service_takes_a_reserved_address() {
    let mut project = Project::new().await;
    let subnetwork = "projects/test-project/regions/us-central1/subnetworks/default";
    let address = project
        .reserve("mine", &json!({"addressType": "INTERNAL", "subnetwork": subnetwork}))
        .await;
    project.services.push(service("web", &[80]));
    annotate(project.service("web"), INTERNAL, Some("Internal"));
    project.service("web").load_balancer_ip = address.as_str().into();
    project.settle_well().await;
    assert_eq!(project.address("web"), address);
    project.assert_settled().await;
    // The address stays when it is no longer requested.
    project.service("web").load_balancer_ip = "".into();
    assert_eq!(project.settle_well().await, NOTHING);
    project.service("web").ports = service("web", &[443]).ports;
    project.settle_well().await;
    assert_eq!(project.address("web"), address);
    project.assert_settled().await;
    project.delete(&["mine of addresses"]).await;
}

#[tokio::test]
async fn operations_that_take_time_are_awaited() {
    let options = GceOptions {
        operation: Duration::from_millis(20),
        ..GceOptions::default()
    };
    let mut project = Project::with(&options, 3, "", &DENY).await;
    project.services.push(service("web", &[80]));
    project.services.push(service("api", &[80]));
    annotate(project.service("api"), INTERNAL, Some("Internal"));
    project.settle_well().await;
    let address = project.address("web");
    let deny = project.object("firewalls", "k8s-fw-auidweb-deny").await;
    assert_eq!(deny["destinationRanges"], json!([address]));
    let backend = project.object("backendServices", "auidapi").await;
    assert_eq!(backend["backends"].as_array().unwrap().len(), 3);
    project.assert_settled().await;
    for name in ["web", "api"] {
        project.service(name).ports = service(name, &[443]).ports;
    }
    project.settle_well().await;
    assert_eq!(project.address("web"), address);
    project.assert_settled().await;
    project.nodes.pop();
    project.settle_well().await;
    project.assert_settled().await;
    project.delete(&[]).await;
}

#[tokio::test]
async fn firewall_rules_are_left_to_users_on_request() {
    let unmanaged = "firewall-management = unmanaged\n";
    let mut project = Project::with(&GceOptions::default(), 2, unmanaged, &[]).await;
    project.services.push(service("web", &[80]));
    project.settle_well().await;
    assert_eq!(project.objects("firewalls").await, [Value::Null; 0]);
    project.assert_settled().await;
    project.delete(&[]).await;
}

#[tokio::test]
async fn the_role_has_the_permissions_for_load_balancers() {
    let role = include_str!("../../../../deploy/gce/role.yaml");
    let granted: BTreeSet<_> = role.lines().filter_map(|line| line.strip_prefix("- ")).collect();
    let mut project = Project::with(&GceOptions::default(), 3, "", &DENY).await;
    let reserved = project.reserve("mine", &json!({"networkTier": "PREMIUM"})).await;
    project.gce.take_permissions().await.unwrap();
    project.services.push(service("web", &[80]));
    project.services.push(service("api", &[80]));
    annotate(project.service("api"), INTERNAL, Some("Internal"));
    project.settle_well().await;
    for name in ["web", "api"] {
        let changed = project.service(name);
        changed.ports = service(name, &[443]).ports;
        changed.source_ranges = Some(vec!["10.0.0.0/8".into()]);
    }
    project.nodes.pop();
    project.settle_well().await;
    project.service("web").load_balancer_ip = reserved.as_str().into();
    project.settle_well().await;
    project.delete(&["mine of addresses"]).await;
    let used = project.gce.take_permissions().await.unwrap();
    assert!(used.contains("compute.firewalls.create"), "{used:?}");
    let missing: Vec<_> = used.iter().filter(|used| !granted.contains(used.as_str())).collect();
    assert_eq!(missing, [""; 0]);
}

#[tokio::test]
async fn firewall_changes_that_shared_vpc_forbids_are_commands_in_events() {
    let options = GceOptions {
        projects: vec!["test-project".to_owned(), "host-project".to_owned()],
        ..GceOptions::default()
    };
    let mut project = Project::with(&options, 2, "network-project-id = host-project\n", &[]).await;
    let refused = |request: &Request| request.name.starts_with("firewalls.") && is_gce_write(&request.name);
    project
        .gce
        .proxy
        .add(Rule::when(refused, Action::answer(403, gce_refusal(403, "forbidden"))));
    project.services.push(service("web", &[80]));
    project.settle_well().await;
    assert!(!project.address("web").is_empty());
    let events: Vec<_> = project
        .reports
        .iter()
        .flat_map(|report| &report.events)
        .filter(|event| event.reason == "LoadBalancerManualChange")
        .map(|event| event.message.clone())
        .collect();
    let commands = events.join("; ");
    assert_has(
        &commands,
        &[
            "gcloud compute firewall-rules create k8s-fw-auidweb --network default",
            "gcloud compute firewall-rules create k8s-c1-node-http-hc --network default",
            "--project host-project",
        ],
    );
}
