//! Names, equal to those of the Go cloud controller.

use aws_lc_rs::digest::{self, Algorithm};
use ccm_core::load_balancer::ServiceId;
pub(crate) use ccm_core::load_balancer::default_name as balancer;

use super::spec::PortSpec;

/// The value of the tag with the Service.
pub(crate) fn service_tag(service: &ServiceId) -> String {
    format!("{}/{}", service.namespace, service.name)
}

/// Whether this host name, from a Service's status, is that of the Service's load balancer.
pub(crate) fn is_hostname_of(hostname: &str, service: &ServiceId) -> bool {
    let name = balancer(service);
    let bare = hostname.strip_prefix("internal-").unwrap_or(hostname);
    let end = bare.strip_prefix(name.as_str());
    end.is_some_and(|end| end.starts_with(['-', '.']))
}

/// The description of the security group of a network load balancer.
pub(crate) const MANAGED: &str = "[k8s] Managed SecurityGroup for LoadBalancer";

/// The prefix of the names of security groups of classic load balancers.
pub(crate) const CLASSIC_GROUP: &str = "k8s-elb-";

/// The security group of a classic load balancer.
pub(crate) fn classic_group(balancer: &str) -> String {
    format!("{CLASSIC_GROUP}{balancer}")
}

/// The security group of a network load balancer. `cluster` is `--cluster-name`.
pub(crate) fn group(cluster: &str, service: &ServiceId) -> String {
    let ServiceId { namespace, name, uid } = service;
    let text = format!("{cluster}{name}{namespace}{uid}");
    hashed(service, &digest::SHA256, &text)
}

/// Whether a security group with this name and description was created for one load balancer.
pub(crate) fn is_own_group(name: &str, description: &str) -> bool {
    name.starts_with(&classic_group("a")) || (name.starts_with("k8s-") && description == MANAGED)
}

/// The name of a target group, with a hash of all immutable attributes. `cluster`: the cluster's ID. `check`:
/// protocol and interval of the health check.
pub(crate) fn target_group(
    cluster: &str,
    service: &ServiceId,
    port: &PortSpec,
    target_type: &str,
    (check_protocol, check_interval): (&str, i64),
) -> String {
    let ServiceId { namespace, name, .. } = service;
    let PortSpec {
        port,
        node_port,
        target_protocol,
        ..
    } = port;
    let port = format!("{port}{node_port}{target_protocol}{target_type}");
    let text = format!("{cluster}{namespace}{name}{port}{check_protocol}{check_interval}");
    hashed(service, &digest::SHA1_FOR_LEGACY_USE_ONLY, &text)
}

fn short(text: &str) -> String {
    text.chars().filter(char::is_ascii_alphanumeric).take(8).collect()
}

/// A name of an object of a Service, with the first ten hexadecimal digits of a hash.
fn hashed(service: &ServiceId, algorithm: &'static Algorithm, text: &str) -> String {
    let digest = digest::digest(algorithm, text.as_bytes());
    let start = digest.as_ref().iter().take(5);
    let hex: String = start.map(|byte| format!("{byte:02x}")).collect();
    let (namespace, name) = (short(&service.namespace), short(&service.name));
    format!("k8s-{namespace}-{name}-{hex}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn load_balancers_and_groups_are_named_as_upstream_names_them() {
        let service = ServiceId::new("default", "my-service", "12345678-1234-1234-1234-123456789abc");
        assert_eq!(
            balancer(&service),
            "a1234567812341234123412345678 9abc"
                .replace(' ', "")
                .get(..32)
                .unwrap_or_default()
        );
        assert_eq!(group("test-cluster", &service), "k8s-default-myservic-b7cb8b02f0");
        assert_ne!(
            group("test-cluster", &ServiceId::new("default", "my-service", "1")),
            group("test-cluster", &service)
        );
        assert!(group("c", &ServiceId::new("a", "b", "")).starts_with("k8s-a-b-"));
    }

    #[test]
    fn host_names_identify_the_service_of_a_load_balancer() {
        let service = ServiceId::new("n", "s", "12345678-1234-1234-1234-123456789abc");
        let name = balancer(&service);
        for (hostname, is) in [
            (
                format!("{name}-0123456789abcdef.elb.us-east-1.amazonaws.com"),
                true,
            ),
            (format!("{name}-12.us-east-1.elb.amazonaws.com"), true),
            (
                format!("internal-{name}-12.cn-north-1.elb.amazonaws.com.cn"),
                true,
            ),
            (format!("{name}.us-east-1.elb.amazonaws.com"), true),
            (
                "k8s-n-s-0123456789-0123456789abcdef.elb.us-east-1.amazonaws.com".to_owned(),
                false,
            ),
            ("web.example".to_owned(), false),
        ] {
            assert_eq!(is_hostname_of(&hostname, &service), is, "{hostname}");
        }
    }

    /// Reference vectors of the Go cloud controller.
    #[test]
    fn target_groups_are_named_as_upstream_names_them() {
        let [a, b, other] = [
            ("default", "service-a"),
            ("default", "service-b"),
            ("another", "service-a"),
        ]
        .map(|(namespace, name)| ServiceId::new(namespace, name, ""));
        let (none, tcp, http) = (("", 0), ("TCP", 30), ("HTTP", 10));
        for (cluster, service, ports, protocol, target_type, check, expected) in [
            (
                "a",
                &a,
                (80, 8080),
                "TCP",
                "instance",
                none,
                "servicea-7fa2e07508",
            ),
            (
                "b",
                &a,
                (80, 8080),
                "TCP",
                "instance",
                none,
                "servicea-719ee635da",
            ),
            (
                "a",
                &other,
                (80, 8080),
                "TCP",
                "instance",
                none,
                "servicea-f66e09847d",
            ),
            (
                "a",
                &b,
                (80, 8080),
                "TCP",
                "instance",
                none,
                "serviceb-196c19c881",
            ),
            (
                "a",
                &a,
                (9090, 8080),
                "TCP",
                "instance",
                none,
                "servicea-06876706cb",
            ),
            (
                "a",
                &a,
                (80, 9090),
                "TCP",
                "instance",
                none,
                "servicea-119f844ec0",
            ),
            (
                "a",
                &a,
                (80, 8080),
                "UDP",
                "instance",
                none,
                "servicea-3868761686",
            ),
            ("a", &a, (80, 8080), "TCP", "ip", none, "servicea-0fa31f4b0f"),
            ("a", &a, (80, 8080), "TCP", "ip", http, "servicea-4028e49618"),
            (
                "a",
                &a,
                (80, 30080),
                "TCP",
                "instance",
                tcp,
                "servicea-3b765c4ef2",
            ),
            (
                "a",
                &a,
                (80, 30080),
                "TCP",
                "instance",
                http,
                "servicea-be6811f2f5",
            ),
        ] {
            let port = PortSpec {
                port: ports.0,
                node_port: ports.1,
                protocol,
                target_protocol: protocol,
            };
            let name = target_group(&format!("cluster-{cluster}"), service, &port, target_type, check);
            assert_eq!(name, format!("k8s-{}-{expected}", service.namespace));
        }
    }
}
