//! The [`PartModel`] of OpenStack: decisions about parts, and the facts of parts.

use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

use ccm_core::{
    Error, ErrorKind,
    load_balancer::{
        ClusterSnapshot, ClusterView, Effects, FormerLoadBalancer, Ingress, IpFamily, IpMode, NodeLeftOut,
        Protocol, ServiceEvent, ServiceId, ServiceView,
    },
    plan::{CheckResult, Fact, Orphan, PartModel, PartOutput, Parts, Plan, objects::Object},
};

use super::{
    annotations,
    desired::{self, DesiredPart, PartInputs, ServiceInputs},
    directory::LoadBalancerDirectory,
    features::{Capabilities, Feature, METHODS},
    fields,
    kinds::{self, ListenerKey, ObjectKind},
    names,
    observe::{self, LoadBalancerSnapshot, ObservedPart},
    orphans,
    part::{Model, OpenStackPart, PartFacts, PartMember},
    plan,
    protocols::Proxy,
    settings::LoadBalancing,
    spec::{self, BalancerSpec},
    steps::{PartChange, PartReply},
    tags::{self, ServiceTags},
    warnings,
};

/// The first poll interval for a load balancer that others left pending. The engine increases it.
const PENDING: Duration = Duration::from_secs(2);

impl Model {
    /// The load balancer, if it serves the Service.
    fn balancer_of<'a>(
        &self,
        member: &PartMember,
        snapshot: &'a LoadBalancerSnapshot,
    ) -> Option<&'a Object<ObjectKind>> {
        let balancer = snapshot.balancer()?;
        let (id, name) = (&member.service.id, balancer.text(fields::NAME));
        // A load balancer with a former name of the cluster may belong to another cluster, so it must first be renamed.
        let own = names::load_balancer(&snapshot.cluster, id);
        let mut tags = kinds::texts(balancer, fields::TAGS);
        let another = name.starts_with(names::SERVICE_PREFIX)
            && !snapshot.ownership_tag.ownership(tags.clone()).allows_changes();
        let tagged = tags.any(|tag| tag == own);
        let owned = name == own || name == names::legacy_load_balancer(id);
        let is_exposed =
            spec::is_internal(&member.service, &self.settings) && snapshot.may_be_public(balancer);
        let refused = another || (!owned && is_exposed);
        (!refused && (tagged || owned)).then_some(balancer)
    }

    fn facts_of_balancer(
        &self,
        member: &PartMember,
        balancer: &Object<ObjectKind>,
        snapshot: &LoadBalancerSnapshot,
    ) -> Option<PartOutput<PartFacts>> {
        let service = &member.service;
        let internal = spec::is_internal(service, &self.settings);
        let named = !spec::floating_network(service, &self.settings).is_empty();
        let named_here = service.annotation(annotations::LOAD_BALANCER_ID) == Some(&*balancer.id);
        let shown = service.annotation(annotations::LOAD_BALANCER_ADDRESS).unwrap_or_default();
        let is_dual = !observe::additional_subnet(balancer).is_empty();
        let v6 = observe::is_v6(balancer) || (!is_dual && service.ip_families.first() == Some(&IpFamily::V6));
        let floating = observe::floating(&snapshot.objects, balancer);
        let address = match floating {
            Some(floating) => floating.text(fields::FLOATING_IP_ADDRESS),
            // The Service keeps its address while the floating IPs cannot be read.
            None if snapshot.lacks_floating_ips && named_here => shown,
            // It first has to get a floating IP.
            None if !internal
                && !v6
                && (named || snapshot.external)
                && !snapshot.serves_internal(balancer) =>
            {
                return None;
            }
            None => balancer.text(fields::VIP_ADDRESS),
        };
        let mut effects = Effects::default();
        let written = [
            (annotations::LOAD_BALANCER_ID, &*balancer.id),
            (annotations::LOAD_BALANCER_ADDRESS, address),
        ];
        for (key, value) in written.into_iter().filter(|(_, value)| !value.is_empty()) {
            effects.annotate(key, Some(value));
        }
        if snapshot.annotated.contains_key(&service.id) {
            let tag = names::load_balancer(&snapshot.cluster, &service.id);
            let present = observe::tags_of(&snapshot.objects, |tags| tags.contains(&tag));
            let record = ServiceTags::record(service, &present).map(|(key, value)| (key.to_owned(), value));
            effects.annotations.extend(record);
        }
        if !address.is_empty() {
            let suffix = if spec::shows_hostname(service, &self.settings) {
                Some(&*self.settings.conf.ingress_hostname_suffix)
            } else {
                None
            };
            let hostname = service.annotation(annotations::HOSTNAME);
            let proxy = service.annotation(annotations::PROXY_PROTOCOL).and_then(Proxy::parse);
            let has_tcp = service.ports.iter().any(|port| port.protocol == Protocol::Tcp);
            let is_proxy = has_tcp && proxy.unwrap_or_default() != Proxy::Off;
            let first = ingress(address, hostname, is_proxy, suffix);
            // One host name stands for all addresses.
            effects.ingress = Some(if !is_dual || first.hostname.is_some() {
                vec![first]
            } else {
                let keeps_shown = snapshot.lacks_floating_ips && named_here;
                let v4 = if floating.is_some() || keeps_shown {
                    Some(address)
                } else {
                    None
                };
                observe::virtual_addresses(balancer)
                    .map(|vip| if vip.contains(':') { vip } else { v4.unwrap_or(vip) })
                    .map(|address| ingress(address, None, is_proxy, None))
                    .collect()
            });
        }
        Some(PartOutput {
            facts: PartFacts {
                vip_subnet: balancer.text(fields::VIP_SUBNET_ID).to_owned(),
                additional_subnet: observe::additional_subnet(balancer).to_owned(),
                group: None,
            },
            effects,
        })
    }
}

