//! The suite for all providers.

use std::{sync::Arc, time::Duration};

use ccm_core::{
    Cloud, async_trait,
    load_balancer::{ServiceNode, ServiceView},
    testkit::{
        cluster::{WaitUntil, annotate},
        conformance::{
            self, BalancerSubject, BoxError, Budgets, CallKind, CloudCall, Cost, Edit, EditResult, Failure,
        },
    },
};
use ccm_testbed::{
    proxy::{Action, Moment, Request, Rule, aws_refusal},
    test_cloud::AwsCloud,
};
use parking_lot::Mutex;
use serde_json::{Value, json};

use crate::stage::{NLB, node, start};

/// The actions for load balancers in the rights that the Go cloud controller documents.
const UPSTREAM_RIGHTS: &str = "DescribeInstances DescribeRouteTables DescribeSecurityGroups DescribeSubnets DescribeAvailabilityZones \
    DescribeVpcs CreateSecurityGroup CreateTags AuthorizeSecurityGroupIngress RevokeSecurityGroupIngress \
    DeleteSecurityGroup AddTags CreateLoadBalancer CreateListener CreateTargetGroup DeleteLoadBalancer \
    DeleteListener DeleteTargetGroup DescribeLoadBalancers DescribeLoadBalancerAttributes DescribeListeners \
    DescribeTargetGroups DescribeTargetHealth ModifyLoadBalancerAttributes ModifyListener ModifyTargetGroup \
    RegisterTargets DeregisterTargets SetSecurityGroups CreateLoadBalancerListeners DeleteLoadBalancerListeners \
    CreateLoadBalancerPolicy DescribeLoadBalancerPolicies SetLoadBalancerPoliciesForBackendServer \
    SetLoadBalancerPoliciesOfListener ConfigureHealthCheck AttachLoadBalancerToSubnets DetachLoadBalancerFromSubnets \
    ApplySecurityGroupsToLoadBalancer RegisterInstancesWithLoadBalancer DeregisterInstancesFromLoadBalancer \
    DescribeInstanceTopology DescribeRegions ModifyInstanceAttribute";

struct Account {
    aws: Mutex<Arc<AwsCloud>>,
    /// Lines of `[Global]`.
    conf: &'static str,
    /// Whether all other actions are denied.
    restricted: bool,
}

impl Account {
    async fn new(conf: &'static str) -> Self {
        Self {
            aws: Mutex::new(Arc::new(AwsCloud::start().await.unwrap())),
            conf,
            restricted: false,
        }
    }

    fn aws(&self) -> Arc<AwsCloud> {
        Arc::clone(&self.aws.lock())
    }
}

const fn edit(name: &'static str, expected: EditResult) -> Edit {
    Edit { name, expected }
}

const EDITS: [Edit; 11] = [
    edit("delete load balancer", EditResult::Reverted),
    edit("delete listener", EditResult::Reverted),
    edit("delete listener and target group", EditResult::Reverted),
    edit("deregister target", EditResult::Reverted),
    edit("change health check", EditResult::Reverted),
    edit("balance over zones", EditResult::Reverted),
    edit("revoke rules", EditResult::Reverted),
    edit("tag load balancer", EditResult::Kept),
    edit("delay deregistration", EditResult::Kept),
    edit("create load balancer", EditResult::Foreign),
    edit("allow ssh", EditResult::Foreign),
];

