//! The objects in the shared listings, and which of them refer to others.

use std::collections::{BTreeMap, BTreeSet};

use super::{
    desired::ReservedAddress,
    fields,
    kinds::{Object, ObjectKind, PartKey},
    names,
    spec::Scheme,
};
use crate::client::last_component;

/// The objects in the shared listings.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct BalancerDirectory {
    /// The ID of the cluster, which is in the names of shared objects.
    pub(crate) cluster_id: String,
    /// By kind and key. Addresses also those of others.
    objects: BTreeMap<(ObjectKind, String), Object>,
    /// The shared parts to which load balancers refer.
    pub(crate) used: BTreeSet<PartKey>,
    /// The zones whose instance groups are not in it, since they do not answer.
    pub(crate) silent: BTreeSet<String>,
}

/// The shared objects to which a load balancer refers. When they change, it may not need others any more.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct BalancerReferences {
    /// Resource paths.
    paths: BTreeSet<String>,
}

impl BalancerReferences {
    pub(crate) fn of<'a>(objects: impl IntoIterator<Item = &'a Object>) -> Self {
        let mut paths = BTreeSet::new();
        for object in objects {
            let texts = [fields::BACKEND_SERVICE, fields::HEALTH_CHECK].map(|field| object.text(field));
            let all = texts.into_iter().chain(object.texts(fields::GROUPS));
            paths.extend(all.filter(|path| !path.is_empty()).map(str::to_owned));
        }
        Self { paths }
    }

    /// The shared parts with these objects. A shared backend service refers to others.
    pub(crate) fn used(&self, directory: &BalancerDirectory) -> BTreeSet<PartKey> {
        let referred = self.paths.iter().map(|path| last_component(path));
        let shared = referred.filter(|name| directory.is_shared_backend(name));
        let backends = shared.filter_map(|name| directory.get(ObjectKind::Backend, name));
        let of_backends = Self::of(backends);
        let all = self.paths.iter().chain(&of_backends.paths);
        all.filter_map(|path| directory.part_of_path(path)).collect()
    }
}

impl BalancerDirectory {
    /// Indexes the listings.
    pub(crate) fn new(cluster_id: &str, objects: impl IntoIterator<Item = Object>) -> Self {
        let objects = objects.into_iter().map(|object| ((object.kind, object.key.clone()), object));
        let mut directory = Self {
            cluster_id: cluster_id.to_owned(),
            objects: objects.collect(),
            used: BTreeSet::new(),
            silent: BTreeSet::new(),
        };
        let kinds = [ObjectKind::Backend, ObjectKind::Pool, ObjectKind::Rule];
        let balancers: BTreeSet<_> = kinds
            .into_iter()
            .flat_map(|kind| directory.of(kind).map(|object| object.key.clone()))
            .filter(|name| !directory.is_shared_backend(name))
            .collect();
        directory.used = balancers.iter().flat_map(|name| directory.used_by(name)).collect();
        directory
    }

    /// The object with this key.
    pub(crate) fn get(&self, kind: ObjectKind, key: &str) -> Option<&Object> {
        self.objects.get(&(kind, key.to_owned()))
    }

    /// The objects of a kind.
    pub(crate) fn of(&self, kind: ObjectKind) -> impl Iterator<Item = &Object> {
        self.objects.values().filter(move |object| object.kind == kind)
    }

    /// The objects that only the load balancer with this name uses.
    pub(crate) fn of_balancer<'a>(&'a self, name: &'a str) -> impl Iterator<Item = &'a Object> {
        let all = self.objects.values();
        all.filter(move |object| object.kind != ObjectKind::Group && names::owner(&object.key) == name)
    }

    pub(crate) fn is_shared_backend(&self, name: &str) -> bool {
        name.starts_with(&names::shared_backend_prefix(&self.cluster_id))
    }

    /// The shared parts to which the load balancer with this name refers.
    pub(crate) fn used_by(&self, name: &str) -> BTreeSet<PartKey> {
        let kinds = [ObjectKind::Backend, ObjectKind::Pool, ObjectKind::Rule];
        let own = kinds.into_iter().filter_map(|kind| self.get(kind, name));
        BalancerReferences::of(own).used(self)
    }

