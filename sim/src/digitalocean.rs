//! A simulated DigitalOcean, held to the API description that DigitalOcean publishes: account, regions, droplets, load
//! balancers, certificates, firewalls, tags and VPCs.
//!
//! A load balancer is `new` until [`Config::create_time`] has passed, then `active` with an address, or `errored`. While it is
//! `new`, changes are refused as the API refuses them.

use std::net::{Ipv4Addr, SocketAddr};
use std::sync::LazyLock;
use std::time::Duration;

use http::StatusCode;
use jiff::Timestamp;
use serde_json::{Map, Value, json};

use crate::clock::seconds;
use crate::documents::{
    Call, Control, Description, Document, Effect, Fault, Fresh, Outcome, Paging, Revisions, Rules, start,
};
use crate::error::Result;
use crate::http::Request;
use crate::quota::{Level, Quota, RetryAfter};
use crate::server::Server;

/// DigitalOcean's published description, without prose.
static DESCRIPTION: LazyLock<std::result::Result<Description, String>> = LazyLock::new(|| {
    let text = include_str!("../../providers/digitalocean/testdata/v2.json");
    Description::parse_with_gaps(text, &GAPS)
});

/// What the API accepts and its description refuses (`testdata/README.md` of the provider): a value for each list of choices.
const GAPS: [(&str, &str); 1] = [(
    "/components/schemas/tags_resource/properties/resources/items/properties/resource_type/enum",
    "load_balancer",
)];

/// The service's name in the call log, quotas and latencies.
pub const SERVICE: &str = "digitalocean";
/// Requests that a token may send in an hour.
const HOURLY: u32 = 5000;
/// Ports that DigitalOcean keeps for itself.
const RESERVED_PORTS: std::ops::RangeInclusive<u64> = 50053..=50055;

/// How a simulated DigitalOcean begins.
#[derive(Clone, Debug)]
pub struct Config {
    /// Where to listen; port 0 lets the system choose.
    pub listen: SocketAddr,
    /// The token that clients present.
    pub token: String,
    /// The region of everything.
    pub region: String,
    /// Time until a load balancer is active.
    pub create_time: Duration,
    /// Seed of ids, latencies and everything else that is random.
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

/// A running simulated DigitalOcean. Dropping it closes the listener and all connections.
///
/// [`Control`], to which this dereferences, reads and changes its documents by the API's names of collections.
#[derive(Debug)]
pub struct DigitalOcean {
    control: Control,
    server: Server,
}

impl DigitalOcean {
    /// Starts to listen on a new cloud without droplets.
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
            retry_after: RetryAfter::Honest,
        };
        control.set_quota(SERVICE, Some(quota));
        Ok(Self { control, server })
    }

    /// Creates a droplet with defaults and returns its id.
    pub fn create_droplet(&self, name: &str) -> String {
        let fields = Map::from_iter([("name".to_owned(), json!(name))]);
        self.control.create("droplets", fields)
    }

    /// Stops, and returns when the listener is closed.
    pub async fn shutdown(self) {
        self.server.shutdown().await;
    }
}

impl std::ops::Deref for DigitalOcean {
    type Target = Control;

    fn deref(&self) -> &Control {
        &self.control
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
        let created = seconds(fresh.now);
        let slug = fields.get("region").and_then(Value::as_str);
        let slug = slug.unwrap_or(&self.region).to_owned();
        let text = |name: &str| fields.get(name).and_then(Value::as_str).map(str::to_owned);
        let id = match collection {
            "droplets" => fresh.number().to_string(),
            "tags" => text("name").unwrap_or_default(),
            _ => text("id").unwrap_or_else(|| fresh.uuid()),
        };
        let defaults = match collection {
            "droplets" => droplet(fresh.number(), &region(&slug)),
            "load_balancers" => load_balancer(&id),
            "certificates" => json!({
                "id": id, "not_after": "2030-01-01T00:00:00Z", "sha1_fingerprint": "0", "dns_names": [],
                "state": "verified", "type": "custom",
            }),
            "firewalls" => json!({
                "id": id, "status": "succeeded", "pending_changes": [], "droplet_ids": [], "tags": [],
                "inbound_rules": [], "outbound_rules": [],
            }),
            "vpcs" => {
                json!({"id": id, "urn": format!("do:vpc:{id}"), "region": slug, "ip_range": "10.108.0.0/20"})
            }
            _ => json!({"resources": {"count": 0}}),
        };
        if matches!(collection, "droplets" | "load_balancers") {
            fields.insert("region".to_owned(), region(&slug));
        }
        if collection != "tags" {
            fields.insert("created_at".to_owned(), json!(created));
        }
        complete(fields, &defaults);
        if collection == "load_balancers" {
            complete_rules(fields);
        }
        id
    }

