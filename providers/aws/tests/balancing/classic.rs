//! The life cycle of classic load balancers.

use ccm_core::{load_balancer::ServiceType, testkit::cluster::service};
use ccm_testbed::proxy::{Action, Request, Rule, aws_refusal};
use serde_json::json;

use crate::stage::{NLB, NOTHING, Stage};

#[tokio::test]
async fn a_service_without_a_type_gets_a_classic_load_balancer() {
    let mut stage = Stage::new("", 3).await;
    stage.add("web", &[80, 443], "");
    let writes = stage.settle_well().await;
    let expected = [
        "CreateSecurityGroup",
        "AuthorizeSecurityGroupIngress",
        "CreateLoadBalancer",
        "ConfigureHealthCheck",
        "RegisterInstancesWithLoadBalancer",
        "AuthorizeSecurityGroupIngress",
    ];
    assert_eq!(writes, expected);
    let found = stage.only("classic").await;
    assert_eq!(found["health"]["Target"], "TCP:30080");
    assert_eq!(found["instances"].as_array().unwrap().len(), 3);
    assert_eq!(stage.rules("nodes").await.len(), 1);
    assert_eq!(stage.rules("k8s-elb-auidweb").await.len(), 3);
    stage.assert_settled().await;
    stage.nodes.pop();
    assert_eq!(stage.settle_well().await, ["DeregisterInstancesFromLoadBalancer"]);
    stage.join("late").await;
    assert_eq!(stage.settle_well().await, ["RegisterInstancesWithLoadBalancer"]);
    stage.delete().await;
}

#[tokio::test]
async fn listeners_attributes_and_policies_follow_the_annotations() {
    let mut stage = Stage::new("", 2).await;
    let certificate = stage.aws.id("CERT1").to_owned();
    let annotations = format!(
        "ssl-cert={certificate}; ssl-ports=443; ssl-negotiation-policy=ELBSecurityPolicy-TLS-1-2-2017-01; \
         connection-idle-timeout=300; connection-draining-enabled=true; connection-draining-timeout=60; \
         cross-zone-load-balancing-enabled=true; proxy-protocol=*; additional-resource-tags=team=web"
    );
    stage.add("web", &[80, 443], &annotations);
    stage.settle_well().await;
    let found = stage.only("classic").await;
    assert_eq!(found["listeners"][0]["name"], "SSL:443", "{found:#?}");
    assert_eq!(found["attributes"]["ConnectionSettings"]["IdleTimeout"], 300);
    let draining = json!({"Enabled": true, "Timeout": 60});
    assert_eq!(found["attributes"]["ConnectionDraining"], draining);
    assert_eq!(found["backends"].as_array().unwrap().len(), 2);
    stage.assert_settled().await;
    for key in "connection-idle-timeout connection-draining-enabled proxy-protocol ssl-cert".split(' ') {
        stage.annotate("web", key, None);
    }
    stage.service("web").ports.pop();
    stage.settle_well().await;
    let found = stage.only("classic").await;
    assert_eq!(found["attributes"]["ConnectionSettings"]["IdleTimeout"], 60);
    assert_eq!(found["listeners"].as_array().unwrap().len(), 1);
    stage.assert_settled().await;
    stage.delete().await;
}

#[tokio::test]
async fn access_logs_need_no_other_attribute() {
    let mut stage = Stage::new("", 1).await;
    let logs = "access-log-enabled=true; access-log-s3-bucket-name=logs; access-log-emit-interval=5";
    stage.add("web", &[80], logs);
    stage.settle_well().await;
    let attributes = stage.only("classic").await["attributes"].clone();
    assert_eq!(attributes["AccessLog"]["S3BucketName"], "logs");
    assert_eq!(attributes["ConnectionSettings"]["IdleTimeout"], 60);
    stage.assert_settled().await;
    stage.delete().await;
}

#[tokio::test]
async fn a_new_port_gets_the_proxy_protocol_after_its_listener() {
    let mut stage = Stage::served("", 1, &[80], "proxy-protocol=*").await;
    let more = service("more", &[443]).ports;
    stage.service("web").ports.extend(more);
    let writes = stage.settle_well().await;
    let at = |action| writes.iter().position(|name| name == action).unwrap();
    let policies = at("SetLoadBalancerPoliciesForBackendServer");
    assert!(at("CreateLoadBalancerListeners") < policies, "{writes:?}");
    stage.delete().await;
}

