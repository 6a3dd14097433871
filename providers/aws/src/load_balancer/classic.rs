//! Classic load balancers: from a Service's annotations to the desired objects.

use std::collections::BTreeSet;

use ccm_core::{
    load_balancer::{AnnotationReader, Protocol, ServiceView},
    plan::objects::Object,
};
use serde_json::Value;

use super::{
    annotations::{
        ACCESS_LOG, ACCESS_LOG_BUCKET, ACCESS_LOG_INTERVAL, ACCESS_LOG_PREFIX, BACKEND_PROTOCOL,
        CERTIFICATES, CHECK_HEALTHY, CHECK_INTERVAL, CHECK_PATH, CHECK_PORT, CHECK_PROTOCOL, CHECK_TIMEOUT,
        CHECK_UNHEALTHY, CROSS_ZONE, DRAINING, DRAINING_TIMEOUT, EXTRA_SECURITY_GROUPS, IDLE_TIMEOUT,
        SSL_POLICY, TARGET_GROUP_ATTRIBUTES,
    },
    desired::Builder,
    kinds::{Entry, INSTANCES, Kind, PROXY_PORTS},
    names,
    spec::{CommonSpec, Reading, common, given, is_tls_port, proxy_protocol, spec_field},
};
use crate::config::LoadBalancing;

/// What the names of policies with a predefined TLS policy begin with.
pub(crate) const SSL_POLICY_PREFIX: &str = "k8s-SSLNegotiationPolicy-";

