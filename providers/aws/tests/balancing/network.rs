//! The life cycle of network load balancers.

use ccm_core::{
    Freshness,
    load_balancer::{IpFamily, Protocol},
    testkit::cluster::{advance_to, annotate, service},
};
use ccm_testbed::{
    observe::assert_has,
    proxy::{Action, Request, Rule, aws_refusal},
};
use serde_json::json;
use tokio::time::{Duration, Instant};

use crate::stage::{MANAGED, NLB, NOTHING, Stage};

#[tokio::test]
async fn a_load_balancer_is_created_and_deleted_with_its_service() {
    let mut stage = Stage::new("", 3).await;
    stage.add("web", &[80, 443], "type=nlb");
    let writes = stage.settle_well().await;
    assert_eq!(writes.len(), 8, "{writes:?}");
    let hostname = stage.service("web").ingress[0].hostname.clone().unwrap();
    assert!(hostname.starts_with("auidweb-"), "{hostname}");
    assert_eq!(stage.objects("target_groups").await.len(), 2);
    let rules = [
        "icmp 3-4 from 0.0.0.0/0 (kubernetes.io/rule/nlb/mtu)",
        "tcp 30080-30080 from 0.0.0.0/0 (kubernetes.io/rule/nlb/client=auidweb)",
        "tcp 30443-30443 from 0.0.0.0/0 (kubernetes.io/rule/nlb/client=auidweb)",
    ];
    assert_eq!(stage.rules("nodes").await, rules);
    stage.assert_settled().await;
    assert_eq!(stage.delete().await.len(), 4);
}

#[tokio::test]
async fn a_node_that_leaves_costs_one_call_for_each_port() {
    let mut stage = Stage::served(NLB, 3, &[80, 443, 8080], "").await;
    stage.nodes.pop();
    assert_eq!(stage.settle_well().await, ["DeregisterTargets"; 3]);
    assert_eq!(stage.aws.proxy.requests().len(), 3, "no reads");
    for group in stage.objects("target_groups").await {
        assert_eq!(group["targets"].as_array().unwrap().len(), 2);
    }
}

#[tokio::test]
async fn a_listener_changes_to_tls_and_back_in_place() {
    let mut stage = Stage::served(NLB, 1, &[443], "").await;
    let certificate = stage.aws.id("CERT1").to_owned();
    stage.annotate("web", "ssl-cert", Some(&certificate));
    assert_eq!(stage.settle_well().await, ["ModifyListener"]);
    let requests = stage.aws.proxy.requests();
    let change = requests.iter().find(|request| request.name == "ModifyListener").unwrap();
    assert_has(&change.body, &["SslPolicy=ELBSecurityPolicy-2016-08"]);
    let listener = &stage.only("v2").await["listeners"][0];
    assert_eq!(listener["name"], "TLS:443");
    assert_eq!(listener["certificates"], json!([certificate]));
    // Targets with TLS need another target group; the old one is deleted.
    stage.annotate("web", "backend-protocol", Some("ssl"));
    let calls = "CreateTargetGroup RegisterTargets ModifyListener DeleteTargetGroup";
    assert_eq!(stage.settle_well().await.join(" "), calls);
    assert_eq!(stage.only("target_groups").await["protocol"], "TLS");
    stage.annotate("web", "backend-protocol", None);
    stage.annotate("web", "ssl-cert", None);
    stage.settle_well().await;
    stage.assert_settled().await;
    stage.delete().await;
}