    fn run(&self, operation: &str, call: &mut Call<'_>) -> Option<Outcome> {
        Some(match operation {
            "droplets_list" => Ok((StatusCode::OK, Some(list_droplets(call)))),
            "droplets_get" => show(call, StatusCode::OK, "droplets", "droplet"),
            "loadBalancers_list" => Ok((StatusCode::OK, Some(call.page("load_balancers", |_| true)))),
            "loadBalancers_get" => show(call, StatusCode::OK, "load_balancers", "load_balancer"),
            "loadBalancers_create" => self.create(call),
            "loadBalancers_update" => update(call),
            "loadBalancers_delete" => remove(call, "load_balancers"),
            "account_get" => Ok((StatusCode::OK, Some(json!({ "account": account() })))),
            "regions_list" => {
                let regions = [self.region.as_str(), "sfo3"].map(region);
                let page = json!({"regions": regions, "links": {}, "meta": {"total": regions.len()}});
                Ok((StatusCode::OK, Some(page)))
            }
            "certificates_list" => {
                let name = call.query("name").map(str::to_owned);
                let page = call.page("certificates", |found| {
                    name.as_deref().is_none_or(|name| found.text("name") == name)
                });
                Ok((StatusCode::OK, Some(page)))
            }
            "certificates_get" => show(call, StatusCode::OK, "certificates", "certificate"),
            "vpcs_get" => show(call, StatusCode::OK, "vpcs", "vpc"),
            "firewalls_list" => Ok((StatusCode::OK, Some(call.page("firewalls", |_| true)))),
            "firewalls_get" => show(call, StatusCode::OK, "firewalls", "firewall"),
            "firewalls_create" => create_firewall(call),
            "firewalls_update" => update_firewall(call),
            "firewalls_delete" => remove(call, "firewalls"),
            "tags_list" => Ok((StatusCode::OK, Some(call.page("tags", |_| true)))),
            "tags_create" => {
                let fields = call.body.as_object().cloned().unwrap_or_default();
                call.create("tags", fields)
                    .and_then(|id| shown(call, StatusCode::CREATED, "tags", "tag", &id))
            }
            "tags_assign_resources" => assign_tag(call),
            _ => return None,
        })
    }
}

fn remove(call: &mut Call<'_>, collection: &str) -> Outcome {
    call.find(collection).map(|found| {
        call.store.remove(collection, &found.id);
        (StatusCode::NO_CONTENT, None)
    })
}

fn create_firewall(call: &mut Call<'_>) -> Outcome {
    let fields = call.body.as_object().cloned().unwrap_or_default();
    check_firewall(call, &fields, None)?;
    let id = call.create("firewalls", fields)?;
    shown(call, StatusCode::ACCEPTED, "firewalls", "firewall", &id)
}

/// `PUT /v2/firewalls/{id}`: what the request leaves out gets its default again.
fn update_firewall(call: &mut Call<'_>) -> Outcome {
    let found = call.find_to_change("firewalls")?;
    let mut fields = call.body.as_object().cloned().unwrap_or_default();
    check_firewall(call, &fields, Some(&found.id))?;
    let defaults = json!({
        "id": found.id, "status": "succeeded", "pending_changes": [], "created_at": found.text("created_at"),
        "droplet_ids": [], "tags": [], "inbound_rules": [], "outbound_rules": [],
    });
    complete(&mut fields, &defaults);
    call.store.change("firewalls", &found.id, |known| *known = fields);
    shown(call, StatusCode::OK, "firewalls", "firewall", &found.id)
}

/// Names are unique, and a rule has a source.
fn check_firewall(
    call: &Call<'_>,
    fields: &Map<String, Value>,
    known: Option<&str>,
) -> std::result::Result<(), Fault> {
    let invalid = |message: &str| Err(Fault::new(StatusCode::UNPROCESSABLE_ENTITY, message));
    let name = fields.get("name").and_then(Value::as_str).unwrap_or_default();
    let mut others = call
        .store
        .all("firewalls")
        .filter(|other| Some(other.id.as_str()) != known);
    if others.any(|other| other.text("name") == name) {
        return invalid("duplicate name");
    }
    let rules = fields
        .get("inbound_rules")
        .and_then(Value::as_array)
        .into_iter()
        .flatten();
    let has_source = |rule: &Value| {
        rule["sources"]
            .as_object()
            .is_some_and(|sources| !sources.is_empty())
    };
    match rules.into_iter().all(has_source) {
        true => Ok(()),
        false => invalid("an inbound rule has no sources"),
    }
}

