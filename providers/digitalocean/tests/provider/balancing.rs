//! Load balancers of Services on the simulator: migration from the Go cloud controller, adoption, certificates, refusals.

use std::{sync::Arc, time::Duration};

use ccm_core::{
    Freshness, NodeView,
    load_balancer::{ClusterTag, Ingress, IpMode, OwnershipTag, PartState, Policy, ServiceType},
    testkit::TestCluster,
};
use ccm_sim::{Action, Fault, digitalocean::Config};
use serde_json::{Value, json};
use tokio::time::Instant;

use crate::cloud::{
    ABSENT, ANNOTATION, DISOWN, ID, Stage, advance_to, annotate, annotate_all, answer, build,
    create_balancer, fields, key, rule, service,
};

/// A certificate that exists in some tests.
const CERTIFICATE: &str = "892071a0-bb95-49bc-8021-3afd67a210bf";
/// The project of the load balancers that the Go cloud controller created.
const PROJECT: &str = "4de7ac8b-495b-4884-9a69-1050c6793cd6";

/// A load balancer as the Go cloud controller creates it for the Service `web` of `stage`, without fields that it omits
/// because they are zero.
fn by_upstream(stage: &Stage, cluster_id: Option<&str>) -> Value {
    let droplets = stage.sim.documents("droplets");
    let droplets: Vec<_> = droplets.iter().map(|droplet| &droplet["id"]).collect();
    let tags: Vec<_> = cluster_id.iter().map(|id| format!("k8s:{id}")).collect();
    json!({
        "name": "auidweb", "type": "REGIONAL_NETWORK", "network": "EXTERNAL", "network_stack": "IPV4",
        "forwarding_rules": [rule("tcp 80 -> tcp 80"), rule("tcp 443 -> tcp 443")], "droplet_ids": droplets,
        "tags": tags, "project_id": PROJECT,
        "health_check": {
            "protocol": "http", "port": 10256, "path": "/healthz", "check_interval_seconds": 3,
            "response_timeout_seconds": 5, "unhealthy_threshold": 3, "healthy_threshold": 5, "proxy_protocol": false,
        },
    })
}

#[tokio::test]
async fn a_service_gets_its_load_balancer_and_status_with_one_post() {
    let mut stage = Stage::served("").await;
    assert_eq!(stage.writes(), ["loadBalancers_create"]);
    let balancer = stage.balancer();
    assert_eq!(balancer["tags"], json!(["kube_cluster_id_kube-system-uid"]));
    let web = stage.web().clone();
    assert_eq!(web.annotation(ID), balancer["id"].as_str());
    assert_eq!(web.annotation(&key("type")), Some("REGIONAL_NETWORK"));
    let ip = balancer["ip"].as_str().unwrap();
    assert_eq!(web.ingress, [Ingress::address(ip, IpMode::Vip)]);
}

#[tokio::test]
async fn an_address_of_both_families_and_a_host_name_are_shown() {
    let mut stage = Stage::served("").await;
    stage.edit(json!({"ipv6": "2001:db8::5"}));
    stage.restart().await;
    stage.settle().await.unwrap();
    assert_eq!(stage.web().ingress[1].ip.as_deref(), Some("2001:db8::5"));
    stage.set("hostname=Web.Example");
    stage.settle().await.unwrap();
    assert_eq!(stage.web().ingress.len(), 1);
    assert_eq!(stage.web().ingress[0].hostname.as_deref(), Some("web.example"));
}

#[tokio::test]
async fn the_ip_mode_is_proxy_if_tls_ends_at_the_load_balancer() {
    let mut stage = Stage::new(&[]).await;
    let certificate = stage.create_certificate("web", "custom");
    stage.add("web", &format!("type=REGIONAL; certificate-id={certificate}"));
    stage.add("proxy", "type=REGIONAL; enable-proxy-protocol=true");
    stage.add("plain", "type=REGIONAL");
    stage.settle_well().await;
    let modes = stage.services.iter().map(|service| service.ingress[0].ip_mode);
    let modes: Vec<_> = modes.flatten().collect();
    assert_eq!(modes, [IpMode::Proxy, IpMode::Proxy, IpMode::Vip]);
}

#[tokio::test]
async fn a_load_balancer_of_the_go_cloud_controller_is_taken_over_without_a_write() {
    for (variables, cluster_id) in [(vec![], None), (vec![("DO_CLUSTER_ID", "c-1")], Some("c-1"))] {
        let mut stage = Stage::new(&variables).await;
        let document = by_upstream(&stage, cluster_id);
        let balancer = stage.sim.create("load_balancers", fields(document));
        stage.add("web", "type=REGIONAL_NETWORK");
        annotate(stage.web(), ID, Some(&balancer));
        let plans = stage.load_balancers().unwrap().plan(&stage.request(), None).await;
        let steps: Vec<_> = plans.unwrap().into_iter().flat_map(|plan| plan.steps).collect();
        assert!(steps.is_empty(), "{steps:?}");
        assert_eq!(stage.settle_well().await, [""; 0]);
        assert!(!stage.web().ingress.is_empty());
        // The first change adds our tag, which does not exist yet. Unmanaged fields are kept.
        stage.set("size-unit=2");
        stage.settle().await.unwrap();
        let (assign, create) = ("tags_assign_resources", "tags_create");
        assert_eq!(stage.writes(), [assign, create, assign, "loadBalancers_update"]);
        let after = stage.balancer();
        let tags = after["tags"].as_array().unwrap();
        let is_ours = tags.contains(&json!("kube_cluster_id_kube-system-uid"));
        assert!(is_ours && tags.len() == 1 + variables.len(), "{tags:?}");
        assert_eq!(after["project_id"], PROJECT);
    }
}

