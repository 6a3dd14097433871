//! Listeners, pools, members and health monitors.

use std::collections::BTreeSet;

use ccm_core::{load_balancer::ServiceId, plan::Plan};

use super::{
    Site, blocked,
    bodies::{self, FORWARDED_FOR},
};
use crate::load_balancer::{
    bodies::{ListenerChange, MonitorChange, NewPersistence, PoolChange, Set},
    desired::{Joined, MemberWish, PortWish, Who},
    features::Feature,
    member::{Member, by_identity},
    names,
    observe::{Branch, Slot, Twig},
    protocols::METHODS,
    records::Listener,
    steps::{Action, Change},
    tags::{self, ServiceTags},
};

/// Whose a listener is.
fn belongs(site: &Site<'_>, listener: &Listener, who: &Who) -> bool {
    if listener.tags.iter().any(|tag| names::is_service_tag(tag)) {
        return site.tagged(&listener.tags, who);
    }
    // Made before there were tags; what has another name was made by a person.
    site.owned_by(who) && listener.name.starts_with("listener_")
}

/// Whether the listener may become what the Service wants there: its own, or one without tags on its own load balancer
/// that is of the right protocol already.
fn usable(site: &Site<'_>, listener: &Listener, joined: &Joined, want: Option<&PortWish>) -> bool {
    let untagged = !listener.tags.iter().any(|tag| names::is_service_tag(tag));
    let fits = want.is_some_and(|want| want.protocol == listener.protocol);
    belongs(site, listener, &joined.who) || (untagged && fits && site.owned_by(&joined.who))
}

/// Deletes a listener that its Service wants no more, or wants otherwise than it can be made.
pub(super) fn surplus(site: &Site<'_>, admitted: &[&Joined], branch: &Branch, plan: &mut Plan<Change>) {
    let (listener, slot) = (&branch.listener, branch.slot());
    let leaves = site
        .wish
        .leaving
        .iter()
        .any(|leaver| belongs(site, listener, &leaver.who));
    if leaves {
        return remove(site, branch, None, plan);
    }
    let Some(owner) = admitted
        .iter()
        .find(|joined| belongs(site, listener, &joined.who))
    else {
        return;
    };
    let want = owner.ports.iter().find(|port| port.slot == slot);
    if want.is_some_and(|want| want.protocol == listener.protocol) {
        return;
    }
    remove(site, branch, Some(&owner.who.service), plan);
    if let Some(step) = plan.steps.last_mut() {
        step.description.reason = match want {
            Some(_) => format!("its protocol is {}", listener.protocol),
            None => "its Service has no such port".to_owned(),
        };
    }
}

/// The pool first: it is found by its listener.
pub(super) fn remove(site: &Site<'_>, branch: &Branch, service: Option<&ServiceId>, plan: &mut Plan<Change>) {
    let slot = branch.slot();
    if branch.twig.is_some() {
        plan.steps.push(site.step(Action::DeletePool(slot), service));
    }
    plan.steps.push(site.step(Action::DeleteListener(slot), service));
}

/// Brings one port of a Service where it wants it.
pub(super) fn port(
    site: &Site<'_>,
    admitted: &[&Joined],
    joined: &Joined,
    want: &PortWish,
    plan: &mut Plan<Change>,
) {
    let service = Some(&joined.who.service);
    let balancer = &site.tree.balancer.name;
    match site.tree.branch(want.slot) {
        Some(branch) if usable(site, &branch.listener, joined, Some(want)) => {
            if branch.listener.protocol == want.protocol {
                update(site, joined, want, branch, plan);
            } else {
                create(site, joined, want, plan);
            }
        }
        Some(branch) => {
            let goes = site.wish.leaving.iter().map(|leaver| &leaver.who);
            let goes = goes
                .chain(
                    admitted
                        .iter()
                        .filter(|other| !other.ports.iter().any(|port| port.slot == want.slot))
                        .map(|other| &other.who),
                )
                .any(|who| belongs(site, &branch.listener, who));
            if goes {
                create(site, joined, want, plan);
            } else {
                let tags = branch.listener.tags.iter();
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
                    &format!("listener {} of load balancer {balancer}", want.slot),
                    &have,
                    &format!("that of {}", joined.who.tag),
                ));
            }
        }
        None => create(site, joined, want, plan),
    }
}

fn create(site: &Site<'_>, joined: &Joined, want: &PortWish, plan: &mut Plan<Change>) {
    let body = bodies::new_listener(site.wish, joined, want);
    let service = Some(&joined.who.service);
    plan.steps
        .push(site.step(Action::CreateListener(want.slot, Box::new(body)), service));
    create_pool(site, joined, want, plan);
}

