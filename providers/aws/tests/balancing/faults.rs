//! Invalid input and faults of the account, and their effect on load balancers.

use std::sync::atomic::{AtomicBool, Ordering};

use ccm_core::{
    load_balancer::{ClusterTag, OwnershipTag},
    testkit::{
        cluster::{TestCluster, advance_to, service},
        nodes::service_node,
    },
};
use ccm_testbed::proxy::{Action, Dialect as _, Moment, Request, Rule, aws_refusal};
use serde_json::json;
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::TcpStream,
    time::{Duration, Instant},
};

use crate::stage::{MANAGED, NLB, NOTHING, Stage, start};

/// Modes that the Go program does not know either.
const UNKNOWN_MODES: &str = "DefaultLoadBalancerType=nlb\nNLBSecurityGroupMode=Disabled\n\
                             ClusterServiceLoadBalancerHealthProbeMode=shared\n";

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
async fn with_an_unknown_mode_only_new_network_load_balancers_are_refused() {
    let shared = format!("{MANAGED}ClusterServiceLoadBalancerHealthProbeMode=Shared\n");
    let mut stage = Stage::served(&shared, 2, &[80], "").await;
    stage.restart_with(UNKNOWN_MODES).await;
    // The existing one keeps its security group and its health check, and follows Service and nodes.
    assert_eq!(stage.settle_well().await, NOTHING);
    stage.nodes.pop();
    assert_eq!(stage.settle_well().await, ["DeregisterTargets"]);
    stage.annotate("web", "healthcheck-healthy-threshold", Some("5"));
    assert_eq!(stage.settle_well().await, ["ModifyTargetGroup"]);
    let group = stage.only("target_groups").await;
    assert_eq!(group["health"]["HealthCheckPort"], "10256", "{group}");
    assert_eq!(group["health"]["HealthyThresholdCount"], 5, "{group}");
    stage.add("new", &[80], "");
    stage.add("old", &[80], "type=classic");
    stage.settle().await;
    stage.assert_complaints(&[
        "no network load balancer is created: NLBSecurityGroupMode in cloud.conf: \"Disabled\" is not supported; write Managed",
        "ClusterServiceLoadBalancerHealthProbeMode in cloud.conf: \"shared\" is not supported",
    ]);
    assert!(stage.service("new").ingress.is_empty());
    stage.restart_with(&shared).await;
    stage.settle_well().await;
    assert!(!stage.service("new").ingress.is_empty());
    stage.delete().await;
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
    other.assert_complaints(&[
        "tag kubernetes.io/cluster/other of instances",
        "not targets: node-0 (i-",
    ]);
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
async fn security_groups_of_the_load_balancer_controller_are_no_orphans() {
    let mut stage = Stage::new(NLB, 1).await;
    let description = "[k8s] Managed SecurityGroup for LoadBalancer";
    let cluster = json!({"Key": "kubernetes.io/cluster/test", "Value": "owned"});
    let controller = json!({"Key": "elbv2.k8s.aws/cluster", "Value": "test"});
    for (name, tags) in [
        ("k8s-default-lost-0123456789", json!([cluster])),
        ("k8s-default-theirs-0123456789", json!([cluster, controller])),
    ] {
        let tags = json!([{"ResourceType": "security-group", "Tags": tags}]);
        let vpc = stage.aws.id("VPC");
        let body =
            json!({"GroupName": name, "Description": description, "VpcId": vpc, "TagSpecifications": tags});
        stage.call("ec2", "create_security_group", body).await;
    }
    stage.restart().await;
    let discovery = stage.discover().await.unwrap();
    let orphans: Vec<_> = discovery.orphans.iter().flatten().map(|orphan| orphan.what.as_str()).collect();
    assert_eq!(orphans, ["security group k8s-default-lost-0123456789, which no load balancer uses"]);
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

#[tokio::test]
async fn nodes_of_other_clouds_are_named_also_for_load_balancers_that_exist() {
    let mut stage = Stage::served(NLB, 1, &[80], "").await;
    stage.nodes.push(service_node("stranger", "openstack:///1", Vec::new()));
    assert_eq!(stage.settle_well().await, NOTHING);
    let events = stage.reports.iter().flat_map(|report| &report.events);
    let left_out: Vec<_> = events.filter(|event| event.reason == "NodesLeftOut").collect();
    assert_eq!(left_out.len(), 1, "{left_out:?}");
    assert!(
        left_out[0].message.contains("stranger (its provider ID \"openstack:///1\""),
        "{left_out:?}"
    );
}

/// Answers the first request for an action with an error of AWS.
fn refuse_once(stage: &Stage, action: &'static str, code: &str, message: &str) {
    let is_ec2 = action.ends_with("Ingress");
    let is_asked = move |request: &Request| request.name == action;
    let answer = Action::answer(400, aws_refusal(is_ec2, code, message));
    let mut once = Rule::when(is_asked, answer);
    once.count = Some(1);
    stage.aws.proxy.add(once);
}

#[tokio::test]
async fn a_source_that_aws_does_not_find_yet_is_not_a_refusal_of_the_rule() {
    let mut stage = Stage::served("", 1, &[80], "").await;
    let name = json!({"Filters": [{"Name": "group-name", "Values": ["k8s-elb-auidweb"]}]});
    let own = stage.call("ec2", "describe_security_groups", name).await;
    let id = own["SecurityGroups"][0]["GroupId"].as_str().unwrap();
    // Somebody revoked the rule.
    let rule = json!([{"IpProtocol": "-1", "UserIdGroupPairs": [{"GroupId": id}]}]);
    let body = json!({"GroupId": stage.aws.id("SG_NODES"), "IpPermissions": rule});
    stage.call("ec2", "revoke_security_group_ingress", body).await;
    stage.restart().await;
    let text = format!("The security group '{id}' does not exist");
    refuse_once(&stage, "AuthorizeSecurityGroupIngress", "InvalidGroup.NotFound", &text);
    assert_eq!(stage.settle_well().await, ["AuthorizeSecurityGroupIngress"; 2]);
    assert_eq!(stage.rules("nodes").await.len(), 1);
}

#[tokio::test]
async fn a_rule_that_aws_did_not_know_is_read_again_and_removed() {
    let mut stage = Stage::served(NLB, 1, &[80, 81], "").await;
    // In a default VPC, the request succeeds, although the rule stays.
    let body = "<RevokeSecurityGroupIngressResponse xmlns=\"http://ec2.amazonaws.com/doc/2016-11-15/\">\
                <requestId>x</requestId><return>true</return><unknownIpPermissionSet><item>\
                <ipProtocol>tcp</ipProtocol><fromPort>30081</fromPort><toPort>30081</toPort></item>\
                </unknownIpPermissionSet></RevokeSecurityGroupIngressResponse>";
    let is_revoked = |request: &Request| request.name == "RevokeSecurityGroupIngress";
    let mut once = Rule::when(is_revoked, Action::answer(200, body));
    once.count = Some(1);
    stage.aws.proxy.add(once);
    stage.service("web").ports.pop();
    let writes = stage.settle_well().await;
    let revocations = writes.iter().filter(|name| *name == "RevokeSecurityGroupIngress");
    assert_eq!(revocations.count(), 2, "{writes:?}");
    assert_eq!(stage.rules("nodes").await.len(), 2, "one port and path MTU");
}

#[tokio::test]
async fn an_instance_that_aws_dropped_itself_is_deregistered() {
    let mut stage = Stage::served("", 2, &[80], "").await;
    refuse_once(
        &stage,
        "DeregisterInstancesFromLoadBalancer",
        "InvalidInstance",
        "Could not find EC2 instance i-1",
    );
    stage.nodes.pop();
    assert_eq!(stage.settle_well().await, ["DeregisterInstancesFromLoadBalancer"]);
}

#[tokio::test]
async fn tags_that_may_not_be_written_do_not_hold_up_a_port() {
    let mut stage = Stage::served(NLB, 1, &[80], "").await;
    stage.disown().await;
    stage.restart().await;
    assert_eq!(stage.settle_well().await, NOTHING);
    let is_denied = |request: &Request| request.name == "AddTags";
    stage.aws.proxy.add(Rule::when(is_denied, Action::status(403)));
    stage.service("web").ports.extend(service("more", &[81]).ports);
    stage.settle().await;
    assert_eq!(stage.only("v2").await["listeners"].as_array().unwrap().len(), 2);
    stage.service("web").ports.extend(service("more", &[82]).ports);
    stage.settle().await;
    assert_eq!(stage.only("v2").await["listeners"].as_array().unwrap().len(), 3);
}

/// A cluster whose process ended just after it had created a load balancer: the first listings lack it, its target group, its
/// listener, and their tags.
async fn created_just_now(annotations: &str) -> Stage {
    let mut stage = Stage::new(NLB, 1).await;
    stage.aws.proxy.dialect().imitate_real_service();
    stage.add("web", &[80], annotations);
    stage.settle_well().await;
    stage.restart().await;
    stage
}

#[tokio::test]
async fn a_load_balancer_that_aws_does_not_show_yet_is_created_once() {
    let attributes = "attributes=dns_record.client_routing_policy=partial_availability_zone_affinity";
    let mut stage = created_just_now(attributes).await;
    // Also without its tags, it is not one of another program, whose annotations wait.
    let other = "dns_record.client_routing_policy=availability_zone_affinity";
    stage.annotate("web", "attributes", Some(other));
    stage.settle_despite_failures().await.unwrap();
    stage.assert_no_complaints();
    let balancer = stage.only("v2").await;
    let policy = &balancer["attributes"]["dns_record.client_routing_policy"];
    assert_eq!(*policy, "availability_zone_affinity");
    assert_eq!(balancer["listeners"].as_array().unwrap().len(), 1);
    stage.only("target_groups").await;
    // Then the tags that were added meanwhile are shown, too.
    stage.aws.proxy.dialect().spread();
    stage.assert_settled().await;
}

#[tokio::test]
async fn a_load_balancer_that_aws_does_not_show_yet_is_deleted_with_its_service() {
    let mut stage = created_just_now("").await;
    stage.delete().await;
}

#[tokio::test]
async fn a_request_that_aws_would_refuse_fails_its_test() {
    let stage = Stage::new(NLB, 1).await;
    let body = "Action=AddListenerCertificates&Version=2015-12-01&ListenerArn=x\
        &Certificates.member.1.CertificateArn=a&Certificates.member.2.CertificateArn=b";
    let address = stage.aws.proxy.address();
    let mut stream = TcpStream::connect(address).await.unwrap();
    let head = format!(
        "POST / HTTP/1.1\r\nhost: {address}\r\nconnection: close\r\nauthorization: AWS4-HMAC-SHA256 \
         Credential=x/20260101/us-east-1/elasticloadbalancing/aws4_request, SignedHeaders=host, Signature=x\r\n\
         content-type: application/x-www-form-urlencoded\r\ncontent-length: {}\r\n\r\n",
        body.len()
    );
    stream.write_all((head + body).as_bytes()).await.unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).await.unwrap();
    assert!(answer.starts_with("HTTP/1.1 400"), "{answer}");
    let refused = stage.aws.proxy.dialect().take_refused();
    assert_eq!(refused.len(), 1, "{refused:?}");
    assert!(refused[0].contains("more than one certificate"), "{refused:?}");
}
