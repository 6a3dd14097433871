//! Load balancers of Services on the simulator: migration from the Go cloud controller, adoption, certificates, refusals.
#![allow(clippy::unwrap_used, clippy::expect_used, missing_docs)]

mod cloud;

use std::{collections::BTreeMap, time::Duration};

use ccm_core::{
    ErrorKind, Freshness,
    load_balancer::{ClusterTag, IpMode, OwnershipTag, PartState, Policy},
};
use ccm_sim::{Action, Fault, digitalocean::Config};
use serde_json::{Value, json};

use crate::cloud::{DISOWN, ID, Stage, annotate, build, fields, key, service};

/// A forwarding rule with all fields that the API returns.
fn rule(entry: &str, port: u16, target: &str, target_port: u16) -> Value {
    json!({"entry_protocol": entry, "entry_port": port, "target_protocol": target, "target_port": target_port})
}

/// A load balancer as the Go cloud controller creates it for the Service `web` of `stage`, without fields that it omits
/// because they are zero.
fn by_upstream(stage: &Stage, cluster_id: Option<&str>) -> Value {
    let droplets: Vec<_> = stage
        .sim
        .documents("droplets")
        .iter()
        .map(|droplet| droplet["id"].clone())
        .collect();
    let tags: Vec<_> = cluster_id.iter().map(|id| format!("k8s:{id}")).collect();
    json!({
        "name": "auidweb", "type": "REGIONAL_NETWORK", "network": "EXTERNAL", "network_stack": "IPV4",
        "forwarding_rules": [rule("tcp", 80, "tcp", 80), rule("tcp", 443, "tcp", 443)], "droplet_ids": droplets,
        "tags": tags,
        "health_check": {
            "protocol": "http", "port": 10256, "path": "/healthz", "check_interval_seconds": 3,
            "response_timeout_seconds": 5, "unhealthy_threshold": 3, "healthy_threshold": 5, "proxy_protocol": false,
        },
        "project_id": "4de7ac8b-495b-4884-9a69-1050c6793cd6",
    })
}

#[tokio::test]
async fn a_service_gets_its_load_balancer_and_status_with_one_post() {
    let mut stage = Stage::served(&[]).await;
    assert_eq!(stage.writes(), ["loadBalancers_create"]);
    let balancer = stage.balancer();
    assert_eq!(balancer["tags"], json!(["kube_cluster_id_kube-system-uid"]));
    let web = stage.web().clone();
    assert_eq!(web.annotation(ID), balancer["id"].as_str());
    assert_eq!(web.annotation(&key("type")), Some("REGIONAL_NETWORK"));
    assert_eq!(web.ingress.len(), 1);
    assert_eq!(
        (web.ingress[0].ip.as_deref(), web.ingress[0].ip_mode),
        (balancer["ip"].as_str(), Some(IpMode::Vip))
    );
}

#[tokio::test]
async fn an_address_of_both_families_and_a_host_name_are_shown() {
    let mut stage = Stage::served(&[]).await;
    stage.edit(json!({"ipv6": "2001:db8::5"}));
    stage.restart().await;
    stage.settle().await.unwrap();
    let shown: Vec<_> = stage
        .web()
        .ingress
        .iter()
        .map(|ingress| ingress.ip.clone().unwrap())
        .collect();
    assert_eq!(&*shown[1], "2001:db8::5");
    annotate(stage.web(), &key("hostname"), Some("Web.Example"));
    stage.settle().await.unwrap();
    assert_eq!(stage.web().ingress.len(), 1);
    assert_eq!(stage.web().ingress[0].hostname.as_deref(), Some("web.example"));
}

#[tokio::test]
async fn the_ip_mode_is_proxy_if_tls_ends_at_the_load_balancer() {
    let mut stage = Stage::new(&[]).await;
    let certificate = stage.create_certificate("web", "custom");
    stage.add("web", &[("type", "REGIONAL"), ("certificate-id", &certificate)]);
    stage.add(
        "proxy",
        &[("type", "REGIONAL"), ("enable-proxy-protocol", "true")],
    );
    stage.add("plain", &[("type", "REGIONAL")]);
    stage.settle().await.unwrap();
    assert_eq!(stage.complaints(), [""; 0]);
    let modes = stage
        .services
        .iter()
        .map(|service| service.ingress[0].ip_mode.unwrap());
    assert_eq!(
        modes.collect::<Vec<_>>(),
        [IpMode::Proxy, IpMode::Proxy, IpMode::Vip]
    );
}

