//! What a Service asks of its load balancer: its fields, annotations, class and the config, put together.

use ccm_core::{
    Result,
    check::Field,
    load_balancer::{IpFamily, ServiceView},
};

use super::{
    annotations as note,
    annotations::{Reader, Refused, Tolerated, allowed, field},
    bodies::Timeouts,
    features::{Capabilities, Feature},
    protocols::Proxy,
    selector::Selector,
    source_ranges::SourceRanges,
    tags::ServiceTags,
};
use crate::config::{LoadBalancing, keys::LoadBalancerClass};

/// How members are checked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Pace {
    pub(crate) delay: i64,
    pub(crate) timeout: i64,
    pub(crate) max_retries: i64,
    pub(crate) max_retries_down: i64,
}

/// Where a floating address comes from. Empty texts say nothing.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Source {
    pub(crate) network: String,
    pub(crate) subnet: String,
    pub(crate) pattern: String,
    pub(crate) tags: String,
}

/// What a Service asks for.
#[derive(Clone, Debug)]
pub(crate) struct Wanted {
    pub(crate) family: Option<IpFamily>,
    pub(crate) internal: bool,
    pub(crate) keep_floating_ip: bool,
    pub(crate) proxy: Proxy,
    pub(crate) forwarded_for: bool,
    pub(crate) tls: String,
    pub(crate) vip_subnet: String,
    pub(crate) vip_network: String,
    pub(crate) vip_port: String,
    /// Where members are, if that is said and not found out.
    pub(crate) member_subnet: String,
    pub(crate) source: Source,
    pub(crate) connection_limit: i64,
    pub(crate) method: String,
    pub(crate) timeouts: Timeouts,
    pub(crate) monitor: Option<Pace>,
    pub(crate) flavor: String,
    pub(crate) zone: String,
    pub(crate) selector: Selector,
    pub(crate) ranges: SourceRanges,
    /// Tags beside those that the cluster needs for itself.
    pub(crate) tags: ServiceTags,
    /// What was taken for something else.
    pub(crate) tolerated: Vec<Tolerated>,
}

/// Whether a Service keeps its load balancer to the inside.
pub(crate) fn is_internal(service: &ServiceView, settings: &LoadBalancing) -> bool {
    settings.conf.internal_lb || service.annotation(note::INTERNAL) == Some("true")
}

/// Whether a Service's floating address outlives it.
pub(crate) fn keeps_floating_ip(service: &ServiceView) -> bool {
    service.annotation(note::KEEP_FLOATING_IP) == Some("true")
}

/// The class that a Service names, if there is one.
pub(crate) fn class<'a>(service: &ServiceView, settings: &'a LoadBalancing) -> Option<&'a LoadBalancerClass> {
    let name = service.annotation(note::CLASS)?;
    settings.classes.get(name)
}

/// Which nodes a Service takes as members.
pub(crate) fn selector(service: &ServiceView, settings: &LoadBalancing) -> Selector {
    let text = service.annotation(note::NODE_SELECTOR);
    Selector::parse(text.unwrap_or(&settings.conf.node_selector))
}

/// The external network that a Service names; empty if it leaves that to us.
pub(crate) fn floating_network<'a>(service: &'a ServiceView, settings: &'a LoadBalancing) -> &'a str {
    let class = class(service, settings).map(|class| class.floating_network_id.as_str());
    class.filter(|network| !network.is_empty()).unwrap_or_else(|| {
        service
            .annotation(note::FLOATING_NETWORK_ID)
            .unwrap_or(&settings.conf.floating_network_id)
    })
}

impl Wanted {
    /// Reads all of it.
    ///
    /// # Errors
    /// What the Go cloud controller or Octavia refuses, all of it at once.
    pub(crate) fn read(
        service: &ServiceView,
        settings: &LoadBalancing,
        can: Option<Capabilities>,
    ) -> Result<Self> {
        let (wanted, refused) = Self::examine(service, settings, can);
        if refused.is_empty() {
            Ok(wanted)
        } else {
            Err(note::refusal(&refused))
        }
    }