#[tokio::test]
async fn load_balancers_of_every_kind_are_taken_over_without_a_write() {
    let rules = |http: &str, https: &str, more: Value| {
        let mut https = rule(https);
        https.as_object_mut().unwrap().extend(fields(more));
        json!({"forwarding_rules": [rule(http), https]})
    };
    let (tcp, terminated) = ("tcp 80 -> tcp 30080", json!({ "certificate_id": CERTIFICATE }));
    let terminated = rules("http 80 -> http 30080", "https 443 -> http 30443", terminated);
    let passed = rules(tcp, "https 443 -> https 30443", json!({"tls_passthrough": true}));
    let cookies = "type=REGIONAL; sticky-sessions-type=cookies; sticky-sessions-cookie-name=c; \
        sticky-sessions-cookie-ttl=60; http-idle-timeout-seconds=90";
    let sticky = json!({
        "sticky_sessions": {"type": "cookies", "cookie_name": "c", "cookie_ttl_seconds": 60},
        "http_idle_timeout_seconds": 90,
    });
    let redirect = "type=REGIONAL; enable-proxy-protocol=true; redirect-http-to-https=true";
    let redirected = json!({"enable_proxy_protocol": true, "redirect_http_to_https": true});
    let named =
        json!({"name": "shop", "firewall": {"allow": ["cidr:10.0.0.0/8", "ip:192.0.2.1"], "deny": []}});
    let checked = json!({"health_check": {
        "protocol": "tcp", "port": 30443, "check_interval_seconds": 3, "response_timeout_seconds": 5,
        "unhealthy_threshold": 3, "healthy_threshold": 5,
    }});
    let https = format!("type=REGIONAL; protocol=http; certificate-id={CERTIFICATE}");
    for (annotations, differences) in [
        ("type=REGIONAL", json!({})),
        (&https, terminated),
        ("type=REGIONAL; tls-passthrough=true", passed),
        (redirect, redirected),
        (cookies, sticky),
        ("network=INTERNAL", json!({"network": "INTERNAL"})),
        ("size-slug=lb-medium", json!({"size_unit": 3})),
        ("allow-rules=ip:192.0.2.1, cidr:10.0.0.0/8; name=shop", named),
        ("override-health-check=; healthcheck-port=443", checked),
    ] {
        let mut stage = Stage::new(&[]).await;
        let certificate = json!({"id": CERTIFICATE, "name": "web", "type": "custom"});
        stage.sim.create("certificates", fields(certificate));
        let mut document = fields(by_upstream(&stage, None));
        if annotations.contains("type=REGIONAL") {
            document.extend(fields(json!({"type": "REGIONAL", "network_stack": "DUALSTACK"})));
            document.extend(fields(rules(tcp, "tcp 443 -> tcp 30443", json!({}))));
        }
        document.extend(fields(differences));
        let id = stage.sim.create("load_balancers", document);
        annotate(stage.add("web", annotations), ID, Some(&id));
        let address = stage.balancer()["ip"].as_str().unwrap().to_owned();
        let ingress = vec![Ingress::address(&address, IpMode::Vip)];
        stage.web().ingress = ingress.clone();
        assert_eq!(stage.settle_well().await, [""; 0], "{annotations}");
        assert_eq!(stage.web().ingress, ingress, "{annotations}");
    }
}

#[tokio::test]
async fn a_service_is_deleted_only_when_its_load_balancer_is() {
    for fault in [
        Fault::on("loadBalancers_list", Action::status(403)),
        Fault::on("loadBalancers_delete", Action::status(403)),
        Fault::on("loadBalancers_delete", Action::status(422)),
    ] {
        let mut stage = Stage::served("").await;
        stage.web().deleting = true;
        stage.restart().await;
        let shown = format!("{fault:?}");
        let fault = stage.sim.add_fault(fault);
        // Some failures belong to the pass, others to the Service.
        let _failed = stage.settle().await;
        assert_eq!((stage.services.len(), stage.balancers().len()), (1, 1), "{shown}");
        stage.sim.remove_fault(fault);
        stage.settle().await.unwrap();
        assert_eq!((stage.services.len(), stage.balancers().len()), (0, 0), "{shown}");
    }
    // The load balancer was already deleted by others.
    let mut stage = Stage::served("").await;
    stage.sim.remove("load_balancers", &stage.id()).unwrap();
    stage.web().deleting = true;
    stage.settle().await.unwrap();
    assert!(stage.services.is_empty());
    // A listing lacks it, since others deleted a load balancer between two pages.
    let mut stage = Stage::served("").await;
    let fault = Fault::on("loadBalancers_list", short_page(0));
    stage.sim.add_fault(fault);
    stage.web().deleting = true;
    stage.read.freshness = Freshness::now();
    stage.settle().await.unwrap();
    assert!(stage.services.is_empty() && stage.balancers().is_empty());
}

/// The last page of a listing, without items.
fn short_page(total: u64) -> Action {
    let page = json!({"load_balancers": [], "links": {}, "meta": {"total": total}});
    answer(200, Some(page.to_string()), &[])
}

