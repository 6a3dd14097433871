//! The API calls, for metrics, quotas and retries.

use ccm_core::client::{Operation, Quota, operations};
use ccm_core::config::quota_section;

/// EC2 reads with a filter or pages: 100 requests and 20/s for each action.
const EC2_READ: &str = "ec2-read";
/// EC2 reads by id alone: 50 requests and 10/s for each action.
const EC2_UNFILTERED: &str = "ec2-unfiltered";
/// EC2 writes: 50 requests and 5/s for each action.
const EC2_WRITE: &str = "ec2-write";
/// CreateTags and DeleteTags: 100 requests and 10/s each.
const EC2_TAGS: &str = "ec2-tags";
/// DescribeInstanceTopology: 1 request and 1/s.
const EC2_TOPOLOGY: &str = "ec2-topology";
/// Reads of load balancers. All actions of one API share a bucket of 40 requests and 10/s.
const ELB_READ: &str = "elb-read";
/// `Modify..` of load balancers. All actions of one API share a bucket of 20 requests and 3/s.
const ELB_MODIFY: &str = "elb-modify";
/// Other writes of load balancers. AWS publishes nothing: 20 requests and 4/s for each action.
const ELB_WRITE: &str = "elb-write";

quota_section! {
    /// How much is requested from AWS at most. The defaults are the limits that AWS publishes for an account and region. Each
    /// action has a quota of its own, except where the key says that several share one. Other programs in the account
    /// use the same limits: lower these values if such programs are throttled, and raise them if AWS raised the limits. A
    /// request to slow down is always obeyed. The Go cloud controller does not know this section.
    pub(crate) struct Quotas {
        "ec2-read" => pub(crate) ec2_read: EC2_READ, "each EC2 read with a filter or pages", quota(20.0, 100);
        "ec2-unfiltered" => pub(crate) ec2_unfiltered: EC2_UNFILTERED, "each EC2 read by ids alone", quota(10.0, 50);
        "ec2-write" => pub(crate) ec2_write: EC2_WRITE, "each EC2 write", quota(5.0, 50);
        "ec2-tags" => pub(crate) ec2_tags: EC2_TAGS, "CreateTags and DeleteTags, each", quota(10.0, 100);
        "ec2-topology" => pub(crate) ec2_topology: EC2_TOPOLOGY, "DescribeInstanceTopology", quota(1.0, 1);
        "elb-read" => pub(crate) elb_read: ELB_READ, "all reads of one Elastic Load Balancing API together", quota(10.0, 40);
        "elb-modify" => pub(crate) elb_modify: ELB_MODIFY, "all Modify actions of one Elastic Load Balancing API together", quota(3.0, 20);
        "elb-write" => pub(crate) elb_write: ELB_WRITE, "each other Elastic Load Balancing write", quota(4.0, 20);
    }
}

const fn quota(rate: f64, burst: u32) -> Quota {
    Quota {
        rate,
        burst,
        max_in_flight: 10,
    }
}

impl Quotas {
    /// The buckets of all operations.
    pub(crate) fn all_buckets(&self) -> Vec<(&'static str, Quota)> {
        let classes = self.buckets();
        let quota = |op: Op| {
            let class = classes.iter().find(|(class, _)| *class == op.quota_class());
            (op.bucket(), class.map(|(_, quota)| *quota).unwrap_or_default())
        };
        let mut buckets: Vec<_> = Op::ALL.iter().map(|op| quota(*op)).collect();
        buckets.sort_by_key(|(bucket, _)| *bucket);
        buckets.dedup_by_key(|(bucket, _)| *bucket);
        buckets
    }
}

impl Op {
    /// The key of `[Quota]` that sets the quota of this operation.
    fn quota_class(self) -> &'static str {
        let Some((api, action)) = self.name().split_once(':') else {
            return EC2_READ;
        };
        let reads = action.starts_with("Describe");
        match (api, self) {
            (_, Self::InstancesById) => EC2_UNFILTERED,
            (_, Self::InstanceTopology) => EC2_TOPOLOGY,
            (_, Self::TagsCreate | Self::TagsDelete) => EC2_TAGS,
            ("ec2" | "sts", _) if reads => EC2_READ,
            ("ec2" | "sts", _) => EC2_WRITE,
            _ if reads => ELB_READ,
            _ if action.starts_with("Modify") => ELB_MODIFY,
            _ => ELB_WRITE,
        }
    }

    /// The IAM action that allows this operation.
    pub(crate) fn iam_action(self) -> String {
        let name = self.name();
        match name.split_once(':') {
            Some(("elb" | "elbv2", action)) => format!("elasticloadbalancing:{action}"),
            _ => name.to_owned(),
        }
    }
}

