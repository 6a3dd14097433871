//! Listeners, pools, members and health monitors.

use std::collections::BTreeSet;

use ccm_core::{load_balancer::ServiceId, plan::Plan};

use super::{
    Site, blocked,
    bodies::{self, FORWARDED_FOR},
};
use crate::load_balancer::{
    bodies::{ListenerChange, MonitorChange, NewPersistence, PoolChange, Set},
    desired::{ActiveService, DesiredListener, DesiredMember, Owner},
    features::Feature,
    member::{Member, by_identity},
    names,
    observe::{ListenerKey, ListenerTree, PoolTree},
    protocols::METHODS,
    responses::Listener,
    steps::{Action, Change},
    tags::{self, ServiceTags},
};

/// Whose a listener is.
fn belongs(site: &Site<'_>, listener: &Listener, owner: &Owner) -> bool {
    if listener.tags.iter().any(|tag| names::is_service_tag(tag)) {
        return site.tagged(&listener.tags, owner);
    }
    // Made before there were tags; what has another name was made by a person.
    site.owned_by(owner) && listener.name.starts_with("listener_")
}

/// Whether the listener may become what the Service wants there: its own, or one without tags on its own load balancer
/// that is of the right protocol already.
fn usable(
    site: &Site<'_>,
    listener: &Listener,
    active: &ActiveService,
    want: Option<&DesiredListener>,
) -> bool {
    let untagged = !listener.tags.iter().any(|tag| names::is_service_tag(tag));
    let fits = want.is_some_and(|want| want.protocol == listener.protocol);
    belongs(site, listener, &active.owner) || (untagged && fits && site.owned_by(&active.owner))
}

/// Deletes a listener that its Service wants no more, or wants otherwise than it can be made.
pub(super) fn surplus(
    site: &Site<'_>,
    admitted: &[&ActiveService],
    listener_tree: &ListenerTree,
    plan: &mut Plan<Change>,
) {
    let (listener, listener_key) = (&listener_tree.listener, listener_tree.listener_key());
    let leaves = site
        .desired
        .leaving
        .iter()
        .any(|leaving| belongs(site, listener, &leaving.owner));
    if leaves {
        return remove(site, listener_tree, None, plan);
    }
    let Some(owner) = admitted
        .iter()
        .find(|active| belongs(site, listener, &active.owner))
    else {
        return;
    };
    let want = owner.ports.iter().find(|port| port.listener_key == listener_key);
    if want.is_some_and(|want| want.protocol == listener.protocol) {
        return;
    }
    remove(site, listener_tree, Some(&owner.owner.service), plan);
    if let Some(step) = plan.steps.last_mut() {
        step.description.reason = match want {
            Some(_) => format!("its protocol is {}", listener.protocol),
            None => "its Service has no such port".to_owned(),
        };
    }
}

/// The pool first: it is found by its listener.
pub(super) fn remove(
    site: &Site<'_>,
    listener_tree: &ListenerTree,
    service: Option<&ServiceId>,
    plan: &mut Plan<Change>,
) {
    let listener_key = listener_tree.listener_key();
    if listener_tree.pool_tree.is_some() {
        plan.steps
            .push(site.step(Action::DeletePool(listener_key), service));
    }
    plan.steps
        .push(site.step(Action::DeleteListener(listener_key), service));
}

/// Brings one port of a Service where it wants it.
pub(super) fn port(
    site: &Site<'_>,
    admitted: &[&ActiveService],
    active: &ActiveService,
    want: &DesiredListener,
    plan: &mut Plan<Change>,
) {
    let service = Some(&active.owner.service);
    let balancer = &site.tree.balancer.name;
    match site.tree.listener_tree(want.listener_key) {
        Some(listener_tree) if usable(site, &listener_tree.listener, active, Some(want)) => {
            if listener_tree.listener.protocol == want.protocol {
                update(site, active, want, listener_tree, plan);
            } else {
                create(site, active, want, plan);
            }
        }
        Some(listener_tree) => {
            let is_leaving = site.desired.leaving.iter().map(|leaving| &leaving.owner);
            let is_leaving = is_leaving
                .chain(
                    admitted
                        .iter()
                        .filter(|other| {
                            !other
                                .ports
                                .iter()
                                .any(|port| port.listener_key == want.listener_key)
                        })
                        .map(|other| &other.owner),
                )
                .any(|owner| belongs(site, &listener_tree.listener, owner));
            if is_leaving {
                create(site, active, want, plan);
            } else {
                let tags = listener_tree.listener.tags.iter();
                let tags: Vec<_> = tags
                    .filter(|tag| names::is_service_tag(tag))
                    .map(String::as_str)
                    .collect();
                let have = if tags.is_empty() {
                    "somebody else's".to_owned()
                } else {
                    format!("that of {}", tags.join(", "))
                };
                plan.blocked.push(blocked(
                    service,
                    &format!("listener {} of load balancer {balancer}", want.listener_key),
                    &have,
                    &format!("that of {}", active.owner.tag),
                ));
            }
        }
        None => create(site, active, want, plan),
    }
}