impl PartModel for Model {
    type Key = OpenStackPart;
    type Directory = LoadBalancerDirectory;
    type Inputs = PartInputs;
    type Spec = ();
    type Facts = PartFacts;
    type Desired = DesiredPart;
    type Observed = ObservedPart;
    type Change = PartChange;
    type Reply = PartReply;

    fn provider(&self) -> &'static str {
        crate::NAME
    }

    fn selects_by_labels(&self, service: &ServiceView) -> bool {
        !spec::selector(service, &self.settings).is_empty()
    }

    fn spec(&self, _: &ServiceView, _: &ClusterView) {}

    fn parts(
        &self,
        service: &ServiceView,
        cluster: &ClusterView,
        directory: &LoadBalancerDirectory,
    ) -> Parts<OpenStackPart> {
        let group = names::security_group(&service.id);
        let mut named = vec![directory.balancer_of(service, cluster)];
        if self.settings.conf.manage_security_groups {
            named.extend([OpenStackPart::Group(group.clone()), OpenStackPart::NodePorts]);
        }
        let balancers = directory.tagged_for(&service.id, cluster).into_iter();
        let mut tagged: Vec<_> = balancers.map(|id| OpenStackPart::Balancer(id.clone())).collect();
        // While the security groups cannot be read, a Service that leaves may have one.
        let may_have_group = directory.lacks_groups
            && !service.wants_load_balancer()
            && self.finalizers(service).needs_cleanup(service);
        if may_have_group || directory.groups.contains_key(&group) {
            tagged.extend([OpenStackPart::Group(group), OpenStackPart::NodePorts]);
        }
        Parts { named, tagged }
    }

    fn former(
        &self,
        service: &ServiceView,
        cluster: &ClusterView,
        directory: &LoadBalancerDirectory,
    ) -> FormerLoadBalancer {
        directory.former_of(service, cluster, &BTreeSet::new())
    }

    fn orphans(
        &self,
        world: &ClusterSnapshot,
        directory: &LoadBalancerDirectory,
    ) -> Vec<Orphan<OpenStackPart>> {
        orphans::orphans(world, directory)
    }

    fn check(
        &self,
        key: &OpenStackPart,
        members: &[PartMember],
        cluster: &ClusterView,
        inputs: &PartInputs,
    ) -> CheckResult {
        let mut review = CheckResult::default();
        let balancer = matches!(key, OpenStackPart::Balancer(_) | OpenStackPart::New(_));
        let mut taken: BTreeMap<ListenerKey, ServiceId> = BTreeMap::new();
        let mut active: Vec<_> = PartMember::active(members).collect();
        active.sort_by_key(|member| &member.service.id);
        // A Service keeps its port when another one requests it, even if the Service has other problems.
        for member in PartMember::staying(members) {
            let tag = names::load_balancer(&cluster.name, &member.service.id);
            let owned = ListenerKey::all_of(&member.service)
                .filter(|listener_key| inputs.port_owners.get(listener_key) == Some(&tag));
            taken.extend(owned.map(|listener_key| (listener_key, member.service.id.clone())));
        }
        for member in active {
            let service = &member.service;
            let spec = match inputs.specs.get(&service.id) {
                Some(Ok(spec)) => spec,
                Some(Err(error)) => {
                    review.refused.push((service.id.clone(), error.clone()));
                    continue;
                }
                // It is active only if it was when the inputs were read.
                None => continue,
            };
            // Octavia reads an empty list as all clients.
            let found = inputs.each.get(&service.id);
            let families = found.map_or_else(|| spec.requested_families(), ServiceInputs::families);
            if balancer && let Some(reason) = lacks_dual_stack(service, spec, inputs) {
                review.refuse(&service.id, reason);
                continue;
            }
            if let (None, others) = spec.client_ranges(&families)
                && *key != OpenStackPart::NodePorts
                && restricts_clients(&self.settings, inputs.can)
            {
                let text = format!(
                    "source ranges {}: the load balancer has no address of this IP family, and without a range of its own \
                     family it would serve nobody; add one",
                    others.join(", ")
                );
                review.refuse(&service.id, text);
                continue;
            }
            if *key == OpenStackPart::NodePorts {
                let family = service.ip_families.first().copied();
                let without_port = inputs.without_port.get(&family).into_iter().flatten();
                let nodes: Vec<_> = without_port
                    .filter(|(node, _)| spec.selector.matches(&node.labels))
                    .map(|(node, reason)| NodeLeftOut::new(&*node.name, &**reason))
                    .collect();
                let what = "Nodes without the Service's security group, whose node ports may be closed";
                review.events.extend(ServiceEvent::nodes_left_out(&service.id, what, &nodes));
            }
            if !balancer {
                continue;
            }
            if inputs.balancer.is_none() && !METHODS.contains(&&*spec.method) {
                let text =
                    format!("lb-method: {}", warnings::unknown_method(&spec.method, inputs.can.methods));
                review.refuse(&service.id, text);
                continue;
            }
            let listener_keys: Vec<_> = ListenerKey::all_of(service).collect();
            let clash = listener_keys.iter().find_map(|listener_key| {
                let other = taken.get(listener_key).filter(|other| **other != service.id)?;
                Some((listener_key, other))
            });
            if let Some((listener_key, other)) = clash {
                let text =
                    format!("port {listener_key} of the load balancer is also requested by Service {other}");
                review.refuse(&service.id, text);
                continue;
            }
            let listener_keys = listener_keys.into_iter();
            taken.extend(listener_keys.map(|listener_key| (listener_key, service.id.clone())));
            let warnings = warnings::warnings(&self.settings, service, spec, cluster, inputs);
            review.events.extend(warnings);
            let address = service.annotation(annotations::LOAD_BALANCER_ADDRESS);
            if let Some(balancer) = inputs.balancer.as_deref()
                && !spec.internal
                && (address.is_none() || address == Some(&*balancer.vip_address))
                && let Some(internal) = PartMember::staying(members)
                    .filter(|other| spec::is_internal(&other.service, &self.settings))
                    .find(|other| {
                        let tag = names::load_balancer(&cluster.name, &other.service.id);
                        balancer.name == tag || balancer.tags.contains(&tag)
                    })
            {
                let text = format!(
                    "the load balancer gets no floating IP, because internal Service {} shares it; give one of them a load \
                     balancer of its own",
                    internal.service.id
                );
                review.events.push(ServiceEvent::warning(&service.id, "LoadBalancerForcedInternal", text));
            }
        }
        review
    }

    fn desired(
        &self,
        key: &OpenStackPart,
        members: &[PartMember],
        cluster: &ClusterView,
        inputs: &PartInputs,
    ) -> DesiredPart {
        desired::desired(self, key, members, cluster, inputs)
    }

    fn missing(
        &self,
        key: &OpenStackPart,
        members: &[PartMember],
        observed: &ObservedPart,
    ) -> Option<String> {
        let ObservedPart::Balancers(snapshot) = observed else {
            return None;
        };
        if snapshot.objects.of(ObjectKind::Balancer).next().is_some() {
            return None;
        }
        match key {
            OpenStackPart::Balancer(id) => {
                let was_known = members.iter().any(|member| {
                    member.service.annotation(annotations::LOAD_BALANCER_ID) == Some(id)
                        || member.service.status_addresses().next().is_some()
                });
                was_known.then(|| format!("load balancer {id}"))
            }
            OpenStackPart::New(name) => {
                let was_known = members.iter().any(|member| !member.service.ingress.is_empty());
                was_known.then(|| format!("load balancer {name}"))
            }
            _ => None,
        }
    }

    fn pending(&self, _: &OpenStackPart, observed: &ObservedPart) -> Option<(Duration, String)> {
        let ObservedPart::Balancers(snapshot) = observed else {
            return None;
        };
        let mut balancers = snapshot.objects.of(ObjectKind::Balancer);
        let balancer = balancers.find(|balancer| observe::is_pending(balancer))?;
        let (title, id, status) = (balancer.title(), &balancer.id, observe::status(balancer));
        let cause = "another client or of a change before a restart";
        Some((PENDING, format!("{title} ({id}) is {status}, because of {cause}")))
    }

    fn degraded(&self, _: &OpenStackPart, members: &[PartMember], observed: &ObservedPart) -> Option<Error> {
        let ObservedPart::Balancers(snapshot) = observed else {
            return None;
        };
        let balancer = snapshot.balancer()?;
        let staying = || PartMember::staying(members);
        let ownership = snapshot.ownership_tag.ownership(kinds::texts(balancer, fields::TAGS));
        // A Service that leaves one of another cluster has nothing there.
        let is_used = staying().next().is_some() || ownership.allows_changes();
        if !is_used || !observe::is_broken(balancer) {
            return None;
        }
        let (name, id) = (balancer.text(fields::NAME), &balancer.id);
        let is_named_by_service =
            staying().any(|member| names::load_balancer(&snapshot.cluster, &member.service.id) == name);
        let may_be_known = staying().any(|member| {
            let named = desired::named(&member.service);
            observe::may_be_known(&snapshot.objects, balancer, &named, &snapshot.ownership_tag)
        });
        let text = if ownership.allows_changes() && is_named_by_service && !may_be_known {
            format!(
                "load balancer {name} is in ERROR, and no Service has its address: its creation may have failed. It is \
                 not deleted, since this process did not create it; to have it created again, delete it (openstack \
                 loadbalancer delete --cascade {id})"
            )
        } else {
            format!(
                "load balancer {name} is in ERROR, and Octavia refuses changes of it: an administrator has to fail it over \
                 (openstack loadbalancer failover {id}), or write failover-in-error=true into [LoadBalancer]; it is not \
                 deleted, since it may still serve"
            )
        };
        Some(Error::new(ErrorKind::Unavailable, text))
    }

    fn plan(&self, desired: &DesiredPart, observed: &ObservedPart) -> Plan<PartChange> {
        plan::plan(desired, observed)
    }

    fn fold(
        &self,
        _: &OpenStackPart,
        change: &PartChange,
        reply: Option<&PartReply>,
        observed: &mut ObservedPart,
    ) {
        change.fold(reply, observed);
    }

    fn rekey(&self, key: &OpenStackPart, observed: &ObservedPart) -> Option<OpenStackPart> {
        let (OpenStackPart::New(_) | OpenStackPart::Balancer(_), ObservedPart::Balancers(snapshot)) =
            (key, observed)
        else {
            return None;
        };
        let balancer = snapshot.balancer().filter(|balancer| !balancer.id.is_empty())?;
        Some(OpenStackPart::Balancer(balancer.id.clone())).filter(|now| now != key)
    }

    fn facts(
        &self,
        key: &OpenStackPart,
        member: &PartMember,
        observed: &ObservedPart,
    ) -> Option<PartOutput<PartFacts>> {
        let nothing = PartOutput {
            facts: PartFacts::default(),
            effects: Effects::default(),
        };
        if member.leaves() {
            let mut output = nothing;
            if let OpenStackPart::Balancer(id) = key {
                // Only annotations that name this load balancer: the Service may have another one now.
                let given = member.service.annotation(annotations::LOAD_BALANCER_ID);
                if given == Some(id) && !member.service.wants_load_balancer() {
                    let written =
                        [annotations::LOAD_BALANCER_ID, annotations::LOAD_BALANCER_ADDRESS].into_iter();
                    for key in written.chain(tags::recorded(&member.service)) {
                        output.effects.annotate(key, None);
                    }
                }
            }
            return Some(output);
        }
        match observed {
            ObservedPart::Balancers(snapshot) => {
                self.facts_of_balancer(member, self.balancer_of(member, snapshot)?, snapshot)
            }
            ObservedPart::Groups(groups) => {
                let group = groups.all.first()?;
                let id = if group.id.is_empty() {
                    Fact::Later(format!("the id of {}", group.title()).into())
                } else {
                    Fact::Known(group.id.clone())
                };
                Some(PartOutput {
                    facts: PartFacts {
                        group: Some(id),
                        ..PartFacts::default()
                    },
                    ..nothing
                })
            }
            ObservedPart::Ports(..) => Some(nothing),
        }
    }

    /// A load balancer's subnet is known as soon as Octavia accepts the creation. Its address is not: it may be a
    /// floating IP.
    fn early_facts(
        &self,
        _: &OpenStackPart,
        member: &PartMember,
        observed: &ObservedPart,
    ) -> Option<PartFacts> {
        let ObservedPart::Balancers(snapshot) = observed else {
            return None;
        };
        let balancer = self.balancer_of(member, snapshot)?;
        let vip_subnet = balancer.text(fields::VIP_SUBNET_ID).to_owned();
        (!vip_subnet.is_empty()).then(|| PartFacts {
            vip_subnet,
            additional_subnet: observe::additional_subnet(balancer).to_owned(),
            group: None,
        })
    }
}

