//! The common parts of all changes: lookups, locks, quotas, and the answers.

use std::sync::Arc;

use http::StatusCode;
use jiff::Timestamp;
use serde_json::{Map, Value, json};

use super::schema::{self, Type};
use super::{OctaviaApi, OctaviaFault, names, title, view};
use crate::http::{Reply, Request};
use crate::openstack::OpenStackCloud;
use crate::openstack::identity::Caller;
use crate::openstack::region::{Attrs, Kind, Object, Provisioning, Region};
use crate::openstack::settings::{LoadBalancing, Settings};

/// A request that changes an object.
pub(super) struct OctaviaEdit<'a> {
    pub(super) cloud: &'a OpenStackCloud,
    pub(super) region: &'a mut Region,
    pub(super) request: &'a Request,
    pub(super) caller: &'a Caller,
    pub(super) endpoint: String,
    pub(super) settings: &'a Settings,
}

/// The load balancer of a new object.
pub(super) struct Owner {
    pub(super) id: String,
    pub(super) project_id: String,
    pub(super) provider: String,
    /// Its first address.
    pub(super) vip: String,
    /// Its other addresses.
    pub(super) additional_vips: Vec<String>,
}

impl Owner {
    pub(super) fn of(balancer: &Object) -> Self {
        Self {
            id: balancer.id.clone(),
            project_id: balancer.project_id.clone(),
            provider: balancer.text("provider").to_owned(),
            vip: balancer.text("vip_address").to_owned(),
            additional_vips: {
                let vips = balancer.get("additional_vips").as_array().into_iter().flatten();
                vips.filter_map(|vip| vip["ip_address"].as_str().map(str::to_owned)).collect()
            },
        }
    }
}

impl OctaviaEdit<'_> {
    pub(super) fn api(&self) -> OctaviaApi<'_> {
        OctaviaApi {
            cloud: self.cloud,
            region: self.region,
            request: self.request,
            caller: self.caller,
            endpoint: self.endpoint.clone(),
            minor: self.minor(),
        }
    }

    pub(super) fn ways(&self) -> &LoadBalancing {
        &self.settings.load_balancing
    }

    pub(super) fn minor(&self) -> u32 {
        self.ways().max_minor
    }

    pub(super) fn now(&self) -> Timestamp {
        self.cloud.clock.now()
    }

    /// The answer that shows an object.
    pub(super) fn shown(&self, status: StatusCode, kind: Kind, id: &str) -> Result<Reply, OctaviaFault> {
        let object = self.find(kind, id)?;
        let (singular, _) = names(kind);
        let document = view::object(&self.region.balancing, &object, self.minor());
        Ok(Reply::json(status, &json!({ singular: document })))
    }

    /// The answer that shows a new load balancer with everything below it.
    pub(super) fn shown_whole(&self, id: &str) -> Result<Reply, OctaviaFault> {
        let balancer = self.find(Kind::LoadBalancer, id)?;
        let document = view::whole(&self.region.balancing, &balancer, self.minor());
        Ok(Reply::json(StatusCode::CREATED, &json!({ "loadbalancer": document })))
    }

    /// An object that the caller may change.
    pub(super) fn find(&self, kind: Kind, id: &str) -> Result<Arc<Object>, OctaviaFault> {
        let balancing = &self.region.balancing;
        let found =
            balancing.get(kind, id).cloned().ok_or_else(|| OctaviaFault::not_found(title(kind), id))?;
        self.api().authorize(&found.project_id)?;
        Ok(found)
    }

    /// The attributes in the body.
    pub(super) fn fields(
        &self,
        argument: &str,
        root: &'static str,
        kind: Type,
    ) -> Result<Map<String, Value>, OctaviaFault> {
        match schema::parse(&self.request.body, argument, root, kind, self.minor())? {
            Value::Object(fields) => Ok(fields),
            _ => Err(schema::stumble("NoneType", argument)),
        }
    }

    /// Checks a project's quota for `more` objects of a kind.
    pub(super) fn check_quota(&self, kind: Kind, project: &str, more: usize) -> Result<(), OctaviaFault> {
        let name = match kind {
            Kind::LoadBalancer => "load_balancer",
            Kind::Listener => "listener",
            Kind::Pool => "pool",
            Kind::Member => "member",
            Kind::Monitor => "health_monitor",
        };
        let Some(quota) = self.settings.resource_quotas.get(name) else {
            return Ok(());
        };
        let have = self.region.balancing.all(kind).filter(|object| object.project_id == project).count();
        if (have + more) as u64 > *quota {
            return Err(OctaviaFault::quota(title(kind)));
        }
        Ok(())
    }

    /// Checks that a load balancer can be changed.
    pub(super) fn check_mutable(&self, balancer: &str) -> Result<(), OctaviaFault> {
        let found = self.region.balancing.get(Kind::LoadBalancer, balancer);
        match found {
            Some(found) if found.provisioning == Provisioning::Active => Ok(()),
            _ => Err(OctaviaFault::immutable(title(Kind::LoadBalancer), balancer)),
        }
    }

    /// Checks that a pool can be changed, if its load balancer can.
    pub(super) fn check_pool(&self, pool: &Object) -> Result<(), OctaviaFault> {
        if pool.provisioning != Provisioning::Active {
            return Err(OctaviaFault::immutable(title(Kind::Pool), &pool.id));
        }
        self.check_mutable(&pool.balancer)
    }

    /// Locks a load balancer and the objects that the change concerns, until it takes effect.
    pub(super) fn lock(&mut self, balancer: &str, concerned: &[String]) {
        let now = self.now();
        let later = self.after(self.ways().update_time);
        let state = &mut self.region.balancing;
        state.set_status(balancer, Provisioning::PendingUpdate, now);
        for id in concerned {
            state.set_status(id, Provisioning::PendingUpdate, now);
        }
        state.take_effect(balancer, later);
    }

    pub(super) fn after(&self, time: std::time::Duration) -> Timestamp {
        self.now().checked_add(time).unwrap_or(Timestamp::MAX)
    }

    /// Locks a pool's load balancer, the pool, and the listeners that use it.
    pub(super) fn lock_pool(&mut self, pool: &Object) {
        let mut concerned = self.region.balancing.listeners_of(pool);
        concerned.push(pool.id.clone());
        self.lock(&pool.balancer, &concerned);
    }

    /// Deletes an object when the current change takes effect.
    pub(super) fn delete_later(&mut self, id: &str) {
        let now = self.now();
        self.region.balancing.set_status(id, Provisioning::PendingDelete, now);
    }

    /// Merges attributes into those of an object.
    pub(super) fn put(&mut self, id: &str, mut attrs: Attrs) {
        if self.ways().ignores_empty_tags && attrs.get("tags") == Some(&json!([])) {
            attrs.remove("tags");
        }
        self.region.balancing.change(id, |object| object.attrs.extend(attrs));
    }

    /// Builds a new object.
    pub(super) fn new_object(&self, kind: Kind, owner: &Owner, parent: &str, attrs: Attrs) -> Object {
        Object {
            id: self.cloud.ids.uuid(),
            kind,
            project_id: owner.project_id.clone(),
            balancer: owner.id.clone(),
            parent: parent.to_owned(),
            attrs,
            provisioning: Provisioning::PendingCreate,
            operating: "OFFLINE",
            created: crate::clock::seconds(self.now()),
            updated: None,
        }
    }

    /// Checks that the key manager has a certificate.
    pub(super) fn check_certificate(&self, reference: &str) -> Result<(), OctaviaFault> {
        let id = reference.rsplit('/').next().unwrap_or_default();
        if self.settings.key_manager && self.region.secrets.contains_key(id) {
            return Ok(());
        }
        let bad = schema::python(&json!([reference]));
        Err(OctaviaFault::client(format!("Could not retrieve certificate: {bad}")))
    }
}

