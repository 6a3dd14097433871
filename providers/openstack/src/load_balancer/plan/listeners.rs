//! Listeners, pools, members and health monitors.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use ccm_core::{
    load_balancer::{Blocked, IpFamily, SourceRanges},
    plan::objects::{self, Entry as _, Object, Objects},
};
use serde_json::{Map, Value, json};

use super::site::{BalancerPlan, Site, UNUSED, blocked, owners};
use crate::load_balancer::{
    desired::{ActiveService, DesiredBalancer, DesiredListener, DesiredMonitor, Owner},
    features::Feature,
    kinds::{self, Kind, MEMBERS, OWNER, SINGLE_MEMBERS, below},
    member::{Host, Member, by_identity},
    names,
    protocols::{HEALTHZ, HealthCheck},
    tags::{self, ServiceTags},
};

/// The header that members read the client's address from.
const FORWARDED_FOR: &str = "X-Forwarded-For";
/// The session persistence of a pool by the client's address.
const BY_ADDRESS: &str = "SOURCE_IP";

/// The Service of a listener, and whether it is leaving.
type Holder<'a> = (&'a Owner, bool);

/// Whether the listener belongs to the Service.
fn belongs(site: &Site<'_>, listener: &Object<Kind>, owner: &Owner) -> bool {
    let tags = kinds::tags(listener);
    if tags.iter().any(|tag| names::is_service_tag(tag)) {
        return site.tagged(&tags, owner);
    }
    // The listener may have been created by an Octavia without tags. A user's listener has another name.
    site.owned_by(owner) && listener.text("name").starts_with("listener_")
}

/// The Service of the listener. A listener without Service tags and with the right protocol belongs to the owner of the
/// load balancer. `None`: it is left unchanged.
fn holder<'a>(
    site: &Site<'a>,
    admitted: &[&'a ActiveService],
    listener: &Object<Kind>,
) -> Option<Holder<'a>> {
    let mut leaving = site.desired.leaving.iter().map(|leaving| &leaving.owner);
    if let Some(owner) = leaving.find(|owner| belongs(site, listener, owner)) {
        return Some((owner, true));
    }
    let is_untagged = kinds::service_tags(listener).next().is_none();
    let fits = |active: &ActiveService| {
        let mut ports = active.ports.iter();
        let port = ports.find(|port| port.listener_key.to_string() == listener.key);
        is_untagged
            && site.owned_by(&active.owner)
            && port.is_some_and(|port| has_protocol(listener, port.protocol))
    };
    let mut active = admitted.iter();
    let found = active.find(|active| belongs(site, listener, &active.owner));
    let found = found.or_else(|| admitted.iter().find(|active| fits(active)));
    found.map(|active| (&active.owner, false))
}

fn has_protocol(object: &Object<Kind>, protocol: &str) -> bool {
    object.text("protocol") == protocol
}

/// Plans everything below the load balancer. `refused`: Services that keep their objects; only their members follow the
/// nodes.
pub(super) fn plan(site: &Site<'_>, admitted: &[&ActiveService], refused: &[&ActiveService]) -> BalancerPlan {
    let listeners = site.objects.of(Kind::Listener);
    let holders: BTreeMap<_, _> = listeners
        .map(|listener| (listener.key.as_str(), holder(site, admitted, listener)))
        .collect();
    let mut observed = marked(site, &holders);
    let mut desired = objects::Desired {
        objects: vec![Object::new(Kind::Balancer, &*site.balancer.key)],
        is_below_separate: true,
        is_whole: if site.desired.can.has(Feature::AdditiveMembers) {
            |differs| differs.change > 0 || (differs.remove > 0 && differs.add + differs.remove > 1)
        } else {
            |differs| differs.change > 0 || differs.add > 0 || differs.remove > 1
        },
        reason: UNUSED,
        ..objects::Desired::default()
    };
    let mut conflicts = Vec::new();
    for active in admitted {
        for port in &active.ports {
            let key = port.listener_key.to_string();
            let holder = holders.get(key.as_str());
            if let Some(None) = holder {
                conflicts.push(conflict(site, active, &key));
                continue;
            }
            let is_own = |(owner, leaves): &Holder<'_>| !leaves && owner.tag == active.owner.tag;
            let kept = holder.copied().flatten().filter(is_own);
            let have = kept.and_then(|_| site.objects.get(Kind::Listener, &key));
            let have = have.filter(|have| has_protocol(have, port.protocol));
            let pool = have.and_then(|_| site.objects.get(Kind::Pool, &key));
            let pool = pool.filter(|pool| has_protocol(pool, port.pool_protocol));
            let mut objects = new_listener(site.desired, active, port, &site.balancer.key);
            if let Some(have) = have {
                keep_listener(site, active, port, have, &mut objects[0]);
            }
            if let Some(pool) = pool {
                keep_pool(site, active, port, pool, &mut objects[1]);
            }
            desired.objects.extend(objects);
        }
    }
    let frozen = site.desired.frozen.iter().flat_map(|frozen| {
        let follows = frozen.follows.iter();
        follows.map(|(key, members)| (&frozen.owner, *key, members.as_slice()))
    });
    let refused = refused.iter().flat_map(|active| {
        let follows = active.ports.iter().map(|port| (port.listener_key, port.members.as_deref()));
        let follows =
            follows.filter_map(|(key, members)| Some((key, members.filter(|all| !all.is_empty())?)));
        follows.map(|(key, members)| (&active.owner, key, members))
    });
    for (owner, key, members) in frozen.chain(refused) {
        let text = key.to_string();
        let listener = site.objects.get(Kind::Listener, &text);
        let is_kept = matches!(holders.get(text.as_str()), Some(None));
        let pool = observed.all.iter_mut().find(|pool| pool.kind == Kind::Pool && pool.key == text);
        if let Some(pool) =
            pool.filter(|_| is_kept && listener.is_some_and(|have| belongs(site, have, owner)))
        {
            pool.foreign = None;
            let set = set(site.desired);
            let members = following(members, pool.set(set));
            desired.objects.push(below(Kind::Pool, key, "").entries(set, members));
        }
    }
    let mut plan = desired.diff(&observed);
    plan.blocked.extend(conflicts);
    plan
}