/// What a Service asks of its classic load balancer.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct ClassicSpec {
    pub(crate) common: CommonSpec,
    extra_groups: Vec<String>,
    listeners: Vec<ListenerSpec>,
    ssl_policy: Option<String>,
    proxy_protocol: bool,
    /// Attributes of the load balancer, health check included.
    attributes: Vec<(&'static str, Value)>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
struct ListenerSpec {
    port: u16,
    instance_port: u16,
    protocol: &'static str,
    instance_protocol: &'static str,
    certificate: Option<String>,
}

impl ClassicSpec {
    /// Reads a Service. Everything that is wrong is found at once.
    pub(crate) fn read(service: &ServiceView, settings: &LoadBalancing) -> Reading<Self> {
        let mut reader = AnnotationReader::new(&service.annotations);
        let common = common(service, &mut reader);
        if reader.get(TARGET_GROUP_ATTRIBUTES).is_some() {
            reader.refuse(
                TARGET_GROUP_ATTRIBUTES,
                "a classic load balancer does not support it",
            );
        }
        let extra_groups = reader
            .list(EXTRA_SECURITY_GROUPS)
            .into_iter()
            .flatten()
            .map(str::to_owned)
            .collect();
        let listeners = listeners(service, &mut reader);
        let mut attributes = health_check(service, settings, &listeners, &mut reader);
        attributes.extend(balancer_attributes(&mut reader));
        let spec = Self {
            common,
            extra_groups,
            listeners,
            ssl_policy: given(reader.get(SSL_POLICY)),
            proxy_protocol: proxy_protocol(&mut reader),
            attributes,
        };
        let (ignored, invalid) = reader.finish();
        Reading {
            spec,
            ignored,
            invalid,
        }
    }
}

fn listeners(service: &ServiceView, reader: &mut AnnotationReader<'_>) -> Vec<ListenerSpec> {
    let certificate = reader
        .list(CERTIFICATES)
        .and_then(|all| all.first().map(|arn| (*arn).to_owned()));
    let backend = reader
        .get(BACKEND_PROTOCOL)
        .map(str::to_lowercase)
        .unwrap_or_default();
    let secure = match backend.as_str() {
        "" => ("SSL", "TCP"),
        "http" => ("HTTPS", "HTTP"),
        "https" => ("HTTPS", "HTTPS"),
        "ssl" => ("SSL", "SSL"),
        "tcp" => ("SSL", "TCP"),
        _ => {
            if certificate.is_some() {
                reader.refuse(
                    BACKEND_PROTOCOL,
                    format!("{backend:?} is none of tcp, ssl, http and https"),
                );
            }
            ("SSL", "TCP")
        }
    };
    let plain = if backend == "http" {
        ("HTTP", "HTTP")
    } else {
        ("TCP", "TCP")
    };
    let mut listeners = Vec::new();
    for port in &service.ports {
        if port.protocol != Protocol::Tcp {
            let problem = format!(
                "port {}: a classic load balancer has no {} ports",
                port.port, port.protocol
            );
            reader.refuse_field(spec_field("ports", &problem));
        }
        if port.node_port == 0 {
            continue;
        }
        let certificate = certificate
            .clone()
            .filter(|_| is_tls_port(reader, port.port, &port.name.to_lowercase()));
        let (protocol, instance_protocol) = if certificate.is_some() { secure } else { plain };
        listeners.push(ListenerSpec {
            port: port.port,
            instance_port: port.node_port,
            protocol,
            instance_protocol,
            certificate,
        });
    }
    listeners
}

fn health_check(
    service: &ServiceView,
    settings: &LoadBalancing,
    listeners: &[ListenerSpec],
    reader: &mut AnnotationReader<'_>,
) -> Vec<(&'static str, Value)> {
    let node_port = listeners.first().map_or(0, |listener| listener.instance_port);
    let (mut protocol, mut port, mut path) = match (service.health_check_port(), &settings.shared_probe) {
        (Some(port), _) => ("HTTP".to_owned(), port, "/healthz".to_owned()),
        (None, Some(shared)) if !service.is_local() => ("HTTP".to_owned(), shared.port, shared.path.clone()),
        _ => {
            let backend = reader.get(BACKEND_PROTOCOL).unwrap_or_default();
            let protocol = if ["https", "ssl"].contains(&backend) {
                "SSL"
            } else {
                "TCP"
            };
            (protocol.to_owned(), node_port, String::new())
        }
    };
    if let Some(text) = given(reader.get(CHECK_PROTOCOL)) {
        protocol = text.to_uppercase();
        if !["TCP", "SSL", "HTTP", "HTTPS"].contains(&protocol.as_str()) {
            reader.refuse(
                CHECK_PROTOCOL,
                format!("{text:?} is none of tcp, ssl, http and https"),
            );
        }
    }
    if reader.get(CHECK_PORT) != Some("traffic-port") {
        port = reader.strict_number(CHECK_PORT, 1..=u16::MAX).unwrap_or(port);
    }
    if protocol.starts_with("HTTP") {
        let default = if path.is_empty() { "/".to_owned() } else { path };
        path = given(reader.get(CHECK_PATH)).unwrap_or(default);
    } else {
        path.clear();
    }
    vec![
        ("health_check", format!("{protocol}:{port}{path}").into()),
        (
            "healthy_threshold",
            reader.strict_number(CHECK_HEALTHY, 2..=10).unwrap_or(2).into(),
        ),
        (
            "unhealthy_threshold",
            reader.strict_number(CHECK_UNHEALTHY, 2..=10).unwrap_or(6).into(),
        ),
        (
            "health_check_timeout",
            reader.strict_number(CHECK_TIMEOUT, 2..=60).unwrap_or(5).into(),
        ),
        (
            "health_check_interval",
            reader.strict_number(CHECK_INTERVAL, 5..=300).unwrap_or(10).into(),
        ),
    ]
}

fn balancer_attributes(reader: &mut AnnotationReader<'_>) -> Vec<(&'static str, Value)> {
    let mut flag = |key| reader.strict_flag(key).unwrap_or(false);
    let (cross_zone, logs, draining) = (flag(CROSS_ZONE), flag(ACCESS_LOG), flag(DRAINING));
    let mut attributes: Vec<(_, Value)> = vec![
        ("cross_zone", cross_zone.into()),
        ("access_log", logs.into()),
        ("draining", draining.into()),
        (
            "idle_timeout",
            reader.strict_number(IDLE_TIMEOUT, 1..=4000).unwrap_or(60).into(),
        ),
    ];
    let interval = reader.strict_number(ACCESS_LOG_INTERVAL, 5..=60);
    if logs {
        attributes.push(("access_log_bucket", reader.text(ACCESS_LOG_BUCKET, "").into()));
        attributes.push(("access_log_prefix", reader.text(ACCESS_LOG_PREFIX, "").into()));
        attributes.extend(interval.map(|minutes| ("access_log_interval", minutes.into())));
    }
    let timeout = reader.strict_number(DRAINING_TIMEOUT, 1..=3600);
    attributes.extend(
        timeout
            .filter(|_| draining)
            .map(|seconds| ("draining_timeout", seconds.into())),
    );
    attributes
}

impl Builder<'_> {
    /// All objects of a classic load balancer. Upstream keeps all of their attributes up to date.
    pub(crate) fn classic(&self, spec: &ClassicSpec) -> (Vec<Object<Kind>>, BTreeSet<(Kind, &'static str)>) {
        let common = &spec.common;
        let name = names::balancer(&self.service.id);
        let mut objects = Vec::new();
        let mut groups = common.security_groups.clone();
        if groups.is_empty() {
            groups.extend(self.settings.elb_security_group.clone());
        }
        if groups.is_empty() {
            let group = names::classic_group(&name);
            let id = &self.service.id;
            let about = format!(
                "Security group for Kubernetes ELB {name} ({}/{})",
                id.namespace, id.name
            );
            let ports: Vec<_> = spec
                .listeners
                .iter()
                .map(|listener| ("tcp", listener.port))
                .collect();
            objects.push(self.group(&group, &about, common, &ports));
            groups.push(group);
        }
        groups.extend(spec.extra_groups.iter().cloned());
        let mut balancer = self
            .object(Kind::Classic, &name, common)
            .with(
                "scheme",
                if common.internal {
                    "internal"
                } else {
                    "internet-facing"
                },
            )
            .with("security_groups", groups);
        if !self.places.is_empty() {
            balancer = balancer.with("subnets", self.subnets());
        }
        for (attribute, value) in &spec.attributes {
            balancer = balancer.with(attribute, value.clone());
        }
        if let Some(instances) = self.instances {
            balancer = balancer.entries(INSTANCES, instances.iter().cloned().map(Entry::Name));
        }
        let ports = spec.listeners.iter().filter(|_| spec.proxy_protocol);
        let ports: BTreeSet<_> = ports.map(|listener| listener.instance_port).collect();
        objects.push(balancer.entries(
            PROXY_PORTS,
            ports.iter().map(|port| Entry::Name(port.to_string())),
        ));
        for listener in &spec.listeners {
            let mut object = listener.object(&name);
            if let Some(policy) = spec
                .ssl_policy
                .as_ref()
                .filter(|_| listener.certificate.is_some())
            {
                object = object.with("policy", format!("{SSL_POLICY_PREFIX}{policy}"));
            }
            object.service = Some(self.service.id.clone());
            objects.push(object);
        }
        (objects, BTreeSet::new())
    }
}

impl ListenerSpec {
    fn object(&self, balancer: &str) -> Object<Kind> {
        let object = Object::new(Kind::ClassicListener, self.port.to_string())
            .with("protocol", self.protocol)
            .with("instance_protocol", self.instance_protocol)
            .with("instance_port", self.instance_port)
            .with("certificate", self.certificate.clone());
        Object {
            parent: Some(balancer.to_owned()),
            ..object
        }
    }
}
