//! A simulated DigitalOcean, checked against the API description that DigitalOcean publishes: account, regions,
//! droplets, load balancers, certificates, firewalls, tags and VPCs.
//!
//! A load balancer is `new` until [`Config::create_time`] has passed, then `active` with an address, or `errored`.
//! While it is `new`, changes are refused as by the API.

use std::net::{Ipv4Addr, SocketAddr};
use std::sync::LazyLock;
use std::time::Duration;

use http::StatusCode;
use jiff::Timestamp;
use serde_json::{Map, Value, json};

use crate::clock::seconds;
use crate::documents::{
    Call, Checked, Control, Description, Document, Effect, Fault, Fresh, Gap, Outcome, Paging, Revisions,
    Rules, start,
};
use crate::error::Result;
use crate::http::Request;
use crate::quota::{Level, Quota};
use crate::server::Server;

/// DigitalOcean's published description, without prose.
static DESCRIPTION: LazyLock<std::result::Result<Description, String>> = LazyLock::new(|| {
    let text = include_str!("../../providers/digitalocean/testdata/v2.json");
    Description::parse(text, &GAPS)
});

/// Values that the API accepts and its description lacks (`testdata/README.md` of the provider).
const GAPS: [Gap; 4] = [
    ("/components/schemas/load_balancer_base/properties", "tags"),
    ("/components/schemas/load_balancer_base/properties", "subnet_uuid"),
    ("/components/schemas/health_check/properties", "proxy_protocol"),
    (
        "/components/schemas/tags_resource/properties/resources/items/properties/resource_type/enum",
        "load_balancer",
    ),
];

/// Collections by the first part of the operations' names, and the name of one document in an answer.
const COLLECTIONS: [(&str, &str, &str); 6] = [
    ("certificates", "certificates", "certificate"),
    ("droplets", "droplets", "droplet"),
    ("firewalls", "firewalls", "firewall"),
    ("loadBalancers", "load_balancers", "load_balancer"),
    ("tags", "tags", "tag"),
    ("vpcs", "vpcs", "vpc"),
];

/// The service's name in the call log, quotas and latencies.
pub const SERVICE: &str = "digitalocean";
/// The most requests of a token in an hour.
const HOURLY: u32 = 5000;
/// Fields that a change of a document does not change.
const READ_ONLY: [&str; 10] = [
    "id",
    "ip",
    "ipv6",
    "status",
    "created_at",
    "region",
    "type",
    "network",
    "network_stack",
    "vpc_uuid",
];
/// Ports that DigitalOcean reserves.
const RESERVED_PORTS: std::ops::RangeInclusive<u64> = 50053..=50055;

/// The configuration of a simulated DigitalOcean.
#[derive(Clone, Debug)]
pub struct Config {
    /// Where to listen; port 0 lets the system choose.
    pub listen: SocketAddr,
    /// The token of clients.
    pub token: String,
    /// The region of all documents.
    pub region: String,
    /// Time until a load balancer is active.
    pub create_time: Duration,
    /// Seed of IDs, latencies and all other random values.
    pub seed: u64,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            listen: SocketAddr::from((Ipv4Addr::LOCALHOST, 0)),
            token: "dop_v1_simulated".to_owned(),
            region: "nyc3".to_owned(),
            create_time: Duration::ZERO,
            seed: 0,
        }
    }
}

/// A running simulated DigitalOcean. Dropping it closes the listener and all connections. It then fails the test if a
/// request or an answer violated the description.
///
/// [`Control`], its `Deref` target, reads and changes its documents by the API's names of collections.
#[derive(Debug)]
pub struct DigitalOcean {
    control: Checked,
    server: Server,
}

impl DigitalOcean {
    /// Starts a new cloud without droplets.
    ///
    /// # Errors
    /// If the address cannot be bound.
    pub async fn start(config: Config) -> Result<Self> {
        let rules = Box::new(DigitalOceanRules {
            token: format!("Bearer {}", config.token),
            region: config.region,
            create_time: config.create_time,
        });
        let (control, server) = start(config.listen, config.seed, &DESCRIPTION, rules).await?;
        let quota = Quota {
            per_second: f64::from(HOURLY) / 3600.0,
            burst: HOURLY,
        };
        control.set_quota(SERVICE, Some(quota));
        let control = Checked(control);
        Ok(Self { control, server })
    }

    /// Creates a droplet with defaults and returns its id.
    pub fn create_droplet(&self, name: &str) -> String {
        let fields = Map::from_iter([("name".to_owned(), json!(name))]);
        self.create("droplets", fields)
    }

    /// Stops the cloud, and returns when the listener is closed.
    pub async fn shutdown(self) {
        self.server.shutdown().await;
    }
}

impl std::ops::Deref for DigitalOcean {
    type Target = Control;

    fn deref(&self) -> &Control {
        &self.control.0
    }
}

