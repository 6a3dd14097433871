//! What becomes of a part through a step: with the cloud's answer, or as far as it can be foretold.

use std::{collections::BTreeMap, sync::Arc};

use ccm_core::plan::objects;

use super::{
    bodies::{ListenerChange, NewListener, NewMonitor, NewPersistence, NewPool, Set},
    desired::DesiredMember,
    groups::Group,
    member::{Host, Member, by_identity},
    names,
    observe::{ListenerKey, ListenerTree, LoadBalancerSnapshot, LoadBalancerTree, Observed, PoolTree},
    plan::member,
    responses::{FloatingIp, Listener, LoadBalancer, Monitor, Persistence, Pool, Provisioning},
    steps::{Action, Change},
    writes::CreatedLoadBalancer,
};
use crate::instances::records::Port;

/// What the cloud answers to a step.
#[derive(Clone, Debug)]
pub(crate) enum Reply {
    /// Nothing that has to be known.
    Nothing,
    Balancer(Box<CreatedLoadBalancer>),
    Listener(Box<Listener>),
    Pool(Box<Pool>),
    Monitor(Box<Monitor>),
    Floating(Box<FloatingIp>),
    Group(objects::Reply<Group>),
    Port(Box<Port>),
}

/// Does the step to `observed`.
pub(crate) fn fold(change: &Change, reply: Option<&Reply>, observed: &mut Observed) {
    match observed {
        Observed::Balancers(snapshot) => balancers(change, reply, snapshot),
        Observed::Groups(groups) => {
            if let Action::Group(change) = &change.action {
                let reply = match reply {
                    Some(Reply::Group(reply)) => Some(reply),
                    _ => None,
                };
                groups.fold(change, reply);
            }
        }
        Observed::Ports(ports) => {
            if let Action::DeletePortTag { port, group } = &change.action
                && let Some(have) = ports.get_mut(port)
            {
                have.tags.retain(|tag| group.id.known() != Some(tag));
            }
            if let Action::SetPortGroups { port, add, remove } = &change.action
                && let Some(have) = ports.get_mut(port)
            {
                if let Some(Reply::Port(now)) = reply {
                    *have = (**now).clone();
                    return;
                }
                have.security_groups
                    .retain(|group| !remove.iter().any(|gone| gone.id.known() == Some(group)));
                for group in add.iter().map(|group| group.id.to_string()) {
                    if !have.security_groups.contains(&group) {
                        have.security_groups.push(group);
                    }
                }
            }
        }
    }
}

fn balancers(change: &Change, reply: Option<&Reply>, snapshot: &mut LoadBalancerSnapshot) {
    match &change.action {
        Action::CreateBalancer(body) => {
            let mut balancer = LoadBalancer {
                name: body.name.clone(),
                description: body.description.clone(),
                provider: body.provider.clone(),
                tags: body.tags.clone(),
                vip_address: body.vip_address.clone(),
                provisioning_status: Provisioning::Active,
                ..LoadBalancer::default()
            };
            let mut listener_trees: Vec<_> = body.listeners.iter().map(new_branch).collect();
            if let Some(Reply::Balancer(created)) = reply {
                balancer = created.balancer.clone();
                // It is waited for before anybody looks at it again.
                balancer.provisioning_status = Provisioning::Active;
                for listener_tree in &mut listener_trees {
                    let listener_key = listener_tree.listener_key();
                    let answered = created
                        .members
                        .iter()
                        .find(|(answered, _)| *answered == listener_key);
                    if let (Some((_, members)), Some(pool_tree)) = (answered, &mut listener_tree.pool_tree) {
                        pool_tree.members = Arc::clone(members);
                    }
                }
            }
            snapshot.trees = vec![LoadBalancerTree {
                balancer,
                listener_trees,
                ..LoadBalancerTree::default()
            }];
            return;
        }
        Action::DeleteBalancer { .. } => {
            snapshot.trees.clear();
            return;
        }
        Action::DeleteFloating(address) => {
            snapshot
                .floating
                .retain(|floating| floating.floating_ip_address != *address);
        }
        _ => {}
    }
    if let Some(tree) = snapshot.trees.first_mut() {
        floating(change, reply, tree, &mut snapshot.floating);
        below(change, reply, tree);
    }
}

fn floating(
    change: &Change,
    reply: Option<&Reply>,
    tree: &mut LoadBalancerTree,
    known: &mut Vec<FloatingIp>,
) {
    let answered = match reply {
        Some(Reply::Floating(floating)) => Some((**floating).clone()),
        _ => None,
    };
    match &change.action {
        Action::CreateFloating(desired) => {
            tree.floating = Some(answered.unwrap_or_else(|| FloatingIp {
                floating_ip_address: desired.address.clone(),
                floating_network_id: desired.network.clone().unwrap_or_default(),
                port_id: tree.balancer.vip_port_id.clone(),
                description: desired.description.clone(),
                ..FloatingIp::default()
            }));
        }
        Action::AttachFloating(address) => {
            let have = known
                .iter_mut()
                .find(|floating| floating.floating_ip_address == *address);
            let foretold = have.map(|have| {
                have.port_id.clone_from(&tree.balancer.vip_port_id);
                have.clone()
            });
            tree.floating = answered.or(foretold);
        }
        Action::DetachFloating(address) => {
            if let Some(detached) = tree.floating.take()
                && !known.iter().any(|floating| floating.id == detached.id)
            {
                known.push(detached);
            }
            for floating in known {
                if floating.floating_ip_address == *address {
                    floating.port_id.clear();
                }
            }
        }
        Action::DeleteFloating(_) => tree.floating = None,
        _ => {}
    }
}