async fn edit_account(aws: &AwsCloud, name: &str) -> Result<(), BoxError> {
    let first = async |service: &str, operation: &str, body: Value, list: &str| {
        let found = aws.call(service, operation, body).await?;
        Ok::<_, BoxError>(found[list][0].clone())
    };
    let v2 = async |operation: &str, body: Value, list: &str| first("v2", operation, body, list).await;
    let balancer = v2("describe_load_balancers", json!({}), "LoadBalancers").await?["LoadBalancerArn"].take();
    let listener = match &balancer {
        Value::Null => Value::Null,
        arn => v2("describe_listeners", json!({"LoadBalancerArn": arn}), "Listeners").await?,
    };
    let group = &listener["DefaultActions"][0]["TargetGroupArn"];
    let (nodes, listener_arn) = (
        aws.id("SG_NODES"),
        json!({"ListenerArn": listener["ListenerArn"]}),
    );
    let set = |key: &str, value: &str| json!([{"Key": key, "Value": value}]);
    let (service, operation, body) = match name {
        "create load balancer" => {
            let body = json!({"Name": "mine", "Type": "network", "Subnets": [aws.id("PUBLIC_A")]});
            ("v2", "create_load_balancer", body)
        }
        "allow ssh" => {
            let rule = json!({"IpProtocol": "tcp", "FromPort": 22, "ToPort": 22,
                "IpRanges": [{"CidrIp": "10.0.0.0/8", "Description": "ssh"}]});
            let body = json!({"GroupId": nodes, "IpPermissions": [rule]});
            ("ec2", "authorize_security_group_ingress", body)
        }
        "revoke rules" => {
            let ids = json!({"GroupIds": [nodes]});
            let found = first("ec2", "describe_security_groups", ids, "SecurityGroups").await?;
            let body = json!({"GroupId": nodes, "IpPermissions": found["IpPermissions"]});
            ("ec2", "revoke_security_group_ingress", body)
        }
        "delete load balancer" => ("v2", "delete_load_balancer", json!({"LoadBalancerArn": balancer})),
        "delete listener" => ("v2", "delete_listener", listener_arn),
        "delete listener and target group" => {
            aws.call("v2", "delete_listener", listener_arn).await?;
            ("v2", "delete_target_group", json!({"TargetGroupArn": group}))
        }
        "deregister target" => {
            let (of, list) = (json!({"TargetGroupArn": group}), "TargetHealthDescriptions");
            let target = v2("describe_target_health", of, list).await?["Target"].take();
            (
                "v2",
                "deregister_targets",
                json!({"TargetGroupArn": group, "Targets": [target]}),
            )
        }
        "change health check" => {
            let body = json!({"TargetGroupArn": group, "HealthyThresholdCount": 7});
            ("v2", "modify_target_group", body)
        }
        "balance over zones" => {
            let attributes = set("load_balancing.cross_zone.enabled", "true");
            let body = json!({"LoadBalancerArn": balancer, "Attributes": attributes});
            ("v2", "modify_load_balancer_attributes", body)
        }
        "tag load balancer" => {
            let body = json!({"ResourceArns": [balancer], "Tags": set("team", "web")});
            ("v2", "add_tags", body)
        }
        "delay deregistration" => {
            let attributes = set("deregistration_delay.timeout_seconds", "17");
            let body = json!({"TargetGroupArn": group, "Attributes": attributes});
            ("v2", "modify_target_group_attributes", body)
        }
        other => return Err(format!("there is no edit {other}").into()),
    };
    aws.call(service, operation, body).await?;
    Ok(())
}

/// A line for each object; the rules of a security group have lines of their own. The order of ids, which differs from run to
/// run, is no difference.
fn lines(mut objects: Value) -> Vec<String> {
    sort(&mut objects);
    let mut lines = Vec::new();
    for (kind, objects) in objects.as_object_mut().into_iter().flatten() {
        for object in objects.as_array_mut().into_iter().flatten() {
            let (name, rules) = (object["name"].clone(), object["rules"].take());
            let rules = rules.as_array().into_iter().flatten();
            lines.extend(rules.map(|rule| format!("{name}: {rule}")));
            lines.push(format!("{kind} {object}"));
        }
    }
    lines.sort();
    lines
}

fn sort(value: &mut Value) {
    match value {
        Value::Array(items) => {
            items.iter_mut().for_each(sort);
            items.sort_by_key(ToString::to_string);
        }
        Value::Object(fields) => fields.values_mut().for_each(sort),
        _ => {}
    }
}

