//! A simulated DigitalOcean, checked against the API description that DigitalOcean publishes: account, regions,
//! droplets, load balancers, certificates, firewalls, tags and VPCs.
//!
//! A load balancer is `new` until [`Config::create_time`] has passed, then `active` with an address, or `errored`.
//! While it is `new`, changes are refused as by the API.

use std::collections::{BTreeMap, VecDeque};
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::{Arc, LazyLock};
use std::time::Duration;

use http::StatusCode;
use jiff::Timestamp;
use parking_lot::{Mutex, RwLock};
use serde_json::{Map, Value, json};

use crate::clock::seconds;
use crate::documents::{
    Call, Checked, Control, Description, Document, DocumentFault, Effect, Fresh, Gap, Outcome, Paging,
    Revisions, Rules, start,
};
use crate::error::Result;
use crate::faults;
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
/// The most requests of a token in an hour, and in a minute.
const HOURLY: u32 = 5000;
const MINUTELY: usize = 250;
/// Regions whose load balancers have a size with a name, and no number of nodes.
const REGIONS_WITHOUT_NUMBERS: [&str; 3] = ["ams2", "nyc2", "sfo1"];
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

/// Behavior that the description leaves open and for which public evidence disagrees, or that only large accounts meet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Switches {
    /// Answers contain the tags of load balancers.
    pub returns_tags: bool,
    /// A `PUT` of a load balancer replaces its tags. Otherwise only its creation and the tags API set them.
    pub put_changes_tags: bool,
    /// A listing with larger pages is answered with 504.
    pub largest_page: u32,
    /// A load balancer is `new` after a `PUT`, until [`Config::create_time`] has passed.
    pub put_answers_new: bool,
    /// An active load balancer refuses changes for this time after a change.
    pub busy_time: Duration,
    /// The shortest time between two changes of the size of a load balancer.
    pub resize_pause: Duration,
    /// Rules of the firewall of a load balancer for IPv6 addresses are dropped without an error.
    pub drops_ipv6_rules: bool,
}

impl Default for Switches {
    fn default() -> Self {
        Self {
            returns_tags: true,
            put_changes_tags: true,
            largest_page: 200,
            put_answers_new: false,
            busy_time: Duration::ZERO,
            resize_pause: Duration::ZERO,
            drops_ipv6_rules: false,
        }
    }
}

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
    /// The behavior at the beginning.
    pub switches: Switches,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            listen: SocketAddr::from((Ipv4Addr::LOCALHOST, 0)),
            token: "dop_v1_simulated".to_owned(),
            region: "nyc3".to_owned(),
            create_time: Duration::ZERO,
            seed: 0,
            switches: Switches::default(),
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
    switches: Arc<RwLock<Switches>>,
}

impl DigitalOcean {
    /// Starts a new cloud without droplets.
    ///
    /// # Errors
    /// If the address cannot be bound.
    pub async fn start(config: Config) -> Result<Self> {
        let switches = Arc::new(RwLock::new(config.switches));
        let rules = Box::new(DigitalOceanRules {
            token: format!("Bearer {}", config.token),
            region: config.region,
            create_time: config.create_time,
            switches: Arc::clone(&switches),
            requests: Mutex::default(),
            changes: Mutex::default(),
        });
        let (control, server) = start(config.listen, config.seed, &DESCRIPTION, rules).await?;
        let quota = Quota {
            per_second: f64::from(HOURLY) / 3600.0,
            burst: HOURLY,
        };
        control.set_quota(SERVICE, Some(quota));
        let control = Checked(control);
        Ok(Self {
            control,
            server,
            switches,
        })
    }

    /// Replaces the behavior.
    pub fn set_switches(&self, switches: Switches) {
        *self.switches.write() = switches;
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
    switches: Arc<RwLock<Switches>>,
    /// The requests of the last minute.
    requests: Mutex<VecDeque<Timestamp>>,
    /// The last changes of load balancers, by their IDs.
    changes: Mutex<BTreeMap<String, LastChanges>>,
}

/// When a load balancer was last changed.
#[derive(Clone, Copy, Debug, Default)]
struct LastChanges {
    any: Option<Timestamp>,
    size: Option<Timestamp>,
}

/// Whether less than `pause` has passed since then.
fn is_recent(then: Option<Timestamp>, pause: Duration, now: Timestamp) -> bool {
    let ends = then.and_then(|then| then.checked_add(pause).ok());
    ends.is_some_and(|ends| now < ends)
}

impl DigitalOceanRules {
    /// Counts a request. The hourly limit is a quota of the server.
    fn count(&self, now: Timestamp) -> std::result::Result<(), DocumentFault> {
        let mut requests = self.requests.lock();
        requests.retain(|then| is_recent(Some(*then), Duration::from_secs(60), now));
        if requests.len() >= MINUTELY {
            let message = "API Rate limit exceeded.";
            return Err(DocumentFault::new(StatusCode::TOO_MANY_REQUESTS, message));
        }
        requests.push_back(now);
        Ok(())
    }