/// `POST /v2/tags/{tag}/resources`, for load balancers.
fn assign_tag(call: &mut Call<'_>) -> Outcome {
    let tag = call.find("tags")?;
    let resources = call.body["resources"].as_array().cloned().unwrap_or_default();
    for resource in resources {
        let id = resource["resource_id"].as_str().unwrap_or_default();
        let found = call.store.change("load_balancers", id, |fields| {
            let tags = fields.entry("tags").or_insert_with(|| json!([]));
            if let Some(tags) = tags.as_array_mut().filter(|tags| !tags.contains(&json!(tag.id))) {
                tags.push(json!(tag.id));
            }
        });
        if !found {
            let message = format!("there is no load balancer {id}");
            return Err(Fault::new(StatusCode::UNPROCESSABLE_ENTITY, message));
        }
    }
    Ok((StatusCode::NO_CONTENT, None))
}

fn account() -> Value {
    json!({
        "droplet_limit": 2000, "floating_ip_limit": 3, "email": "a@example.com", "uuid": "0", "email_verified": true,
        "status": "active", "status_message": "",
    })
}

impl DigitalOceanRules {
    fn create(&self, call: &mut Call<'_>) -> Outcome {
        let mut fields = call.body.as_object().cloned().unwrap_or_default();
        check(call, &fields, None)?;
        fields.insert("status".to_owned(), json!("new"));
        fields.insert("ip".to_owned(), json!(""));
        let id = call.create("load_balancers", fields)?;
        let due = call.now.checked_add(self.create_time).unwrap_or(call.now);
        let change = |status: &str, more: Value| {
            let mut fields = more.as_object().cloned().unwrap_or_default();
            fields.insert("status".to_owned(), json!(status));
            vec![("load_balancers", id.clone(), Effect::Merge(fields))]
        };
        let address = address(&id);
        let success = change("active", json!({ "ip": address }));
        call.store.schedule(due, success, change("errored", json!({})));
        shown(call, StatusCode::ACCEPTED, "load_balancers", "load_balancer", &id)
    }
}

/// `PUT /v2/load_balancers/{id}`: what the request leaves out gets its default again.
fn update(call: &mut Call<'_>) -> Outcome {
    let found = call.find_to_change("load_balancers")?;
    let mut fields = call.body.as_object().cloned().unwrap_or_default();
    if found.text("status") == "new" {
        let message = "Load Balancer can't be updated while it processes previous actions";
        return Err(Fault::new(StatusCode::FORBIDDEN, message));
    }
    check(call, &fields, Some(&found))?;
    for name in ["type", "network", "network_stack", "vpc_uuid"] {
        let wanted = fields.get(name).filter(|wanted| !wanted.is_null());
        if wanted.is_some_and(|wanted| Some(wanted) != found.fields.get(name)) {
            let message = format!("{name} cannot be changed");
            return Err(Fault::new(StatusCode::UNPROCESSABLE_ENTITY, message));
        }
    }
    for name in [
        "id",
        "ip",
        "status",
        "created_at",
        "region",
        "type",
        "network",
        "network_stack",
        "vpc_uuid",
    ] {
        if let Some(kept) = found.fields.get(name) {
            fields.insert(name.to_owned(), kept.clone());
        }
    }
    complete(&mut fields, &load_balancer(&found.id));
    complete_rules(&mut fields);
    call.store
        .change("load_balancers", &found.id, |known| *known = fields);
    shown(call, StatusCode::OK, "load_balancers", "load_balancer", &found.id)
}

/// What the description cannot say about a load balancer.
fn check(
    call: &Call<'_>,
    fields: &Map<String, Value>,
    known: Option<&Document>,
) -> std::result::Result<(), Fault> {
    let invalid = |message: String| Err(Fault::new(StatusCode::UNPROCESSABLE_ENTITY, message));
    let list = |name: &str| fields.get(name).and_then(Value::as_array).into_iter().flatten();
    let name = fields.get("name").and_then(Value::as_str).unwrap_or_default();
    let same_name =
        |other: &Document| known.is_none_or(|known| known.id != other.id) && other.text("name") == name;
    if call.store.all("load_balancers").any(|other| same_name(other)) {
        return invalid(format!("there is already a load balancer with the name {name}"));
    }
    for droplet in list("droplet_ids") {
        if call.store.get("droplets", &droplet.to_string()).is_none() {
            return invalid(format!("droplet {droplet} does not exist"));
        }
    }
    let both = |a: &str, b: &str| fields.contains_key(a) && fields.contains_key(b);
    if both("size", "size_unit") || both("tag", "droplet_ids") {
        return invalid("size and size_unit, tag and droplet_ids exclude each other".to_owned());
    }
    for rule in list("forwarding_rules") {
        let certificate = rule
            .get("certificate_id")
            .and_then(Value::as_str)
            .unwrap_or_default();
        if !certificate.is_empty() && call.store.get("certificates", certificate).is_none() {
            return invalid(format!("certificate {certificate} does not exist"));
        }
    }
    let ports = list("forwarding_rules").filter_map(|rule| rule.get("entry_port")?.as_u64());
    match ports.into_iter().find(|port| RESERVED_PORTS.contains(port)) {
        Some(port) => invalid(format!("entry port {port} is reserved")),
        None => Ok(()),
    }
}