#[tokio::test]
async fn a_refusal_is_reported_with_the_api_message_and_retried_after_a_change() {
    for op in ["loadBalancers_create", "loadBalancers_update"] {
        let mut stage = Stage::new(&[]).await;
        stage.add("web", "");
        if op == "loadBalancers_update" {
            stage.settle().await.unwrap();
            stage.set("size-unit=2");
        }
        let body = json!({"id": "unprocessable_entity", "message": "forwarding rule 1 is no good", "request_id": "r-1"});
        let fault = Fault::on(op, answer(422, Some(body.to_string()), &[]));
        let fault = stage.sim.add_fault(fault);
        stage.sim.clear_calls();
        let parts = ["forwarding rule 1 is no good", "request_id=r-1"];
        stage.settle_with_complaints(&parts).await;
        assert_eq!(stage.writes(), [op], "not repeated");
        stage.sim.remove_fault(fault);
        stage.set("size-unit=3");
        stage.settle_well().await;
        assert_eq!(stage.balancer()["size_unit"], 3);
    }
}

#[tokio::test]
async fn a_failed_sync_loses_neither_the_load_balancer_nor_its_id() {
    let mut stage = Stage::served("").await;
    let id = stage.id();
    for (annotated, size) in [(Some(id.as_str()), 2), (None, 3)] {
        annotate(stage.web(), ID, annotated);
        stage.set(&format!("size-unit={size}"));
        let fault = Fault::on("loadBalancers_update", Action::status(422));
        let fault = stage.sim.add_fault(fault);
        stage.settle_with_complaints(&[]).await;
        assert_eq!(stage.web().annotation(ID), annotated, "the load balancer is kept");
        stage.sim.remove_fault(fault);
        stage.restart().await;
        stage.settle().await.unwrap();
        assert_eq!(stage.writes(), ["loadBalancers_update"]);
        assert_eq!(stage.balancer()["size_unit"], size);
        assert_eq!(stage.web().annotation(ID), Some(id.as_str()));
    }
}

#[tokio::test]
async fn a_rename_while_the_create_is_sent_waits_for_its_reply() {
    let mut stage = Stage::new(&[]).await;
    stage.add("web", "name=first");
    let time = Duration::from_secs(1);
    stage.sim.add_fault(Fault::on("loadBalancers_create", Action::Delay { time }));
    let (first, part) = (stage.request(), stage.discover().await.unwrap().parts()[0].clone());
    stage.set("name=second");
    let (second, renamed) = (stage.request(), stage.discover().await.unwrap().parts()[0].clone());
    let balancers = stage.load_balancers().unwrap();
    let rename = async {
        while !stage.sim.calls().iter().any(|call| call.op == "loadBalancers_create") {
            tokio::task::yield_now().await;
        }
        balancers.run(&renamed, &second).await
    };
    let (created, _) = tokio::join!(balancers.run(&part, &first), rename);
    for (key, value) in &created.members[0].early.annotations {
        annotate(stage.web(), key, value.as_deref());
    }
    stage.settle().await.unwrap();
    assert_eq!(stage.balancers().len(), 1);
    assert_eq!(stage.balancer()["name"], "second");
}

#[tokio::test]
async fn a_new_name_renames_and_the_id_keeps_the_link() {
    // Without its ID, a load balancer is found by its default name.
    for (first, has_id) in [("name=first", true), ("", false)] {
        let mut stage = Stage::served(first).await;
        let id = stage.id();
        if !has_id {
            annotate(stage.web(), ID, None);
            stage.restart().await;
        }
        stage.set("name=second");
        stage.settle().await.unwrap();
        let balancer = stage.balancer();
        assert_eq!((&balancer["id"], &balancer["name"]), (&json!(id), &json!("second")));
        annotate(stage.web(), ID, None);
        stage.settle().await.unwrap();
        assert_eq!(stage.web().annotation(ID), Some(&*id), "found by its name");
    }
}

#[tokio::test]
async fn a_load_balancer_that_is_being_built_is_renamed_or_deleted_with_its_service() {
    for (is_deleted, fails) in [(false, false), (true, false), (true, true)] {
        let config = Config {
            create_time: Duration::from_secs(60),
            ..Config::default()
        };
        let mut stage = Stage::with(config, &[]).await;
        stage.ownership_tag = OwnershipTag::Unknown;
        stage.sim.fail_next_changes(u32::from(fails));
        stage.add("web", "name=first");
        stage.pass_once().await.unwrap();
        let id = stage.id();
        let web = stage.web();
        assert_eq!((web.annotation(ID), web.ingress.len()), (Some(&*id), 0));
        web.deleting = is_deleted;
        stage.set("name=second");
        stage.sim.advance_clock(Duration::from_secs(60));
        stage.settle_despite_failures().await.unwrap();
        if is_deleted {
            assert!(stage.services.is_empty() && stage.balancers().is_empty());
        } else {
            let balancer = stage.balancer();
            assert_eq!((&balancer["id"], &balancer["name"]), (&json!(id), &json!("second")));
        }
    }
}

#[tokio::test]
async fn a_stale_id_leads_to_a_new_load_balancer() {
    let mut stage = Stage::new(&[]).await;
    stage.add("web", "");
    annotate(stage.web(), ID, Some(ABSENT));
    stage.settle().await.unwrap();
    let id = stage.id();
    assert_eq!(stage.web().annotation(ID), Some(&*id));
}

