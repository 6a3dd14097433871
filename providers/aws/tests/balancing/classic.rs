//! The life cycle of classic load balancers.

use ccm_core::testkit::cluster::service;
use serde_json::{Value, json};

use crate::stage::{NLB, Stage, node};

const NOTHING: Vec<String> = Vec::new();

async fn balancer(stage: &Stage) -> Value {
    let mut all = stage.objects("classic").await;
    assert_eq!(all.len(), 1, "{all:#?}");
    all.remove(0)
}

async fn delete(stage: &mut Stage) {
    for service in &mut stage.cluster.services {
        service.deleting = true;
    }
    stage.settle_well().await;
    assert!(stage.cluster.services.is_empty());
    assert_eq!(stage.objects("classic").await, Vec::<Value>::new());
    assert_eq!(stage.rules("nodes").await, NOTHING);
    assert_eq!(stage.objects("security_groups").await.len(), 2);
}

#[tokio::test]
async fn a_service_without_a_type_gets_a_classic_load_balancer() {
    let mut stage = Stage::new("", 3).await;
    stage.add("web", &[80, 443], &[]);
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
    let found = balancer(&stage).await;
    assert_eq!(found["health"]["Target"], "TCP:30080");
    assert_eq!(found["instances"].as_array().unwrap().len(), 3);
    assert_eq!(stage.rules("nodes").await.len(), 1);
    assert_eq!(stage.rules("k8s-elb-auidweb").await.len(), 3);
    stage.restart().await;
    assert_eq!(stage.settle_well().await, NOTHING);
    stage.cluster.nodes.pop();
    assert_eq!(stage.settle_well().await, ["DeregisterInstancesFromLoadBalancer"]);
    let late = node(&stage.aws, "late").await;
    stage.cluster.nodes.push(late);
    assert_eq!(stage.settle_well().await, ["RegisterInstancesWithLoadBalancer"]);
    delete(&mut stage).await;
}

#[tokio::test]
async fn listeners_attributes_and_policies_follow_the_annotations() {
    let mut stage = Stage::new("", 2).await;
    let certificate = stage.aws.id("CERT1").to_owned();
    let annotations = [
        ("ssl-cert", certificate.as_str()),
        ("ssl-ports", "443"),
        ("ssl-negotiation-policy", "ELBSecurityPolicy-TLS-1-2-2017-01"),
        ("connection-idle-timeout", "300"),
        ("connection-draining-enabled", "true"),
        ("connection-draining-timeout", "60"),
        ("cross-zone-load-balancing-enabled", "true"),
        ("proxy-protocol", "*"),
        ("additional-resource-tags", "team=web"),
    ];
    stage.add("web", &[80, 443], &annotations);
    stage.settle_well().await;
    let found = balancer(&stage).await;
    assert_eq!(found["listeners"][0]["name"], "SSL:443", "{found:#?}");
    assert_eq!(found["attributes"]["ConnectionSettings"]["IdleTimeout"], 300);
    assert_eq!(
        found["attributes"]["ConnectionDraining"],
        json!({"Enabled": true, "Timeout": 60})
    );
    assert_eq!(found["backends"].as_array().unwrap().len(), 2);
    stage.restart().await;
    assert_eq!(stage.settle_well().await, NOTHING);
    for key in [
        "connection-idle-timeout",
        "connection-draining-enabled",
        "proxy-protocol",
        "ssl-cert",
    ] {
        stage.annotate("web", key, None);
    }
    stage.service("web").ports.pop();
    stage.settle_well().await;
    let found = balancer(&stage).await;
    assert_eq!(found["attributes"]["ConnectionSettings"]["IdleTimeout"], 60);
    assert_eq!(found["listeners"].as_array().unwrap().len(), 1);
    stage.restart().await;
    assert_eq!(stage.settle_well().await, NOTHING);
    delete(&mut stage).await;
}

#[tokio::test]
async fn a_new_port_gets_the_proxy_protocol_after_its_listener() {
    let mut stage = Stage::new("", 1).await;
    stage.add("web", &[80], &[("proxy-protocol", "*")]);
    stage.settle_well().await;
    let more = service("more", &[443]).ports;
    stage.service("web").ports.extend(more);
    let writes = stage.settle_well().await;
    let at = |action| writes.iter().position(|name| name == action).unwrap();
    let policies = at("SetLoadBalancerPoliciesForBackendServer");
    assert!(at("CreateLoadBalancerListeners") < policies, "{writes:?}");
    delete(&mut stage).await;
}

