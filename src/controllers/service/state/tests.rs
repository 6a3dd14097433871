#![allow(clippy::unwrap_used)]

mod discovery;
mod ended;
mod growth;
mod histories;
mod known;
mod labels;
mod nodes;
mod objects;
mod upgrade;

use ccm_core::{
    Error, ErrorKind, Freshness, Retry,
    load_balancer::{
        Blocked, Condition, Discovery, Effect, Effects, FormerLoadBalancer, Ingress, MemberReport,
        MemberState, PartReport, PartState, Policy, ServiceParts, ServicePort, ServiceType, StepDescription,
    },
};
use serde_json::json;

use super::{
    ended::BLOCKED,
    jobs::{BURST, REMEMBERED},
    *,
};

const SHARED: &str = "hosts";
/// A Service with this annotation selects nodes by their labels.
const SELECTS: &str = "test/selects";

fn view(name: &str, change: impl FnOnce(&mut ServiceView)) -> Arc<ServiceView> {
    let mut view = ServiceView {
        id: ServiceId::new("ns", name, format!("uid-{name}")),
        service_type: ServiceType::LoadBalancer,
        finalizers: vec![ServiceView::FINALIZER.into()],
        ports: vec![ServicePort::default()],
        ..ServiceView::default()
    };
    change(&mut view);
    Arc::new(view)
}

fn node(name: &str) -> NodeObject {
    serde_json::from_value(
        json!({"metadata": {"name": name}, "spec": {"providerID": format!("fake://{name}")}}),
    )
    .unwrap()
}

/// The state and a clock.
struct Fixture {
    state: ControllerState,
    now: Instant,
    /// The provider's own finalizers for every Service.
    finalizers: ProviderFinalizers,
}

impl Fixture {
    fn new() -> Self {
        Self {
            state: ControllerState::new(
                "test".into(),
                OwnershipTag::Unknown,
                OrphanConfig {
                    delete: true,
                    ..OrphanConfig::default()
                },
            ),
            now: Instant::now(),
            finalizers: ProviderFinalizers::default(),
        }
    }

    fn tick(&mut self, seconds: u64) {
        self.now += Duration::from_secs(seconds);
    }

    fn change(&mut self, view: &Arc<ServiceView>) -> Vec<Output> {
        self.change_of(view, Claim::Ours)
    }

    fn change_of(&mut self, view: &Arc<ServiceView>, claim: Claim) -> Vec<Output> {
        let name = name(&view.id);
        let now = Some(ServiceInput {
            view: Arc::clone(view),
            claim,
            finalizers: self.finalizers,
        });
        self.state.changed(ClusterChange::Service(name, now), self.now)
    }

    fn delete(&mut self, service: &str) {
        let name = format!("ns/{service}").into();
        self.state.changed(ClusterChange::Service(name, None), self.now);
    }

    fn node(&mut self, name: &str) {
        let node = Some(Arc::new(node(name)));
        self.state.changed(ClusterChange::Node(name.to_owned(), node), self.now);
    }

    /// A node has this value of a label now.
    fn label(&mut self, name: &str, value: &str) {
        let node = json!({
            "metadata": {"name": name, "labels": {"disk": value}},
            "spec": {"providerID": format!("fake://{name}")},
        });
        let node = Some(Arc::new(serde_json::from_value(node).unwrap()));
        self.state.changed(ClusterChange::Node(name.to_owned(), node), self.now);
    }

    /// A discovery, whether one is due or not.
    fn task(&mut self) -> DiscoveryTask {
        let task = self.state.take_discovery(self.now);
        task.unwrap_or_else(|| DiscoveryTask {
            job: Job::now(Cause::Service),
            snapshot: self.state.snapshot(),
            services: None,
        })
    }

    /// A discovery in which every Service has a part of its own and a shared one.
    fn discover(&mut self) -> Vec<String> {
        let Some(task) = self.state.take_discovery(self.now) else {
            return Vec::new();
        };
        let services = task
            .snapshot
            .services
            .iter()
            .map(|view| {
                let parts = vec![PartKey::new(format!("lb/{}", view.id.name)), PartKey::new(SHARED)];
                let wants = view.wants_load_balancer();
                Arc::new(ServiceParts {
                    service: view.id.clone(),
                    claim: Claim::Ours,
                    joins: if wants { parts.clone() } else { Vec::new() },
                    leaves: if wants { Vec::new() } else { parts },
                    selects_by_labels: view.annotations.contains_key(SELECTS),
                    former: None,
                })
            })
            .collect();
        let discover = Discovery {
            services,
            ..Discovery::default()
        };
        let outputs = self.state.discovery_ended(&task, Ok(discover), self.now);
        runs(&outputs)
    }