#[tokio::test]
async fn tcp_and_udp_are_mixed_on_ports_and_on_one_port() {
    let mut stage = Stage::new(NLB, 1).await;
    stage.add("dns", &[53, 80], "");
    stage.service("dns").ports[0].protocol = Protocol::Udp;
    stage.settle_well().await;
    let both = stage.service("dns").ports[0].clone();
    stage.service("dns").ports.push(both);
    stage.service("dns").ports[2].protocol = Protocol::Tcp;
    stage.settle_well().await;
    let listeners = stage.only("v2").await["listeners"].take();
    let names = [&listeners[0]["name"], &listeners[1]["name"]];
    assert_eq!(names, ["TCP:80", "TCP_UDP:53"]);
    let rules = stage.rules("nodes").await;
    for protocol in ["tcp", "udp"] {
        let rule = format!("{protocol} 30053-30053 from 0.0.0.0/0 (kubernetes.io/rule/nlb/client=auiddns)");
        assert!(rules.contains(&rule), "{rules:#?}");
    }
    // The health check of a UDP port is TCP.
    stage.service("dns").ports[2].node_port = 30999;
    assert_eq!(stage.settle().await, NOTHING);
    stage.assert_complaints(&["different node ports"]);
    stage.delete().await;
}

#[tokio::test]
async fn attributes_are_set_and_unset_again() {
    let mut stage = Stage::new(NLB, 1).await;
    let annotations = "cross-zone-load-balancing-enabled=true; \
        target-group-attributes=preserve_client_ip.enabled=false,proxy_protocol_v2.enabled=true; \
        attributes=dns_record.client_routing_policy=availability_zone_affinity";
    stage.add("web", &[80], annotations);
    let mut calls = vec!["ModifyTargetGroupAttributes", "ModifyLoadBalancerAttributes"];
    let mut writes = stage.settle_well().await;
    writes.retain(|name| name.starts_with("Modify"));
    assert_eq!(writes, calls);
    let group = stage.only("target_groups").await["attributes"].clone();
    assert_eq!(group["proxy_protocol_v2.enabled"], "true");
    assert_eq!(group["preserve_client_ip.enabled"], "false");
    for key in ["cross-zone-load-balancing-enabled", "target-group-attributes"] {
        stage.annotate("web", key, None);
    }
    let mut writes = stage.settle_well().await;
    // The names of attributes that this program set are in a tag.
    calls.push("AddTags");
    writes.sort_by_key(|name| calls.iter().position(|call| name == call));
    assert_eq!(writes, calls);
    let group = stage.only("target_groups").await["attributes"].clone();
    assert_eq!(group["preserve_client_ip.enabled"], "true");
    let cross_zone = &stage.only("v2").await["attributes"]["load_balancing.cross_zone.enabled"];
    assert_eq!(*cross_zone, "false");
}

#[tokio::test]
async fn a_managed_security_group_follows_ports_and_ranges() {
    let mut stage = Stage::new(MANAGED, 1).await;
    stage.add("web", &[80, 443], "additional-resource-tags=team=web");
    // No subnet has IPv6.
    stage.service("web").ip_families = [IpFamily::V4, IpFamily::V6].into();
    stage.settle_well().await;
    let groups = stage.objects("security_groups").await;
    let mut names = groups.iter().map(|group| group["name"].as_str().unwrap());
    let name = names.find(|name| name.starts_with("k8s-")).unwrap();
    let all = ["icmp 3-4", "tcp 443-443", "tcp 80-80"].map(|rule| format!("{rule} from 0.0.0.0/0 ()"));
    assert_eq!(stage.rules(name).await, all);
    // The hourly comparison repairs its tags.
    let filter = json!({"Filters": [{"Name": "group-name", "Values": [name]}]});
    let group = stage.call("ec2", "describe_security_groups", filter).await;
    let body = json!({"Resources": [group["SecurityGroups"][0]["GroupId"]], "Tags": [{"Key": "team"}]});
    stage.call("ec2", "delete_tags", body).await;
    stage.read.freshness = Freshness::now();
    assert_eq!(stage.settle_well().await, ["CreateTags"]);
    stage.annotate("web", "ip-address-type", Some("dualstack"));
    assert_eq!(stage.settle().await, NOTHING);
    stage.annotate("web", "ip-address-type", None);
    stage.service("web").source_ranges = Some(vec!["10.1.2.0/24".into()]);
    stage.service("web").ports.pop();
    stage.settle_well().await;
    let rules = ["icmp 3-4 from 10.1.2.0/24 ()", "tcp 80-80 from 10.1.2.0/24 ()"];
    assert_eq!(stage.rules(name).await, rules);
    // Client, three of the health check, MTU.
    assert_eq!(stage.rules("nodes").await.len(), 5);
    stage.assert_settled().await;
    // Other groups replace it: it is deleted.
    let extra = stage.aws.id("SG_EXTRA").to_owned();
    stage.annotate("web", "security-groups", Some(&extra));
    stage.settle_well().await;
    assert_eq!(stage.only("v2").await["groups"], json!([extra]));
    assert_eq!(stage.objects("security_groups").await.len(), 2);
    stage.delete().await;
}