#[tokio::test]
async fn another_scheme_does_not_move_a_load_balancer_to_other_subnets() {
    let mut stage = Stage::served("", 1, &[80], "").await;
    stage.annotate("web", "scheme", Some("internal"));
    assert_eq!(stage.settle().await, NOTHING);
    let blocked = stage.blocked();
    assert_eq!(blocked.len(), 1, "{blocked:#?}");
    assert!(blocked[0].field.starts_with("scheme"), "{blocked:#?}");
}

#[tokio::test]
async fn an_existing_one_stays_classic_regardless_of_the_default_type() {
    let mut stage = Stage::served("", 1, &[80], "").await;
    stage.restart_with(NLB).await;
    assert_eq!(stage.settle_well().await, NOTHING);
    stage.service("web").ports = service("web", &[81]).ports;
    let writes = stage.settle_well().await;
    assert!(writes.contains(&"CreateLoadBalancerListeners".to_owned()), "{writes:?}");
    stage.annotate("web", "type", Some("nlb"));
    assert_eq!(stage.settle().await, NOTHING);
    stage.assert_complaints(&["the Service has a classic load balancer"]);
    stage.join("late").await;
    assert_eq!(stage.settle().await, ["RegisterInstancesWithLoadBalancer"]);
    stage.delete().await;
}

#[tokio::test]
async fn a_shared_security_group_is_not_changed() {
    let mut stage = Stage::new("", 1).await;
    let extra = stage.aws.id("SG_EXTRA").to_owned();
    stage.restart_with(&format!("ElbSecurityGroup={extra}\n")).await;
    stage.add("a", &[80], "");
    stage.add("b", &[81], "");
    stage.settle_well().await;
    let rule = stage.rules("nodes").await;
    assert_eq!(rule.len(), 1, "{rule:?}");
    stage.service("a").deleting = true;
    stage.settle_well().await;
    assert_eq!(stage.rules("nodes").await, rule);
    assert_eq!(stage.rules("extra").await, NOTHING);
    stage.delete().await;
}

#[tokio::test]
async fn nodes_are_reached_from_the_first_named_group_with_the_clusters_tag() {
    let mut stage = Stage::new("", 1).await;
    let extra = stage.aws.id("SG_EXTRA").to_owned();
    let tags = json!([{"Key": "kubernetes.io/cluster/test", "Value": "shared"}]);
    let tags = json!([{"ResourceType": "security-group", "Tags": tags}]);
    let vpc = stage.aws.id("VPC");
    let body = json!({"GroupName": "tagged", "Description": "x", "VpcId": vpc, "TagSpecifications": tags});
    let created = stage.call("ec2", "create_security_group", body).await;
    let tagged = created["GroupId"].as_str().unwrap();
    // A network load balancer needs no such rule.
    let named = format!("security-groups={extra},{tagged}");
    stage.add("other", &[81], &format!("type=nlb; {named}"));
    stage.settle_well().await;
    let of_other = stage.rules("nodes").await;
    stage.add("web", &[80], &named);
    stage.settle_well().await;
    let rules = stage.rules("nodes").await;
    assert!(rules.len() == of_other.len() + 1, "{rules:?}");
    assert!(rules.iter().any(|rule| rule.contains(tagged)), "{rules:?}");
    // A rule of an earlier release leaves with the Service, too.
    let from = json!([{"IpProtocol": "-1", "UserIdGroupPairs": [{"GroupId": extra}]}]);
    let body = json!({"GroupId": stage.aws.id("SG_NODES"), "IpPermissions": from});
    stage.call("ec2", "authorize_security_group_ingress", body).await;
    stage.assert_settled().await;
    assert_eq!(stage.rules("nodes").await.len(), of_other.len() + 2);
    // A rule from a group is revoked when the load balancer loses the group, unless another one has it.
    stage.annotate("web", "security-groups", Some(&extra));
    stage.settle_well().await;
    let rules = stage.rules("nodes").await;
    assert!(rules.len() == of_other.len() + 1, "{rules:?}");
    assert!(rules.iter().all(|rule| !rule.contains(tagged)), "{rules:?}");
    stage.add("last", &[82], &format!("security-groups={tagged}"));
    stage.settle_well().await;
    stage.annotate("web", "security-groups", Some(tagged));
    stage.annotate("last", "security-groups", Some(&extra));
    stage.settle_well().await;
    assert_eq!(stage.rules("nodes").await.len(), of_other.len() + 2);
    // The rule stays while AWS refuses to replace the group of one of them.
    stage.annotate("web", "security-groups", Some(&extra));
    stage.settle_well().await;
    for name in ["web", "last"] {
        stage.annotate(name, "security-groups", Some(tagged));
    }
    let refused = aws_refusal(false, "InvalidSecurityGroup", "no such group");
    let is_refused = |request: &Request| {
        request.name == "ApplySecurityGroupsToLoadBalancer" && request.body.contains("auidlast")
    };
    let rule = Rule::when(is_refused, Action::answer(400, refused));
    let rule = stage.aws.proxy.add(rule);
    stage.settle().await;
    assert_eq!(stage.rules("nodes").await.len(), of_other.len() + 2);
    stage.aws.proxy.remove(rule);
    stage.settle_well().await;
    assert_eq!(stage.rules("nodes").await.len(), of_other.len() + 1);
    for name in ["web", "last"] {
        stage.service(name).deleting = true;
    }
    stage.settle_well().await;
    assert_eq!(stage.rules("nodes").await, of_other);
}

