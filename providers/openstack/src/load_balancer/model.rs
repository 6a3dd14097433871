//! The [`PartModel`] of OpenStack: who has to do with which part, and what parts say.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
    time::Duration,
};

use ccm_core::{
    Error, ErrorKind,
    load_balancer::{Claim, ClusterView, Effects, IpFamily, Marks, Note, ServiceId, ServiceView},
    plan::{Fact, Member, PartModel, Parts, Plan, Review, Standing, Stray, Told},
};

use super::{
    annotations::{self as note, Reader},
    desired::{self, Desired, Inputs},
    features::Feature,
    fold::{self, Reply},
    ingress::{self, HostnameRule},
    key::Key,
    names,
    observe::{Observed, Sight, Slot, Tree},
    plan,
    protocols::Proxy,
    steps::Step,
    wanted::{self, Wanted},
};
use crate::config::LoadBalancing;

/// How soon to look again at a load balancer at which somebody else is at work.
const SETTLING: Duration = Duration::from_secs(2);

/// The decisions.
#[derive(Clone, Debug)]
pub(crate) struct Model {
    pub(crate) settings: Arc<LoadBalancing>,
}

/// What the listings show.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Directory {
    /// Load balancers that are there to stay, by id.
    pub(crate) balancers: BTreeMap<String, Entry>,
    /// Names of the security groups that were made for Services.
    pub(crate) groups: BTreeSet<String>,
    pub(crate) marks: Marks,
}

/// A load balancer in the [`Directory`].
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Entry {
    pub(crate) name: String,
    pub(crate) tags: Vec<String>,
}

/// What parts tell later ones.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Facts {
    /// From a load balancer: where its virtual address is.
    pub(crate) vip_subnet: String,
    /// From a security group: its id.
    pub(crate) group: Option<Fact<String>>,
}

impl Directory {
    fn named<'a>(&'a self, name: &'a str) -> impl Iterator<Item = &'a String> {
        let all = self.balancers.iter();
        all.filter(move |(_, entry)| entry.name == name).map(|(id, _)| id)
    }

    /// The only one with this name.
    fn only(&self, name: &str) -> Option<Key> {
        let mut ids = self.named(name);
        let id = ids.next()?;
        ids.next().is_none().then(|| Key::Balancer(id.clone()))
    }
}

impl Model {
    fn balancer_key(&self, service: &ServiceView, cluster: &ClusterView, directory: &Directory) -> Key {
        let name = names::load_balancer(&cluster.name, &service.id);
        let by_name = || {
            if directory.named(&name).next().is_some() {
                return directory.only(&name);
            }
            directory.only(&names::legacy_load_balancer(&service.id))
        };
        let given = service.annotation(note::LOAD_BALANCER_ID);
        let Some(given) = given.filter(|given| !given.is_empty()) else {
            return by_name().unwrap_or(Key::New(name));
        };
        if directory.balancers.contains_key(given) {
            return Key::Balancer(given.to_owned());
        }
        // The id may be that of one in whose place we made another.
        let replaced = service
            .annotation(note::LOAD_BALANCER_ADDRESS)
            .and_then(|_| by_name());
        directory
            .only(given)
            .or(replaced)
            .unwrap_or_else(|| Key::Balancer(given.to_owned()))
    }

    fn notes(&self, service: &ServiceView, wanted: &Wanted, inputs: &Inputs, notes: &mut Vec<Note>) {
        let mut say = |reason, message: String| {
            notes.push(Note {
                service: service.id.clone(),
                reason,
                message,
                warning: true,
            });
        };
        if !wanted.tolerated.is_empty() {
            let all: Vec<_> = wanted.tolerated.iter().map(ToString::to_string).collect();
            say("LoadBalancerAnnotationIgnored", all.join("; "));
        }
        let can = inputs.can;
        let grouped = can.ovn && self.settings.conf.manage_security_groups;
        if wanted.ranges.given && !can.has(Feature::AllowedCidrs) && !grouped {
            say(
                "LoadBalancerSourceRangesIgnored",
                "source ranges are ignored: this Octavia or its provider can not restrict clients".to_owned(),
            );
        }
        if !wanted.zone.is_empty() && !can.has(Feature::AvailabilityZones) {
            say(
                "LoadBalancerAvailabilityZonesIgnored",
                format!(
                    "availability zone {} is ignored: this Octavia or its provider has none",
                    wanted.zone
                ),
            );
        }
        if service.requires_dual_stack {
            say(
                "LoadBalancerSingleStack",
                "the Service requires two IP families; its load balancer has an address of the first one only"
                    .to_owned(),
            );
        }
        if wanted.internal {
            return;
        }
        if wanted.family == Some(IpFamily::V6) {
            say(
                "LoadBalancerFloatingIPSkipped",
                "an IPv6 load balancer has no floating address; its own address is used".to_owned(),
            );
        } else if inputs
            .each
            .get(&service.id)
            .is_some_and(|found| found.floating_network.is_none())
        {
            say(
                "LoadBalancerExternalNetworkSearchFailed",
                "no external network was found, so that the load balancer can have no new floating address; name \
                 one with floating-network-id"
                    .to_owned(),
            );
        }
    }