    /// As [`Self::read`], with what is refused one by one. In its place stands the default.
    pub(crate) fn examine(
        service: &ServiceView,
        settings: &LoadBalancing,
        can: Option<Capabilities>,
    ) -> (Self, Vec<Refused>) {
        let conf = &settings.conf;
        let class = class(service, settings);
        let mut read = Reader::new(&service.annotations);
        if service.ports.is_empty() {
            read.refuse(Field::Spec("ports"), "the Service has no ports".to_owned());
        }
        if let Some(name) = read.given(note::CLASS).filter(|name| !name.is_empty())
            && class.is_none()
        {
            read.refuse(
                field(note::CLASS),
                format!("{}: the config has no [LoadBalancerClass {name:?}]", note::CLASS),
            );
        }
        let internal = read.flag(note::INTERNAL, conf.internal_lb) || conf.internal_lb;
        let proxy = read.proxy();
        let forwarded_for = read.flag(note::X_FORWARDED_FOR, false);
        let tls = read
            .text(note::TLS_CONTAINER_REF, &conf.default_tls_container_ref)
            .to_owned();
        if proxy != Proxy::Off && forwarded_for {
            read.refuse(
                field(note::X_FORWARDED_FOR),
                format!(
                    "{} and {} cannot be used together",
                    note::PROXY_PROTOCOL,
                    note::X_FORWARDED_FOR
                ),
            );
        }
        if let Some(can) = can {
            refuse_unsupported(&mut read, service, can, proxy, forwarded_for, !tls.is_empty());
        }
        let of_class = |value: fn(&LoadBalancerClass) -> &String| class.map(|class| value(class).as_str());
        let mut vip = [
            (
                note::SUBNET_ID,
                of_class(|class| &class.subnet_id),
                conf.subnet_id.as_str(),
            ),
            (
                note::NETWORK_ID,
                of_class(|class| &class.network_id),
                conf.network_id.as_str(),
            ),
        ]
        .map(|(key, class, default)| {
            let class = class.filter(|value| !value.is_empty());
            match class {
                // Where addresses are public the class decides before the annotation.
                Some(class) if !internal => class.to_owned(),
                class => read.text_or_class(key, class, default).to_owned(),
            }
        });
        let [vip_subnet, vip_network] = &mut vip;
        let explicit = read.text_or_class(
            note::MEMBER_SUBNET_ID,
            of_class(|class| &class.member_subnet_id),
            &conf.member_subnet_id,
        );
        let member_subnet = [explicit, conf.subnet_id.as_str(), vip_subnet.as_str()]
            .into_iter()
            .find(|subnet| !subnet.is_empty())
            .unwrap_or_default()
            .to_owned();
        let family = service.ip_families.first().copied();
        let listed = service.source_ranges.iter().flatten().map(|range| &**range);
        let from_spec = listed.clone().next().is_some();
        let ranges = SourceRanges::of(listed, read.given(note::SOURCE_RANGES), family);
        let ranges = ranges.unwrap_or_else(|error| {
            let about = if from_spec {
                Field::Spec("loadBalancerSourceRanges")
            } else {
                field(note::SOURCE_RANGES)
            };
            read.refuse(about, error.to_string());
            SourceRanges::everybody(family)
        });
        let timeouts = Timeouts {
            timeout_client_data: read.number(note::TIMEOUT_CLIENT_DATA, 50_000, allowed::TIMEOUT),
            timeout_member_connect: read.number(note::TIMEOUT_MEMBER_CONNECT, 5_000, allowed::TIMEOUT),
            timeout_member_data: read.number(note::TIMEOUT_MEMBER_DATA, 50_000, allowed::TIMEOUT),
            timeout_tcp_inspect: read.number(note::TIMEOUT_TCP_INSPECT, 0, allowed::TIMEOUT),
        };
        let seconds = |duration: ccm_core::config::GoDuration| {
            i64::try_from(duration.to_std().as_secs()).unwrap_or(i64::MAX)
        };
        let monitored = read.flag(note::ENABLE_HEALTH_MONITOR, conf.create_monitor);
        let pace = Pace {
            delay: read.number(
                note::HEALTH_MONITOR_DELAY,
                seconds(conf.monitor_delay),
                allowed::SECONDS,
            ),
            timeout: read.number(
                note::HEALTH_MONITOR_TIMEOUT,
                seconds(conf.monitor_timeout),
                allowed::SECONDS,
            ),
            max_retries: read.number(
                note::HEALTH_MONITOR_MAX_RETRIES,
                i64::from(conf.monitor_max_retries),
                allowed::RETRIES,
            ),
            max_retries_down: read.number(
                note::HEALTH_MONITOR_MAX_RETRIES_DOWN,
                i64::from(conf.monitor_max_retries_down),
                allowed::RETRIES,
            ),
        };
        let wanted = Self {
            family,
            internal,
            keep_floating_ip: read.flag(note::KEEP_FLOATING_IP, false),
            proxy,
            forwarded_for,
            tls,
            vip_subnet: std::mem::take(vip_subnet),
            vip_network: std::mem::take(vip_network),
            vip_port: read.text(note::PORT_ID, "").to_owned(),
            member_subnet,
            source: source(&read, class, settings),
            connection_limit: read.number(note::CONNECTION_LIMIT, -1, allowed::CONNECTION_LIMIT),
            method: read.text(note::LB_METHOD, &conf.lb_method).to_owned(),
            timeouts,
            monitor: monitored.then_some(pace),
            flavor: read.text(note::FLAVOR_ID, &conf.flavor_id).to_owned(),
            zone: read
                .text(note::AVAILABILITY_ZONE, &conf.availability_zone)
                .to_owned(),
            selector: selector(service, settings),
            ranges,
            tags: ServiceTags::requested(service, |key, problem| read.warn(key, problem)),
            tolerated: Vec::new(),
        };
        let (tolerated, refused) = read.finish();
        (Self { tolerated, ..wanted }, refused)
    }
}

