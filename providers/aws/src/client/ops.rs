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
    /// throttling response is always obeyed. Upstream does not know this section.
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

// A second delete, a second registration of a target and a second setting of the same value change nothing. A call that creates
// an object with a unique name or rule is refused the second time; the caller reads before it writes again.
operations! {
    /// An API call: the API and the action, as IAM policies and CloudTrail name them; its bucket, which several may share.
    pub(crate) enum Op {
        /// Instances by a filter, or a page of them.
        Instances = "ec2:DescribeInstances", "ec2:DescribeInstances", Read;
        /// Instances by id alone.
        InstancesById = "ec2:DescribeInstances", "ec2:DescribeInstances by id", Read;
        /// The network topology of instances.
        InstanceTopology = "ec2:DescribeInstanceTopology", "ec2:DescribeInstanceTopology", Read;
        /// Network interfaces.
        NetworkInterfaces = "ec2:DescribeNetworkInterfaces", "ec2:DescribeNetworkInterfaces", Read;
        /// Availability zones.
        Zones = "ec2:DescribeAvailabilityZones", "ec2:DescribeAvailabilityZones", Read;
        /// VPCs.
        Vpcs = "ec2:DescribeVpcs", "ec2:DescribeVpcs", Read;
        /// Subnets.
        Subnets = "ec2:DescribeSubnets", "ec2:DescribeSubnets", Read;
        /// Route tables with their routes.
        RouteTables = "ec2:DescribeRouteTables", "ec2:DescribeRouteTables", Read;
        /// A new route.
        RouteCreate = "ec2:CreateRoute", "ec2:CreateRoute", Write;
        /// Another target for a route.
        RouteReplace = "ec2:ReplaceRoute", "ec2:ReplaceRoute", IdempotentWrite;
        /// Deletion of a route.
        RouteDelete = "ec2:DeleteRoute", "ec2:DeleteRoute", IdempotentWrite;
        /// The source/destination check of an instance.
        InstanceAttribute = "ec2:ModifyInstanceAttribute", "ec2:ModifyInstanceAttribute", IdempotentWrite;
        /// The source/destination check of a network interface.
        InterfaceAttribute = "ec2:ModifyNetworkInterfaceAttribute", "ec2:ModifyNetworkInterfaceAttribute", IdempotentWrite;
        /// Tags for resources.
        TagsCreate = "ec2:CreateTags", "ec2:CreateTags", IdempotentWrite;
        /// Removal of tags from resources.
        TagsDelete = "ec2:DeleteTags", "ec2:DeleteTags", IdempotentWrite;
        /// Security groups with their rules.
        SecurityGroups = "ec2:DescribeSecurityGroups", "ec2:DescribeSecurityGroups", Read;
        /// A new security group.
        SecurityGroupCreate = "ec2:CreateSecurityGroup", "ec2:CreateSecurityGroup", Write;
        /// Deletion of a security group.
        SecurityGroupDelete = "ec2:DeleteSecurityGroup", "ec2:DeleteSecurityGroup", IdempotentWrite;
        /// New ingress rules. An existing rule fails the whole request.
        IngressAuthorize = "ec2:AuthorizeSecurityGroupIngress", "ec2:AuthorizeSecurityGroupIngress", Write;
        /// Deletion of ingress rules. A missing rule fails the whole request.
        IngressRevoke = "ec2:RevokeSecurityGroupIngress", "ec2:RevokeSecurityGroupIngress", Write;
        /// Other descriptions for ingress rules.
        IngressDescriptions = "ec2:UpdateSecurityGroupRuleDescriptionsIngress", "ec2:UpdateSecurityGroupRuleDescriptionsIngress", IdempotentWrite;

        /// Network load balancers.
        LoadBalancers = "elbv2:DescribeLoadBalancers", "elbv2:Describe", Read;
        /// Attributes of a load balancer.
        LoadBalancerAttributes = "elbv2:DescribeLoadBalancerAttributes", "elbv2:Describe", Read;
        /// Listeners.
        Listeners = "elbv2:DescribeListeners", "elbv2:Describe", Read;
        /// Certificates of a listener.
        ListenerCertificates = "elbv2:DescribeListenerCertificates", "elbv2:Describe", Read;
        /// Target groups.
        TargetGroups = "elbv2:DescribeTargetGroups", "elbv2:Describe", Read;
        /// Attributes of a target group.
        TargetGroupAttributes = "elbv2:DescribeTargetGroupAttributes", "elbv2:Describe", Read;
        /// Targets of a target group and their health.
        TargetHealth = "elbv2:DescribeTargetHealth", "elbv2:Describe", Read;
        /// Tags of load balancers, listeners and target groups.
        LoadBalancerTags = "elbv2:DescribeTags", "elbv2:Describe", Read;
        /// A new load balancer.
        LoadBalancerCreate = "elbv2:CreateLoadBalancer", "elbv2:CreateLoadBalancer", Write;
        /// Deletion of a load balancer.
        LoadBalancerDelete = "elbv2:DeleteLoadBalancer", "elbv2:DeleteLoadBalancer", IdempotentWrite;
        /// Attributes for a load balancer.
        LoadBalancerAttributesModify = "elbv2:ModifyLoadBalancerAttributes", "elbv2:Modify", IdempotentWrite;
        /// Other security groups for a load balancer.
        SecurityGroupsSet = "elbv2:SetSecurityGroups", "elbv2:SetSecurityGroups", IdempotentWrite;
        /// Other subnets for a load balancer.
        SubnetsSet = "elbv2:SetSubnets", "elbv2:SetSubnets", IdempotentWrite;
        /// A new listener.
        ListenerCreate = "elbv2:CreateListener", "elbv2:CreateListener", Write;
        /// Other properties for a listener.
        ListenerModify = "elbv2:ModifyListener", "elbv2:Modify", IdempotentWrite;
        /// Deletion of a listener.
        ListenerDelete = "elbv2:DeleteListener", "elbv2:DeleteListener", IdempotentWrite;
        /// More certificates for a listener.
        ListenerCertificatesAdd = "elbv2:AddListenerCertificates", "elbv2:AddListenerCertificates", IdempotentWrite;
        /// Fewer certificates for a listener.
        ListenerCertificatesRemove = "elbv2:RemoveListenerCertificates", "elbv2:RemoveListenerCertificates", IdempotentWrite;
        /// A new target group.
        TargetGroupCreate = "elbv2:CreateTargetGroup", "elbv2:CreateTargetGroup", Write;
        /// Another health check for a target group.
        TargetGroupModify = "elbv2:ModifyTargetGroup", "elbv2:Modify", IdempotentWrite;
        /// Attributes for a target group.
        TargetGroupAttributesModify = "elbv2:ModifyTargetGroupAttributes", "elbv2:Modify", IdempotentWrite;
        /// Deletion of a target group.
        TargetGroupDelete = "elbv2:DeleteTargetGroup", "elbv2:DeleteTargetGroup", IdempotentWrite;
        /// More targets for a target group.
        TargetsRegister = "elbv2:RegisterTargets", "elbv2:RegisterTargets", IdempotentWrite;
        /// Fewer targets for a target group.
        TargetsDeregister = "elbv2:DeregisterTargets", "elbv2:DeregisterTargets", IdempotentWrite;
        /// Tags for load balancers, listeners and target groups.
        LoadBalancerTagsAdd = "elbv2:AddTags", "elbv2:AddTags", IdempotentWrite;

        /// Classic load balancers.
        ClassicLoadBalancers = "elb:DescribeLoadBalancers", "elb:Describe", Read;
        /// Attributes of a classic load balancer.
        ClassicAttributes = "elb:DescribeLoadBalancerAttributes", "elb:Describe", Read;
        /// Tags of classic load balancers.
        ClassicTags = "elb:DescribeTags", "elb:Describe", Read;
        /// A new classic load balancer. Repeating the call is not an error.
        ClassicCreate = "elb:CreateLoadBalancer", "elb:CreateLoadBalancer", Write;
        /// Deletion of a classic load balancer. It is not an error if it does not exist.
        ClassicDelete = "elb:DeleteLoadBalancer", "elb:DeleteLoadBalancer", IdempotentWrite;
        /// Attributes for a classic load balancer.
        ClassicAttributesModify = "elb:ModifyLoadBalancerAttributes", "elb:ModifyLoadBalancerAttributes", IdempotentWrite;
        /// More tags for a classic load balancer.
        ClassicTagsAdd = "elb:AddTags", "elb:AddTags", IdempotentWrite;
        /// More instances for a classic load balancer.
        ClassicInstancesRegister = "elb:RegisterInstancesWithLoadBalancer", "elb:RegisterInstancesWithLoadBalancer", IdempotentWrite;
        /// Fewer instances for a classic load balancer.
        ClassicInstancesDeregister = "elb:DeregisterInstancesFromLoadBalancer", "elb:DeregisterInstancesFromLoadBalancer", IdempotentWrite;
        /// New listeners for a classic load balancer.
        ClassicListenersCreate = "elb:CreateLoadBalancerListeners", "elb:CreateLoadBalancerListeners", Write;
        /// Deletion of listeners of a classic load balancer.
        ClassicListenersDelete = "elb:DeleteLoadBalancerListeners", "elb:DeleteLoadBalancerListeners", IdempotentWrite;
        /// A new policy for a classic load balancer.
        ClassicPolicyCreate = "elb:CreateLoadBalancerPolicy", "elb:CreateLoadBalancerPolicy", Write;
        /// Policies for the backend of a classic load balancer.
        ClassicBackendPoliciesSet = "elb:SetLoadBalancerPoliciesForBackendServer", "elb:SetLoadBalancerPoliciesForBackendServer", IdempotentWrite;
        /// Policies for a listener of a classic load balancer.
        ClassicListenerPoliciesSet = "elb:SetLoadBalancerPoliciesOfListener", "elb:SetLoadBalancerPoliciesOfListener", IdempotentWrite;
        /// More subnets for a classic load balancer.
        ClassicSubnetsAttach = "elb:AttachLoadBalancerToSubnets", "elb:AttachLoadBalancerToSubnets", IdempotentWrite;
        /// Fewer subnets for a classic load balancer.
        ClassicSubnetsDetach = "elb:DetachLoadBalancerFromSubnets", "elb:DetachLoadBalancerFromSubnets", IdempotentWrite;
        /// Other security groups for a classic load balancer.
        ClassicSecurityGroupsSet = "elb:ApplySecurityGroupsToLoadBalancer", "elb:ApplySecurityGroupsToLoadBalancer", IdempotentWrite;
        /// The health check of a classic load balancer.
        ClassicHealthCheck = "elb:ConfigureHealthCheck", "elb:ConfigureHealthCheck", IdempotentWrite;

        /// The identity of the credentials, which are checked. It needs no permission.
        CallerIdentity = "sts:GetCallerIdentity", "sts:GetCallerIdentity", Read;

        /// A dry run of a write, by which EC2 reports whether it would be allowed; or the smallest read.
        DryRun = "ec2:DryRun", "ec2:DryRun", Read;
    }
}

