//! Names, tags and descriptions of objects that are created for Services. They equal those of upstream,
//! so that each finds the objects of the other.

use ccm_core::load_balancer::{ClusterTag, ServiceId, default_name, truncated};

/// The prefix of our tags and of the names of load balancers that were created for Services.
pub(crate) const SERVICE_PREFIX: &str = "kube_service_";
/// A part of the description of every floating IP that was created for a Service.
pub(crate) const FLOATING_IP_DESCRIPTION: &str = "Floating IP for Kubernetes external service";
/// The beginning of the description of a floating IP that another one replaced.
const REPLACED_FLOATING_IP: &str = "Former floating IP of Kubernetes external service";
/// The prefix of the tag that records a `spec.loadBalancerIP`.
pub(crate) const REQUESTED_ADDRESS_PREFIX: &str = "kube_load_balancer_ip_";
/// The text of that tag if the Service named no address.
const ANY_ADDRESS: &str = "any";
/// The text between the Service and the cluster in descriptions.
const FROM_CLUSTER: &str = " from cluster ";
/// The longest name or description that Octavia and Neutron accept.
const MAX: usize = 255;

/// Cuts the text to 255 bytes.
pub(crate) fn cut(text: String) -> String {
    truncated(text, MAX)
}

/// The name of a Service's load balancer, and the Service's tag on objects that it uses.
pub(crate) fn load_balancer(cluster: &str, service: &ServiceId) -> String {
    let ServiceId { namespace, name, .. } = service;
    cut(format!("{SERVICE_PREFIX}{cluster}_{namespace}_{name}"))
}

/// The name of a Service's load balancer in old releases, for lookups only.
pub(crate) fn legacy_load_balancer(service: &ServiceId) -> String {
    default_name(service)
}

/// The description of a Service's load balancer.
pub(crate) fn load_balancer_description(cluster: &str, service: &ServiceId) -> String {
    cut(format!("Kubernetes external service {service} from cluster {cluster}"))
}

/// The name of the listener for the port with this index.
pub(crate) fn listener(index: usize, tag: &str) -> String {
    cut(format!("listener_{index}_{tag}"))
}

/// The name of the pool for the port with this index.
pub(crate) fn pool(index: usize, tag: &str) -> String {
    cut(format!("pool_{index}_{tag}"))
}

/// The name of the health monitor for the port with this index.
pub(crate) fn monitor(index: usize, tag: &str) -> String {
    cut(format!("monitor_{index}_{tag}"))
}

/// The name of a member that is created by its own call. Members in lists have the name of their node.
pub(crate) fn serial_member(node: &str, address: &str, node_port: u16) -> String {
    cut(format!("member_{node}_{address}_{node_port}"))
}

/// The description of a Service's floating IP. It ends with the ownership tag, since Neutron cannot create a floating
/// IP with tags. A tag that does not fit is left out.
pub(crate) fn floating_ip_description(
    cluster: &str,
    service: &ServiceId,
    tag: Option<&ClusterTag>,
) -> String {
    let description = format!("{}{FROM_CLUSTER}{cluster}", floating_ip_subject(service));
    let tagged = tag.map(|tag| format!("{description} ({tag})"));
    tagged.filter(|tagged| tagged.len() <= MAX).unwrap_or_else(|| cut(description))
}

/// The part of the description of a Service's floating IP that does not depend on the cluster.
pub(crate) fn floating_ip_subject(service: &ServiceId) -> String {
    format!("{FLOATING_IP_DESCRIPTION} {service}")
}

/// The [subject](floating_ip_subject) of a floating IP that was created for a Service.
pub(crate) fn subject_of_floating_ip(description: &str) -> Option<&str> {
    let (subject, _) = description.split_once(FROM_CLUSTER)?;
    subject.starts_with(FLOATING_IP_DESCRIPTION).then_some(subject)
}

/// The ownership tag in the description of a floating IP.
pub(crate) fn tag_of_floating_ip(description: &str) -> Option<&str> {
    let (_, tag) = description.strip_suffix(')')?.rsplit_once(" (")?;
    Some(tag)
}

/// The description of a floating IP without the ownership tag.
pub(crate) fn untagged_floating_ip(description: &str) -> &str {
    let tag = tag_of_floating_ip(description).map(|tag| format!(" ({tag})"));
    let untagged = tag.and_then(|tag| description.strip_suffix(&*tag));
    untagged.unwrap_or(description)
}

/// The description of a floating IP that was created for a Service, and that another one of `spec.loadBalancerIP` replaced. No
/// Service deletes it.
pub(crate) fn replaced_floating_ip(cluster: &str, service: &ServiceId) -> String {
    cut(format!("{REPLACED_FLOATING_IP} {service}{FROM_CLUSTER}{cluster}"))
}

/// Whether this is the description of a floating IP of the Service that another one replaced.
pub(crate) fn is_replaced_floating_ip(description: &str, service: &ServiceId) -> bool {
    let subject = description.split_once(FROM_CLUSTER).map(|(subject, _)| subject);
    subject == Some(&*format!("{REPLACED_FLOATING_IP} {service}"))
}

