//! Classic load balancers: from a Service's annotations to the desired objects.

use std::collections::BTreeSet;

use ccm_core::{
    load_balancer::{AnnotationReader, Protocol, ServicePort, ServiceView},
    plan::objects::Attributes,
};

use super::{
    annotations as a,
    desired::Builder,
    kinds::{Entry, Kind, Object, PROXY_PORTS},
    names,
    spec::{PortSpec, Spec, SpecSource, check_numbers, check_protocol},
};

/// The prefix of names of policies with a predefined TLS policy.
pub(crate) const SSL_POLICY_PREFIX: &str = "k8s-SSLNegotiationPolicy-";

impl Spec {
    /// Reads the fields that only a classic load balancer has.
    pub(super) fn read_classic(&mut self, source: SpecSource<'_>, reader: &mut AnnotationReader<'_>) {
        let unsupported = "a classic load balancer does not support it";
        reader.strict(a::TARGET_GROUP_ATTRIBUTES, |_| Err::<(), _>(unsupported));
        if self.security_groups.is_empty() {
            self.security_groups.extend(source.settings.elb_security_group.clone());
        }
        self.extra_groups = reader.texts(a::EXTRA_SECURITY_GROUPS);
        let proxy = reader.unless_empty(a::PROXY_PROTOCOL);
        let proxy = proxy.and_then(|reader| reader.strict_choice(a::PROXY_PROTOCOL, &["*"]));
        self.proxy_protocol = proxy.is_some();
        self.ports = self.classic_ports(source.service, reader);
        let policy = reader.given(a::SSL_POLICY);
        let policy = policy.map(|policy| ("policy", format!("{SSL_POLICY_PREFIX}{policy}").into()));
        self.listener.extend(policy);
        self.balancer = balancer_attributes(reader);
        self.balancer.extend(self.health_check(source, reader));
    }

    fn classic_ports(&self, service: &ServiceView, reader: &mut AnnotationReader<'_>) -> Vec<PortSpec> {
        let backend = reader.get(a::BACKEND_PROTOCOL).unwrap_or_default();
        // Upstream's spelling: a listener that it created as TCP stays so.
        let plain = if backend == "http" { "HTTP" } else { "TCP" };
        let secure = match &*backend.to_lowercase() {
            "http" => ["HTTPS", "HTTP"],
            "https" => ["HTTPS"; 2],
            "ssl" => ["SSL"; 2],
            "" | "tcp" => ["SSL", "TCP"],
            _ => {
                if !self.certificates.is_empty() {
                    let problem = format!("{backend:?} is not one of tcp, ssl, http, https");
                    reader.refuse(a::BACKEND_PROTOCOL, problem);
                }
                ["SSL", "TCP"]
            }
        };
        for ServicePort { port, protocol, .. } in &service.ports {
            if *protocol != Protocol::Tcp {
                let problem = format!("port {port}: a classic load balancer does not support {protocol}");
                reader.refuse_spec("ports", problem);
            }
        }
        let ports = service.ports.iter().filter(|port| port.node_port > 0);
        let ports = ports.map(|port| {
            let is_secure = self.has_certificate(reader, port.port, &port.name.to_lowercase());
            PortSpec::new(port, if is_secure { secure } else { [plain; 2] })
        });
        ports.collect()
    }

    fn health_check(&self, source: SpecSource<'_>, reader: &mut AnnotationReader<'_>) -> Attributes {
        let SpecSource { service, settings } = source;
        let node_port = self.ports.first().map_or(0, |port| port.node_port);
        let (protocol, mut port, path) = match (service.health_check_port(), &settings.shared_probe) {
            (Some(port), _) => ("HTTP", port, "/healthz"),
            (None, Some(shared)) if !service.is_local() => ("HTTP", shared.port, shared.path.as_str()),
            _ => match &*reader.get(a::BACKEND_PROTOCOL).unwrap_or_default().to_lowercase() {
                "https" | "ssl" => ("SSL", node_port, "/"),
                _ => ("TCP", node_port, "/"),
            },
        };
        let given = reader.unless_empty(a::CHECK_PROTOCOL);
        let given = given.and_then(|reader| check_protocol(reader, &["TCP", "SSL", "HTTP", "HTTPS"]));
        let protocol = given.unwrap_or(protocol);
        if reader.get(a::CHECK_PORT) != Some("traffic-port") {
            port = reader.strict_number(a::CHECK_PORT, 1..=u16::MAX).unwrap_or(port);
        } else if service.health_check_port().is_some() {
            port = node_port;
        }
        let path = || reader.given(a::CHECK_PATH).unwrap_or_else(|| path.to_owned());
        let path = protocol.starts_with("HTTP").then(path).unwrap_or_default();
        let mut check = check_numbers(reader, [2, 6, 10]);
        let timeout = reader.strict_number(a::CHECK_TIMEOUT, 2..=60).unwrap_or(5);
        check.insert("health_check_timeout", timeout.into());
        check.insert("health_check", format!("{protocol}:{port}{path}").into());
        check
    }
}

fn balancer_attributes(reader: &mut AnnotationReader<'_>) -> Attributes {
    let mut flag = |key| reader.unless_empty(key)?.strict_flag(key);
    let [cross_zone, logs, draining] =
        [a::CROSS_ZONE, a::ACCESS_LOG, a::DRAINING].map(|key| flag(key) == Some(true));
    let mut number = |key, allowed| reader.unless_empty(key)?.strict_number::<i64>(key, allowed);
    let idle_timeout = number(a::IDLE_TIMEOUT, 1..=4000).unwrap_or(60);
    let interval = number(a::ACCESS_LOG_INTERVAL, 5..=60).filter(|_| logs);
    let draining_timeout = number(a::DRAINING_TIMEOUT, 1..=3600).filter(|_| draining);
    let mut attributes = Attributes::from([
        ("cross_zone", cross_zone.into()),
        ("access_log", logs.into()),
        ("draining", draining.into()),
        ("idle_timeout", idle_timeout.into()),
    ]);
    attributes.extend(draining_timeout.map(|seconds| ("draining_timeout", seconds.into())));
    attributes.extend(interval.map(|minutes| ("access_log_interval", minutes.into())));
    if logs {
        let text = |key| reader.text(key, "").into();
        attributes.insert("access_log_bucket", text(a::ACCESS_LOG_BUCKET));
        attributes.insert("access_log_prefix", text(a::ACCESS_LOG_PREFIX));
    }
    attributes
}

impl Builder<'_> {
    /// All objects of a classic load balancer.
    pub(crate) fn classic(&self) -> Vec<Object> {
        let (spec, id) = (self.spec, &self.service.id);
        let name = names::balancer(id);
        let service = names::service_tag(id);
        let about = format!("Security group for Kubernetes ELB {name} ({service})");
        let (balancer, group) = self.balancer(Kind::Classic, names::classic_group(&name), &about);
        let ports = spec.ports.iter().filter(|_| spec.proxy_protocol);
        let ports: BTreeSet<_> = ports.map(|port| port.node_port).collect();
        let ports = ports.iter().map(|port| Entry::Name(port.to_string()));
        let balancer = balancer.entries(PROXY_PORTS, ports);
        let listeners = spec.ports.iter().map(|port| {
            self.listener(Kind::ClassicListener, port)
                .with("instance_protocol", port.target_protocol)
                .with("instance_port", port.node_port)
        });
        group.into_iter().chain([balancer]).chain(listeners).collect()
    }
}