/// The observed objects with their owners. Floating IPs are planned separately.
fn marked(site: &Site<'_>, holders: &BTreeMap<&str, Option<Holder<'_>>>) -> Objects<Kind> {
    let others = site.objects.all.iter().filter(|object| object.kind != Kind::Floating);
    let marked = others.cloned().map(|mut object| {
        let holder = holders.get(object.key.as_str()).copied().flatten();
        match (object.kind, holder) {
            (Kind::Balancer, _) => {}
            (Kind::Pool, _) if object.parent.is_none() => {
                object.foreign = (!is_orphan_of_ours(site, &object)).then(String::new);
            }
            (_, None) => object.foreign = Some(String::new()),
            (kind, Some((owner, leaves))) => {
                object.service = Some(owner.service.clone()).filter(|_| !leaves);
                if kind == Kind::Listener {
                    object.attributes.insert(OWNER, owner.tag.as_str().into());
                }
            }
        }
        object
    });
    marked.collect()
}

/// Whether a pool without a listener belonged to a Service. If a listener was deleted by another client, Octavia keeps
/// its pool, and the new listener gets a new pool. Pools of users may be without a listener.
fn is_orphan_of_ours(site: &Site<'_>, pool: &Object<Kind>) -> bool {
    let owners = owners(site.desired).map(|owner| owner.tag.as_str());
    let mut owners = owners.chain([site.name]);
    owners.any(|owner| is_pool_of(pool.text("name"), owner))
}

/// Whether the name is that of a pool for a port of the owner.
fn is_pool_of(name: &str, owner: &str) -> bool {
    let rest = name.strip_prefix("pool_").and_then(|rest| rest.split_once('_'));
    rest.is_some_and(|(index, of)| {
        of == owner && !index.is_empty() && index.bytes().all(|digit| digit.is_ascii_digit())
    })
}

/// The desired listener of a Service belongs to another user of the load balancer.
fn conflict(site: &Site<'_>, active: &ActiveService, key: &str) -> Blocked {
    let listener = site.objects.get(Kind::Listener, key);
    let tags: Vec<_> = listener.into_iter().flat_map(kinds::service_tags).collect();
    let have = if tags.is_empty() {
        "another user's".to_owned()
    } else {
        format!("that of {}", tags.join(", "))
    };
    blocked(
        Some(&active.owner.service),
        &format!("listener {key} of {}", site.balancer.title()),
        &have,
        &format!("that of {}", active.owner.tag),
    )
}

/// A new load balancer with everything below it.
pub(super) fn new_balancer(desired: &DesiredBalancer, active: &ActiveService) -> Vec<Object<Kind>> {
    let name = &active.owner.tag;
    let ownership_tag = desired.ownership_tag.for_create().map(ToString::to_string);
    let tags = std::iter::once(name.clone())
        .chain(ownership_tag)
        .chain(active.tags.load_balancer.iter().cloned());
    let tags: Vec<_> = tags.filter(|_| desired.can.has(Feature::Tags)).collect();
    let mut balancer = Object::new(Kind::Balancer, &**name)
        .with("name", &**name)
        .with("provider", &*desired.provider)
        .with("tags", tags);
    balancer.service = Some(active.owner.service.clone());
    let fields = active.fields.iter();
    balancer
        .attributes
        .extend(fields.map(|(field, value)| (*field, Value::from(value.as_str()))));
    let ports = active.ports.iter().filter(|_| !desired.serial);
    let listeners = ports.flat_map(|port| new_listener(desired, active, port, name));
    std::iter::once(balancer).chain(listeners).collect()
}

