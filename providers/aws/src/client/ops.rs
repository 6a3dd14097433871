//! The API calls, for metrics, quotas and retries, and the metrics of their requests under the names of the Go cloud
//! controller. Those count each request; `ccm_cloud_*` counts whole calls.

use std::{collections::BTreeMap, time::Duration};

use ccm_core::{
    client::{Operation, PROMETHEUS_BUCKETS, Quota, operations, provider_metrics},
    config::quota_section,
};
use prometheus_client::metrics::{counter::Counter, family::Family, gauge::Gauge, histogram::Histogram};

use super::Service;

quota_section! {
    /// Rate limits of requests to AWS. The defaults are the limits that AWS publishes for an account and region. Each
    /// action has a quota of its own, except where the key says that several share one. Other programs in the account
    /// use the same limits: lower these values if such programs are throttled, and raise them if AWS raised the limits. A
    /// throttling response is always obeyed. The Go cloud controller does not know this section.
    pub(crate) struct Quotas {
        "ec2-read" => pub(crate) ec2_read: "ec2-read", "each EC2 read with a filter or pages", quota(20.0, 100);
        "ec2-unfiltered" => pub(crate) ec2_unfiltered: "ec2-unfiltered", "each EC2 read by ids alone", quota(10.0, 50);
        "ec2-write" => pub(crate) ec2_write: "ec2-write", "each EC2 write", quota(5.0, 50);
        "ec2-tags" => pub(crate) ec2_tags: "ec2-tags", "each of CreateTags and DeleteTags", quota(10.0, 100);
        "ec2-topology" => pub(crate) ec2_topology: "ec2-topology", "DescribeInstanceTopology", quota(1.0, 1);
        "elb-read" => pub(crate) elb_read: "elb-read", "all reads of one Elastic Load Balancing API together", quota(10.0, 40);
        "elb-modify" => pub(crate) elb_modify: "elb-modify", "all Modify actions of one Elastic Load Balancing API together", quota(3.0, 20);
        // AWS does not publish their limits.
        "elb-write" => pub(crate) elb_write: "elb-write", "each other Elastic Load Balancing write", quota(4.0, 20);
    }
}

const fn quota(rate: f64, burst: u32) -> Quota {
    Quota {
        rate,
        burst,
        max_in_flight: 10,
    }
}

impl Op {
    /// The IAM action that allows this operation.
    pub(crate) fn iam_action(self) -> String {
        let name = self.name();
        match name.split_once(':') {
            Some(("elb" | "elbv2", action)) => format!("elasticloadbalancing:{action}"),
            _ => name.to_owned(),
        }
    }
}

