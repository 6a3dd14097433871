//! Load balancers in the control API: their state, and changes by other clients or by failures.

use std::sync::Arc;

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use super::Control;
use crate::error::{Error, Result};
use crate::openstack::region::{Kind, Object, Provisioning, Region, Secret};
use crate::openstack::spec::SecretSpec;

/// The state of a load balancer, listener, pool, member or health monitor.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ObjectState {
    /// UUID.
    pub id: String,
    /// `loadbalancer`, `listener`, `pool`, `member` or `healthmonitor`.
    pub kind: String,
    /// Name, which need not be unique.
    pub name: String,
    /// `ACTIVE`, `PENDING_UPDATE`, ...
    pub provisioning_status: String,
    /// `ONLINE`, `NO_MONITOR`, ...
    pub operating_status: String,
    /// Its load balancer.
    pub loadbalancer_id: String,
    /// The pool of a member or health monitor, else the load balancer.
    pub parent_id: String,
    /// All other attributes by name.
    pub attributes: Map<String, Value>,
}

/// A load balancer with everything below it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct BalancerState {
    /// The load balancer.
    pub loadbalancer: ObjectState,
    /// Its listeners, by id.
    pub listeners: Vec<ObjectState>,
    /// Its pools, by id.
    pub pools: Vec<ObjectState>,
    /// The members of all its pools, by pool and id.
    pub members: Vec<ObjectState>,
    /// The health monitors of its pools, by pool.
    pub healthmonitors: Vec<ObjectState>,
}

impl ObjectState {
    fn of(object: &Object) -> Self {
        let kind = match object.kind {
            Kind::LoadBalancer => "loadbalancer",
            Kind::Listener => "listener",
            Kind::Pool => "pool",
            Kind::Member => "member",
            Kind::Monitor => "healthmonitor",
        };
        let attributes = object.attrs.iter();
        Self {
            id: object.id.clone(),
            kind: kind.to_owned(),
            name: object.text("name").to_owned(),
            provisioning_status: object.provisioning.name().to_owned(),
            operating_status: object.operating.to_owned(),
            loadbalancer_id: object.balancer.clone(),
            parent_id: object.parent.clone(),
            attributes: attributes.map(|(name, value)| ((*name).to_owned(), value.clone())).collect(),
        }
    }
}

/// Load balancers and secrets.
impl Control {
    /// All load balancers of all regions and projects with everything below them, by id.
    pub fn load_balancers(&self) -> Vec<BalancerState> {
        self.cloud.settle();
        let regions = self.cloud.regions.read();
        let mut found = Vec::new();
        for state in regions.iter().map(|region| &region.balancing) {
            for balancer in state.all(Kind::LoadBalancer) {
                let below = |id: &str, kind| -> Vec<ObjectState> {
                    state.below(id, kind).map(|object| ObjectState::of(object)).collect()
                };
                let pools = below(&balancer.id, Kind::Pool);
                let of_pools = |kind| pools.iter().flat_map(|pool| below(&pool.id, kind)).collect::<Vec<_>>();
                found.push(BalancerState {
                    loadbalancer: ObjectState::of(balancer),
                    listeners: below(&balancer.id, Kind::Listener),
                    members: of_pools(Kind::Member),
                    healthmonitors: of_pools(Kind::Monitor),
                    pools,
                });
            }
        }
        found
    }

    /// Sets the provisioning status of a load balancer or an object below it at once, even during a change. `ERROR`
    /// simulates a failure; `PENDING_UPDATE` stays forever.
    ///
    /// # Errors
    /// If the object or status does not exist.
    pub fn set_provisioning_status(&self, id: &str, status: &str) -> Result<()> {
        let status = Provisioning::by_name(status)
            .ok_or_else(|| Error::Invalid(format!("Octavia has no provisioning status {status:?}")))?;
        let now = self.cloud.clock.now();
        self.change_object(id, |region, object| {
            if object.kind == Kind::LoadBalancer {
                region.balancing.forget_pending(&object.id);
            }
            region.balancing.set_status(&object.id, status, now);
            Ok(())
        })
    }

