//! A cluster on the simulated cloud, and what the service controller does with it.

use std::{
    collections::{BTreeMap, VecDeque},
    sync::Arc,
    time::Duration,
};

use ccm_core::{
    AddressType, Cloud, Freshness, Labels, NodeAddress, NodeView, Priority,
    client::ClientMetrics,
    load_balancer::{
        ClusterSnapshot, ClusterTag, ClusterView, MemberState, NodeSet, OwnershipTag, PartKey, PartReport,
        PartState, Protocol, ReadOptions, Request, ServiceId, ServiceNode, ServicePort, ServiceType,
        ServiceView,
    },
};
use ccm_sim::openstack::{AppCredentialSpec, BalancerState, Config, OpenStack, ServerSpec, UserSpec};
use prometheus_client::registry::Registry;
use tokio::time::Instant;

use crate::cloud::{build, context, provider};

pub(crate) const ID: &str = "loadbalancer.openstack.org/load-balancer-id";
pub(crate) const ADDRESS: &str = "loadbalancer.openstack.org/load-balancer-address";
pub(crate) const INTERNAL: &str = "service.beta.kubernetes.io/openstack-internal-load-balancer";
pub(crate) const KEEP: &str = "loadbalancer.openstack.org/keep-floatingip";

pub(crate) struct Stage {
    pub(crate) sim: OpenStack,
    pub(crate) cloud: Arc<dyn Cloud>,
    pub(crate) services: Vec<ServiceView>,
    pub(crate) nodes: Vec<ServiceNode>,
    pub(crate) cluster: String,
    /// Whether the cluster knows its own tag.
    pub(crate) ownership_tag: OwnershipTag,
    conf: String,
    /// How old answers may be, and who waits.
    pub(crate) read: ReadOptions,
    /// The last reports of the last time.
    pub(crate) reports: Vec<PartReport>,
}

pub(crate) fn service(name: &str, ports: &[u16]) -> ServiceView {
    ServiceView {
        id: ServiceId::new("shop", name, format!("uid-{name}")),
        finalizers: vec![ServiceView::FINALIZER.into()],
        service_type: ServiceType::LoadBalancer,
        allocates_node_ports: true,
        ports: ports
            .iter()
            .map(|port| ServicePort {
                protocol: Protocol::Tcp,
                port: *port,
                node_port: 30000 + *port,
                ..ServicePort::default()
            })
            .collect(),
        ..ServiceView::default()
    }
}

pub(crate) fn annotate(service: &mut ServiceView, key: &str, value: Option<&str>) {
    let mut all: BTreeMap<String, String> = service
        .annotations
        .iter()
        .map(|(key, value)| (key.to_owned(), value.to_owned()))
        .collect();
    match value {
        Some(value) => drop(all.insert(key.to_owned(), value.to_owned())),
        None => drop(all.remove(key)),
    }
    service.annotations = all
        .iter()
        .map(|(k, v)| (k.as_str(), v.as_str()))
        .collect::<Labels>();
}

/// Security groups and health monitors, beside the load balancers.
pub(crate) const MANAGED: &str = "manage-security-groups = true\ncreate-monitor = true";

impl Stage {
    /// Two nodes, and the Service `web` with all that belongs to it.
    pub(crate) async fn served() -> Self {
        let mut stage = Self::new(2, MANAGED).await;
        stage.services.push(service("web", &[80, 443]));
        stage.settle().await;
        assert_eq!(stage.complaints(), [""; 0]);
        stage
    }

    pub(crate) async fn new(nodes: usize, more: &str) -> Self {
        let sim = OpenStack::start(Config::default()).await.unwrap();
        let conf = format!("{}\n[LoadBalancer]\n{more}\n", sim.cloud_conf());
        let cloud = build(&conf).await.unwrap();
        let mut stage = Self {
            sim,
            cloud,
            services: Vec::new(),
            nodes: Vec::new(),
            cluster: "kubernetes".to_owned(),
            ownership_tag: OwnershipTag::Known(ClusterTag::of("kube-system-uid")),
            conf,
            read: ReadOptions {
                freshness: Freshness::AtMost(Duration::from_secs(3600)),
                priority: Priority::User,
            },
            reports: Vec::new(),
        };
        for _ in 0..nodes {
            stage.join();
        }
        stage.sim.clear_calls();
        stage
    }

