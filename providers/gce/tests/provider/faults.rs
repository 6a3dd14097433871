//! Load balancers with bad input, in a project with other users, and with calls that fail.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use ccm_core::{
    load_balancer::{OrphanPart, Protocol, ServiceId, SessionAffinity},
    testkit::{
        cluster::{TestCluster, advance_to, annotate, service},
        nodes::service_node,
    },
};
use ccm_testbed::{
    gce::{GceOptions, ZONES},
    observe::assert_has,
    proxy::{Action, Rule, gce_refusal, is_gce_write},
};
use reqwest::Method;
use serde_json::{Value, json};
use tokio::time::Instant;

use crate::load_balancers::{INTERNAL, NOTHING, Project, node, start_as};

/// A zone that did not answer is read again after this.
const SILENT_AGE: Duration = Duration::from_secs(60);
/// The annotation that names a subnetwork.
const SUBNET: &str = "networking.gke.io/internal-load-balancer-subnet";

/// The load balancers whose Services do not exist, for a process that has just started.
async fn orphans(cluster: &TestCluster) -> Vec<OrphanPart> {
    let mut orphans = cluster.discover().await.unwrap().orphans.unwrap();
    orphans.sort_by(|one, other| one.what.cmp(&other.what));
    orphans
}

fn descriptions(orphans: &[OrphanPart]) -> Vec<&str> {
    orphans.iter().map(|orphan| orphan.what.as_str()).collect()
}

/// An external Service `web` and an internal one `api`.
fn add_one_of_each(project: &mut Project) {
    for name in ["web", "api"] {
        project.cluster.services.push(service(name, &[80]));
    }
    annotate(project.service("api"), INTERNAL, Some("Internal"));
}

#[tokio::test]
async fn load_balancers_without_a_service_are_reported_and_stay() {
    let mut project = Project::new().await;
    add_one_of_each(&mut project);
    project.settle_well().await;
    let names = project.names().await;
    let lost = std::mem::take(&mut project.cluster.services);
    project.restart().await;
    let found = orphans(&project.cluster).await;
    assert_eq!(
        descriptions(&found),
        [
            "backend service auidapi of Service shop/api",
            "target pool auidweb of Service shop/web"
        ]
    );
    assert!(found.iter().all(|orphan| !orphan.deletable), "{found:?}");
    assert_eq!(project.settle().await, NOTHING);
    assert_eq!(project.names().await, names);

    // A target pool with an instance that is no node may be another cluster's.
    project.cluster.nodes.pop();
    project.restart().await;
    let found = orphans(&project.cluster).await;
    assert_eq!(descriptions(&found), ["backend service auidapi of Service shop/api"]);

    let left = node(&project.gce, "node-3b").await;
    project.cluster.nodes.push(left);
    project.cluster.services = lost;
    project.settle_well().await;
    project.delete(&[]).await;
}

#[tokio::test]
async fn two_clusters_in_one_project_leave_each_other_alone() {
    let mut project = Project::new().await;
    add_one_of_each(&mut project);
    project.settle_well().await;
    let alone = project.names().await;

    let cloud = start_as("c2", &project.gce, &project.conf, &[]).await;
    let mut other = TestCluster::new(cloud, advance_to);
    for at in 4..=6 {
        let name = format!("node-{at}");
        other.nodes.push(node(&project.gce, &name).await);
    }
    for name in ["web", "api"] {
        let mut of_other = service(name, &[80]);
        of_other.id = ServiceId::new("shop", name, format!("other-{name}"));
        other.services.push(of_other);
    }
    annotate(other.service("api"), INTERNAL, Some("Internal"));
    other.settle_well().await;
    project.assert_settled().await;
    assert_eq!(descriptions(&orphans(&project.cluster).await), [""; 0]);
    for service in &mut other.services {
        service.deleting = true;
    }
    other.settle_well().await;
    assert_eq!(project.names().await, alone);
    project.assert_settled().await;
    project.delete(&[]).await;
}