    /// Changes a load balancer, unless it is busy or was resized a moment ago.
    fn update_balancer(&self, call: &mut Call<'_>, switches: Switches) -> Outcome {
        let found = call.find_to_change("load_balancers")?;
        let last = self.changes.lock().get(&found.id).copied().unwrap_or_default();
        if found.text("status") == "new" || is_recent(last.any, switches.busy_time, call.now) {
            let message = "Load Balancer can't be updated while it processes previous actions";
            return Err(DocumentFault::new(StatusCode::FORBIDDEN, message));
        }
        let mut requested = object(&call.body);
        name_size(&mut requested);
        let size = requested.get("size_unit").filter(|size| !size.is_null());
        let resizes = size.is_some_and(|size| found.fields.get("size_unit") != Some(size));
        if resizes && is_recent(last.size, switches.resize_pause, call.now) {
            let message = "Load Balancer can only be resized once every hour, last resized at: a moment ago";
            return invalid(message);
        }
        let outcome = update(call, "load_balancers", switches)?;
        let now = Some(call.now);
        let size = if resizes { now } else { last.size };
        let changes = LastChanges { any: now, size };
        self.changes.lock().insert(found.id.clone(), changes);
        if switches.put_answers_new {
            call.store.change("load_balancers", &found.id, |fields| {
                fields.insert("status".to_owned(), json!("new"));
            });
            schedule_end(call, &found.id, self.create_time, &json!({"status": "active"}));
        }
        Ok(outcome)
    }
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

    fn authenticate(&self, request: &Request) -> std::result::Result<(), DocumentFault> {
        match request.header("authorization") {
            Some(token) if token == self.token => Ok(()),
            _ => Err(DocumentFault::new(StatusCode::UNAUTHORIZED, "Unable to authenticate you")),
        }
    }