#[tokio::test]
async fn a_load_balancer_of_the_go_cloud_controller_is_taken_over_without_a_write() {
    for (variables, cluster_id) in [(vec![], None), (vec![("DO_CLUSTER_ID", "c-1")], Some("c-1"))] {
        let mut stage = Stage::new(&variables).await;
        let balancer = stage
            .sim
            .create("load_balancers", fields(by_upstream(&stage, cluster_id)));
        stage.add("web", &[]);
        annotate(stage.web(), ID, Some(&balancer));
        annotate(stage.web(), &key("type"), Some("REGIONAL_NETWORK"));
        let plans = stage
            .load_balancers()
            .unwrap()
            .plan(&stage.request(), None)
            .await
            .unwrap();
        let steps: Vec<_> = plans.iter().flat_map(|plan| &plan.steps).collect();
        assert!(steps.is_empty(), "{steps:?}");
        stage.settle().await.unwrap();
        assert_eq!((stage.complaints(), stage.writes()), (vec![], vec![]));
        assert!(!stage.web().ingress.is_empty());
        // The first change adds our tag. Unmanaged fields are kept.
        annotate(stage.web(), &key("size-unit"), Some("2"));
        stage.settle().await.unwrap();
        assert_eq!(stage.writes(), ["loadBalancers_update"]);
        let after = stage.balancer();
        let tags: Vec<_> = after["tags"]
            .as_array()
            .unwrap()
            .iter()
            .map(|tag| tag.as_str().unwrap())
            .collect();
        assert!(
            tags.contains(&"kube_cluster_id_kube-system-uid") && tags.len() == 1 + variables.len(),
            "{tags:?}"
        );
        assert_eq!(after["project_id"], "4de7ac8b-495b-4884-9a69-1050c6793cd6");
    }
}

#[tokio::test]
async fn load_balancers_of_every_kind_are_taken_over_without_a_write() {
    const CERTIFICATE: &str = "892071a0-bb95-49bc-8021-3afd67a210bf";
    let regional = json!({
        "type": "REGIONAL", "network_stack": "DUALSTACK",
        "forwarding_rules": [rule("tcp", 80, "tcp", 30080), rule("tcp", 443, "tcp", 30443)],
    });
    let mut https = rule("https", 443, "http", 30443);
    https["certificate_id"] = json!(CERTIFICATE);
    let mut passthrough = rule("https", 443, "https", 30443);
    passthrough["tls_passthrough"] = json!(true);
    let with = |base: &Value, more: Value| {
        let mut all = base.clone();
        all.as_object_mut().unwrap().extend(fields(more));
        all
    };
    let plain = json!({});
    type Annotations = &'static [(&'static str, &'static str)];
    let cases: [(Annotations, Value); 9] = [
        (&[("type", "REGIONAL")], regional.clone()),
        (
            &[
                ("type", "REGIONAL"),
                ("protocol", "http"),
                ("certificate-id", CERTIFICATE),
            ],
            with(
                &regional,
                json!({"forwarding_rules": [rule("http", 80, "http", 30080), https]}),
            ),
        ),
        (
            &[("type", "REGIONAL"), ("tls-passthrough", "true")],
            with(
                &regional,
                json!({"forwarding_rules": [rule("tcp", 80, "tcp", 30080), passthrough]}),
            ),
        ),
        (
            &[
                ("type", "REGIONAL"),
                ("enable-proxy-protocol", "true"),
                ("redirect-http-to-https", "true"),
            ],
            with(
                &regional,
                json!({"enable_proxy_protocol": true, "redirect_http_to_https": true}),
            ),
        ),
        (
            &[
                ("type", "REGIONAL"),
                ("sticky-sessions-type", "cookies"),
                ("sticky-sessions-cookie-name", "c"),
                ("sticky-sessions-cookie-ttl", "60"),
                ("http-idle-timeout-seconds", "90"),
            ],
            with(
                &regional,
                json!({
                    "sticky_sessions": {"type": "cookies", "cookie_name": "c", "cookie_ttl_seconds": 60},
                    "http_idle_timeout_seconds": 90,
                }),
            ),
        ),
        (
            &[("network", "INTERNAL")],
            with(&plain, json!({"network": "INTERNAL"})),
        ),
        (
            &[("size-slug", "lb-medium")],
            with(&plain, json!({"size_unit": 3})),
        ),
        (
            &[("allow-rules", "ip:192.0.2.1, cidr:10.0.0.0/8"), ("name", "shop")],
            with(
                &plain,
                json!({"name": "shop", "firewall": {"allow": ["cidr:10.0.0.0/8", "ip:192.0.2.1"], "deny": []}}),
            ),
        ),
        (
            &[("override-health-check", ""), ("healthcheck-port", "443")],
            with(
                &plain,
                json!({"health_check": {
                    "protocol": "tcp", "port": 30443, "check_interval_seconds": 3, "response_timeout_seconds": 5,
                    "unhealthy_threshold": 3, "healthy_threshold": 5,
                }}),
            ),
        ),
    ];
    for (annotations, differences) in cases {
        let mut stage = Stage::new(&[]).await;
        let certificate = json!({"id": CERTIFICATE, "name": "web", "type": "custom"});
        stage.sim.create("certificates", fields(certificate));
        let document = with(&by_upstream(&stage, None), differences);
        let id = stage.sim.create("load_balancers", fields(document));
        stage.add("web", annotations);
        annotate(stage.web(), ID, Some(&id));
        stage.settle().await.unwrap();
        assert_eq!(
            (stage.complaints(), stage.writes()),
            (vec![], vec![]),
            "{annotations:?}"
        );
        assert!(!stage.web().ingress.is_empty(), "{annotations:?}");
    }
}

