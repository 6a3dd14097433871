//! Classic load balancers: from a Service's annotations to the desired objects.

use std::collections::BTreeSet;

use ccm_core::{
    load_balancer::{AnnotationReader, Protocol, ServicePort, ServiceView},
    plan::objects::Attributes,
};
use serde_json::Value;

use super::{
    annotations as a,
    desired::ObjectBuilder,
    fields,
    kinds::{Object, ObjectKind, PROXY_PORTS, SetEntry},
    names,
    spec::{
        CheckDefaults, PortSpec, Spec, SpecSource, check_numbers, check_protocol, is_enabled, require_bucket,
    },
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
        if let Some(reader) = reader.unless_empty(a::PROXY_PROTOCOL) {
            self.proxy_protocol = reader.strict_choice(a::PROXY_PROTOCOL, &["*"]).is_some();
        }
        self.ports = self.classic_ports(source.service, reader);
        if let Some(policy) = reader.given(a::SSL_POLICY) {
            self.listener.insert(fields::POLICY, format!("{SSL_POLICY_PREFIX}{policy}").into());
        }
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
        ports
            .map(|port| {
                let is_secure = self.has_certificate(reader, port.port, &port.name.to_lowercase());
                PortSpec::new(port, if is_secure { secure } else { [plain; 2] })
            })
            .collect()
    }

    fn health_check(&self, source: SpecSource<'_>, reader: &mut AnnotationReader<'_>) -> Attributes {
        let SpecSource { service, settings } = source;
        let node_port = self.ports.first().map_or(0, |port| port.node_port);
        let (mut protocol, mut port, default_path) =
            match (service.health_check_port(), &settings.shared_probe) {
                (Some(port), _) => ("HTTP", port, "/healthz"),
                (None, Some(shared)) if !service.is_local() => ("HTTP", shared.port, shared.path.as_str()),
                _ => match &*reader.get(a::BACKEND_PROTOCOL).unwrap_or_default().to_lowercase() {
                    "https" | "ssl" => ("SSL", node_port, "/"),
                    _ => ("TCP", node_port, "/"),
                },
            };
        if let Some(reader) = reader.unless_empty(a::CHECK_PROTOCOL)
            && let Some(given) = check_protocol(reader, &["TCP", "SSL", "HTTP", "HTTPS"])
        {
            protocol = given;
        }
        if reader.get(a::CHECK_PORT) != Some("traffic-port") {
            port = reader.strict_number(a::CHECK_PORT, 1..=u16::MAX).unwrap_or(port);
        } else if service.health_check_port().is_some() {
            port = node_port;
        }
        let path = if protocol.starts_with("HTTP") {
            reader.given(a::CHECK_PATH).unwrap_or_else(|| default_path.to_owned())
        } else {
            String::new()
        };
        let defaults = CheckDefaults {
            healthy: 2,
            unhealthy: 6,
            interval: 10,
        };
        let mut check = check_numbers(reader, defaults);
        let timeout: i64 = reader.strict_number(a::CHECK_TIMEOUT, 2..=60).unwrap_or(5);
        let interval = check.get(fields::HEALTH_CHECK_INTERVAL).and_then(Value::as_i64);
        if interval.is_some_and(|interval| timeout >= interval) {
            let problem = format!("the timeout {timeout} must be less than the interval; set both");
            reader.refuse(a::CHECK_INTERVAL, problem);
        }
        check.insert(fields::HEALTH_CHECK_TIMEOUT, timeout.into());
        check.insert(fields::HEALTH_CHECK, format!("{protocol}:{port}{path}").into());
        check
    }
}

fn balancer_attributes(reader: &mut AnnotationReader<'_>) -> Attributes {
    let cross_zone = is_enabled(a::CROSS_ZONE, reader);
    let logs = is_enabled(a::ACCESS_LOG, reader);
    let draining = is_enabled(a::DRAINING, reader);
    let mut number = |key, allowed| reader.unless_empty(key)?.strict_number::<i64>(key, allowed);
    let idle_timeout = number(a::IDLE_TIMEOUT, 1..=4000).unwrap_or(60);
    let draining_timeout = number(a::DRAINING_TIMEOUT, 1..=3600);
    let interval = number(a::ACCESS_LOG_INTERVAL, 5..=60);
    let mut attributes = Attributes::from([
        (fields::CROSS_ZONE, cross_zone.into()),
        (fields::ACCESS_LOG, logs.into()),
        (fields::DRAINING, draining.into()),
        (fields::IDLE_TIMEOUT, idle_timeout.into()),
    ]);
    if let Some(seconds) = draining_timeout
        && draining
    {
        attributes.insert(fields::DRAINING_TIMEOUT, seconds.into());
    }
    if logs {
        if let Some(minutes) = interval {
            attributes.insert(fields::ACCESS_LOG_INTERVAL, minutes.into());
            if ![5, 60].contains(&minutes) {
                reader.refuse(a::ACCESS_LOG_INTERVAL, format!("{minutes} is neither 5 nor 60"));
            }
        }
        require_bucket(reader);
        let text = |key| reader.text(key, "").into();
        attributes.insert(fields::ACCESS_LOG_BUCKET, text(a::ACCESS_LOG_BUCKET));
        attributes.insert(fields::ACCESS_LOG_PREFIX, text(a::ACCESS_LOG_PREFIX));
    }
    attributes
}

impl ObjectBuilder<'_> {
    /// All objects of a classic load balancer.
    pub(crate) fn classic(&self) -> Vec<Object> {
        let (spec, id) = (self.spec, &self.service.id);
        let name = names::balancer(id);
        let service = names::service_tag(id);
        let about = format!("Security group for Kubernetes ELB {name} ({service})");
        let (balancer, group) = self.balancer(ObjectKind::Classic, names::classic_group(&name), &about);
        let mut proxy_ports = BTreeSet::new();
        if spec.proxy_protocol {
            proxy_ports.extend(spec.ports.iter().map(|port| port.node_port));
        }
        let proxy_entries = proxy_ports.iter().map(|port| SetEntry::Name(port.to_string()));
        let mut objects: Vec<_> = group.into_iter().collect();
        objects.push(balancer.entries(PROXY_PORTS, proxy_entries));
        for port in &spec.ports {
            let listener = self
                .listener(ObjectKind::ClassicListener, port)
                .with(fields::INSTANCE_PROTOCOL, port.target_protocol)
                .with(fields::INSTANCE_PORT, port.node_port);
            objects.push(listener);
        }
        objects
    }
}