/// The bucket that all reads of ELBv2 share.
const V2_READ: &str = "elbv2:Describe";
/// The bucket that all `Modify` actions of ELBv2 share.
const V2_MODIFY: &str = "elbv2:Modify";
/// The bucket that all reads of classic load balancers share.
const V1_READ: &str = "elb:Describe";

// A second delete, a second registration of a target and a second setting of the same value change nothing. Whatever creates
// something under a name or rule that must be unique is refused the second time; the caller reads before it writes again.
operations! {
    /// An API call: the API and the action, as IAM policies and CloudTrail name them.
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
        /// New ingress rules. One that exists refuses the whole request.
        IngressAuthorize = "ec2:AuthorizeSecurityGroupIngress", "ec2:AuthorizeSecurityGroupIngress", Write;
        /// Deletion of ingress rules. One that does not exist refuses the whole request.
        IngressRevoke = "ec2:RevokeSecurityGroupIngress", "ec2:RevokeSecurityGroupIngress", Write;
        /// Other descriptions for ingress rules.
        IngressDescriptions = "ec2:UpdateSecurityGroupRuleDescriptionsIngress", "ec2:UpdateSecurityGroupRuleDescriptionsIngress", IdempotentWrite;

        /// Network load balancers.
        LoadBalancers = "elbv2:DescribeLoadBalancers", V2_READ, Read;
        /// Attributes of a load balancer.
        LoadBalancerAttributes = "elbv2:DescribeLoadBalancerAttributes", V2_READ, Read;
        /// Listeners.
        Listeners = "elbv2:DescribeListeners", V2_READ, Read;
        /// Certificates of a listener.
        ListenerCertificates = "elbv2:DescribeListenerCertificates", V2_READ, Read;
        /// Target groups.
        TargetGroups = "elbv2:DescribeTargetGroups", V2_READ, Read;
        /// Attributes of a target group.
        TargetGroupAttributes = "elbv2:DescribeTargetGroupAttributes", V2_READ, Read;
        /// Targets of a target group and their health.
        TargetHealth = "elbv2:DescribeTargetHealth", V2_READ, Read;
        /// Tags of load balancers, listeners and target groups.
        LoadBalancerTags = "elbv2:DescribeTags", V2_READ, Read;
        /// A new load balancer.
        LoadBalancerCreate = "elbv2:CreateLoadBalancer", "elbv2:CreateLoadBalancer", Write;
        /// Deletion of a load balancer.
        LoadBalancerDelete = "elbv2:DeleteLoadBalancer", "elbv2:DeleteLoadBalancer", IdempotentWrite;
        /// Attributes for a load balancer.
        LoadBalancerAttributesModify = "elbv2:ModifyLoadBalancerAttributes", V2_MODIFY, IdempotentWrite;
        /// Other security groups for a load balancer.
        SecurityGroupsSet = "elbv2:SetSecurityGroups", "elbv2:SetSecurityGroups", IdempotentWrite;
        /// Other subnets for a load balancer.
        SubnetsSet = "elbv2:SetSubnets", "elbv2:SetSubnets", IdempotentWrite;
        /// A new listener.
        ListenerCreate = "elbv2:CreateListener", "elbv2:CreateListener", Write;
        /// Other properties for a listener.
        ListenerModify = "elbv2:ModifyListener", V2_MODIFY, IdempotentWrite;
        /// Deletion of a listener.
        ListenerDelete = "elbv2:DeleteListener", "elbv2:DeleteListener", IdempotentWrite;
        /// More certificates for a listener.
        ListenerCertificatesAdd = "elbv2:AddListenerCertificates", "elbv2:AddListenerCertificates", IdempotentWrite;
        /// Fewer certificates for a listener.
        ListenerCertificatesRemove = "elbv2:RemoveListenerCertificates", "elbv2:RemoveListenerCertificates", IdempotentWrite;
        /// A new target group.
        TargetGroupCreate = "elbv2:CreateTargetGroup", "elbv2:CreateTargetGroup", Write;
        /// Another health check for a target group.
        TargetGroupModify = "elbv2:ModifyTargetGroup", V2_MODIFY, IdempotentWrite;
        /// Attributes for a target group.
        TargetGroupAttributesModify = "elbv2:ModifyTargetGroupAttributes", V2_MODIFY, IdempotentWrite;
        /// Deletion of a target group.
        TargetGroupDelete = "elbv2:DeleteTargetGroup", "elbv2:DeleteTargetGroup", IdempotentWrite;
        /// More targets for a target group.
        TargetsRegister = "elbv2:RegisterTargets", "elbv2:RegisterTargets", IdempotentWrite;
        /// Fewer targets for a target group.
        TargetsDeregister = "elbv2:DeregisterTargets", "elbv2:DeregisterTargets", IdempotentWrite;
        /// Tags for load balancers, listeners and target groups.
        LoadBalancerTagsAdd = "elbv2:AddTags", "elbv2:AddTags", IdempotentWrite;

        /// Classic load balancers.
        ClassicLoadBalancers = "elb:DescribeLoadBalancers", V1_READ, Read;
        /// Attributes of a classic load balancer.
        ClassicAttributes = "elb:DescribeLoadBalancerAttributes", V1_READ, Read;
        /// Tags of classic load balancers.
        ClassicTags = "elb:DescribeTags", V1_READ, Read;
        /// A new classic load balancer. The same one a second time is no error.
        ClassicCreate = "elb:CreateLoadBalancer", "elb:CreateLoadBalancer", Write;
        /// Deletion of a classic load balancer. One that does not exist is no error.
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

        /// A write that EC2 is asked not to do, but whether it would be allowed; or the smallest read.
        DryRun = "ec2:DryRun", "ec2:DryRun", Read;
        /// Who we are: credentials are checked, and nothing needs to be allowed.
        CallerIdentity = "sts:GetCallerIdentity", "sts:GetCallerIdentity", Read;
    }
}