#[tokio::test]
async fn without_a_visible_node_a_missing_load_balancer_is_not_replaced() {
    let mut stage = Stage::served("").await;
    let id = stage.id();
    stage.sim.remove("load_balancers", &id).unwrap();
    for droplet in stage.sim.documents("droplets") {
        stage.sim.remove("droplets", &droplet["id"].to_string()).unwrap();
    }
    stage.restart().await;
    stage.settle_with_complaints(&["wrong credentials"]).await;
    assert!(stage.writes().is_empty());
}

#[tokio::test]
async fn immutable_fields_are_blocked_and_other_fields_are_applied() {
    let mut stage = Stage::served("").await;
    // The annotations that the Service loses with its load balancer may be set again.
    for service_type in [ServiceType::NodePort, ServiceType::LoadBalancer] {
        stage.web().service_type = service_type;
        stage.settle().await.unwrap();
    }
    stage.set("type=REGIONAL; network=INTERNAL; size-unit=2");
    let kind = "type of load balancer auidweb in place: observed REGIONAL_NETWORK";
    let network = "network of load balancer auidweb in place: observed EXTERNAL";
    stage.settle_with_complaints(&[kind, network]).await;
    assert_eq!(stage.balancer()["size_unit"], 2);
    let kind = stage.web().annotation(&key("type"));
    assert_eq!(kind, Some("REGIONAL"), "the user's annotation is kept");
}

#[tokio::test]
async fn problems_of_annotations_and_of_nodes_are_reported_with_their_reason() {
    let (ignored, misconfigured) = ("LoadBalancerAnnotationIgnored", "LoadBalancerConfigError");
    for (annotations, has_public_nodes, reason) in [
        ("http-ports=80", true, ignored),
        ("network=INTERNAL; network-stack=DUALSTACK", true, misconfigured),
        // The load balancer exists, and keeps its droplets.
        ("", false, misconfigured),
    ] {
        let mut stage = Stage::served(annotations).await;
        if !has_public_nodes {
            for node in &mut stage.nodes {
                // The first one is private.
                node.addresses = node.addresses[..1].into();
            }
            assert_eq!(stage.settle_well().await, ["loadBalancers_create"]);
        }
        let events = stage.reports.iter().flat_map(|report| &report.events);
        let reasons: Vec<_> = events.map(|event| event.reason).collect();
        assert_eq!(reasons, [reason], "{annotations}");
    }
}

#[tokio::test]
async fn a_byoip_address_is_sent_once() {
    let mut stage = Stage::served("ip=203.0.113.77").await;
    stage.set("size-unit=2");
    stage.settle().await.unwrap();
    assert_eq!(stage.writes(), ["loadBalancers_create", "loadBalancers_update"]);
}

#[tokio::test]
async fn two_services_cannot_share_a_load_balancer() {
    let mut stage = Stage::served("").await;
    let id = stage.id();
    annotate(stage.add("other", ""), ID, Some(&id));
    let text = "belongs to Service shop/web";
    stage.settle_with_complaints(&[text]).await;
    stage.services.retain(|service| &*service.id.name == "other");
    stage.services[0].deleting = true;
    stage.sim.clear_calls();
    let web = service("web", &[80, 443]);
    stage.services.push(web);
    stage.settle().await.unwrap();
    assert_eq!(stage.writes(), [""; 0], "it is still the one of web");
}

#[tokio::test]
async fn the_owner_of_a_load_balancer_can_be_renamed_out_of_a_collision() {
    for is_served in [true, false] {
        let mut stage = Stage::served("name=first").await;
        let id = stage.id();
        if !is_served {
            // Its ID is written before it has an address.
            stage.web().ingress.clear();
        }
        stage.add("copy", "name=first");
        stage.settle_with_complaints(&["belongs to Service shop/web"]).await;
        stage.set("name=second");
        stage.settle_well().await;
        assert_eq!(stage.web().annotation(ID), Some(&*id));
        let copy = stage.service("copy").annotation(ID).unwrap().to_owned();
        let name = |id: &str| stage.sim.document("load_balancers", id).unwrap()["name"].take();
        assert_eq!((name(&id), name(&copy)), (json!("second"), json!("first")));
    }
}

/// Another cluster with the same account, and a Service `web` with these annotations and perhaps an ID.
async fn other_cluster(stage: &Stage, annotations: &str, id: Option<&str>) -> TestCluster {
    let cloud = build(stage.environment.clone()).await.unwrap();
    let mut other = TestCluster::new(cloud, crate::cloud::advance_to);
    other.ownership_tag = OwnershipTag::Known(ClusterTag::of("b"));
    other.nodes = vec![crate::cloud::node(&stage.sim, "node-b")];
    let mut web = service("web", &[80]);
    web.id.uid = "uid-in-b".into();
    annotate(&mut web, ID, id);
    annotate_all(&mut web, ANNOTATION, annotations);
    other.services.push(web);
    other
}

