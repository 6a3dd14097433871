//! Names, equal to those of upstream.

use aws_lc_rs::digest::{self, Algorithm};
use ccm_core::load_balancer::ServiceId;
pub(crate) use ccm_core::load_balancer::default_name as balancer;

use super::spec::PortSpec;
use crate::site::Tags;

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

/// Whether a host name is that of a classic load balancer. Those of others have the region at another place.
pub(crate) fn is_classic_hostname(hostname: &str) -> bool {
    // `<name>.<region>.elb.<domain>`, unlike `<name>.elb.<region>.<domain>`, in every partition.
    hostname.split('.').nth(2) == Some("elb")
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

/// Whether an object with these tags belongs to the AWS Load Balancer Controller. Names and descriptions of its security groups
/// are similar to [`group`] and [`MANAGED`].
pub(crate) fn is_of_load_balancer_controller(tags: &Tags) -> bool {
    tags.keys().any(|key| key.starts_with("elbv2.k8s.aws/"))
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
    let (number, node_port, protocol) = (port.port, port.node_port, port.target_protocol);
    let port = format!("{number}{node_port}{protocol}{target_type}");
    let text = format!("{cluster}{namespace}{name}{port}{check_protocol}{check_interval}");
    hashed(service, &digest::SHA1_FOR_LEGACY_USE_ONLY, &text)
}

/// A name of an object of a Service, with the first ten hexadecimal digits of a hash.
fn hashed(service: &ServiceId, algorithm: &'static Algorithm, text: &str) -> String {
    let digest = digest::digest(algorithm, text.as_bytes());
    let start = digest.as_ref().iter().take(5);
    let hex: String = start.map(|byte| format!("{byte:02x}")).collect();
    let short = |text: &str| -> String { text.chars().filter(char::is_ascii_alphanumeric).take(8).collect() };
    let (namespace, name) = (short(&service.namespace), short(&service.name));
    format!("k8s-{namespace}-{name}-{hex}")
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn load_balancers_and_groups_are_named_as_upstream_names_them() {
        let service = ServiceId::new("default", "my-service", "12345678-1234-1234-1234-123456789abc");
        assert_eq!(balancer(&service), "a1234567812341234123412345678 9abc".replace(' ', "")[..32]);
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
        for (hostname, is) in [
            ("NAME-0123456789abcdef.elb.us-east-1.amazonaws.com", true),
            ("NAME-12.us-east-1.elb.amazonaws.com", true),
            ("internal-NAME-12.cn-north-1.elb.amazonaws.com.cn", true),
            ("NAME.us-east-1.elb.amazonaws.com", true),
            ("k8s-n-s-0123456789-0123456789abcdef.elb.us-east-1.amazonaws.com", false),
            ("web.example", false),
        ] {
            let hostname = hostname.replace("NAME", &balancer(&service));
            assert_eq!(is_hostname_of(&hostname, &service), is, "{hostname}");
        }
    }

    #[test]
    fn host_names_identify_the_kind_in_every_partition() {
        for (hostname, is_classic) in [
            ("a-12.us-east-1.elb.amazonaws.com", true),
            ("internal-a-12.cn-north-1.elb.amazonaws.com.cn", true),
            ("a-12.eusc-de-east-1.elb.amazonaws.eu", true),
            ("a-0123456789abcdef.elb.us-east-1.amazonaws.com", false),
            ("a-0123456789abcdef.elb.us-iso-east-1.c2s.ic.gov", false),
        ] {
            assert_eq!(is_classic_hostname(hostname), is_classic, "{hostname}");
        }
    }

    /// Reference vectors of upstream.
    #[test]
    fn target_groups_are_named_as_upstream_names_them() {
        // Cluster, Service, ports, protocol and target type, and the health check.
        for case in [
            "a default/service-a 80 8080 TCP instance => servicea-7fa2e07508",
            "b default/service-a 80 8080 TCP instance => servicea-719ee635da",
            "a another/service-a 80 8080 TCP instance => servicea-f66e09847d",
            "a default/service-b 80 8080 TCP instance => serviceb-196c19c881",
            "a default/service-a 9090 8080 TCP instance => servicea-06876706cb",
            "a default/service-a 80 9090 TCP instance => servicea-119f844ec0",
            "a default/service-a 80 8080 UDP instance => servicea-3868761686",
            "a default/service-a 80 8080 TCP ip => servicea-0fa31f4b0f",
            "a default/service-a 80 8080 TCP ip HTTP 10 => servicea-4028e49618",
            "a default/service-a 80 30080 TCP instance TCP 30 => servicea-3b765c4ef2",
            "a default/service-a 80 30080 TCP instance HTTP 10 => servicea-be6811f2f5",
        ] {
            let (words, expected) = case.split_once(" => ").unwrap();
            let words: Vec<_> = words.split(' ').collect();
            let (namespace, name) = words[1].split_once('/').unwrap();
            let port = PortSpec {
                port: words[2].parse().unwrap(),
                node_port: words[3].parse().unwrap(),
                protocol: words[4],
                target_protocol: words[4],
            };
            let check = words.get(6).map_or(("", 0), |protocol| (*protocol, words[7].parse().unwrap()));
            let (cluster, service) = (format!("cluster-{}", words[0]), ServiceId::new(namespace, name, ""));
            let found = target_group(&cluster, &service, &port, words[5], check);
            assert_eq!(found, format!("k8s-{namespace}-{expected}"), "{case}");
        }
    }
}