/// The tag of a load balancer that records the `spec.loadBalancerIP` that its floating IP was chosen for.
pub(crate) fn requested_address_tag(address: &str) -> String {
    let address = if address.is_empty() { ANY_ADDRESS } else { address };
    cut(format!("{REQUESTED_ADDRESS_PREFIX}{address}"))
}

/// Whether a tag records a `spec.loadBalancerIP`.
pub(crate) fn is_requested_address_tag(tag: &str) -> bool {
    tag.starts_with(REQUESTED_ADDRESS_PREFIX)
}

/// Whether this is the name of the Service's load balancer, or its tag, under any cluster name.
pub(crate) fn is_tag_of(tag: &str, service: &ServiceId) -> bool {
    is_service_tag(tag) && cluster_of(tag).is_some_and(|cluster| load_balancer(cluster, service) == tag)
}

/// The Service in a name or tag: the text behind the cluster's name. Empty if the text may have been cut, so that it
/// may belong to any Service; `None` if it has no Service.
pub(crate) fn subject(tag: &str) -> Option<&str> {
    /// The most bytes that the cut at [`MAX`] removes from a character.
    const CUT: usize = MAX - 3;
    let rest = tag.strip_prefix(SERVICE_PREFIX)?;
    let cluster = cluster_of(tag)?;
    if tag.len() >= CUT {
        return Some("");
    }
    rest.get(cluster.len()..)
}

/// The [subjects](subject) of all names and tags that may belong to this Service.
pub(crate) fn subjects(service: &ServiceId) -> [String; 2] {
    [format!("_{}_{}", service.namespace, service.name), String::new()]
}

/// The tag of a pool whose session persistence follows from `sessionAffinity`. Without it, a user may have set the persistence.
pub(crate) const SESSION_AFFINITY_TAG: &str = "kube_session_affinity";

/// The tag of a load balancer that this program took over while a pool of it lacked the session persistence that its Service
/// asks for. Upstream gives session persistence only to new pools.
pub(crate) const NOT_APPLIED_AFFINITY_TAG: &str = "kube_session_affinity_not_applied";

/// The name of a Service's security group.
pub(crate) fn security_group(service: &ServiceId) -> String {
    let ServiceId { namespace, name, uid } = service;
    cut(format!("lb-sg-{uid}-{namespace}-{name}"))
}

/// The description of a Service's security group.
pub(crate) fn security_group_description(cluster: &str, service: &ServiceId) -> String {
    cut(format!("Security Group for {service} Service LoadBalancer in cluster {cluster}"))
}

/// Whether this is the description of a security group that a cluster with this name created for a Service.
pub(crate) fn is_security_group_of_cluster(description: &str, cluster: &str) -> bool {
    let end = format!(" Service LoadBalancer in cluster {cluster}");
    description.starts_with("Security Group for ") && description.ends_with(&end)
}

/// Whether a tag names a Service that uses the object.
pub(crate) fn is_service_tag(tag: &str) -> bool {
    tag.starts_with(SERVICE_PREFIX)
}

/// The name of the cluster in one of our names, such as `listener_0_kube_service_<cluster>_<namespace>_<service>`;
/// `None` if there is none. Namespaces and Services have no `_` in their names, clusters may have. So the last two
/// parts are the namespace and the Service, or the last one if the name was cut.
pub(crate) fn cluster_of(name: &str) -> Option<&str> {
    let (_, rest) = name.split_once(SERVICE_PREFIX)?;
    // No part is empty.
    let part = |text: &str| {
        let (before, part) = text.rsplit_once('_')?;
        (!part.is_empty() && !before.is_empty()).then_some(before.len())
    };
    let one = rest.get(..part(rest)?)?;
    match part(one) {
        Some(two) => one.get(..two),
        None => Some(one),
    }
}

/// Replaces the cluster in one of our names.
pub(crate) fn with_cluster(name: &str, old: &str, new: &str) -> String {
    match name.split_once(SERVICE_PREFIX) {
        Some((before, rest)) => cut(format!("{before}{SERVICE_PREFIX}{}", rest.replacen(old, new, 1))),
        None => name.to_owned(),
    }
}

/// Replaces the cluster in tags, and removes duplicates.
pub(crate) fn tags_with_cluster(tags: &[String], old: &str, new: &str) -> Vec<String> {
    let mut renamed: Vec<String> = Vec::with_capacity(tags.len());
    for tag in tags {
        let is_old = is_service_tag(tag) && cluster_of(tag) == Some(old);
        let tag = if is_old {
            with_cluster(tag, old, new)
        } else {
            tag.clone()
        };
        if !renamed.contains(&tag) {
            renamed.push(tag);
        }
    }
    renamed
}

#[cfg(test)]
mod tests {
    use super::*;

    fn web() -> ServiceId {
        ServiceId::new("shop", "web", "8e9b-12-34")
    }

