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
    Error, ErrorKind, Freshness, Priority, RequestOutcome, Result,
    controllers::{
        Backoff, ControllerContext, ControllerDef, ControllerFuture, ControllerMetrics, ControllerNames,
        Needs, ServiceObject,
    },
    load_balancer::{
        AnnotationReader, IgnoredValue, Protocol, ReadOptions, ServiceId, ServiceType, ServiceView,
        SourceRanges,
    },
    plan::document::Document,
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
    load_balancer::{
        annotations,
        desired::{self, Reading},
        document::{Balancer, field},
    },
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
    names: ControllerNames {
        name: "do-firewall-controller",
        aliases: &["do-firewall"],
        migration_name: None,
        client_name: "do-firewall-controller",
    },
    default_on: true,
    needs: |setup| {
        let needs = Needs {
            node_port_services: true,
            ..Needs::default()
        };
        setup.needs_if(
            |cloud: &DigitalOcean| cloud.settings.has_firewall(),
            "PUBLIC_ACCESS_FIREWALL_NAME is not set",
            needs,
        )
    },
    start,
};

fn start(context: ControllerContext) -> Result<ControllerFuture> {
    let cloud = context.setup.cloud_as::<DigitalOcean>()?;
    let api = cloud.nodes.api.fenced_by(&context.fence);
    let mut controller = FirewallController::new(cloud, api, &context.metrics);
    Ok(Box::pin(async move {
        let (services, shutdown) = (&context.services, &context.shutdown);
        let changes = services.subscribe();
        if shutdown.run_until_cancelled(services.synced()).await.is_some() {
            controller.run(changes, || services.list(), shutdown.cancelled()).await;
        }
    }))
}

struct FirewallController {
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
    metrics: FirewallMetrics,
}

/// When the firewall is reconciled next.
struct FirewallSchedule {
    /// Without a change of Services.
    at: Instant,
    /// The earliest time after a change of Services.
    earliest: Instant,
}