#[tokio::test]
async fn a_security_group_of_the_other_mode_stays_attached() {
    let mut stage = Stage::served(MANAGED, 1, &[80], "").await;
    stage.restart_with(NLB).await;
    assert_eq!(stage.settle_well().await, NOTHING);
    stage.delete().await;
}

#[tokio::test]
async fn a_service_that_prefers_dual_stack_gets_ipv4_in_subnets_without_ipv6() {
    let mut stage = Stage::new(NLB, 1).await;
    stage.add("web", &[80], "");
    stage.service("web").ip_families = [IpFamily::V4, IpFamily::V6].into();
    stage.settle_well().await;
    let found = stage.call("v2", "describe_load_balancers", json!({})).await;
    assert_eq!(found["LoadBalancers"][0]["IpAddressType"], "ipv4");
    stage.annotate("web", "ip-address-type", Some("dualstack"));
    assert_eq!(stage.settle().await, NOTHING);
    assert_has(&stage.blocked()[0].field, &["ip address type"]);
    stage.delete().await;
}

#[tokio::test]
async fn each_subnet_needs_an_address() {
    let mut stage = Stage::new(NLB, 1).await;
    stage.add("web", &[80], "eip-allocations=eipalloc-1");
    assert_eq!(stage.settle().await, NOTHING);
    stage.assert_complaints(&["aws-load-balancer-eip-allocations: 1 values for"]);
}

#[tokio::test]
async fn rules_over_the_quota_are_one_warning_and_the_rest_is_added() {
    let mut stage = Stage::new(MANAGED, 1).await;
    let ports: Vec<u16> = (1..=30).collect();
    stage.add("web", &ports, "");
    // 300 rules.
    let ranges = (1..=10).map(|range| format!("10.{range}.0.0/16").into());
    stage.service("web").source_ranges = Some(ranges.collect());
    stage.settle().await;
    assert_eq!(stage.rules("nodes").await.len(), 60);
    let blocked = stage.blocked();
    assert_eq!(blocked.len(), 2, "one for each group: {blocked:#?}");
    assert_has(&blocked[0].observed, &["RulesPerSecurityGroupLimitExceeded"]);
    assert!(!stage.service("web").ingress.is_empty());
    // Rules that are removed make space for new ones at once.
    let web = stage.service("web");
    web.source_ranges = Some(vec!["10.99.0.0/16".into()]);
    web.ports.truncate(8);
    stage.settle_well().await;
    stage.delete().await;
}

#[tokio::test]
async fn a_shared_rule_stays_until_its_last_service_leaves() {
    let more = "DefaultLoadBalancerType=nlb\nClusterServiceLoadBalancerHealthProbeMode=Shared\n";
    let mut stage = Stage::new(more, 1).await;
    stage.add("a", &[80], "");
    stage.add("b", &[81], "");
    stage.settle_well().await;
    let probes = |rules: Vec<String>, of: &str| {
        let of = format!("health={of})");
        let probes = rules.iter().filter(|rule| rule.contains("10256") && rule.ends_with(&of));
        probes.count()
    };
    assert_eq!(probes(stage.rules("nodes").await, "auida"), 3);
    stage.service("a").deleting = true;
    stage.settle_well().await;
    assert_eq!(probes(stage.rules("nodes").await, "auidb"), 3);
    stage.delete().await;
}

