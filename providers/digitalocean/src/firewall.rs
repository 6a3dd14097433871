//! The firewall controller: one firewall of the account opens exactly the ports that Services need on the cluster's droplets.
//!
//! | Service | Opened |
//! |---|---|
//! | `NodePort` | its node ports, to all addresses |
//! | `LoadBalancer`, external `REGIONAL_NETWORK` | its ports, to its source ranges; the port of health checks, to its load balancer |
//! | `LoadBalancer` with a class | nothing: another controller serves it |
//! | another `LoadBalancer` | nothing: its traffic comes through the VPC |
//! | `firewall-managed: "false"` | nothing |

use std::{
    collections::{BTreeMap, BTreeSet},
    pin::pin,
    sync::Arc,
    time::Duration,
};

use ccm_core::{
    Error, ErrorKind, Freshness, Outcome, Priority, Result,
    controllers::{
        Backoff, ControllerContext, ControllerDef, ControllerFuture, ControllerMetrics, Needs, ServiceObject,
    },
    load_balancer::{
        AnnotationReader, IgnoredValue, Protocol, ReadOptions, ServiceId, ServiceType, ServiceView,
        SourceRanges,
    },
    plan::{PartCloud as _, document::Document},
};
use prometheus_client::metrics::{counter::Counter, family::Family, histogram::Histogram};
use serde_json::{Value, json};
use tokio::{
    sync::mpsc::UnboundedReceiver,
    time::{Instant, sleep_until},
};
use tracing::{debug, info, warn};

use crate::{
    DigitalOcean,
    client::{Api, Op},
    config::{LbType, Settings},
    load_balancer::{annotations, desired, document::Balancer},
};

/// Interval between reads of the firewall, to revert changes made by others (upstream's).
const RESYNC: Duration = Duration::from_secs(300);
/// Retry delays after failures (upstream's).
const BACKOFF: Backoff = Backoff {
    first: Duration::from_secs(1),
    longest: RESYNC,
};
/// Service changes within this time are combined.
const DEBOUNCE: Duration = Duration::from_millis(500);
/// All addresses.
const ANYWHERE: [&str; 2] = ["0.0.0.0/0", "::/0"];

/// The controller.
pub(crate) const CONTROLLER: ControllerDef = ControllerDef {
    name: "do-firewall-controller",
    aliases: &["do-firewall"],
    migration_name: None,
    client_name: "do-firewall-controller",
    default_on: true,
    needs: |setup| {
        let is_configured = |cloud: &DigitalOcean| cloud.settings.has_firewall();
        let needs = Needs {
            node_port_services: true,
            ..Needs::default()
        };
        setup.needs_if(is_configured, "PUBLIC_ACCESS_FIREWALL_NAME is not set", needs)
    },
    start,
};

fn start(context: ControllerContext) -> Result<ControllerFuture> {
    let cloud = context.setup.cloud_as::<DigitalOcean>()?;
    let api = cloud.nodes.api.fenced_by(&context.fence);
    let mut controller = Controller::new(cloud, api, &context.metrics);
    Ok(Box::pin(async move {
        let (services, shutdown) = (&context.services, &context.shutdown);
        let changes = services.subscribe();
        if shutdown.run_until_cancelled(services.synced()).await.is_some() {
            controller.run(changes, || services.list(), shutdown.cancelled()).await;
        }
    }))
}

struct Controller {
    cloud: Arc<DigitalOcean>,
    api: Api,
    balancers: Balancers,
    /// The firewall as it was read or written last.
    observed: Option<Firewall>,
    /// When `observed` was read last; `None` if it must be read again.
    read_at: Option<Instant>,
    /// Consecutive failures.
    failures: u32,
    /// Invalid annotations in the log. Those of load balancers are reported as Events.
    reported: BTreeSet<(ServiceId, String)>,
    metrics: Metrics,
}

/// When the firewall is reconciled next.
struct Schedule {
    /// Without a change of Services.
    at: Instant,
    /// The earliest time after a change of Services.
    earliest: Instant,
}

impl Schedule {
    /// Waits. Returns whether Services changed, or `None` if no more changes can arrive.
    async fn wait<T>(self, changes: &mut UnboundedReceiver<T>) -> Option<bool> {
        tokio::select! {
            () = sleep_until(self.at) => Some(false),
            change = changes.recv() => {
                change?;
                sleep_until(self.earliest.max(Instant::now() + DEBOUNCE)).await;
                Some(true)
            }
        }
    }
}

