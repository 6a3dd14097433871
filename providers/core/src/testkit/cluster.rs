//! A cluster without an API server: Services, nodes, and the work of the service controller.

use std::{collections::VecDeque, fmt, sync::Arc, time::Duration};

use futures_util::future::BoxFuture;
use tokio::time::{self, Instant};

use crate::{
    Cloud, Error, ErrorKind, Freshness, Labels, Priority, Result,
    load_balancer::{
        Blocked, ClusterSnapshot, ClusterTag, ClusterView, Discovery, FormerLoadBalancer, LoadBalancers,
        MemberState, NodeSet, OwnershipTag, PartKey, PartReport, PartState, Protocol, ReadOptions, Request,
        ServiceId, ServiceNode, ServicePort, ServiceType, ServiceView,
    },
};

/// Waits until an instant: sleeps where the cloud has its own clock, or advances a clock that the test owns.
pub type WaitUntil = fn(Instant) -> BoxFuture<'static, ()>;

/// Advances the clock of this runtime to the instant. The runtime must have one thread, and a simulator in it has the same clock.
pub fn advance_to(until: Instant) -> BoxFuture<'static, ()> {
    Box::pin(async move {
        time::pause();
        time::advance(until.saturating_duration_since(Instant::now())).await;
        time::resume();
    })
}

/// The most rounds of discovery and passes over all parts. A correct provider needs fewer than ten.
const ROUNDS: usize = 60;
/// The most waits of one pass for the cloud. A load balancer with ten ports needs fewer than a hundred.
const WAITS: usize = 200;
/// Failed passes after which further steps no longer count as progress.
const FAILURES: usize = 10;
/// Attempts of [`TestCluster::settle_despite_failures`].
const ATTEMPTS: usize = 5;

/// A cluster and one process of the provider.
pub struct TestCluster {
    /// The provider. A test that replaces it starts a new process.
    pub cloud: Arc<dyn Cloud>,
    /// All Services. [`TestCluster::settle`] writes status, annotations and finalizers into them.
    pub services: Vec<ServiceView>,
    /// All nodes.
    pub nodes: Vec<ServiceNode>,
    /// `--cluster-name`.
    pub cluster: String,
    /// The cluster's ownership tag.
    pub ownership_tag: OwnershipTag,
    /// How old answers may be, and their priority.
    pub read: ReadOptions,
    /// The reports of the last round of passes.
    pub reports: Vec<PartReport>,
    wait_until: WaitUntil,
}

impl TestCluster {
    /// A cluster named `kubernetes` without Services and nodes. Answers of the cloud may be an hour old.
    pub fn new(cloud: Arc<dyn Cloud>, wait_until: WaitUntil) -> Self {
        Self {
            cloud,
            services: Vec::new(),
            nodes: Vec::new(),
            cluster: "kubernetes".to_owned(),
            ownership_tag: OwnershipTag::Known(ClusterTag::of("kube-system-uid")),
            read: ReadOptions {
                freshness: Freshness::AtMost(Duration::from_secs(3600)),
                priority: Priority::User,
            },
            reports: Vec::new(),
            wait_until,
        }
    }

    /// The Service `shop/<name>`, if it exists.
    pub fn find(&self, name: &str) -> Option<&ServiceView> {
        self.services.iter().find(|service| &*service.id.name == name)
    }

    /// The Service `shop/<name>`.
    ///
    /// # Panics
    ///
    /// It does not exist.
    pub fn service(&mut self, name: &str) -> &mut ServiceView {
        let mut services = self.services.iter_mut();
        services.find(|service| &*service.id.name == name).expect(name)
    }

    /// A request about the cluster as it is now.
    #[must_use]
    pub fn request(&self) -> Request {
        let cluster = ClusterView {
            name: self.cluster.as_str().into(),
            ownership_tag: self.ownership_tag.clone(),
            nodes: self.nodes.iter().cloned().collect::<NodeSet>(),
        };
        let services = self.services.iter().cloned().map(Arc::new).collect();
        Request::new(Arc::new(ClusterSnapshot::new(services, cluster)), self.read)
    }