    /// One more node.
    pub(crate) fn join(&mut self) {
        let name = format!("node-{}", self.nodes.len());
        let id = self.sim.create_server(&ServerSpec::named(&name)).unwrap();
        let port = self.sim.server_ports(&id).remove(0);
        let address = self.sim.port_addresses(&port)[0];
        self.nodes.push(ServiceNode {
            view: Arc::new(NodeView {
                name: name.clone(),
                uid: format!("uid-of-{name}"),
                provider_id: Some(format!("openstack:///{id}")),
                ..NodeView::default()
            }),
            addresses: [NodeAddress::new(AddressType::InternalIP, address.to_string())].into(),
            eligible: true,
            ready: true,
        });
    }

    /// The section of load balancers becomes this, for the next process.
    pub(crate) fn configure(&mut self, more: &str) {
        let before = self.conf.split_once("[LoadBalancer]").unwrap().0;
        self.conf = format!("{before}[LoadBalancer]\n{more}\n");
    }

    /// The credentials become those of an administrator, for the next process.
    pub(crate) fn become_admin(&mut self) {
        let name = "admin-of-clouds".to_owned();
        let user = UserSpec {
            name: name.clone(),
            admin: true,
            ..UserSpec::default()
        };
        self.sim.create_user(&user).unwrap();
        let credential = AppCredentialSpec {
            name: name.clone(),
            user: Some(name),
            ..AppCredentialSpec::default()
        };
        let credential = self.sim.create_app_credential(&credential).unwrap();
        let sections = self.conf.split_once("[LoadBalancer]").unwrap().1;
        self.conf = format!(
            "{}\n[LoadBalancer]{sections}",
            self.sim.cloud_conf_for(&credential)
        );
    }

    /// A new process.
    pub(crate) async fn restart(&mut self) {
        self.cloud = build(&self.conf).await.unwrap();
    }

    /// A new process whose metrics are in this registry.
    pub(crate) async fn watched(&mut self) -> Registry {
        let mut registry = Registry::default();
        let (_directory, mut context) = context(&self.conf);
        context.metrics = ClientMetrics::register(&mut registry);
        self.cloud = (provider().build)(context).await.unwrap();
        registry
    }

    /// A new process with other credentials.
    pub(crate) async fn restart_as(&mut self, credentials: &str) {
        let (_, settings) = self.conf.split_once("[LoadBalancer]").unwrap();
        self.cloud = build(&format!("{credentials}\n[LoadBalancer]{settings}"))
            .await
            .unwrap();
    }

    /// Runs a part until it does not wait for the cloud any more.
    pub(crate) async fn run(&self, part: &PartKey, request: &Request) -> PartReport {
        let balancers = self.cloud.load_balancers().unwrap();
        let mut part = part.clone();
        loop {
            let report = balancers.run(&part, request).await;
            let PartState::Parked { until, .. } = report.state else {
                return report;
            };
            wait_until(until).await;
            part = report.renamed.unwrap_or(part);
        }
    }

    pub(crate) fn conf(&self) -> &str {
        &self.conf
    }

    pub(crate) fn request(&self) -> Request {
        let world = ClusterSnapshot {
            services: self.services.iter().cloned().map(Arc::new).collect(),
            cluster: ClusterView {
                name: self.cluster.as_str().into(),
                ownership_tag: self.ownership_tag.clone(),
                nodes: self.nodes.iter().cloned().collect::<NodeSet>(),
            },
        };
        Request::new(Arc::new(world), self.read)
    }

    /// Why it can not be found out which parts there are.
    pub(crate) async fn survey_error(&self) -> String {
        let balancers = self.cloud.load_balancers().unwrap();
        balancers.discover(&self.request()).await.unwrap_err().report()
    }

    /// Runs every part once, whatever comes of it.
    pub(crate) async fn pass_once(&mut self) {
        let request = self.request();
        let balancers = self.cloud.load_balancers().unwrap();
        let survey = balancers.discover(&request).await.unwrap();
        self.reports.clear();
        for part in &survey.parts {
            self.reports.push(balancers.run(part, &request).await);
        }
    }

