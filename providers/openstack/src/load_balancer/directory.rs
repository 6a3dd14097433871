//! Finds the load balancers of each Service, by name.

use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    sync::Arc,
};

use ccm_core::{
    client::Listing,
    load_balancer::{ClusterView, FormerLoadBalancer, Ownership, OwnershipTag, ServiceId, ServiceView},
};

use super::{
    annotations, names,
    part::OpenStackPart,
    responses::{FloatingIp, LoadBalancer, SecurityGroup},
};

/// The relevant part of the listings.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct LoadBalancerDirectory {
    balancers: BTreeMap<String, LoadBalancerEntry>,
    /// Names and descriptions of the security groups that were created for Services.
    pub(super) groups: BTreeMap<String, String>,
    /// Whether the security groups could not be read.
    pub(super) lacks_groups: bool,
    /// Addresses of floating IPs without a port, with their descriptions.
    floating: BTreeMap<String, String>,
    /// This Octavia has no tags, so that no ownership tag shows who created a load balancer.
    lacks_tags: bool,
    index: Index,
}

/// A load balancer in the [`LoadBalancerDirectory`].
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct LoadBalancerEntry {
    pub(crate) name: String,
    pub(crate) tags: Vec<String>,
}

impl LoadBalancerEntry {
    /// The texts that may identify the Service.
    fn texts(&self) -> impl Iterator<Item = &String> {
        std::iter::once(&self.name).chain(&self.tags)
    }
}

/// An index of load balancers, so that a lookup for one Service does not read all of them.
#[derive(Clone, Debug, Default, PartialEq)]
struct Index {
    /// IDs by their names and tags.
    by_text: HashMap<String, BTreeSet<String>>,
    /// IDs by the [subject](names::subject) of their names and tags: the Service, in any cluster.
    by_service: HashMap<String, BTreeSet<String>>,
}

impl Index {
    fn of(balancers: &BTreeMap<String, LoadBalancerEntry>) -> Self {
        let mut index = Self::default();
        for (id, entry) in balancers {
            for text in entry.texts() {
                let ids = index.by_text.entry(text.clone()).or_default();
                ids.insert(id.clone());
                if let Some(subject) = names::subject(text) {
                    let ids = index.by_service.entry(subject.to_owned()).or_default();
                    ids.insert(id.clone());
                }
            }
        }
        index
    }

    fn with_text(&self, text: &str) -> impl Iterator<Item = &String> {
        self.by_text.get(text).into_iter().flatten()
    }

    /// The IDs of load balancers whose names or tags may belong to the Service.
    fn about(&self, service: &ServiceId) -> BTreeSet<&String> {
        let keys = names::subjects(service);
        let ids = keys.iter().filter_map(|key| self.by_service.get(key));
        ids.flatten().collect()
    }
}

impl LoadBalancerDirectory {
    /// Creates the directory. `balancers`: those that are not being deleted, by ID. `groups`: names and descriptions of
    /// security groups that were created for Services. `floating`: addresses and descriptions of floating IPs that were
    /// created for Services and have no port.
    pub(crate) fn new(
        balancers: impl IntoIterator<Item = (String, LoadBalancerEntry)>,
        groups: impl IntoIterator<Item = (String, String)>,
        floating: impl IntoIterator<Item = (String, String)>,
    ) -> Self {
        let balancers: BTreeMap<_, _> = balancers.into_iter().collect();
        Self {
            index: Index::of(&balancers),
            balancers,
            groups: groups.into_iter().collect(),
            lacks_groups: false,
            floating: floating.into_iter().collect(),
            lacks_tags: false,
        }
    }

    /// All load balancers, by id.
    pub(super) fn balancers(&self) -> impl Iterator<Item = (&String, &LoadBalancerEntry)> {
        self.balancers.iter()
    }

    /// Addresses and descriptions of the floating IPs that were created for Services and have no port.
    pub(super) fn floating(&self) -> impl Iterator<Item = (&String, &String)> {
        self.floating.iter()
    }

    /// The IDs of load balancers with this name.
    fn named(&self, name: &str) -> impl Iterator<Item = &String> {
        let all = self.index.with_text(name);
        all.filter(move |id| self.balancers.get(*id).is_some_and(|entry| entry.name == name))
    }