/// A new listener, its pool and its health monitor. They have the name of their Service, also on the load balancer of
/// another one.
fn new_listener(
    desired: &DesiredBalancer,
    active: &ActiveService,
    port: &DesiredListener,
    balancer: &str,
) -> Vec<Object<Kind>> {
    let tag = &active.owner.tag;
    let requested = active.tags.listener.iter().cloned();
    let tags = std::iter::once(tag.clone()).chain(requested);
    let tags: Vec<_> = tags.filter(|_| desired.can.has(Feature::Tags)).collect();
    let mut listener = below(Kind::Listener, port.listener_key, balancer)
        .with(OWNER, &**tag)
        .with("protocol", port.protocol)
        .with("protocol_port", port.listener_key.port)
        .with("name", names::listener(port.index, tag))
        .with("tags", tags)
        .with("connection_limit", port.connection_limit)
        .with("insert_headers", headers(Map::new(), port))
        .with("default_tls_container_ref", &*port.tls);
    let timeouts = port.timeouts.iter().flatten();
    listener.attributes.extend(timeouts.map(|(name, value)| (*name, Value::from(*value))));
    if let Some(ranges) = &port.ranges {
        listener = listener.with("allowed_cidrs", ranges.texts());
    }
    let (methods, method) = (desired.can.methods, &*port.method);
    let default = methods.first().filter(|_| !methods.contains(&method));
    let mut pool = below(Kind::Pool, port.listener_key, "")
        .with("protocol", port.pool_protocol)
        .with("name", names::pool(port.index, tag))
        .with("tags", active.tags.pool.iter().cloned().collect::<Vec<_>>())
        .with("lb_algorithm", *default.unwrap_or(&method))
        .with("session_persistence", port.sticky.then(|| json!({"type": BY_ADDRESS})));
    if let Some(members) = &port.members {
        pool = pool.entries(set(desired), members.iter().cloned());
    }
    let monitor = port.monitor.map(|monitor| new_monitor(monitor, port, tag));
    let mut all: Vec<_> = [listener, pool].into_iter().chain(monitor).collect();
    for object in &mut all {
        object.service = Some(active.owner.service.clone());
    }
    all
}

fn new_monitor(monitor: DesiredMonitor, port: &DesiredListener, tag: &str) -> Object<Kind> {
    let times = monitor.times;
    let object = below(Kind::Monitor, port.listener_key, "")
        .with("type", monitor.check.kind())
        .with("name", names::monitor(port.index, tag))
        .with("delay", times.delay)
        .with("timeout", times.timeout)
        .with("max_retries", times.max_retries)
        .with("max_retries_down", times.max_retries_down);
    if !matches!(monitor.check, HealthCheck::Healthz(_)) {
        return object;
    }
    let (path, method, codes) = HEALTHZ;
    object.with("url_path", path).with("http_method", method).with("expected_codes", codes)
}

fn headers(mut have: Map<String, Value>, port: &DesiredListener) -> Map<String, Value> {
    let value = have.get(FORWARDED_FOR).and_then(Value::as_str);
    let inserts = value.is_some_and(|value| value.eq_ignore_ascii_case("true"));
    if port.forwarded_for && !inserts {
        have.insert(FORWARDED_FOR.to_owned(), "true".into());
    } else if inserts && !port.forwarded_for {
        have.remove(FORWARDED_FOR);
    }
    have
}

/// Adapts the desired listener to the observed one, so that allowed differences stay.
fn keep_listener(
    site: &Site<'_>,
    active: &ActiveService,
    port: &DesiredListener,
    have: &Object<Kind>,
    want: &mut Object<Kind>,
) {
    let mut tags = retagged(site, active, have, |tags| &tags.listener);
    let now = kinds::tags(have);
    if site.desired.can.has(Feature::Tags) && !site.tagged(&now, &active.owner) {
        tags.get_or_insert(now).push(active.owner.tag.clone());
    }
    set_tags(want, tags);
    let fields = &mut want.attributes;
    let is_known = |name: &str| have.attributes.get(name).is_some_and(|value| !value.is_null());
    fields.retain(|name, _| !name.starts_with("timeout_") || is_known(name));
    let observed_headers = have.attributes.get("insert_headers").and_then(Value::as_object);
    fields.insert("insert_headers", headers(observed_headers.cloned().unwrap_or_default(), port).into());
    let mut ranges = kinds::texts(have, "allowed_cidrs").peekable();
    let is_open = ranges.peek().is_none();
    let is_same = |want: &SourceRanges| (is_open && allows_all_clients(&want.texts())) || want.same(ranges);
    if port.ranges.as_ref().is_some_and(is_same) {
        fields.remove("allowed_cidrs");
    }
}

