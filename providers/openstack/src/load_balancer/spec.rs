//! The spec of a Service's load balancer, from its fields, annotations, class and the config.

use ccm_core::{
    Result,
    check::Field,
    config::GoDuration,
    load_balancer::{
        AnnotationReader, IgnoredValue, InvalidField, IpFamily, NodeSelector, Protocol, ServiceView,
        SourceRanges,
    },
};

use super::settings::{LoadBalancer, LoadBalancerClass, LoadBalancing};
use super::{
    annotations,
    annotations::allowed,
    features::{Capabilities, Feature},
    protocols::Proxy,
    tags::ServiceTags,
};

/// The times and limits of health checks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct HealthMonitorTimes {
    /// Seconds between two checks.
    pub(crate) delay: i64,
    /// The longest duration of a check in seconds.
    pub(crate) timeout: i64,
    /// Successful checks before a member is up.
    pub(crate) max_retries: i64,
    /// Failed checks before a member is down.
    pub(crate) max_retries_down: i64,
}

/// Octavia's names of a listener's timeouts, in milliseconds.
pub(crate) type Timeouts = [(&'static str, i64); 4];

/// The source of a floating IP. Empty texts leave the choice open.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct FloatingIpSource {
    pub(crate) network: String,
    pub(crate) subnet: String,
    pub(crate) pattern: String,
    pub(crate) tags: String,
}

/// The spec of a Service's load balancer.
#[derive(Clone, Debug)]
pub(crate) struct BalancerSpec {
    pub(crate) family: Option<IpFamily>,
    pub(crate) internal: bool,
    pub(crate) keep_floating_ip: bool,
    pub(crate) proxy: Proxy,
    pub(crate) forwarded_for: bool,
    pub(crate) tls: String,
    pub(crate) vip_subnet: String,
    pub(crate) vip_network: String,
    pub(crate) vip_port: String,
    /// The members' subnet; empty if it has to be discovered.
    pub(crate) member_subnet: String,
    pub(crate) source: FloatingIpSource,
    pub(crate) connection_limit: i64,
    pub(crate) method: String,
    pub(crate) timeouts: Timeouts,
    pub(crate) monitor: Option<HealthMonitorTimes>,
    pub(crate) flavor: String,
    pub(crate) zone: String,
    pub(crate) selector: NodeSelector,
    pub(crate) ranges: SourceRanges,
    /// The tags that the Service requests.
    pub(crate) tags: ServiceTags,
    /// Ignored values.
    pub(crate) ignored: Vec<IgnoredValue>,
}

/// Whether the Service has no floating IP.
pub(crate) fn is_internal(service: &ServiceView, settings: &LoadBalancing) -> bool {
    settings.conf.internal_lb || service.annotation(annotations::INTERNAL) == Some("true")
}

/// Whether the Service's floating IP is kept when the Service is deleted.
pub(crate) fn keeps_floating_ip(service: &ServiceView) -> bool {
    service.annotation(annotations::KEEP_FLOATING_IP) == Some("true")
}

fn class<'a>(service: &ServiceView, settings: &'a LoadBalancing) -> Option<&'a LoadBalancerClass> {
    settings.classes.get(service.annotation(annotations::CLASS)?)
}

/// The selector of the nodes that become members.
pub(crate) fn selector(service: &ServiceView, settings: &LoadBalancing) -> NodeSelector {
    let text = service.annotation(annotations::NODE_SELECTOR);
    NodeSelector::parse(text.unwrap_or(&settings.conf.node_selector))
}

/// The external network that the Service names; empty if it names none.
pub(crate) fn floating_network<'a>(service: &'a ServiceView, settings: &'a LoadBalancing) -> &'a str {
    let class = class(service, settings).map(|class| class.floating_network_id.as_str());
    let given = || service.annotation(annotations::FLOATING_NETWORK_ID);
    let class = class.filter(|network| !network.is_empty());
    class.or_else(given).unwrap_or(&settings.conf.floating_network_id)
}

impl BalancerSpec {
    /// Reads the spec of a Service.
    ///
    /// # Errors
    /// All values that the Go cloud controller or Octavia refuses, as one error.
    pub(crate) fn read(
        service: &ServiceView,
        settings: &LoadBalancing,
        can: Option<Capabilities>,
    ) -> Result<Self> {
        let (spec, invalid) = Self::examine(service, settings, can);
        if invalid.is_empty() {
            Ok(spec)
        } else {
            Err(InvalidField::error(&invalid))
        }
    }