    /// The shared part with the object at this path.
    fn part_of_path(&self, path: &str) -> Option<PartKey> {
        let (place, name) = path.rsplit_once('/')?;
        let (place, collection) = place.rsplit_once('/')?;
        let is_check = name == names::node_check(&self.cluster_id);
        match collection {
            "httpHealthChecks" if is_check => Some(PartKey::NodeHttpCheck),
            "healthChecks" if is_check => Some(PartKey::NodeCheck),
            "backendServices" if self.is_shared_backend(name) => {
                Some(PartKey::SharedBackend(name.to_owned()))
            }
            "instanceGroups" if name == names::group(&self.cluster_id) => {
                Some(PartKey::Group(last_component(place).to_owned()))
            }
            _ => None,
        }
    }

    /// The zones with an instance group of the cluster.
    pub(crate) fn zones(&self) -> impl Iterator<Item = &str> {
        self.of(ObjectKind::Group)
            .map(|group| group.key.as_str())
            .filter(|key| !key.contains('/'))
    }

    /// The addresses that users reserved, by address.
    pub(crate) fn reserved(&self, balancer: &str) -> BTreeMap<String, ReservedAddress> {
        let others = self.of(ObjectKind::Address).filter(|address| address.key != balancer);
        let with_address = others.map(|object| {
            let reserved = ReservedAddress {
                scheme: object.text(fields::SCHEME).to_owned(),
                tier: object.text(fields::TIER).to_owned(),
            };
            (object.text(fields::ADDRESS).to_owned(), reserved)
        });
        with_address.collect()
    }

    /// The parts that Services of this scheme share, and that exist, in the order of creation.
    pub(crate) fn shared_parts(&self, scheme: Scheme) -> Vec<PartKey> {
        let node_check = names::node_check(&self.cluster_id);
        match scheme {
            Scheme::External => {
                let check = self.get(ObjectKind::HttpCheck, &node_check);
                let firewall = names::node_http_check_firewall(&self.cluster_id);
                let exists = check.is_some() || self.get(ObjectKind::CheckFirewall, &firewall).is_some();
                if exists {
                    vec![PartKey::NodeHttpCheck]
                } else {
                    Vec::new()
                }
            }
            Scheme::Internal => {
                let mut parts: Vec<_> = self.zones().map(|zone| PartKey::Group(zone.to_owned())).collect();
                let firewall = names::node_check_firewall(&self.cluster_id);
                if self.get(ObjectKind::Check, &node_check).is_some()
                    || self.get(ObjectKind::CheckFirewall, &firewall).is_some()
                {
                    parts.push(PartKey::NodeCheck);
                }
                let prefix = names::shared_backend_prefix(&self.cluster_id);
                let shared = self.of(ObjectKind::Backend).filter(|backend| backend.key.starts_with(&prefix));
                parts.extend(shared.map(|backend| PartKey::SharedBackend(backend.key.clone())));
                parts
            }
        }
    }
}

/// The part to which a listed object belongs, by its name.
pub(crate) fn part_of(object: &Object, cluster_id: &str) -> PartKey {
    let key = object.key.as_str();
    if object.kind == ObjectKind::Group {
        return PartKey::Group(key.to_owned());
    }
    let node_check = names::node_check(cluster_id);
    match object.kind {
        ObjectKind::HttpCheck if key == node_check => PartKey::NodeHttpCheck,
        ObjectKind::Check if key == node_check => PartKey::NodeCheck,
        ObjectKind::CheckFirewall if key == names::node_http_check_firewall(cluster_id) => {
            PartKey::NodeHttpCheck
        }
        ObjectKind::CheckFirewall if key == names::node_check_firewall(cluster_id) => PartKey::NodeCheck,
        ObjectKind::Backend if key.starts_with(&names::shared_backend_prefix(cluster_id)) => {
            PartKey::SharedBackend(key.to_owned())
        }
        _ => PartKey::Balancer(names::owner(key).to_owned()),
    }
}