fn create_pool(site: &Site<'_>, joined: &Joined, want: &PortWish, plan: &mut Plan<Change>) {
    let service = Some(&joined.who.service);
    let body = bodies::new_pool(joined, want);
    plan.steps
        .push(site.step(Action::CreatePool(want.slot, Box::new(body)), service));
    members(
        site,
        want.slot,
        want.members.as_deref(),
        &Twig::default(),
        service,
        plan,
    );
    monitor(site, joined, want, &Twig::default(), plan);
}

fn update(site: &Site<'_>, joined: &Joined, want: &PortWish, branch: &Branch, plan: &mut Plan<Change>) {
    let service = Some(&joined.who.service);
    let (change, why) = listener_change(site, joined, want, &branch.listener);
    if change != ListenerChange::default() {
        let step = site.step(Action::UpdateListener(want.slot, Box::new(change)), service);
        plan.steps.push(step.because(why));
    }
    let Some(twig) = &branch.twig else {
        return create_pool(site, joined, want, plan);
    };
    if twig.pool.protocol != want.pool_protocol {
        let step = site.step(Action::DeletePool(want.slot), service);
        plan.steps.push(step.because(format!(
            "its protocol is {}, not {}",
            twig.pool.protocol, want.pool_protocol
        )));
        return create_pool(site, joined, want, plan);
    }
    let have = twig.pool.session_persistence.as_ref();
    let by_address = have.is_some_and(|have| have.kind == NewPersistence::SOURCE_IP.kind);
    let change = PoolChange {
        lb_algorithm: if twig.pool.lb_algorithm == want.method || !METHODS.contains(&want.method.as_str()) {
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
        tags: retagged(site, joined, &twig.pool.tags, |tags| &tags.pool),
        ..PoolChange::default()
    };
    if change != PoolChange::default() {
        let mut why = Vec::new();
        if twig.pool.lb_algorithm != want.method {
            why.push(format!("method {} -> {}", twig.pool.lb_algorithm, want.method));
        }
        match (want.sticky, by_address) {
            (true, false) => why.push("sticky by address".to_owned()),
            (false, true) => why.push("no longer sticky".to_owned()),
            _ => {}
        }
        if !change.tags.is_keep() {
            why.push("pool-tags".to_owned());
        }
        let step = site.step(Action::UpdatePool(want.slot, change), service);
        plan.steps.push(step.because(why.join(", ")));
    }
    members(site, want.slot, want.members.as_deref(), twig, service, plan);
    monitor(site, joined, want, twig, plan);
}

fn listener_change(
    site: &Site<'_>,
    joined: &Joined,
    want: &PortWish,
    have: &Listener,
) -> (ListenerChange, String) {
    let mut change = ListenerChange::default();
    let mut why = Vec::new();
    change.tags = retagged(site, joined, &have.tags, |tags| &tags.listener);
    if !change.tags.is_keep() {
        why.push("listener-tags".to_owned());
    }
    if site.wish.can.has(Feature::Tags) && !site.tagged(&have.tags, &joined.who) {
        let mut tags = match change.tags {
            Set::To(tags) => tags,
            _ => have.tags.clone(),
        };
        tags.push(joined.who.tag.clone());
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
    joined: &Joined,
    have: &[String],
    kind: impl Fn(&ServiceTags) -> &BTreeSet<String>,
) -> Set<Vec<String>> {
    if !site.wish.can.has(Feature::Tags) {
        return Set::Keep;
    }
    let requested = kind(&joined.tags).iter().collect();
    let annotated = site.annotated.get(&joined.who.service).map(&kind);
    let (add, remove) = tags::difference(have, &requested, &annotated.into_iter().flatten().collect());
    if add.is_empty() && remove.is_empty() {
        return Set::Keep;
    }
    let stay = have.iter().filter(|tag| !remove.contains(tag)).cloned();
    Set::To(stay.chain(add).collect())
}

fn members(
    site: &Site<'_>,
    slot: Slot,
    want: Option<&[MemberWish]>,
    twig: &Twig,
    service: Option<&ServiceId>,
    plan: &mut Plan<Change>,
) {
    let Some(want) = want else { return };
    let wanted: BTreeSet<_> = want.iter().map(MemberWish::identity).collect();
    let there: BTreeSet<_> = twig.members.iter().map(Member::identity).collect();
    let mut new: Vec<MemberWish> = want
        .iter()
        .filter(|member| !there.contains(&member.identity()))
        .cloned()
        .collect();
    let old: Vec<_> = there.difference(&wanted).collect();
    let delete = |(address, port): &(&str, u16)| Action::DeleteMember(slot, (*address).to_owned(), *port);
    if site.wish.serial {
        for member in new {
            let name = names::serial_member(&member.name, &member.address, member.port);
            let member = MemberWish { name, ..member };
            plan.steps
                .push(site.step(Action::CreateMember(slot, member), service));
        }
        plan.steps.extend(
            old.into_iter()
                .map(|identity| site.step(delete(identity), service)),
        );
        return;
    }
    let have = by_identity(&twig.members);
    let is_other_node = |want: &MemberWish, have: &Member| want.other_names.contains(&have.host.name);
    let changed = want.iter().any(|want| {
        have.get(&want.identity()).is_some_and(|have| {
            let renamed = have.host.name != want.name && !is_other_node(want, have);
            renamed || have.monitor_port != want.monitor_port
        })
    });
    if new.is_empty() && old.is_empty() && !changed {
        return;
    }
    let fresh = twig.members.is_empty();
    if !changed && old.is_empty() && (fresh || site.wish.can.has(Feature::AdditiveMembers)) {
        let new = std::mem::take(&mut new);
        let change = if site.wish.can.has(Feature::AdditiveMembers) {
            Action::AddMembers(slot, new)
        } else {
            Action::SetMembers(slot, new)
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
            MemberWish { name, ..want.clone() }
        });
        plan.steps
            .push(site.step(Action::SetMembers(slot, all.collect()), service));
    }
}

/// The members of a Service that keeps what it has, at one of its listeners.
pub(super) fn follow(site: &Site<'_>, who: &Who, slot: Slot, want: &[MemberWish], plan: &mut Plan<Change>) {
    let Some(branch) = site.tree.branch(slot) else {
        return;
    };
    let Some(twig) = &branch.twig else { return };
    if !belongs(site, &branch.listener, who) {
        return;
    }
    // Where they are and how they are checked is as with those that are there.
    let known = twig.members.first();
    let have = by_identity(&twig.members);
    let want: Vec<_> = want
        .iter()
        .map(|member| {
            let same = have.get(&member.identity()).copied();
            let known = same.or(known);
            MemberWish {
                name: same.map_or_else(|| member.name.clone(), |same| same.host.name.clone()),
                subnet: known
                    .map(|known| known.host.subnet_id.clone())
                    .unwrap_or_default(),
                monitor_port: known.and_then(|known| known.monitor_port),
                ..member.clone()
            }
        })
        .collect();
    members(site, slot, Some(&want), twig, None, plan);
}

fn monitor(site: &Site<'_>, joined: &Joined, want: &PortWish, twig: &Twig, plan: &mut Plan<Change>) {
    let (slot, service) = (want.slot, Some(&joined.who.service));
    let create = |wish| bodies::new_monitor(wish, want.index, &joined.who.tag);
    match (&twig.monitor, want.monitor) {
        (None, None) => {}
        (None, Some(wish)) => plan
            .steps
            .push(site.step(Action::CreateMonitor(slot, create(wish)), service)),
        (Some(_), None) => plan.steps.push(site.step(Action::DeleteMonitor(slot), service)),
        (Some(have), Some(wish)) if have.kind != wish.check.kind() => {
            let why = format!("its type is {}, not {}", have.kind, wish.check.kind());
            plan.steps
                .push(site.step(Action::DeleteMonitor(slot), service).because(why));
            plan.steps
                .push(site.step(Action::CreateMonitor(slot, create(wish)), service));
        }
        (Some(have), Some(wish)) => {
            let set = |have: i64, want: i64| if have == want { Set::Keep } else { Set::To(want) };
            let change = MonitorChange {
                delay: set(have.delay, wish.times.delay),
                timeout: set(have.timeout, wish.times.timeout),
                max_retries: set(have.max_retries, wish.times.max_retries),
                max_retries_down: set(have.max_retries_down, wish.times.max_retries_down),
                ..MonitorChange::default()
            };
            if change != MonitorChange::default() {
                let fields = [
                    ("delay", have.delay, wish.times.delay),
                    ("timeout", have.timeout, wish.times.timeout),
                    ("max-retries", have.max_retries, wish.times.max_retries),
                    (
                        "max-retries-down",
                        have.max_retries_down,
                        wish.times.max_retries_down,
                    ),
                ];
                let why = fields.iter().filter(|(_, have, want)| have != want);
                let why: Vec<_> = why
                    .map(|(field, have, want)| format!("{field} {have} -> {want}"))
                    .collect();
                let step = site.step(Action::UpdateMonitor(slot, change), service);
                plan.steps.push(step.because(why.join(", ")));
            }
        }
    }
}