    /// As [`Self::read`], with all refused values. Defaults replace them.
    pub(crate) fn examine(
        service: &ServiceView,
        settings: &LoadBalancing,
        can: Option<Capabilities>,
    ) -> (Self, Vec<InvalidField>) {
        let conf = &settings.conf;
        let class = class(service, settings);
        let of_class = |value: fn(&LoadBalancerClass) -> &String| {
            class.map(|class| value(class).as_str()).filter(|value| !value.is_empty())
        };
        let family = service.ip_families.first().copied();
        let mut read = AnnotationReader::new(&service.annotations);
        if service.ports.is_empty() {
            read.refuse_field(InvalidField {
                field: Field::Spec("ports"),
                message: "the Service has no ports".to_owned(),
            });
        }
        if let Some(name) = read.get(annotations::CLASS).filter(|name| !name.is_empty())
            && class.is_none()
        {
            read.refuse(annotations::CLASS, format_args!("the config has no [LoadBalancerClass {name:?}]"));
        }
        let internal = read.flag(annotations::INTERNAL, conf.internal_lb) || conf.internal_lb;
        let proxy = read.parsed(annotations::PROXY_PROTOCOL, Proxy::Off, false, Proxy::parse);
        let forwarded_for = read.flag(annotations::X_FORWARDED_FOR, false);
        let tls = read.text(annotations::TLS_CONTAINER_REF, &conf.default_tls_container_ref);
        if proxy != Proxy::Off && forwarded_for {
            read.refuse_field(InvalidField {
                field: Field::annotation(annotations::X_FORWARDED_FOR),
                message: format!(
                    "{} and {} cannot be used together",
                    annotations::PROXY_PROTOCOL,
                    annotations::X_FORWARDED_FOR
                ),
            });
        }
        if let Some(can) = can {
            refuse_unsupported(&mut read, service, can, proxy, forwarded_for, !tls.is_empty());
        }
        let [vip_subnet, vip_network] = [
            (annotations::SUBNET_ID, of_class(|class| &class.subnet_id), &conf.subnet_id),
            (annotations::NETWORK_ID, of_class(|class| &class.network_id), &conf.network_id),
        ]
        .map(|(key, class, default)| match class {
            // For public addresses, the class precedes the annotation.
            Some(class) if !internal => class.to_owned(),
            class => given_or(&read, key, class.unwrap_or(default)),
        });
        let member_subnet = of_class(|class| &class.member_subnet_id).unwrap_or(&conf.member_subnet_id);
        let member_subnet = given_or(&read, annotations::MEMBER_SUBNET_ID, member_subnet);
        let member_subnet = [&member_subnet, &conf.subnet_id, &vip_subnet]
            .into_iter()
            .find(|subnet| !subnet.is_empty())
            .cloned()
            .unwrap_or_default();
        let (ranges, invalid) = SourceRanges::separated(service);
        read.refuse_fields(invalid);
        let timeouts = [
            ("timeout_client_data", annotations::TIMEOUT_CLIENT_DATA, 50_000),
            ("timeout_member_connect", annotations::TIMEOUT_MEMBER_CONNECT, 5_000),
            ("timeout_member_data", annotations::TIMEOUT_MEMBER_DATA, 50_000),
            ("timeout_tcp_inspect", annotations::TIMEOUT_TCP_INSPECT, 0),
        ]
        .map(|(field, key, default)| {
            // A value that is not sent is not refused.
            let is_sent = can.is_some_and(|can| can.has(Feature::Timeouts));
            let given = is_sent.then(|| read.number(key, default, allowed::TIMEOUT));
            (field, given.unwrap_or(default))
        });
        let is_monitored = read.flag(annotations::ENABLE_HEALTH_MONITOR, conf.create_monitor);
        let monitor = is_monitored.then(|| monitor_times(conf, &mut read));
        let spec = Self {
            family,
            internal,
            keep_floating_ip: read.flag(annotations::KEEP_FLOATING_IP, false),
            proxy,
            forwarded_for,
            tls,
            vip_subnet,
            vip_network,
            vip_port: read.text(annotations::PORT_ID, ""),
            member_subnet,
            source: source(service, settings),
            connection_limit: read.number(annotations::CONNECTION_LIMIT, -1, allowed::CONNECTION_LIMIT),
            method: given_or(&read, annotations::LB_METHOD, &conf.lb_method),
            timeouts,
            monitor,
            flavor: read.text(annotations::FLAVOR_ID, &conf.flavor_id),
            zone: read.text(annotations::AVAILABILITY_ZONE, &conf.availability_zone),
            selector: selector(service, settings),
            ranges,
            tags: ServiceTags::requested(service, |key, problem| read.warn(key, problem)),
            ignored: Vec::new(),
        };
        let (ignored, invalid) = read.finish();
        (Self { ignored, ..spec }, invalid)
    }
}

