//! Names, equal to those of the Go cloud controller.

use aws_lc_rs::digest::{self, Algorithm};
pub(crate) use ccm_core::load_balancer::default_load_balancer_name as balancer;
use ccm_core::load_balancer::{ServiceId, truncated};

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

/// The security group of a classic load balancer.
pub(crate) fn classic_group(balancer: &str) -> String {
    format!("k8s-elb-{balancer}")
}

/// The security group of a network load balancer. `cluster` is `--cluster-name`.
pub(crate) fn group(cluster: &str, service: &ServiceId) -> String {
    let ServiceId { namespace, name, uid } = service;
    let hash = hash(&digest::SHA256, &[cluster, name, namespace, uid]);
    format!("k8s-{}-{}-{hash}", short(namespace), short(name))
}

/// Whether a security group with this name and description was created for one load balancer.
pub(crate) fn is_own_group(name: &str, description: &str) -> bool {
    name.starts_with(&classic_group("a")) || (name.starts_with("k8s-") && description == MANAGED)
}

/// What makes a target group another one.
#[derive(Clone, Copy, Debug)]
pub(crate) struct TargetGroupId<'a> {
    /// The cluster's ID.
    pub(crate) cluster: &'a str,
    pub(crate) service: &'a ServiceId,
    pub(crate) port: u16,
    pub(crate) node_port: u16,
    /// The protocol to the targets.
    pub(crate) protocol: &'a str,
    pub(crate) check_protocol: &'a str,
    pub(crate) check_interval: i64,
}

impl TargetGroupId<'_> {
    /// The name.
    pub(crate) fn name(self) -> String {
        self.name_of_type("instance")
    }

    fn name_of_type(self, target_type: &str) -> String {
        let ServiceId { namespace, name, .. } = self.service;
        let (port, node_port) = (self.port.to_string(), self.node_port.to_string());
        let interval = self.check_interval.to_string();
        let parts = [
            self.cluster,
            namespace,
            name,
            &port,
            &node_port,
            self.protocol,
            target_type,
            self.check_protocol,
            &interval,
        ];
        let hash = hash(&digest::SHA1_FOR_LEGACY_USE_ONLY, &parts);
        format!("{}{hash}", target_group_prefix(self.service))
    }
}

/// What the names of all target groups of a Service begin with. Those of others may begin so, too.
pub(crate) fn target_group_prefix(service: &ServiceId) -> String {
    format!("k8s-{}-{}-", short(&service.namespace), short(&service.name))
}

fn short(text: &str) -> String {
    text.chars().filter(char::is_ascii_alphanumeric).take(8).collect()
}

/// The first ten hexadecimal digits.
fn hash(algorithm: &'static Algorithm, parts: &[&str]) -> String {
    let digest = digest::digest(algorithm, parts.concat().as_bytes());
    let hex: String = digest.as_ref().iter().map(|byte| format!("{byte:02x}")).collect();
    truncated(hex, 10)
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
        assert_eq!(target_group_prefix(&ServiceId::new("a", "b", "")), "k8s-a-b-");
    }

    #[test]
    fn host_names_tell_whose_load_balancer_it_is() {
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
        let a = ServiceId::new("default", "service-a", "");
        let (b, other) = (
            ServiceId::new("default", "service-b", ""),
            ServiceId::new("another", "service-a", ""),
        );
        let id = TargetGroupId {
            cluster: "cluster-a",
            service: &a,
            port: 80,
            node_port: 8080,
            protocol: "TCP",
            check_protocol: "",
            check_interval: 0,
        };
        let real = TargetGroupId {
            node_port: 30080,
            check_protocol: "TCP",
            check_interval: 30,
            ..id
        };
        for (id, target_type, expected) in [
            (id, "instance", "k8s-default-servicea-7fa2e07508"),
            (
                TargetGroupId {
                    cluster: "cluster-b",
                    ..id
                },
                "instance",
                "k8s-default-servicea-719ee635da",
            ),
            (
                TargetGroupId {
                    service: &other,
                    ..id
                },
                "instance",
                "k8s-another-servicea-f66e09847d",
            ),
            (
                TargetGroupId { service: &b, ..id },
                "instance",
                "k8s-default-serviceb-196c19c881",
            ),
            (
                TargetGroupId { port: 9090, ..id },
                "instance",
                "k8s-default-servicea-06876706cb",
            ),
            (
                TargetGroupId {
                    node_port: 9090,
                    ..id
                },
                "instance",
                "k8s-default-servicea-119f844ec0",
            ),
            (
                TargetGroupId {
                    protocol: "UDP",
                    ..id
                },
                "instance",
                "k8s-default-servicea-3868761686",
            ),
            (id, "ip", "k8s-default-servicea-0fa31f4b0f"),
            (
                TargetGroupId {
                    check_protocol: "HTTP",
                    check_interval: 10,
                    ..id
                },
                "ip",
                "k8s-default-servicea-4028e49618",
            ),
            (real, "instance", "k8s-default-servicea-3b765c4ef2"),
            (
                TargetGroupId {
                    check_protocol: "HTTP",
                    check_interval: 10,
                    ..real
                },
                "instance",
                "k8s-default-servicea-be6811f2f5",
            ),
        ] {
            assert_eq!(id.name_of_type(target_type), expected);
        }
    }
}