#[tokio::test]
async fn changes_to_a_load_balancer_of_another_program_wait_for_a_change_of_the_service() {
    let mut stage = Stage::new(NLB, 2).await;
    let subnets = format!("{},{}", stage.aws.id("PUBLIC_A"), stage.aws.id("PUBLIC_B"));
    stage.add("web", &[80], &format!("subnets={subnets}"));
    stage.settle_well().await;
    stage.disown().await;
    stage.annotate("web", "subnets", None);
    stage.annotate("web", "healthcheck-unhealthy-threshold", Some("5"));
    stage.restart().await;
    assert_eq!(stage.settle().await, NOTHING, "adoption writes nothing");
    let blocked = stage.blocked();
    assert_eq!(blocked.len(), 2, "{blocked:#?}");
    // What upstream repairs is repaired alone.
    let balancers = stage.call("v2", "describe_load_balancers", json!({})).await;
    let attribute = json!({"Key": "load_balancing.cross_zone.enabled", "Value": "true"});
    let arn = &balancers["LoadBalancers"][0]["LoadBalancerArn"];
    let body = json!({"LoadBalancerArn": arn, "Attributes": [attribute]});
    stage.call("v2", "modify_load_balancer_attributes", body).await;
    stage.restart().await;
    assert_eq!(stage.settle().await, ["ModifyLoadBalancerAttributes"]);
    // A change of nodes changes nothing else. Labels and the annotations of other programs are no request.
    stage.nodes.pop();
    stage.service("web").labels = [("chart", "2")].into_iter().collect();
    annotate(stage.service("web"), "example.com/endpoints", Some("1"));
    assert_eq!(stage.settle().await, ["DeregisterTargets"]);
    stage.annotate("web", "healthcheck-healthy-threshold", Some("5"));
    let writes = stage.settle_well().await;
    let calls = ["SetSubnets", "\"ModifyTargetGroup\"", "AddTags"];
    assert_has(&format!("{writes:?}"), &calls);
    assert_eq!(stage.only("v2").await["zones"].as_array().unwrap().len(), 3);
    stage.assert_settled().await;
    stage.delete().await;
}

#[tokio::test]
async fn actions_that_upstream_does_not_use_may_be_denied() {
    const ADDITIONAL: [&str; 6] = [
        "DescribeTags",
        "SetSubnets",
        "DescribeTargetGroupAttributes",
        "ModifyTargetGroupAttributes",
        "DescribeListenerCertificates",
        "UpdateSecurityGroupRuleDescriptionsIngress",
    ];
    let mut stage = Stage::new(NLB, 2).await;
    let denied = |request: &Request| ADDITIONAL.contains(&request.name.as_str());
    let refusal = Action::status(403);
    stage.aws.proxy.add(Rule::when(denied, refusal));
    stage.restart().await;
    let subnets = stage.aws.id("PUBLIC_A").to_owned();
    stage.add("web", &[80], &format!("subnets={subnets}"));
    stage.settle().await;
    stage.annotate("web", "subnets", None);
    stage.settle().await;
    assert_eq!(stage.only("v2").await["zones"].as_array().unwrap().len(), 1);
    stage.assert_complaints(&["elasticloadbalancing:SetSubnets"]);
    stage.restart().await;
    let writes = stage.settle().await;
    assert!(writes.iter().all(|name| name == "SetSubnets"), "{writes:?}");
    stage.assert_complaints(&["cannot be read"]);
    stage.nodes.pop();
    let writes = stage.settle().await;
    assert!(writes.contains(&"DeregisterTargets".to_owned()), "{writes:?}");
    stage.service("web").deleting = true;
    stage.settle().await;
    assert!(stage.services.is_empty());
    stage.assert_empty().await;
}

