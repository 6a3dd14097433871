//! The [`PartModel`] of OpenStack: decisions about parts, and the facts of parts.

use std::{collections::BTreeMap, time::Duration};

use ccm_core::{
    Error, ErrorKind,
    load_balancer::{
        ClusterSnapshot, ClusterView, Effects, Ingress, IpFamily, IpMode, ServiceId, ServiceView,
    },
    plan::{CheckResult, Fact, Orphan, PartModel, PartOutput, Parts, Plan, objects::Object},
};

use super::{
    annotations,
    desired::{self, Desired, Inputs},
    directory::Directory,
    features::METHODS,
    kinds::{self, Kind, ListenerKey},
    names,
    observe::{self, LoadBalancerSnapshot, Observed},
    orphans,
    part::{Facts, Key, Model, PartMember},
    plan,
    protocols::Proxy,
    spec::{self, BalancerSpec},
    steps::{Change, Reply},
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
    ) -> Option<&'a Object<Kind>> {
        let balancer = snapshot.balancer()?;
        let (id, name) = (&member.service.id, balancer.text("name"));
        // A load balancer with a former name of the cluster may belong to another cluster, so it must first be renamed.
        let own = names::load_balancer(&snapshot.cluster, id);
        let mut tags = kinds::texts(balancer, "tags");
        let another = name.starts_with(names::SERVICE_PREFIX)
            && !snapshot.ownership_tag.ownership(tags.clone()).allows_changes();
        let tagged = tags.any(|tag| tag == own);
        let owned = name == own || name == names::legacy_load_balancer(id);
        let refused = another || (!owned && spec::is_internal(&member.service, &self.settings));
        (!refused && (tagged || owned)).then_some(balancer)
    }

    fn facts_of_balancer(
        &self,
        member: &PartMember,
        balancer: &Object<Kind>,
        snapshot: &LoadBalancerSnapshot,
    ) -> Option<PartOutput<Facts>> {
        let service = &member.service;
        let internal = spec::is_internal(service, &self.settings);
        let named = !spec::floating_network(service, &self.settings).is_empty();
        let v6 = observe::is_v6(balancer) || service.ip_families.first() == Some(&IpFamily::V6);
        let address = match observe::floating(&snapshot.objects, balancer) {
            Some(floating) => floating.text("floating_ip_address"),
            // It first has to get a floating IP.
            None if !internal && !v6 && (named || snapshot.external) => return None,
            None => balancer.text("vip_address"),
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
            let record = ServiceTags::record(service, &present);
            let record = record.map(|(key, value)| (key.to_owned(), value));
            effects.annotations.extend(record);
        }
        if !address.is_empty() {
            let conf = &self.settings.conf;
            let suffix = Some(&*conf.ingress_hostname_suffix).filter(|_| conf.enable_ingress_hostname);
            let hostname = service.annotation(annotations::HOSTNAME);
            let is_proxy = service.annotation(annotations::PROXY_PROTOCOL).and_then(Proxy::parse);
            let is_proxy = is_proxy.unwrap_or_default() != Proxy::Off;
            effects.ingress = Some(vec![ingress(address, hostname, is_proxy, suffix)]);
        }
        Some(PartOutput {
            facts: Facts {
                vip_subnet: balancer.text("vip_subnet_id").to_owned(),
                group: None,
            },
            effects,
        })
    }
}

impl PartModel for Model {
    type Key = Key;
    type Directory = Directory;
    type Inputs = Inputs;
    type Facts = Facts;
    type Desired = Desired;
    type Observed = Observed;
    type Change = Change;
    type Reply = Reply;

