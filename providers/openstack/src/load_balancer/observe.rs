//! The observed state of parts. An ID or address that is not known yet is an empty text.

use std::collections::{BTreeMap, BTreeSet};

use ccm_core::load_balancer::{Ownership, OwnershipTag};
use ccm_core::plan::objects::{Object, Objects};

use serde_json::Value;

use super::{
    fields,
    groups::Group,
    kinds::{ADDITIONAL_VIPS, ObjectKind, tags},
    names,
    tags::{Annotated, ServiceTags},
};
use crate::instances::records::Port;

/// The observed state of a part.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum ObservedPart {
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
    pub(crate) objects: Objects<ObjectKind>,
    /// This process created it and has not observed it as `ACTIVE` since.
    pub(crate) is_being_created: bool,
    /// This process deleted it.
    pub(crate) was_deleted: bool,
    /// Whether an external network exists for Services that name none.
    pub(crate) external: bool,
    /// The tags of internal Services that stay.
    pub(crate) internal: Vec<String>,
    /// Whether floating IPs could not be read. Services that may have one are frozen then.
    pub(crate) lacks_floating_ips: bool,
    /// The cluster's name.
    pub(crate) cluster: String,
    /// This cluster's ownership tag.
    pub(crate) ownership_tag: OwnershipTag,
    /// Tags that came from the members' annotations.
    pub(crate) annotated: Annotated,
}

impl LoadBalancerSnapshot {
    /// The load balancer, if there is exactly one.
    pub(crate) fn balancer(&self) -> Option<&Object<ObjectKind>> {
        let mut all = self.objects.of(ObjectKind::Balancer);
        match (all.next(), all.next()) {
            (Some(balancer), None) => Some(balancer),
            _ => None,
        }
    }

    /// Whether an internal Service uses the load balancer.
    pub(crate) fn serves_internal(&self, balancer: &Object<ObjectKind>) -> bool {
        let name = balancer.text(fields::NAME);
        let tags = tags(balancer);
        self.internal.iter().any(|tag| tag == name || tags.contains(tag))
    }

    /// Whether the load balancer has a floating IP, as far as that is known.
    pub(crate) fn may_be_public(&self, balancer: &Object<ObjectKind>) -> bool {
        self.lacks_floating_ips || floating(&self.objects, balancer).is_some()
    }
}

/// The floating IP of the load balancer's virtual address.
pub(crate) fn floating<'a>(
    objects: &'a Objects<ObjectKind>,
    balancer: &Object<ObjectKind>,
) -> Option<&'a Object<ObjectKind>> {
    let port = balancer.text(fields::VIP_PORT_ID);
    objects
        .of(ObjectKind::Floating)
        .find(|floating: &&Object<ObjectKind>| !port.is_empty() && floating.text(fields::PORT_ID) == port)
}

/// The ownership of a floating IP, from its description.
pub(crate) fn ownership_of_floating(
    floating: &Object<ObjectKind>,
    ownership_tag: &OwnershipTag,
) -> Ownership {
    ownership_tag.ownership(names::tag_of_floating_ip(floating.text(fields::DESCRIPTION)))
}

/// Octavia's provisioning status of an object.
pub(crate) fn status(object: &Object<ObjectKind>) -> &str {
    object.text(fields::PROVISIONING_STATUS)
}

/// Whether Octavia is working on the object and refuses changes of it.
pub(crate) fn is_pending(object: &Object<ObjectKind>) -> bool {
    status(object).starts_with("PENDING_")
}

/// Whether the last change of the object failed.
pub(crate) fn is_broken(object: &Object<ObjectKind>) -> bool {
    status(object) == "ERROR"
}

/// The virtual addresses of the load balancer, the first one first.
pub(crate) fn virtual_addresses(balancer: &Object<ObjectKind>) -> impl Iterator<Item = &str> {
    let additional = additional_vips(balancer).filter_map(|vip| vip.get("ip_address")?.as_str());
    std::iter::once(balancer.text(fields::VIP_ADDRESS))
        .chain(additional)
        .filter(|address| !address.is_empty())
}

/// The subnet of the additional virtual address; empty if there is none.
pub(crate) fn additional_subnet(balancer: &Object<ObjectKind>) -> &str {
    let mut subnets = additional_vips(balancer).filter_map(|vip| vip.get("subnet_id")?.as_str());
    subnets.next().unwrap_or_default()
}

fn additional_vips(balancer: &Object<ObjectKind>) -> impl Iterator<Item = &Value> {
    let vips = balancer.attributes.get(ADDITIONAL_VIPS).and_then(Value::as_array);
    vips.into_iter().flatten()
}

/// Whether the load balancer has IPv6 addresses only, so that it can have no floating IP.
pub(crate) fn is_v6(balancer: &Object<ObjectKind>) -> bool {
    let mut addresses = virtual_addresses(balancer).peekable();
    addresses.peek().is_some() && addresses.all(|address| address.contains(':'))
}

/// Whether clients may know an address of the load balancer. `named`: the IDs and addresses that its Service names. A
/// floating IP that this cluster created is known only if the Service names it; others may be known in any case.
pub(crate) fn may_be_known(
    objects: &Objects<ObjectKind>,
    balancer: &Object<ObjectKind>,
    named: &[String],
    ownership_tag: &OwnershipTag,
) -> bool {
    let has = |text: &str| !text.is_empty() && named.iter().any(|named| named == text);
    let floating = floating(objects, balancer);
    has(&balancer.id)
        || has(balancer.text(fields::VIP_ADDRESS))
        || floating.is_some_and(|floating| {
            has(floating.text(fields::FLOATING_IP_ADDRESS))
                || ownership_of_floating(floating, ownership_tag) != Ownership::Ours
        })
}

/// Whether no listener or pool of the load balancer was ever active.
pub(crate) fn was_never_active(objects: &Objects<ObjectKind>) -> bool {
    let below = objects.all.iter().filter(|object| object.parent.is_some());
    let mut states = below.filter(|object| matches!(object.kind, ObjectKind::Listener | ObjectKind::Pool));
    objects.of(ObjectKind::Listener).next().is_some()
        && states.all(|object| status(object) == "PENDING_CREATE")
}

/// The tags of the load balancer, of the listeners whose tags `meant` accepts, and of their pools.
pub(crate) fn tags_of(objects: &Objects<ObjectKind>, meant: impl Fn(&[String]) -> bool) -> ServiceTags {
    let mut all = ServiceTags::default();
    all.load_balancer.extend(objects.of(ObjectKind::Balancer).flat_map(tags));
    for listener in objects.of(ObjectKind::Listener) {
        let listener_tags = tags(listener);
        if meant(&listener_tags) {
            all.listener.extend(listener_tags);
            let pool = objects.get(ObjectKind::Pool, &listener.key);
            all.pool.extend(pool.into_iter().flat_map(tags));
        }
    }
    all
}