struct DigitalOceanRules {
    token: String,
    region: String,
    create_time: Duration,
}

impl Rules for DigitalOceanRules {
    fn service(&self) -> &'static str {
        SERVICE
    }

    fn paging(&self) -> Paging {
        Paging::Numbers { default: 20 }
    }

    fn revisions(&self) -> Revisions {
        Revisions::Unchecked
    }

    fn invalid(&self) -> StatusCode {
        StatusCode::UNPROCESSABLE_ENTITY
    }

    fn authenticate(&self, request: &Request) -> std::result::Result<(), Fault> {
        match request.header("authorization") {
            Some(token) if token == self.token => Ok(()),
            _ => Err(Fault::new(StatusCode::UNAUTHORIZED, "Unable to authenticate you")),
        }
    }

    fn error(&self, fault: &Fault, request_id: &str) -> Value {
        let reason = fault.status.canonical_reason().unwrap_or("error");
        let id = reason.to_lowercase().replace(' ', "_");
        json!({"id": id, "message": fault.message, "request_id": request_id})
    }

    fn headers(&self, rate: Option<Level>, now: Timestamp) -> Vec<(&'static str, String)> {
        let rate = rate.unwrap_or(Level {
            limit: HOURLY,
            remaining: HOURLY,
            full_in: Duration::ZERO,
        });
        let reset = now.checked_add(rate.full_in).unwrap_or(now).as_second();
        vec![
            ("ratelimit-limit", rate.limit.to_string()),
            ("ratelimit-remaining", rate.remaining.to_string()),
            ("ratelimit-reset", reset.to_string()),
        ]
    }

    fn complete(&self, collection: &str, fields: &mut Map<String, Value>, fresh: &Fresh<'_>) -> String {
        let text = |name: &str| fields.get(name).and_then(Value::as_str).map(str::to_owned);
        let id = match collection {
            "droplets" => fresh.number().to_string(),
            "tags" => text("name").unwrap_or_default(),
            _ => text("id").unwrap_or_else(|| fresh.uuid()),
        };
        let region = region(&text("region").unwrap_or_else(|| self.region.clone()));
        let mut defaults = defaults(collection, &id, &region);
        if matches!(collection, "droplets" | "load_balancers") {
            fields.insert("region".to_owned(), region);
        }
        if collection != "tags" {
            defaults["created_at"] = json!(seconds(fresh.now));
        }
        complete(fields, &defaults);
        id
    }

    fn run(&self, operation: &str, call: &mut Call<'_>) -> Option<Outcome> {
        let shown = match operation {
            "account_get" => Some(json!({"account": {
                "droplet_limit": 2000, "floating_ip_limit": 3, "email": "a@example.com", "uuid": "0",
                "email_verified": true, "status": "active", "status_message": "",
            }})),
            "regions_list" => {
                let regions = [self.region.as_str(), "sfo3"].map(region);
                Some(json!({"regions": regions, "links": {}, "meta": {"total": regions.len()}}))
            }
            _ => None,
        };
        if shown.is_some() {
            return Some(Ok((StatusCode::OK, shown)));
        }
        let (prefix, verb) = operation.split_once('_')?;
        let (_, collection, name) = *COLLECTIONS.iter().find(|(known, ..)| *known == prefix)?;
        let outcome = match (collection, verb) {
            (_, "list") => Ok((StatusCode::OK, Some(list(call, collection)))),
            (_, "get") => call.find(collection).map(|found| (StatusCode::OK, Some(found.id.clone().into()))),
            ("load_balancers" | "firewalls", "delete") => call.find(collection).map(|found| {
                call.store.remove(collection, &found.id);
                (StatusCode::NO_CONTENT, None)
            }),
            ("load_balancers", "create") => create_balancer(call, self.create_time),
            ("load_balancers" | "firewalls", "update") => update(call, collection),
            ("firewalls", "create") => create(call, collection, StatusCode::ACCEPTED),
            ("tags", "create") => create(call, collection, StatusCode::CREATED),
            ("tags", "assign_resources") => assign_tag(call),
            _ => return None,
        };
        // The operations so far name one document by its ID.
        Some(outcome.map(|(status, body)| match body {
            Some(Value::String(id)) => {
                let shown = call.store.get(collection, &id).map(|found| call.show(found));
                (status, Some(json!({ name: shown })))
            }
            body => (status, body),
        }))
    }
}

