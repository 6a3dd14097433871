//! The spec of a Service's load balancer, from its fields, annotations, class and the config.

use ccm_core::{
    Error, Result,
    check::Field,
    config::GoDuration,
    load_balancer::{
        AnnotationReader, ClusterView, IgnoredValue, InvalidField, IpFamily, NodeSelector, Protocol,
        ServiceView, SourceRanges,
    },
};

use super::settings::{LoadBalancer, LoadBalancerClass, LoadBalancing};
use super::{
    annotations,
    annotations::allowed,
    desired::server_of,
    features::{Capabilities, Feature},
    fields,
    protocols::Proxy,
    tags::ServiceTags,
};
use crate::error::is_permanent;

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
    /// The second IP family of a dual-stack Service.
    pub(crate) second_family: Option<IpFamily>,
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

/// The networks of the clients of a load balancer, for each IP family of its addresses.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ClientRanges {
    each: Vec<SourceRanges>,
    /// Whether no client of a family is admitted.
    lacks_family: bool,
}

impl From<SourceRanges> for ClientRanges {
    fn from(ranges: SourceRanges) -> Self {
        Self {
            each: vec![ranges],
            lacks_family: false,
        }
    }
}

impl ClientRanges {
    /// The networks as CIDRs.
    pub(crate) fn texts(&self) -> Vec<String> {
        let mut all: Vec<_> = self.each.iter().flat_map(SourceRanges::texts).collect();
        all.sort_by_key(|range| range.contains(':'));
        all
    }

    /// Whether these CIDRs are the same networks, in any notation and order.
    pub(crate) fn same<'a>(&self, others: impl IntoIterator<Item = &'a str>) -> bool {
        let mut others: Vec<&str> = others.into_iter().collect();
        let [first, second] = self.each.as_slice() else {
            return matches!(self.each.as_slice(), [only] if only.same(others));
        };
        let is_v6 = |range: &str| range.contains(':');
        let first_is_v6 = first.texts().iter().any(|range| is_v6(range));
        let of_second: Vec<_> = others.extract_if(.., |range| is_v6(range) != first_is_v6).collect();
        first.same(others) && second.same(of_second)
    }

    /// Whether all clients are admitted, which is the same as no ranges.
    pub(crate) fn allows_all_clients(&self) -> bool {
        let whole = ["0.0.0.0/0", "::/0"];
        !self.lacks_family
            && self
                .each
                .iter()
                .all(|ranges: &SourceRanges| matches!(&*ranges.texts(), [one] if whole.contains(&&**one)))
    }
}

/// Whether the Service has no floating IP.
pub(crate) fn is_internal(service: &ServiceView, settings: &LoadBalancing) -> bool {
    settings.conf.internal_lb || service.annotation(annotations::INTERNAL) == Some("true")
}

/// Whether the status of a Service with the PROXY protocol shows a host name in place of the address.
pub(crate) fn shows_hostname(service: &ServiceView, settings: &LoadBalancing) -> bool {
    match service.annotation(annotations::ENABLE_INGRESS_HOSTNAME) {
        Some("true") => true,
        Some("false") => false,
        _ => settings.conf.enable_ingress_hostname,
    }
}

/// Whether the Service has a floating IP if an external network exists.
pub(crate) fn is_public(service: &ServiceView, settings: &LoadBalancing) -> bool {
    let has_v4 = service.ip_families.is_empty() || service.ip_families.contains(&IpFamily::V4);
    !is_internal(service, settings) && has_v4
}