    #[test]
    fn names_are_those_of_the_go_cloud_controller() {
        let balancer = load_balancer("prod", &web());
        for (name, expected) in [
            (balancer.clone(), "kube_service_prod_shop_web"),
            (legacy_load_balancer(&web()), "a8e9b1234"),
            (
                load_balancer_description("prod", &web()),
                "Kubernetes external service shop/web from cluster prod",
            ),
            (listener(0, &balancer), "listener_0_kube_service_prod_shop_web"),
            (pool(1, &balancer), "pool_1_kube_service_prod_shop_web"),
            (monitor(2, &balancer), "monitor_2_kube_service_prod_shop_web"),
            (serial_member("n1", "10.0.0.1", 30080), "member_n1_10.0.0.1_30080"),
            (
                floating_ip_description("prod", &web(), None),
                "Floating IP for Kubernetes external service shop/web from cluster prod",
            ),
            (security_group(&web()), "lb-sg-8e9b-12-34-shop-web"),
            (
                security_group_description("prod", &web()),
                "Security Group for shop/web Service LoadBalancer in cluster prod",
            ),
        ] {
            assert_eq!(name, expected);
        }
        let long = ServiceId::new("a", "b", "0123456789012345678901234567890123456789");
        assert_eq!(legacy_load_balancer(&long).len(), 32);
    }

    #[test]
    fn a_floating_ip_has_the_ownership_tag_in_its_description_if_it_fits() {
        let tag = ClusterTag::of("me");
        let description = floating_ip_description("prod", &web(), Some(&tag));
        assert_eq!(tag_of_floating_ip(&description), Some(tag.as_str()));
        assert_eq!(subject_of_floating_ip(&description), Some(&*floating_ip_subject(&web())));
        let long = floating_ip_description(&"x".repeat(200), &web(), Some(&tag));
        assert_eq!((long.len(), tag_of_floating_ip(&long)), (255, None));
        assert_eq!(subject_of_floating_ip("mine from cluster prod"), None);
    }

    #[test]
    fn a_replaced_floating_ip_belongs_to_no_service() {
        let description = replaced_floating_ip("prod", &web());
        assert!(is_replaced_floating_ip(&description, &web()), "{description}");
        assert!(!is_replaced_floating_ip(&description, &ServiceId::new("shop", "api", "1")));
        assert!(!is_replaced_floating_ip(&floating_ip_description("prod", &web(), None), &web()));
        assert!(!description.contains(FLOATING_IP_DESCRIPTION));
        assert_eq!(subject_of_floating_ip(&description), None);
    }

    #[test]
    fn a_tag_records_the_requested_address() {
        assert_eq!(requested_address_tag("192.0.2.1"), "kube_load_balancer_ip_192.0.2.1");
        assert_eq!(requested_address_tag(""), "kube_load_balancer_ip_any");
        assert!(
            is_requested_address_tag(&requested_address_tag(""))
                && !is_service_tag(&requested_address_tag(""))
        );
    }

    #[test]
    fn names_are_cut_at_255_bytes_and_between_characters() {
        let cluster = "x".repeat(300);
        assert_eq!(load_balancer(&cluster, &web()).len(), 255);
        assert_eq!(load_balancer("", &web()), "kube_service__shop_web");
        // The prefix has 13 bytes. Of the other 242, 241 are whole characters after the first x.
        let name = load_balancer(&format!("xx{}", "ü".repeat(200)), &web());
        assert!(name.len() == 255 && name.ends_with('ü'), "{}", name.len());
        let name = load_balancer(&format!("x{}", "ü".repeat(200)), &web());
        assert!(name.len() == 254 && name.ends_with('ü'), "{}", name.len());
    }

    #[test]
    fn the_cluster_is_found_in_a_name() {
        for (name, cluster) in [
            ("kube_service_kubernetes_ns_svc", Some("kubernetes")),
            ("listener_0_kube_service_my_long_cluster_ns_svc", Some("my_long_cluster")),
            // The cut is within the Service's name, or within the namespace's.
            ("kube_service_cluster_ns_s", Some("cluster")),
            ("kube_service_cluster_n", Some("cluster")),
            ("kube_service_cluster", None),
            ("kube_service_a_b_", None),
            ("some_load_balancer", None),
            ("", None),
        ] {
            assert_eq!(cluster_of(name), cluster, "{name}");
        }
    }

    #[test]
    fn the_cluster_is_renamed_once_and_after_the_prefix() {
        for (name, old, new, expected) in [
            ("kube_service_old_ns_svc", "old", "new", "kube_service_new_ns_svc"),
            ("pool_0_kube_service_old_old_svc", "old", "new", "pool_0_kube_service_new_old_svc"),
            ("kube_service_kube_ns_svc", "kube", "x", "kube_service_x_ns_svc"),
            ("kube_service_a_ns_svc", "other", "new", "kube_service_a_ns_svc"),
            ("web", "web", "new", "web"),
        ] {
            assert_eq!(with_cluster(name, old, new), expected);
        }
        assert_eq!(with_cluster("kube_service_old_ns_svc", "old", &"n".repeat(300)).len(), 255);
    }
}