#[tokio::test]
async fn a_load_balancer_moved_to_another_cluster_is_not_an_orphan() {
    let mut stage = Stage::served("").await;
    let id = stage.id();
    annotate(stage.web(), DISOWN, Some("true"));
    stage.sim.clear_calls();
    stage.settle().await.unwrap();
    let mut other = other_cluster(&stage, "", Some(&id)).await;
    other.settle_well().await;
    let updates = stage.writes().into_iter().filter(|op| *op == "loadBalancers_update");
    assert_eq!(updates.count(), 1);
    let balancer = stage.balancer();
    assert_eq!(balancer["tags"], json!(["kube_cluster_id_b"]));
    assert_eq!((&balancer["name"], stage.droplets()), (&json!("auidinb"), 1));
    // Neither the disowned Service nor its deletion changes the load balancer.
    for gone in [false, true] {
        if gone {
            stage.services.clear();
        }
        stage.restart().await;
        stage.settle().await.unwrap();
        assert_eq!(stage.discover().await.unwrap().orphans, Some(Vec::new()));
        assert!(stage.writes().is_empty());
    }
}

#[tokio::test]
async fn another_clusters_load_balancer_is_not_taken_over_by_its_name() {
    let stage = Stage::served("name=shared").await;
    let before = stage.balancer();
    let mut other = other_cluster(&stage, "name=shared", None).await;
    other.settle().await.unwrap();
    let problem = "has the tag kube_cluster_id_kube-system-uid of another cluster";
    other.assert_complaints(&[problem]);
    other.services[0].deleting = true;
    other.settle().await.unwrap();
    assert_eq!((other.services.len(), stage.balancer()), (0, before));
}

#[tokio::test]
async fn an_orphan_is_reported_and_one_without_tags_is_not() {
    let mut stage = Stage::served("").await;
    stage.services.clear();
    let orphans = stage.discover().await.unwrap().orphans.unwrap();
    assert!(orphans.len() == 1 && orphans[0].deletable, "{orphans:?}");
    // The API may omit tags.
    stage.edit(json!({"tags": null}));
    stage.restart().await;
    assert_eq!(stage.discover().await.unwrap().orphans, Some(Vec::new()));
}

#[tokio::test]
async fn certificates_are_followed_when_they_are_renewed_and_only_then() {
    // Kind and name of the load balancer's certificate and of the annotated one, and whether the annotation is rewritten.
    let (renewed, custom) = (("lets_encrypt", "web"), ("custom", "web"));
    for (current, annotated, rewritten) in [
        (renewed, Some(renewed), true),
        (renewed, None, true),
        (renewed, Some(("lets_encrypt", "shop")), false),
        (custom, Some(custom), false),
        (custom, Some(renewed), false),
    ] {
        let mut stage = Stage::new(&[]).await;
        let first = stage.create_certificate(current.1, current.0);
        stage.add("web", &format!("type=REGIONAL; certificate-id={first}"));
        stage.settle().await.unwrap();
        let second = annotated.map(|(kind, name)| stage.create_certificate(name, kind));
        let second = second.unwrap_or_else(|| ABSENT.to_owned());
        stage.set(&format!("certificate-id={second}"));
        stage.sim.clear_calls();
        let writes = stage.settle_well().await.len();
        let expected = if rewritten { (&*first, 0) } else { (&*second, 1) };
        let annotation = stage.web().annotation(&key("certificate-id")).unwrap();
        assert_eq!((annotation, writes), expected, "{current:?} {annotated:?}");
        let rule = stage.balancer()["forwarding_rules"][1].take();
        assert_eq!(rule["certificate_id"], expected.0, "{current:?} {annotated:?}");
    }
}

#[tokio::test]
async fn a_change_of_nodes_keeps_a_certificate_that_was_renewed_meanwhile() {
    let mut stage = Stage::new(&[]).await;
    let certificate = stage.create_certificate("web", "lets_encrypt");
    stage.add("web", &format!("type=REGIONAL; certificate-id={certificate}"));
    stage.settle_well().await;
    let renewed = stage.create_certificate("web", "lets_encrypt");
    let mut rules = stage.balancer()["forwarding_rules"].take();
    rules[1]["certificate_id"] = json!(renewed);
    stage.edit(json!({ "forwarding_rules": rules }));
    advance_to(Instant::now() + Duration::from_secs(6)).await;
    stage.read.freshness = Freshness::AtMost(Duration::from_secs(7200));
    stage.join("node-2");
    stage.settle_well().await;
    assert_eq!(stage.balancer()["forwarding_rules"], rules);
    assert_eq!(stage.droplets(), stage.nodes.len());
}

#[tokio::test]
async fn a_rule_has_either_a_certificate_or_passthrough_after_each_switch() {
    let mut stage = Stage::new(&[]).await;
    let certificate = stage.create_certificate("web", "custom");
    stage.add("web", "type=REGIONAL");
    for uses_certificate in [true, false, true] {
        let id = uses_certificate.then_some(certificate.as_str());
        annotate(stage.web(), &key("certificate-id"), id);
        let passthrough = (!uses_certificate).then_some("true");
        annotate(stage.web(), &key("tls-passthrough"), passthrough);
        stage.settle_well().await;
        let https = stage.balancer()["forwarding_rules"][1].take();
        assert_eq!(https["entry_protocol"], "https");
        assert_eq!(https["certificate_id"], id.unwrap_or_default());
        assert_eq!(https["tls_passthrough"], !uses_certificate);
    }
}