impl Controller {
    fn new(cloud: Arc<DigitalOcean>, api: Api, metrics: &ControllerMetrics) -> Self {
        Self {
            cloud,
            api,
            balancers: Balancers::new(),
            observed: None,
            read_at: None,
            failures: 0,
            reported: BTreeSet::new(),
            metrics: Metrics::new(metrics),
        }
    }

    /// Reconciles until `shutdown`. A write that was begun is finished.
    async fn run<T>(
        &mut self,
        mut changes: UnboundedReceiver<T>,
        list: impl Fn() -> Vec<Arc<ServiceObject>>,
        shutdown: impl Future<Output = ()>,
    ) {
        let mut shutdown = pin!(shutdown);
        let mut has_changed = false;
        loop {
            while changes.try_recv().is_ok() {
                has_changed = true;
            }
            let services = list();
            let views: Vec<_> = services.iter().map(|service| &*service.view).collect();
            let schedule = self.step(&views, has_changed).await;
            // After a failure, the change is still due.
            has_changed &= self.failures > 0;
            tokio::select! {
                biased;
                () = &mut shutdown => return,
                waited = schedule.wait(&mut changes) => match waited {
                    Some(changed) => has_changed |= changed,
                    None => return,
                },
            }
        }
    }

    /// Logs each invalid annotation once.
    fn report(&mut self, services: &[&ServiceView]) {
        let others = services.iter().filter(|service| !service.wants_load_balancer());
        let problem = |service: &&ServiceView| Some((service.id.clone(), is_managed(service).1?.to_string()));
        let found: BTreeSet<_> = others.filter_map(problem).collect();
        for (service, problem) in found.difference(&self.reported) {
            warn!(%service, problem, "Ignored the invalid value of an annotation");
        }
        self.reported = found;
    }

    /// Reconciles once. `has_changed`: Services changed since the last success.
    async fn step(&mut self, services: &[&ServiceView], has_changed: bool) -> Schedule {
        self.report(services);
        let began = Instant::now();
        let resync = self.read_at.is_none_or(|at| at.elapsed() >= RESYNC);
        let priority = match has_changed {
            true => Priority::User,
            false => Priority::Background,
        };
        let result = self.reconcile(services, resync.then_some(priority)).await;
        if resync && result.is_ok() {
            self.read_at = Some(began);
        }
        self.metrics.reconciled(began, resync, result.as_ref().err());
        match result {
            Ok(()) => {
                if self.failures > 0 {
                    info!("Reconciled the firewall after failures");
                }
                self.failures = 0;
                Schedule {
                    at: self.read_at.unwrap_or(began) + RESYNC,
                    earliest: began,
                }
            }
            Err(error) => {
                // The write may have succeeded, or another firewall has the name.
                if error.outcome() == Outcome::Unknown || error.kind() == ErrorKind::AlreadyExists {
                    self.read_at = None;
                }
                // A load balancer in the rules may be deleted.
                if error.kind() == ErrorKind::InvalidSpec {
                    self.balancers.clear();
                }
                self.failures += 1;
                let report = error.report();
                match self.failures {
                    1 => warn!(error = report, "Could not reconcile the firewall, will retry"),
                    _ => debug!(error = report, "Could not reconcile the firewall"),
                }
                let now = Instant::now();
                Schedule {
                    at: now + error.retry().wait(BACKOFF.delay(self.failures)),
                    earliest: now + BACKOFF.first,
                }
            }
        }
    }

    /// Creates or updates the firewall for these Services. `resync`: the priority of a read before.
    async fn reconcile(&mut self, services: &[&ServiceView], resync: Option<Priority>) -> Result<()> {
        self.find_balancers(services).await?;
        let settings = &self.cloud.settings;
        let desired = desired_firewall(services, settings, &self.balancers);
        let name = &settings.conf.firewall_name;
        // An update replaces all fields, and must not remove droplets that others added meanwhile.
        let differs = self.observed.as_ref().is_some_and(|known| !same(known, &desired));
        if let Some(priority) = resync.or(differs.then_some(Priority::User)) {
            self.observed = self.find(name, priority).await?;
        }
        let Some(observed) = &self.observed else {
            let created = self.write(Op::FirewallCreate, None, &desired).await?;
            info!(name, "Created the firewall");
            self.observed = Some(created);
            return Ok(());
        };
        if same(observed, &desired) {
            return Ok(());
        }
        let mut body = desired;
        body["droplet_ids"] = observed.list("droplet_ids").cloned().collect();
        let updated = self.write(Op::FirewallUpdate, Some(observed.id()), &body).await?;
        info!(name, "Updated the firewall");
        self.observed = Some(updated);
        Ok(())
    }