fn create(site: &Site<'_>, active: &ActiveService, want: &DesiredListener, plan: &mut Plan<Change>) {
    let body = bodies::new_listener(site.desired, active, want);
    let service = Some(&active.owner.service);
    plan.steps
        .push(site.step(Action::CreateListener(want.listener_key, Box::new(body)), service));
    create_pool(site, active, want, plan);
}

fn create_pool(site: &Site<'_>, active: &ActiveService, want: &DesiredListener, plan: &mut Plan<Change>) {
    let service = Some(&active.owner.service);
    let body = bodies::new_pool(active, want);
    plan.steps
        .push(site.step(Action::CreatePool(want.listener_key, Box::new(body)), service));
    members(
        site,
        want.listener_key,
        want.members.as_deref(),
        &PoolTree::default(),
        service,
        plan,
    );
    monitor(site, active, want, &PoolTree::default(), plan);
}

fn update(
    site: &Site<'_>,
    active: &ActiveService,
    want: &DesiredListener,
    listener_tree: &ListenerTree,
    plan: &mut Plan<Change>,
) {
    let service = Some(&active.owner.service);
    let (change, why) = listener_change(site, active, want, &listener_tree.listener);
    if change != ListenerChange::default() {
        let step = site.step(
            Action::UpdateListener(want.listener_key, Box::new(change)),
            service,
        );
        plan.steps.push(step.because(why));
    }
    let Some(pool_tree) = &listener_tree.pool_tree else {
        return create_pool(site, active, want, plan);
    };
    if pool_tree.pool.protocol != want.pool_protocol {
        let step = site.step(Action::DeletePool(want.listener_key), service);
        plan.steps.push(step.because(format!(
            "its protocol is {}, not {}",
            pool_tree.pool.protocol, want.pool_protocol
        )));
        return create_pool(site, active, want, plan);
    }
    let have = pool_tree.pool.session_persistence.as_ref();
    let by_address = have.is_some_and(|have| have.kind == NewPersistence::SOURCE_IP.kind);
    let change = PoolChange {
        lb_algorithm: if pool_tree.pool.lb_algorithm == want.method
            || !METHODS.contains(&want.method.as_str())
        {
            Set::Keep
        } else {
            Set::To(want.method.clone())
        },
        session_persistence: match (want.sticky, by_address) {
            (true, false) => Set::To(NewPersistence::SOURCE_IP),
            // Another kind is what a person chose.
            (false, true) => Set::Clear,
            _ => Set::Keep,
        },
        tags: retagged(site, active, &pool_tree.pool.tags, |tags| &tags.pool),
        ..PoolChange::default()
    };
    if change != PoolChange::default() {
        let mut why = Vec::new();
        if pool_tree.pool.lb_algorithm != want.method {
            why.push(format!(
                "method {} -> {}",
                pool_tree.pool.lb_algorithm, want.method
            ));
        }
        match (want.sticky, by_address) {
            (true, false) => why.push("sticky by address".to_owned()),
            (false, true) => why.push("no longer sticky".to_owned()),
            _ => {}
        }
        if !change.tags.is_keep() {
            why.push("pool-tags".to_owned());
        }
        let step = site.step(Action::UpdatePool(want.listener_key, change), service);
        plan.steps.push(step.because(why.join(", ")));
    }
    members(
        site,
        want.listener_key,
        want.members.as_deref(),
        pool_tree,
        service,
        plan,
    );
    monitor(site, active, want, pool_tree, plan);
}