impl Quotas {
    /// The buckets of all operations.
    pub(crate) fn all_buckets(&self) -> BTreeMap<&'static str, Quota> {
        Op::ALL.iter().map(|op| (op.bucket(), self.of(*op))).collect()
    }

    /// The quota of an operation's bucket.
    fn of(&self, op: Op) -> Quota {
        match op {
            Op::Instances
            | Op::NetworkInterfaces
            | Op::Zones
            | Op::Vpcs
            | Op::Subnets
            | Op::RouteTables
            | Op::SecurityGroups => self.ec2_read,
            Op::InstancesById => self.ec2_unfiltered,
            Op::RouteCreate
            | Op::RouteReplace
            | Op::RouteDelete
            | Op::InstanceAttribute
            | Op::InterfaceAttribute
            | Op::SecurityGroupCreate
            | Op::SecurityGroupDelete
            | Op::IngressAuthorize
            | Op::IngressRevoke
            | Op::IngressDescriptions
            | Op::CallerIdentity
            | Op::DryRun => self.ec2_write,
            Op::TagsCreate | Op::TagsDelete => self.ec2_tags,
            Op::InstanceTopology => self.ec2_topology,
            Op::LoadBalancers
            | Op::LoadBalancerAttributes
            | Op::Listeners
            | Op::ListenerCertificates
            | Op::TargetGroups
            | Op::TargetGroupAttributes
            | Op::TargetHealth
            | Op::LoadBalancerTags
            | Op::ClassicLoadBalancers
            | Op::ClassicAttributes
            | Op::ClassicTags => self.elb_read,
            Op::LoadBalancerAttributesModify
            | Op::ListenerModify
            | Op::TargetGroupModify
            | Op::TargetGroupAttributesModify
            | Op::ClassicAttributesModify => self.elb_modify,
            Op::LoadBalancerCreate
            | Op::LoadBalancerDelete
            | Op::SecurityGroupsSet
            | Op::SubnetsSet
            | Op::ListenerCreate
            | Op::ListenerDelete
            | Op::ListenerCertificatesAdd
            | Op::ListenerCertificatesRemove
            | Op::TargetGroupCreate
            | Op::TargetGroupDelete
            | Op::TargetsRegister
            | Op::TargetsDeregister
            | Op::LoadBalancerTagsAdd
            | Op::ClassicCreate
            | Op::ClassicDelete
            | Op::ClassicTagsAdd
            | Op::ClassicInstancesRegister
            | Op::ClassicInstancesDeregister
            | Op::ClassicListenersCreate
            | Op::ClassicListenersDelete
            | Op::ClassicPolicyCreate
            | Op::ClassicBackendPoliciesSet
            | Op::ClassicListenerPoliciesSet
            | Op::ClassicSubnetsAttach
            | Op::ClassicSubnetsDetach
            | Op::ClassicSecurityGroupsSet
            | Op::ClassicHealthCheck => self.elb_write,
        }
    }
}

/// One label.
type MetricLabel = [(&'static str, &'static str); 1];

provider_metrics! {
    /// Counters of requests.
    pub(super) struct RequestMetrics {
        duration: Family<MetricLabel, Histogram> = Family::new_with_constructor(|| Histogram::new(PROMETHEUS_BUCKETS)),
            "cloudprovider_aws_api_request_duration_seconds" => "Latency of AWS API calls";
        // A gauge, since the format appends `_total` to the names of counters, and upstream's name has no such suffix.
        errors: Family<MetricLabel, Gauge>, "cloudprovider_aws_api_request_errors" => "AWS API errors";
        throttled: Family<MetricLabel, Counter>,
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