#[tokio::test]
async fn a_certificate_is_found_by_its_name_and_a_missing_one_is_reported() {
    let mut stage = Stage::new(&[]).await;
    let certificate = stage.create_certificate("web", "lets_encrypt");
    stage.add("web", "type=REGIONAL; certificate-name=web");
    stage.settle().await.unwrap();
    let mut rules = stage.balancer()["forwarding_rules"].take();
    assert_eq!(rules[1]["certificate_id"], certificate);
    // A renewal, which DigitalOcean applies to the load balancer.
    stage.sim.remove("certificates", &certificate).unwrap();
    let certificate = stage.create_certificate("web", "lets_encrypt");
    rules[1]["certificate_id"] = json!(certificate);
    stage.edit(json!({ "forwarding_rules": rules }));
    stage.sim.clear_calls();
    stage.read.freshness = Freshness::now();
    assert_eq!(stage.settle_well().await, [""; 0]);
    assert_eq!(stage.balancer()["forwarding_rules"], rules);
    stage.set("certificate-name=absent");
    let text = "certificate with the name \"absent\" not found";
    stage.settle_with_complaints(&[text]).await;
    // A custom certificate that was deleted.
    annotate(stage.web(), &key("certificate-name"), None);
    stage.set(&format!("certificate-id={ABSENT}"));
    stage.sim.remove("certificates", &certificate).unwrap();
    let text = "certificate with the ID 1111";
    stage.settle_with_complaints(&[text]).await;
    assert!(!stage.web().ingress.is_empty());
}

#[tokio::test]
async fn a_refused_service_still_follows_the_nodes_and_can_be_deleted() {
    let mut stage = Stage::served("").await;
    stage.set("size-unit=many");
    stage.join("node-2");
    stage.sim.clear_calls();
    stage.settle_with_complaints(&["size-unit: \"many\""]).await;
    assert_eq!(stage.writes(), ["loadBalancers_update"]);
    assert_eq!(stage.droplets(), 3);
    // A tag that others set is replaced by the list of droplets, once.
    stage.edit(json!({"tag": "web", "droplet_ids": []}));
    stage.restart().await;
    for writes in [1, 0] {
        stage.settle_with_complaints(&[]).await;
        assert_eq!(stage.writes().len(), writes);
        assert_eq!((&stage.balancer()["tag"], stage.droplets()), (&json!(""), 3));
        stage.restart().await;
    }
    stage.web().deleting = true;
    stage.settle().await.unwrap();
    assert!(stage.services.is_empty() && stage.balancers().is_empty());
}

#[tokio::test]
async fn a_missing_certificate_refuses_no_load_balancer_of_type_regional_network() {
    let absent = format!("certificate-id={ABSENT}");
    for (annotations, default) in [
        (absent.as_str(), "REGIONAL_NETWORK"),
        ("certificate-name=absent; type=REGIONAL_NETWORK", "REGIONAL"),
    ] {
        let mut stage = Stage::new(&[("DEFAULT_LB_TYPE", default)]).await;
        stage.add("web", annotations);
        for size in [1, 2] {
            stage.set(&format!("size-unit={size}"));
            assert_eq!(stage.settle_well().await.len(), size);
        }
    }
}

#[tokio::test]
async fn health_checks_of_a_refused_service_never_get_the_proxy_protocol() {
    // A `PUT` without the field lets checks follow the load balancer.
    for (changed, port, path, sent) in [
        (json!(null), 10256, "/healthz", json!(false)),
        (json!(null), 30999, "/healthz", json!(false)),
        (json!(true), 10256, "/healthz", json!(true)),
        (json!(null), 30080, "/healthz", json!(null)),
        (json!(null), 10256, "/up", json!(null)),
    ] {
        let mut stage = Stage::served("type=REGIONAL; enable-proxy-protocol=true").await;
        let mut check = stage.balancer()["health_check"].clone();
        check.as_object_mut().unwrap().remove("proxy_protocol");
        if !changed.is_null() {
            check["proxy_protocol"] = changed;
        }
        (check["port"], check["path"]) = (json!(port), json!(path));
        stage.edit(json!({"health_check": check}));
        let web = stage.web();
        (web.external_policy, web.health_check_node_port) = (Policy::Local, 30999);
        annotate(web, &key("size-unit"), Some("many"));
        stage.join("node-2");
        stage.restart().await;
        stage.settle_with_complaints(&[]).await;
        assert_eq!(stage.writes(), ["loadBalancers_update"]);
        let check = &stage.balancer()["health_check"];
        assert_eq!((&check["port"], &check["path"]), (&json!(port), &json!(path)));
        assert_eq!(check["proxy_protocol"], sent, "{check}");
    }
}

#[tokio::test]
async fn a_refused_service_takes_nothing_over() {
    // A load balancer of another cluster, and one of a person, without tags.
    for tags in [None, Some(json!(["web"]))] {
        let stage = Stage::served("").await;
        if let Some(tags) = tags {
            stage.edit(json!({"tags": tags, "droplet_ids": [7]}));
        }
        let before = stage.balancer();
        let mut other = other_cluster(&stage, "size-unit=many", before["id"].as_str()).await;
        other.settle().await.unwrap();
        other.assert_complaints(&["size-unit: \"many\""]);
        assert_eq!(stage.balancer(), before);
        annotate(&mut other.services[0], &key("size-unit"), Some("2"));
        other.settle_well().await;
        assert_eq!(stage.balancer()["size_unit"], 2);
    }
}