/// A load balancer is active after `time`.
fn create_balancer(call: &mut Call<'_>, time: Duration) -> Outcome {
    if let Some(fields) = call.body.as_object_mut() {
        fields.extend([("status".to_owned(), json!("new")), ("ip".to_owned(), json!(""))]);
    }
    let (status, id) = create(call, "load_balancers", StatusCode::ACCEPTED)?;
    let due = call.now.checked_add(time).unwrap_or(call.now);
    let id = id.as_ref().and_then(Value::as_str).unwrap_or_default().to_owned();
    let end = |fields| vec![("load_balancers", id.clone(), Effect::Merge(object(&fields)))];
    let success = end(json!({"status": "active", "ip": address(&id)}));
    let failure = end(json!({"status": "errored"}));
    call.store.schedule(due, success, failure);
    Ok((status, Some(id.into())))
}

fn object(value: &Value) -> Map<String, Value> {
    value.as_object().cloned().unwrap_or_default()
}

/// Creates a document from the body.
fn create(call: &mut Call<'_>, collection: &str, status: StatusCode) -> Outcome {
    let fields = object(&call.body);
    check(call, collection, &fields, None)?;
    let id = call.create(collection, fields)?;
    Ok((status, Some(id.into())))
}

/// Replaces a whole document: omitted fields get their defaults.
fn update(call: &mut Call<'_>, collection: &str) -> Outcome {
    let found = call.find_to_change(collection)?;
    let mut fields = object(&call.body);
    if collection == "load_balancers" && found.text("status") == "new" {
        let message = "Load Balancer can't be updated while it processes previous actions";
        return Err(Fault::new(StatusCode::FORBIDDEN, message));
    }
    check(call, collection, &fields, Some(&found))?;
    for name in ["type", "network", "network_stack", "vpc_uuid"] {
        let requested = fields.get(name).filter(|requested| !requested.is_null());
        if requested.is_some_and(|requested| Some(requested) != found.fields.get(name)) {
            return invalid(format!("{name} cannot be changed"));
        }
    }
    for name in READ_ONLY {
        if let Some(kept) = found.fields.get(name) {
            fields.insert(name.to_owned(), kept.clone());
        }
    }
    complete(&mut fields, &defaults(collection, &found.id, &Value::Null));
    call.store.change(collection, &found.id, |known| *known = fields);
    Ok((StatusCode::OK, Some(found.id.clone().into())))
}

fn invalid<T>(message: impl Into<String>) -> std::result::Result<T, Fault> {
    Err(Fault::new(StatusCode::UNPROCESSABLE_ENTITY, message))
}

/// Checks rules that the description cannot express: names are unique, and referenced documents exist. `known`: the
/// document before.
fn check(
    call: &Call<'_>,
    collection: &str,
    fields: &Map<String, Value>,
    known: Option<&Document>,
) -> std::result::Result<(), Fault> {
    let list = |name: &str| fields.get(name).and_then(Value::as_array).into_iter().flatten();
    let text = |value: &Value, name: &str| value[name].as_str().unwrap_or_default().to_owned();
    let name = fields.get("name").and_then(Value::as_str).unwrap_or_default();
    let others = call.store.all(collection);
    let mut others = others.filter(|other| known.is_none_or(|known| known.id != other.id));
    // Creating an existing tag is no error.
    if collection != "tags" && others.any(|other| other.text("name") == name) {
        let kind = collection.trim_end_matches('s').replace('_', " ");
        return invalid(format!("there is already a {kind} with the name {name}"));
    }
    for droplet in list("droplet_ids") {
        if call.store.get("droplets", &droplet.to_string()).is_none() {
            return invalid(format!("droplet {droplet} does not exist"));
        }
    }
    let both = |a: &str, b: &str| fields.contains_key(a) && fields.contains_key(b);
    if both("size", "size_unit") || both("tag", "droplet_ids") {
        return invalid("size and size_unit, tag and droplet_ids exclude each other");
    }
    for rule in list("forwarding_rules") {
        let certificate = text(rule, "certificate_id");
        if !certificate.is_empty() && call.store.get("certificates", &certificate).is_none() {
            return invalid(format!("certificate {certificate} does not exist"));
        }
        if rule["entry_port"].as_u64().is_some_and(|port| RESERVED_PORTS.contains(&port)) {
            return invalid(format!("entry port {} is reserved", rule["entry_port"]));
        }
    }
    for rule in list("inbound_rules") {
        if object(&rule["sources"]).is_empty() {
            return invalid("an inbound rule has no sources");
        }
    }
    Ok(())
}

/// `POST /v2/tags/{tag}/resources`, for load balancers.
fn assign_tag(call: &mut Call<'_>) -> Outcome {
    let tag = json!(call.find("tags")?.id);
    for resource in call.body["resources"].as_array().into_iter().flatten() {
        let id = resource["resource_id"].as_str().unwrap_or_default();
        let found = call.store.change("load_balancers", id, |fields| {
            let tags = fields.entry("tags").or_insert_with(|| json!([]));
            if let Some(tags) = tags.as_array_mut().filter(|tags| !tags.contains(&tag)) {
                tags.push(tag.clone());
            }
        });
        if !found {
            return invalid(format!("there is no load balancer {id}"));
        }
    }
    Ok((StatusCode::NO_CONTENT, None))
}

