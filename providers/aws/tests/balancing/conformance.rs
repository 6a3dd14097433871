//! The suite for all providers.

use std::sync::Arc;

use ccm_core::{
    Cloud, async_trait,
    load_balancer::{ServiceNode, ServiceView},
    testkit::{
        cluster::{WaitUntil, advance_to, annotate_all},
        conformance::{
            self, BalancerSubject, BoxError, Budgets, CallKind, CloudCall, Cost, Edit, EditResult, Failure,
        },
    },
};
use ccm_testbed::{
    proxy::{AWS_READS, Action, Moment, Request, Rule, aws_refusal},
    test_cloud::{AwsCloud, TestCloud as _},
};
use futures_util::{FutureExt as _, future::BoxFuture};
use parking_lot::Mutex;
use serde_json::{Value, json};

use crate::stage::{ANNOTATION, NLB, node, start};

/// The actions in the documented policy of the Go cloud controller.
const UPSTREAM_RIGHTS: &str = include_str!("../../../../tests/parity/aws/upstream-rights.json");

#[derive(Default)]
struct Account {
    aws: Mutex<Option<Arc<AwsCloud>>>,
    /// Whether all actions that upstream does not use are denied.
    restricted: bool,
}

impl Account {
    fn aws(&self) -> Arc<AwsCloud> {
        Arc::clone(self.aws.lock().as_ref().unwrap())
    }
}

const EDITS: [Edit; 11] = [
    Edit::new("delete load balancer", EditResult::Reverted),
    Edit::new("delete listener", EditResult::Reverted),
    Edit::new("delete listener and target group", EditResult::Reverted),
    Edit::new("deregister target", EditResult::Reverted),
    Edit::new("change health check", EditResult::Reverted),
    Edit::new("balance over zones", EditResult::Reverted),
    Edit::new("revoke rules", EditResult::Reverted),
    Edit::new("tag load balancer", EditResult::Unchanged),
    Edit::new("delay deregistration", EditResult::Unchanged),
    Edit::new("create load balancer", EditResult::Foreign),
    Edit::new("allow ssh", EditResult::Foreign),
];

/// The call of boto3 that makes an edit: service, operation and arguments.
async fn edit_call(aws: &AwsCloud, name: &str) -> Result<Value, BoxError> {
    let first = async |operation: &str, of: Value, list: &str| {
        let found = aws.call("v2", operation, of).await?;
        Ok::<_, BoxError>(found[list][0].clone())
    };
    let balancer =
        first("describe_load_balancers", json!({}), "LoadBalancers").await?["LoadBalancerArn"].take();
    let listener = match &balancer {
        Value::Null => Value::Null,
        arn => first("describe_listeners", json!({"LoadBalancerArn": arn}), "Listeners").await?,
    };
    let group = &listener["DefaultActions"][0]["TargetGroupArn"];
    let nodes = aws.id("SG_NODES");
    let set = |key: &str, value: &str| json!([{"Key": key, "Value": value}]);
    Ok(match name {
        "create load balancer" => json!(["v2", "create_load_balancer", {
            "Name": "mine", "Type": "network", "Subnets": [aws.id("PUBLIC_A")],
        }]),
        "allow ssh" => {
            let clients = json!([{"CidrIp": "10.0.0.0/8", "Description": "ssh"}]);
            json!(["ec2", "authorize_security_group_ingress", {
                "GroupId": nodes,
                "IpPermissions": [{"IpProtocol": "tcp", "FromPort": 22, "ToPort": 22, "IpRanges": clients}],
            }])
        }
        "revoke rules" => {
            let ids = json!({"GroupIds": [nodes]});
            let found = aws.call("ec2", "describe_security_groups", ids).await?;
            let rules = &found["SecurityGroups"][0]["IpPermissions"];
            json!(["ec2", "revoke_security_group_ingress", {"GroupId": nodes, "IpPermissions": rules}])
        }
        "delete load balancer" => json!(["v2", "delete_load_balancer", {"LoadBalancerArn": balancer}]),
        "delete listener" => json!(["v2", "delete_listener", {"ListenerArn": listener["ListenerArn"]}]),
        "delete listener and target group" => {
            let listener = json!({"ListenerArn": listener["ListenerArn"]});
            aws.call("v2", "delete_listener", listener).await?;
            json!(["v2", "delete_target_group", {"TargetGroupArn": group}])
        }
        "deregister target" => {
            let (of, list) = (json!({"TargetGroupArn": group}), "TargetHealthDescriptions");
            let target = first("describe_target_health", of, list).await?["Target"].take();
            json!(["v2", "deregister_targets", {"TargetGroupArn": group, "Targets": [target]}])
        }
        "change health check" => json!(["v2", "modify_target_group", {
            "TargetGroupArn": group, "HealthyThresholdCount": 7,
        }]),
        "balance over zones" => json!(["v2", "modify_load_balancer_attributes", {
            "LoadBalancerArn": balancer, "Attributes": set("load_balancing.cross_zone.enabled", "true"),
        }]),
        "tag load balancer" => json!(["v2", "add_tags", {
            "ResourceArns": [balancer], "Tags": set("team", "web"),
        }]),
        "delay deregistration" => json!(["v2", "modify_target_group_attributes", {
            "TargetGroupArn": group, "Attributes": set("deregistration_delay.timeout_seconds", "17"),
        }]),
        other => return Err(format!("unknown edit {other}").into()),
    })
}