    fn follow(&mut self) -> Vec<String> {
        let outputs = self.state.take_due(self.now);
        runs(&outputs)
    }

    /// Takes a part up.
    fn take(&mut self, part: &str) -> Option<PartTask> {
        self.state.take_part(&PartKey::new(part), self.now)
    }

    fn conclude(&mut self, task: &PartTask, report: &PartReport) -> (Vec<Output>, NextRun) {
        self.state.part_ended(task, report, self.now)
    }

    /// Runs a part to a good end: everybody in it is served, with this address.
    fn run(&mut self, part: &str, members: &[&str]) -> Vec<Output> {
        let task = self.take(part).unwrap();
        self.conclude(&task, &done(part, members)).0
    }

    /// A Service that is served.
    fn served(&mut self, service: &str) {
        self.change(&view(service, |_| {}));
        self.discover();
        self.run(&format!("lb/{service}"), &[service]);
        let all: Vec<_> = self.state.services.values().map(|entry| entry.view.id.name.to_string()).collect();
        let all: Vec<_> = all.iter().map(String::as_str).collect();
        self.run(SHARED, &all);
        assert!(self.record(service).is_served());
    }

    fn effects(&self, service: &str) -> &Effects {
        &self.record(service).served.as_ref().unwrap().effects
    }

    fn record(&self, service: &str) -> &ServiceEntry {
        &self.state.services[format!("ns/{service}").as_str()]
    }
}

fn report(part: &str, state: PartState) -> PartReport {
    PartReport {
        part: PartKey::new(part),
        renamed: None,
        state,
        steps: Vec::new(),
        pass_steps: 0,
        members: Vec::new(),
        blocked: Vec::new(),
        events: Vec::new(),
        next: Vec::new(),
    }
}

fn done(part: &str, members: &[&str]) -> PartReport {
    let members = members.iter().map(|name| MemberReport {
        service: ServiceId::new("ns", *name, format!("uid-{name}")),
        state: MemberState::Served,
        touched: true,
        effects: Effects {
            ingress: Some(vec![Ingress {
                ip: Some("192.0.2.1".into()),
                ..Ingress::default()
            }]),
            ..Effects::default()
        },
        early: Effects::default(),
        finished: true,
    });
    PartReport {
        members: members.collect(),
        pass_steps: 1,
        ..report(part, PartState::Done)
    }
}

fn runs(outputs: &[Output]) -> Vec<String> {
    let mut runs: Vec<_> = outputs
        .iter()
        .filter_map(|order| match order {
            Output::Run(part, _) | Output::RunUnlessWaiting(part) => Some(part.to_string()),
            _ => None,
        })
        .collect();
    runs.sort();
    runs
}

fn reasons(outputs: &[Output]) -> Vec<&'static str> {
    outputs
        .iter()
        .filter_map(|order| match order {
            Output::Event(event) | Output::ProviderEvent(event) => Some(event.reason),
            _ => None,
        })
        .collect()
}

fn steps(service: Option<&str>) -> Vec<StepDescription> {
    let description = StepDescription::new("balancer_update", Effect::Change, "do something");
    vec![StepDescription {
        service: service.map(|name| ServiceId::new("ns", name, format!("uid-{name}"))),
        ..description
    }]
}

/// A report that fails, with or without a member that is served.
fn failed(part: &str, members: &[&str]) -> PartReport {
    let error = Error::new(ErrorKind::Unavailable, "it is in the state ERROR");
    PartReport {
        state: PartState::Failed(error),
        pass_steps: 0,
        ..done(part, members)
    }
}

fn object(view: Arc<ServiceView>, version: u32, claim: Claim) -> ClaimedService {
    let object = json!({
        "metadata": {"uid": *view.id.uid, "resourceVersion": version.to_string()},
        "spec": {"type": "LoadBalancer"},
    });
    let mut object: ServiceObject = serde_json::from_value(object).unwrap();
    object.view = view;
    ClaimedService {
        object: Arc::new(object),
        claim,
        finalizers: ProviderFinalizers::default(),
    }
}