/// Adapts the desired pool to the observed one, so that allowed differences stay.
fn keep_pool(
    site: &Site<'_>,
    active: &ActiveService,
    port: &DesiredListener,
    have: &Object<Kind>,
    want: &mut Object<Kind>,
) {
    set_tags(want, retagged(site, active, have, |tags| &tags.pool));
    if !site.desired.can.methods.contains(&&*port.method) && have.attributes.contains_key("lb_algorithm") {
        want.attributes.remove("lb_algorithm");
    }
    let persistence = have.attributes.get("session_persistence");
    let is_sticky = persistence.is_some_and(|have| have["type"] == BY_ADDRESS);
    // A user chose another type.
    if is_sticky == port.sticky {
        want.attributes.remove("session_persistence");
    }
    let set = set(site.desired);
    if let Some(members) = &port.members {
        let known = by_identity(have.set(set));
        let members = members.iter().map(|want| {
            let same = known.get(&want.identity()).copied();
            let same = same.filter(|have| match site.desired.serial {
                true => have.is_checked_as(want),
                false => have.is_as(want),
            });
            same.unwrap_or(want).clone()
        });
        want.sets.insert(set, members.collect());
    }
}

fn set(desired: &DesiredBalancer) -> &'static str {
    if desired.serial { SINGLE_MEMBERS } else { MEMBERS }
}

fn set_tags(object: &mut Object<Kind>, tags: Option<Vec<String>>) {
    match tags {
        Some(tags) => drop(object.attributes.insert("tags", kinds::sent(&tags))),
        None => drop(object.attributes.remove("tags")),
    }
}

/// The tags of a listener or pool, with those that its Service requests and without those that it no longer requests.
/// `None` if they do not change.
fn retagged(
    site: &Site<'_>,
    active: &ActiveService,
    have: &Object<Kind>,
    kind: impl Fn(&ServiceTags) -> &BTreeSet<String>,
) -> Option<Vec<String>> {
    if !site.desired.can.has(Feature::Tags) {
        return None;
    }
    let mut tags = kinds::tags(have);
    let requested = kind(&active.tags).iter().collect();
    let annotated = site.annotated.get(&active.owner.service).map(&kind);
    let (add, remove) = tags::difference(&tags, &requested, &annotated.into_iter().flatten().collect());
    if add.is_empty() && remove.is_empty() {
        return None;
    }
    tags.retain(|tag| !remove.contains(tag));
    tags.extend(add);
    Some(tags)
}

/// The members of a Service that keeps its state. New members have the subnet and the monitor port of the existing
/// ones.
fn following<'a>(want: &'a [Member], have: &'a [Member]) -> Vec<Member> {
    let known = by_identity(have);
    let first = have.first();
    let members = want.iter().map(|want| {
        let new = || Member {
            host: Arc::new(Host {
                subnet_id: first.map(|first| first.host.subnet_id.clone()).unwrap_or_default(),
                ..(*want.host).clone()
            }),
            monitor_port: first.and_then(|first| first.monitor_port),
            ..want.clone()
        };
        known.get(&want.identity()).map_or_else(new, |same| (*same).clone())
    });
    members.collect()
}

/// Whether these ranges allow all clients of a family, which is the same as no ranges.
fn allows_all_clients(ranges: &[String]) -> bool {
    let whole = |family| match family {
        IpFamily::V4 => "0.0.0.0/0",
        IpFamily::V6 => "::/0",
    };
    matches!(ranges, [one] if *one == whole(IpFamily::V4) || *one == whole(IpFamily::V6))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pools_of_users_do_not_count_as_pools_of_services() {
        assert!(is_pool_of(&names::pool(0, "mine"), "mine"));
        assert!(is_pool_of("pool_12_kube_service_c_n_s", "kube_service_c_n_s"));
        for name in [
            "my pool",
            "pool_mine",
            "pool_x_mine",
            "pool__mine",
            "pool_0_other",
            "pool_0_mine_2",
        ] {
            assert!(!is_pool_of(name, "mine"), "{name}");
        }
    }
}