#[async_trait]
impl BalancerSubject for Account {
    async fn reset(&self) -> Result<(), BoxError> {
        let aws = Arc::new(AwsCloud::start().await?);
        if self.restricted {
            let denied = |request: &Request| !UPSTREAM_RIGHTS.contains(&format!(":{}\"", request.name));
            let action = Action::status(403);
            aws.proxy.add(Rule::when(denied, action));
        }
        *self.aws.lock() = Some(aws);
        Ok(())
    }

    async fn start(&self) -> Result<Arc<dyn Cloud>, BoxError> {
        Ok(start(&self.aws(), NLB).await?)
    }

    async fn create_node(&self, name: &str) -> Result<ServiceNode, BoxError> {
        Ok(node(&self.aws(), name).await)
    }

    async fn picture(&self) -> Result<Vec<String>, BoxError> {
        Ok(self.aws().picture(&[]).await?.lines().to_vec())
    }

    /// The policy of upstream does not include DescribeTags.
    fn reads_ownership(&self) -> bool {
        !self.restricted
    }

    fn take_calls(&self) -> Vec<CloudCall> {
        let aws = self.aws();
        let requests = aws.proxy.requests();
        aws.proxy.forget();
        let call = |request: Request| CloudCall {
            kind: match AWS_READS.iter().any(|verb| request.name.starts_with(verb)) {
                true => CallKind::Read,
                false => CallKind::Write,
            },
            operation: request.name,
        };
        requests.into_iter().map(call).collect()
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
        failure != Failure::Busy || call.operation == "DeleteTargetGroup"
    }

    fn fail(&self, nth: usize, failure: Failure) -> BoxFuture<'static, ()> {
        let action = match failure {
            Failure::Busy => Action::answer(400, aws_refusal(false, "ResourceInUse", "in use")),
            Failure::Throttled => Action::status(400),
            Failure::Unavailable => Action::status(503),
            Failure::LostReply => Action::CommitThenReset,
            Failure::NoReply => Action::Hold(Moment::AfterCommit),
        };
        let aws = self.aws();
        let rule = aws.proxy.add(Rule::new(action).at(u64::try_from(nth).unwrap()));
        aws.proxy.reached(rule).map(drop).boxed()
    }

    fn failure_points(&self) -> usize {
        8
    }

    fn edits(&self) -> &[Edit] {
        &EDITS
    }

    async fn edit(&self, name: &str) -> Result<(), BoxError> {
        let aws = self.aws();
        let mut call = edit_call(&aws, name).await?;
        let arguments = call[2].take();
        let [service, operation] = [0, 1].map(|at| call[at].as_str().unwrap());
        aws.call(service, operation, arguments).await?;
        Ok(())
    }

    fn wait_until(&self) -> WaitUntil {
        advance_to
    }

    fn change(&self, service: &mut ServiceView) {
        let annotations = "cross-zone-load-balancing-enabled=true; healthcheck-healthy-threshold=5";
        annotate_all(service, ANNOTATION, annotations);
    }
}

#[tokio::test]
async fn the_provider_keeps_the_contract_with_the_policy_of_upstream() {
    let account = Account {
        restricted: true,
        ..Account::default()
    };
    conformance::balancer_scenarios(&account).await;
}

conformance::balancer_tests!(Account::default());
