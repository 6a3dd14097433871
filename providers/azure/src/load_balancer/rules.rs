//! Rules and probes: what the load balancer does with the ports of a Service.

use ccm_core::load_balancer::{
    InvalidField, IpFamily, Policy, Protocol, ServicePort, ServiceView, SessionAffinity,
};

use super::{
    annotations::{
        ALL_PORTS, IDLE_TIMEOUT, INTERNAL, NO_FLOATING_IP, NO_TCP_RESET, PROBE_COUNT, PROBE_INTERVAL,
        PROBE_PATH, PROBE_PROTOCOL, is_true, of_port,
    },
    names::{SHARED_PROBE, ServiceNames},
    private_link::has_proxy_protocol,
};
use crate::config::CloudConf;

/// The bounds and the default of idle timeouts, in minutes.
const IDLE_MIN: i32 = 4;
const IDLE_MAX: i32 = 100;
/// The default and least interval of probes, in seconds.
const INTERVAL: i32 = 5;
/// The default and least number of probes.
const COUNT: i32 = 2;
/// Interval and number of probes may not take so many seconds together.
const PROBE_TIME_MAX: i32 = 120;
/// The path of kube-proxy's health check.
const HEALTH_PATH: &str = "/healthz";

/// A load balancing rule.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct BalancingRule {
    pub(crate) name: String,
    pub(crate) protocol: RuleProtocol,
    pub(crate) frontend_port: u16,
    pub(crate) backend_port: u16,
    /// Packets keep the address of the load balancer.
    pub(crate) has_floating_ip: bool,
    /// Only rules of standard load balancers have it.
    pub(crate) disables_outbound_snat: Option<bool>,
    /// A client stays at its node.
    pub(crate) has_affinity: bool,
    pub(crate) idle_minutes: i32,
    /// Only rules of TCP in standard load balancers have it.
    pub(crate) resets_tcp: Option<bool>,
    /// The name of its probe.
    pub(crate) probe: Option<String>,
}

/// Whether packets keep the address of the load balancer and the port of the Service. If not, they arrive at the addresses and node ports
/// of nodes.
pub(crate) fn has_floating_ip(service: &ServiceView, family: IpFamily) -> bool {
    // IPv6 is a second address of the interface, where packets must have the address of the node.
    let is_internal_v6 = is_true(service, INTERNAL) && family == IpFamily::V6;
    !is_true(service, NO_FLOATING_IP) && !is_internal_v6
}

/// The protocol of a rule.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum RuleProtocol {
    Tcp,
    Udp,
    /// SCTP, or all protocols and ports.
    All,
}

impl RuleProtocol {
    /// The value in Azure.
    pub(crate) fn as_str(self) -> &'static str {
        match self {
            Self::Tcp => "Tcp",
            Self::Udp => "Udp",
            Self::All => "All",
        }
    }
}

/// A health probe.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct HealthProbe {
    pub(crate) name: String,
    pub(crate) protocol: ProbeProtocol,
    pub(crate) port: u16,
    /// Only with HTTP.
    pub(crate) path: Option<String>,
    pub(crate) interval: i32,
    pub(crate) threshold: i32,
}

/// The protocol of a probe.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ProbeProtocol {
    Tcp,
    Http,
    Https,
}

impl ProbeProtocol {
    /// Unknown protocols are TCP.
    fn parse(text: &str) -> Self {
        match text.to_ascii_lowercase().as_str() {
            "http" => Self::Http,
            "https" => Self::Https,
            _ => Self::Tcp,
        }
    }
}

/// Rules and probes of a Service.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct RuleSet {
    pub(crate) rules: Vec<BalancingRule>,
    pub(crate) probes: Vec<HealthProbe>,
    pub(crate) invalid: Vec<InvalidField>,
}

/// The rules and probes of one family.
pub(crate) fn rules(
    service: &ServiceView,
    names: &ServiceNames,
    family: IpFamily,
    conf: &CloudConf,
) -> RuleSet {
    let builder = RuleBuilder {
        service,
        names,
        family,
        conf,
        is_internal: is_true(service, INTERNAL),
    };
    let mut set = RuleSet::default();
    builder.build(&mut set);
    set
}

/// The inputs of the rules.
struct RuleBuilder<'a> {
    service: &'a ServiceView,
    names: &'a ServiceNames,
    family: IpFamily,
    conf: &'a CloudConf,
    is_internal: bool,
}