/// The first of class, annotations and config that names a subnet, by id or by pattern.
fn source(read: &Reader<'_>, class: Option<&LoadBalancerClass>, settings: &LoadBalancing) -> Source {
    let conf = &settings.conf;
    let own = |value: Option<&String>| value.cloned().unwrap_or_default();
    let given = |key| read.given(key).unwrap_or_default().to_owned();
    let network = class
        .map(|class| class.floating_network_id.as_str())
        .filter(|network| !network.is_empty())
        .unwrap_or_else(|| read.text(note::FLOATING_NETWORK_ID, &conf.floating_network_id))
        .to_owned();
    let candidates = [
        (
            own(class.map(|class| &class.floating_subnet_id)),
            own(class.map(|class| &class.floating_subnet)),
            own(class.map(|class| &class.floating_subnet_tags)),
        ),
        (
            given(note::FLOATING_SUBNET_ID),
            given(note::FLOATING_SUBNET),
            given(note::FLOATING_SUBNET_TAGS),
        ),
        (
            conf.floating_subnet_id.clone(),
            conf.floating_subnet.clone(),
            conf.floating_subnet_tags.clone(),
        ),
    ];
    let first = candidates
        .into_iter()
        .find(|(id, pattern, tags)| !id.is_empty() || !pattern.is_empty() || !tags.is_empty());
    let (subnet, pattern, tags) = first.unwrap_or_default();
    Source {
        network,
        subnet,
        pattern,
        tags,
    }
}

/// What this Octavia, or this provider of it, does not have and would answer with an error.
fn refuse_unsupported(
    read: &mut Reader<'_>,
    service: &ServiceView,
    can: Capabilities,
    proxy: Proxy,
    forwarded_for: bool,
    tls: bool,
) {
    use ccm_core::load_balancer::Protocol;
    if can.ovn {
        for (asked, key) in [
            (proxy != Proxy::Off, note::PROXY_PROTOCOL),
            (forwarded_for, note::X_FORWARDED_FOR),
            (tls, note::TLS_CONTAINER_REF),
        ] {
            if asked {
                read.refuse(
                    field(key),
                    format!("{key}: Octavia's provider ovn only passes packets on, it does not have that"),
                );
            }
        }
    } else if proxy == Proxy::V2 && !can.has(Feature::ProxyV2) {
        read.refuse(
            field(note::PROXY_PROTOCOL),
            format!(
                "{}: v2 needs version 2.22 of Octavia's API; v1 would do",
                note::PROXY_PROTOCOL
            ),
        );
    }
    let has = |protocol| service.ports.iter().any(|port| port.protocol == protocol);
    if has(Protocol::Sctp) && !can.has(Feature::Sctp) {
        read.refuse(
            Field::Spec("ports"),
            "SCTP needs version 2.23 of Octavia's API".to_owned(),
        );
    }
    if proxy != Proxy::Off && has(Protocol::Udp) {
        read.refuse(
            field(note::PROXY_PROTOCOL),
            format!("{}: not for UDP", note::PROXY_PROTOCOL),
        );
    }
    if (forwarded_for || tls) && (has(Protocol::Udp) || has(Protocol::Sctp)) {
        let key = if tls {
            note::TLS_CONTAINER_REF
        } else {
            note::X_FORWARDED_FOR
        };
        read.refuse(field(key), format!("{key}: only for TCP"));
    }
}