fn below(change: &Change, reply: Option<&Reply>, tree: &mut LoadBalancerTree) {
    match &change.action {
        Action::Failover => tree.balancer.provisioning_status = Provisioning::Active,
        Action::Rename { from, to } => {
            let balancer = &mut tree.balancer;
            balancer.name = names::with_cluster(&balancer.name, from, to);
            balancer.tags = names::tags_with_cluster(&balancer.tags, from, to);
        }
        Action::Retag { add, remove } => {
            let tags = &mut tree.balancer.tags;
            tags.retain(|tag| !remove.contains(tag));
            for tag in add {
                if !tags.contains(tag) {
                    tags.push(tag.clone());
                }
            }
        }
        Action::CreateListener(listener_key, body) => {
            tree.listener_trees
                .retain(|listener_tree| listener_tree.listener_key() != *listener_key);
            let mut listener_tree = new_branch(body);
            if let Some(Reply::Listener(created)) = reply {
                listener_tree.listener.id.clone_from(&created.id);
            }
            tree.listener_trees.push(listener_tree);
        }
        Action::DeleteListener(listener_key) => tree
            .listener_trees
            .retain(|listener_tree| listener_tree.listener_key() != *listener_key),
        Action::DeleteOrphanedPool(id) => tree.orphaned_pools.retain(|pool| pool.id != *id),
        Action::UpdateListener(listener_key, change) => {
            if let Some(listener_tree) = tree.listener_tree_mut(*listener_key) {
                change_listener(&mut listener_tree.listener, change);
            }
        }
        action => {
            let listener_key = match action {
                Action::CreatePool(listener_key, _)
                | Action::UpdatePool(listener_key, _)
                | Action::DeletePool(listener_key)
                | Action::AddMembers(listener_key, _)
                | Action::SetMembers(listener_key, _)
                | Action::CreateMember(listener_key, _)
                | Action::DeleteMember(listener_key, ..)
                | Action::CreateMonitor(listener_key, _)
                | Action::UpdateMonitor(listener_key, _)
                | Action::DeleteMonitor(listener_key) => *listener_key,
                _ => return,
            };
            pool(action, reply, listener_key, tree);
        }
    }
}

fn pool(action: &Action, reply: Option<&Reply>, listener_key: ListenerKey, tree: &mut LoadBalancerTree) {
    let Some(listener_tree) = tree.listener_tree_mut(listener_key) else {
        return;
    };
    match action {
        Action::CreatePool(_, body) => {
            let mut pool_tree = new_twig(body);
            if let Some(Reply::Pool(created)) = reply {
                pool_tree.pool.id.clone_from(&created.id);
            }
            listener_tree.pool_tree = Some(pool_tree);
            return;
        }
        Action::DeletePool(_) => {
            listener_tree.pool_tree = None;
            return;
        }
        _ => {}
    }
    let Some(pool_tree) = &mut listener_tree.pool_tree else {
        return;
    };
    match action {
        Action::UpdatePool(_, change) => {
            put(&mut pool_tree.pool.name, &change.name);
            put(&mut pool_tree.pool.lb_algorithm, &change.lb_algorithm);
            put(&mut pool_tree.pool.tags, &change.tags);
            match &change.session_persistence {
                Set::Keep => {}
                Set::Clear => pool_tree.pool.session_persistence = None,
                Set::To(new) => pool_tree.pool.session_persistence = Some(persistence(new)),
            }
        }
        Action::AddMembers(_, members) => add(&mut pool_tree.members, members),
        Action::CreateMember(_, desired) => add(&mut pool_tree.members, std::slice::from_ref(desired)),
        Action::SetMembers(_, members) => {
            let have = by_identity(&pool_tree.members);
            let members = members.iter().map(|desired| {
                let same = have.get(&desired.identity()).copied();
                let mut member = same.cloned().unwrap_or_else(|| new_member(desired));
                if member.host.name != desired.name {
                    let name = desired.name.clone();
                    let host = (*member.host).clone();
                    member.host = Arc::new(Host { name, ..host });
                }
                member.monitor_port = desired.monitor_port;
                member
            });
            pool_tree.members = members.collect();
        }
        Action::DeleteMember(_, address, port) => {
            let gone = (address.as_str(), *port);
            let stay = pool_tree
                .members
                .iter()
                .filter(|member| member.identity() != gone);
            pool_tree.members = stay.cloned().collect();
        }
        Action::CreateMonitor(_, body) => {
            let mut monitor = new_monitor(body);
            if let Some(Reply::Monitor(created)) = reply {
                monitor.id.clone_from(&created.id);
            }
            pool_tree.monitor = Some(monitor);
        }
        Action::DeleteMonitor(_) => pool_tree.monitor = None,
        Action::UpdateMonitor(_, change) => {
            if let Some(monitor) = &mut pool_tree.monitor {
                put(&mut monitor.name, &change.name);
                put(&mut monitor.delay, &change.delay);
                put(&mut monitor.timeout, &change.timeout);
                put(&mut monitor.max_retries, &change.max_retries);
                put(&mut monitor.max_retries_down, &change.max_retries_down);
            }
        }
        _ => {}
    }
}