impl RuleBuilder<'_> {
    fn build(&self, set: &mut RuleSet) {
        let idle = self.number(IDLE_TIMEOUT, IDLE_MIN, IDLE_MIN..=IDLE_MAX, &mut set.invalid);
        let local = self.local_probe();
        let shared = self.shared_probe();
        for port in &self.service.ports {
            if port.protocol == Protocol::Sctp && !(self.is_internal && self.is_standard()) {
                let problem =
                    format!("port {} has SCTP, which only internal standard load balancers have", port.port);
                set.invalid.push(InvalidField::spec("ports", problem));
            }
            // A port without a rule has no members that a probe could find healthy.
            if self.is_set(port, "no_lb_rule") {
                continue;
            }
            let probe = if self.is_set(port, "no_probe_rule") {
                None
            } else {
                self.probe_of(port, local.as_ref(), shared.as_ref(), &mut set.invalid)
            };
            set.rules.push(self.rule(port, idle, probe.as_ref().map(|probe| probe.name.clone())));
            if let Some(probe) = probe
                && !set.probes.contains(&probe)
            {
                set.probes.push(probe);
            }
        }
        if is_true(self.service, ALL_PORTS) && self.is_internal && self.is_standard() {
            self.combine(set, local);
        }
    }

    fn rule(&self, port: &ServicePort, idle_minutes: i32, probe: Option<String>) -> BalancingRule {
        let has_floating_ip = has_floating_ip(self.service, self.family);
        let protocol = match port.protocol {
            Protocol::Tcp => RuleProtocol::Tcp,
            Protocol::Udp => RuleProtocol::Udp,
            Protocol::Sctp => RuleProtocol::All,
        };
        let resets_tcp = (protocol == RuleProtocol::Tcp && self.is_standard())
            .then(|| !is_true(self.service, NO_TCP_RESET));
        BalancingRule {
            name: self.names.rule(port.protocol, port.port, self.family),
            protocol,
            frontend_port: port.port,
            backend_port: if has_floating_ip {
                port.port
            } else {
                port.node_port
            },
            has_floating_ip,
            disables_outbound_snat: self
                .is_standard()
                .then_some(self.conf.disable_outbound_snat == Some(true)),
            has_affinity: matches!(self.service.session_affinity, SessionAffinity::ClientIp { .. }),
            idle_minutes,
            resets_tcp,
            probe,
        }
    }

    /// One rule for all ports, with the name of the first one.
    fn combine(&self, set: &mut RuleSet, local: Option<HealthProbe>) {
        let Some(first) = set.rules.first().cloned() else {
            return;
        };
        let probe = local.or_else(|| set.probes.first().cloned());
        set.rules = vec![BalancingRule {
            protocol: RuleProtocol::All,
            frontend_port: 0,
            backend_port: 0,
            resets_tcp: Some(!is_true(self.service, NO_TCP_RESET)),
            probe: probe.as_ref().map(|probe| probe.name.clone()),
            ..first
        }];
        set.probes = probe.into_iter().collect();
    }

    /// The probe of a port; `None` for one that is not probed.
    fn probe_of(
        &self,
        port: &ServicePort,
        local: Option<&HealthProbe>,
        shared: Option<&HealthProbe>,
        invalid: &mut Vec<InvalidField>,
    ) -> Option<HealthProbe> {
        let has_own_port = of_port(self.service, port.port, "health-probe_port").is_some();
        if let Some(local) = local
            && !has_own_port
        {
            return Some(local.clone());
        }
        if let Some(shared) = shared {
            return Some(shared.clone());
        }
        if port.protocol != Protocol::Tcp {
            return None;
        }
        let protocol = of_port(self.service, port.port, "health-probe_protocol")
            .map(|(_, value)| value)
            .or(port.app_protocol.as_deref())
            .or(self.service.annotation_text(PROBE_PROTOCOL))
            .map_or(ProbeProtocol::Tcp, ProbeProtocol::parse);
        let protocol = match protocol {
            ProbeProtocol::Https if !self.is_standard() => ProbeProtocol::Tcp,
            protocol => protocol,
        };
        let path = of_port(self.service, port.port, "health-probe_request-path")
            .map(|(_, value)| value)
            .or(self.service.annotation_text(PROBE_PATH))
            .unwrap_or("/");
        let interval =
            self.of_port_or_service(port, "health-probe_interval", PROBE_INTERVAL, INTERVAL, invalid);
        let threshold =
            self.of_port_or_service(port, "health-probe_num-of-probe", PROBE_COUNT, COUNT, invalid);
        if interval.saturating_mul(threshold) >= PROBE_TIME_MAX {
            let problem = format!(
                "{interval} seconds and {threshold} probes are not below {PROBE_TIME_MAX} seconds together"
            );
            invalid.push(InvalidField::annotation(PROBE_INTERVAL, problem));
        }
        Some(HealthProbe {
            name: self.names.rule(port.protocol, port.port, self.family),
            port: self.probe_port(port, invalid),
            path: (protocol != ProbeProtocol::Tcp).then(|| path.to_owned()),
            protocol,
            interval,
            threshold,
        })
    }

    /// The port of a probe: that of the annotation, which may name a port of the Service, else the node port.
    fn probe_port(&self, port: &ServicePort, invalid: &mut Vec<InvalidField>) -> u16 {
        let Some((key, value)) = of_port(self.service, port.port, "health-probe_port") else {
            return port.node_port;
        };
        let number = value.trim().parse::<u16>().ok();
        let named = self
            .service
            .ports
            .iter()
            .find(|other| *other.name == *value || Some(other.port) == number);
        match (named, number) {
            (Some(named), _) => named.node_port,
            (None, Some(number)) => number,
            (None, None) => {
                let problem = format!("{value:?} is neither a number nor the name of a port of the Service");
                invalid.push(InvalidField::annotation(&key, problem));
                port.node_port
            }
        }
    }

    /// The probe of nodes with endpoints, with `externalTrafficPolicy: Local`.
    fn local_probe(&self) -> Option<HealthProbe> {
        if has_proxy_protocol(self.service) {
            return None;
        }
        let port = self.service.health_check_port()?;
        Some(HealthProbe {
            name: self.names.rule(Protocol::Tcp, port, self.family),
            protocol: ProbeProtocol::Http,
            port,
            path: Some(HEALTH_PATH.to_owned()),
            interval: INTERVAL,
            threshold: COUNT,
        })
    }

    /// The probe that Services share, if the config enables it.
    fn shared_probe(&self) -> Option<HealthProbe> {
        let is_shared = self.conf.health_probe_mode.eq_ignore_ascii_case("shared");
        (is_shared && self.service.external_policy != Policy::Local).then(|| HealthProbe {
            name: SHARED_PROBE.to_owned(),
            protocol: ProbeProtocol::Http,
            port: self.conf.shared_probe_port,
            path: Some(self.conf.shared_probe_path.clone()),
            interval: INTERVAL,
            threshold: COUNT,
        })
    }

    fn is_standard(&self) -> bool {
        !self.conf.is_basic()
    }

    fn is_set(&self, port: &ServicePort, name: &str) -> bool {
        of_port(self.service, port.port, name)
            .is_some_and(|(_, value)| value.trim().eq_ignore_ascii_case("true"))
    }

    fn of_port_or_service(
        &self,
        port: &ServicePort,
        name: &str,
        key: &'static str,
        least: i32,
        invalid: &mut Vec<InvalidField>,
    ) -> i32 {
        match of_port(self.service, port.port, name) {
            Some((key, value)) => parse_number(&key, value, least, &(least..=i32::MAX), invalid),
            None => self.number(key, least, least..=i32::MAX, invalid),
        }
    }

    fn number(
        &self,
        key: &'static str,
        default: i32,
        allowed: std::ops::RangeInclusive<i32>,
        invalid: &mut Vec<InvalidField>,
    ) -> i32 {
        match self.service.annotation_text(key) {
            Some(value) => parse_number(key, value, default, &allowed, invalid),
            None => default,
        }
    }
}

