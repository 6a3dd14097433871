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
            controller
                .run(changes, || services.list(), shutdown.cancelled())
                .await;
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
        if let Some(priority) = resync {
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
        let mut body = desired.clone();
        // Droplets that others added are kept.
        body["droplet_ids"] = observed.list("droplet_ids").cloned().collect();
        let id = observed.id().to_owned();
        let updated = match self.write(Op::FirewallUpdate, Some(&id), &body).await {
            Err(error) if error.kind() == ErrorKind::NotFound => {
                self.write(Op::FirewallCreate, None, &desired).await?
            }
            result => result?,
        };
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
mod tests {
    #![allow(clippy::unwrap_used)]
    use ccm_core::testkit::cluster::{annotate, service};
    use ccm_sim::{
        Action, Fault,
        digitalocean::{Config, DigitalOcean},
    };

    use super::*;
    use crate::load_balancer::desired::tests::{create_balancer, settings};

    const FIREWALL: [(&str, &str); 2] = [
        ("PUBLIC_ACCESS_FIREWALL_NAME", "nodes"),
        ("PUBLIC_ACCESS_FIREWALL_TAGS", "k8s, worker"),
    ];

    fn firewall(services: &[ServiceView], balancers: &Balancers) -> Value {
        let services: Vec<_> = services.iter().collect();
        desired_firewall(&services, &settings(&FIREWALL), balancers)
    }

    /// A load balancer with the ID `lb-1`.
    fn balancer(document: Value) -> Balancers {
        let balancer = Arc::new(serde_json::from_value(document).unwrap());
        Balancers::from([("lb-1".to_owned(), balancer)])
    }

    fn of_type(kind: &str) -> Balancers {
        balancer(json!({"id": "lb-1", "type": kind, "network": "EXTERNAL"}))
    }

    fn inbound(services: &[ServiceView]) -> Vec<String> {
        show(&firewall(services, &Balancers::new()))
    }

    /// The inbound rules as `tcp 80 0.0.0.0/0 ::/0`.
    fn show(firewall: &Value) -> Vec<String> {
        let text = |(protocol, ports, peers): Rule| {
            let peers: Vec<_> = peers.into_iter().collect();
            format!("{protocol} {ports} {}", peers.join(" "))
        };
        let rules = rules(firewall, "inbound_rules").into_iter();
        rules.map(text).collect()
    }

    fn node_port(name: &str) -> ServiceView {
        ServiceView {
            service_type: ServiceType::NodePort,
            ..service(name, &[80])
        }
    }

    fn annotated(mut service: ServiceView, key: &str, value: &str) -> ServiceView {
        annotate(&mut service, key, Some(value));
        service
    }

    #[test]
    fn rules_open_the_ports_of_services() {
        use annotations::{FIREWALL_MANAGED, ID, NETWORK, TYPE};
        assert!(inbound(&[]).is_empty());
        assert_eq!(inbound(&[node_port("a")]), ["tcp 30080 0.0.0.0/0 ::/0"]);
        for (value, count) in [("false", 0), ("0", 0), ("true", 1), ("perhaps", 1)] {
            let service = annotated(node_port("a"), FIREWALL_MANAGED, value);
            assert_eq!(inbound(&[service]).len(), count, "{value}");
        }
        let mut sctp = node_port("a");
        sctp.ports[0].protocol = Protocol::Sctp;
        assert!(inbound(&[sctp]).is_empty());
        let web = service("web", &[80]);
        let rules = ["tcp 10256 0.0.0.0/0 ::/0", "tcp 80 0.0.0.0/0 ::/0"];
        assert_eq!(inbound(std::slice::from_ref(&web)), rules);
        let known = annotated(web.clone(), ID, "lb-1");
        let limited = ServiceView {
            source_ranges: Some(vec!["10.0.0.0/8".into()]),
            ..known.clone()
        };
        for (balancers, checker) in [
            (of_type("REGIONAL_NETWORK"), "lb-1"),
            // An ID that is wrong, or that of a load balancer that was deleted.
            (Balancers::new(), "0.0.0.0/0 ::/0"),
        ] {
            let shown = show(&firewall(std::slice::from_ref(&limited), &balancers));
            let rules = format!("tcp 10256 {checker}, tcp 80 10.0.0.0/8");
            assert_eq!(shown.join(", "), rules);
        }
        assert!(inbound(&[annotated(known, FIREWALL_MANAGED, "false")]).is_empty());
        assert!(inbound(&[annotated(web.clone(), TYPE, "REGIONAL")]).is_empty());
        assert!(inbound(&[annotated(web.clone(), NETWORK, "INTERNAL")]).is_empty());
        // The load balancer decides, not what an annotation requests in vain.
        for (asked, has, count) in [
            ("REGIONAL", "REGIONAL_NETWORK", 2),
            ("REGIONAL_NETWORK", "REGIONAL", 0),
        ] {
            let service = annotated(annotated(web.clone(), TYPE, asked), ID, "lb-1");
            let shown = show(&firewall(&[service], &of_type(has)));
            assert_eq!(shown.len(), count, "{has}");
        }
        // An invalid Service does not block others, and its ports stay open if it has an address.
        let mut bad = annotated(service("bad", &[81]), TYPE, "GLOBAL");
        let rules = inbound(&[bad.clone(), node_port("a")]);
        assert_eq!(rules, ["tcp 30080 0.0.0.0/0 ::/0"]);
        bad.ingress = vec![Default::default()];
        assert_eq!(inbound(&[bad.clone()]).len(), 2);
        // Its load balancer keeps its ports, whatever the Service requests now.
        let known = annotated(bad, annotations::OVERRIDE_HEALTH_CHECK, "true");
        let known = annotated(known, ID, "lb-1");
        let has = balancer(json!({
            "id": "lb-1", "type": "REGIONAL_NETWORK", "network": "EXTERNAL", "health_check": {"port": 10256},
            "forwarding_rules": [{"entry_protocol": "udp", "entry_port": 53}],
        }));
        let rules = "tcp 10256 lb-1, tcp 30081 lb-1, tcp 81 0.0.0.0/0 ::/0, udp 53 0.0.0.0/0 ::/0";
        assert_eq!(show(&firewall(&[known], &has)).join(", "), rules);
    }

    #[test]
    fn equivalent_rules_are_equal() {
        let desired = firewall(&[node_port("a"), service("web", &[80])], &Balancers::new());
        let outbound = desired["outbound_rules"].as_array().unwrap();
        let reversed: Vec<_> = outbound.iter().rev().collect();
        let first = &desired["inbound_rules"].as_array().unwrap()[..1];
        for (field, value, is_same) in [
            ("", json!(null), true),
            ("/outbound_rules", json!(reversed), true),
            ("/outbound_rules/0/ports", json!(""), true),
            ("/outbound_rules/0/destinations/droplet_ids", json!([1]), true),
            ("/tags", json!(["worker", "k8s"]), true),
            ("/tags", json!(["worker"]), false),
            ("/name", json!("other"), false),
            ("/inbound_rules/0/ports", json!("1"), false),
            ("/inbound_rules/0/sources/addresses", json!(["10.0.0.0/8"]), false),
            ("/inbound_rules", json!(first), false),
        ] {
            let mut observed = desired.clone();
            if let Some((object, name)) = field.rsplit_once('/') {
                observed.pointer_mut(object).unwrap()[name] = value;
            }
            let observed = Firewall::planned(&observed);
            assert_eq!(same(&observed, &desired), is_same, "{field}");
        }
    }

    async fn start() -> (DigitalOcean, Controller) {
        let sim = DigitalOcean::start(Config::default()).await.unwrap();
        let token = Config::default().token;
        let context = desired::tests::context(&[
            ("DO_OVERRIDE_URL", sim.url()),
            ("DO_ACCESS_TOKEN", token.as_str()),
            ("REGION", "nyc3"),
            FIREWALL[0],
            FIREWALL[1],
        ]);
        let cloud = Arc::new(crate::connect(context).await.unwrap());
        let api = cloud.nodes.api.clone();
        let controller = Controller::new(cloud, api, &ControllerMetrics::default());
        (sim, controller)
    }

    /// The operations since the calls were cleared.
    fn ops(sim: &DigitalOcean) -> Vec<&'static str> {
        sim.calls().into_iter().map(|call| call.op).collect()
    }

    #[tokio::test(start_paused = true)]
    async fn a_change_of_services_ends_the_wait_after_failures() {
        let (sender, mut changes) = tokio::sync::mpsc::unbounded_channel();
        let failed = |now: Instant| Schedule {
            at: now + RESYNC,
            earliest: now + BACKOFF.first,
        };
        let began = Instant::now();
        sender.send(()).unwrap();
        assert_eq!(failed(began).wait(&mut changes).await, Some(true));
        assert!(began.elapsed() < RESYNC, "{:?}", began.elapsed());
        assert_eq!(failed(began).wait(&mut changes).await, Some(false));
        assert!(began.elapsed() >= RESYNC, "{:?}", began.elapsed());
        drop(sender);
        assert_eq!(failed(Instant::now()).wait(&mut changes).await, None);
    }

    #[tokio::test]
    async fn a_write_is_finished_when_the_process_ends() {
        let (sim, mut controller) = start().await;
        let time = Duration::from_millis(100);
        sim.add_fault(Fault::on("firewalls_create", Action::Delay { time }));
        let (_sender, changes) = tokio::sync::mpsc::unbounded_channel::<()>();
        let is_sent = async {
            while sim.faults()[0].fired == 0 {
                tokio::task::yield_now().await;
            }
        };
        controller.run(changes, Vec::new, is_sent).await;
        assert!(controller.observed.is_some());
    }

    #[tokio::test]
    async fn the_firewall_is_read_again_only_if_it_may_differ() {
        let (sim, mut controller) = start().await;
        let one = annotated(node_port("a"), annotations::FIREWALL_MANAGED, "fasle");
        let two = annotated(service("web", &[80]), annotations::FIREWALL_MANAGED, "fasle");
        let mut step = async |services: &[&ServiceView]| {
            sim.clear_calls();
            controller.step(services, true).await;
            (controller.failures, ops(&sim))
        };
        let (get, list) = ("firewalls_get", "firewalls_list");
        let (create, update) = ("firewalls_create", "firewalls_update");
        assert_eq!(step(&[&one]).await, (0, vec![list, create]));
        sim.add_fault(Fault::on(update, Action::status(403)).once());
        assert_eq!(step(&[&one, &two]).await, (1, vec![update]));
        assert_eq!(step(&[&one, &two]).await, (0, vec![update]), "refused");
        let id = sim.documents("firewalls")[0]["id"].as_str().unwrap().to_owned();
        sim.remove("firewalls", &id).unwrap();
        sim.add_fault(Fault::on(create, Action::status(500)).once());
        assert_eq!(step(&[&one]).await, (1, vec![update, create]));
        assert_eq!(step(&[&one]).await, (0, vec![get, list, create]), "unknown");
        let reported: Vec<_> = controller.reported.iter().map(|(id, _)| &*id.name).collect();
        assert_eq!(reported, ["a"], "a load balancer's values are reported as Events");
    }

    #[tokio::test]
    async fn load_balancers_are_listed_once_and_again_after_a_refusal() {
        let (sim, mut controller) = start().await;
        let id = create_balancer(&sim, "auidweb");
        let web = annotated(service("web", &[80]), annotations::ID, &id);
        let (asked, other) = (annotated(web, annotations::TYPE, "REGIONAL"), node_port("a"));
        let state = || {
            let listings = ops(&sim).iter().filter(|op| **op == "loadBalancers_list").count();
            (listings, show(&sim.documents("firewalls")[0]))
        };
        for _ in 0..2 {
            controller.step(&[&asked], true).await;
        }
        let rules = [format!("tcp 10256 {id}"), "tcp 80 0.0.0.0/0 ::/0".to_owned()];
        assert_eq!(state(), (1, rules.into()));
        // The rule of a load balancer that was deleted is refused, and is removed then.
        sim.remove("load_balancers", &id).unwrap();
        sim.add_fault(Fault::on("firewalls_update", Action::status(422)).once());
        for failures in [1, 0] {
            controller.step(&[&asked, &other], true).await;
            assert_eq!(controller.failures, failures);
        }
        assert_eq!(state(), (2, vec!["tcp 30080 0.0.0.0/0 ::/0".to_owned()]));
    }

    #[tokio::test]
    async fn a_change_of_services_is_not_background_work() {
        use ccm_core::client::{Operation as _, rest::RestApi as _};
        let (sim, mut controller) = start().await;
        let gate = controller.api.gate().clone();
        gate.observe_remaining(Op::FirewallList.bucket(), 400, 5000, None);
        let refused = controller.step(&[], false).await;
        assert!(refused.earliest < refused.at);
        assert_eq!((controller.failures, sim.documents("firewalls").len()), (1, 0));
        controller.step(&[], true).await;
        assert_eq!((controller.failures, sim.documents("firewalls").len()), (0, 1));
    }

    #[tokio::test]
    async fn the_firewall_is_created_changed_and_repaired() {
        let (sim, mut controller) = start().await;
        let droplet = sim.create_droplet("by-hand");
        let (one, two) = (vec![node_port("a")], vec![node_port("a"), service("web", &[80])]);
        let id = || sim.documents("firewalls")[0]["id"].as_str().unwrap().to_owned();
        let nothing = || {};
        let edit = || {
            let fields = json!({"inbound_rules": [], "droplet_ids": [droplet.parse::<u64>().unwrap()]});
            let fields = fields.as_object().cloned().unwrap();
            sim.change("firewalls", &id(), fields).unwrap();
        };
        let delete = || sim.remove("firewalls", &id()).unwrap();
        let (get, list) = ("firewalls_get", "firewalls_list");
        let (create, update) = ("firewalls_create", "firewalls_update");
        type Step<'a> = (&'a str, &'a dyn Fn(), &'a [ServiceView], bool, &'a [&'a str]);
        let steps: [Step<'_>; 7] = [
            ("not created yet", &nothing, &one, true, &[list, create]),
            ("nothing changed", &nothing, &one, true, &[get]),
            ("no resync", &nothing, &one, false, &[]),
            ("a Service is created", &nothing, &two, false, &[update]),
            ("edited by hand", &edit, &two, true, &[get, update]),
            ("deleted, changed", &delete, &one, false, &[update, create]),
            ("deleted, read", &delete, &one, true, &[get, list, create]),
        ];
        for (step, before, services, is_resync, expected) in steps {
            before();
            sim.clear_calls();
            let services: Vec<_> = services.iter().collect();
            let resync = is_resync.then_some(Priority::Background);
            controller.reconcile(&services, resync).await.unwrap();
            assert_eq!(ops(&sim), expected, "{step}");
            let firewalls = sim.documents("firewalls");
            let observed: Firewall = serde_json::from_value(firewalls[0].clone()).unwrap();
            let desired = desired_firewall(&services, &settings(&FIREWALL), &Balancers::new());
            assert!(firewalls.len() == 1 && same(&observed, &desired), "{step}");
            if step == "edited by hand" {
                let kept = firewalls[0]["droplet_ids"][0].to_string();
                assert_eq!(kept, droplet, "droplets of others are kept");
            }
        }
        for op in [get, update, list] {
            let fault = sim.add_fault(Fault::on(op, Action::status(403)));
            if op == list {
                delete();
            }
            let services: Vec<_> = two.iter().collect();
            let resync = Some(Priority::Background);
            controller.reconcile(&services, resync).await.unwrap_err();
            sim.remove_fault(fault);
        }
    }
}