fn listener_change(
    site: &Site<'_>,
    active: &ActiveService,
    want: &DesiredListener,
    have: &Listener,
) -> (ListenerChange, String) {
    let mut change = ListenerChange::default();
    let mut why = Vec::new();
    change.tags = retagged(site, active, &have.tags, |tags| &tags.listener);
    if !change.tags.is_keep() {
        why.push("listener-tags".to_owned());
    }
    if site.desired.can.has(Feature::Tags) && !site.tagged(&have.tags, &active.owner) {
        let mut tags = match change.tags {
            Set::To(tags) => tags,
            _ => have.tags.clone(),
        };
        tags.push(active.owner.tag.clone());
        change.tags = Set::To(tags);
        why.push("its tag is missing".to_owned());
    }
    let mut number = |field: &str, have: Option<i64>, want: i64| match have {
        Some(have) if have != want => {
            why.push(format!("{field} {have} -> {want}"));
            Set::To(want)
        }
        _ => Set::Keep,
    };
    change.connection_limit = number(
        "connection limit",
        Some(have.connection_limit.unwrap_or(-1)),
        want.connection_limit,
    );
    if let Some(timeouts) = want.timeouts {
        change.timeout_client_data = number(
            "timeout-client-data",
            have.timeout_client_data,
            timeouts.timeout_client_data,
        );
        change.timeout_member_connect = number(
            "timeout-member-connect",
            have.timeout_member_connect,
            timeouts.timeout_member_connect,
        );
        change.timeout_member_data = number(
            "timeout-member-data",
            have.timeout_member_data,
            timeouts.timeout_member_data,
        );
        change.timeout_tcp_inspect = number(
            "timeout-tcp-inspect",
            have.timeout_tcp_inspect,
            timeouts.timeout_tcp_inspect,
        );
    }
    let inserts = have
        .insert_headers
        .get(FORWARDED_FOR)
        .is_some_and(|value| value.eq_ignore_ascii_case("true"));
    if inserts != want.forwarded_for {
        let mut headers = have.insert_headers.clone();
        if want.forwarded_for {
            headers.insert(FORWARDED_FOR.to_owned(), "true".to_owned());
        } else {
            headers.remove(FORWARDED_FOR);
        }
        change.insert_headers = Set::To(headers);
        why.push(FORWARDED_FOR.to_owned());
    }
    if have.default_tls_container_ref != want.tls {
        change.default_tls_container_ref = Set::To(want.tls.clone());
        why.push("TLS container".to_owned());
    }
    if let Some(ranges) = &want.ranges {
        let now = have.allowed_cidrs.as_deref().unwrap_or_default();
        let open = now.is_empty() && bodies::everybody(&ranges.texts());
        if !open && !ranges.same(now.iter().map(String::as_str)) {
            change.allowed_cidrs = Set::To(ranges.texts());
            why.push("source ranges".to_owned());
        }
    }
    (change, why.join(", "))
}

/// The tags of a listener or pool with those that its Service requests, and without those that it requests no more.
fn retagged(
    site: &Site<'_>,
    active: &ActiveService,
    have: &[String],
    kind: impl Fn(&ServiceTags) -> &BTreeSet<String>,
) -> Set<Vec<String>> {
    if !site.desired.can.has(Feature::Tags) {
        return Set::Keep;
    }
    let requested = kind(&active.tags).iter().collect();
    let annotated = site.annotated.get(&active.owner.service).map(&kind);
    let (add, remove) = tags::difference(have, &requested, &annotated.into_iter().flatten().collect());
    if add.is_empty() && remove.is_empty() {
        return Set::Keep;
    }
    let stay = have.iter().filter(|tag| !remove.contains(tag)).cloned();
    Set::To(stay.chain(add).collect())
}

fn members(
    site: &Site<'_>,
    listener_key: ListenerKey,
    want: Option<&[DesiredMember]>,
    pool_tree: &PoolTree,
    service: Option<&ServiceId>,
    plan: &mut Plan<Change>,
) {
    let Some(want) = want else { return };
    let spec: BTreeSet<_> = want.iter().map(DesiredMember::identity).collect();
    let there: BTreeSet<_> = pool_tree.members.iter().map(Member::identity).collect();
    let mut new: Vec<DesiredMember> = want
        .iter()
        .filter(|member| !there.contains(&member.identity()))
        .cloned()
        .collect();
    let old: Vec<_> = there.difference(&spec).collect();
    let delete =
        |(address, port): &(&str, u16)| Action::DeleteMember(listener_key, (*address).to_owned(), *port);
    if site.desired.serial {
        for member in new {
            let name = names::serial_member(&member.name, &member.address, member.port);
            let member = DesiredMember { name, ..member };
            plan.steps
                .push(site.step(Action::CreateMember(listener_key, member), service));
        }
        plan.steps.extend(
            old.into_iter()
                .map(|identity| site.step(delete(identity), service)),
        );
        return;
    }
    let have = by_identity(&pool_tree.members);
    let is_other_node = |want: &DesiredMember, have: &Member| want.other_names.contains(&have.host.name);
    let changed = want.iter().any(|want| {
        have.get(&want.identity()).is_some_and(|have| {
            let renamed = have.host.name != want.name && !is_other_node(want, have);
            renamed || have.monitor_port != want.monitor_port
        })
    });
    if new.is_empty() && old.is_empty() && !changed {
        return;
    }
    let fresh = pool_tree.members.is_empty();
    if !changed && old.is_empty() && (fresh || site.desired.can.has(Feature::AdditiveMembers)) {
        let new = std::mem::take(&mut new);
        let change = if site.desired.can.has(Feature::AdditiveMembers) {
            Action::AddMembers(listener_key, new)
        } else {
            Action::SetMembers(listener_key, new)
        };
        plan.steps.push(site.step(change, service));
    } else if !changed
        && new.is_empty()
        && let [gone] = old.as_slice()
    {
        plan.steps.push(site.step(delete(gone), service));
    } else {
        let all = want.iter().map(|want| {
            let same = have
                .get(&want.identity())
                .filter(|have| is_other_node(want, have));
            let name = same.map_or(&want.name, |have| &have.host.name).clone();
            DesiredMember { name, ..want.clone() }
        });
        plan.steps
            .push(site.step(Action::SetMembers(listener_key, all.collect()), service));
    }
}

