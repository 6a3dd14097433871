//! Orphans: objects that this cluster created for Services that do not exist.

use std::collections::{BTreeMap, BTreeSet};

use ccm_core::{
    load_balancer::{ClusterSnapshot, ServiceId},
    plan::Orphan,
};

use super::{
    annotations,
    directory::{LoadBalancerDirectory, LoadBalancerEntry},
    names,
    part::OpenStackPart,
};

/// The tags of all Services, by the cluster name in them.
struct KnownServiceTags<'a> {
    snapshot: &'a ClusterSnapshot,
    by_cluster: BTreeMap<String, BTreeSet<String>>,
}

impl KnownServiceTags<'_> {
    /// Whether the Service of this tag exists.
    fn contains(&mut self, tag: &str) -> bool {
        let cluster = names::cluster_of(tag).unwrap_or_default();
        if !self.by_cluster.contains_key(cluster) {
            let services = self.snapshot.services.iter();
            let tags = services.map(|service| names::load_balancer(cluster, &service.id));
            self.by_cluster.insert(cluster.to_owned(), tags.collect());
        }
        self.by_cluster.get(cluster).is_some_and(|tags| tags.contains(tag))
    }
}

/// Finds the orphans. They are load balancers with this cluster's ownership tag and without a Service, listeners of
/// missing Services on shared load balancers, and security groups of missing Services. Floating IPs with this cluster's
/// ownership tag and without a port and a Service are orphans, too: creations failed.
pub(super) fn orphans(
    snapshot: &ClusterSnapshot,
    directory: &LoadBalancerDirectory,
) -> Vec<Orphan<OpenStackPart>> {
    let (cluster, ownership_tag) = (&*snapshot.cluster.name, &snapshot.cluster.ownership_tag);
    let mut tags = KnownServiceTags {
        snapshot,
        by_cluster: BTreeMap::new(),
    };
    let services = || snapshot.services.iter();
    let named: BTreeSet<&str> = services()
        .filter_map(|service| service.annotation(annotations::LOAD_BALANCER_ID))
        .collect();
    let mut orphans = Vec::new();
    for (id, entry) in directory.balancers() {
        let of_services = entry.tags.iter().filter(|tag| names::is_service_tag(tag));
        let missing: Vec<&String> = of_services.clone().filter(|tag| !tags.contains(tag)).collect();
        let ownership = ownership_tag.ownership(entry.tags.iter().map(String::as_str));
        // A Service that leaves still decides about the load balancer with its name, and about the floating IP of it.
        let is_used =
            missing.len() < of_services.count() || named.contains(&**id) || tags.contains(&entry.name);
        let was_used = !missing.is_empty() || names::is_service_tag(&entry.name);
        if is_used && ownership.allows_changes() {
            let ours = missing.iter().filter(|tag| names::cluster_of(tag) == Some(cluster));
            orphans.extend(ours.map(|tag| Orphan {
                key: OpenStackPart::Balancer(id.clone()),
                what: format!("listeners tagged {tag} on load balancer {} ({id})", entry.name),
                deletable: false,
            }));
        } else if !is_used && was_used && ownership.allows_orphan_deletion() {
            orphans.push(Orphan {
                key: OpenStackPart::Balancer(id.clone()),
                what: format!("load balancer {} ({id})", entry.name),
                deletable: is_of_cluster_alone(entry, cluster),
            });
        }
    }
    let known: BTreeSet<String> = services().map(|service| names::security_group(&service.id)).collect();
    let groups = directory.groups.iter().filter(|(name, description)| {
        names::is_security_group_of_cluster(description, cluster) && !known.contains(*name)
    });
    orphans.extend(groups.map(|(name, _)| Orphan {
        key: OpenStackPart::Group(name.clone()),
        what: format!("security group {name}"),
        deletable: false,
    }));
    let known: BTreeSet<String> = services().map(|service| names::floating_ip_subject(&service.id)).collect();
    let floating = directory.floating().filter_map(|(address, description)| {
        let subject =
            names::subject_of_floating_ip(description).filter(|subject| !known.contains(*subject))?;
        let ownership = ownership_tag.ownership(names::tag_of_floating_ip(description));
        let service = subject.strip_prefix(names::FLOATING_IP_DESCRIPTION)?.trim_start();
        let (namespace, name) = service.split_once('/')?;
        let service = ServiceId::new(namespace, name, "");
        ownership.allows_orphan_deletion().then_some((address, service))
    });
    orphans.extend(floating.map(|(address, service)| Orphan {
        key: OpenStackPart::New(names::load_balancer(cluster, &service)),
        what: format!("floating IP {address} of Service {service}"),
        deletable: false,
    }));
    orphans
}