    /// Changes attributes of a load balancer or an object below it, like another client, at once and without a lock: a
    /// weight, a name, tags, a pool's algorithm.
    ///
    /// # Errors
    /// If the object does not exist, or does not have the attribute.
    pub fn patch_object(&self, id: &str, attributes: &Map<String, Value>) -> Result<()> {
        self.change_object(id, |region, object| {
            let mut attrs = object.attrs.clone();
            for (name, value) in attributes {
                let place = attrs.iter_mut().find(|(known, _)| *known == name);
                let (_, place) = place.ok_or_else(|| Error::unknown("attribute", name))?;
                place.clone_from(value);
            }
            region.balancing.change(id, |object| object.attrs = attrs);
            Ok(())
        })
    }

    /// Deletes a load balancer or an object below it, with everything below that, at once and even during a change.
    ///
    /// # Errors
    /// If the object does not exist.
    pub fn delete_object(&self, id: &str) -> Result<()> {
        self.change_object(id, |region, object| {
            region.balancing.remove(&object.id);
            if object.kind == Kind::LoadBalancer {
                region.release_vip(object);
            }
            Ok(())
        })
    }

    /// Makes the next `count` changes in every region fail when they take effect. As in Octavia, a load balancer that
    /// cannot be created is in `ERROR`, and the objects below it stay `PENDING_CREATE`. After a failed change below a
    /// load balancer, the changed object is in `ERROR`, and the load balancer is `ACTIVE` again.
    pub fn fail_next_changes(&self, count: u32) {
        let mut regions = self.cloud.regions.write();
        for region in Arc::make_mut(&mut regions) {
            region.balancing.failing = count;
        }
    }

    /// Creates a flavor of load balancers in the first region and returns its id.
    ///
    /// # Errors
    /// If there is no region.
    pub fn create_balancer_flavor(&self, name: &str, enabled: bool) -> Result<String> {
        self.change_region(None, |region, ids| {
            let id = ids.uuid();
            region.balancer_flavors.insert(id.clone(), (name.to_owned(), enabled));
            Ok(id)
        })
    }

    /// Creates an availability zone of load balancers in the first region.
    ///
    /// # Errors
    /// If there is no region.
    pub fn create_balancer_zone(&self, name: &str, enabled: bool) -> Result<()> {
        self.change_region(None, |region, _| {
            region.balancer_zones.insert(name.to_owned(), enabled);
            Ok(())
        })
    }

    /// Creates a secret, or a container of secrets, in the default project and the first region. Returns its URL.
    ///
    /// # Errors
    /// If there is no region.
    pub fn create_secret(&self, spec: &SecretSpec) -> Result<String> {
        let birth = self.birth(None)?;
        let (name, id) = self.change_region(None, |region, ids| {
            let id = spec.id.clone().unwrap_or_else(|| ids.uuid());
            let secret = Secret {
                name: spec.name.clone(),
                container: spec.container,
                project_id: birth.project_id.clone(),
                created: crate::clock::seconds(birth.at),
            };
            region.secrets.insert(id.clone(), secret);
            Ok((region.name.clone(), id))
        })?;
        let kind = if spec.container { "containers" } else { "secrets" };
        let region: String = url::form_urlencoded::byte_serialize(name.as_bytes()).collect();
        Ok(format!("{}/{region}/key-manager/v1/{kind}/{id}", self.cloud.base))
    }

    fn change_object(&self, id: &str, change: impl FnOnce(&mut Region, &Object) -> Result<()>) -> Result<()> {
        self.cloud.settle();
        let find = |region: &Region| region.balancing.any(id).cloned();
        self.change_region_with("object", id, find, |region, object| change(region, &object))
    }
}