    fn provider(&self) -> &'static str {
        crate::NAME
    }

    fn parts(&self, service: &ServiceView, cluster: &ClusterView, directory: &Directory) -> Parts<Key> {
        let group = names::security_group(&service.id);
        let mut named = vec![directory.balancer_of(service, cluster)];
        if self.settings.conf.manage_security_groups {
            named.extend([Key::Group(group.clone()), Key::NodePorts]);
        }
        let balancers = directory.tagged_for(&service.id, cluster).into_iter();
        let mut tagged: Vec<_> = balancers.map(|id| Key::Balancer(id.clone())).collect();
        if directory.groups.contains_key(&group) {
            tagged.extend([Key::Group(group), Key::NodePorts]);
        }
        Parts { named, tagged }
    }

    fn orphans(&self, world: &ClusterSnapshot, directory: &Directory) -> Vec<Orphan<Key>> {
        orphans::orphans(world, directory)
    }

    fn check(
        &self,
        key: &Key,
        members: &[PartMember],
        cluster: &ClusterView,
        inputs: &Inputs,
    ) -> CheckResult {
        let mut review = CheckResult::default();
        let balancer = matches!(key, Key::Balancer(_) | Key::New(_));
        let mut taken: BTreeMap<ListenerKey, ServiceId> = BTreeMap::new();
        let mut active: Vec<_> = PartMember::active(members).collect();
        active.sort_by_key(|member| &member.service.id);
        // A Service keeps its port when another one requests it, even if the Service has other problems.
        for member in PartMember::staying(members) {
            let tag = names::load_balancer(&cluster.name, &member.service.id);
            let owned = ListenerKey::all_of(&member.service);
            let owned = owned.filter(|listener_key| inputs.port_owners.get(listener_key) == Some(&tag));
            taken.extend(owned.map(|listener_key| (listener_key, member.service.id.clone())));
        }
        // Node ports need no feature, and their provider is not known.
        let can = (*key != Key::NodePorts).then_some(inputs.can);
        for member in active {
            let service = &member.service;
            let spec = match BalancerSpec::read(service, &self.settings, can) {
                Ok(spec) => spec,
                Err(error) => {
                    review.refused.push((service.id.clone(), error));
                    continue;
                }
            };
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
            let other = |listener_key| taken.get(listener_key).filter(|other| **other != service.id);
            let clash =
                listener_keys.iter().find_map(|listener_key| Some((listener_key, other(listener_key)?)));
            if let Some((listener_key, other)) = clash {
                let text =
                    format!("port {listener_key} of the load balancer is also requested by Service {other}");
                review.refuse(&service.id, text);
                continue;
            }
            let listener_keys = listener_keys.into_iter();
            taken.extend(listener_keys.map(|listener_key| (listener_key, service.id.clone())));
            let warnings = warnings::warnings(&self.settings, service, &spec, cluster, inputs);
            review.events.extend(warnings);
        }
        review
    }

    fn desired(&self, key: &Key, members: &[PartMember], cluster: &ClusterView, inputs: &Inputs) -> Desired {
        desired::desired(self, key, members, cluster, inputs)
    }

    fn missing(&self, key: &Key, members: &[PartMember], observed: &Observed) -> Option<String> {
        let Observed::Balancers(snapshot) = observed else {
            return None;
        };
        if snapshot.objects.of(Kind::Balancer).next().is_some() {
            return None;
        }
        match key {
            Key::Balancer(id) => {
                let was_known = |member: &PartMember| {
                    member.service.annotation(annotations::LOAD_BALANCER_ID) == Some(id)
                        || member.service.status_addresses().next().is_some()
                };
                members.iter().any(was_known).then(|| format!("load balancer {id}"))
            }
            Key::New(name) => {
                let was_known = |member: &PartMember| !member.service.ingress.is_empty();
                members.iter().any(was_known).then(|| format!("load balancer {name}"))
            }
            _ => None,
        }
    }

    fn pending(&self, _: &Key, observed: &Observed) -> Option<(Duration, String)> {
        let Observed::Balancers(snapshot) = observed else {
            return None;
        };
        let mut balancers = snapshot.objects.of(Kind::Balancer);
        let balancer = balancers.find(|balancer| observe::is_pending(balancer))?;
        let (title, id, status) = (balancer.title(), &balancer.id, observe::status(balancer));
        let cause = "another client or of a change before a restart";
        Some((PENDING, format!("{title} ({id}) is {status}, because of {cause}")))
    }

    fn degraded(&self, _: &Key, members: &[PartMember], observed: &Observed) -> Option<Error> {
        let Observed::Balancers(snapshot) = observed else {
            return None;
        };
        let balancer = snapshot.balancer()?;
        let staying = || PartMember::staying(members);
        let ownership = snapshot.ownership_tag.ownership(kinds::texts(balancer, "tags"));
        // A Service that leaves one of another cluster has nothing there.
        let is_used = staying().next().is_some() || ownership.allows_changes();
        (is_used && observe::is_broken(balancer)).then(|| {
            let (name, id) = (balancer.text("name"), &balancer.id);
            let is_own =
                |member: &PartMember| names::load_balancer(&snapshot.cluster, &member.service.id) == name;
            let is_known = |member: &PartMember| {
                let named = desired::named(&member.service);
                observe::may_be_known(&snapshot.objects, balancer, &named, &snapshot.ownership_tag)
            };
            let is_unused = ownership.allows_changes()
                && staying().any(is_own)
                && !staying().any(is_known);
            let text = if is_unused {
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
            Error::new(ErrorKind::Unavailable, text)
        })
    }

    fn plan(&self, desired: &Desired, observed: &Observed) -> Plan<Change> {
        plan::plan(desired, observed)
    }

    fn fold(&self, _: &Key, change: &Change, reply: Option<&Reply>, observed: &mut Observed) {
        change.fold(reply, observed);
    }

    fn rekey(&self, key: &Key, observed: &Observed) -> Option<Key> {
        let (Key::New(_) | Key::Balancer(_), Observed::Balancers(snapshot)) = (key, observed) else {
            return None;
        };
        let balancer = snapshot.balancer().filter(|balancer| !balancer.id.is_empty())?;
        Some(Key::Balancer(balancer.id.clone())).filter(|now| now != key)
    }

    fn facts(&self, key: &Key, member: &PartMember, observed: &Observed) -> Option<PartOutput<Facts>> {
        let nothing = PartOutput {
            facts: Facts::default(),
            effects: Effects::default(),
        };
        if member.leaves() {
            let mut output = nothing;
            if let Key::Balancer(id) = key {
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
            Observed::Balancers(snapshot) => {
                self.facts_of_balancer(member, self.balancer_of(member, snapshot)?, snapshot)
            }
            Observed::Groups(groups) => {
                let group = groups.all.first()?;
                let id = if group.id.is_empty() {
                    Fact::Later(format!("the id of {}", group.title()).into())
                } else {
                    Fact::Known(group.id.clone())
                };
                Some(PartOutput {
                    facts: Facts {
                        group: Some(id),
                        ..Facts::default()
                    },
                    ..nothing
                })
            }
            Observed::Ports(..) => Some(nothing),
        }
    }

    /// A load balancer's subnet is known as soon as Octavia accepts the creation. Its address is not: it may be a
    /// floating IP.
    fn early_facts(&self, _: &Key, member: &PartMember, observed: &Observed) -> Option<Facts> {
        let Observed::Balancers(snapshot) = observed else {
            return None;
        };
        let vip_subnet = self.balancer_of(member, snapshot)?.text("vip_subnet_id").to_owned();
        let group = None;
        (!vip_subnet.is_empty()).then_some(Facts { vip_subnet, group })
    }
}

/// The entry of `status.loadBalancer.ingress`. `hostname`: the annotation. `is_proxy`: members expect the PROXY
/// protocol, which nodes that bypass the load balancer do not speak. `suffix`: that of a host name in place of such an
/// address.
fn ingress(address: &str, hostname: Option<&str>, is_proxy: bool, suffix: Option<&str>) -> Ingress {
    let hostname = hostname.filter(|name| !name.is_empty()).map(str::to_owned);
    let suffix = suffix.filter(|_| is_proxy);
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