#[tokio::test]
async fn an_internal_load_balancer_needs_a_subnetwork() {
    let mut project = Project::with(&GceOptions::default(), 0, "", &[]).await;
    let without = project.conf.replace("subnetwork-name = default\n", "");
    let on_network =
        |name: &str| without.replace("network-name = default", &format!("network-name = {name}"));
    for (network, annotation, expected) in [
        // In auto mode, the subnetwork with the name of the network.
        ("default", None, Ok("default")),
        ("default", Some("other"), Ok("other")),
        ("custom", None, Ok("custom")),
        ("dual", None, Err("network \"dual\" has 2 subnetworks in region us-central1")),
        ("dual", Some("dual-internal"), Ok("dual-internal")),
        ("legacy", None, Err("network \"legacy\" is a legacy network, which has no subnetworks")),
        ("legacy", Some("default"), Err("network \"legacy\" is a legacy network")),
    ] {
        project.conf = on_network(network);
        let interface = match network {
            "legacy" => json!({"network": "global/networks/legacy"}),
            _ => {
                let subnetwork = expected.unwrap_or("dual-internal");
                let subnetwork = format!("regions/us-central1/subnetworks/{subnetwork}");
                json!({"network": format!("global/networks/{network}"), "subnetwork": subnetwork})
            }
        };
        let fields = json!({"tags": {"items": ["node"]}, "networkInterfaces": [interface]});
        let name = format!("node-{network}-{}", annotation.is_some());
        project
            .gce
            .create_instances(std::slice::from_ref(&name), &ZONES[..1], &fields)
            .await
            .unwrap();
        let id = format!("gce://{}/{}/{name}", project.gce.project(), ZONES[0]);
        project.cluster.nodes = vec![service_node(&name, &id, Vec::new())];
        project.restart().await;
        project.cluster.services.push(service("web", &[80]));
        annotate(project.service("web"), INTERNAL, Some("Internal"));
        annotate(project.service("web"), SUBNET, annotation);
        match expected {
            Ok(subnetwork) => {
                project.settle_well().await;
                let rule = project.object("forwardingRules", "auidweb").await;
                let link = rule["subnetwork"].as_str().unwrap();
                assert!(link.ends_with(&format!("/subnetworks/{subnetwork}")), "{network}: {link}");
            }
            Err(text) => {
                assert_eq!(project.settle().await, NOTHING, "{network}");
                project.assert_complaints(&[text]);
            }
        }
        project.delete(&[]).await;
    }
}

#[tokio::test]
async fn bad_input_is_refused_by_name() {
    let mut project = Project::new().await;
    project.conf = project.conf.replace("node-tags = node\n", "");
    let bare = node(&project.gce, "bare-1").await;
    project.restart().await;
    project.cluster.services.push(service("web", &[80]));
    project.cluster.nodes.push(bare);
    assert_eq!(project.settle().await, NOTHING);
    project.assert_complaints(&["instances bare-1 have none that is a prefix of their name; set node-tags"]);
    project.cluster.nodes.pop();
    let many: Vec<u16> = (1..=101).map(|at| 2 * at).collect();
    project.service("web").ports = service("web", &many).ports;
    assert_eq!(project.settle().await, NOTHING);
    project.assert_complaints(&["they are 101 ranges of ports, and a firewall rule has at most 100"]);
    project.service("web").ports = service("web", &[80]).ports;
    project.settle_well().await;
    project.delete(&[]).await;
}

#[tokio::test]
async fn an_address_that_another_load_balancer_uses_is_refused() {
    let mut project = Project::new().await;
    let mine = project.reserve("mine", &json!({"networkTier": "PREMIUM"})).await;
    for name in ["web", "api"] {
        project.cluster.services.push(service(name, &[80]));
    }
    project.service("web").load_balancer_ip = mine.as_str().into();
    project.settle_well().await;
    let taken = project.address("web");
    project.service("api").load_balancer_ip = taken.as_str().into();
    project.settle().await;
    project.assert_complaints(&[&mine]);
    assert_eq!(project.address("web"), taken);
    project.service("api").load_balancer_ip = "".into();
    project.settle_well().await;
    assert_ne!(project.address("api"), taken);
    project.delete(&["mine of addresses"]).await;
}

#[tokio::test]
async fn an_instance_that_was_deleted_since_it_was_listed_is_left_out() {
    let mut project = Project::new().await;
    project.cluster.services.push(service("web", &[80]));
    project.settle_well().await;
    let instances = project.gce.objects(&["instances"]).await.unwrap();
    let gone = instances.keys().find(|path| path.ends_with("/node-3")).unwrap();
    project.gce.remove(gone).await.unwrap();
    project.cluster.services.push(service("api", &[80]));
    project.cluster.settle_despite_failures().await.unwrap();
    project.assert_no_complaints();
    let pool = project.object("targetPools", "auidapi").await;
    assert_eq!(pool["instances"].as_array().unwrap().len(), 2);
    let events = project.reports.iter().flat_map(|report| &report.events);
    let events: Vec<_> = events.map(|event| event.message.as_str()).collect();
    assert_has(&events.join("; "), &["node-3", "does not exist"]);
}

