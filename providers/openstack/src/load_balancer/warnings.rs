//! Warnings about a Service that is served, but not exactly as requested.

use ccm_core::load_balancer::{ClusterView, IgnoredValue, IpFamily, ServiceEvent, ServiceView};

use super::settings::LoadBalancing;
use super::{annotations, desired::Inputs, features::Feature, names, spec::BalancerSpec, tags};

/// Returns all warnings.
pub(crate) fn warnings(
    settings: &LoadBalancing,
    service: &ServiceView,
    spec: &BalancerSpec,
    cluster: &ClusterView,
    inputs: &Inputs,
) -> Vec<ServiceEvent> {
    let nodes = spec.selector.nodes(cluster, spec.family);
    let mut warnings: Vec<_> = ServiceEvent::duplicate_addresses(&service.id, &nodes).into_iter().collect();
    warnings.extend(IgnoredValue::event(&spec.ignored, &service.id));
    let mut say =
        |reason, message: String| warnings.push(ServiceEvent::warning(&service.id, reason, message));
    if let Some(balancer) = &inputs.balancer
        && let Some(former) = names::cluster_of(&balancer.name)
        && former != &*cluster.name
        && names::is_tag_of(&balancer.name, &service.id)
    {
        let (name, now) = (&balancer.name, &cluster.name);
        let text = "it is renamed, since the cluster is named";
        let text = format!("load balancer {name} has the cluster name {former}; {text} {now} now");
        say("LoadBalancerRename", text);
    }
    let given = service.annotation(annotations::LOAD_BALANCER_ID);
    // It may name a load balancer that this one replaced, or another project's.
    if let Some((balancer, given)) = inputs.balancer.as_ref().zip(given)
        && ![&*balancer.id, &balancer.name, ""].contains(&given)
    {
        let text = "is replaced, since this project has no such load balancer: the Service keeps";
        let (name, id) = (&balancer.name, &balancer.id);
        let text = format!("load-balancer-id {given} {text} {name} ({id})");
        say("LoadBalancerIDReplaced", text);
    }
    let can = inputs.can;
    if !can.methods.contains(&&*spec.method) {
        let text = unknown_method(&spec.method, can.methods);
        let text = format!("{text}; existing pools keep theirs, and new ones get the first of these");
        say("LoadBalancerLbMethodUnknown", text);
    }
    let grouped = can.ovn && settings.conf.manage_security_groups;
    if spec.ranges.given && !can.has(Feature::AllowedCidrs) && !grouped {
        let text = "source ranges are ignored: this Octavia or its provider cannot restrict clients";
        say("LoadBalancerSourceRangesIgnored", text.to_owned());
    }
    if !spec.zone.is_empty() && !can.has(Feature::AvailabilityZones) {
        let text = "is ignored: this Octavia or its provider does not support zones";
        let text = format!("availability zone {} {text}", spec.zone);
        say("LoadBalancerAvailabilityZonesIgnored", text);
    }
    let requests: Vec<_> = tags::requests(service).collect();
    if !requests.is_empty() && !can.has(Feature::Tags) {
        let text = "ignored, this Octavia has no tags (API version 2.5)";
        say("LoadBalancerTagsIgnored", format!("{}: {text}", requests.join(", ")));
    }
    if service.is_local() && spec.monitor.is_none() {
        let text = format!(
            "externalTrafficPolicy is Local, but members have no health monitor: connections through nodes without a \
             ready endpoint fail; set annotation {} to true, or create-monitor=true in [LoadBalancer]",
            annotations::ENABLE_HEALTH_MONITOR
        );
        say("LoadBalancerHealthMonitorMissing", text);
    }
    if service.requires_dual_stack {
        let text =
            "the Service requires two IP families; its load balancer has an address of the first one only";
        say("LoadBalancerSingleStack", text.to_owned());
    }
    if spec.internal {
        return warnings;
    }
    let found = inputs.each.get(&service.id);
    if spec.family == Some(IpFamily::V6) {
        let text = "an IPv6 load balancer has no floating IP; its own address is used";
        say("LoadBalancerFloatingIPSkipped", text.to_owned());
    } else if found.is_some_and(|found| found.floating_network.is_none()) {
        let text = "no external network was found, so the load balancer gets no new floating IP; name one with \
                    floating-network-id";
        say("LoadBalancerExternalNetworkSearchFailed", text.to_owned());
        let address = service.annotation(annotations::LOAD_BALANCER_ADDRESS);
        let vip = inputs.balancer.as_ref().map(|found| &*found.vip_address);
        if address.is_none() || address == vip {
            let text = "the load balancer is internal, because there is no external network";
            say("LoadBalancerForcedInternal", text.to_owned());
        }
    }
    warnings
}

/// The problem of a method that the provider does not have.
pub(crate) fn unknown_method(method: &str, methods: &[&str]) -> String {
    let methods = methods.join(", ");
    format!("Octavia's provider has no method {method:?}; write one of {methods}")
}
