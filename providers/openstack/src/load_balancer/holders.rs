//! Who has which port of a shared load balancer already.

use std::collections::{BTreeMap, BTreeSet};

use ccm_core::{
    Result,
    load_balancer::{ReadOptions, ServiceView},
    plan::{Member, Membership},
};

use super::{
    key::Key,
    model::Model,
    names,
    observe::{Branch, Slot},
    reads::Reads,
};

/// Tags of Services by the port whose listener is theirs.
pub(crate) type Holders = BTreeMap<Slot, String>;

/// The ports that a Service asks for.
pub(super) fn slots(service: &ServiceView) -> Vec<Slot> {
    let ports = service.ports.iter();
    ports
        .map(|port| Slot {
            transport: port.protocol,
            port: port.port,
        })
        .collect()
}

/// Looks who has the ports, if any two of the members ask for the same one.
///
/// # Errors
/// If it can not be found out.
pub(super) async fn holders(
    reads: &Reads,
    key: &Key,
    members: &[Member<Model>],
    read: ReadOptions,
) -> Result<Holders> {
    let Key::Balancer(id) = key else {
        return Ok(Holders::new());
    };
    let mut asked = BTreeSet::new();
    let clash = members
        .iter()
        .filter(|member| member.membership != Membership::Leaving)
        .flat_map(|member| slots(&member.service))
        .any(|slot| !asked.insert(slot));
    if !clash {
        return Ok(Holders::new());
    }
    let Some(balancer) = reads.load_balancer(id, read).await? else {
        return Ok(Holders::new());
    };
    let children = reads.children(&balancer, read).await?;
    let held = children.listeners.iter().map(|listener| {
        let branch = Branch {
            listener: (**listener).clone(),
            twig: None,
        };
        let tag = listener.tags.iter().find(|tag| names::is_service_tag(tag));
        // Made before there were tags.
        (branch.slot(), tag.unwrap_or(&balancer.name).clone())
    });
    Ok(held.collect())
}