/// Defines [`Op`], the quotas of its buckets and the SDK's requests of a table. A line of it names an operation, the method of
/// the SDK's client, the action, its effect, the field of [`Quotas`] with its quota, and its bucket if it shares one.
macro_rules! actions {
    (@bucket $api:ident $action:literal) => { concat!(stringify!($api), ":", $action) };
    (@bucket $api:ident $action:literal $shared:literal) => { $shared };
    (
        $dollar:tt
        $(
            $(#[$meaning:meta])*
            $op:ident = $api:ident.$method:ident $action:literal, $effect:ident, $quota:ident $(in $shared:literal)?;
        )+
    ) => {
        operations! {
            /// An API call: the API and the action, as IAM policies and CloudTrail name them.
            pub(crate) enum Op {
                $(
                    $(#[$meaning])*
                    $op = concat!(stringify!($api), ":", $action), actions!(@bucket $api $action $($shared)?), $effect;
                )+
                /// A dry run of a write, by which EC2 reports whether it would be allowed; or the smallest read.
                DryRun = "ec2:DryRun", "ec2:DryRun", Read;
            }
        }

        impl Quotas {
            /// The buckets of all operations.
            pub(crate) fn all_buckets(&self) -> BTreeMap<&'static str, Quota> {
                let buckets = [(Op::DryRun.bucket(), self.ec2_write), $((Op::$op.bucket(), self.$quota)),+];
                buckets.into_iter().collect()
            }
        }

        /// The SDK's request of an operation: `request!(clients, Op)`.
        macro_rules! request {
            $(($dollar clients:expr, $op) => { $dollar clients.$api.$method() };)+
        }
        pub(crate) use request;
    };
}

// A second delete, a second registration of a target and a second setting of the same value change nothing. A call that creates
// an object with a unique name or rule is refused the second time; the caller reads before it writes again.
actions! { $
    /// Instances by a filter, or a page of them.
    Instances = ec2.describe_instances "DescribeInstances", Read, ec2_read;
    /// Instances by id alone.
    InstancesById = ec2.describe_instances "DescribeInstances", Read, ec2_unfiltered in "ec2:DescribeInstances by id";
    /// The network topology of instances.
    InstanceTopology = ec2.describe_instance_topology "DescribeInstanceTopology", Read, ec2_topology;
    /// Network interfaces.
    NetworkInterfaces = ec2.describe_network_interfaces "DescribeNetworkInterfaces", Read, ec2_read;
    /// Availability zones.
    Zones = ec2.describe_availability_zones "DescribeAvailabilityZones", Read, ec2_read;
    /// VPCs.
    Vpcs = ec2.describe_vpcs "DescribeVpcs", Read, ec2_read;
    /// Subnets.
    Subnets = ec2.describe_subnets "DescribeSubnets", Read, ec2_read;
    /// Route tables with their routes.
    RouteTables = ec2.describe_route_tables "DescribeRouteTables", Read, ec2_read;
    /// A new route.
    RouteCreate = ec2.create_route "CreateRoute", Write, ec2_write;
    /// Another target for a route.
    RouteReplace = ec2.replace_route "ReplaceRoute", IdempotentWrite, ec2_write;
    /// Deletion of a route.
    RouteDelete = ec2.delete_route "DeleteRoute", IdempotentWrite, ec2_write;
    /// The source/destination check of an instance.
    InstanceAttribute = ec2.modify_instance_attribute "ModifyInstanceAttribute", IdempotentWrite, ec2_write;
    /// The source/destination check of a network interface.
    InterfaceAttribute = ec2.modify_network_interface_attribute "ModifyNetworkInterfaceAttribute", IdempotentWrite, ec2_write;
    /// Tags for resources.
    TagsCreate = ec2.create_tags "CreateTags", IdempotentWrite, ec2_tags;
    /// Removal of tags from resources.
    TagsDelete = ec2.delete_tags "DeleteTags", IdempotentWrite, ec2_tags;
    /// Security groups with their rules.
    SecurityGroups = ec2.describe_security_groups "DescribeSecurityGroups", Read, ec2_read;
    /// A new security group.
    SecurityGroupCreate = ec2.create_security_group "CreateSecurityGroup", Write, ec2_write;
    /// Deletion of a security group.
    SecurityGroupDelete = ec2.delete_security_group "DeleteSecurityGroup", IdempotentWrite, ec2_write;
    /// New ingress rules. An existing rule fails the whole request.
    IngressAuthorize = ec2.authorize_security_group_ingress "AuthorizeSecurityGroupIngress", Write, ec2_write;
    /// Deletion of ingress rules. A missing rule fails the whole request.
    IngressRevoke = ec2.revoke_security_group_ingress "RevokeSecurityGroupIngress", Write, ec2_write;
    /// Other descriptions for ingress rules.
    IngressDescriptions = ec2.update_security_group_rule_descriptions_ingress "UpdateSecurityGroupRuleDescriptionsIngress", IdempotentWrite, ec2_write;

    /// Network load balancers.
    LoadBalancers = elbv2.describe_load_balancers "DescribeLoadBalancers", Read, elb_read in "elbv2:Describe";
    /// Attributes of a load balancer.
    LoadBalancerAttributes = elbv2.describe_load_balancer_attributes "DescribeLoadBalancerAttributes", Read, elb_read in "elbv2:Describe";
    /// Listeners.
    Listeners = elbv2.describe_listeners "DescribeListeners", Read, elb_read in "elbv2:Describe";
    /// Certificates of a listener.
    ListenerCertificates = elbv2.describe_listener_certificates "DescribeListenerCertificates", Read, elb_read in "elbv2:Describe";
    /// Target groups.
    TargetGroups = elbv2.describe_target_groups "DescribeTargetGroups", Read, elb_read in "elbv2:Describe";
    /// Attributes of a target group.
    TargetGroupAttributes = elbv2.describe_target_group_attributes "DescribeTargetGroupAttributes", Read, elb_read in "elbv2:Describe";
    /// Targets of a target group and their health.
    TargetHealth = elbv2.describe_target_health "DescribeTargetHealth", Read, elb_read in "elbv2:Describe";
    /// Tags of load balancers, listeners and target groups.
    LoadBalancerTags = elbv2.describe_tags "DescribeTags", Read, elb_read in "elbv2:Describe";
    /// A new load balancer.
    LoadBalancerCreate = elbv2.create_load_balancer "CreateLoadBalancer", Write, elb_write;
    /// Deletion of a load balancer.
    LoadBalancerDelete = elbv2.delete_load_balancer "DeleteLoadBalancer", IdempotentWrite, elb_write;
    /// Attributes for a load balancer.
    LoadBalancerAttributesModify = elbv2.modify_load_balancer_attributes "ModifyLoadBalancerAttributes", IdempotentWrite, elb_modify in "elbv2:Modify";
    /// Other security groups for a load balancer.
    SecurityGroupsSet = elbv2.set_security_groups "SetSecurityGroups", IdempotentWrite, elb_write;
    /// Other subnets for a load balancer.
    SubnetsSet = elbv2.set_subnets "SetSubnets", IdempotentWrite, elb_write;
    /// A new listener.
    ListenerCreate = elbv2.create_listener "CreateListener", Write, elb_write;
    /// Other properties for a listener.
    ListenerModify = elbv2.modify_listener "ModifyListener", IdempotentWrite, elb_modify in "elbv2:Modify";
    /// Deletion of a listener.
    ListenerDelete = elbv2.delete_listener "DeleteListener", IdempotentWrite, elb_write;
    /// More certificates for a listener.
    ListenerCertificatesAdd = elbv2.add_listener_certificates "AddListenerCertificates", IdempotentWrite, elb_write;
    /// Fewer certificates for a listener.
    ListenerCertificatesRemove = elbv2.remove_listener_certificates "RemoveListenerCertificates", IdempotentWrite, elb_write;
    /// A new target group.
    TargetGroupCreate = elbv2.create_target_group "CreateTargetGroup", Write, elb_write;
    /// Another health check for a target group.
    TargetGroupModify = elbv2.modify_target_group "ModifyTargetGroup", IdempotentWrite, elb_modify in "elbv2:Modify";
    /// Attributes for a target group.
    TargetGroupAttributesModify = elbv2.modify_target_group_attributes "ModifyTargetGroupAttributes", IdempotentWrite, elb_modify in "elbv2:Modify";
    /// Deletion of a target group.
    TargetGroupDelete = elbv2.delete_target_group "DeleteTargetGroup", IdempotentWrite, elb_write;
    /// More targets for a target group.
    TargetsRegister = elbv2.register_targets "RegisterTargets", IdempotentWrite, elb_write;
    /// Fewer targets for a target group.
    TargetsDeregister = elbv2.deregister_targets "DeregisterTargets", IdempotentWrite, elb_write;
    /// Tags for load balancers, listeners and target groups.
    LoadBalancerTagsAdd = elbv2.add_tags "AddTags", IdempotentWrite, elb_write;

    /// Classic load balancers.
    ClassicLoadBalancers = elb.describe_load_balancers "DescribeLoadBalancers", Read, elb_read in "elb:Describe";
    /// Attributes of a classic load balancer.
    ClassicAttributes = elb.describe_load_balancer_attributes "DescribeLoadBalancerAttributes", Read, elb_read in "elb:Describe";
    /// Tags of classic load balancers.
    ClassicTags = elb.describe_tags "DescribeTags", Read, elb_read in "elb:Describe";
    /// A new classic load balancer. Repeating the call is not an error.
    ClassicCreate = elb.create_load_balancer "CreateLoadBalancer", Write, elb_write;
    /// Deletion of a classic load balancer. It is not an error if it does not exist.
    ClassicDelete = elb.delete_load_balancer "DeleteLoadBalancer", IdempotentWrite, elb_write;
    /// Attributes for a classic load balancer.
    ClassicAttributesModify = elb.modify_load_balancer_attributes "ModifyLoadBalancerAttributes", IdempotentWrite, elb_modify;
    /// More tags for a classic load balancer.
    ClassicTagsAdd = elb.add_tags "AddTags", IdempotentWrite, elb_write;
    /// More instances for a classic load balancer.
    ClassicInstancesRegister = elb.register_instances_with_load_balancer "RegisterInstancesWithLoadBalancer", IdempotentWrite, elb_write;
    /// Fewer instances for a classic load balancer.
    ClassicInstancesDeregister = elb.deregister_instances_from_load_balancer "DeregisterInstancesFromLoadBalancer", IdempotentWrite, elb_write;
    /// New listeners for a classic load balancer.
    ClassicListenersCreate = elb.create_load_balancer_listeners "CreateLoadBalancerListeners", Write, elb_write;
    /// Deletion of listeners of a classic load balancer.
    ClassicListenersDelete = elb.delete_load_balancer_listeners "DeleteLoadBalancerListeners", IdempotentWrite, elb_write;
    /// A new policy for a classic load balancer.
    ClassicPolicyCreate = elb.create_load_balancer_policy "CreateLoadBalancerPolicy", Write, elb_write;
    /// Policies for the backend of a classic load balancer.
    ClassicBackendPoliciesSet = elb.set_load_balancer_policies_for_backend_server "SetLoadBalancerPoliciesForBackendServer", IdempotentWrite, elb_write;
    /// Policies for a listener of a classic load balancer.
    ClassicListenerPoliciesSet = elb.set_load_balancer_policies_of_listener "SetLoadBalancerPoliciesOfListener", IdempotentWrite, elb_write;
    /// More subnets for a classic load balancer.
    ClassicSubnetsAttach = elb.attach_load_balancer_to_subnets "AttachLoadBalancerToSubnets", IdempotentWrite, elb_write;
    /// Fewer subnets for a classic load balancer.
    ClassicSubnetsDetach = elb.detach_load_balancer_from_subnets "DetachLoadBalancerFromSubnets", IdempotentWrite, elb_write;
    /// Other security groups for a classic load balancer.
    ClassicSecurityGroupsSet = elb.apply_security_groups_to_load_balancer "ApplySecurityGroupsToLoadBalancer", IdempotentWrite, elb_write;
    /// The health check of a classic load balancer.
    ClassicHealthCheck = elb.configure_health_check "ConfigureHealthCheck", IdempotentWrite, elb_write;

    /// The identity of the credentials, which are checked. It needs no permission.
    CallerIdentity = sts.get_caller_identity "GetCallerIdentity", Read, ec2_write;
}

/// One label.
type Label = [(&'static str, &'static str); 1];

provider_metrics! {
    /// Counters of requests.
    pub(super) struct RequestMetrics {
        duration: Family<Label, Histogram> = Family::new_with_constructor(|| Histogram::new(PROMETHEUS_BUCKETS)),
            "cloudprovider_aws_api_request_duration_seconds" => "Latency of AWS API calls";
        // A gauge, since the format appends `_total` to the names of counters, and upstream's name has no such suffix.
        errors: Family<Label, Gauge>, "cloudprovider_aws_api_request_errors" => "AWS API errors";
        throttled: Family<Label, Counter>,
            "cloudprovider_aws_api_throttled_requests" => "Throttled AWS API calls";
        statuses: Family<[(&'static str, String); 3], Counter>,
            "cloudprovider_aws_api_response_status" => "Answers of AWS with an HTTP status of 400 or more";
    }
}

/// The label `request` of the actions that upstream measures.
fn label(op: Op) -> Option<&'static str> {
    Some(match op {
        Op::Instances | Op::InstancesById => "describe_instance",
        Op::SecurityGroups => "describe_security_groups",
        Op::RouteTables => "describe_route_tables",
        Op::NetworkInterfaces => "describe_network_interfaces",
        Op::TagsCreate => "create_tags",
        Op::TagsDelete => "delete_tags",
        _ => return None,
    })
}

impl RequestMetrics {
    /// Counts a successful request.
    pub(super) fn succeeded(&self, op: Op, took: Duration) {
        if let Some(request) = label(op) {
            let duration = self.duration.get_or_create(&[("request", request)]);
            duration.observe(took.as_secs_f64());
        }
    }

    /// Counts a request that AWS refused or did not answer. `status`: the HTTP status of the response.
    pub(super) fn failed(&self, op: Op, status: Option<u16>, throttled: bool) {
        if let Some(request) = label(op) {
            self.errors.get_or_create(&[("request", request)]).inc();
        }
        let (api, action) = op.name().split_once(':').unwrap_or_default();
        if throttled {
            self.throttled.get_or_create(&[("operation_name", action)]).inc();
        }
        if let Some(status) = status.filter(|status| *status >= 400) {
            let service = Service::parse(api).map_or("", Service::name);
            let labels = [
                ("service", service.to_owned()),
                ("operation", action.to_owned()),
                ("status_code", status.to_string()),
            ];
            self.statuses.get_or_create(&labels).inc();
        }
    }
}

#[cfg(test)]
mod tests {
    use ccm_core::client::Effect;

    use super::*;

    #[test]
    fn the_effect_of_an_action_follows_from_its_name() {
        for op in Op::ALL {
            let action = op.name().split_once(':').map_or("", |(_, action)| action);
            let mut verbs = ["Describe", "Get", "DryRun"].iter();
            let reads = verbs.any(|verb| action.starts_with(verb));
            assert_eq!(reads, op.effect() == Effect::Read, "{}", op.name());
        }
    }

    #[test]
    fn each_action_has_the_quota_that_aws_publishes() {
        let buckets = Quotas::default().all_buckets();
        for (bucket, rate, burst) in [
            ("ec2:DescribeInstances", 20.0, 100),
            ("ec2:DescribeInstances by id", 10.0, 50),
            ("ec2:DescribeInstanceTopology", 1.0, 1),
            ("ec2:AuthorizeSecurityGroupIngress", 5.0, 50),
            ("ec2:CreateTags", 10.0, 100),
            ("elbv2:Describe", 10.0, 40),
            ("elb:Describe", 10.0, 40),
            ("elbv2:Modify", 3.0, 20),
            ("elbv2:RegisterTargets", 4.0, 20),
            ("elb:RegisterInstancesWithLoadBalancer", 4.0, 20),
        ] {
            assert_eq!(buckets.get(bucket), Some(&quota(rate, burst)), "{bucket}");
        }
        for op in Op::ALL {
            assert!(buckets.contains_key(op.bucket()), "{}", op.name());
        }
    }

    #[test]
    fn iam_has_one_prefix_for_both_apis_of_load_balancers() {
        let create = Op::LoadBalancerCreate.iam_action();
        assert_eq!(Op::ClassicCreate.iam_action(), create);
        let register = Op::TargetsRegister.iam_action();
        assert_eq!(register, "elasticloadbalancing:RegisterTargets");
        assert_eq!(Op::InstancesById.iam_action(), "ec2:DescribeInstances");
    }

    #[test]
    fn the_iam_policy_allows_all_operations_and_nothing_else() {
        let policy = include_str!("../../../../deploy/aws/iam-policy.json");
        let policy: serde_json::Value = serde_json::from_str(policy).unwrap();
        let statements = policy["Statement"].as_array().unwrap().iter();
        let actions = statements.flat_map(|statement| statement["Action"].as_array().unwrap());
        let mut allowed: Vec<_> = actions.map(|action| action.as_str().unwrap().to_owned()).collect();
        allowed.sort();
        // GetCallerIdentity needs no permission, and a dry run needs the permission of its call. The first load balancer of an
        // account creates the role of Elastic Load Balancing.
        let free = [Op::CallerIdentity, Op::DryRun];
        let used = Op::ALL.iter().filter(|op| !free.contains(op));
        let used = used.map(|op| op.iam_action());
        let mut used: Vec<_> = used.chain(["iam:CreateServiceLinkedRole".to_owned()]).collect();
        used.sort();
        used.dedup();
        assert_eq!(allowed, used);
    }
}
