//! Warnings about a Service that is served, but not exactly as requested.

use ccm_core::load_balancer::{
    ClusterView, IgnoredValue, IpFamily, NodeLeftOut, Protocol, ServiceEvent, ServiceView,
};

use super::settings::LoadBalancing;
use super::{
    annotations,
    desired::{PartInputs, ServiceInputs},
    features::Feature,
    model::restricts_clients,
    names,
    protocols::Proxy,
    spec::BalancerSpec,
    tags,
};

/// Returns all warnings.
pub(crate) fn warnings(
    settings: &LoadBalancing,
    service: &ServiceView,
    spec: &BalancerSpec,
    cluster: &ClusterView,
    inputs: &PartInputs,
) -> Vec<ServiceEvent> {
    let nodes = spec.selector.nodes(cluster, spec.family);
    let mut warnings: Vec<_> = ServiceEvent::duplicate_addresses(&service.id, &nodes).into_iter().collect();
    warnings.extend(nodes_without_address(service, spec, cluster));
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
    let found = inputs.each.get(&service.id);
    let vip_family = found.map_or(spec.family, |found| found.vip_family);
    if let (Some(vip), Some(family)) = (vip_family, spec.family)
        && vip != family
    {
        let names = |family| match family {
            IpFamily::V4 => "IPv4",
            IpFamily::V6 => "IPv6",
        };
        let text = format!(
            "the Service's first IP family is {}, and the load balancer has an {} address, which never changes; name a subnet of \
             that family with subnet-id, and create the Service again",
            names(family),
            names(vip)
        );
        say("LoadBalancerAddressFamily", text);
    }
    let families = found.map_or_else(|| spec.requested_families(), ServiceInputs::families);
    let (_, others) = spec.client_ranges(&families);
    if spec.ranges.given && !restricts_clients(settings, can) {
        let text = "source ranges are ignored: this Octavia or its provider cannot restrict clients";
        say("LoadBalancerSourceRangesIgnored", text.to_owned());
    } else if !others.is_empty() {
        let text = format!(
            "source ranges {} are left out: the load balancer has no address of their IP family",
            others.join(", ")
        );
        say("LoadBalancerSourceRangesLeftOut", text);
    }
    let without_proxy = service.ports.iter().filter(|port| port.protocol != Protocol::Tcp);
    let without_proxy: Vec<_> =
        without_proxy.map(|port| format!("{}/{}", port.port, port.protocol.as_str())).collect();
    if spec.proxy != Proxy::Off && !without_proxy.is_empty() {
        let text = format!(
            "{} is only for TCP: Pods do not get the clients' addresses at {}",
            annotations::PROXY_PROTOCOL,
            without_proxy.join(", ")
        );
        say("LoadBalancerProxyProtocolIgnored", text);
    }
    if let Some(former) = found.and_then(|found| found.replaced_floating.as_ref()) {
        let text = format!(
            "floating IP {former} is replaced by {} of loadBalancerIP; {former} is not deleted, and stays in the project",
            service.load_balancer_ip
        );
        say("LoadBalancerFloatingIPReplaced", text);
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
    let second = found.and_then(|found| found.second.as_ref());
    let is_single = match found {
        Some(found) => found.second.is_none(),
        // Without discovery, the features decide.
        None => spec.second_family.is_none() || !can.has(Feature::AdditionalVips),
    };
    if is_single && (service.requires_dual_stack || spec.second_family.is_some()) {
        let verb = if service.requires_dual_stack {
            "requires"
        } else {
            "prefers"
        };
        let mut text = format!(
            "the Service {verb} two IP families; its load balancer has an address of the first one only"
        );
        if inputs.balancer.is_some() && can.has(Feature::AdditionalVips) {
            text += ", and gets no other: delete the Service and create it again to get both";
        }
        say("LoadBalancerSingleStack", text);
    }
    if second.is_some() && !without_proxy.is_empty() {
        let text = format!(
            "{} are served at the address of the first IP family only, because Octavia does not mix families there",
            without_proxy.join(", ")
        );
        say("LoadBalancerSingleStackPorts", text);
    }
    if spec.internal {
        return warnings;
    }
    let has_v4 = second.is_some_and(|second| second.family == IpFamily::V4);
    if spec.family == Some(IpFamily::V6) && !has_v4 {
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

/// The Warning about nodes that are no members, because they have no address of the Service's family. A node without a provider ID is
/// new and may get one.
fn nodes_without_address(
    service: &ServiceView,
    spec: &BalancerSpec,
    cluster: &ClusterView,
) -> Option<ServiceEvent> {
    let reason = match spec.family {
        Some(IpFamily::V4) => "has no IPv4 address",
        Some(IpFamily::V6) => "has no IPv6 address",
        None => "has no address",
    };
    let nodes: Vec<_> = cluster
        .nodes
        .eligible()
        .filter(|node| node.view.provider_id.is_some() && spec.selector.matches(&node.view.labels))
        .filter(|node| node.address(spec.family).is_none())
        .map(|node| NodeLeftOut::new(&*node.view.name, reason))
        .collect();
    ServiceEvent::nodes_left_out(&service.id, "Nodes left out of the load balancer", &nodes)
}

/// The problem of a method that the provider does not have.
pub(crate) fn unknown_method(method: &str, methods: &[&str]) -> String {
    let methods = methods.join(", ");
    format!("Octavia's provider has no method {method:?}; write one of {methods}")
}