    fn facts_of_balancer(&self, member: &Member<Self>, tree: &Tree, sight: &Sight) -> Option<Told<Facts>> {
        let service = &member.service;
        let balancer = &tree.balancer;
        let internal = wanted::is_internal(service, &self.settings);
        let named = !wanted::floating_network(service, &self.settings).is_empty();
        let v6 = tree.is_v6() || service.ip_families.first() == Some(&IpFamily::V6);
        let address = match &tree.floating {
            Some(floating) => &floating.floating_ip_address,
            // It has to get a floating address first.
            None if !internal && !v6 && (named || sight.external) => return None,
            None => &balancer.vip_address,
        };
        let mut effects = Effects::default();
        let mut set = |key: &str, value: &str| {
            if !value.is_empty() {
                effects.annotations.insert(key.to_owned(), Some(value.to_owned()));
            }
        };
        set(note::LOAD_BALANCER_ID, &balancer.id);
        set(note::LOAD_BALANCER_ADDRESS, address);
        if !address.is_empty() {
            let conf = &self.settings.conf;
            let rule = HostnameRule {
                enabled: conf.enable_ingress_hostname,
                suffix: conf.ingress_hostname_suffix.clone(),
            };
            let proxy = Reader::new(&service.annotations).proxy() != Proxy::Off;
            let hostname = service.annotation(note::HOSTNAME);
            effects.ingress = Some(vec![ingress::ingress(address, hostname, proxy, &rule)]);
        }
        Some(Told {
            facts: Facts {
                vip_subnet: balancer.vip_subnet_id.clone(),
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
    type Step = Step;
    type Reply = Reply;

    fn provider(&self) -> &'static str {
        crate::NAME
    }

    fn claims(&self, service: &ServiceView) -> Claim {
        if service.class.is_some() {
            Claim::NotOurs
        } else {
            Claim::Ours
        }
    }

    fn kind(&self, key: &Key) -> &'static str {
        match key {
            Key::Balancer(_) | Key::New(_) => "lb",
            Key::Group(_) => "sg",
            Key::NodePorts => "node-ports",
        }
    }

    fn parts(&self, service: &ServiceView, cluster: &ClusterView, directory: &Directory) -> Parts<Key> {
        let group = names::security_group(&service.id);
        let tag = names::load_balancer(&cluster.name, &service.id);
        let legacy = names::legacy_load_balancer(&service.id);
        let mut named = vec![self.balancer_key(service, cluster, directory)];
        if self.settings.conf.manage_security_groups {
            named.extend([Key::Group(group.clone()), Key::NodePorts]);
        }
        let balancers = directory.balancers.iter();
        let mut marked: Vec<_> = balancers
            .filter(|(_, entry)| entry.name == tag || entry.name == legacy || entry.tags.contains(&tag))
            .map(|(id, _)| Key::Balancer(id.clone()))
            .collect();
        if directory.groups.contains(&group) {
            marked.extend([Key::Group(group), Key::NodePorts]);
        }
        Parts { named, marked }
    }

    fn strays(&self, services: &[Arc<ServiceView>], directory: &Directory) -> Vec<Stray<Key>> {
        let known: BTreeSet<_> = services
            .iter()
            .filter_map(|service| service.annotation(note::LOAD_BALANCER_ID))
            .collect();
        let balancers = directory.balancers.iter().filter(|(id, entry)| {
            let mut tags = entry
                .tags
                .iter()
                .filter(|tag| names::is_service_tag(tag))
                .peekable();
            let ours = directory.marks.judge(entry.tags.iter().map(String::as_str));
            tags.peek().is_some()
                && ours.allows_sweeping()
                && !known.contains(id.as_str())
                && tags.all(|tag| {
                    let cluster = names::cluster_of(tag).unwrap_or_default();
                    !services
                        .iter()
                        .any(|service| names::load_balancer(cluster, &service.id) == *tag)
                })
        });
        balancers
            .map(|(id, entry)| Stray {
                key: Key::Balancer(id.clone()),
                what: format!("load balancer {}", entry.name),
                ours: entry.name.starts_with(names::SERVICE_PREFIX),
            })
            .collect()
    }

    fn check(&self, key: &Key, members: &[Member<Self>], _: &ClusterView, inputs: &Inputs) -> Review {
        let mut review = Review::default();
        let balancer = matches!(key, Key::Balancer(_) | Key::New(_));
        let mut taken: BTreeMap<Slot, ServiceId> = BTreeMap::new();
        let mut joined: Vec<_> = members
            .iter()
            .filter(|member| member.standing == Standing::Joined)
            .collect();
        joined.sort_by_key(|member| &member.service.id);
        for member in joined {
            let service = &member.service;
            let wanted = match Wanted::read(service, &self.settings, Some(inputs.can)) {
                Ok(wanted) => wanted,
                Err(error) => {
                    review.refused.push((service.id.clone(), error));
                    continue;
                }
            };
            if !balancer {
                continue;
            }
            let slots: Vec<_> = service
                .ports
                .iter()
                .map(|port| Slot {
                    transport: port.protocol,
                    port: port.port,
                })
                .collect();
            let clash = slots.iter().find_map(|slot| Some((slot, taken.get(slot)?)));
            if let Some((slot, other)) = clash {
                let text = format!("port {slot} of the load balancer is wanted by Service {other}, too");
                review
                    .refused
                    .push((service.id.clone(), Error::new(ErrorKind::InvalidSpec, text)));
                continue;
            }
            taken.extend(slots.into_iter().map(|slot| (slot, service.id.clone())));
            self.notes(service, &wanted, inputs, &mut review.notes);
        }
        review
    }

    fn desired(
        &self,
        key: &Key,
        members: &[Member<Self>],
        cluster: &ClusterView,
        inputs: &Inputs,
    ) -> Desired {
        desired::desired(self, key, members, cluster, inputs)
    }

    fn missing(&self, key: &Key, members: &[Member<Self>], observed: &Observed) -> Option<String> {
        let Observed::Balancers(sight) = observed else {
            return None;
        };
        if !sight.trees.is_empty() {
            return None;
        }
        match key {
            Key::Balancer(id) => {
                let knew = |member: &Member<Self>| {
                    member.service.annotation(note::LOAD_BALANCER_ID) == Some(id)
                        || member.service.status_addresses().next().is_some()
                };
                members.iter().any(knew).then(|| format!("load balancer {id}"))
            }
            Key::New(name) => {
                let knew = |member: &Member<Self>| !member.service.ingress.is_empty();
                members.iter().any(knew).then(|| format!("load balancer {name}"))
            }
            _ => None,
        }
    }

    fn settling(&self, _: &Key, observed: &Observed) -> Option<(Duration, String)> {
        let Observed::Balancers(sight) = observed else {
            return None;
        };
        let tree = sight
            .trees
            .iter()
            .find(|tree| tree.balancer.provisioning_status.is_pending())?;
        let balancer = &tree.balancer;
        Some((
            SETTLING,
            format!(
                "load balancer {} is {:?}",
                balancer.name, balancer.provisioning_status
            ),
        ))
    }

    fn plan(&self, desired: &Desired, observed: &Observed) -> Plan<Step> {
        plan::plan(desired, observed)
    }

    fn fold(&self, _: &Key, step: &Step, reply: Option<&Reply>, observed: &mut Observed) {
        fold::fold(step, reply, observed);
    }

    fn rekey(&self, key: &Key, observed: &Observed) -> Option<Key> {
        let (Key::New(_) | Key::Balancer(_), Observed::Balancers(sight)) = (key, observed) else {
            return None;
        };
        match sight.trees.as_slice() {
            [tree] if !tree.balancer.id.is_empty() => {
                let now = Key::Balancer(tree.balancer.id.clone());
                (now != *key).then_some(now)
            }
            _ => None,
        }
    }

    fn facts(&self, key: &Key, member: &Member<Self>, observed: &Observed) -> Option<Told<Facts>> {
        let nothing = Told {
            facts: Facts::default(),
            effects: Effects::default(),
        };
        if member.standing == Standing::Leaving {
            let mut told = nothing;
            if let Key::Balancer(id) = key {
                // Only what speaks of this one: it may have another one now.
                let given = member.service.annotation(note::LOAD_BALANCER_ID);
                if given == Some(id) && !member.service.wants_load_balancer() {
                    for key in [note::LOAD_BALANCER_ID, note::LOAD_BALANCER_ADDRESS] {
                        told.effects.annotations.insert(key.to_owned(), None);
                    }
                }
            }
            return Some(told);
        }
        match observed {
            Observed::Balancers(sight) => {
                let [tree] = sight.trees.as_slice() else {
                    return None;
                };
                let balancer = &tree.balancer;
                let id = &member.service.id;
                let tagged = balancer.tags.iter().any(|tag| is_tag_of(tag, id));
                let owned = is_tag_of(&balancer.name, id) || balancer.name == names::legacy_load_balancer(id);
                let tags = balancer.tags.iter().map(String::as_str);
                let another = balancer.name.starts_with(names::SERVICE_PREFIX)
                    && !sight.marks.judge(tags).allows_changes();
                let refused = another || (!owned && wanted::is_internal(&member.service, &self.settings));
                if refused || (!tagged && !owned) {
                    return None;
                }
                self.facts_of_balancer(member, tree, sight)
            }
            Observed::Groups(groups) => {
                let group = groups.first()?;
                let id = if group.id.is_empty() {
                    Fact::Later(format!("the id of security group {}", group.name).into())
                } else {
                    Fact::Known(group.id.clone())
                };
                Some(Told {
                    facts: Facts {
                        group: Some(id),
                        ..Facts::default()
                    },
                    ..nothing
                })
            }
            Observed::Ports(_) => Some(nothing),
        }
    }
}

/// Whether this is the tag of the Service in whatever cluster's name.
fn is_tag_of(tag: &str, id: &ServiceId) -> bool {
    names::is_service_tag(tag)
        && names::cluster_of(tag).is_some_and(|cluster| names::load_balancer(cluster, id) == tag)
}