/// Why a Service that requires two IP families gets no new load balancer. An existing one stays, and a Warning says so.
fn lacks_dual_stack(service: &ServiceView, spec: &BalancerSpec, inputs: &PartInputs) -> Option<String> {
    let found = inputs.each.get(&service.id)?;
    let is_new = inputs.balancer.is_none() && spec.second_family.is_some() && found.second.is_none();
    if !is_new || !service.requires_dual_stack {
        return None;
    }
    Some(if !inputs.can.has(Feature::AdditionalVips) {
        "ipFamilyPolicy RequireDualStack needs version 2.26 of Octavia's API, and a provider with additional virtual addresses (not \
         ovn)"
            .to_owned()
    } else if !spec.vip_port.is_empty() {
        format!("ipFamilyPolicy RequireDualStack cannot be used together with {}", annotations::PORT_ID)
    } else {
        "ipFamilyPolicy RequireDualStack: the load balancer's network has no subnet of the second IP family"
            .to_owned()
    })
}

/// Whether source ranges have an effect: in listeners or, with the provider ovn, in security groups.
pub(crate) fn restricts_clients(settings: &LoadBalancing, can: Capabilities) -> bool {
    can.has(Feature::AllowedCidrs) || (can.ovn && settings.conf.manage_security_groups)
}