fn monitor_times(conf: &LoadBalancer, read: &mut AnnotationReader<'_>) -> HealthMonitorTimes {
    let seconds = |duration: GoDuration| i64::try_from(duration.to_std().as_secs()).unwrap_or(i64::MAX);
    let [delay, timeout] = [
        (annotations::HEALTH_MONITOR_DELAY, conf.monitor_delay),
        (annotations::HEALTH_MONITOR_TIMEOUT, conf.monitor_timeout),
    ]
    .map(|(key, default)| read.number(key, seconds(default), allowed::SECONDS));
    let [max_retries, max_retries_down] = [
        (annotations::HEALTH_MONITOR_MAX_RETRIES, conf.monitor_max_retries),
        (annotations::HEALTH_MONITOR_MAX_RETRIES_DOWN, conf.monitor_max_retries_down),
    ]
    .map(|(key, default)| read.number(key, default.into(), allowed::RETRIES));
    HealthMonitorTimes {
        delay,
        timeout,
        max_retries,
        max_retries_down,
    }
}

/// The value of an annotation that does not override the config with an empty text.
fn given_or(read: &AnnotationReader<'_>, key: &str, default: &str) -> String {
    read.given(key).unwrap_or_else(|| default.to_owned())
}

/// The first source among class, annotations and config that names a subnet by ID or pattern.
fn source(service: &ServiceView, settings: &LoadBalancing) -> FloatingIpSource {
    let conf = &settings.conf;
    let of_class = class(service, settings).map_or([""; 3], |class| {
        [
            &class.floating_subnet_id,
            &class.floating_subnet,
            &class.floating_subnet_tags,
        ]
    });
    let annotated = [
        annotations::FLOATING_SUBNET_ID,
        annotations::FLOATING_SUBNET,
        annotations::FLOATING_SUBNET_TAGS,
    ]
    .map(|key| service.annotation(key).unwrap_or_default());
    let configured = [
        conf.floating_subnet_id.as_str(),
        &conf.floating_subnet,
        &conf.floating_subnet_tags,
    ];
    let first = [of_class, annotated, configured]
        .into_iter()
        .find(|texts| texts.iter().any(|text| !text.is_empty()));
    let [subnet, pattern, tags] = first.unwrap_or_default().map(str::to_owned);
    // A requested address may be in any subnet of the network.
    let filter = Some([pattern, tags]).filter(|_| service.load_balancer_ip.is_empty());
    let [pattern, tags] = filter.unwrap_or_default();
    FloatingIpSource {
        network: floating_network(service, settings).to_owned(),
        subnet,
        pattern,
        tags,
    }
}

/// Refuses values that this Octavia or its provider does not support.
fn refuse_unsupported(
    read: &mut AnnotationReader<'_>,
    service: &ServiceView,
    can: Capabilities,
    proxy: Proxy,
    forwarded_for: bool,
    tls: bool,
) {
    if can.ovn {
        for (is_requested, key) in [
            (proxy != Proxy::Off, annotations::PROXY_PROTOCOL),
            (forwarded_for, annotations::X_FORWARDED_FOR),
            (tls, annotations::TLS_CONTAINER_REF),
        ] {
            if is_requested {
                let problem = "not supported by Octavia's provider ovn, which only forwards packets";
                read.refuse(key, problem);
            }
        }
    } else if proxy == Proxy::V2 && !can.has(Feature::ProxyV2) {
        let problem = "v2 needs version 2.22 of Octavia's API; v1 does not";
        read.refuse(annotations::PROXY_PROTOCOL, problem);
    }
    let has = |protocol| service.ports.iter().any(|port| port.protocol == protocol);
    if has(Protocol::Sctp) && !can.has(Feature::Sctp) {
        read.refuse_field(InvalidField {
            field: Field::Spec("ports"),
            message: "SCTP needs version 2.23 of Octavia's API".to_owned(),
        });
    }
    let only_tcp = !has(Protocol::Udp) && !has(Protocol::Sctp);
    if proxy != Proxy::Off && !only_tcp {
        read.refuse(annotations::PROXY_PROTOCOL, "only for TCP");
    }
    if (forwarded_for || tls) && !only_tcp {
        let key = match tls {
            true => annotations::TLS_CONTAINER_REF,
            false => annotations::X_FORWARDED_FOR,
        };
        read.refuse(key, "only for TCP");
    }
}