/// The members of a Service that keeps what it has, at one of its listeners.
pub(super) fn follow(
    site: &Site<'_>,
    owner: &Owner,
    listener_key: ListenerKey,
    want: &[DesiredMember],
    plan: &mut Plan<Change>,
) {
    let Some(listener_tree) = site.tree.listener_tree(listener_key) else {
        return;
    };
    let Some(pool_tree) = &listener_tree.pool_tree else {
        return;
    };
    if !belongs(site, &listener_tree.listener, owner) {
        return;
    }
    // Where they are and how they are checked is as with those that are there.
    let known = pool_tree.members.first();
    let have = by_identity(&pool_tree.members);
    let want: Vec<_> = want
        .iter()
        .map(|member| {
            let same = have.get(&member.identity()).copied();
            let known = same.or(known);
            DesiredMember {
                name: same.map_or_else(|| member.name.clone(), |same| same.host.name.clone()),
                subnet: known
                    .map(|known| known.host.subnet_id.clone())
                    .unwrap_or_default(),
                monitor_port: known.and_then(|known| known.monitor_port),
                ..member.clone()
            }
        })
        .collect();
    members(site, listener_key, Some(&want), pool_tree, None, plan);
}

fn monitor(
    site: &Site<'_>,
    active: &ActiveService,
    want: &DesiredListener,
    pool_tree: &PoolTree,
    plan: &mut Plan<Change>,
) {
    let (listener_key, service) = (want.listener_key, Some(&active.owner.service));
    let create = |desired| bodies::new_monitor(desired, want.index, &active.owner.tag);
    match (&pool_tree.monitor, want.monitor) {
        (None, None) => {}
        (None, Some(desired)) => plan
            .steps
            .push(site.step(Action::CreateMonitor(listener_key, create(desired)), service)),
        (Some(_), None) => plan
            .steps
            .push(site.step(Action::DeleteMonitor(listener_key), service)),
        (Some(have), Some(desired)) if have.kind != desired.check.kind() => {
            let why = format!("its type is {}, not {}", have.kind, desired.check.kind());
            plan.steps.push(
                site.step(Action::DeleteMonitor(listener_key), service)
                    .because(why),
            );
            plan.steps
                .push(site.step(Action::CreateMonitor(listener_key, create(desired)), service));
        }
        (Some(have), Some(desired)) => {
            let set = |have: i64, want: i64| if have == want { Set::Keep } else { Set::To(want) };
            let change = MonitorChange {
                delay: set(have.delay, desired.times.delay),
                timeout: set(have.timeout, desired.times.timeout),
                max_retries: set(have.max_retries, desired.times.max_retries),
                max_retries_down: set(have.max_retries_down, desired.times.max_retries_down),
                ..MonitorChange::default()
            };
            if change != MonitorChange::default() {
                let fields = [
                    ("delay", have.delay, desired.times.delay),
                    ("timeout", have.timeout, desired.times.timeout),
                    ("max-retries", have.max_retries, desired.times.max_retries),
                    (
                        "max-retries-down",
                        have.max_retries_down,
                        desired.times.max_retries_down,
                    ),
                ];
                let why = fields.iter().filter(|(_, have, want)| have != want);
                let why: Vec<_> = why
                    .map(|(field, have, want)| format!("{field} {have} -> {want}"))
                    .collect();
                let step = site.step(Action::UpdateMonitor(listener_key, change), service);
                plan.steps.push(step.because(why.join(", ")));
            }
        }
    }
}