/// Whether a Service without known floating IPs may have one: `error` is why they cannot be read. `vips`: the virtual addresses of its
/// load balancer. A cloud that refuses the listing for good has no floating IPs for Services that never showed one.
pub(crate) fn may_have_floating_ip(
    service: &ServiceView,
    settings: &LoadBalancing,
    vips: &[&str],
    error: &Error,
) -> bool {
    let annotated = service.annotation(annotations::LOAD_BALANCER_ADDRESS).map(str::to_owned);
    let mut shown = service.status_addresses().map(|ip| ip.to_string()).chain(annotated);
    let shows_another = shown.any(|address| !vips.contains(&&*address));
    if is_permanent(error) {
        is_public(service, settings) && shows_another
    } else {
        is_public(service, settings) || shows_another
    }
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

/// The servers of the nodes that a Service selects.
pub(crate) fn servers(service: &ServiceView, settings: &LoadBalancing, cluster: &ClusterView) -> Vec<String> {
    let selector = selector(service, settings);
    let nodes = cluster.nodes.eligible();
    nodes
        .filter(|node| selector.matches(&node.view.labels))
        .filter_map(|node| server_of(node.view.provider_id.as_deref()?))
        .collect()
}

/// The external network that the Service names; empty if it names none.
pub(crate) fn floating_network<'a>(service: &'a ServiceView, settings: &'a LoadBalancing) -> &'a str {
    if let Some(class) = class(service, settings)
        && !class.floating_network_id.is_empty()
    {
        return &class.floating_network_id;
    }
    service
        .annotation(annotations::FLOATING_NETWORK_ID)
        .unwrap_or(&settings.conf.floating_network_id)
}

impl BalancerSpec {
    /// The IP families that the Service requests: what is known without a load balancer.
    pub(crate) fn requested_families(&self) -> Vec<IpFamily> {
        self.family.into_iter().chain(self.second_family).collect()
    }

    /// The networks of clients that reach addresses of these families, and the CIDRs of other families. `None`: the Service
    /// specifies only the latter. Without a family, all are of the load balancer's.
    pub(crate) fn client_ranges(&self, families: &[IpFamily]) -> (Option<ClientRanges>, Vec<String>) {
        let Some((first, others)) = families.split_first() else {
            return (Some(ClientRanges::from(self.ranges.clone())), Vec::new());
        };
        let (ranges, left_out) = self.ranges.of_family(*first);
        if others.is_empty() {
            return (ranges.map(ClientRanges::from), left_out);
        }
        let each: Vec<_> = families.iter().filter_map(|family| self.ranges.of_family(*family).0).collect();
        let ranges = ClientRanges {
            lacks_family: each.len() < families.len(),
            each,
        };
        (Some(ranges), Vec::new())
    }

    /// Reads the spec of a Service.
    ///
    /// # Errors
    /// All values that upstream or Octavia refuses, as one error.
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
        if let Some(ignored) = SourceRanges::narrower_annotation(service) {
            read.warn(ignored.key, ignored.problem);
        }
        let timeouts = [
            (fields::TIMEOUT_CLIENT_DATA, annotations::TIMEOUT_CLIENT_DATA, 50_000),
            (fields::TIMEOUT_MEMBER_CONNECT, annotations::TIMEOUT_MEMBER_CONNECT, 5_000),
            (fields::TIMEOUT_MEMBER_DATA, annotations::TIMEOUT_MEMBER_DATA, 50_000),
            (fields::TIMEOUT_TCP_INSPECT, annotations::TIMEOUT_TCP_INSPECT, 0),
        ]
        .map(|(field, key, default)| {
            // A value that is not sent is not refused.
            let is_sent = can.is_some_and(|can| can.has(Feature::Timeouts));
            let given = is_sent.then(|| read.number(key, default, allowed::TIMEOUT));
            (field, given.unwrap_or(default))
        });
        // Only an invalid value matters here.
        let _ = read.flag(annotations::ENABLE_INGRESS_HOSTNAME, conf.enable_ingress_hostname);
        let is_monitored = read.flag(annotations::ENABLE_HEALTH_MONITOR, conf.create_monitor);
        let monitor = is_monitored.then(|| monitor_times(conf, &mut read));
        let spec = Self {
            family,
            second_family: service.ip_families.get(1).copied(),
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
    let mut seconds = |key, default: GoDuration| {
        let default = i64::try_from(default.to_std().as_secs()).unwrap_or(i64::MAX);
        read.number(key, default, allowed::SECONDS)
    };
    let delay = seconds(annotations::HEALTH_MONITOR_DELAY, conf.monitor_delay);
    let timeout = seconds(annotations::HEALTH_MONITOR_TIMEOUT, conf.monitor_timeout);
    let mut retries = |key, default: u32| read.number(key, default.into(), allowed::RETRIES);
    HealthMonitorTimes {
        delay,
        timeout,
        max_retries: retries(annotations::HEALTH_MONITOR_MAX_RETRIES, conf.monitor_max_retries),
        max_retries_down: retries(
            annotations::HEALTH_MONITOR_MAX_RETRIES_DOWN,
            conf.monitor_max_retries_down,
        ),
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
    let [pattern, tags] = if service.load_balancer_ip.is_empty() {
        [pattern, tags]
    } else {
        [String::new(), String::new()]
    };
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
    if (forwarded_for || tls) && !only_tcp {
        let key = if tls {
            annotations::TLS_CONTAINER_REF
        } else {
            annotations::X_FORWARDED_FOR
        };
        read.refuse(key, "only for TCP");
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
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
    fn ranges_of_two_families_are_compared_by_family() {
        let (mut spec, _) = read(&[]);
        let both = [IpFamily::V6, IpFamily::V4];
        let (all, left_out) = spec.client_ranges(&both);
        let all = all.unwrap();
        assert_eq!((all.texts(), left_out), (vec!["0.0.0.0/0".to_owned(), "::/0".to_owned()], vec![]));
        assert!(all.allows_all_clients() && all.same(["::/0", "0.0.0.0/0"]));
        assert!(!all.same(["0.0.0.0/0"]) && !all.same(["::/0"]) && !all.same([]));
        // A family without a range of its own is closed.
        let ranges = [(SourceRanges::ANNOTATION, "0.0.0.0/0")];
        spec.ranges = read(&ranges).0.ranges;
        let (only_v4, _) = spec.client_ranges(&both);
        let only_v4 = only_v4.unwrap();
        assert_eq!(only_v4.texts(), ["0.0.0.0/0"]);
        assert!(!only_v4.allows_all_clients() && only_v4.same(["0.0.0.0/0"]));
    }

    #[test]
    fn source_ranges_may_be_one_for_each_line() {
        let ranges = "10.0.0.0/8 192.168.0.0/16\n172.16.0.0/12,\n";
        let (spec, invalid) = read(&[(SourceRanges::ANNOTATION, ranges)]);
        assert_eq!((spec.ranges.texts().len(), invalid), (3, Vec::new()));
        assert_eq!(read(&[(SourceRanges::ANNOTATION, ", ,")]).1.len(), 1);
    }

    #[test]
    fn an_annotation_with_narrower_ranges_than_the_field_is_reported() {
        let ignored = |range: &str| {
            let service = ServiceView {
                annotations: [(SourceRanges::ANNOTATION, "10.1.0.0/16")].into_iter().collect(),
                source_ranges: Some(vec![range.into()]),
                ports: vec![ServicePort::default()],
                ..ServiceView::default()
            };
            let can = Capabilities::of(Version(27), "amphora");
            BalancerSpec::examine(&service, &settings(), Some(can)).0.ignored
        };
        assert_eq!(ignored("10.1.0.0/16"), []);
        assert_eq!(ignored("10.0.0.0/8")[0].key, SourceRanges::ANNOTATION);
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