#[cfg(test)]
mod tests {
    use std::{collections::BTreeMap, time::Duration};

    use ccm_core::load_balancer::ServicePort;

    use super::*;
    use crate::load_balancer::{features::Version, settings::LoadBalancer};

    fn settings() -> LoadBalancing {
        let class = LoadBalancerClass {
            network_id: "class".to_owned(),
            ..LoadBalancerClass::default()
        };
        LoadBalancing {
            conf: LoadBalancer {
                subnet_id: "config".to_owned(),
                network_id: "config".to_owned(),
                internal_lb: true,
                ..LoadBalancer::default()
            },
            classes: BTreeMap::from([("gold".to_owned(), class)]),
            patience: Duration::ZERO,
        }
    }

    fn read(annotations: &[(&str, &str)]) -> (BalancerSpec, Vec<InvalidField>) {
        let service = ServiceView {
            annotations: annotations.iter().map(|(key, value)| (*key, *value)).collect(),
            ports: vec![ServicePort::default()],
            ..ServiceView::default()
        };
        let can = Capabilities::of(Version(27), "amphora");
        BalancerSpec::examine(&service, &settings(), Some(can))
    }

    #[test]
    fn annotation_then_class_then_config() {
        let class = (annotations::CLASS, "gold");
        let network = |annotations: &[(&str, &str)]| read(annotations).0.vip_network;
        assert_eq!(network(&[class, (annotations::NETWORK_ID, "own")]), "own");
        assert_eq!(network(&[class]), "class");
        assert_eq!(network(&[]), "config");
        // The class has no subnet.
        assert_eq!(read(&[class]).0.vip_subnet, "config");
        let (spec, _) = read(&[(annotations::SUBNET_ID, ""), (annotations::LB_METHOD, "")]);
        assert_eq!([spec.vip_subnet, spec.method], ["config", "ROUND_ROBIN"]);
    }

    #[test]
    fn values_that_are_not_sent_are_not_refused() {
        let invalid = |enabled| {
            let enabled = (annotations::ENABLE_HEALTH_MONITOR, enabled);
            read(&[(annotations::HEALTH_MONITOR_DELAY, "0"), enabled]).1
        };
        assert_eq!(invalid("false"), []);
        assert_eq!(invalid("true").len(), 1);
    }

    #[test]
    fn source_ranges_may_be_one_for_each_line() {
        let ranges = "10.0.0.0/8 192.168.0.0/16\n172.16.0.0/12,\n";
        let (spec, invalid) = read(&[(SourceRanges::ANNOTATION, ranges)]);
        assert_eq!((spec.ranges.texts().len(), invalid), (3, Vec::new()));
        assert_eq!(read(&[(SourceRanges::ANNOTATION, ", ,")]).1.len(), 1);
    }

    #[test]
    fn values_without_a_meaning_are_ignored_and_wrong_ones_refused() {
        let (spec, invalid) = read(&[
            (annotations::PROXY_PROTOCOL, "v3"),
            (annotations::KEEP_FLOATING_IP, "yes"),
            (annotations::TIMEOUT_CLIENT_DATA, "-1"),
            (annotations::ENABLE_HEALTH_MONITOR, "true"),
            (annotations::HEALTH_MONITOR_MAX_RETRIES, "11"),
        ]);
        assert_eq!(spec.proxy, Proxy::Off);
        let ignored: Vec<_> =
            spec.ignored.iter().map(|ignored| (ignored.key, ignored.problem.as_str())).collect();
        assert_eq!(
            ignored,
            [
                (annotations::PROXY_PROTOCOL, "\"v3\" is not valid, false is used"),
                (annotations::KEEP_FLOATING_IP, "\"yes\" is not valid, false is used"),
            ]
        );
        let error = InvalidField::error(&invalid).to_string();
        for text in [
            "health-monitor-max-retries: 11 is not between 1 and 10",
            "timeout-client-data: -1 is not between 0 and",
        ] {
            assert!(error.contains(text), "{error}");
        }
    }
}