#[tokio::test]
async fn a_refused_subnet_does_not_block_listeners() {
    let mut stage = Stage::new(NLB, 1).await;
    let subnets = stage.aws.id("PUBLIC_A").to_owned();
    stage.add("web", &[80], &format!("subnets={subnets}"));
    stage.settle_well().await;
    let refusal = Action::answer(400, aws_refusal(false, "InvalidSubnet", "it is full"));
    let is_refused = |request: &Request| request.name == "SetSubnets";
    stage.aws.proxy.add(Rule::when(is_refused, refusal));
    stage.annotate("web", "subnets", None);
    stage.service("web").ports.extend(service("x", &[8443]).ports);
    stage.settle().await;
    assert_eq!(stage.only("v2").await["listeners"].as_array().unwrap().len(), 2);
    stage.assert_complaints(&["it is full"]);
    // A correction does not wait.
    stage.aws.proxy.clear();
    stage.read.freshness = Freshness::now();
    stage.annotate("web", "subnets", Some(&format!("{subnets},{}", stage.aws.id("PUBLIC_B"))));
    assert_has(&stage.settle_well().await.join(" "), &["SetSubnets"]);
}

#[tokio::test]
async fn an_instance_that_cannot_be_a_target_does_not_block_others() {
    let mut stage = Stage::new(NLB, 4).await;
    let mut ids = Vec::new();
    for (at, change) in [(1, "stop_instances"), (2, "terminate_instances")] {
        let id = stage.nodes[at].view.provider_id.clone().unwrap();
        let id = id.rsplit('/').next().unwrap().to_owned();
        let body = json!({"InstanceIds": [id]});
        stage.call("ec2", change, body).await;
        ids.push(id);
    }
    stage.add("web", &[80], "");
    stage.settle().await;
    let group = stage.only("target_groups").await;
    assert_eq!(group["targets"].as_array().unwrap().len(), 2);
    stage.assert_complaints(&["InvalidTarget", &ids[0], &ids[1]]);
    assert!(!stage.service("web").ingress.is_empty());
    // An instance that runs again is registered after some minutes.
    let body = json!({"InstanceIds": [ids[0]]});
    stage.call("ec2", "start_instances", body).await;
    assert_eq!(stage.settle().await, NOTHING);
    advance_to(Instant::now() + Duration::from_secs(600)).await;
    stage.settle().await;
    let group = stage.only("target_groups").await;
    assert_eq!(group["targets"].as_array().unwrap().len(), 3);
    assert!(!format!("{:?}", stage.blocked()).contains(&ids[0]));
}

#[tokio::test]
async fn a_service_never_gets_a_second_load_balancer() {
    let mut stage = Stage::served("", 1, &[80], "type=nlb").await;
    for requested in [None, Some("external")] {
        stage.annotate("web", "type", requested);
        assert_eq!(stage.settle().await, NOTHING);
        stage.assert_complaints(&["create a second Service"]);
    }
    // Its targets follow the nodes.
    stage.join("late").await;
    assert_eq!(stage.settle().await, ["RegisterTargets"]);
    stage.delete().await;
}

#[tokio::test]
async fn the_rest_of_a_load_balancer_that_was_deleted_manually_is_deleted() {
    let mut stage = Stage::served(NLB, 1, &[80, 443], "").await;
    let found = stage.call("v2", "describe_load_balancers", json!({})).await;
    let body = json!({"LoadBalancerArn": found["LoadBalancers"][0]["LoadBalancerArn"]});
    stage.call("v2", "delete_load_balancer", body).await;
    stage.restart().await;
    stage.delete().await;
}

#[tokio::test]
async fn deletion_protection_is_reported() {
    let mut stage = Stage::served(NLB, 1, &[80], "").await;
    let body = aws_refusal(false, "OperationNotPermitted", "deletion protection is enabled");
    let is_deletion = |request: &Request| request.name == "DeleteLoadBalancer";
    let rule = stage.aws.proxy.add(Rule::when(is_deletion, Action::answer(400, body)));
    let rules = stage.rules("nodes").await;
    stage.service("web").deleting = true;
    stage.settle().await;
    stage.assert_complaints(&["turn off its deletion protection"]);
    assert_eq!(stage.rules("nodes").await, rules, "clients still reach the nodes");
    assert!(!stage.service("web").finalizers.is_empty());
    stage.aws.proxy.remove(rule);
    stage.delete().await;
}