#[tokio::test]
async fn a_zone_that_does_not_answer_stops_only_what_needs_it() {
    let mut project = Project::new().await;
    add_one_of_each(&mut project);
    project.settle_well().await;
    let names = project.names().await;
    let joined = node(&project.gce, "node-4").await;
    let zone = format!("/zones/{}/", ZONES[1]);
    let silent = Rule::when(move |request| request.path.contains(&zone), Action::Reset);
    let silent = project.gce.proxy.add(silent);
    project.restart().await;
    project.cluster.nodes.push(joined);
    project.service("web").source_ranges = Some(vec!["10.0.0.0/8".into()]);
    project.service("api").session_affinity = SessionAffinity::ClientIp {
        timeout_seconds: None,
    };
    project.settle().await;
    project.assert_complaints(&[ZONES[1], "the zone does not answer"]);
    assert_eq!(project.names().await, names);
    // The external load balancer has its new form and the node of another zone, and keeps the one of the silent zone.
    assert_eq!(project.object("firewalls", "k8s-fw-auidweb").await["sourceRanges"], json!(["10.0.0.0/8"]));
    let pool = project.object("targetPools", "auidweb").await;
    assert_eq!(pool["instances"].as_array().unwrap().len(), 4);
    // The internal one waits for the instance group of the silent zone.
    let backend = project.object("backendServices", "auidapi").await;
    assert_eq!(backend["backends"].as_array().unwrap().len(), 3);
    assert_ne!(backend["sessionAffinity"], "CLIENT_IP");

    project.gce.proxy.remove(silent);
    advance_to(Instant::now() + SILENT_AGE).await;
    project.cluster.settle_despite_failures().await.unwrap();
    project.assert_no_complaints();
    assert_eq!(project.object("backendServices", "auidapi").await["sessionAffinity"], "CLIENT_IP");
    project.delete(&[]).await;
}

#[tokio::test]
async fn an_object_that_another_program_uses_stays() {
    let mut project = Project::new().await;
    project.cluster.services.push(service("web", &[80]));
    project.settle_well().await;
    let pool = json!({"name": "theirs", "healthChecks": ["global/httpHealthChecks/k8s-c1-node"]});
    project
        .gce
        .call(Method::POST, "regions/us-central1/targetPools", Some(&pool))
        .await
        .unwrap();
    project
        .delete(&[
            "k8s-c1-node of httpHealthChecks",
            "k8s-c1-node-http-hc of firewalls",
            "theirs of targetPools",
        ])
        .await;

    // The next Service uses it, and it is deleted with that one when nobody else needs it.
    project.cluster.services.push(service("web", &[80]));
    project.settle_well().await;
    let theirs = format!("projects/{}/regions/us-central1/targetPools/theirs", project.gce.project());
    project.gce.remove(&theirs).await.unwrap();
    project.restart().await;
    project.delete(&[]).await;
}

#[tokio::test]
async fn mixed_protocols_are_a_condition_until_they_are_corrected() {
    let mut project = Project::new().await;
    let mut mixed = service("web", &[53, 54]);
    mixed.ports[1].protocol = Protocol::Udp;
    project.cluster.services.push(mixed);
    assert_eq!(project.settle().await, NOTHING);
    let mut members = project.reports.iter().flat_map(|report| &report.members);
    let condition = members.find_map(|member| member.early.conditions.get("LoadBalancerPortsError")).cloned();
    let condition = condition.unwrap();
    assert!(condition.is_true);
    assert_eq!(&*condition.reason, "LoadBalancerMixedProtocolNotSupported");
    let events: Vec<_> = project.reports.iter().flat_map(|report| &report.events).collect();
    assert!(
        events.iter().any(|event| event.warning && event.reason == &*condition.reason),
        "{events:?}"
    );

    // As the service controller writes it.
    project.service("web").conditions = vec![condition];
    project.service("web").ports = service("web", &[53, 54]).ports;
    project.settle_well().await;
    let conditions = project.reports.iter().flat_map(|report| &report.members);
    let conditions: Vec<_> = conditions.flat_map(|member| member.effects.conditions.values()).collect();
    assert!(
        !conditions.is_empty() && conditions.iter().all(|condition| !condition.is_true),
        "{conditions:?}"
    );
    project.delete(&[]).await;
}

