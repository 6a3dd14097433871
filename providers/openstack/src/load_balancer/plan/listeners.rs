//! Listeners, pools, members and health monitors.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use ccm_core::{
    load_balancer::{Blocked, Ownership},
    plan::objects::{self, KeyedEntry as _, Object, Objects},
};
use serde_json::{Map, Value, json};

use super::site::{BalancerPlan, Site, UNUSED, blocked, owners};
use crate::load_balancer::{
    desired::{ActiveService, DesiredBalancer, DesiredListener, DesiredMonitor, Owner},
    features::Feature,
    fields,
    kinds::{
        self, ADDITIONAL_VIPS, MemberSet, OTHER_ADDITIONAL_SUBNETS, OTHER_VIP_SUBNETS, OWNER, ObjectKind,
        below,
    },
    member::{Host, Member, by_identity},
    names,
    protocols::{HEALTHZ, HealthCheck},
    spec::ClientRanges,
    tags::{self, ServiceTags},
};

/// The header that members read the client's address from.
const FORWARDED_FOR: &str = "X-Forwarded-For";
/// The session persistence of a pool by the client's address.
const BY_ADDRESS: &str = "SOURCE_IP";

/// The Service of a listener, and whether it is leaving.
type Holder<'a> = (&'a Owner, bool);

/// Whether the listener belongs to the Service.
fn belongs(site: &Site<'_>, listener: &Object<ObjectKind>, owner: &Owner) -> bool {
    let tags = kinds::tags(listener);
    if tags.iter().any(|tag| names::is_service_tag(tag)) {
        return site.tagged(&tags, owner);
    }
    // The listener may have been created by an Octavia without tags. A user's listener has another name.
    site.owned_by(owner) && listener.text(fields::NAME).starts_with("listener_")
}

/// The Service of the listener. A listener without Service tags and with the right protocol belongs to the owner of the
/// load balancer. `None`: it is left unchanged.
fn holder<'a>(
    site: &Site<'a>,
    admitted: &[&'a ActiveService],
    listener: &Object<ObjectKind>,
) -> Option<Holder<'a>> {
    let mut leaving = site.desired.leaving.iter().map(|leaving| &leaving.owner);
    if let Some(owner) = leaving.find(|owner| belongs(site, listener, owner)) {
        return Some((owner, true));
    }
    for active in admitted {
        if belongs(site, listener, &active.owner) {
            return Some((&active.owner, false));
        }
    }
    if kinds::service_tags(listener).next().is_some() {
        return None;
    }
    for active in admitted {
        let mut ports = active.ports.iter();
        let port = ports.find(|port| port.listener_key.to_string() == listener.key);
        if site.owned_by(&active.owner) && port.is_some_and(|port| has_protocol(listener, port.protocol)) {
            return Some((&active.owner, false));
        }
    }
    None
}

fn has_protocol(object: &Object<ObjectKind>, protocol: &str) -> bool {
    object.text(fields::PROTOCOL) == protocol
}

/// The plan of everything below a load balancer.
pub(super) struct BelowPlan {
    pub(super) plan: BalancerPlan,
    /// Whether a pool stays without the session persistence that its Service asks for.
    pub(super) lacks_affinity: bool,
}