#[cfg(test)]
mod tests {
    use ccm_core::client::Effect;

    use super::*;

    #[test]
    fn actions_say_whether_they_write() {
        for op in Op::ALL {
            let action = op
                .name()
                .split_once(':')
                .map(|(_, action)| action)
                .unwrap_or_default();
            let reads = ["Describe", "Get", "DryRun"]
                .iter()
                .any(|verb| action.starts_with(verb));
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
            let found = buckets.iter().find(|(name, _)| *name == bucket);
            assert_eq!(found, Some(&(bucket, quota(rate, burst))));
        }
        for op in Op::ALL {
            assert!(
                buckets.iter().any(|(bucket, _)| *bucket == op.bucket()),
                "{}",
                op.name()
            );
        }
    }

    #[test]
    fn iam_has_one_prefix_for_both_apis_of_load_balancers() {
        assert_eq!(
            Op::ClassicCreate.iam_action(),
            Op::LoadBalancerCreate.iam_action()
        );
        assert_eq!(
            Op::TargetsRegister.iam_action(),
            "elasticloadbalancing:RegisterTargets"
        );
        assert_eq!(Op::InstancesById.iam_action(), "ec2:DescribeInstances");
    }

    #[test]
    fn the_iam_policy_allows_all_operations_and_nothing_else() {
        let policy = include_str!("../../../../deploy/aws/iam-policy.json");
        let policy: serde_json::Value = serde_json::from_str(policy).unwrap();
        let statements = policy["Statement"].as_array().unwrap().iter();
        let actions = statements.flat_map(|statement| statement["Action"].as_array().unwrap());
        let mut allowed: Vec<_> = actions
            .map(|action| action.as_str().unwrap().to_owned())
            .collect();
        allowed.sort();
        // Everybody may ask who they are, and a dry run needs the rights of what it tries. The first load balancer of an
        // account creates the role of Elastic Load Balancing.
        let free = [Op::CallerIdentity, Op::DryRun];
        let used = Op::ALL
            .iter()
            .filter(|op| !free.contains(op))
            .map(|op| op.iam_action());
        let mut used: Vec<_> = used.chain(["iam:CreateServiceLinkedRole".to_owned()]).collect();
        used.sort();
        used.dedup();
        assert_eq!(allowed, used);
    }
}