    /// The provider's load balancers.
    ///
    /// # Errors
    /// If the provider has none.
    pub fn load_balancers(&self) -> Result<&dyn LoadBalancers> {
        let missing = || Error::new(ErrorKind::Unsupported, "the provider has no load balancers");
        self.cloud.load_balancers().ok_or_else(missing)
    }

    /// The parts of all Services.
    ///
    /// # Errors
    /// If the cloud's listings cannot be read.
    pub async fn discover(&self) -> Result<Discovery> {
        self.load_balancers()?.discover(&self.request()).await
    }

    /// Discovers the former load balancers of Services of other controllers. Services whose former load balancers are proven get
    /// their cleanup views. Returns the load balancers.
    ///
    /// # Errors
    /// If the cloud's listings cannot be read.
    pub async fn clean_up_former(&mut self) -> Result<Vec<FormerLoadBalancer>> {
        let discovery = self.discover().await?;
        let cloud = Arc::clone(&self.cloud);
        let mut all = Vec::new();
        for service in &mut self.services {
            let mut found = discovery.services.iter();
            let parts = found.find(|parts| parts.service == service.id);
            let Some(former) = parts.and_then(|parts| parts.former.clone()) else {
                continue;
            };
            if let (Some(balancers), FormerLoadBalancer::Ours(_)) = (cloud.load_balancers(), &former)
                && let Some(view) = balancers.cleanup_view(service, service)
            {
                *service = view;
            }
            all.push(former);
        }
        Ok(all)
    }

    /// Runs one part until it no longer waits for the cloud.
    ///
    /// # Errors
    /// If the provider has no load balancers, or if the part never stops waiting.
    pub async fn run(&self, part: &PartKey, request: &Request) -> Result<PartReport> {
        let balancers = self.load_balancers()?;
        let mut part = part.clone();
        for _ in 0..WAITS {
            let report = balancers.run(&part, request).await;
            let PartState::Parked { until, .. } = report.state else {
                return Ok(report);
            };
            (self.wait_until)(until).await;
            part = report.renamed.unwrap_or(part);
        }
        let text = format!("{part} still waits for the cloud after {WAITS} waits");
        Err(Error::new(ErrorKind::Timeout, text))
    }

    /// Runs every part once, without waiting for the cloud, and writes early annotations into the Services.
    ///
    /// # Errors
    /// If the cloud's listings cannot be read.
    pub async fn pass_once(&mut self) -> Result<()> {
        let request = self.request();
        let discovery = self.discover().await?;
        self.reports.clear();
        for part in &discovery.parts() {
            let report = self.load_balancers()?.run(part, &request).await;
            for member in &report.members {
                let mut services = self.services.iter_mut();
                if let Some(service) = services.find(|service| service.id == member.service) {
                    let early = member.early.annotations.iter();
                    early.for_each(|(key, value)| annotate(service, key, value.as_deref()));
                }
            }
            self.reports.push(report);
        }
        Ok(())
    }

    /// Runs every part, the last one first, and then the parts that the reports name: the order in which the service
    /// controller deletes a Service, whose parts are all due at once.
    ///
    /// # Errors
    /// If the cloud's listings cannot be read.
    pub async fn run_through(&mut self) -> Result<()> {
        let request = self.request();
        let mut due: VecDeque<_> = self.discover().await?.parts().into_iter().rev().collect();
        self.reports.clear();
        while let Some(part) = due.pop_front() {
            let report = self.run(&part, &request).await?;
            due.extend(report.next.iter().cloned());
            self.reports.push(report);
        }
        Ok(())
    }

    /// Runs every part until no pass has changes, and writes the results into the Services.
    ///
    /// # Errors
    /// If the cloud's listings cannot be read, or if every round of passes has changes.
    pub async fn settle(&mut self) -> Result<()> {
        let mut failures = 0;
        for _ in 0..ROUNDS {
            let request = self.request();
            let discovery = self.discover().await?;
            let mut changed = false;
            self.reports.clear();
            for part in &discovery.parts() {
                let report = self.run(part, &request).await?;
                failures += usize::from(matches!(report.state, PartState::Failed(_)));
                // Steps that fail again and again are no progress.
                changed |= (report.pass_steps > 0 && failures < FAILURES)
                    || !report.next.is_empty()
                    || report.renamed.is_some();
                self.reports.push(report);
            }
            if !self.write_results() && !changed {
                return Ok(());
            }
        }
        Err(Error::new(
            ErrorKind::Unexpected,
            format!("every round of passes has changes: {:#?}", self.reports),
        ))
    }