fn list_droplets(call: &Call<'_>) -> Value {
    let (name, tag) = (call.query("name"), call.query("tag_name"));
    let wants_gpus = call.query("type") == Some("gpus");
    call.page("droplets", |droplet| {
        let tags = droplet.fields.get("tags").and_then(Value::as_array);
        let is_tagged = |tag: &str| tags.into_iter().flatten().any(|known| known == tag);
        name.is_none_or(|name| droplet.text("name").eq_ignore_ascii_case(name))
            && tag.is_none_or(is_tagged)
            // Without the parameter, droplets with a GPU are left out.
            && droplet.text("size_slug").starts_with("gpu-") == wants_gpus
    })
}

fn show(call: &Call<'_>, status: StatusCode, collection: &str, singular: &str) -> Outcome {
    let found = call.find(collection)?;
    Ok((status, Some(json!({ singular: call.show(&found) }))))
}

fn shown(call: &Call<'_>, status: StatusCode, collection: &str, singular: &str, id: &str) -> Outcome {
    let found = call.store.get(collection, id).map(|found| call.show(found));
    Ok((status, Some(json!({ singular: found }))))
}

/// Rules are shown with all of their fields.
fn complete_rules(fields: &mut Map<String, Value>) {
    let rules = fields.get_mut("forwarding_rules").and_then(Value::as_array_mut);
    for rule in rules.into_iter().flatten().filter_map(Value::as_object_mut) {
        complete(rule, &json!({"certificate_id": "", "tls_passthrough": false}));
    }
}

/// Adds defaults for fields that are missing, in objects inside objects, too.
fn complete(fields: &mut Map<String, Value>, defaults: &Value) {
    for (name, default) in defaults.as_object().into_iter().flatten() {
        match fields.get_mut(name) {
            Some(Value::Object(fields)) => complete(fields, default),
            Some(_) => {}
            None => {
                fields.insert(name.clone(), default.clone());
            }
        }
    }
}

fn region(slug: &str) -> Value {
    json!({"slug": slug, "name": slug, "available": true, "features": [], "sizes": []})
}

/// An address that belongs to an id.
fn address(id: &str) -> Ipv4Addr {
    let last = id
        .bytes()
        .fold(0_u8, |sum, byte| sum.wrapping_mul(31).wrapping_add(byte));
    Ipv4Addr::new(203, 0, 113, last)
}

fn droplet(id: u64, region: &Value) -> Value {
    let [.., high, low] = id.to_be_bytes();
    let size = json!({
        "slug": "s-2vcpu-4gb", "memory": 4096, "vcpus": 2, "disk": 80, "transfer": 4.0, "price_monthly": 24.0,
        "price_hourly": 0.03571, "regions": [region["slug"]], "available": true, "description": "Basic",
    });
    json!({
        "id": id, "memory": 4096, "vcpus": 2, "disk": 80, "locked": false, "status": "active", "features": [],
        "backup_ids": [], "next_backup_window": null, "snapshot_ids": [], "volume_ids": [], "tags": [],
        "image": {}, "size": size, "size_slug": "s-2vcpu-4gb",
        "networks": {
            "v4": [
                {"ip_address": Ipv4Addr::new(10, 108, high, low), "netmask": "255.240.0.0", "type": "private"},
                {"ip_address": Ipv4Addr::new(198, 51, high, low), "netmask": "255.255.0.0", "type": "public"},
            ],
            "v6": [],
        },
    })
}

fn load_balancer(id: &str) -> Value {
    let health_check = json!({
        "protocol": "http", "port": 80, "path": "/", "check_interval_seconds": 10, "response_timeout_seconds": 5,
        "healthy_threshold": 3, "unhealthy_threshold": 5,
    });
    json!({
        "id": id, "ip": address(id), "status": "active",
        "algorithm": "round_robin", "type": "REGIONAL", "network": "EXTERNAL", "network_stack": "IPV4",
        "size_unit": 1, "droplet_ids": [], "tag": "", "tags": [], "health_check": health_check,
        "sticky_sessions": {"type": "none"}, "redirect_http_to_https": false, "enable_proxy_protocol": false,
        "enable_backend_keepalive": false, "disable_lets_encrypt_dns_records": false,
        "http_idle_timeout_seconds": 60, "firewall": {"allow": [], "deny": []}, "tls_cipher_policy": "DEFAULT",
    })
}