fn add(members: &mut Arc<[Member]>, desired_members: &[DesiredMember]) {
    // Of several for one place the last one counts.
    let new: BTreeMap<_, _> = desired_members
        .iter()
        .map(|desired| (desired.identity(), desired))
        .collect();
    let stay = members.iter().filter(|have| !new.contains_key(&have.identity()));
    *members = stay
        .cloned()
        .chain(new.values().copied().map(new_member))
        .collect();
}

fn put<T: Clone + Default>(field: &mut T, change: &Set<T>) {
    match change {
        Set::Keep => {}
        Set::Clear => *field = T::default(),
        Set::To(value) => field.clone_from(value),
    }
}

fn change_listener(listener: &mut Listener, change: &ListenerChange) {
    put(&mut listener.name, &change.name);
    put(&mut listener.tags, &change.tags);
    put(&mut listener.insert_headers, &change.insert_headers);
    put(
        &mut listener.default_tls_container_ref,
        &change.default_tls_container_ref,
    );
    for (field, change) in [
        (&mut listener.connection_limit, &change.connection_limit),
        (&mut listener.timeout_client_data, &change.timeout_client_data),
        (
            &mut listener.timeout_member_connect,
            &change.timeout_member_connect,
        ),
        (&mut listener.timeout_member_data, &change.timeout_member_data),
        (&mut listener.timeout_tcp_inspect, &change.timeout_tcp_inspect),
    ] {
        if let Set::To(value) = change {
            *field = Some(*value);
        }
    }
    if let Set::To(ranges) = &change.allowed_cidrs {
        listener.allowed_cidrs = Some(ranges.clone());
    }
}

fn new_branch(body: &NewListener) -> ListenerTree {
    let headers = body.insert_headers.iter();
    ListenerTree {
        listener: Listener {
            name: body.name.clone(),
            protocol: body.protocol.to_owned(),
            protocol_port: body.protocol_port,
            connection_limit: Some(body.connection_limit),
            insert_headers: headers
                .map(|(key, value)| ((*key).to_owned(), (*value).to_owned()))
                .collect::<BTreeMap<_, _>>(),
            default_tls_container_ref: body.default_tls_container_ref.clone(),
            timeout_client_data: body.timeouts.map(|timeouts| timeouts.timeout_client_data),
            timeout_member_connect: body.timeouts.map(|timeouts| timeouts.timeout_member_connect),
            timeout_member_data: body.timeouts.map(|timeouts| timeouts.timeout_member_data),
            timeout_tcp_inspect: body.timeouts.map(|timeouts| timeouts.timeout_tcp_inspect),
            allowed_cidrs: (!body.allowed_cidrs.is_empty()).then(|| body.allowed_cidrs.clone()),
            tags: body.tags.clone(),
            provisioning_status: Provisioning::Active,
            ..Listener::default()
        },
        pool_tree: body.default_pool.as_ref().map(new_twig),
    }
}

fn persistence(new: &NewPersistence) -> Persistence {
    Persistence {
        kind: new.kind.to_owned(),
        ..Persistence::default()
    }
}

fn new_twig(body: &NewPool) -> PoolTree {
    PoolTree {
        pool: Pool {
            name: body.name.clone(),
            protocol: body.protocol.to_owned(),
            lb_algorithm: body.lb_algorithm.clone(),
            session_persistence: body.session_persistence.as_ref().map(persistence),
            tags: body.tags.clone(),
            provisioning_status: Provisioning::Active,
            ..Pool::default()
        },
        members: body.members.iter().map(Member::expected).collect(),
        monitor: body.healthmonitor.as_ref().map(new_monitor),
    }
}

fn new_member(desired: &DesiredMember) -> Member {
    Member::expected(&member(desired))
}

fn new_monitor(body: &NewMonitor) -> Monitor {
    Monitor {
        name: body.name.clone(),
        kind: body.kind.to_owned(),
        delay: body.delay,
        timeout: body.timeout,
        max_retries: body.max_retries,
        max_retries_down: body.max_retries_down,
        url_path: body.url_path.unwrap_or_default().to_owned(),
        http_method: body.http_method.unwrap_or_default().to_owned(),
        expected_codes: body.expected_codes.unwrap_or_default().to_owned(),
        provisioning_status: Provisioning::Active,
        ..Monitor::default()
    }
}