    /// Finds the load balancers of Services that are not known yet.
    async fn find_balancers(&mut self, services: &[&ServiceView]) -> Result<()> {
        let ids = services.iter();
        let ids = ids.filter_map(|service| service.annotation(annotations::ID));
        let ids: BTreeSet<_> = ids.collect();
        self.balancers.retain(|id, _| ids.contains(&**id));
        let settings = &self.cloud.settings;
        let is_refused =
            |service: &&ServiceView| !desired::read(service, settings, None, None).invalid.is_empty();
        // A refused Service needs the present ports of its load balancer.
        if ids.len() > self.balancers.len() || services.iter().any(is_refused) {
            let freshness = match self.failures {
                0 => Freshness::AtMost(RESYNC),
                _ => Freshness::now(),
            };
            let priority = Priority::User;
            let read = ReadOptions { freshness, priority };
            let directory = self.cloud.engine.cloud().directory(read).await?;
            let found = |id: &str| Some((id.to_owned(), Arc::clone(directory.by_id(id)?)));
            self.balancers.extend(ids.into_iter().filter_map(found));
        }
        Ok(())
    }

    /// Reads the firewall by its ID if known, else by its name.
    async fn find(&self, name: &str, priority: Priority) -> Result<Option<Firewall>> {
        let api = &self.api;
        if let Some(known) = &self.observed {
            let read = api.find(Op::FirewallGet, known.id(), priority);
            if let Some(found) = self.metrics.call("get_by_id", read).await? {
                return Ok(Some(found));
            }
        }
        let list = api.list::<Firewall>(Op::FirewallList, &[], priority);
        let all = self.metrics.call("get_by_list", list).await?;
        Ok(all.into_iter().find(|firewall| firewall.name() == name))
    }

    async fn write(&self, op: Op, id: Option<&str>, body: &Value) -> Result<Firewall> {
        let label = if id.is_some() { "update" } else { "create" };
        let path: Vec<_> = id.into_iter().collect();
        let write = self.api.write(op, &path, body, Priority::User);
        self.metrics.call(label, write).await
    }
}

/// A firewall as returned by the API.
type Firewall = Document;

/// A normalized rule: protocol, ports, and the addresses and load balancers.
type Rule = (String, String, BTreeSet<String>);

/// Load balancers of Services by ID, for the fields that cannot be changed. The annotations may request others.
type Balancers = BTreeMap<String, Arc<Balancer>>;