#[tokio::test]
async fn another_scheme_does_not_move_a_load_balancer_to_other_subnets() {
    let mut stage = Stage::new("", 1).await;
    stage.add("web", &[80], &[]);
    stage.settle_well().await;
    stage.annotate("web", "scheme", Some("internal"));
    assert_eq!(stage.settle().await, NOTHING);
    let blocked = stage.blocked();
    assert_eq!(blocked.len(), 1, "{blocked:#?}");
    assert!(blocked[0].field.starts_with("scheme"), "{blocked:#?}");
}

#[tokio::test]
async fn an_existing_one_stays_classic_regardless_of_the_default_type() {
    let mut stage = Stage::new("", 1).await;
    stage.add("web", &[80], &[]);
    stage.settle_well().await;
    stage.restart_with(NLB).await;
    assert_eq!(stage.settle().await, NOTHING);
    stage.assert_problem("the Service has a classic load balancer");
    let late = node(&stage.aws, "late").await;
    stage.cluster.nodes.push(late);
    assert_eq!(stage.settle().await, ["RegisterInstancesWithLoadBalancer"]);
    delete(&mut stage).await;
}

#[tokio::test]
async fn a_shared_security_group_is_not_changed() {
    let mut stage = Stage::new("", 1).await;
    let extra = stage.aws.id("SG_EXTRA").to_owned();
    stage.restart_with(&format!("ElbSecurityGroup={extra}\n")).await;
    stage.add("a", &[80], &[]);
    stage.add("b", &[81], &[]);
    stage.settle_well().await;
    let rule = stage.rules("nodes").await;
    assert_eq!(rule.len(), 1, "{rule:?}");
    stage.service("a").deleting = true;
    stage.settle_well().await;
    assert_eq!(stage.rules("nodes").await, rule);
    assert_eq!(stage.rules("extra").await, NOTHING);
    delete(&mut stage).await;
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
    stage.add("web", &[80], &[("security-groups", &format!("{extra},{tagged}"))]);
    stage.settle_well().await;
    let rules = stage.rules("nodes").await;
    assert!(rules.len() == 1 && rules[0].contains(tagged), "{rules:?}");
    // A rule of an earlier release leaves with the Service, too.
    let from = json!([{"IpProtocol": "-1", "UserIdGroupPairs": [{"GroupId": extra}]}]);
    let body = json!({"GroupId": stage.aws.id("SG_NODES"), "IpPermissions": from});
    stage.call("ec2", "authorize_security_group_ingress", body).await;
    stage.restart().await;
    assert_eq!(stage.settle_well().await, NOTHING);
    assert_eq!(stage.rules("nodes").await.len(), 2);
    stage.service("web").deleting = true;
    stage.settle_well().await;
    assert_eq!(stage.rules("nodes").await, NOTHING);
}

#[tokio::test]
async fn a_security_group_without_its_tags_gets_them_again() {
    let mut stage = Stage::new("", 1).await;
    stage.add("web", &[80], &[]);
    stage.settle_well().await;
    let groups = stage.objects("security_groups").await;
    let rules = stage.rules("k8s-elb-auidweb").await;
    let filter = json!({"Filters": [{"Name": "group-name", "Values": ["k8s-elb-auidweb"]}]});
    let found = stage.call("ec2", "describe_security_groups", filter).await;
    let id = &found["SecurityGroups"][0]["GroupId"];
    let lose = json!({"Resources": [id], "Tags": [{"Key": "kubernetes.io/cluster/test"}]});
    stage.call("ec2", "delete_tags", lose).await;
    let other =
        json!({"Resources": [id], "Tags": [{"Key": "kubernetes.io/cluster/other", "Value": "owned"}]});
    stage.call("ec2", "create_tags", other.clone()).await;
    stage.restart().await;
    stage.settle().await;
    stage.assert_problem("InvalidGroup.Duplicate");
    stage.call("ec2", "delete_tags", other).await;
    stage.restart().await;
    let writes = stage.settle_well().await;
    assert!(writes.contains(&"CreateTags".to_owned()), "{writes:?}");
    assert_eq!(stage.rules("k8s-elb-auidweb").await, rules);
    assert_eq!(stage.objects("security_groups").await, groups);
    delete(&mut stage).await;
}
