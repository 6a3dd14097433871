//! Invalid input and faults of the account, and their effect on load balancers.

use std::sync::atomic::{AtomicBool, Ordering};

use ccm_core::{
    load_balancer::{ClusterTag, OwnershipTag},
    testkit::cluster::{TestCluster, advance_to, service},
};
use ccm_testbed::proxy::{Action, Moment, Request, Rule, aws_refusal};
use serde_json::json;
use tokio::time::{Duration, Instant};

use crate::stage::{MANAGED, NLB, NOTHING, Stage, start};

/// Answers requests for this action of ELBv2 whose body contains a text.
fn reply(stage: &Stage, action: &'static str, containing: &'static str, code: u16, body: &str) -> u64 {
    let is_matched = move |request: &Request| {
        request.resource == "elbv2" && request.name == action && request.body.contains(containing)
    };
    let answer = Action::answer(code, body.to_owned());
    stage.aws.proxy.add(Rule::when(is_matched, answer))
}

#[tokio::test]
async fn an_incomplete_listing_changes_nothing() {
    let page = "<DescribeLoadBalancersResponse xmlns=\"http://elasticloadbalancing.amazonaws.com/doc/2015-12-01/\">\
                <DescribeLoadBalancersResult><LoadBalancers/><NextMarker>more</NextMarker></DescribeLoadBalancersResult>\
                </DescribeLoadBalancersResponse>";
    let refused = aws_refusal(false, "ValidationError", "bad marker");
    let mut stage = Stage::served(NLB, 1, &[80], "").await;
    let html = "<!DOCTYPE html><html><body>Welcome</body></html>";
    // The answers to the first page, and to the second one.
    for (name, first, second) in [
        ("HTML instead of XML", html, None),
        ("a lost page", page, Some(&refused)),
    ] {
        stage.restart().await;
        stage.aws.proxy.forget();
        let second = second.map(|body| reply(&stage, "DescribeLoadBalancers", "Marker=more", 400, body));
        let first = reply(&stage, "DescribeLoadBalancers", "", 200, first);
        let failed = TestCluster::settle(&mut stage).await;
        let is_reported = failed.is_err() || !stage.complaints().is_empty();
        assert!(is_reported, "{name}");
        assert_eq!(stage.aws.proxy.writes().len(), 0, "{name}");
        second.into_iter().chain([first]).for_each(|rule| stage.aws.proxy.remove(rule));
        assert_eq!(stage.settle_well().await, NOTHING, "{name}");
    }
}

#[tokio::test]
async fn a_load_balancer_that_another_cluster_deletes_meanwhile_stops_nothing() {
    let mut stage = Stage::new(NLB, 1).await;
    let body = json!({"Name": "aothers", "Type": "network", "Subnets": [stage.aws.id("PUBLIC_A")]});
    stage.call("v2", "create_load_balancer", body).await;
    let refused = aws_refusal(false, "LoadBalancerNotFound", "not found");
    reply(&stage, "DescribeTags", "aothers", 400, &refused);
    stage.restart().await;
    stage.add("web", &[80], "");
    stage.settle_well().await;
    assert!(!stage.service("web").ingress.is_empty());
}

#[tokio::test]
async fn an_object_that_aws_does_not_find_yet_is_not_a_refusal_of_its_entries() {
    let mut stage = Stage::new(NLB, 2).await;
    let refused = aws_refusal(false, "TargetGroupNotFound", "not found");
    let is_registration = |request: &Request| request.name == "RegisterTargets";
    let mut once = Rule::when(is_registration, Action::answer(400, refused));
    once.count = Some(1);
    stage.aws.proxy.add(once);
    stage.add("web", &[80], "");
    let writes = stage.settle_well().await;
    let registrations = writes.iter().filter(|name| *name == "RegisterTargets");
    assert_eq!(registrations.count(), 2, "{writes:?}");
}