    /// [`TestCluster::settle`], after which there is no problem.
    ///
    /// # Panics
    ///
    /// A problem is reported, or [`TestCluster::settle`] fails.
    pub async fn settle_well(&mut self) {
        self.settle().await.expect("passes without changes at the end");
        self.assert_no_complaints();
    }

    /// [`TestCluster::settle`], repeated while a pass fails.
    ///
    /// # Errors
    /// As [`TestCluster::settle`].
    pub async fn settle_despite_failures(&mut self) -> Result<()> {
        for _ in 0..ATTEMPTS {
            self.settle().await?;
            let failed = |report: &PartReport| matches!(report.state, PartState::Failed(_));
            if !self.reports.iter().any(failed) {
                break;
            }
        }
        Ok(())
    }

    /// Writes annotations, status and finalizers of finished Services. Returns whether anything changed.
    fn write_results(&mut self) -> bool {
        let mut changed = false;
        let mut deleted = Vec::new();
        for member in self.reports.iter().flat_map(|report| &report.members) {
            let found = self.services.iter_mut().find(|service| service.id == member.service);
            let Some(service) = found.filter(|_| member.finished) else {
                continue;
            };
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
                deleted.extend(service.deleting.then(|| service.id.clone()));
            }
            changed |= before != *service;
        }
        self.services.retain(|service| !deleted.contains(&service.id));
        changed
    }

    /// All problems in the last reports: failures, blocked parts and fields, refused Services.
    #[must_use]
    pub fn complaints(&self) -> Vec<String> {
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

    /// Checks that no problem was reported.
    ///
    /// # Panics
    ///
    /// A problem was reported.
    #[track_caller]
    pub fn assert_no_complaints(&self) {
        assert_eq!(self.complaints(), [""; 0]);
    }

    /// Checks that problems were reported, and that they contain these texts.
    ///
    /// # Panics
    ///
    /// No problem was reported, or a text is missing.
    #[track_caller]
    pub fn assert_complaints(&self, parts: &[&str]) {
        let complaints = self.complaints().join("; ");
        assert!(!complaints.is_empty(), "no problem was reported");
        for part in parts {
            assert!(complaints.contains(part), "{part:?} is not in {complaints:?}");
        }
    }

    /// Differences that were blocked in the last round of passes.
    #[must_use]
    pub fn blocked(&self) -> Vec<&Blocked> {
        self.reports.iter().flat_map(|report| &report.blocked).collect()
    }
}

impl fmt::Debug for TestCluster {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TestCluster")
            .field("cluster", &self.cluster)
            .field("services", &self.services)
            .field("reports", &self.reports)
            .finish_non_exhaustive()
    }
}

/// The Service `shop/<name>` of type LoadBalancer with these TCP ports. Node ports are 30000 higher.
#[must_use]
pub fn service(name: &str, ports: &[u16]) -> ServiceView {
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

/// Sets an annotation, or removes it.
pub fn annotate(service: &mut ServiceView, key: &str, value: Option<&str>) {
    let others = service.annotations.iter().filter(|(known, _)| *known != key);
    let all: Labels = others.chain(value.map(|value| (key, value))).collect();
    service.annotations = all;
}

/// Sets annotations that are written as `type=REGIONAL; size-unit=2`. The names of the annotations begin with `prefix`.
///
/// # Panics
///
/// An annotation has no `=`.
pub fn annotate_all(service: &mut ServiceView, prefix: &str, annotations: &str) {
    for annotation in annotations.split("; ").filter(|text| !text.is_empty()) {
        let (name, value) = annotation.split_once('=').expect("name=value");
        annotate(service, &format!("{prefix}{name}"), Some(value));
    }
}