fn parse_number(
    key: &str,
    value: &str,
    default: i32,
    allowed: &std::ops::RangeInclusive<i32>,
    invalid: &mut Vec<InvalidField>,
) -> i32 {
    match value.trim().parse::<i32>() {
        Ok(number) if allowed.contains(&number) => number,
        _ => {
            let (least, most) = (allowed.start(), allowed.end());
            let range = if *most == i32::MAX {
                format!("a number of at least {least}")
            } else {
                format!("a number from {least} to {most}")
            };
            invalid.push(InvalidField::annotation(key, format!("{value:?} is not {range}")));
            default
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use ccm_core::testkit::cluster::{annotate, service};

    use super::*;

    fn names() -> ServiceNames {
        ServiceNames::new(&service("web", &[]).id, None, false)
    }

    fn set(service: &ServiceView, conf: &CloudConf) -> RuleSet {
        rules(service, &names(), IpFamily::V4, conf)
    }

    fn web() -> ServiceView {
        let mut web = service("web", &[80, 443]);
        for (at, port) in web.ports.iter_mut().enumerate() {
            port.node_port = 30080 + u16::try_from(at).unwrap();
        }
        web
    }

    fn problems(set: &RuleSet) -> Vec<&str> {
        set.invalid.iter().map(|invalid| invalid.message.as_str()).collect()
    }

    #[test]
    fn each_port_has_a_rule_and_a_probe_of_its_node_port() {
        let RuleSet {
            rules,
            probes,
            invalid,
        } = set(&web(), &CloudConf::default());
        assert!(invalid.is_empty());
        let expected = BalancingRule {
            name: "auidweb-TCP-80".to_owned(),
            protocol: RuleProtocol::Tcp,
            frontend_port: 80,
            backend_port: 80,
            has_floating_ip: true,
            disables_outbound_snat: Some(false),
            has_affinity: false,
            idle_minutes: 4,
            resets_tcp: Some(true),
            probe: Some("auidweb-TCP-80".to_owned()),
        };
        assert_eq!((rules.len(), &rules[0]), (2, &expected));
        let expected = HealthProbe {
            name: "auidweb-TCP-443".to_owned(),
            protocol: ProbeProtocol::Tcp,
            port: 30081,
            path: None,
            interval: 5,
            threshold: 2,
        };
        assert_eq!((probes.len(), &probes[1]), (2, &expected));
    }

    #[test]
    fn without_a_floating_ip_packets_arrive_at_node_ports() {
        let mut web = web();
        annotate(&mut web, NO_FLOATING_IP, Some("True"));
        let rule = set(&web, &CloudConf::default()).rules.remove(0);
        assert_eq!((rule.backend_port, rule.has_floating_ip), (30080, false));
        annotate(&mut web, NO_FLOATING_IP, None);
        annotate(&mut web, INTERNAL, Some("TRUE"));
        let v6 = rules(&web, &names(), IpFamily::V6, &CloudConf::default()).rules.remove(0);
        assert_eq!((v6.backend_port, v6.has_floating_ip), (30080, false));
        assert!(set(&web, &CloudConf::default()).rules.remove(0).has_floating_ip);
    }

    #[test]
    fn annotations_of_a_port_win_over_those_of_the_service() {
        let mut web = web();
        for (key, value) in [
            (PROBE_PROTOCOL, "HTTP"),
            (PROBE_PATH, "/ready"),
            (PROBE_INTERVAL, "7"),
            (IDLE_TIMEOUT, "30"),
            (NO_TCP_RESET, "true"),
            ("service.beta.kubernetes.io/port_443_health-probe_protocol", "tcp"),
            ("service.beta.kubernetes.io/port_443_health-probe_num-of-probe", "3"),
            ("service.beta.kubernetes.io/port_443_health-probe_port", "80"),
        ] {
            annotate(&mut web, key, Some(value));
        }
        let RuleSet {
            rules,
            probes,
            invalid,
        } = set(&web, &CloudConf::default());
        assert!(invalid.is_empty(), "{invalid:?}");
        let rule = &rules[1];
        assert_eq!((rules.len(), rule.frontend_port), (2, 443));
        assert_eq!((rule.idle_minutes, rule.resets_tcp), (30, Some(false)));
        let [first, second] = probes.as_slice() else {
            panic!("{probes:?}")
        };
        assert_eq!((first.protocol, first.path.as_deref()), (ProbeProtocol::Http, Some("/ready")));
        assert_eq!((first.interval, first.threshold), (7, 2));
        // A port of the Service means its node port.
        assert_eq!((second.protocol, second.port, second.threshold), (ProbeProtocol::Tcp, 30080, 3));
    }

    #[test]
    fn a_port_can_have_no_rule_or_no_probe() {
        let mut web = web();
        annotate(&mut web, "service.beta.kubernetes.io/port_80_no_lb_rule", Some("true"));
        let without_rule = set(&web, &CloudConf::default());
        assert_eq!((without_rule.rules.len(), without_rule.rules[0].frontend_port), (1, 443));
        assert_eq!((without_rule.probes.len(), without_rule.probes[0].port), (1, 30081));
        annotate(&mut web, "service.beta.kubernetes.io/port_443_no_probe_rule", Some("true"));
        let without_probe = set(&web, &CloudConf::default());
        assert_eq!((&without_probe.rules[0].probe, without_probe.probes.len()), (&None, 0));
    }

    #[test]
    fn invalid_values_are_all_reported() {
        let mut web = web();
        for (key, value) in [
            (IDLE_TIMEOUT, "101"),
            (PROBE_INTERVAL, "x"),
            (PROBE_COUNT, "30"),
            ("service.beta.kubernetes.io/port_443_health-probe_port", "nobody"),
        ] {
            annotate(&mut web, key, Some(value));
        }
        let set = set(&web, &CloudConf::default());
        let problems = problems(&set).join("\n");
        for part in [
            "\"101\" is not a number from 4 to 100",
            "\"x\" is not a number of at least 5",
            "5 seconds and 30 probes are not below 120 seconds",
            "\"nobody\" is neither",
        ] {
            assert!(problems.contains(part), "{part} is not in {problems}");
        }
    }

    #[test]
    fn local_and_shared_probes_replace_those_of_ports() {
        let mut local = web();
        local.external_policy = Policy::Local;
        local.health_check_node_port = 32000;
        let RuleSet { rules, probes, .. } = set(&local, &CloudConf::default());
        assert_eq!((probes.len(), probes[0].port, probes[0].path.as_deref()), (1, 32000, Some("/healthz")));
        assert_eq!(probes[0].name, "auidweb-TCP-32000");
        assert!(rules.iter().all(|rule| rule.probe.as_deref() == Some("auidweb-TCP-32000")));
        let shared = CloudConf {
            health_probe_mode: "Shared".to_owned(),
            ..CloudConf::default()
        };
        let probes = set(&web(), &shared).probes;
        assert_eq!((probes.len(), probes[0].name.as_str(), probes[0].port), (1, SHARED_PROBE, 10256));
        // A Service with local traffic keeps its own.
        assert_eq!(set(&local, &shared).probes[0].port, 32000);
    }

    #[test]
    fn all_ports_are_one_rule_of_an_internal_load_balancer() {
        let mut web = web();
        annotate(&mut web, ALL_PORTS, Some("true"));
        assert_eq!(set(&web, &CloudConf::default()).rules.len(), 2);
        annotate(&mut web, INTERNAL, Some("true"));
        let RuleSet { rules, probes, .. } = set(&web, &CloudConf::default());
        let [rule] = rules.as_slice() else {
            panic!("{rules:?}")
        };
        assert_eq!((rule.name.as_str(), rule.protocol), ("auidweb-TCP-80", RuleProtocol::All));
        assert_eq!((rule.frontend_port, rule.backend_port, rule.resets_tcp), (0, 0, Some(true)));
        assert_eq!(probes.len(), 1);
    }

    #[test]
    fn rules_of_basic_load_balancers_lack_what_only_standard_ones_have() {
        let basic = CloudConf {
            load_balancer_sku: "Basic".to_owned(),
            ..CloudConf::default()
        };
        let mut web = web();
        for key in [INTERNAL, ALL_PORTS] {
            annotate(&mut web, key, Some("true"));
        }
        annotate(&mut web, PROBE_PROTOCOL, Some("https"));
        let RuleSet { rules, probes, .. } = set(&web, &basic);
        let ports: Vec<u16> = rules.iter().map(|rule| rule.frontend_port).collect();
        assert_eq!(ports, [80, 443]);
        assert_eq!((rules[0].resets_tcp, rules[0].disables_outbound_snat), (None, None));
        assert_eq!((probes[0].protocol, probes[0].path.as_deref()), (ProbeProtocol::Tcp, None));
        web.ports[0].protocol = Protocol::Sctp;
        assert!(problems(&set(&web, &basic))[0].contains("port 80 has SCTP"));
    }

    #[test]
    fn udp_has_no_probe_and_sctp_only_internal_load_balancers() {
        let mut dns = web();
        dns.ports[0].protocol = Protocol::Udp;
        dns.ports[1].protocol = Protocol::Sctp;
        let set_of_dns = set(&dns, &CloudConf::default());
        assert!(set_of_dns.probes.is_empty());
        assert_eq!(set_of_dns.rules[0].resets_tcp, None);
        assert!(problems(&set_of_dns)[0].contains("SCTP"));
        annotate(&mut dns, INTERNAL, Some("true"));
        let internal = set(&dns, &CloudConf::default());
        assert!(internal.invalid.is_empty());
        assert_eq!(internal.rules[1].protocol, RuleProtocol::All);
    }
}