#[async_trait]
impl BalancerSubject for Account {
    async fn reset(&self) -> Result<(), BoxError> {
        let aws = Arc::new(AwsCloud::start().await?);
        if self.restricted {
            let denied = |request: &Request| !UPSTREAM_RIGHTS.split(' ').any(|right| right == request.name);
            let action = Action::status(403);
            aws.proxy.add(Rule::when(denied, action));
        }
        *self.aws.lock() = aws;
        Ok(())
    }

    async fn start(&self, timeout: Option<Duration>) -> Result<Arc<dyn Cloud>, BoxError> {
        Ok(start(&self.aws(), self.conf, timeout).await?)
    }

    async fn create_node(&self, name: &str) -> Result<ServiceNode, BoxError> {
        Ok(node(&self.aws(), name).await)
    }

    async fn picture(&self) -> Result<Vec<String>, BoxError> {
        let (objects, names) = self.aws().dump(&json!({})).await?;
        let mut names: Vec<_> = names.as_object().into_iter().flatten().collect();
        names.sort_by_key(|(id, _)| std::cmp::Reverse(id.len()));
        let text = names.into_iter().fold(objects.to_string(), |text, (id, name)| {
            text.replace(id.as_str(), name.as_str().unwrap_or_default())
        });
        Ok(lines(serde_json::from_str(&text)?))
    }

    fn take_calls(&self) -> Vec<CloudCall> {
        let aws = self.aws();
        let requests = aws.proxy.requests();
        aws.proxy.forget();
        let reads = |name: &str| ["Describe", "Get"].iter().any(|verb| name.starts_with(verb));
        let kind = |name: &str| [CallKind::Write, CallKind::Read][usize::from(reads(name))];
        let call = |operation: String| CloudCall {
            kind: kind(&operation),
            operation,
        };
        requests.into_iter().map(|request| call(request.name)).collect()
    }

    fn budgets(&self) -> Budgets {
        let cost = |writes, reads| Cost { writes, reads };
        Budgets {
            create: cost(11, 7),
            // 11, and 2 for each target group.
            restart_reads: 17,
            join: cost(3, 1),
            delete: cost(5, 5),
        }
    }

    fn can_fail(&self, call: &CloudCall, failure: Failure) -> bool {
        match failure {
            Failure::Busy => call.operation == "DeleteTargetGroup",
            _ => true,
        }
    }

    fn fail(&self, nth: usize, failure: Failure) {
        let action = match failure {
            Failure::Busy => Action::answer(400, aws_refusal(false, "ResourceInUse", "in use")),
            Failure::Throttled => Action::status(400),
            Failure::Unavailable => Action::status(503),
            Failure::LostReply => Action::CommitThenReset,
            Failure::NoReply => Action::Hold(Moment::AfterCommit),
        };
        self.aws()
            .proxy
            .add(Rule::new(action).at(u64::try_from(nth).unwrap()));
    }

    fn failure_points(&self) -> usize {
        8
    }

    fn edits(&self) -> &[Edit] {
        &EDITS
    }

    async fn edit(&self, name: &str) -> Result<(), BoxError> {
        edit_account(&self.aws(), name).await
    }

    fn change(&self, service: &mut ServiceView) {
        for (key, value) in [
            ("cross-zone-load-balancing-enabled", "true"),
            ("healthcheck-healthy-threshold", "5"),
        ] {
            annotate(
                service,
                &format!("service.beta.kubernetes.io/aws-load-balancer-{key}"),
                Some(value),
            );
        }
    }

    fn wait_until(&self) -> WaitUntil {
        |until| Box::pin(tokio::time::sleep_until(until))
    }
}

#[tokio::test]
async fn the_provider_keeps_the_contract_with_the_rights_of_upstream() {
    let account = Account {
        restricted: true,
        ..Account::new(NLB).await
    };
    conformance::balancer_scenarios(&account).await;
}

conformance::balancer_tests!(
    Account::new(NLB).await,
    NoReply ignored because "on a busy machine moto answers later than the second that the scenarios wait; passes alone in 4 minutes"
);