#[tokio::test]
async fn a_load_balancer_with_the_default_name_is_renamed() {
    let mut stage = Stage::served(&[]).await;
    let id = stage.balancer()["id"].clone();
    annotate(stage.web(), ID, None);
    annotate(stage.web(), &key("name"), Some("custom"));
    stage.restart().await;
    stage.settle().await.unwrap();
    let balancer = stage.balancer();
    assert_eq!((&balancer["id"], &balancer["name"]), (&id, &json!("custom")));
}

#[tokio::test]
async fn a_service_is_deleted_only_when_its_load_balancer_is() {
    for fault in [
        Fault::on("loadBalancers_list", Action::status(500)),
        Fault::on("loadBalancers_list", Action::status(403)),
        Fault::on("loadBalancers_delete", Action::status(403)),
        Fault::on("loadBalancers_delete", Action::status(422)),
    ] {
        let mut stage = Stage::served(&[]).await;
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
    let mut stage = Stage::served(&[]).await;
    let id = stage.balancer()["id"].as_str().unwrap().to_owned();
    stage.sim.remove("load_balancers", &id).unwrap();
    stage.web().deleting = true;
    stage.settle().await.unwrap();
    assert!(stage.services.is_empty());
}

#[tokio::test]
async fn a_refusal_is_reported_with_the_api_message_and_retried_after_a_change() {
    for op in ["loadBalancers_create", "loadBalancers_update"] {
        let mut stage = Stage::new(&[]).await;
        stage.add("web", &[]);
        if op == "loadBalancers_update" {
            stage.settle().await.unwrap();
            annotate(stage.web(), &key("size-unit"), Some("2"));
        }
        let body = json!({"id": "unprocessable_entity", "message": "forwarding rule 1 is no good", "request_id": "r-1"});
        let action = Action::Status {
            code: 422,
            body: Some(body.to_string()),
            headers: BTreeMap::new(),
        };
        let fault = stage.sim.add_fault(Fault::on(op, action));
        stage.sim.clear_calls();
        let complaints = stage.settle_with_complaints().await;
        for part in ["forwarding rule 1 is no good", "request_id=r-1"] {
            assert!(complaints.contains(part), "{op}: {complaints}");
        }
        assert_eq!(stage.writes(), [op], "not repeated");
        stage.sim.remove_fault(fault);
        annotate(stage.web(), &key("size-unit"), Some("3"));
        stage.settle().await.unwrap();
        assert_eq!(
            (stage.complaints(), &stage.balancer()["size_unit"]),
            (vec![], &json!(3))
        );
    }
}

#[tokio::test]
async fn a_failed_sync_loses_neither_the_load_balancer_nor_its_id() {
    let mut stage = Stage::served(&[]).await;
    let id = stage.balancer()["id"].as_str().unwrap().to_owned();
    for annotated in [Some(id.as_str()), None] {
        annotate(stage.web(), ID, annotated);
        let size = if annotated.is_some() { "2" } else { "3" };
        annotate(stage.web(), &key("size-unit"), Some(size));
        let fault = Fault::on("loadBalancers_update", Action::status(422));
        let fault = stage.sim.add_fault(fault);
        assert!(!stage.settle_with_complaints().await.is_empty());
        assert_eq!(stage.web().annotation(ID), annotated, "the load balancer is kept");
        stage.sim.remove_fault(fault);
        stage.restart().await;
        stage.settle().await.unwrap();
        assert_eq!(stage.writes(), ["loadBalancers_update"]);
        assert_eq!(stage.balancer()["size_unit"].to_string(), size);
        assert_eq!(stage.web().annotation(ID), Some(id.as_str()));
    }
}

#[tokio::test]
async fn a_new_name_renames_and_the_id_keeps_the_link() {
    let mut stage = Stage::served(&[("name", "first")]).await;
    let id = stage.balancer()["id"].clone();
    annotate(stage.web(), &key("name"), Some("second"));
    stage.settle().await.unwrap();
    let balancer = stage.balancer();
    assert_eq!((&balancer["id"], &balancer["name"]), (&id, &json!("second")));
    annotate(stage.web(), ID, None);
    stage.settle().await.unwrap();
    assert_eq!(stage.web().annotation(ID), id.as_str(), "found by its name");
}

#[tokio::test]
async fn a_stale_id_leads_to_a_new_load_balancer() {
    let mut stage = Stage::new(&[]).await;
    stage.add("web", &[]);
    annotate(stage.web(), ID, Some("11111111-2222-4333-8444-555555555555"));
    stage.settle().await.unwrap();
    let id = stage.balancer()["id"].clone();
    assert_eq!(stage.web().annotation(ID), id.as_str());
}

#[tokio::test]
async fn without_a_visible_node_a_missing_load_balancer_is_not_replaced() {
    let mut stage = Stage::served(&[]).await;
    let id = stage.balancer()["id"].as_str().unwrap().to_owned();
    stage.sim.remove("load_balancers", &id).unwrap();
    for droplet in stage.sim.documents("droplets") {
        stage.sim.remove("droplets", &droplet["id"].to_string()).unwrap();
    }
    stage.restart().await;
    let complaints = stage.settle_with_complaints().await;
    assert!(complaints.contains("wrong credentials"), "{complaints}");
    assert!(stage.writes().is_empty());
}

#[tokio::test]
async fn immutable_fields_are_blocked_and_other_fields_are_applied() {
    let mut stage = Stage::served(&[]).await;
    annotate(stage.web(), &key("type"), Some("REGIONAL"));
    annotate(stage.web(), &key("network"), Some("INTERNAL"));
    annotate(stage.web(), &key("size-unit"), Some("2"));
    let complaints = stage.settle_with_complaints().await;
    for part in [
        "type of load balancer auidweb in place: observed REGIONAL_NETWORK",
        "network of load balancer auidweb in place: observed EXTERNAL",
    ] {
        assert!(complaints.contains(part), "{complaints}");
    }
    assert_eq!(stage.balancer()["size_unit"], 2);
    assert_eq!(
        stage.web().annotation(&key("type")),
        Some("REGIONAL"),
        "the user's annotation is kept"
    );
}

#[tokio::test]
async fn annotations_without_effect_are_reported_with_the_reason_of_every_cloud() {
    let stage = Stage::served(&[("http-ports", "80")]).await;
    let events = stage.reports.iter().flat_map(|report| &report.events);
    let reasons: Vec<_> = events.map(|event| event.reason).collect();
    assert_eq!(reasons, ["LoadBalancerAnnotationIgnored"]);
}

#[tokio::test]
async fn a_byoip_address_is_sent_once() {
    let mut stage = Stage::served(&[("ip", "203.0.113.77")]).await;
    annotate(stage.web(), &key("size-unit"), Some("2"));
    stage.settle().await.unwrap();
    assert_eq!(stage.writes(), ["loadBalancers_create", "loadBalancers_update"]);
}

#[tokio::test]
async fn two_services_cannot_share_a_load_balancer() {
    let mut stage = Stage::served(&[]).await;
    let id = stage.balancer()["id"].as_str().unwrap().to_owned();
    annotate(stage.add("other", &[]), ID, Some(&id));
    let complaints = stage.settle_with_complaints().await;
    assert!(complaints.contains("belongs to Service shop/web"), "{complaints}");
    stage.services.retain(|service| &*service.id.name == "other");
    stage.services[0].deleting = true;
    stage.sim.clear_calls();
    let web = service("web", &[80, 443]);
    stage.services.push(web);
    stage.settle().await.unwrap();
    assert_eq!(
        stage.writes(),
        [""; 0],
        "the load balancer is still the one of web"
    );
}

/// Another cluster with the same account.
async fn other_cluster(stage: &Stage) -> ccm_core::testkit::TestCluster {
    let cloud = build(stage.environment.clone()).await.unwrap();
    let mut other = ccm_core::testkit::TestCluster::new(cloud, cloud::advance_to);
    other.ownership_tag = OwnershipTag::Known(ClusterTag::of("b"));
    other.nodes = vec![cloud::node(&stage.sim, "node-b")];
    other
}

#[tokio::test]
async fn a_load_balancer_moved_to_another_cluster_is_not_an_orphan() {
    let mut stage = Stage::served(&[]).await;
    let id = stage.balancer()["id"].as_str().unwrap().to_owned();
    annotate(stage.web(), DISOWN, Some("true"));
    stage.sim.clear_calls();
    stage.settle().await.unwrap();
    let mut other = other_cluster(&stage).await;
    let mut moved = service("web", &[80, 443]);
    moved.id.uid = "uid-in-b".into();
    annotate(&mut moved, ID, Some(&id));
    other.services.push(moved);
    other.settle().await.unwrap();
    assert_eq!(other.complaints(), [""; 0]);
    assert_eq!(stage.writes(), ["loadBalancers_update"]);
    let balancer = stage.balancer();
    assert_eq!(balancer["tags"], json!(["kube_cluster_id_b"]));
    assert_eq!(
        (
            &balancer["name"],
            balancer["droplet_ids"].as_array().unwrap().len()
        ),
        (&json!("auidinb"), 1)
    );
    // Neither the disowned Service nor its deletion changes the load balancer.
    for gone in [false, true] {
        if gone {
            stage.services.clear();
        }
        stage.restart().await;
        stage.settle().await.unwrap();
        assert_eq!(stage.discover().await.unwrap().orphans, []);
        assert!(stage.writes().is_empty());
    }
}

#[tokio::test]
async fn another_clusters_load_balancer_is_not_taken_over_by_its_name() {
    let stage = Stage::served(&[("name", "shared")]).await;
    let before = stage.balancer();
    let mut other = other_cluster(&stage).await;
    let mut thief = service("web", &[80]);
    thief.id.uid = "uid-in-b".into();
    annotate(&mut thief, &key("name"), Some("shared"));
    other.services.push(thief);
    other.settle().await.unwrap();
    let complaints = other.complaints().join("; ");
    assert!(
        complaints.contains("has the tag kube_cluster_id_kube-system-uid of another cluster"),
        "{complaints}"
    );
    other.services[0].deleting = true;
    other.settle().await.unwrap();
    assert_eq!((other.services.len(), stage.balancer()), (0, before));
}

#[tokio::test]
async fn an_orphan_is_reported_and_one_without_tags_is_not() {
    let mut stage = Stage::served(&[]).await;
    stage.services.clear();
    let orphans = stage.discover().await.unwrap().orphans;
    assert!(orphans.len() == 1 && orphans[0].deletable, "{orphans:?}");
    let mut fields = stage.balancer();
    let id = fields["id"].as_str().unwrap().to_owned();
    // The API may omit tags.
    fields
        .as_object_mut()
        .unwrap()
        .insert("tags".to_owned(), Value::Null);
    stage
        .sim
        .change("load_balancers", &id, cloud::fields(fields))
        .unwrap();
    stage.restart().await;
    assert_eq!(stage.discover().await.unwrap().orphans, []);
}

#[tokio::test]
async fn certificates_are_followed_when_they_are_renewed_and_only_then() {
    // Kind and name of the load balancer's certificate and of the annotated one, and the resulting annotation.
    for (current, annotated, rewritten) in [
        (("lets_encrypt", "web"), Some(("lets_encrypt", "web")), true),
        (("lets_encrypt", "web"), None, true),
        (("lets_encrypt", "web"), Some(("lets_encrypt", "shop")), false),
        (("custom", "web"), Some(("custom", "web")), false),
        (("custom", "web"), Some(("lets_encrypt", "web")), false),
    ] {
        let mut stage = Stage::new(&[]).await;
        let first = stage.create_certificate(current.1, current.0);
        stage.add("web", &[("type", "REGIONAL"), ("certificate-id", &first)]);
        stage.settle().await.unwrap();
        let second = match annotated {
            Some((kind, name)) => stage.create_certificate(name, kind),
            None => "11111111-2222-4333-8444-555555555555".to_owned(),
        };
        annotate(stage.web(), &key("certificate-id"), Some(&second));
        stage.sim.clear_calls();
        stage.settle().await.unwrap();
        assert_eq!(stage.complaints(), [""; 0], "{current:?} {annotated:?}");
        let (expected, writes) = if rewritten { (&first, 0) } else { (&second, 1) };
        assert_eq!(
            stage.web().annotation(&key("certificate-id")),
            Some(expected.as_str()),
            "{current:?} {annotated:?}"
        );
        assert_eq!(stage.writes().len(), writes, "{current:?} {annotated:?}");
        let rules = stage.balancer()["forwarding_rules"].as_array().unwrap().clone();
        assert!(
            rules.iter().any(|rule| rule["certificate_id"] == json!(expected)),
            "{rules:?}"
        );
    }
}

#[tokio::test]
async fn a_rule_has_either_a_certificate_or_passthrough_after_each_switch() {
    let mut stage = Stage::new(&[]).await;
    let certificate = stage.create_certificate("web", "custom");
    stage.add("web", &[("type", "REGIONAL")]);
    for uses_certificate in [true, false, true] {
        let id = uses_certificate.then_some(certificate.as_str());
        annotate(stage.web(), &key("certificate-id"), id);
        annotate(
            stage.web(),
            &key("tls-passthrough"),
            (!uses_certificate).then_some("true"),
        );
        stage.settle().await.unwrap();
        assert_eq!(stage.complaints(), [""; 0]);
        let rules = stage.balancer()["forwarding_rules"].as_array().unwrap().clone();
        let https = rules.iter().find(|rule| rule["entry_protocol"] == "https");
        let https = https.unwrap();
        assert_eq!(
            (&https["certificate_id"], &https["tls_passthrough"]),
            (&json!(id.unwrap_or_default()), &json!(!uses_certificate))
        );
    }
}

#[tokio::test]
async fn a_certificate_is_found_by_its_name_and_a_missing_one_is_reported() {
    let mut stage = Stage::new(&[]).await;
    let certificate = stage.create_certificate("web", "lets_encrypt");
    stage.add("web", &[("type", "REGIONAL"), ("certificate-name", "web")]);
    stage.settle().await.unwrap();
    assert_eq!(
        stage.balancer()["forwarding_rules"][1]["certificate_id"],
        json!(certificate)
    );
    // A renewal, which DigitalOcean applies to the load balancer.
    stage.sim.remove("certificates", &certificate).unwrap();
    let certificate = stage.create_certificate("web", "lets_encrypt");
    let mut rules = stage.balancer()["forwarding_rules"].clone();
    rules[1]["certificate_id"] = json!(certificate);
    stage.edit(json!({ "forwarding_rules": rules }));
    stage.sim.clear_calls();
    stage.read.freshness = Freshness::now();
    stage.settle().await.unwrap();
    assert_eq!((stage.complaints(), stage.writes()), (vec![], vec![]));
    assert_eq!(stage.balancer()["forwarding_rules"], rules);
    annotate(stage.web(), &key("certificate-name"), Some("absent"));
    let complaints = stage.settle_with_complaints().await;
    assert!(
        complaints.contains("certificate with the name \"absent\" not found"),
        "{complaints}"
    );
    // A custom certificate that was deleted.
    annotate(stage.web(), &key("certificate-name"), None);
    annotate(
        stage.web(),
        &key("certificate-id"),
        Some("11111111-2222-4333-8444-555555555555"),
    );
    stage.sim.remove("certificates", &certificate).unwrap();
    let complaints = stage.settle_with_complaints().await;
    assert!(
        complaints.contains("certificate with the ID 1111"),
        "{complaints}"
    );
    assert!(!stage.web().ingress.is_empty());
}

#[tokio::test]
async fn a_refused_service_still_follows_the_nodes_and_can_be_deleted() {
    let mut stage = Stage::served(&[]).await;
    annotate(stage.web(), &key("size-unit"), Some("many"));
    stage.join("node-2");
    stage.sim.clear_calls();
    let complaints = stage.settle_with_complaints().await;
    assert!(complaints.contains("size-unit: \"many\""), "{complaints}");
    assert_eq!(stage.writes(), ["loadBalancers_update"]);
    assert_eq!(stage.balancer()["droplet_ids"].as_array().unwrap().len(), 3);
    // A tag that others set is replaced by the list of droplets, once.
    stage.edit(json!({"tag": "web", "droplet_ids": []}));
    stage.restart().await;
    for writes in [1, 0] {
        stage.settle_with_complaints().await;
        assert_eq!(stage.writes().len(), writes);
        let balancer = stage.balancer();
        assert_eq!(balancer["tag"], "");
        assert_eq!(balancer["droplet_ids"].as_array().unwrap().len(), 3);
        stage.restart().await;
    }
    stage.web().deleting = true;
    stage.settle().await.unwrap();
    assert!(stage.services.is_empty() && stage.balancers().is_empty());
}

#[tokio::test]
async fn a_missing_certificate_refuses_no_load_balancer_of_type_regional_network() {
    let absent = ("certificate-id", "11111111-2222-4333-8444-555555555555");
    for (annotations, default) in [
        (vec![absent], "REGIONAL_NETWORK"),
        (
            vec![("certificate-name", "absent"), ("type", "REGIONAL_NETWORK")],
            "REGIONAL",
        ),
    ] {
        let mut stage = Stage::new(&[("DEFAULT_LB_TYPE", default)]).await;
        stage.add("web", &annotations);
        for size in [1, 2] {
            annotate(stage.web(), &key("size-unit"), Some(&size.to_string()));
            stage.settle().await.unwrap();
            assert_eq!((stage.complaints(), stage.writes().len()), (vec![], size));
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
        let mut stage = Stage::served(&[("type", "REGIONAL"), ("enable-proxy-protocol", "true")]).await;
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
        stage.settle_with_complaints().await;
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
        let stage = Stage::served(&[]).await;
        if let Some(tags) = tags {
            stage.edit(json!({"tags": tags, "droplet_ids": [7]}));
        }
        let before = stage.balancer();
        let mut other = other_cluster(&stage).await;
        let mut web = service("web", &[80]);
        web.id.uid = "uid-in-b".into();
        annotate(&mut web, ID, before["id"].as_str());
        annotate(&mut web, &key("size-unit"), Some("many"));
        other.services.push(web);
        other.settle().await.unwrap();
        let complaints = other.complaints().join("; ");
        assert!(complaints.contains("size-unit: \"many\""), "{complaints}");
        assert_eq!(stage.balancer(), before);
        annotate(&mut other.services[0], &key("size-unit"), Some("2"));
        other.settle().await.unwrap();
        assert_eq!(
            (other.complaints(), &stage.balancer()["size_unit"]),
            (vec![], &json!(2))
        );
    }
}

#[tokio::test]
async fn values_that_the_go_cloud_controller_accepts_refuse_no_service() {
    let mut stage = Stage::served(&[("algorithm", "random"), ("size-unit", "")]).await;
    assert_eq!(stage.complaints(), [""; 0]);
    stage.web().source_ranges = Some(vec!["10.20.30.40/16".into(), "2001:DB8::1/32".into()]);
    stage.settle().await.unwrap();
    let allow = &stage.balancer()["firewall"]["allow"];
    assert_eq!(allow, &json!(["cidr:10.20.0.0/16", "cidr:2001:db8::/32"]));
}

#[tokio::test]
async fn an_unreadable_disown_keeps_the_load_balancer() {
    let mut stage = Stage::served(&[]).await;
    annotate(stage.web(), DISOWN, Some("yes"));
    let complaints = stage.settle_with_complaints().await;
    assert!(
        complaints.contains("disown: \"yes\" is neither true nor false"),
        "{complaints}"
    );
    stage.web().deleting = true;
    let complaints = stage.settle_with_complaints().await;
    assert!(complaints.contains("neither true nor false"), "{complaints}");
    assert_eq!((stage.services.len(), stage.balancers().len()), (1, 1));
    annotate(stage.web(), DISOWN, Some("false"));
    stage.settle().await.unwrap();
    assert_eq!((stage.services.len(), stage.balancers().len()), (0, 0));
}

#[tokio::test]
async fn a_failed_lookup_by_name_removes_no_droplet() {
    let mut stage = Stage::served(&[]).await;
    let known = stage.nodes[1].view.provider_id.clone();
    let nameless = |stage: &mut Stage, id: Option<String>| {
        std::sync::Arc::make_mut(&mut stage.nodes[1].view).provider_id = id;
    };
    nameless(&mut stage, None);
    stage.restart().await;
    let fault = stage
        .sim
        .add_fault(Fault::on("droplets_list", Action::status(500)));
    annotate(stage.web(), &key("size-unit"), Some("2"));
    let complaints = stage.settle_with_complaints().await;
    assert!(complaints.contains("500"), "{complaints}");
    assert_eq!(stage.writes(), [""; 0]);
    stage.sim.remove_fault(fault);
    stage.settle().await.unwrap();
    let balancer = stage.balancer();
    assert_eq!(balancer["size_unit"], 2);
    assert_eq!(balancer["droplet_ids"].as_array().unwrap().len(), 2);
    nameless(&mut stage, known);
}

#[tokio::test]
async fn a_missing_droplet_does_not_block_others() {
    let mut stage = Stage::served(&[]).await;
    stage.join("node-2");
    let gone = stage.nodes[0].view.provider_id.clone().unwrap();
    let gone = gone.trim_start_matches("digitalocean://").to_owned();
    stage.sim.remove("droplets", &gone).unwrap();
    stage.settle().await.unwrap();
    let droplets = stage.balancer()["droplet_ids"].clone();
    assert_eq!(droplets.as_array().unwrap().len(), 2, "{droplets}");
    let gone = json!(gone.parse::<u64>().unwrap());
    assert!(!droplets.as_array().unwrap().contains(&gone), "{droplets}");
}

#[tokio::test]
async fn a_load_balancer_that_failed_is_reported_and_not_deleted() {
    let mut stage = Stage::new(&[]).await;
    stage.sim.fail_next_changes(1);
    stage.add("web", &[]);
    let complaints = stage.settle_with_complaints().await;
    assert!(complaints.contains("errored"), "{complaints}");
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
    stage.add("web", &[]);
    let (request, started) = (stage.request(), tokio::time::Instant::now());
    let part = stage.discover().await.unwrap().parts.remove(0);
    let (mut part, mut now) = (part, Duration::ZERO);
    loop {
        let report = stage.load_balancers().unwrap().run(&part, &request).await;
        part = report.renamed.unwrap_or(part);
        let PartState::Parked { until, .. } = report.state else {
            break;
        };
        cloud::advance_to(until).await;
        let passed = started.elapsed();
        stage.sim.advance_clock(passed.saturating_sub(now));
        now = passed;
    }
    assert!(
        started.elapsed() < Duration::from_secs(65),
        "{:?}",
        started.elapsed()
    );
    let mut calls = BTreeMap::<_, usize>::new();
    for call in stage.sim.calls() {
        *calls.entry(call.op).or_default() += 1;
    }
    assert!(calls["loadBalancers_get"] <= 13, "{calls:?}");
    assert_eq!(
        (calls["loadBalancers_create"], calls["loadBalancers_list"]),
        (1, 1),
        "{calls:?}"
    );
}

#[tokio::test]
async fn a_hundred_services_are_read_with_one_listing_after_a_restart() {
    let mut stage = Stage::new(&[]).await;
    stage.sim.set_quota(ccm_sim::digitalocean::SERVICE, None);
    for number in 0..100 {
        stage.add(&format!("web-{number}"), &[]);
    }
    stage.settle().await.unwrap();
    stage.restart().await;
    stage.settle().await.unwrap();
    let calls: Vec<_> = stage.sim.calls().into_iter().map(|call| call.op).collect();
    assert_eq!(calls, ["loadBalancers_list"]);
    // A node joins, with a provider ID or without one yet.
    for (name, is_known) in [("node-2", true), ("node-3", false)] {
        stage.join(name);
        if !is_known {
            let node = stage.nodes.last_mut().unwrap();
            let mut view = (*node.view).clone();
            view.provider_id = None;
            node.view = std::sync::Arc::new(view);
        }
        stage.restart().await;
        stage.settle().await.unwrap();
        assert_eq!(stage.writes().len(), 100, "one PUT for each");
        // The load balancers once, and the droplet of the node that has no provider ID.
        let reads = stage.sim.calls().len() - 100;
        let most = if is_known { 1 } else { 2 };
        assert!(reads <= most, "{:?}", stage.sim.call_counts());
    }
}

#[tokio::test]
async fn unreadable_answers_change_nothing() {
    let mut stage = Stage::served(&[]).await;
    let before = stage.balancer();
    let html = "<html><body>down for maintenance</body></html>".to_owned();
    for (code, body) in [
        (200, Some(html.clone())),
        (502, Some(html)),
        (200, Some("{}".to_owned())),
    ] {
        stage.restart().await;
        let action = Action::Status {
            code,
            body,
            headers: BTreeMap::new(),
        };
        let fault = stage.sim.add_fault(Fault::on("loadBalancers_list", action));
        let error = stage.settle().await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
        assert!(!error.report().contains('<'), "{}", error.report());
        stage.sim.remove_fault(fault);
        stage.settle().await.unwrap();
        assert_eq!((stage.balancer(), stage.writes().len()), (before.clone(), 0));
    }
}

#[tokio::test]
async fn a_listing_that_lost_a_page_is_an_error() {
    let mut stage = Stage::served(&[]).await;
    for number in 0..200 {
        let rule =
            json!({"entry_protocol": "tcp", "entry_port": 80, "target_protocol": "tcp", "target_port": 80});
        let fields = json!({"name": format!("other-{number}"), "forwarding_rules": [rule]});
        stage.sim.create("load_balancers", cloud::fields(fields));
    }
    stage.restart().await;
    let second = Fault {
        nth: 2,
        ..Fault::on("loadBalancers_list", Action::status(404))
    };
    stage.sim.add_fault(second);
    assert!(stage.settle().await.is_err());
    assert!(stage.writes().is_empty() && stage.balancers().len() == 201);
}