impl FirewallSchedule {
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

impl FirewallController {
    fn new(cloud: Arc<DigitalOcean>, api: Api, metrics: &ControllerMetrics) -> Self {
        Self {
            cloud,
            api,
            balancers: Balancers::new(),
            observed: None,
            read_at: None,
            failures: 0,
            reported: BTreeSet::new(),
            metrics: FirewallMetrics::new(metrics),
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
        let found: BTreeSet<_> = services
            .iter()
            .filter(|service| !service.wants_load_balancer())
            .filter_map(|service| {
                let ignored = ManagedFlag::of(service).ignored?;
                Some((service.id.clone(), ignored.to_string()))
            })
            .collect();
        for (service, problem) in found.difference(&self.reported) {
            warn!(%service, problem, "Ignored the invalid value of an annotation");
        }
        self.reported = found;
    }

    /// Reconciles once. `has_changed`: Services changed since the last success.
    async fn step(&mut self, services: &[&ServiceView], has_changed: bool) -> FirewallSchedule {
        self.report(services);
        let began = Instant::now();
        let resync = self.read_at.is_none_or(|at| at.elapsed() >= RESYNC);
        let priority = if has_changed {
            Priority::User
        } else {
            Priority::Background
        };
        let result = self.sync_and_reconcile(services, resync.then_some(priority)).await;
        if resync && result.is_ok() {
            self.read_at = Some(began);
        }
        match result {
            Ok(()) => {
                if self.failures > 0 {
                    info!("Reconciled the firewall after failures");
                }
                self.failures = 0;
                FirewallSchedule {
                    at: self.read_at.unwrap_or(began) + RESYNC,
                    earliest: began,
                }
            }
            Err(error) => {
                // The write may have succeeded, or another firewall has the name.
                if error.outcome() == RequestOutcome::Unknown || error.kind() == ErrorKind::AlreadyExists {
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
                FirewallSchedule {
                    at: now + error.retry().wait(BACKOFF.delay(self.failures)),
                    earliest: now + BACKOFF.first,
                }
            }
        }
    }

    /// Reads the firewall if that is due, with the priority `resync`, and reconciles it. Both are counted.
    async fn sync_and_reconcile(
        &mut self,
        services: &[&ServiceView],
        resync: Option<Priority>,
    ) -> Result<()> {
        if let Some(priority) = resync {
            let began = Instant::now();
            let synced = self.sync(priority).await;
            self.metrics.synced(began, synced.as_ref().err());
            synced?;
        }
        let began = Instant::now();
        let result = self.reconcile(services, resync.is_some()).await;
        self.metrics.reconciled(began, &result);
        result?;
        Ok(())
    }

    /// Reads the firewall.
    async fn sync(&mut self, priority: Priority) -> Result<()> {
        self.observed = self.find(&self.cloud.settings.conf.firewall_name, priority).await?;
        Ok(())
    }

    /// Creates or updates the firewall for these Services. `is_recent`: it was read just now. Returns whether anything was
    /// written.
    async fn reconcile(&mut self, services: &[&ServiceView], is_recent: bool) -> Result<bool> {
        self.find_balancers(services).await?;
        let desired = desired_firewall(services, &self.cloud.settings, &self.balancers);
        // An update replaces all fields, and must not remove droplets that others added meanwhile.
        let differs = self.observed.as_ref().is_some_and(|known| !same(known, &desired));
        if differs && !is_recent {
            self.sync(Priority::User).await?;
        }
        let name = &self.cloud.settings.conf.firewall_name;
        let Some(observed) = &self.observed else {
            let created = self.write(Op::FirewallCreate, None, &desired).await?;
            info!(name, "Created the firewall");
            self.observed = Some(created);
            return Ok(true);
        };
        if same(observed, &desired) {
            return Ok(false);
        }
        let mut body = desired;
        body[field::DROPLET_IDS] = observed.list(field::DROPLET_IDS).cloned().collect();
        let updated = self.write(Op::FirewallUpdate, Some(observed.id()), &body).await?;
        info!(name, "Updated the firewall");
        self.observed = Some(updated);
        Ok(true)
    }

    /// Finds the load balancers of Services that are not known yet.
    async fn find_balancers(&mut self, services: &[&ServiceView]) -> Result<()> {
        let ids: BTreeSet<_> =
            services.iter().filter_map(|service| service.annotation(annotations::ID)).collect();
        self.balancers.retain(|id, _| ids.contains(&**id));
        // A refused Service needs the present ports of its load balancer.
        let needs_read = ids.len() > self.balancers.len()
            || services.iter().any(|service| {
                let reading = desired::read(service, &self.cloud.settings, None, None);
                !reading.invalid.is_empty()
            });
        if !needs_read {
            return Ok(());
        }
        let read = ReadOptions {
            freshness: if self.failures == 0 {
                Freshness::AtMost(RESYNC)
            } else {
                Freshness::now()
            },
            priority: Priority::User,
        };
        for id in ids {
            if let Some(found) = self.cloud.engine.cloud().existing(id, read).await? {
                self.balancers.insert(id.to_owned(), found);
            }
        }
        Ok(())
    }

    /// Reads the firewall by its ID if known, else by its name.
    async fn find(&self, name: &str, priority: Priority) -> Result<Option<Firewall>> {
        let api = &self.api;
        if let Some(known) = &self.observed {
            let path = [known.id()];
            let read = api.write(Op::FirewallGet, &path, &Value::Null, priority);
            match self.metrics.call("get_by_id", read).await {
                // It was deleted, and perhaps created again.
                Err(error) if error.kind() == ErrorKind::NotFound => {}
                read => return read.map(Some),
            }
        }
        let list = api.list::<Firewall>(Op::FirewallList, &[], priority);
        let all = self.metrics.call("get_by_list", list).await?;
        Ok(all.into_iter().find(|firewall| firewall.name() == name))
    }

    async fn write(&self, op: Op, id: Option<&str>, body: &Value) -> Result<Firewall> {
        let label = if id.is_some() { "update" } else { "create" };
        let write = self.api.write(op, id.as_slice(), body, Priority::User);
        self.metrics.call(label, write).await
    }
}

/// A firewall as returned by the API.
type Firewall = Document;

/// Load balancers of Services by ID, for the fields that cannot be changed. The annotations may request others.
type Balancers = BTreeMap<String, Arc<Balancer>>;

/// The firewall that the Services need.
fn desired_firewall(services: &[&ServiceView], settings: &Settings, balancers: &Balancers) -> Value {
    let mut rules = InboundRules::default();
    for service in services {
        if !ManagedFlag::of(service).is_managed || service.deleting {
            continue;
        }
        match service.service_type {
            ServiceType::NodePort => {
                for port in &service.ports {
                    rules.add(port.protocol, port.node_port.into(), &anywhere());
                }
            }
            ServiceType::LoadBalancer if service.class.is_none() => {
                if let Some(target) = NetworkTarget::of(service, settings, balancers) {
                    rules.add_balancer(service, &target, balancers);
                }
            }
            _ => {}
        }
    }
    let inbound = rules.documents();
    let outbound = [("tcp", "all"), ("udp", "all"), ("icmp", "0")].map(|(protocol, ports)| {
        json!({"protocol": protocol, "ports": ports, "destinations": {"addresses": ANYWHERE}})
    });
    json!({
        field::NAME: settings.conf.firewall_name,
        field::TAGS: settings.conf.firewall_tags,
        field::DROPLET_IDS: [],
        "inbound_rules": inbound,
        "outbound_rules": outbound,
    })
}

fn anywhere() -> Value {
    json!({ "addresses": ANYWHERE })
}

/// The inbound rules: sources by protocol and port.
#[derive(Default)]
struct InboundRules(BTreeMap<(String, String), Vec<Value>>);

impl InboundRules {
    /// Opens a port. A port 0 is not assigned yet, and a firewall cannot open ports of SCTP.
    fn add(&mut self, protocol: Protocol, port: u64, sources: &Value) {
        if port == 0 || protocol == Protocol::Sctp {
            return;
        }
        let key = (protocol.as_str().to_lowercase(), port.to_string());
        let known = self.0.entry(key).or_default();
        if !known.contains(sources) {
            known.push(sources.clone());
        }
    }

    /// Opens the ports of a load balancer whose traffic reaches the public addresses of nodes.
    fn add_balancer(&mut self, service: &ServiceView, target: &NetworkTarget<'_>, balancers: &Balancers) {
        // The API may refuse the whole firewall because of an ID that it does not know.
        let checker = match service.annotation(annotations::ID) {
            Some(id) if balancers.contains_key(id) => json!({ "load_balancer_uids": [id] }),
            _ => anywhere(),
        };
        let (ranges, _) = SourceRanges::of_spec(service);
        let ranges: Vec<_> = ranges.iter().map(ToString::to_string).collect();
        let clients = if ranges.is_empty() {
            anywhere()
        } else {
            json!({ "addresses": ranges })
        };
        if let Some(frozen) = target.frozen {
            let checked_port = frozen.fields()[field::HEALTH_CHECK]["port"].as_u64();
            self.add(Protocol::Tcp, checked_port.unwrap_or_default(), &checker);
        }
        self.add(Protocol::Tcp, target.health_port, &checker);
        for port in &service.ports {
            self.add(port.protocol, port.port.into(), &clients);
        }
        if let Some(frozen) = target.frozen {
            for rule in frozen.list(field::FORWARDING_RULES) {
                let protocol = if rule["entry_protocol"] == "udp" {
                    Protocol::Udp
                } else {
                    Protocol::Tcp
                };
                self.add(protocol, rule["entry_port"].as_u64().unwrap_or_default(), &clients);
            }
        }
    }

    /// The rules as the API has them.
    fn documents(&self) -> Vec<Value> {
        let mut documents = Vec::new();
        for ((protocol, ports), all_sources) in &self.0 {
            for sources in all_sources {
                documents.push(json!({"protocol": protocol, "ports": ports, "sources": sources}));
            }
        }
        documents
    }
}

/// The annotation that excludes a Service from the firewall.
struct ManagedFlag {
    /// Whether the firewall opens the Service's ports.
    is_managed: bool,
    /// The value if it is invalid, which counts as true (upstream).
    ignored: Option<IgnoredValue>,
}

impl ManagedFlag {
    fn of(service: &ServiceView) -> Self {
        let mut reader = AnnotationReader::new(&service.annotations);
        let is_managed = reader.lenient_flag(annotations::FIREWALL_MANAGED, true);
        let (mut ignored, _) = reader.finish();
        Self {
            is_managed,
            ignored: ignored.pop(),
        }
    }
}

/// A load balancer whose traffic reaches the public addresses of nodes.
struct NetworkTarget<'a> {
    /// The port of health checks.
    health_port: u64,
    /// The existing load balancer if it is left unchanged, so that it keeps its ports.
    frozen: Option<&'a Balancer>,
}

impl<'a> NetworkTarget<'a> {
    /// The target of a Service; `None` if its traffic does not reach public addresses. A Service with invalid annotations counts
    /// only if it has an address, because then its load balancer is left unchanged.
    fn of(service: &ServiceView, settings: &Settings, balancers: &'a Balancers) -> Option<Self> {
        let existing =
            service.annotation(annotations::ID).and_then(|id| balancers.get(id)).map(|found| &**found);
        let Reading { spec, invalid, .. } = desired::read(service, settings, existing, None);
        let is_refused = !invalid.is_empty();
        if is_refused && service.ingress.is_empty() {
            debug!(service = %service.id, "The firewall skips an invalid Service without a load balancer");
            return None;
        }
        if spec.kind != LbType::RegionalNetwork || spec.internal {
            return None;
        }
        Some(Self {
            health_port: spec.health_port,
            frozen: if is_refused { existing } else { None },
        })
    }
}

/// Whether name, tags and rules are equal in any order.
fn same(observed: &Firewall, desired: &Value) -> bool {
    let observed = observed.fields();
    observed.get(field::NAME) == desired.get(field::NAME)
        && texts(observed.get(field::TAGS)) == texts(desired.get(field::TAGS))
        && rules(observed, "inbound_rules") == rules(desired, "inbound_rules")
        && rules(observed, "outbound_rules") == rules(desired, "outbound_rules")
}

fn texts(list: Option<&Value>) -> BTreeSet<String> {
    let items = list.and_then(Value::as_array).into_iter().flatten();
    items.filter_map(|item| Some(item.as_str()?.to_owned())).collect()
}

/// The rules of a list: addresses and load balancers by protocol and ports. Empty ports, `all` and `0` are equal.
fn rules<'a>(fields: &'a Value, list: &str) -> BTreeMap<(&'a str, &'a str), BTreeSet<String>> {
    let mut rules: BTreeMap<_, BTreeSet<String>> = BTreeMap::new();
    for rule in fields.get(list).and_then(Value::as_array).into_iter().flatten() {
        let protocol = rule["protocol"].as_str().unwrap_or_default();
        let ports = match rule["ports"].as_str().unwrap_or_default() {
            "" | "all" | "0" => "all",
            ports => ports,
        };
        let known = rules.entry((protocol, ports)).or_default();
        if let Some(peers) = rule.get("sources").or_else(|| rule.get("destinations")) {
            known.extend(texts(peers.get("addresses")));
            known.extend(texts(peers.get("load_balancer_uids")));
        }
    }
    rules
}

type Labels<const N: usize> = [(&'static str, String); N];

/// How often and how long an operation ran.
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

/// The metrics of upstream.
struct FirewallMetrics {
    calls: OperationMetrics<3>,
    syncs: OperationMetrics<1>,
    reconciles: OperationMetrics<2>,
}

impl FirewallMetrics {
    fn new(metrics: &ControllerMetrics) -> Self {
        let calls = "calls of the API for the firewall";
        let (syncs, reconciles) = ("reads of the firewall", "reconciliations of the firewall");
        Self {
            calls: OperationMetrics::new(metrics, "firewall_api_operation", calls, || buckets(4.5)),
            syncs: OperationMetrics::new(metrics, "firewall_resource_sync", syncs, || buckets(15.0)),
            reconciles: OperationMetrics::new(metrics, "firewall_reconcile", reconciles, || buckets(15.0)),
        }
    }

    async fn call<T>(&self, operation: &'static str, call: impl Future<Output = Result<T>>) -> Result<T> {
        let began = Instant::now();
        let result = call.await;
        let status = match (&result, operation) {
            (Ok(_), "create") => Some(202),
            (Ok(_), _) => Some(200),
            (Err(error), _) => error.status(),
        };
        let outcome = if result.is_ok() { "succeeded" } else { "failed" };
        let labels = [
            ("operation", operation.to_owned()),
            ("result", outcome.to_owned()),
            ("http_response_code", status.map(|status| status.to_string()).unwrap_or_default()),
        ];
        self.calls.record(&labels, began);
        result
    }

    fn synced(&self, began: Instant, error: Option<&Error>) {
        let result = match error {
            None => "updated",
            Some(error) if error.kind() == ErrorKind::Timeout => "canceled",
            Some(_) => "failed",
        };
        self.syncs.record(&[("result", result.to_owned())], began);
    }

    fn reconciled(&self, began: Instant, result: &Result<bool>) {
        let (result, error_type) = match result {
            Ok(true) => ("reconciled", ""),
            Ok(false) => ("skipped", ""),
            Err(error) if error.kind() == ErrorKind::Timeout => ("failed", "timeout"),
            Err(_) => ("failed", "generic"),
        };
        let labels = [
            ("result", result.to_owned()),
            ("error_type", error_type.to_owned()),
        ];
        self.reconciles.record(&labels, began);
    }
}

#[cfg(test)]
mod tests;