#[tokio::test]
async fn several_certificates_are_sent_one_by_one() {
    let mut stage = Stage::new(NLB, 1).await;
    let certificates = [1, 2].map(|at| stage.aws.id(&format!("CERT{at}")).to_owned());
    let [first, second] = &certificates;
    let body = json!({"DomainName": "three.example.com"});
    let third = stage.call("acm", "request_certificate", body).await;
    let third = third["CertificateArn"].as_str().unwrap();
    stage.add("web", &[443], &format!("ssl-cert={first},{second},{third}"));
    let writes = stage.settle_well().await;
    let added = writes.iter().filter(|name| *name == "AddListenerCertificates");
    assert_eq!(added.count(), 2, "{writes:?}");
    stage.assert_settled().await;
    stage.annotate("web", "ssl-cert", Some(&format!("{first},{second}")));
    assert_eq!(stage.settle_well().await, ["RemoveListenerCertificates"]);
    stage.delete().await;
}

#[tokio::test]
async fn a_short_interval_gets_a_timeout_when_the_target_group_is_created() {
    let mut stage = Stage::served(NLB, 1, &[80], "healthcheck-interval=5").await;
    let group = stage.only("target_groups").await;
    assert_eq!(group["health"]["HealthCheckTimeoutSeconds"], 5);
    // A timeout that a person sets stays.
    let found = stage.call("v2", "describe_target_groups", json!({})).await;
    let arn = found["TargetGroups"][0]["TargetGroupArn"].clone();
    let body = json!({"TargetGroupArn": arn, "HealthCheckTimeoutSeconds": 3});
    stage.call("v2", "modify_target_group", body).await;
    stage.assert_settled().await;
    stage.delete().await;
}

#[tokio::test]
async fn clients_that_are_hidden_reach_the_nodes_from_the_load_balancer() {
    let hides = "target-group-attributes=preserve_client_ip.enabled=false; healthcheck-port=8081";
    let mut stage = Stage::new(NLB, 1).await;
    stage.add("web", &[80], hides);
    stage.service("web").source_ranges = Some(vec!["203.0.113.0/24".into()]);
    stage.settle_well().await;
    let rules = stage.rules("nodes").await;
    let clients: Vec<_> = rules
        .iter()
        .filter(|rule| rule.starts_with("tcp 30080-30080 from ") && rule.contains("client="))
        .collect();
    assert_eq!(clients.len(), 4, "its range and three subnets: {rules:#?}");
    // A takeover writes nothing.
    let filter = json!({"Filters": [{"Name": "group-name", "Values": ["nodes"]}]});
    let groups = stage.call("ec2", "describe_security_groups", filter).await;
    let permissions = groups["SecurityGroups"][0]["IpPermissions"].as_array().unwrap().iter();
    let permissions: Vec<_> = permissions
        .filter(|permission| permission["FromPort"] != 8081)
        .map(|permission| {
            let mut permission = permission.clone();
            let ranges = permission["IpRanges"].as_array().unwrap().iter();
            let ranges: Vec<_> =
                ranges.filter(|range| range["CidrIp"] != "203.0.113.0/24").cloned().collect();
            permission["IpRanges"] = ranges.into();
            permission
        })
        .collect();
    let body = json!({"GroupId": stage.aws.id("SG_NODES"), "IpPermissions": permissions});
    stage.call("ec2", "revoke_security_group_ingress", body).await;
    stage.disown().await;
    stage.restart().await;
    assert_eq!(stage.settle_well().await, NOTHING);
    stage.service("web").ports.extend(service("more", &[81]).ports);
    stage.settle_well().await;
    let rules = stage.rules("nodes").await;
    let clients = rules.iter().filter(|rule| rule.contains("client="));
    assert_eq!(clients.count(), 8, "{rules:#?}");
}