#[tokio::test]
async fn a_service_is_refused_until_a_subnet_qualifies() {
    let mut stage = Stage::new(NLB, 1).await;
    let subnets = format!("{},nowhere", stage.aws.id("PUBLIC_A"));
    stage.add("web", &[80], &format!("subnets={subnets}"));
    assert_eq!(stage.settle().await, NOTHING);
    stage.assert_complaints(&["subnet \"nowhere\" is not in the VPC"]);
    stage.annotate("web", "subnets", None);
    stage.settle_well().await;
    assert!(!stage.service("web").ingress.is_empty());
}

#[tokio::test]
async fn the_error_of_a_vpc_without_subnets_names_the_fix() {
    let more = "DefaultLoadBalancerType=nlb\nVPC=vpc-0123456789abcdef0\n";
    let mut stage = Stage::new(NLB, 1).await;
    stage.restart_with(more).await;
    stage.add("web", &[80], "");
    assert_eq!(stage.settle().await, NOTHING);
    stage.assert_complaints(&["no subnet with a route to an internet gateway"]);
}

#[tokio::test]
async fn clusters_that_share_a_vpc_and_a_node_group_leave_each_others_rules() {
    let mut stage = Stage::served(NLB, 1, &[80], "").await;
    let before = stage.rules("nodes").await;
    let more = format!("{NLB}KubernetesClusterID=other\n");
    let cloud = start(&stage.aws, &more).await.unwrap();
    let mut other = TestCluster::new(cloud, advance_to);
    other.ownership_tag = OwnershipTag::Known(ClusterTag::of("another-uid"));
    other.nodes.clone_from(&stage.nodes);
    other.services.push(service("api", &[8080]));
    // An answer counts for its pass, however slow it is.
    let is_read = |request: &Request| request.name == "DescribeInstances";
    let proxy = &stage.aws.proxy;
    let hold = proxy.add(Rule::when(is_read, Action::Hold(Moment::AfterCommit)));
    let answer_late = async {
        proxy.reached(hold).await;
        advance_to(Instant::now() + Duration::from_secs(31)).await;
        proxy.remove(hold);
    };
    proxy.forget();
    tokio::join!(other.settle(), answer_late).0.unwrap();
    assert!(proxy.writes().iter().all(|write| write.name != "RegisterTargets"));
    // Without the cluster's tag, the instance is no target and its security group is left unchanged, as upstream.
    other.assert_complaints(&["tag kubernetes.io/cluster/other of instances", "no targets: i-"]);
    assert_eq!(stage.rules("nodes").await, before);
    let instance = other.nodes[0].view.provider_id.as_ref().unwrap().rsplit('/').next();
    let tags = json!([{"Key": "kubernetes.io/cluster/other", "Value": "shared"}]);
    let body = json!({"Resources": [stage.aws.id("SG_NODES"), instance], "Tags": tags});
    stage.call("ec2", "create_tags", body).await;
    other.cloud = start(&stage.aws, &more).await.unwrap();
    other.settle_well().await;
    let rules = stage.rules("nodes").await.len();
    assert_eq!(rules, before.len() + 1, "the rule for path MTU is shared");
    stage.assert_settled().await;
    for service in &mut other.services {
        service.deleting = true;
    }
    other.settle().await.unwrap();
    assert!(other.services.is_empty());
    assert_eq!(stage.rules("nodes").await, before);
    assert_eq!(stage.objects("v2").await.len(), 1);
}

#[tokio::test]
async fn rules_in_a_node_group_without_the_clusters_tag_are_removed_with_the_last_service() {
    let mut stage = Stage::new(NLB, 1).await;
    let tags = json!([{"Key": "kubernetes.io/cluster/test"}]);
    let body = json!({"Resources": [stage.aws.id("SG_NODES")], "Tags": tags});
    stage.call("ec2", "delete_tags", body).await;
    stage.restart().await;
    stage.add("web", &[80], "");
    stage.settle_well().await;
    assert_eq!(stage.rules("nodes").await.len(), 2);
    stage.restart().await;
    stage.delete().await;
}