/// Whether the load balancer was created under the cluster's current name and no other cluster uses it.
fn is_of_cluster_alone(entry: &LoadBalancerEntry, cluster: &str) -> bool {
    let mut tags = entry.tags.iter().filter(|tag| names::is_service_tag(tag));
    names::is_service_tag(&entry.name)
        && names::cluster_of(&entry.name) == Some(cluster)
        && tags.all(|tag| names::cluster_of(tag) == Some(cluster))
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use ccm_core::load_balancer::{ClusterTag, ClusterView, OwnershipTag, ServiceView};

    use super::*;

    #[test]
    fn orphans_are_found_and_only_whole_load_balancers_of_this_cluster_are_deletable() {
        let own_tag = ClusterTag::of("me").to_string();
        let other = ClusterTag::of("other").to_string();
        let (web, gone) = ("kube_service_c_shop_web", "kube_service_c_shop_gone");
        let entry = |name: &str, tags: &[&str]| LoadBalancerEntry {
            name: name.to_owned(),
            tags: tags.iter().map(|tag| (*tag).to_owned()).collect(),
        };
        let group = |name: &str, cluster: &str| {
            let text = format!("Security Group for shop/{name} Service LoadBalancer in cluster {cluster}");
            (format!("lb-sg-1-shop-{name}"), text)
        };
        let floating = |name: &str, cluster: &str| {
            let service = ServiceId::new("shop", name, "1");
            let tag = ClusterTag::of(cluster);
            (format!("address of {name}"), names::floating_ip_description("c", &service, Some(&tag)))
        };
        let directory = LoadBalancerDirectory::new(
            [
                ("1", entry(web, &[&own_tag, web])),
                ("2", entry(gone, &[&own_tag, gone])),
                ("3 shared", entry(web, &[&own_tag, web, gone])),
                ("4 shared by a person", entry("mine", &[web, gone])),
                ("5 named by id", entry("mine", &[gone])),
                (
                    "6 former name",
                    entry("kube_service_b_shop_gone", &[&own_tag, "kube_service_b_shop_gone"]),
                ),
                ("7 also another cluster's", entry(gone, &[&own_tag, gone, "kube_service_d_store_web"])),
                ("8 without our tag", entry(gone, &[gone])),
                ("9 another cluster's", entry(gone, &[&other, gone])),
                ("left by its own Service", entry(web, &[&own_tag, gone])),
                ("without Service tags", entry(gone, &[&own_tag])),
                ("of a user, without Service tags", entry("mine", &[&own_tag])),
            ]
            .map(|(id, entry)| (id.to_owned(), entry)),
            [group("web", "c"), group("gone", "c"), group("gone2", "d")],
            [
                floating("web", "me"),
                floating("gone", "me"),
                floating("gone2", "other"),
            ],
        );
        let service = |name: &str, id: Option<&str>| {
            Arc::new(ServiceView {
                id: ServiceId::new("shop", name, "1"),
                annotations: id.map(|id| (annotations::LOAD_BALANCER_ID, id)).into_iter().collect(),
                ..ServiceView::default()
            })
        };
        let snapshot = ClusterSnapshot {
            services: vec![service("web", None), service("x", Some("5 named by id"))],
            cluster: ClusterView {
                name: "c".into(),
                ownership_tag: OwnershipTag::Known(ClusterTag::of("me")),
                ..ClusterView::default()
            },
        };
        let found: Vec<_> = orphans(&snapshot, &directory)
            .into_iter()
            .map(|orphan| (orphan.what, orphan.deletable))
            .collect();
        let expected = [
            ("load balancer kube_service_c_shop_gone (2)", true),
            (
                "listeners tagged kube_service_c_shop_gone on load balancer kube_service_c_shop_web (3 shared)",
                false,
            ),
            (
                "listeners tagged kube_service_c_shop_gone on load balancer mine (4 shared by a person)",
                false,
            ),
            (
                "listeners tagged kube_service_c_shop_gone on load balancer mine (5 named by id)",
                false,
            ),
            ("load balancer kube_service_b_shop_gone (6 former name)", false),
            (
                "load balancer kube_service_c_shop_gone (7 also another cluster's)",
                false,
            ),
            (
                "listeners tagged kube_service_c_shop_gone on load balancer kube_service_c_shop_web (left by its own Service)",
                false,
            ),
            ("load balancer kube_service_c_shop_gone (without Service tags)", true),
            ("security group lb-sg-1-shop-gone", false),
            ("floating IP address of gone of Service shop/gone", false),
        ]
        .map(|(what, deletable)| (what.to_owned(), deletable));
        assert_eq!(found, expected);
    }
}