    /// Runs every part, the last one first, and then what they say comes next: as the controller does, for which all
    /// parts of a Service that goes are due at once.
    pub(crate) async fn run_through(&mut self) {
        let request = self.request();
        let balancers = self.cloud.load_balancers().unwrap();
        let survey = balancers.discover(&request).await.unwrap();
        let mut due: VecDeque<_> = survey.parts.into_iter().rev().collect();
        self.reports.clear();
        while let Some(part) = due.pop_front() {
            let report = self.run(&part, &request).await;
            due.extend(report.next.iter().cloned());
            self.reports.push(report);
        }
    }

    /// Runs every part until nothing more happens, and writes what is said into the Services.
    pub(crate) async fn settle(&mut self) {
        let mut failures = 0;
        for _ in 0..60 {
            let request = self.request();
            let balancers = self.cloud.load_balancers().unwrap();
            let survey = balancers.discover(&request).await.unwrap();
            let mut moved = false;
            self.reports.clear();
            for part in &survey.parts {
                let report = self.run(part, &request).await;
                failures += u32::from(matches!(report.state, PartState::Failed(_)));
                // What fails again and again goes nowhere.
                moved |= (report.pass_steps > 0 && failures < 10)
                    || !report.next.is_empty()
                    || report.renamed.is_some();
                self.reports.push(report);
            }
            let mut gone = Vec::new();
            for member in self.reports.iter().flat_map(|report| &report.members) {
                let Some(service) = self.services.iter_mut().find(|one| one.id == member.service) else {
                    continue;
                };
                if !member.finished {
                    continue;
                }
                let before = service.clone();
                for (key, value) in &member.effects.annotations {
                    annotate(service, key, value.as_deref());
                }
                if let Some(ingress) = &member.effects.ingress {
                    service.ingress.clone_from(ingress);
                }
                if !service.wants_load_balancer() {
                    service.ingress.clear();
                    service.finalizers.clear();
                    gone.extend(service.deleting.then(|| service.id.clone()));
                }
                moved |= before != *service;
            }
            self.services.retain(|service| !gone.contains(&service.id));
            if !moved {
                return;
            }
        }
        panic!("it does not come to rest: {:#?}", self.reports);
    }

    /// The same, tried again for as long as something fails.
    pub(crate) async fn settle_in_trouble(&mut self) {
        for _ in 0..5 {
            self.settle().await;
            let failed = |report: &PartReport| matches!(report.state, PartState::Failed(_));
            if !self.reports.iter().any(failed) {
                return;
            }
        }
    }

    pub(crate) fn service(&mut self, name: &str) -> &mut ServiceView {
        let found = self.services.iter_mut().find(|service| &*service.id.name == name);
        found.unwrap()
    }

    pub(crate) fn address(&self, name: &str) -> String {
        let found = self.services.iter().find(|service| &*service.id.name == name);
        let ingress = found.unwrap().ingress.first();
        ingress
            .and_then(|ingress| ingress.ip.as_deref())
            .unwrap_or_default()
            .to_owned()
    }

    /// How the last passes ended for a Service, where not well.
    pub(crate) fn complaints(&self) -> Vec<String> {
        let mut all = Vec::new();
        for report in &self.reports {
            match &report.state {
                PartState::Failed(error) => all.push(error.report()),
                PartState::Blocked(why) => all.push(why.clone()),
                _ => {}
            }
            all.extend(report.blocked.iter().map(ToString::to_string));
            all.extend(report.members.iter().filter_map(|member| match &member.state {
                MemberState::Refused(error) => Some(error.report()),
                _ => None,
            }));
        }
        all
    }

    /// Writes and reads since the last time, without authentication.
    pub(crate) fn cost(&self) -> (usize, usize) {
        let calls = self.sim.calls();
        let calls = calls.iter().filter(|call| call.service != "identity");
        let (reads, writes): (Vec<_>, Vec<_>) = calls.partition(|call| call.method == "GET");
        (writes.len(), reads.len())
    }

    pub(crate) fn balancers(&self) -> Vec<BalancerState> {
        self.sim.load_balancers()
    }
}

/// Time passes until then, for the simulated cloud, too.
pub(crate) async fn wait_until(until: Instant) {
    pass(until.saturating_duration_since(Instant::now())).await;
}

/// So much time passes.
pub(crate) async fn pass(time: Duration) {
    tokio::time::pause();
    tokio::time::advance(time).await;
    tokio::time::resume();
}