    /// The IDs of load balancers that have the Service's name as their name or as a tag.
    pub(super) fn tagged_for(&self, service: &ServiceId, cluster: &ClusterView) -> BTreeSet<&String> {
        let tag = names::load_balancer(&cluster.name, service);
        let legacy = names::legacy_load_balancer(service);
        let mut found: BTreeSet<_> = self.index.with_text(&tag).collect();
        found.extend(self.named(&legacy));
        // With a former name of the cluster.
        found.extend(self.index.about(service).into_iter().filter(|id| {
            self.has_ours(id, &cluster.ownership_tag, |entry| {
                entry.texts().any(|text| names::is_tag_of(text, service))
            })
        }));
        found
    }

    /// Whether the load balancer with this ID has our ownership tag and passes the test.
    fn has_ours(
        &self,
        id: &str,
        ownership_tag: &OwnershipTag,
        test: impl Fn(&LoadBalancerEntry) -> bool,
    ) -> bool {
        self.ownership(id, ownership_tag) == Some(Ownership::Ours) && self.balancers.get(id).is_some_and(test)
    }

    /// The only load balancer with our ownership tag that was created for the Service under another cluster name.
    fn former(&self, service: &ServiceId, ownership_tag: &OwnershipTag) -> Option<&String> {
        only(
            self.index.about(service).into_iter().filter(|id| {
                self.has_ours(id, ownership_tag, |entry| names::is_tag_of(&entry.name, service))
            }),
        )
    }

    /// The load balancer of this Service, or the one to create.
    pub(super) fn balancer_of(&self, service: &ServiceView, cluster: &ClusterView) -> OpenStackPart {
        let name = names::load_balancer(&cluster.name, &service.id);
        let by_name = || {
            if self.named(&name).next().is_some() {
                return only(self.named(&name));
            }
            only(self.named(&names::legacy_load_balancer(&service.id)))
                .or_else(|| self.former(&service.id, &cluster.ownership_tag))
        };
        let given = service.annotation(annotations::LOAD_BALANCER_ID);
        let Some(given) = given.filter(|given| !given.is_empty()) else {
            return by_name().map_or(OpenStackPart::New(name), |id| OpenStackPart::Balancer(id.clone()));
        };
        if self.balancers.contains_key(given) {
            return OpenStackPart::Balancer(given.to_owned());
        }
        // The ID may belong to a load balancer that this program replaced. One without our ownership tag is no replacement:
        // the ID may be another project's.
        let tag = &cluster.ownership_tag;
        let has_tags = !self.lacks_tags && tag.for_create().is_some();
        let replaced = service
            .annotation(annotations::LOAD_BALANCER_ADDRESS)
            .and_then(|_| by_name().filter(|id: &&String| !has_tags || self.has_ours(id, tag, |_| true)));
        let found = only(self.named(given)).or(replaced);
        OpenStackPart::Balancer(found.map_or(given, String::as_str).to_owned())
    }

    /// The IDs of load balancers that may have been created for a Service of this cluster: they have its name, and no ownership
    /// tag.
    pub(super) fn untagged_of(&self, service: &ServiceId, cluster: &ClusterView) -> Vec<&String> {
        let name = names::load_balancer(&cluster.name, service);
        let named = self.named(&name);
        named
            .filter(|id| self.ownership(id, &cluster.ownership_tag) == Some(Ownership::Adopted))
            .collect()
    }

    fn ownership(&self, id: &str, ownership_tag: &OwnershipTag) -> Option<Ownership> {
        let entry = self.balancers.get(id)?;
        Some(ownership_tag.ownership(entry.tags.iter().map(String::as_str)))
    }

    /// What a Service of another controller has from before. Every load balancer that it would leave must be ours. `identified`:
    /// IDs among [`Self::untagged_of`] with a node of the cluster as a member. The names of security groups contain the UID of
    /// the Service.
    pub(super) fn former_of(
        &self,
        service: &ServiceView,
        cluster: &ClusterView,
        identified: &BTreeSet<String>,
    ) -> FormerLoadBalancer {
        let mut ids = self.tagged_for(&service.id, cluster);
        let named = self.balancer_of(service, cluster);
        if let OpenStackPart::Balancer(id) = &named {
            ids.insert(id);
        }
        let entries = ids.into_iter().filter_map(|id| self.balancers.get_key_value(id));
        let mut former = FormerLoadBalancer::Missing;
        for (id, entry) in entries {
            let what = format!("load balancer {} ({id})", entry.name);
            let ownership = cluster.ownership_tag.ownership(entry.tags.iter().map(String::as_str));
            let has_uid = entry.name == names::legacy_load_balancer(&service.id);
            former = FormerLoadBalancer::new(what, &ownership, has_uid || identified.contains(id));
            if matches!(former, FormerLoadBalancer::Unproven { .. }) {
                return former;
            }
        }
        let group = names::security_group(&service.id);
        if former == FormerLoadBalancer::Missing && self.groups.contains_key(&group) {
            return FormerLoadBalancer::Ours(format!("security group {group}"));
        }
        former
    }
}