/// A call that fails once.
struct Fault {
    service: &'static str,
    method: &'static str,
    status: u16,
    reason: &'static str,
    /// The Event of the Service; empty if there is none, since the call is repeated.
    complaint: &'static str,
}

#[tokio::test]
async fn a_service_is_served_after_a_call_or_an_operation_fails() {
    const FORBIDDEN: (u16, &str) = (403, "forbidden");
    const QUOTA: (u16, &str) = (403, "quotaExceeded");
    const STALE: (u16, &str) = (412, "conditionNotMet");
    const NOT_READY: (u16, &str) = (400, "resourceNotReady");
    const BACKEND: (u16, &str) = (503, "backendError");
    let fault = |service, method, (status, reason), complaint| Fault {
        service,
        method,
        status,
        reason,
        complaint,
    };
    let faults = [
        fault("web", "httpHealthChecks.insert", BACKEND, ""),
        fault("web", "targetPools.insert", QUOTA, "quotaExceeded"),
        fault("web", "forwardingRules.insert", FORBIDDEN, "forbidden"),
        fault("web", "addresses.insert", QUOTA, "quotaExceeded"),
        fault("web", "firewalls.insert", NOT_READY, ""),
        fault("api", "instanceGroups.insert", QUOTA, "quotaExceeded"),
        fault("api", "instanceGroups.addInstances", NOT_READY, ""),
        fault("api", "regionBackendServices.insert", NOT_READY, ""),
        fault("api", "forwardingRules.insert", QUOTA, "quotaExceeded"),
    ];
    let mut project = Project::new().await;
    for late in [false, true] {
        for Fault {
            service: name,
            method,
            status,
            reason,
            complaint,
        } in &faults
        {
            let what = format!("{method} of {name}: {reason}, late: {late}");
            let fault = json!([{
                "method": method, "status": status, "reason": reason, "message": "refused on purpose", "late": late,
            }]);
            project.gce.set("faults", &fault).await.unwrap();
            project.cluster.services.push(service(name, &[80]));
            let internal = (*name == "api").then_some("Internal");
            annotate(project.service(name), INTERNAL, internal);
            let request = project.cluster.request();
            let mut complaints = String::new();
            for part in &project.cluster.discover().await.unwrap().parts() {
                project.cluster.reports = vec![project.cluster.run(part, &request).await.unwrap()];
                complaints.push_str(&project.cluster.complaints().join("; "));
            }
            assert!(complaints.contains(complaint), "{what}: {complaints}");
            project.cluster.settle_despite_failures().await.unwrap();
            assert_eq!(project.complaints(), [""; 0], "{what}");
            assert!(!project.address(name).is_empty(), "{what}");
            project.assert_settled().await;
            project.delete(&[]).await;
        }
    }

    // A fingerprint is stale.
    add_one_of_each(&mut project);
    project.settle_well().await;
    let (status, reason) = STALE;
    let fault = json!([{
        "method": "regionBackendServices.patch", "status": status, "reason": reason, "message": "stale", "late": false,
    }]);
    project.gce.set("faults", &fault).await.unwrap();
    project.service("api").session_affinity = SessionAffinity::ClientIp {
        timeout_seconds: None,
    };
    project.settle_well().await;
    assert_eq!(project.object("backendServices", "auidapi").await["sessionAffinity"], "CLIENT_IP");
    project.delete(&[]).await;
}

/// The seconds until the next minute of the clock.
fn until_next_minute() -> u64 {
    60 - SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_secs() % 60
}