/// The firewall that the Services need.
fn desired_firewall(services: &[&ServiceView], settings: &Settings, balancers: &Balancers) -> Value {
    let anywhere = || json!({ "addresses": ANYWHERE });
    let mut rules: BTreeMap<(String, String), Vec<Value>> = BTreeMap::new();
    let mut add = |protocol: Protocol, port: u64, sources: Value| {
        let protocol = protocol.as_str().to_lowercase();
        let known = rules.entry((protocol, port.to_string())).or_default();
        if port != 0 && !known.contains(&sources) {
            known.push(sources);
        }
    };
    for service in services {
        if !is_managed(service).0 || service.deleting {
            continue;
        }
        let ports = service.ports.iter();
        let ports = ports.filter(|port| port.protocol != Protocol::Sctp);
        match service.service_type {
            ServiceType::NodePort => {
                ports.for_each(|port| add(port.protocol, port.node_port.into(), anywhere()));
            }
            ServiceType::LoadBalancer if service.class.is_none() => {
                let Some((health_port, frozen)) = health_port(service, settings, balancers) else {
                    continue;
                };
                // The API may refuse the whole firewall because of an ID that it does not know.
                let id = service.annotation(annotations::ID);
                let sources = match id.filter(|id| balancers.contains_key(*id)) {
                    Some(id) => json!({ "load_balancer_uids": [id] }),
                    None => anywhere(),
                };
                let frozen = frozen.map(Document::fields);
                let checked = frozen.and_then(|fields| fields["health_check"]["port"].as_u64());
                for port in checked.into_iter().chain([health_port]) {
                    add(Protocol::Tcp, port, sources.clone());
                }
                let (ranges, _) = SourceRanges::of_spec(service);
                let ranges: Vec<_> = ranges.iter().map(ToString::to_string).collect();
                let clients = match ranges.is_empty() {
                    true => anywhere(),
                    false => json!({ "addresses": ranges }),
                };
                ports.for_each(|port| add(port.protocol, port.port.into(), clients.clone()));
                let kept = frozen.and_then(|fields| fields["forwarding_rules"].as_array());
                for rule in kept.into_iter().flatten() {
                    let is_udp = rule["entry_protocol"] == "udp";
                    let protocol = if is_udp { Protocol::Udp } else { Protocol::Tcp };
                    let port = rule["entry_port"].as_u64().unwrap_or_default();
                    add(protocol, port, clients.clone());
                }
            }
            _ => {}
        }
    }
    let inbound = rules.into_iter().flat_map(|((protocol, ports), sources)| {
        let rule = move |sources| json!({"protocol": protocol, "ports": ports, "sources": sources});
        sources.into_iter().map(rule).collect::<Vec<_>>()
    });
    let inbound: Vec<_> = inbound.collect();
    let outbound = [("tcp", "all"), ("udp", "all"), ("icmp", "0")].map(|(protocol, ports)| {
        json!({"protocol": protocol, "ports": ports, "destinations": {"addresses": ANYWHERE}})
    });
    json!({
        "name": settings.conf.firewall_name, "tags": settings.conf.firewall_tags, "droplet_ids": [],
        "inbound_rules": inbound, "outbound_rules": outbound,
    })
}

/// Whether the firewall opens the Service's ports, and its value if that is invalid, which counts as true (upstream).
fn is_managed(service: &ServiceView) -> (bool, Option<IgnoredValue>) {
    let mut reader = AnnotationReader::new(&service.annotations);
    let is_managed = reader.lenient_flag(annotations::FIREWALL_MANAGED, true);
    (is_managed, reader.finish().0.pop())
}

/// The port of health checks of a load balancer whose traffic reaches the public addresses of nodes; `None` for others. A
/// Service with invalid annotations counts only if it has an address: then its load balancer is left unchanged, and is in the
/// answer, since it keeps its ports.
fn health_port<'a>(
    service: &ServiceView,
    settings: &Settings,
    balancers: &'a Balancers,
) -> Option<(u64, Option<&'a Balancer>)> {
    let id = service.annotation(annotations::ID);
    let existing = id.and_then(|id| Some(&**balancers.get(id)?));
    let reading = desired::read(service, settings, existing, None);
    let spec = reading.spec;
    let counts = reading.invalid.is_empty() || !service.ingress.is_empty();
    if !counts {
        debug!(service = %service.id, "The firewall skips an invalid Service without a load balancer");
    }
    let frozen = existing.filter(|_| !reading.invalid.is_empty());
    let is_open = counts && spec.kind == LbType::RegionalNetwork && !spec.internal;
    is_open.then_some((spec.health_port, frozen))
}

/// Whether name, tags and rules are equal in any order.
fn same(observed: &Firewall, desired: &Value) -> bool {
    let observed = observed.fields();
    observed.get("name") == desired.get("name")
        && texts(observed.get("tags")) == texts(desired.get("tags"))
        && rules(observed, "inbound_rules") == rules(desired, "inbound_rules")
        && rules(observed, "outbound_rules") == rules(desired, "outbound_rules")
}

fn texts(list: Option<&Value>) -> BTreeSet<String> {
    let items = list.and_then(Value::as_array).into_iter().flatten();
    items.filter_map(|item| Some(item.as_str()?.to_owned())).collect()
}