/// The named attributes in a body; missing ones are left out.
pub(super) fn take(fields: &Map<String, Value>, names: &[&'static str]) -> Attrs {
    names.iter().filter_map(|name| Some((*name, fields.get(*name)?.clone()))).collect()
}

/// Sets attributes that every object has, given or not.
pub(super) fn complete(attrs: &mut Attrs) {
    for name in ["name", "description"] {
        let missing = attrs.get(name).is_none_or(Value::is_null);
        if missing {
            attrs.insert(name, json!(""));
        }
    }
    if attrs.get("tags").is_none_or(Value::is_null) {
        attrs.insert("tags", json!([]));
    }
    if attrs.get("admin_state_up") == Some(&Value::Null) {
        attrs.insert("admin_state_up", json!(false));
    }
}

/// The same for a change, which sets fewer.
pub(super) fn complete_change(attrs: &mut Attrs) {
    // `null` does not change the tags.
    if attrs.get("tags") == Some(&Value::Null) {
        attrs.remove("tags");
    }
    for (name, nothing) in [
        ("name", json!("")),
        ("description", json!("")),
        ("admin_state_up", json!(false)),
    ] {
        if attrs.get(name) == Some(&Value::Null) {
            attrs.insert(name, nothing);
        }
    }
}

/// A text in a body.
pub(super) fn text<'a>(fields: &'a Map<String, Value>, name: &str) -> Option<&'a str> {
    fields.get(name).and_then(Value::as_str)
}

/// A list in a body.
pub(super) fn list<'a>(fields: &'a Map<String, Value>, name: &str) -> &'a [Value] {
    fields.get(name).and_then(Value::as_array).map(Vec::as_slice).unwrap_or_default()
}