#[tokio::test]
async fn a_change_that_exceeds_the_rate_waits_until_the_next_minute() {
    const CREATED: &str = "forwardingRules.insert";
    let mut project = Project::new().await;
    project.cluster.services.push(service("web", &[80]));
    let refusal = Action::answer(403, gce_refusal(403, "rateLimitExceeded"));
    project.gce.proxy.add(Rule::when(|request| request.name == CREATED, refusal).at(1));
    let Project { gce, cluster, .. } = &mut project;
    let created = || {
        let requests = gce.proxy.requests().into_iter();
        requests.filter(|request| request.name == CREATED).collect::<Vec<_>>()
    };
    // Advances the clock of the program, a second at a time, from the refusal to the second request.
    let clock = async {
        while created().is_empty() {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        let before = until_next_minute();
        while created()[0].status.is_none() {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        let least = before.min(until_next_minute());
        let mut seconds = 0;
        while created().len() == 1 {
            advance_to(Instant::now() + Duration::from_secs(1)).await;
            // The other tasks of this thread run.
            tokio::time::sleep(Duration::from_millis(10)).await;
            seconds += 1;
        }
        assert!(seconds + 1 >= least, "after {seconds} s, {least} s before the next minute");
    };
    let (settled, ()) = tokio::join!(cluster.settle(), clock);
    settled.unwrap();
    project.assert_no_complaints();
    // The same request, so that it could not have been carried out twice; and no other change is repeated.
    let requests = project.gce.proxy.requests().into_iter();
    let created: Vec<_> = requests.filter(|request| request.name == CREATED).collect();
    assert_eq!((created.len(), &created[0].query), (2, &created[1].query), "{created:?}");
    assert!(created[0].query.contains("requestId="), "{created:?}");
    let mut writes = project.writes();
    writes.sort();
    let twice: Vec<_> = writes.windows(2).filter(|pair| pair[0] == pair[1]).map(|pair| &pair[0]).collect();
    assert_eq!(twice, ["firewalls.insert", CREATED], "two firewall rules, and the repetition");
    assert!(!project.address("web").is_empty());
    project.delete(&[]).await;
}

/// A second of the program's clock passes every few milliseconds.
async fn run_clock() {
    loop {
        advance_to(Instant::now() + Duration::from_secs(1)).await;
        // The other tasks of this thread run.
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}

/// The Go program takes every 403 for a missing permission, and then leaves out the firewall rule.
#[tokio::test]
async fn a_firewall_rule_of_a_shared_network_is_a_command_only_without_the_permission() {
    let options = GceOptions {
        projects: vec!["test-project".to_owned(), "host-project".to_owned()],
        ..GceOptions::default()
    };
    for reason in ["rateLimitExceeded", "quotaExceeded"] {
        let mut project = Project::with(&options, 2, "network-project-id = host-project\n", &[]).await;
        let refusal = Action::answer(403, gce_refusal(403, reason));
        let rule = Rule::when(|request| request.name == "firewalls.insert", refusal);
        project.gce.proxy.add(rule.at(1));
        project.cluster.services.push(service("web", &[80]));
        tokio::select! {
            settled = project.cluster.settle_despite_failures() => settled.unwrap(),
            () = run_clock() => {}
        }
        project.assert_no_complaints();
        let events = project.reports.iter().flat_map(|report| &report.events);
        let commands: Vec<_> = events.filter(|event| event.reason == "LoadBalancerManualChange").collect();
        assert!(commands.is_empty(), "{reason}: {commands:?}");
        assert_eq!(project.objects("firewalls").await.len(), 2, "{reason}");
        project.assert_settled().await;
        project.delete(&[]).await;
    }
}

#[tokio::test]
async fn html_in_place_of_the_answer_to_a_change_creates_nothing_twice() {
    let mut project = Project::new().await;
    project.cluster.services.push(service("web", &[80]));
    let page = Action::answer(200, "<html><body>Sign in</body></html>");
    project.gce.proxy.add(Rule::when(|request| is_gce_write(&request.name), page).at(1));
    project.cluster.settle_despite_failures().await.unwrap();
    project.assert_no_complaints();
    assert!(!project.address("web").is_empty());
    project.assert_settled().await;
    project.delete(&[]).await;
}

#[tokio::test]
async fn with_a_revoked_token_load_balancers_stay_until_there_is_another() {
    let mut project = Project::new().await;
    add_one_of_each(&mut project);
    project.settle_well().await;
    let names = project.names().await;
    let address = project.address("web");
    project.gce.set("tokens", &json!({"accepted": []})).await.unwrap();
    project.service("web").source_ranges = Some(vec!["10.0.0.0/8".into()]);
    project.service("api").deleting = true;
    project.settle().await;
    project.assert_complaints(&["authError"]);
    assert_eq!(project.names().await, names);
    assert_eq!(project.address("web"), address);
    assert!(project.find("api").is_some(), "its finalizers stay");

    project.gce.set("tokens", &json!({"issued": "next", "accepted": ["next"]})).await.unwrap();
    advance_to(Instant::now() + Duration::from_secs(10)).await;
    project.cluster.settle_despite_failures().await.unwrap();
    project.assert_no_complaints();
    assert!(project.find("api").is_none());
    assert_eq!(project.address("web"), address);
    project.delete(&[]).await;
}

/// The Go program leaves instance groups and the health check until the Service is deleted.
#[tokio::test]
async fn an_internal_service_that_is_refused_leaves_nothing() {
    let mut project = Project::new().await;
    for (annotation, address, text) in [
        (
            Some("missing"),
            "",
            "subnetwork \"missing\" not found in region \"us-central1\" of project \"test-project\"",
        ),
        (
            Some("custom"),
            "",
            "subnetwork \"custom\" is one of network \"custom\", not of \"default\"",
        ),
        (None, "192.0.2.1", "192.0.2.1 is not in the range 10.128.0.0/16 of subnetwork \"default\""),
    ] {
        project.cluster.services.push(service("web", &[80]));
        annotate(project.service("web"), INTERNAL, Some("Internal"));
        annotate(project.service("web"), SUBNET, annotation);
        project.service("web").load_balancer_ip = address.into();
        assert_eq!(project.settle().await, NOTHING, "{text}");
        project.assert_complaints(&[text]);
        assert_eq!(project.names().await, [""; 0], "{text}");
        project.delete(&[]).await;
    }
}

/// In a shared network, the credentials may not read the subnetworks of the other project.
#[tokio::test]
async fn a_subnetwork_that_cannot_be_read_is_used() {
    let mut project = Project::new().await;
    let denied = json!({"test-project": {"granted": ["*"], "denied": ["compute.subnetworks.get"]}});
    project.gce.set("iam", &denied).await.unwrap();
    project.cluster.services.push(service("web", &[80]));
    annotate(project.service("web"), INTERNAL, Some("Internal"));
    annotate(project.service("web"), SUBNET, Some("other"));
    project.settle_well().await;
    let rule = project.object("forwardingRules", "auidweb").await;
    assert!(rule["subnetwork"].as_str().unwrap().ends_with("/subnetworks/other"), "{rule}");
    project.delete(&[]).await;
}

/// Objects under another ID would not be recognized. See also the tests of the ConfigMap.
#[tokio::test]
async fn while_the_id_of_the_cluster_is_another_one_or_lost_nothing_is_written() {
    let mut project = Project::new().await;
    add_one_of_each(&mut project);
    project.settle_well().await;
    let names = project.names().await;
    for (number, now) in [Ok("c2"), Err("does not exist".to_owned())].into_iter().enumerate() {
        project.cloud.cluster_id().unwrap().set(now);
        project.service("web").source_ranges = Some(vec![format!("10.{number}.0.0/16").into()]);
        project.gce.proxy.forget();
        let problems = match project.cluster.settle().await {
            Err(error) => error.report(),
            Ok(()) => project.complaints().join("; "),
        };
        assert_has(&problems, &["kube-system/ingress-uid"]);
        assert_eq!(project.writes(), NOTHING);
        assert_eq!(project.names().await, names);
        // The Service is not deleted either.
        project.cloud.cluster_id().unwrap().set(Ok("c1"));
        project.settle_well().await;
        let firewall = project.object("firewalls", "k8s-fw-auidweb").await;
        assert_eq!(firewall["sourceRanges"], json!([format!("10.{number}.0.0/16")]));
    }
    project.delete(&[]).await;
}

#[tokio::test]
async fn an_instance_in_another_load_balanced_group_is_named() {
    let mut project = Project::new().await;
    let zone = ZONES[0];
    let group = format!("zones/{zone}/instanceGroups");
    let call = async |path: &str, body: Value| {
        project.gce.call(Method::POST, path, Some(&body)).await.unwrap();
    };
    call(&group, json!({"name": "theirs"})).await;
    let instance = format!("projects/{}/zones/{zone}/instances/node-1", project.gce.project());
    call(&format!("{group}/theirs/addInstances"), json!({"instances": [{"instance": instance}]})).await;
    call(
        "global/healthChecks",
        json!({"name": "theirs", "type": "HTTP", "httpHealthCheck": {"port": 80}}),
    )
    .await;
    let backend = json!({
        "name": "theirs", "loadBalancingScheme": "INTERNAL", "protocol": "TCP",
        "healthChecks": ["global/healthChecks/theirs"],
        "backends": [{"group": format!("{group}/theirs"), "balancingMode": "CONNECTION"}],
    });
    call("regions/us-central1/backendServices", backend).await;
    project.cluster.services.push(service("web", &[80]));
    annotate(project.service("web"), INTERNAL, Some("Internal"));
    project.settle().await;
    project.assert_complaints(&["node-1", "theirs"]);
}