/// The rules of a list. Rules with the same port are merged. Empty ports, `all` and `0` are equal.
fn rules(fields: &Value, list: &str) -> BTreeSet<Rule> {
    let mut rules = BTreeMap::new();
    for rule in fields.get(list).and_then(Value::as_array).into_iter().flatten() {
        let text = |field: &str| rule[field].as_str().unwrap_or_default().to_owned();
        let ports = match text("ports").as_str() {
            "" | "all" | "0" => "all".to_owned(),
            ports => ports.to_owned(),
        };
        let peers = rule.get("sources").or_else(|| rule.get("destinations"));
        let peers =
            ["addresses", "load_balancer_uids"].map(|field| texts(peers.and_then(|peers| peers.get(field))));
        let known: &mut BTreeSet<String> = rules.entry((text("protocol"), ports)).or_default();
        known.extend(peers.into_iter().flatten());
    }
    let rule = |((protocol, ports), peers)| (protocol, ports, peers);
    rules.into_iter().map(rule).collect()
}

type Labels<const N: usize> = [(&'static str, String); N];

/// Count and duration of an operation.
struct OperationMetrics<const N: usize> {
    count: Family<Labels<N>, Counter>,
    seconds: Family<Labels<N>, Histogram>,
}

impl<const N: usize> OperationMetrics<N> {
    /// Registers `<name>s` and `<name>_duration_seconds`.
    fn new(metrics: &ControllerMetrics, name: &str, help: &str, buckets: fn() -> Histogram) -> Self {
        let timed = Self {
            count: Family::default(),
            seconds: Family::new_with_constructor(buckets),
        };
        metrics.with(|registry| {
            registry.register(format!("{name}s"), help, timed.count.clone());
            let (name, help) = (format!("{name}_duration_seconds"), format!("Seconds of {help}"));
            registry.register(name, help, timed.seconds.clone());
        });
        timed
    }

    fn record(&self, labels: &Labels<N>, began: Instant) {
        self.count.get_or_create(labels).inc();
        let seconds = began.elapsed().as_secs_f64();
        self.seconds.get_or_create(labels).observe(seconds);
    }
}

/// 21 buckets from one second (upstream's).
fn buckets(width: f64) -> Histogram {
    Histogram::new((0..21).map(|number| 1.0 + width * f64::from(number)))
}

/// The metrics of the Go cloud controller.
struct Metrics {
    calls: OperationMetrics<3>,
    syncs: OperationMetrics<1>,
    reconciles: OperationMetrics<2>,
}

impl Metrics {
    fn new(metrics: &ControllerMetrics) -> Self {
        let (fast, slow) = (|| buckets(4.5), || buckets(15.0));
        let calls = "calls of the API for the firewall";
        let reconciles = "reconciliations of the firewall";
        Self {
            calls: OperationMetrics::new(metrics, "firewall_api_operation", calls, fast),
            syncs: OperationMetrics::new(metrics, "firewall_resource_sync", "reads of the firewall", slow),
            reconciles: OperationMetrics::new(metrics, "firewall_reconcile", reconciles, slow),
        }
    }

    async fn call<T>(&self, operation: &'static str, call: impl Future<Output = Result<T>>) -> Result<T> {
        let began = Instant::now();
        let result = call.await;
        let code = match (&result, operation) {
            (Ok(_), "create") => "202",
            (Ok(_), _) => "200",
            (Err(error), _) => code(error),
        };
        let labels = [
            ("operation", operation.to_owned()),
            ("result", outcome(result.as_ref().err()).to_owned()),
            ("http_response_code", code.to_owned()),
        ];
        self.calls.record(&labels, began);
        result
    }

    fn reconciled(&self, began: Instant, is_resync: bool, error: Option<&Error>) {
        let result = || ("result", outcome(error).to_owned());
        if is_resync {
            self.syncs.record(&[result()], began);
        }
        let kind = error.map_or("", |error| error.kind().as_str());
        let labels = [result(), ("error_type", kind.to_owned())];
        self.reconciles.record(&labels, began);
    }
}

fn outcome(error: Option<&Error>) -> &'static str {
    if error.is_none() { "success" } else { "failure" }
}

/// The HTTP status that corresponds to an error's kind; 0 without an answer.
fn code(error: &Error) -> &'static str {
    match error.kind() {
        ErrorKind::InvalidSpec | ErrorKind::AlreadyExists | ErrorKind::QuotaExceeded => "422",
        ErrorKind::Unauthenticated => "401",
        ErrorKind::PermissionDenied => "403",
        ErrorKind::NotFound => "404",
        ErrorKind::Conflict => "409",
        ErrorKind::RateLimited => "429",
        ErrorKind::Unavailable => "500",
        _ => "0",
    }
}

#[cfg(test)]
mod tests;
