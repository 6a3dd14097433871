//! Load balancers of the Go program: annotations that it does not read, and attributes that people set by hand.

use ccm_core::testkit::cluster::service;
use ccm_testbed::observe::assert_has;
use serde_json::json;

use crate::stage::{NLB, NOTHING, Stage};

const ALPN: &str = "alpn-policy";
const PROXY: &str = "proxy_protocol_v2.enabled";
const CLIENT_IP: &str = "preserve_client_ip.enabled";

/// Adds ports to the Service `web`, settles, and returns the writes.
async fn add_port(stage: &mut Stage, port: u16) -> Vec<String> {
    let ports = service("more", &[port]).ports;
    stage.service("web").ports.extend(ports);
    stage.settle().await
}

/// The requests of the last [`Stage::settle`] with this text.
fn requests_with(stage: &Stage, text: &str) -> Vec<String> {
    let requests = stage.aws.proxy.requests().into_iter();
    let requests = requests.filter(|request| request.body.contains(text));
    requests.map(|request| request.name).collect()
}

/// The tags of the only network load balancer.
async fn tags(stage: &Stage) -> String {
    stage.only("v2").await["tags"].to_string()
}

#[tokio::test]
async fn an_annotation_that_the_go_program_does_not_read_waits_until_its_value_changes() {
    let mut stage = Stage::new(NLB, 3).await;
    let certificate = stage.aws.id("CERT1").to_owned();
    stage.add("web", &[443], &format!("ssl-cert={certificate}"));
    stage.settle_well().await;
    stage.disown().await;
    // The Go program left these without an effect for years.
    stage.annotate("web", ALPN, Some("HTTP2Preferred"));
    stage.annotate("web", "proxy-protocol", Some("*"));
    stage.annotate("web", "attributes", Some("deletion_protection.enabled=true"));
    stage.annotate("web", "healthcheck-timeout", Some("7"));
    stage.restart().await;
    assert_eq!(stage.settle().await, NOTHING, "adoption writes nothing");
    let names = [
        "alpn-policy",
        "aws-load-balancer-attributes",
        "healthcheck-timeout",
    ];
    stage.assert_complaints(&names);
    stage.assert_complaints(&[
        "set it again",
        "aws-load-balancer-target-group-attributes: proxy_protocol_v2.enabled=true",
    ]);
    // The first write, a restart with the ownership tag, and the next port.
    for (port, restarts) in [(8443, true), (9443, false)] {
        let writes = add_port(&mut stage, port).await;
        assert!(writes.contains(&"CreateListener".to_owned()), "{writes:?}");
        for name in [
            "ModifyListener",
            "ModifyTargetGroup",
            "ModifyTargetGroupAttributes",
            "ModifyLoadBalancerAttributes",
        ] {
            assert!(!writes.contains(&name.to_owned()), "{writes:?}");
        }
        assert_eq!(requests_with(&stage, "AlpnPolicy"), NOTHING);
        assert_eq!(requests_with(&stage, "HealthCheckTimeout"), NOTHING);
        assert_has(&tags(&stage).await, &["cloud-controller-manager/adopted-annotations="]);
        assert_ne!(stage.target_group_attribute(30000 + port, PROXY).await, "true");
        if restarts {
            stage.restart().await;
            assert_eq!(stage.settle().await, NOTHING);
            stage.assert_complaints(&names);
        }
    }
    stage.nodes.pop();
    assert_eq!(stage.settle().await, ["DeregisterTargets"; 3]);
    // Only the annotation that changed has an effect.
    stage.annotate("web", ALPN, Some("HTTP1Only"));
    stage.settle().await;
    assert_eq!(requests_with(&stage, "AlpnPolicy"), ["ModifyListener"; 3]);
    assert_eq!(requests_with(&stage, "deletion_protection"), NOTHING);
    let complaints = stage.complaints().join("; ");
    assert!(!complaints.contains(ALPN) && complaints.contains("healthcheck-timeout"), "{complaints}");
    stage.restart().await;
    assert_eq!(stage.settle().await, NOTHING);
    // The value of the adoption was set by a person this time.
    stage.annotate("web", ALPN, Some("HTTP2Preferred"));
    stage.settle().await;
    assert_eq!(requests_with(&stage, "AlpnPolicy"), ["ModifyListener"; 3]);
}