/// The entry of `status.loadBalancer.ingress`. `hostname`: the annotation. `is_proxy`: members expect the PROXY
/// protocol, which nodes that bypass the load balancer do not speak. `suffix`: that of a host name in place of such an
/// address.
fn ingress(address: &str, hostname: Option<&str>, is_proxy: bool, suffix: Option<&str>) -> Ingress {
    let hostname = hostname.filter(|name| !name.is_empty()).map(str::to_owned);
    let suffix = if is_proxy { suffix } else { None };
    match hostname.or_else(|| Some(format!("{address}.{}", suffix?))) {
        Some(hostname) => Ingress::name(&hostname),
        None => Ingress::address(address, if is_proxy { IpMode::Proxy } else { IpMode::Vip }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_host_name_hides_the_address() {
        let show = |hostname, proxy, enabled: bool| {
            let ingress = ingress("192.0.2.1", hostname, proxy, Some("nip.io").filter(|_| enabled));
            let (ip, name) = (ingress.ip.as_deref(), ingress.hostname.as_deref());
            format!("{} {:?}", ip.or(name).unwrap_or_default(), ingress.ip_mode)
        };
        assert_eq!(show(None, false, false), "192.0.2.1 Some(Vip)");
        assert_eq!(show(None, false, true), "192.0.2.1 Some(Vip)");
        assert_eq!(show(None, true, false), "192.0.2.1 Some(Proxy)");
        assert_eq!(show(None, true, true), "192.0.2.1.nip.io None");
        assert_eq!(show(Some("web.example"), true, true), "web.example None");
        assert_eq!(show(Some("web.example"), false, false), "web.example None");
        assert_eq!(show(Some(""), false, false), "192.0.2.1 Some(Vip)");
    }
}
