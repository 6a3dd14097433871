//! A simulated DigitalOcean, held to the API description that DigitalOcean publishes: droplets and load balancers.
//!
//! A load balancer is `new` until [`Config::create_time`] has passed, then `active` with an address, or `errored`.

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
static DESCRIPTION: LazyLock<std::result::Result<Description, String>> =
    LazyLock::new(|| Description::parse(include_str!("../openapi/digitalocean.json")));

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
        let region = region(slug.unwrap_or(&self.region));
        let (id, defaults) = match collection {
            "droplets" => {
                let id = fresh.number();
                (id.to_string(), droplet(id, &region))
            }
            "load_balancers" => {
                let id = fresh.uuid();
                let defaults = load_balancer(&id);
                (id, defaults)
            }
            _ => {
                let id = fresh.uuid();
                (id.clone(), json!({ "id": id }))
            }
        };
        fields.insert("region".to_owned(), region);
        fields.insert("created_at".to_owned(), json!(created));
        complete(fields, &defaults);
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
            "loadBalancers_delete" => call.find("load_balancers").map(|found| {
                call.store.remove("load_balancers", &found.id);
                (StatusCode::NO_CONTENT, None)
            }),
            _ => return None,
        })
    }
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
    check(call, &fields, Some(&found))?;
    for name in [
        "id",
        "ip",
        "status",
        "created_at",
        "region",
        "network",
        "network_stack",
    ] {
        let kept = found.fields.get(name).cloned().unwrap_or_default();
        fields.insert(name.to_owned(), kept);
    }
    complete(&mut fields, &load_balancer(&found.id));
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
        "size_unit": 1, "droplet_ids": [], "tag": "", "health_check": health_check,
        "sticky_sessions": {"type": "none"}, "redirect_http_to_https": false, "enable_proxy_protocol": false,
        "enable_backend_keepalive": false, "disable_lets_encrypt_dns_records": false,
        "http_idle_timeout_seconds": 60, "firewall": {"allow": [], "deny": []}, "tls_cipher_policy": "DEFAULT",
    })
}