#[tokio::test]
async fn values_that_the_go_cloud_controller_accepts_refuse_no_service() {
    let mut stage = Stage::served("algorithm=random; size-unit=").await;
    stage.assert_no_complaints();
    stage.web().source_ranges = Some(vec!["10.20.30.40/16".into(), "2001:DB8::1/32".into()]);
    stage.settle().await.unwrap();
    let allow = &stage.balancer()["firewall"]["allow"];
    assert_eq!(allow, &json!(["cidr:10.20.0.0/16", "cidr:2001:db8::/32"]));
}

#[tokio::test]
async fn an_unreadable_disown_keeps_the_load_balancer() {
    let mut stage = Stage::served("").await;
    let own = stage.id();
    let mut others = std::iter::repeat_with(|| crate::cloud::create_balancer(&stage.sim, "other"));
    let other = others.find(|id| *id < own).unwrap();
    let exist = |stage: &Stage| [&own, &other].map(|id| stage.sim.document("load_balancers", id).is_some());
    annotate(stage.web(), DISOWN, Some("yes"));
    let text = "disown: \"yes\" is neither true nor false";
    stage.settle_with_complaints(&[text]).await;
    stage.web().deleting = true;
    stage.settle_with_complaints(&["neither true nor false"]).await;
    assert_eq!((stage.services.len(), exist(&stage)), (1, [true, true]));
    // The Service leaves this load balancer, whatever its annotation says now.
    annotate_all(stage.web(), "", &format!("{ID}={other}; {DISOWN}=false"));
    stage.read.freshness = Freshness::now();
    stage.settle().await.unwrap();
    assert_eq!((stage.services.len(), exist(&stage)), (0, [false, true]));
}

#[tokio::test]
async fn a_failed_lookup_by_name_removes_no_droplet() {
    let mut stage = Stage::served("").await;
    forget_provider_id(&mut stage);
    stage.restart().await;
    let fault = Fault::on("droplets_list", Action::status(500));
    let fault = stage.sim.add_fault(fault);
    stage.set("size-unit=2");
    stage.settle_with_complaints(&["500"]).await;
    assert_eq!(stage.writes(), [""; 0]);
    stage.sim.remove_fault(fault);
    stage.settle().await.unwrap();
    assert_eq!((&stage.balancer()["size_unit"], stage.droplets()), (&json!(2), 2));
}

/// Removes the provider ID of the last node.
fn forget_provider_id(stage: &mut Stage) {
    let view = &mut stage.nodes.last_mut().unwrap().view;
    *view = Arc::new(NodeView {
        provider_id: None,
        ..NodeView::clone(view)
    });
}

#[tokio::test]
async fn a_missing_droplet_does_not_block_others() {
    for has_provider_id in [true, false] {
        let mut stage = Stage::served("").await;
        if !has_provider_id {
            // Its droplet is known by its name.
            forget_provider_id(&mut stage);
            stage.set("size-unit=2");
            stage.settle().await.unwrap();
        }
        stage.join("node-2");
        let gone = stage.sim.documents("droplets")[1]["id"].clone();
        stage.sim.remove("droplets", &gone.to_string()).unwrap();
        stage.sim.clear_calls();
        // The first one is refused.
        assert_eq!(stage.settle_well().await, ["loadBalancers_update"; 2]);
        let droplets = stage.balancer()["droplet_ids"].take();
        assert_eq!(stage.droplets(), 2);
        assert!(!droplets.as_array().unwrap().contains(&gone), "{droplets}");
    }
}

#[tokio::test]
async fn a_load_balancer_that_failed_is_reported_and_not_deleted() {
    let mut stage = Stage::new(&[]).await;
    stage.sim.fail_next_changes(1);
    stage.add("web", "");
    stage.settle_with_complaints(&["errored"]).await;
    assert_eq!(stage.writes(), ["loadBalancers_create"]);
    stage.edit(json!({"status": "active", "ip": "203.0.113.5"}));
    stage.restart().await;
    stage.settle().await.unwrap();
    assert_eq!(stage.web().ingress.len(), 1);
}

#[tokio::test]
async fn a_load_balancer_takes_a_minute_and_few_polls() {
    let config = Config {
        create_time: Duration::from_secs(60),
        ..Config::default()
    };
    let mut stage = Stage::with(config, &[]).await;
    stage.add("web", "");
    let (request, started) = (stage.request(), tokio::time::Instant::now());
    let (mut part, mut now) = (stage.discover().await.unwrap().parts().remove(0), Duration::ZERO);
    loop {
        let report = stage.load_balancers().unwrap().run(&part, &request).await;
        part = report.renamed.unwrap_or(part);
        let PartState::Parked { until, .. } = report.state else {
            break;
        };
        advance_to(until).await;
        let passed = started.elapsed();
        stage.sim.advance_clock(passed.saturating_sub(now));
        now = passed;
    }
    let elapsed = started.elapsed();
    assert!(elapsed < Duration::from_secs(65), "{elapsed:?}");
    let calls = stage.sim.call_counts();
    assert!(calls["loadBalancers_get"] <= 13, "{calls:?}");
    let others = (calls["loadBalancers_create"], calls["loadBalancers_list"]);
    // One when the Service is discovered, and one before a change of the document.
    assert_eq!(others, (1, 2), "{calls:?}");
}