    fn error(&self, fault: &DocumentFault, request_id: &str) -> Value {
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

    fn refusals(&self) -> Vec<faults::Fault> {
        let busy = "Load Balancer can't be updated while it processes previous actions";
        vec![
            // A token without the scope of the request.
            refusal(403, "forbidden", "You are not authorized to perform this operation"),
            // Also of load balancers that are active, for minutes.
            faults::Fault {
                method: Some("PUT".to_owned()),
                path: Some("/v2/load_balancers/".to_owned()),
                ..refusal(403, "forbidden", busy)
            },
            refusal(429, "too_many_requests", "API Rate limit exceeded."),
            refusal(502, "bad_gateway", "Bad gateway"),
            refusal(504, "gateway_timeout", "Gateway timeout"),
        ]
    }

    fn complete(&self, collection: &str, fields: &mut Map<String, Value>, fresh: &Fresh<'_>) -> String {
        let id = match collection {
            "droplets" => fresh.number().to_string(),
            "tags" => text(fields, "name").unwrap_or_default(),
            _ => text(fields, "id").unwrap_or_else(|| fresh.uuid()),
        };
        let region = region(&text(fields, "region").unwrap_or_else(|| self.region.clone()));
        let mut defaults = defaults(collection, &id, &region);
        if collection == "load_balancers" && has_no_numbers(&region) {
            fields.remove("size_unit");
            defaults["size"] = json!("lb-small");
            defaults.as_object_mut().and_then(|defaults| defaults.remove("size_unit"));
        }
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
        if call.has_quota()
            && let Err(fault) = self.count(call.now)
        {
            return Some(Err(fault));
        }
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
        let switches = *self.switches.read();
        let outcome = match (collection, verb) {
            (_, "list") => list(call, collection, switches.largest_page),
            (_, "get") => call.find(collection).map(|found| (StatusCode::OK, Some(found.id.clone().into()))),
            ("load_balancers" | "firewalls", "delete") => call.find(collection).map(|found| {
                call.store.remove(collection, &found.id);
                (StatusCode::NO_CONTENT, None)
            }),
            ("load_balancers", "create") => create_balancer(call, self.create_time, switches),
            ("load_balancers", "update") => self.update_balancer(call, switches),
            ("firewalls", "update") => update(call, collection, switches),
            ("firewalls", "create") => create(call, collection, StatusCode::ACCEPTED),
            ("tags", "create") => create(call, collection, StatusCode::CREATED),
            ("tags", "assign_resources") => change_tag(call, true),
            ("tags", "unassign_resources") => change_tag(call, false),
            _ => return None,
        };
        // The operations so far name one document by its ID.
        let outcome = outcome.map(|(status, body)| match body {
            Some(Value::String(id)) => {
                let shown = call.store.get(collection, &id).map(|found| call.show(found));
                (status, Some(json!({ name: shown })))
            }
            body => (status, body),
        });
        let hides_tags = collection == "load_balancers" && !switches.returns_tags;
        Some(match outcome {
            Ok((status, Some(mut body))) if hides_tags => {
                hide_tags(&mut body);
                Ok((status, Some(body)))
            }
            outcome => outcome,
        })
    }
}

/// A load balancer is active after `time`.
fn create_balancer(call: &mut Call<'_>, time: Duration, switches: Switches) -> Outcome {
    if switches.drops_ipv6_rules {
        call.body.as_object_mut().into_iter().for_each(drop_ipv6_rules);
    }
    if let Some(fields) = call.body.as_object_mut() {
        fields.extend([("status".to_owned(), json!("new")), ("ip".to_owned(), json!(""))]);
    }
    let (status, id) = create(call, "load_balancers", StatusCode::ACCEPTED)?;
    for tag in texts(&call.body["tags"]) {
        if call.store.get("tags", &tag).is_none() {
            call.create("tags", Map::from_iter([("name".to_owned(), json!(tag))]))?;
        }
    }
    let id = id.as_ref().and_then(Value::as_str).unwrap_or_default().to_owned();
    schedule_end(call, &id, time, &json!({"status": "active", "ip": address(&id)}));
    Ok((status, Some(id.into())))
}

/// Ends a change of a load balancer after this time: with these fields, or with the status `errored` if it is made to fail.
fn schedule_end(call: &mut Call<'_>, id: &str, time: Duration, success: &Value) {
    let due = call.now.checked_add(time).unwrap_or(call.now);
    let failure = json!({"status": "errored"});
    call.store.schedule(
        due,
        vec![("load_balancers", id.to_owned(), Effect::Merge(object(success)))],
        vec![("load_balancers", id.to_owned(), Effect::Merge(object(&failure)))],
    );
}

/// A refusal of any request, as the API words it.
fn refusal(code: u16, id: &str, message: &str) -> faults::Fault {
    faults::Fault::new(faults::Action::Status {
        code,
        body: Some(json!({"id": id, "message": message}).to_string()),
        headers: BTreeMap::new(),
    })
}

/// A field that is a text.
fn text(fields: &Map<String, Value>, name: &str) -> Option<String> {
    fields.get(name).and_then(Value::as_str).map(str::to_owned)
}

/// Adds the number of nodes to a size that is given by its name.
fn name_size(fields: &mut Map<String, Value>) {
    let nodes = match fields.get("size").and_then(Value::as_str) {
        Some("lb-small") => 1,
        Some("lb-medium") => 3,
        Some("lb-large") => 6,
        _ => return,
    };
    fields.entry("size_unit").or_insert_with(|| json!(nodes));
}

/// Whether the region, a slug or an object, has load balancers without a number of nodes.
fn has_no_numbers(region: &Value) -> bool {
    let slug = region.get("slug").unwrap_or(region).as_str();
    slug.is_some_and(|slug| REGIONS_WITHOUT_NUMBERS.contains(&slug))
}

/// Removes the rules of the firewall for IPv6 addresses.
fn drop_ipv6_rules(fields: &mut Map<String, Value>) {
    let firewall = fields.get_mut("firewall").and_then(Value::as_object_mut);
    for rules in firewall.into_iter().flat_map(Map::values_mut) {
        if let Some(rules) = rules.as_array_mut() {
            rules.retain(|rule| rule.as_str().is_some_and(|rule| rule.matches(':').count() < 2));
        }
    }
}

/// The texts of a list.
fn texts(list: &Value) -> Vec<String> {
    let items = list.as_array().into_iter().flatten();
    items.filter_map(|item| item.as_str().map(str::to_owned)).collect()
}

/// Removes the tags of the load balancers of an answer.
fn hide_tags(body: &mut Value) {
    let shown = body.as_object_mut().into_iter().flat_map(Map::values_mut);
    for value in shown {
        let documents = match value {
            Value::Array(documents) => documents.as_mut_slice(),
            document => std::slice::from_mut(document),
        };
        for document in documents.iter_mut().filter_map(Value::as_object_mut) {
            document.remove("tags");
        }
    }
}

fn object(value: &Value) -> Map<String, Value> {
    value.as_object().cloned().unwrap_or_default()
}

/// Creates a document from the body.
fn create(call: &mut Call<'_>, collection: &str, status: StatusCode) -> Outcome {
    let mut fields = object(&call.body);
    check(call, collection, &fields, None)?;
    name_size(&mut fields);
    let id = call.create(collection, fields)?;
    Ok((status, Some(id.into())))
}

/// Replaces a whole document: omitted fields get their defaults.
fn update(call: &mut Call<'_>, collection: &str, switches: Switches) -> Outcome {
    let found = call.find_to_change(collection)?;
    let mut fields = object(&call.body);
    check(call, collection, &fields, Some(&found))?;
    for name in ["type", "network", "network_stack", "vpc_uuid"] {
        // A load balancer of a test may have no VPC.
        if let (Some(known), Some(requested)) = (found.fields.get(name), fields.get(name))
            && !known.is_null()
            && !requested.is_null()
            && known != requested
        {
            return invalid(format!("{name} cannot be changed"));
        }
    }
    let mut kept = READ_ONLY.to_vec();
    if collection == "load_balancers" && !switches.put_changes_tags {
        kept.push("tags");
    }
    for name in kept {
        if let Some(value) = found.fields.get(name) {
            fields.insert(name.to_owned(), value.clone());
        }
    }
    name_size(&mut fields);
    let mut defaults = defaults(collection, &found.id, &Value::Null);
    if collection == "load_balancers" {
        if found.fields.get("region").is_some_and(has_no_numbers) {
            fields.remove("size_unit");
            defaults["size"] = json!("lb-small");
            defaults.as_object_mut().and_then(|defaults| defaults.remove("size_unit"));
        }
        if switches.drops_ipv6_rules {
            drop_ipv6_rules(&mut fields);
        }
    }
    complete(&mut fields, &defaults);
    call.store.change(collection, &found.id, |known| *known = fields);
    Ok((StatusCode::OK, Some(found.id.clone().into())))
}

fn invalid<T>(message: impl Into<String>) -> std::result::Result<T, DocumentFault> {
    Err(DocumentFault::new(StatusCode::UNPROCESSABLE_ENTITY, message))
}

/// Checks rules that the description cannot express: names are unique, and referenced documents exist. `known`: the
/// document before.
fn check(
    call: &Call<'_>,
    collection: &str,
    fields: &Map<String, Value>,
    known: Option<&Document>,
) -> std::result::Result<(), DocumentFault> {
    let list = |name: &str| fields.get(name).and_then(Value::as_array).into_iter().flatten();
    let name = fields.get("name").and_then(Value::as_str).unwrap_or_default();
    let is_taken = call
        .store
        .all(collection)
        .any(|other| other.text("name") == name && known.is_none_or(|known| known.id != other.id));
    // Creating an existing tag is no error.
    if collection != "tags" && is_taken {
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
    let region = known.and_then(|known| known.fields.get("region")).or(fields.get("region"));
    let has_number = fields.get("size_unit").is_some_and(|unit| !unit.is_null());
    if collection == "load_balancers" && has_number && region.is_some_and(has_no_numbers) {
        return invalid("size_unit is not available in this region");
    }
    for rule in list("forwarding_rules") {
        let certificate = rule["certificate_id"].as_str().unwrap_or_default();
        if !certificate.is_empty() && call.store.get("certificates", certificate).is_none() {
            let message = format!("certificate with ID {certificate} not found");
            return Err(DocumentFault::new(StatusCode::NOT_FOUND, message));
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

/// `POST` (`adds`) and `DELETE /v2/tags/{tag}/resources`, for load balancers.
fn change_tag(call: &mut Call<'_>, adds: bool) -> Outcome {
    let tag = json!(call.find("tags")?.id);
    for resource in call.body["resources"].as_array().into_iter().flatten() {
        let id = resource["resource_id"].as_str().unwrap_or_default();
        let found = call.store.change("load_balancers", id, |fields| {
            let tags = fields.entry("tags").or_insert_with(|| json!([]));
            if let Some(tags) = tags.as_array_mut() {
                tags.retain(|known| *known != tag);
                if adds {
                    tags.push(tag.clone());
                }
            }
        });
        if !found {
            return invalid(format!("there is no load balancer {id}"));
        }
    }
    Ok((StatusCode::NO_CONTENT, None))
}

/// A page of the documents that the query selects.
fn list(call: &Call<'_>, collection: &str, largest_page: u32) -> Outcome {
    let size = call.request.last("per_page").and_then(|size| size.parse::<u32>().ok());
    if size.is_some_and(|size| size > largest_page) {
        return Err(DocumentFault::new(StatusCode::GATEWAY_TIMEOUT, "The page is too large."));
    }
    let (name, tag) = (call.request.last("name"), call.request.last("tag_name"));
    let wants_gpus = call.request.last("type") == Some("gpus");
    let page = call.page(collection, |found| {
        let tags = found.fields.get("tags").and_then(Value::as_array);
        name.is_none_or(|name| found.text("name").eq_ignore_ascii_case(name))
            && tag.is_none_or(|tag| tags.is_some_and(|tags| tags.iter().any(|known| known == tag)))
            // Without the parameter, droplets with a GPU are omitted.
            && (collection != "droplets" || found.text("size_slug").starts_with("gpu-") == wants_gpus)
    });
    Ok((StatusCode::OK, Some(page)))
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