/// The ID, if there is exactly one.
fn only<'a>(mut ids: impl Iterator<Item = &'a String>) -> Option<&'a String> {
    match (ids.next(), ids.next()) {
        (Some(id), None) => Some(id),
        _ => None,
    }
}

/// The listings that a directory is built from. Those of optional kinds are `None` while they cannot be read.
#[derive(Clone, Debug)]
pub(crate) struct Listings {
    pub(crate) balancers: Arc<Listing<LoadBalancer>>,
    pub(crate) groups: Option<Arc<Listing<SecurityGroup>>>,
    pub(crate) floating: Option<Arc<Listing<FloatingIp>>>,
}

impl Listings {
    fn is_same(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.balancers, &other.balancers)
            && same(self.groups.as_ref(), other.groups.as_ref())
            && same(self.floating.as_ref(), other.floating.as_ref())
    }
}

fn same<T>(one: Option<&Arc<T>>, other: Option<&Arc<T>>) -> bool {
    match (one, other) {
        (Some(one), Some(other)) => Arc::ptr_eq(one, other),
        (one, other) => one.is_none() && other.is_none(),
    }
}

/// The last directory. An equal one is reused, and the same listings are read only once.
#[derive(Debug, Default)]
pub(crate) struct DirectoryCache {
    of: Option<Listings>,
    last: Arc<LoadBalancerDirectory>,
}

impl DirectoryCache {
    /// The last listing of security groups.
    pub(crate) fn last_groups(&self) -> Option<Arc<Listing<SecurityGroup>>> {
        self.of.as_ref()?.groups.clone()
    }

    /// The last listing of floating IPs.
    pub(crate) fn last_floating(&self) -> Option<Arc<Listing<FloatingIp>>> {
        self.of.as_ref()?.floating.clone()
    }

    /// The directory of these listings. `lacks_tags`: this Octavia has no tags.
    pub(crate) fn directory(&mut self, listings: Listings, lacks_tags: bool) -> Arc<LoadBalancerDirectory> {
        let is_known = self.of.as_ref().is_some_and(|known| known.is_same(&listings));
        if !is_known || self.last.lacks_tags != lacks_tags {
            let Listings {
                balancers,
                groups,
                floating,
            } = &listings;
            let remaining = balancers.all().filter(|balancer| balancer.provisioning_status.remains());
            let entries = remaining.map(|balancer| {
                let entry = LoadBalancerEntry {
                    name: balancer.name.clone(),
                    tags: balancer.tags.clone(),
                };
                (balancer.id.clone(), entry)
            });
            let groups_of_services = groups
                .iter()
                .flat_map(|groups| groups.all())
                .filter(|group| group.name.starts_with("lb-sg-"))
                .map(|group| (group.name.clone(), group.description.clone()));
            let floating_of_services = floating
                .iter()
                .flat_map(|floating| floating.by_key(""))
                .filter(|floating| floating.port_id.is_empty())
                .filter(|floating| names::subject_of_floating_ip(&floating.description).is_some())
                .map(|floating| (floating.floating_ip_address.clone(), floating.description.clone()));
            let mut directory = LoadBalancerDirectory::new(entries, groups_of_services, floating_of_services);
            directory.lacks_tags = lacks_tags;
            directory.lacks_groups = groups.is_none();
            if *self.last != directory {
                self.last = Arc::new(directory);
            }
            self.of = Some(listings);
        }
        Arc::clone(&self.last)
    }
}

#[cfg(test)]
mod tests {
    use ccm_core::load_balancer::ClusterTag;

    use super::*;

    fn web() -> ServiceId {
        ServiceId::new("shop", "web", "8e9b-12-34")
    }

    fn cluster(name: &str) -> ClusterView {
        ClusterView {
            name: name.into(),
            ownership_tag: OwnershipTag::Known(ClusterTag::of("me")),
            ..ClusterView::default()
        }
    }

    fn directory(all: &[(&str, &str, &[&str])]) -> LoadBalancerDirectory {
        let entries = all.iter().map(|(id, name, tags)| {
            let entry = LoadBalancerEntry {
                name: (*name).to_owned(),
                tags: tags.iter().map(|tag| (*tag).to_owned()).collect(),
            };
            ((*id).to_owned(), entry)
        });
        LoadBalancerDirectory::new(entries, [], [])
    }

