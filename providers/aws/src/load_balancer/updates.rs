//! The changes of attributes and of sets, each of which is a call of AWS.

use ccm_core::plan::objects::{Policy, UpdateCall};

/// A change of an object's attributes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum ObjectUpdate {
    TargetGroup,
    TargetGroupAttributes,
    LoadBalancerAttributes,
    LoadBalancerSecurityGroups,
    LoadBalancerSubnets,
    Listener,
    ClassicAttributes,
    ClassicHealthCheck,
    ClassicListenerPolicies,
    ClassicSecurityGroups,
    ClassicSubnets,
}

impl UpdateCall for ObjectUpdate {
    fn label(self) -> &'static str {
        match self {
            Self::TargetGroup => "ModifyTargetGroup",
            Self::TargetGroupAttributes => "ModifyTargetGroupAttributes",
            Self::LoadBalancerAttributes => "ModifyLoadBalancerAttributes",
            Self::LoadBalancerSecurityGroups => "SetSecurityGroups",
            Self::LoadBalancerSubnets => "SetSubnets",
            Self::Listener => "ModifyListener",
            Self::ClassicAttributes => "ClassicModifyLoadBalancerAttributes",
            Self::ClassicHealthCheck => "ConfigureHealthCheck",
            Self::ClassicListenerPolicies => "SetLoadBalancerPoliciesOfListener",
            Self::ClassicSecurityGroups => "ApplySecurityGroupsToLoadBalancer",
            Self::ClassicSubnets => "AttachLoadBalancerToSubnets",
        }
    }
}

impl ObjectUpdate {
    /// Whether everything else works without it. Upstream does not use these actions: they are not in its documented policy.
    pub(crate) const fn is_optional(self) -> bool {
        match self {
            Self::TargetGroupAttributes | Self::LoadBalancerSubnets => true,
            Self::TargetGroup
            | Self::LoadBalancerAttributes
            | Self::LoadBalancerSecurityGroups
            | Self::Listener
            | Self::ClassicAttributes
            | Self::ClassicHealthCheck
            | Self::ClassicListenerPolicies
            | Self::ClassicSecurityGroups
            | Self::ClassicSubnets => false,
        }
    }

    /// The policy of attributes that it changes.
    pub(crate) const fn policy(self) -> Policy<Self> {
        Policy::Update(self)
    }
}

/// A set of entries that objects have.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum EntrySet {
    Tags,
    /// The targets of a target group.
    Targets,
    /// The rules of a security group.
    Rules,
    /// The certificates of a TLS listener beside the default one.
    Certificates,
    /// The instances of a classic load balancer.
    Instances,
    /// The ports of a classic load balancer whose targets get the PROXY protocol.
    ProxyPorts,
}

impl EntrySet {
    const ALL: [Self; 6] = [
        Self::Tags,
        Self::Targets,
        Self::Rules,
        Self::Certificates,
        Self::Instances,
        Self::ProxyPorts,
    ];

    /// The name of an entry in sentences, by which the plan engine knows the set.
    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::Tags => "tag",
            Self::Targets => "target",
            Self::Rules => "rule",
            Self::Certificates => "certificate",
            Self::Instances => "instance",
            Self::ProxyPorts => "port with the PROXY protocol",
        }
    }

    /// The set with this name.
    pub(crate) fn of(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|set| set.name() == name)
    }
}

#[cfg(test)]
mod tests {
    use ccm_core::plan::objects::Kind as _;

    use super::*;
    use crate::load_balancer::kinds::ObjectKind;

    #[test]
    fn every_set_of_a_kind_has_a_call() {
        for set in ObjectKind::ALL.into_iter().flat_map(|kind| kind.schema().sets) {
            assert!(EntrySet::of(set.name).is_some(), "{}", set.name);
        }
    }
}