#[tokio::test]
async fn a_value_that_changed_before_the_first_write_while_nobody_led_is_reported() {
    let mut stage = Stage::new(NLB, 1).await;
    let certificate = stage.aws.id("CERT1").to_owned();
    stage.add("web", &[443], &format!("ssl-cert={certificate}; {ALPN}=None"));
    stage.settle_well().await;
    stage.disown().await;
    stage.restart().await;
    stage.settle().await;
    stage.annotate("web", ALPN, Some("HTTP2Only"));
    stage.restart().await;
    add_port(&mut stage, 8443).await;
    assert_eq!(requests_with(&stage, "AlpnPolicy"), NOTHING);
    stage.assert_complaints(&["to apply \"HTTP2Only\", remove the annotation and set it again"]);
    stage.annotate("web", ALPN, None);
    stage.settle_well().await;
    stage.annotate("web", ALPN, Some("HTTP2Only"));
    stage.settle_well().await;
    assert_eq!(requests_with(&stage, "AlpnPolicy"), ["ModifyListener"; 2]);
}

#[tokio::test]
async fn annotations_wait_where_tags_cannot_be_read() {
    let mut stage = Stage::new(NLB, 1).await;
    let certificate = stage.aws.id("CERT1").to_owned();
    let annotations = format!("ssl-cert={certificate}; attributes=load_balancing.cross_zone.enabled=true");
    stage.add("web", &[443], &annotations);
    stage.settle_well().await;
    let is_read = |request: &ccm_testbed::proxy::Request| request.name == "DescribeTags";
    let denied = ccm_testbed::proxy::Action::status(403);
    stage.aws.proxy.add(ccm_testbed::proxy::Rule::when(is_read, denied));
    stage.annotate("web", ALPN, Some("HTTP2Only"));
    stage.restart().await;
    assert_eq!(stage.settle().await, NOTHING, "cross-zone load balancing stays");
    add_port(&mut stage, 8443).await;
    assert_eq!(requests_with(&stage, "AlpnPolicy"), NOTHING);
    stage.annotate("web", ALPN, Some("HTTP1Only"));
    stage.settle().await;
    assert_eq!(requests_with(&stage, "AlpnPolicy"), ["ModifyListener"; 2]);
}

#[tokio::test]
async fn the_proxy_protocol_of_an_earlier_release_stays_until_a_person_names_it() {
    let mut stage = Stage::served(NLB, 1, &[80], "proxy-protocol=*").await;
    assert_ne!(stage.target_group_attribute(30080, PROXY).await, "true");
    // Release 0.1.0 enabled it.
    stage.set_target_group_attribute(30080, PROXY, "true").await;
    stage.restart().await;
    assert_eq!(stage.settle_well().await, NOTHING);
    add_port(&mut stage, 81).await;
    assert_eq!(stage.target_group_attribute(30080, PROXY).await, "true");
    assert_eq!(stage.target_group_attribute(30081, PROXY).await, "true");
    stage.annotate("web", "proxy-protocol", None);
    assert_eq!(stage.settle_well().await, NOTHING);
    let named = "target-group-attributes";
    stage.annotate("web", named, Some("proxy_protocol_v2.enabled=false"));
    stage.settle_well().await;
    assert_eq!(stage.target_group_attribute(30080, PROXY).await, "false");
}

#[tokio::test]
async fn attributes_that_a_person_set_on_a_load_balancer_of_the_go_program_stay() {
    let mut stage = Stage::served(NLB, 2, &[80], "").await;
    stage.disown().await;
    stage.set_target_group_attribute(30080, PROXY, "true").await;
    stage.set_target_group_attribute(30080, CLIENT_IP, "false").await;
    stage.restart().await;
    assert_eq!(stage.settle_well().await, NOTHING);
    add_port(&mut stage, 81).await;
    stage.assert_no_complaints();
    assert_eq!(stage.target_group_attribute(30080, PROXY).await, "true");
    assert_eq!(stage.target_group_attribute(30080, CLIENT_IP).await, "false");
    assert_ne!(stage.target_group_attribute(30081, PROXY).await, "true");
    // Another interval needs another target group, which gets them, too.
    stage.annotate("web", "healthcheck-interval", Some("20"));
    stage.settle_well().await;
    assert_eq!(stage.target_group_attribute(30080, PROXY).await, "true");
    assert_eq!(stage.target_group_attribute(30080, CLIENT_IP).await, "false");
    assert_ne!(stage.target_group_attribute(30081, PROXY).await, "true");
    stage.assert_settled().await;
}

