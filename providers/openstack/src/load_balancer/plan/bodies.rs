//! What new things are made with.

use std::collections::BTreeMap;

use ccm_core::load_balancer::{IpFamily, SourceRanges};

use crate::load_balancer::{
    bodies::{MemberBody, NewListener, NewLoadBalancer, NewMonitor, NewPersistence, NewPool},
    desired::{ActiveService, DesiredBalancer, DesiredListener, DesiredMember, DesiredMonitor},
    features::Feature,
    names,
    protocols::{HEALTHZ, HealthCheck, METHODS},
};

/// The header that members read the client's address from.
pub(super) const FORWARDED_FOR: &str = "X-Forwarded-For";

pub(super) fn new_balancer(desired: &DesiredBalancer, active: &ActiveService) -> NewLoadBalancer {
    let name = &active.owner.tag;
    let fields = &active.fields;
    let tags = desired.can.has(Feature::Tags);
    let mark = desired.ownership_tag.for_create().map(ToString::to_string);
    let listeners = active.ports.iter().map(|port| NewListener {
        default_pool: Some(NewPool {
            members: port.members.iter().flatten().map(member).collect(),
            healthmonitor: port.monitor.map(|monitor| new_monitor(monitor, port.index, name)),
            ..new_pool(active, port)
        }),
        ..new_listener(desired, active, port)
    });
    NewLoadBalancer {
        name: name.clone(),
        description: fields.description.clone(),
        provider: desired.provider.clone(),
        tags: if tags {
            let requested = active.tags.load_balancer.iter().cloned();
            std::iter::once(name.clone())
                .chain(mark)
                .chain(requested)
                .collect()
        } else {
            Vec::new()
        },
        flavor_id: fields.flavor.clone(),
        availability_zone: fields.zone.clone(),
        vip_port_id: fields.vip_port.clone(),
        vip_subnet_id: fields.vip_subnet.clone(),
        vip_network_id: fields.vip_network.clone(),
        vip_address: fields.vip_address.clone(),
        listeners: if desired.serial {
            Vec::new()
        } else {
            listeners.collect()
        },
    }
}

/// Listeners, pools and monitors are called after the Service that they are for, on another's load balancer too.
pub(super) fn new_listener(
    desired: &DesiredBalancer,
    active: &ActiveService,
    port: &DesiredListener,
) -> NewListener {
    let tag = &active.owner.tag;
    NewListener {
        name: names::listener(port.index, tag),
        protocol: port.protocol,
        protocol_port: port.listener_key.port,
        connection_limit: port.connection_limit,
        tags: if desired.can.has(Feature::Tags) {
            let requested = active.tags.listener.iter().cloned();
            std::iter::once(tag.clone()).chain(requested).collect()
        } else {
            Vec::new()
        },
        timeouts: port.timeouts,
        insert_headers: if port.forwarded_for {
            BTreeMap::from([(FORWARDED_FOR, "true")])
        } else {
            BTreeMap::new()
        },
        default_tls_container_ref: port.tls.clone(),
        allowed_cidrs: port.ranges.as_ref().map(SourceRanges::texts).unwrap_or_default(),
        ..NewListener::default()
    }
}

pub(super) fn new_pool(active: &ActiveService, port: &DesiredListener) -> NewPool {
    NewPool {
        name: names::pool(port.index, &active.owner.tag),
        protocol: port.pool_protocol,
        // Whoever asks for one that Octavia does not know gets what it makes by default.
        lb_algorithm: if METHODS.contains(&port.method.as_str()) {
            port.method.clone()
        } else {
            "ROUND_ROBIN".to_owned()
        },
        tags: active.tags.pool.iter().cloned().collect(),
        session_persistence: port.sticky.then_some(NewPersistence::SOURCE_IP),
        ..NewPool::default()
    }
}

pub(super) fn new_monitor(monitor: DesiredMonitor, index: usize, tag: &str) -> NewMonitor {
    let http = matches!(monitor.check, HealthCheck::Healthz(_)).then_some(HEALTHZ);
    let times = monitor.times;
    NewMonitor {
        name: names::monitor(index, tag),
        kind: monitor.check.kind(),
        delay: times.delay,
        timeout: times.timeout,
        max_retries: times.max_retries,
        max_retries_down: times.max_retries_down,
        url_path: http.map(|(path, ..)| path),
        http_method: http.map(|(_, method, _)| method),
        expected_codes: http.map(|(.., codes)| codes),
        ..NewMonitor::default()
    }
}

pub(crate) fn member(desired: &DesiredMember) -> MemberBody {
    MemberBody {
        address: desired.address.clone(),
        protocol_port: desired.port,
        name: desired.name.clone(),
        subnet_id: desired.subnet.clone(),
        monitor_port: desired.monitor_port,
        ..MemberBody::default()
    }
}

/// Whether these ranges let in everybody of a family, which is the same as none.
pub(super) fn everybody(ranges: &[String]) -> bool {
    let whole = |family| match family {
        IpFamily::V4 => "0.0.0.0/0",
        IpFamily::V6 => "::/0",
    };
    matches!(ranges, [one] if *one == whole(IpFamily::V4) || *one == whole(IpFamily::V6))
}