/// Plans everything below the load balancer. `refused`: Services that keep their objects; only their members follow the
/// nodes.
pub(super) fn plan(site: &Site<'_>, admitted: &[&ActiveService], refused: &[&ActiveService]) -> BelowPlan {
    let listeners = site.objects.of(ObjectKind::Listener);
    let holders: BTreeMap<_, _> = listeners
        .map(|listener| (listener.key.as_str(), holder(site, admitted, listener)))
        .collect();
    let mut observed = marked(site, &holders);
    let mut desired = objects::Desired {
        objects: vec![Object::new(ObjectKind::Balancer, &*site.balancer.key)],
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
    let mut lacks_affinity = false;
    for active in admitted {
        for port in &active.ports {
            let key = port.listener_key.to_string();
            let holder = holders.get(key.as_str());
            if let Some(None) = holder {
                conflicts.push(conflict(site, active, &key));
                continue;
            }
            let kept = holder
                .copied()
                .flatten()
                .filter(|(owner, leaves): &Holder<'_>| !leaves && owner.tag == active.owner.tag);
            let have = kept
                .and_then(|_| site.objects.get(ObjectKind::Listener, &key))
                .filter(|have| has_protocol(have, port.protocol));
            let pool = have
                .and_then(|_| site.objects.get(ObjectKind::Pool, &key))
                .filter(|pool| has_protocol(pool, port.pool_protocol));
            let mut objects = new_listener(site.desired, active, port, &site.balancer.key);
            if let Some(have) = have {
                keep_listener(site, active, port, have, &mut objects[0]);
            }
            if let Some(pool) = pool.filter(|pool| !port.sticky && is_sticky(pool) && !has_affinity_tag(pool))
            {
                let field = format!("session persistence of {}", pool.title());
                let want = "none, as sessionAffinity; it stays, because it may have been set by hand: remove it from the pool";
                conflicts.push(blocked(Some(&active.owner.service), &field, BY_ADDRESS, want));
            }
            if let Some(pool) = pool.filter(|pool| stays_without_affinity(site, active, port, pool)) {
                lacks_affinity = true;
                let field = format!("session persistence of {}", pool.title());
                let want = "SOURCE_IP, as sessionAffinity; it stays, because the Go cloud-controller-manager applies it to new pools \
                            only: to apply it, set sessionAffinity to None, and then to ClientIP again";
                conflicts.push(blocked(Some(&active.owner.service), &field, "none", want));
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
        active.ports.iter().filter_map(|port| {
            let members = port.members.as_deref().filter(|members| !members.is_empty())?;
            Some((&active.owner, port.listener_key, members))
        })
    });
    for (owner, key, members) in frozen.chain(refused) {
        let text = key.to_string();
        let listener = site.objects.get(ObjectKind::Listener, &text);
        let is_kept = matches!(holders.get(text.as_str()), Some(None));
        let pool = observed.all.iter_mut().find(|pool| pool.kind == ObjectKind::Pool && pool.key == text);
        if is_kept
            && listener.is_some_and(|have| belongs(site, have, owner))
            && let Some(pool) = pool
        {
            pool.foreign = None;
            let set = set(site.desired);
            let members = following(members, pool.set(set));
            desired.objects.push(below(ObjectKind::Pool, key, "").entries(set, members));
        }
    }
    let mut plan = desired.diff(&observed);
    plan.blocked.extend(conflicts);
    BelowPlan { plan, lacks_affinity }
}

/// The observed objects with their owners. Floating IPs are planned separately.
fn marked(site: &Site<'_>, holders: &BTreeMap<&str, Option<Holder<'_>>>) -> Objects<ObjectKind> {
    let others = site.objects.all.iter().filter(|object| object.kind != ObjectKind::Floating);
    let marked = others.cloned().map(|mut object| {
        let holder = holders.get(object.key.as_str()).copied().flatten();
        match (object.kind, holder) {
            (ObjectKind::Balancer, _) => {}
            (ObjectKind::Pool, _) if object.parent.is_none() => {
                object.foreign = (!is_orphan_of_ours(site, &object)).then(String::new);
            }
            (_, None) => object.foreign = Some(String::new()),
            (kind, Some((owner, leaves))) => {
                object.service = if leaves { None } else { Some(owner.service.clone()) };
                if kind == ObjectKind::Listener {
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
fn is_orphan_of_ours(site: &Site<'_>, pool: &Object<ObjectKind>) -> bool {
    let mut owners = owners(site.desired).map(|owner| owner.tag.as_str()).chain([site.name]);
    owners.any(|owner| is_pool_of(pool.text(fields::NAME), owner))
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
    let listener = site.objects.get(ObjectKind::Listener, key);
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
pub(super) fn new_balancer(desired: &DesiredBalancer, active: &ActiveService) -> Vec<Object<ObjectKind>> {
    let name = &active.owner.tag;
    let ownership_tag = desired.ownership_tag.for_create().map(ToString::to_string);
    let mut tags = Vec::new();
    if desired.can.has(Feature::Tags) {
        tags.push(name.clone());
        tags.extend(ownership_tag);
        if active.is_public {
            tags.push(names::requested_address_tag(&active.floating.address));
        }
        tags.extend(active.tags.load_balancer.iter().cloned());
    }
    let mut balancer = Object::new(ObjectKind::Balancer, &**name)
        .with(fields::NAME, &**name)
        .with(fields::PROVIDER, &*desired.provider)
        .with(fields::TAGS, tags);
    balancer.service = Some(active.owner.service.clone());
    let fields = active.fields.iter();
    balancer
        .attributes
        .extend(fields.map(|(field, value)| (*field, Value::from(value.as_str()))));
    if let Some(subnet) = active.vip.additional_subnets.first() {
        balancer = balancer.with(ADDITIONAL_VIPS, json!([{"subnet_id": subnet}]));
    }
    for (name, subnets) in [
        (OTHER_VIP_SUBNETS, active.vip.other_subnets.as_slice()),
        (OTHER_ADDITIONAL_SUBNETS, active.vip.additional_subnets.get(1..).unwrap_or_default()),
    ] {
        if !subnets.is_empty() {
            balancer = balancer.with(name, subnets);
        }
    }
    let mut objects = vec![balancer];
    if !desired.serial {
        objects.extend(active.ports.iter().flat_map(|port| new_listener(desired, active, port, name)));
    }
    objects
}

/// A new listener, its pool and its health monitor. They have the name of their Service, also on the load balancer of
/// another one.
fn new_listener(
    desired: &DesiredBalancer,
    active: &ActiveService,
    port: &DesiredListener,
    balancer: &str,
) -> Vec<Object<ObjectKind>> {
    let tag = &active.owner.tag;
    let mut tags = Vec::new();
    if desired.can.has(Feature::Tags) {
        tags.push(tag.clone());
        tags.extend(active.tags.listener.iter().cloned());
    }
    let mut listener = below(ObjectKind::Listener, port.listener_key, balancer)
        .with(OWNER, &**tag)
        .with(fields::PROTOCOL, port.protocol)
        .with(fields::PROTOCOL_PORT, port.listener_key.port)
        .with(fields::NAME, names::listener(port.index, tag))
        .with(fields::TAGS, tags)
        .with(fields::CONNECTION_LIMIT, port.connection_limit)
        .with(fields::INSERT_HEADERS, headers(Map::new(), port))
        .with(fields::DEFAULT_TLS_CONTAINER_REF, &*port.tls);
    let timeouts = port.timeouts.iter().flatten();
    listener.attributes.extend(timeouts.map(|(name, value)| (*name, Value::from(*value))));
    if let Some(ranges) = &port.ranges {
        listener = listener.with(fields::ALLOWED_CIDRS, ranges.texts());
    }
    let method = match desired.can.methods {
        [default, ..] if !desired.can.methods.contains(&&*port.method) => default,
        _ => &*port.method,
    };
    let mut pool_tags: Vec<_> = active.tags.pool.iter().cloned().collect();
    if port.sticky && desired.can.has(Feature::Tags) {
        pool_tags.push(names::SESSION_AFFINITY_TAG.to_owned());
    }
    let mut pool = below(ObjectKind::Pool, port.listener_key, "")
        .with(fields::PROTOCOL, port.pool_protocol)
        .with(fields::NAME, names::pool(port.index, tag))
        .with(fields::TAGS, pool_tags)
        .with(fields::LB_ALGORITHM, method)
        .with(fields::SESSION_PERSISTENCE, port.sticky.then(|| json!({"type": BY_ADDRESS})));
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

fn new_monitor(monitor: DesiredMonitor, port: &DesiredListener, tag: &str) -> Object<ObjectKind> {
    let times = monitor.times;
    let object = below(ObjectKind::Monitor, port.listener_key, "")
        .with(fields::TYPE, monitor.check.kind())
        .with(fields::NAME, names::monitor(port.index, tag))
        .with(fields::DELAY, times.delay)
        .with(fields::TIMEOUT, times.timeout)
        .with(fields::MAX_RETRIES, times.max_retries)
        .with(fields::MAX_RETRIES_DOWN, times.max_retries_down);
    if !matches!(monitor.check, HealthCheck::Healthz(_)) {
        return object;
    }
    let (path, method, codes) = HEALTHZ;
    object
        .with(fields::URL_PATH, path)
        .with(fields::HTTP_METHOD, method)
        .with(fields::EXPECTED_CODES, codes)
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
    have: &Object<ObjectKind>,
    want: &mut Object<ObjectKind>,
) {
    let mut tags = retagged(site, active, have, |tags| &tags.listener);
    let now = kinds::tags(have);
    if site.desired.can.has(Feature::Tags) && !site.tagged(&now, &active.owner) {
        tags.get_or_insert(now).push(active.owner.tag.clone());
    }
    set_tags(want, tags);
    let fields = &mut want.attributes;
    // An old Octavia does not return them.
    for (name, _) in port.timeouts.iter().flatten() {
        if have.attributes.get(name).is_none_or(Value::is_null) {
            fields.remove(name);
        }
    }
    let observed_headers = have.attributes.get(fields::INSERT_HEADERS).and_then(Value::as_object);
    fields.insert(
        fields::INSERT_HEADERS,
        headers(observed_headers.cloned().unwrap_or_default(), port).into(),
    );
    let mut ranges = kinds::texts(have, fields::ALLOWED_CIDRS).peekable();
    let is_open = ranges.peek().is_none();
    if port
        .ranges
        .as_ref()
        .is_some_and(|want: &ClientRanges| (is_open && want.allows_all_clients()) || want.same(ranges))
    {
        fields.remove(fields::ALLOWED_CIDRS);
    }
}

/// Adapts the desired pool to the observed one, so that allowed differences stay.
fn keep_pool(
    site: &Site<'_>,
    active: &ActiveService,
    port: &DesiredListener,
    have: &Object<ObjectKind>,
    want: &mut Object<ObjectKind>,
) {
    let mut tags = retagged(site, active, have, |tags| &tags.pool);
    if !site.desired.can.methods.contains(&&*port.method)
        && have.attributes.contains_key(fields::LB_ALGORITHM)
    {
        want.attributes.remove(fields::LB_ALGORITHM);
    }
    let is_sticky = is_sticky(have);
    let is_recorded = has_affinity_tag(have);
    let is_persons = is_sticky && !is_recorded;
    if is_sticky == port.sticky || is_persons || stays_without_affinity(site, active, port, have) {
        // A user chose another type, or the same without the Service.
        want.attributes.remove(fields::SESSION_PERSISTENCE);
    } else if site.desired.can.has(Feature::Tags) && is_recorded != port.sticky {
        let tags = tags.get_or_insert_with(|| kinds::tags(have));
        tags.retain(|tag| tag != names::SESSION_AFFINITY_TAG);
        tags.extend(port.sticky.then(|| names::SESSION_AFFINITY_TAG.to_owned()));
    }
    set_tags(want, tags);
    let set = set(site.desired);
    if let Some(members) = &port.members {
        let known = by_identity(have.set(set));
        let members = members.iter().map(|want| {
            let Some(have) = known.get(&want.identity()) else {
                return want.clone();
            };
            let is_same = if site.desired.serial {
                have.is_checked_as(want)
            } else {
                have.is_as(want)
            };
            if is_same { (*have).clone() } else { want.clone() }
        });
        want.sets.insert(set, members.collect());
    }
}

/// Whether the pool stays without the session persistence that its Service asks for: upstream gives it only to new pools, and
/// it may have created this one. It gets it as soon as this process observes a change of the Service's session affinity.
fn stays_without_affinity(
    site: &Site<'_>,
    active: &ActiveService,
    port: &DesiredListener,
    pool: &Object<ObjectKind>,
) -> bool {
    port.sticky
        && !is_sticky(pool)
        && !has_affinity_tag(pool)
        && !active.is_affinity_changed
        && (site.ownership != Ownership::Ours || site.has_affinity_record())
}

/// Whether the pool sends all connections of a client to one member.
fn is_sticky(pool: &Object<ObjectKind>) -> bool {
    let persistence = pool.attributes.get(fields::SESSION_PERSISTENCE);
    persistence.is_some_and(|have| have["type"] == BY_ADDRESS)
}

fn has_affinity_tag(pool: &Object<ObjectKind>) -> bool {
    kinds::tags(pool).iter().any(|tag| tag == names::SESSION_AFFINITY_TAG)
}

fn set(desired: &DesiredBalancer) -> &'static str {
    MemberSet::with(desired.serial).name()
}

fn set_tags(object: &mut Object<ObjectKind>, tags: Option<Vec<String>>) {
    match tags {
        Some(tags) => {
            object.attributes.insert(fields::TAGS, kinds::sent(&tags));
        }
        None => {
            object.attributes.remove(fields::TAGS);
        }
    }
}

/// The tags of a listener or pool, with those that its Service requests and without those that it no longer requests.
/// `None` if they do not change.
fn retagged(
    site: &Site<'_>,
    active: &ActiveService,
    have: &Object<ObjectKind>,
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
/// ones of their IP family. The second family gets members only if it has some: the load balancer may have one address.
fn following<'a>(want: &'a [Member], have: &'a [Member]) -> Vec<Member> {
    let known = by_identity(have);
    let is_v6 = |member: &Member| member.host.address.contains(':');
    let first_is_v6 = want.first().map(is_v6);
    let mut members = Vec::new();
    for want in want {
        let of_family = have.iter().find(|have| is_v6(have) == is_v6(want));
        let like = of_family.or(have.first());
        let is_of_first_family = first_is_v6 == Some(is_v6(want));
        if let Some(same) = known.get(&want.identity()) {
            members.push((*same).clone());
        } else if of_family.is_some() || is_of_first_family {
            members.push(Member {
                host: Arc::new(Host {
                    subnet_id: like.map(|like| like.host.subnet_id.clone()).unwrap_or_default(),
                    ..(*want.host).clone()
                }),
                monitor_port: like.and_then(|like| like.monitor_port),
                ..want.clone()
            });
        }
    }
    members
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