#[tokio::test]
async fn a_security_group_of_nodes_may_get_the_clusters_tag_after_the_listing() {
    let mut stage = Stage::served(NLB, 1, &[80], "").await;
    let group = json!({"GroupName": "pool", "Description": "x", "VpcId": stage.aws.id("VPC")});
    let pool = stage.call("ec2", "create_security_group", group).await["GroupId"].take();
    stage.join("late").await;
    let id = stage.nodes[1].view.provider_id.clone().unwrap();
    let groups = [&pool, &json!(stage.aws.id("SG_EXTRA"))];
    let body = json!({"InstanceId": id.rsplit('/').next(), "Groups": groups});
    stage.call("ec2", "modify_instance_attribute", body).await;
    assert_eq!(stage.settle().await, ["RegisterTargets"]);
    stage.assert_complaints(&["none of its security groups"]);
    stage.settle().await;
    assert_eq!(stage.aws.proxy.requests().len(), 0, "the tags are cached");
    let tags = json!([{"Key": "kubernetes.io/cluster/test", "Value": "owned"}]);
    let body = json!({"Resources": [pool], "Tags": tags});
    stage.call("ec2", "create_tags", body).await;
    advance_to(Instant::now() + Duration::from_secs(600)).await;
    assert_eq!(stage.settle_well().await, ["AuthorizeSecurityGroupIngress"]);
    assert_eq!(stage.rules("pool").await, stage.rules("nodes").await);
}

#[tokio::test]
async fn references_to_a_replaced_security_group_are_revoked() {
    let mut stage = Stage::served(MANAGED, 1, &[80], "").await;
    let before = stage.rules("nodes").await;
    let groups = stage.call("ec2", "describe_security_groups", json!({})).await;
    let groups = groups["SecurityGroups"].as_array().unwrap();
    let mut all = groups.iter();
    let own = all.find(|group| group["GroupName"].as_str().unwrap().starts_with("k8s-"));
    let own = json!([{"GroupId": own.unwrap()["GroupId"]}]);
    let rule = json!({"IpProtocol": "tcp", "FromPort": 9, "ToPort": 9, "UserIdGroupPairs": own});
    let body = json!({"GroupId": stage.aws.id("SG_NODES"), "IpPermissions": [rule]});
    stage.call("ec2", "authorize_security_group_ingress", body).await;
    // Nodes may have one group without the cluster's tag. There, only the rules of the Go program are its own.
    let group = json!({"GroupName": "untagged", "Description": "x", "VpcId": groups[0]["VpcId"]});
    let untagged = stage.call("ec2", "create_security_group", group).await;
    let all = json!({"IpProtocol": "-1", "UserIdGroupPairs": own});
    let body = json!({"GroupId": untagged["GroupId"], "IpPermissions": [rule, all]});
    stage.call("ec2", "authorize_security_group_ingress", body).await;
    // moto deletes a group that rules refer to.
    let is_referred_to = AtomicBool::new(true);
    let refused = move |request: &Request| {
        is_referred_to.fetch_and(request.name != "RevokeSecurityGroupIngress", Ordering::SeqCst);
        request.name == "DeleteSecurityGroup" && is_referred_to.load(Ordering::SeqCst)
    };
    let body = aws_refusal(true, "DependencyViolation", "resource has a dependent object");
    stage.aws.proxy.add(Rule::when(refused, Action::answer(400, body)));
    stage.restart().await;
    let extra = stage.aws.id("SG_EXTRA").to_owned();
    stage.annotate("web", "security-groups", Some(&extra));
    let writes = stage.settle_well().await;
    let revoke = "RevokeSecurityGroupIngress";
    let end = [revoke, revoke, "DeleteSecurityGroup"];
    assert!(writes.ends_with(&end.map(str::to_owned)), "{writes:?}");
    assert_eq!(stage.rules("nodes").await, before);
    assert_eq!(stage.rules("untagged").await.len(), 1);
    assert_eq!(stage.objects("security_groups").await.len(), 3);
}