#[tokio::test]
async fn rules_of_others_from_further_groups_stay() {
    let mut stage = Stage::new("", 1).await;
    let extra = stage.aws.id("SG_EXTRA").to_owned();
    let from = json!([{"IpProtocol": "-1", "UserIdGroupPairs": [{"GroupId": extra}]}]);
    let body = json!({"GroupId": stage.aws.id("SG_NODES"), "IpPermissions": from});
    stage.call("ec2", "authorize_security_group_ingress", body).await;
    let others = stage.rules("nodes").await;
    for name in ["changed", "deleted"] {
        stage.add(name, &[80], &format!("extra-security-groups={extra}"));
    }
    stage.settle_well().await;
    stage.annotate("changed", "extra-security-groups", None);
    stage.settle_well().await;
    for service in &mut stage.services {
        service.deleting = true;
    }
    stage.settle_well().await;
    assert_eq!(stage.rules("nodes").await, others);
    // All rules are the administrator's.
    let settings = format!("DisableSecurityGroupIngress=true\nElbSecurityGroup={extra}\n");
    stage.restart_with(&settings).await;
    stage.add("web", &[80], "");
    stage.settle_well().await;
    stage.service("web").deleting = true;
    stage.settle_well().await;
    assert_eq!(stage.rules("nodes").await, others);
}

#[tokio::test]
async fn a_service_that_turns_to_another_controller_and_type_at_once_leaves_nothing() {
    for more in ["", NLB] {
        let mut stage = Stage::served(more, 1, &[80], "").await;
        stage.restart_with("DefaultLoadBalancerType=none\n").await;
        let service = stage.service("web");
        service.service_type = ServiceType::ClusterIp;
        service.ingress.clear();
        stage.settle_well().await;
        assert_eq!(stage.service("web").finalizers, []);
        stage.assert_empty().await;
    }
}

#[tokio::test]
async fn a_security_group_without_its_tags_gets_them_again() {
    let mut stage = Stage::served("", 1, &[80], "").await;
    let groups = stage.objects("security_groups").await;
    let rules = stage.rules("k8s-elb-auidweb").await;
    let filter = json!({"Filters": [{"Name": "group-name", "Values": ["k8s-elb-auidweb"]}]});
    let found = stage.call("ec2", "describe_security_groups", filter).await;
    let id = &found["SecurityGroups"][0]["GroupId"];
    let lose = json!({"Resources": [id], "Tags": [{"Key": "kubernetes.io/cluster/test"}]});
    stage.call("ec2", "delete_tags", lose).await;
    let tag = json!({"Key": "kubernetes.io/cluster/other", "Value": "owned"});
    let other = json!({"Resources": [id], "Tags": [tag]});
    stage.call("ec2", "create_tags", other.clone()).await;
    stage.restart().await;
    stage.settle().await;
    stage.assert_complaints(&["InvalidGroup.Duplicate"]);
    stage.call("ec2", "delete_tags", other).await;
    stage.restart().await;
    let writes = stage.settle_well().await;
    assert!(writes.contains(&"CreateTags".to_owned()), "{writes:?}");
    assert_eq!(stage.rules("k8s-elb-auidweb").await, rules);
    assert_eq!(stage.objects("security_groups").await, groups);
    stage.delete().await;
}

#[tokio::test]
async fn a_timeout_that_is_not_below_the_interval_is_refused_and_the_nodes_are_followed() {
    let mut stage = Stage::served("", 2, &[80], "").await;
    stage.annotate("web", "healthcheck-interval", Some("5"));
    stage.nodes.pop();
    assert_eq!(stage.settle().await, ["DeregisterInstancesFromLoadBalancer"]);
    stage.assert_complaints(&["healthcheck-interval: the timeout 5 must be less than the interval"]);
    stage.annotate("web", "healthcheck-timeout", Some("4"));
    assert_eq!(stage.settle_well().await, ["ConfigureHealthCheck"]);
}