    #[test]
    fn load_balancers_with_the_name_of_a_service_are_found() {
        let own_tag = ClusterTag::of("me").to_string();
        let directory = directory(&[
            ("named", "kube_service_c_shop_web", &[]),
            ("tagged", "mine", &["kept", "kube_service_c_shop_web"]),
            ("legacy", "a8e9b1234", &[]),
            ("former", "kube_service_old_c_shop_web", &[&own_tag]),
            ("used under the former name", "mine", &["kube_service_old_shop_web", &own_tag]),
            ("another cluster's", "kube_service_d_shop_web", &[]),
            ("another Service's", "kube_service_c_shop_web2", &[&own_tag]),
            ("another namespace's", "kube_service_c_store_web", &[&own_tag]),
            // Tags do not identify a Service of another cluster.
            ("person's", "mine", &["a8e9b1234"]),
        ]);
        let found: Vec<_> = directory.tagged_for(&web(), &cluster("c")).into_iter().collect();
        assert_eq!(
            found,
            [
                "former",
                "legacy",
                "named",
                "tagged",
                "used under the former name"
            ]
        );
    }

    #[test]
    fn cut_names_are_found_as_well() {
        let own_tag = ClusterTag::of("me").to_string();
        for length in 225..260 {
            let (old, new) = ("x".repeat(length), "y".repeat(length));
            let name = names::load_balancer(&old, &web());
            let directory = directory(&[("a", &name, &[&own_tag]), ("b", "mine", &[])]);
            let found = directory.tagged_for(&web(), &cluster(&new));
            // If the namespace is cut off completely, or right after it, the Service cannot be determined.
            let known = length < 241 && length != 236;
            assert_eq!(names::is_tag_of(&name, &web()), known, "{length}: {name}");
            assert_eq!(!found.is_empty(), known, "{length}: {name}");
            let view = ServiceView {
                id: web(),
                ..ServiceView::default()
            };
            let key = directory.balancer_of(&view, &cluster(&new));
            assert_eq!(matches!(key, OpenStackPart::Balancer(_)), known, "{length}: {key:?}");
            assert_eq!(directory.tagged_for(&web(), &cluster(&old)).len(), 1, "{length}");
        }
    }

    #[test]
    fn an_ambiguous_name_selects_no_load_balancer() {
        let directory = directory(&[
            ("a", "kube_service_c_shop_web", &[]),
            ("b", "kube_service_c_shop_web", &[]),
        ]);
        let mut view = ServiceView {
            id: web(),
            ..ServiceView::default()
        };
        let key = directory.balancer_of(&view, &cluster("c"));
        assert_eq!(key, OpenStackPart::New("kube_service_c_shop_web".to_owned()));
        // The ID selects the load balancer.
        view.annotations = [(annotations::LOAD_BALANCER_ID, "b")].into_iter().collect();
        assert_eq!(directory.balancer_of(&view, &cluster("c")), OpenStackPart::Balancer("b".to_owned()));
        assert_eq!(directory.tagged_for(&web(), &cluster("c")).len(), 2);
    }

    #[test]
    fn a_missing_id_is_replaced_only_by_a_load_balancer_of_ours() {
        let (ours, others) = (ClusterTag::of("me").to_string(), ClusterTag::of("you").to_string());
        let view = |address: Option<&'static str>| ServiceView {
            id: web(),
            annotations: [
                Some((annotations::LOAD_BALANCER_ID, "missing")),
                address.map(|address| (annotations::LOAD_BALANCER_ADDRESS, address)),
            ]
            .into_iter()
            .flatten()
            .collect(),
            ..ServiceView::default()
        };
        for (tags, lacks_tags, address, expected) in [
            (&[&*ours][..], false, Some("192.0.2.1"), "named"),
            (&[&ours], false, None, "missing"),
            // A leftover of upstream; the ID may be another project's.
            (&[], false, Some("192.0.2.1"), "missing"),
            (&[], true, Some("192.0.2.1"), "named"),
            (&[&others], false, Some("192.0.2.1"), "missing"),
        ] {
            let mut directory = directory(&[("named", "kube_service_c_shop_web", tags)]);
            directory.lacks_tags = lacks_tags;
            let key = directory.balancer_of(&view(address), &cluster("c"));
            assert_eq!(key, OpenStackPart::Balancer(expected.to_owned()), "{tags:?} {address:?}");
        }
    }
}