/// A page of the documents that the query selects.
fn list(call: &Call<'_>, collection: &str) -> Value {
    let (name, tag) = (call.request.last("name"), call.request.last("tag_name"));
    let wants_gpus = call.request.last("type") == Some("gpus");
    call.page(collection, |found| {
        let tags = found.fields.get("tags").and_then(Value::as_array);
        let is_tagged = |tag: &str| tags.into_iter().flatten().any(|known| known == tag);
        name.is_none_or(|name| found.text("name").eq_ignore_ascii_case(name))
            && tag.is_none_or(is_tagged)
            // Without the parameter, droplets with a GPU are omitted.
            && (collection != "droplets" || found.text("size_slug").starts_with("gpu-") == wants_gpus)
    })
}

/// Adds defaults of missing fields, also in nested objects and lists. The default of a list of objects has one element
/// with the defaults of each object.
fn complete(fields: &mut Map<String, Value>, defaults: &Value) {
    for (name, default) in defaults.as_object().into_iter().flatten() {
        match (fields.get_mut(name), default) {
            (Some(Value::Object(fields)), default) => complete(fields, default),
            (Some(Value::Array(list)), Value::Array(defaults)) => {
                let objects = list.iter_mut().filter_map(Value::as_object_mut);
                objects.for_each(|fields| defaults.iter().for_each(|default| complete(fields, default)));
            }
            (Some(_), _) => {}
            (None, default) => {
                fields.insert(name.clone(), default.clone());
            }
        }
    }
}

fn region(slug: &str) -> Value {
    json!({"slug": slug, "name": slug, "available": true, "features": [], "sizes": []})
}

/// An address derived from an ID.
fn address(id: &str) -> Ipv4Addr {
    let last = id.bytes().fold(0_u8, |sum, byte| sum.wrapping_mul(31).wrapping_add(byte));
    Ipv4Addr::new(203, 0, 113, last)
}

/// The defaults of fields that a request omits.
fn defaults(collection: &str, id: &str, region: &Value) -> Value {
    match collection {
        "droplets" => {
            let number: u64 = id.parse().unwrap_or_default();
            let [.., high, low] = number.to_be_bytes();
            let size = json!({
                "slug": "s-2vcpu-4gb", "memory": 4096, "vcpus": 2, "disk": 80, "transfer": 4.0, "price_monthly": 24.0,
                "price_hourly": 0.03571, "regions": [region["slug"]], "available": true, "description": "Basic",
            });
            let private = json!({
                "ip_address": Ipv4Addr::new(10, 108, high, low), "netmask": "255.240.0.0", "type": "private",
            });
            let public = json!({
                "ip_address": Ipv4Addr::new(198, 51, high, low), "netmask": "255.255.0.0", "type": "public",
            });
            json!({
                "id": number, "memory": 4096, "vcpus": 2, "disk": 80, "locked": false, "status": "active",
                "features": [], "backup_ids": [], "next_backup_window": null, "snapshot_ids": [], "volume_ids": [],
                "tags": [], "image": {}, "size": size, "size_slug": "s-2vcpu-4gb",
                "networks": {"v4": [private, public], "v6": []},
            })
        }
        "load_balancers" => json!({
            "id": id, "ip": address(id), "status": "active",
            "algorithm": "round_robin", "type": "REGIONAL", "network": "EXTERNAL", "network_stack": "IPV4",
            "size_unit": 1, "droplet_ids": [], "tag": "", "tags": [],
            "forwarding_rules": [{"certificate_id": "", "tls_passthrough": false}],
            "health_check": {
                "protocol": "http", "port": 80, "path": "/", "check_interval_seconds": 10,
                "response_timeout_seconds": 5, "healthy_threshold": 3, "unhealthy_threshold": 5,
            },
            "sticky_sessions": {"type": "none"}, "redirect_http_to_https": false, "enable_proxy_protocol": false,
            "enable_backend_keepalive": false, "disable_lets_encrypt_dns_records": false,
            "http_idle_timeout_seconds": 60, "firewall": {"allow": [], "deny": []}, "tls_cipher_policy": "DEFAULT",
        }),
        "certificates" => json!({
            "id": id, "not_after": "2030-01-01T00:00:00Z", "sha1_fingerprint": "0", "dns_names": [],
            "state": "verified", "type": "custom",
        }),
        "firewalls" => json!({
            "id": id, "status": "succeeded", "pending_changes": [], "droplet_ids": [], "tags": [],
            "inbound_rules": [], "outbound_rules": [],
        }),
        "vpcs" => json!({
            "id": id, "urn": format!("do:vpc:{id}"), "region": region["slug"], "ip_range": "10.108.0.0/20",
        }),
        _ => json!({"resources": {"count": 0}}),
    }
}