#[tokio::test]
async fn a_hundred_services_are_read_with_one_listing_after_a_restart() {
    let mut stage = Stage::new(&[]).await;
    stage.sim.set_quota(ccm_sim::digitalocean::SERVICE, None);
    for number in 0..100 {
        stage.add(&format!("web-{number}"), "");
    }
    stage.settle().await.unwrap();
    stage.restart().await;
    let began = Instant::now();
    // A listing is used for 5 s, which are over sooner than this test on a busy machine.
    let listings = |began: Instant| 2 * (1 + began.elapsed().as_secs() as usize / 5);
    stage.settle().await.unwrap();
    let ops = stage.ops();
    assert!((2..=listings(began)).contains(&ops.len()), "{ops:?}");
    assert!(ops.iter().all(|op| *op == "loadBalancers_list"), "{ops:?}");
    // A node joins, with a provider ID or without one yet.
    for (name, is_known) in [("node-2", true), ("node-3", false)] {
        stage.join(name);
        if !is_known {
            forget_provider_id(&mut stage);
        }
        stage.restart().await;
        let began = Instant::now();
        stage.settle().await.unwrap();
        assert_eq!(stage.writes().len(), 100, "one PUT for each");
        // The two pages of load balancers once, and the droplet of the node that has no provider ID.
        let reads = stage.sim.calls().len() - 100;
        let most = listings(began) + usize::from(!is_known);
        assert!(reads <= most, "{:?}", stage.sim.call_counts());
    }
}

#[tokio::test]
async fn unreadable_answers_change_nothing() {
    let mut stage = Stage::served("").await;
    let before = stage.balancer();
    let html = "<html><body>down for maintenance</body></html>".to_owned();
    let empty = "{}".to_owned();
    for (code, body) in [(200, html.clone()), (502, html), (200, empty)] {
        stage.restart().await;
        // With its ID, it would be read alone.
        annotate(stage.web(), ID, None);
        let fault = Fault::on("loadBalancers_list", answer(code, Some(body), &[]));
        let fault = stage.sim.add_fault(fault);
        stage.settle_with_complaints(&["load_balancer_list"]).await;
        let complaints = stage.complaints().join("; ");
        assert!(!complaints.contains('<'), "{complaints}");
        stage.sim.remove_fault(fault);
        advance_to(Instant::now() + Duration::from_secs(10)).await;
        stage.settle().await.unwrap();
        assert_eq!((stage.balancer(), stage.writes().len()), (before.clone(), 0));
    }
}

#[tokio::test]
async fn a_listing_that_lost_a_page_is_an_error_or_read_again() {
    let mut stage = Stage::served("").await;
    for number in 0..200 {
        create_balancer(&stage.sim, &format!("other-{number}"));
    }
    for (action, calls) in [(Action::status(404), 2), (short_page(200), 7)] {
        stage.restart().await;
        let second = Fault::on("loadBalancers_list", action).once();
        let fault = stage.sim.add_fault(Fault { nth: 2, ..second });
        assert_eq!(stage.settle().await.is_err(), calls == 2);
        assert_eq!(stage.ops(), vec!["loadBalancers_list"; calls]);
        stage.sim.remove_fault(fault);
    }
}

#[tokio::test]
async fn nodes_of_another_cloud_are_named_in_an_event() {
    // All nodes, for a new and for an existing load balancer, and one of them.
    for (exists, foreign) in [(false, 2), (true, 2), (true, 1)] {
        let mut stage = Stage::new(&[]).await;
        stage.add("web", "");
        if exists {
            stage.settle_well().await;
        }
        for node in stage.nodes.iter_mut().take(foreign) {
            node.view = Arc::new(NodeView {
                provider_id: Some(format!("k3s://{}", node.view.name)),
                ..NodeView::clone(&node.view)
            });
        }
        stage.settle().await.unwrap();
        let events = stage.reports.iter().flat_map(|report| &report.events);
        let found = events.filter(|event| event.reason == "NodesLeftOut");
        let [event] = found.collect::<Vec<_>>()[..] else {
            panic!("one Event: {:?}", stage.reports);
        };
        assert!(
            event.warning && event.message.contains("node-0 (provider ID k3s://node-0)"),
            "{}",
            event.message
        );
        match exists {
            true => assert_eq!(stage.droplets(), if foreign == 2 { 2 } else { 1 }),
            false => stage.assert_complaints(&["node-1 (provider ID k3s://node-1)"]),
        }
    }
}

#[tokio::test]
async fn the_size_is_sent_only_if_an_annotation_sets_it() {
    let mut stage = Stage::served("type=REGIONAL").await;
    // A person changes it.
    stage.edit(json!({"size_unit": 5, "http_idle_timeout_seconds": 90}));
    stage.restart().await;
    stage.join("node-2");
    assert_eq!(stage.settle_well().await, ["loadBalancers_update"]);
    let kept = ["size_unit", "http_idle_timeout_seconds"].map(|field| stage.balancer()[field].clone());
    assert_eq!(kept, [5, 90].map(Value::from));
    stage.set("size-slug=lb-large");
    stage.settle_well().await;
    assert_eq!(stage.balancer()["size_unit"], 6);
    // The annotation is removed while nobody leads.
    annotate(stage.web(), &key("size-slug"), None);
    stage.restart().await;
    assert_eq!(stage.settle_well().await, [""; 0]);
    let events = stage.reports.iter().flat_map(|report| &report.events);
    let texts: Vec<_> = events.map(|event| event.message.as_str()).collect();
    assert!(texts.len() == 1 && texts[0].contains("keeps its size_unit 6"), "{texts:?}");
}