#[tokio::test]
async fn an_attribute_that_this_program_set_is_reset_once_when_nobody_names_it_any_more() {
    let mut stage = Stage::new(NLB, 1).await;
    let certificate = stage.aws.id("CERT1").to_owned();
    let annotations = format!(
        "ssl-cert={certificate}; {ALPN}=HTTP2Only; target-group-attributes={PROXY}=true; \
         attributes=dns_record.client_routing_policy=availability_zone_affinity; healthcheck-timeout=8; \
         healthcheck-unhealthy-threshold=5; healthcheck-protocol=http; healthcheck-success-codes=200"
    );
    stage.add("web", &[443], &annotations);
    stage.settle_well().await;
    // The names go while nobody leads.
    for key in [
        ALPN,
        "target-group-attributes",
        "attributes",
        "healthcheck-timeout",
        "healthcheck-unhealthy-threshold",
        "healthcheck-success-codes",
    ] {
        stage.annotate("web", key, None);
    }
    stage.restart().await;
    let mut writes = stage.settle_well().await;
    writes.sort();
    let expected = [
        "AddTags",
        "AddTags",
        "AddTags",
        "ModifyListener",
        "ModifyLoadBalancerAttributes",
        "ModifyTargetGroup",
        "ModifyTargetGroupAttributes",
    ];
    assert_eq!(writes, expected);
    assert_eq!(stage.target_group_attribute(30443, PROXY).await, "false");
    let group = stage.only("target_groups").await;
    assert_eq!(group["health"]["UnhealthyThresholdCount"], 3);
    assert_eq!(group["health"]["HealthCheckTimeoutSeconds"], 6);
    assert_eq!(group["health"]["Matcher"]["HttpCode"], "200-399");
    let balancer = stage.only("v2").await;
    assert_eq!(balancer["listeners"][0]["alpn"], json!(["None"]));
    let policy = &balancer["attributes"]["dns_record.client_routing_policy"];
    assert_eq!(*policy, "any_availability_zone");
    // Once: then it is a person's.
    stage.set_target_group_attribute(30443, PROXY, "true").await;
    stage.assert_settled().await;
    assert_eq!(stage.target_group_attribute(30443, PROXY).await, "true");
}

#[tokio::test]
async fn an_attribute_without_a_record_stays_and_is_reported() {
    let named = format!("target-group-attributes={PROXY}=true");
    let mut stage = Stage::served(NLB, 1, &[80], &named).await;
    // The Go program set it.
    stage.disown().await;
    stage.restart().await;
    assert_eq!(stage.settle_well().await, NOTHING);
    stage.annotate("web", "target-group-attributes", None);
    assert_eq!(stage.settle().await, NOTHING);
    stage.assert_complaints(&[
        "attribute proxy_protocol_v2.enabled of target group",
        "it stays true",
    ]);
    add_port(&mut stage, 81).await;
    assert_eq!(stage.target_group_attribute(30080, PROXY).await, "true");
    stage.assert_settled().await;
}

#[tokio::test]
async fn an_unhealthy_threshold_that_a_person_set_changes_only_with_the_health_check() {
    let mut stage = Stage::served(NLB, 1, &[80], "").await;
    let found = stage.call("v2", "describe_target_groups", json!({})).await;
    let arn = found["TargetGroups"][0]["TargetGroupArn"].clone();
    let body = json!({"TargetGroupArn": arn, "UnhealthyThresholdCount": 9});
    stage.call("v2", "modify_target_group", body).await;
    stage.assert_settled().await;
    // As upstream, which then writes both.
    stage.annotate("web", "healthcheck-healthy-threshold", Some("5"));
    stage.settle_well().await;
    let group = stage.only("target_groups").await;
    assert_eq!(group["health"]["UnhealthyThresholdCount"], 3);
}
