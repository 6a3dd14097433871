//! The observed state of parts. An ID or address that is not known yet is an empty text.

use std::collections::{BTreeMap, BTreeSet};

use ccm_core::load_balancer::{Ownership, OwnershipTag};
use ccm_core::plan::objects::{Object, Objects};

use super::{
    groups::Group,
    kinds::{Kind, tags},
    names,
    tags::{Annotated, ServiceTags},
};
use crate::instances::records::Port;

/// The observed state of a part.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Observed {
    /// The load balancers with the ID or name of the part; usually one.
    Balancers(LoadBalancerSnapshot),
    /// The security groups with the name of the part.
    Groups(Objects<Group>),
    /// The ports of nodes, by ID, and the IDs of members' security groups that no longer exist.
    Ports(BTreeMap<String, Port>, BTreeSet<String>),
}

/// The load balancers of a part.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct LoadBalancerSnapshot {
    /// The load balancer, the objects below it, its floating IP and those that members name. If several load balancers
    /// have the name, only these and their floating IPs.
    pub(crate) objects: Objects<Kind>,
    /// This process created it and has not observed it as `ACTIVE` since.
    pub(crate) is_being_created: bool,
    /// This process deleted it.
    pub(crate) was_deleted: bool,
    /// Whether an external network exists for Services that name none.
    pub(crate) external: bool,
    /// The cluster's name.
    pub(crate) cluster: String,
    /// This cluster's ownership tag.
    pub(crate) ownership_tag: OwnershipTag,
    /// Tags that came from the members' annotations.
    pub(crate) annotated: Annotated,
}

impl LoadBalancerSnapshot {
    /// The load balancer, if there is exactly one.
    pub(crate) fn balancer(&self) -> Option<&Object<Kind>> {
        let mut all = self.objects.of(Kind::Balancer);
        all.next().filter(|_| all.next().is_none())
    }
}

/// The floating IP of the load balancer's virtual address.
pub(crate) fn floating<'a>(objects: &'a Objects<Kind>, balancer: &Object<Kind>) -> Option<&'a Object<Kind>> {
    let port = balancer.text("vip_port_id");
    let is_at = |floating: &&Object<Kind>| !port.is_empty() && floating.text("port_id") == port;
    objects.of(Kind::Floating).find(is_at)
}

/// The ownership of a floating IP, from its description.
pub(crate) fn ownership_of_floating(floating: &Object<Kind>, ownership_tag: &OwnershipTag) -> Ownership {
    ownership_tag.ownership(names::tag_of_floating_ip(floating.text("description")))
}

/// Octavia's provisioning status of an object.
pub(crate) fn status(object: &Object<Kind>) -> &str {
    object.text("provisioning_status")
}

/// Whether Octavia is working on the object and refuses changes of it.
pub(crate) fn is_pending(object: &Object<Kind>) -> bool {
    status(object).starts_with("PENDING_")
}

/// Whether the last change of the object failed.
pub(crate) fn is_broken(object: &Object<Kind>) -> bool {
    status(object) == "ERROR"
}

/// Whether the load balancer's virtual address is an IPv6 address.
pub(crate) fn is_v6(balancer: &Object<Kind>) -> bool {
    balancer.text("vip_address").contains(':')
}

/// Whether clients may know an address of the load balancer. `named`: the IDs and addresses that its Service names. A
/// floating IP that this cluster created is known only if the Service names it; others may be known in any case.
pub(crate) fn may_be_known(
    objects: &Objects<Kind>,
    balancer: &Object<Kind>,
    named: &[String],
    ownership_tag: &OwnershipTag,
) -> bool {
    let has = |text: &str| !text.is_empty() && named.iter().any(|named| named == text);
    let floating = floating(objects, balancer);
    has(&balancer.id)
        || has(balancer.text("vip_address"))
        || floating.is_some_and(|floating| {
            has(floating.text("floating_ip_address"))
                || ownership_of_floating(floating, ownership_tag) != Ownership::Ours
        })
}

/// Whether no listener or pool of the load balancer was ever active.
pub(crate) fn was_never_active(objects: &Objects<Kind>) -> bool {
    let below = objects.all.iter().filter(|object| object.parent.is_some());
    let mut states = below.filter(|object| matches!(object.kind, Kind::Listener | Kind::Pool));
    objects.of(Kind::Listener).next().is_some() && states.all(|object| status(object) == "PENDING_CREATE")
}

/// The tags of the load balancer, of the listeners whose tags `meant` accepts, and of their pools.
pub(crate) fn tags_of(objects: &Objects<Kind>, meant: impl Fn(&[String]) -> bool) -> ServiceTags {
    let mut all = ServiceTags::default();
    all.load_balancer.extend(objects.of(Kind::Balancer).flat_map(tags));
    for listener in objects.of(Kind::Listener) {
        let listener_tags = tags(listener);
        if meant(&listener_tags) {
            all.listener.extend(listener_tags);
            let pool = objects.get(Kind::Pool, &listener.key);
            all.pool.extend(pool.into_iter().flat_map(tags));
        }
    }
    all
}
