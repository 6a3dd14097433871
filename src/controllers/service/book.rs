//! A ledger with a clock, for the tests of what it decides.
#![allow(clippy::unwrap_used)]

use std::{sync::Arc, time::Duration};

use ccm_core::{
    controllers::NodeObject,
    load_balancer::{
        Claim, Discovery, Effect, Effects, Ingress, MemberReport, MemberState, OwnershipTag, PartKey,
        PartReport, PartState, ProviderFinalizers, ServiceId, ServiceParts, ServicePort, ServiceType,
        ServiceView, StepDescription,
    },
};
use serde_json::json;
use tokio::time::Instant;

use super::{
    conclude::Next,
    ledger::Ledger,
    records::{Order, Record, Task, name},
};
use crate::config::OrphanConfig;

pub(super) const SHARED: &str = "hosts";

pub(super) fn view(name: &str, change: impl FnOnce(&mut ServiceView)) -> Arc<ServiceView> {
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

/// A ledger and a clock.
pub(super) struct Book {
    pub(super) ledger: Ledger,
    pub(super) now: Instant,
    /// The provider's own finalizers for every Service.
    pub(super) finalizers: ProviderFinalizers,
}

impl Book {
    pub(super) fn new() -> Self {
        Self {
            ledger: Ledger::new(
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

    pub(super) fn tick(&mut self, seconds: u64) {
        self.now += Duration::from_secs(seconds);
    }

    pub(super) fn change(&mut self, view: &Arc<ServiceView>) -> Vec<Order> {
        let name = name(&view.id);
        let now = Some((Arc::clone(view), Claim::Ours, self.finalizers));
        self.ledger.service_changed(&name, now, self.now)
    }

    pub(super) fn delete(&mut self, service: &str) {
        self.ledger
            .service_changed(&format!("ns/{service}").into(), None, self.now);
    }

    pub(super) fn node(&mut self, name: &str) {
        let news = self.ledger.nodes.apply(name, Some(&node(name)), self.now);
        self.ledger.node_changed(news);
    }

    /// A survey in which every Service has a part of its own and a shared one.
    pub(super) fn survey(&mut self) -> Vec<String> {
        let Some(_) = self.ledger.survey_wanted(self.now) else {
            return Vec::new();
        };
        let snapshot = self.ledger.begin_survey();
        let services = snapshot
            .services
            .iter()
            .map(|view| {
                let parts = vec![PartKey::new(format!("lb/{}", view.id.name)), PartKey::new(SHARED)];
                let wants = view.wants_load_balancer();
                ServiceParts {
                    service: view.id.clone(),
                    claim: Claim::Ours,
                    joins: if wants { parts.clone() } else { Vec::new() },
                    leaves: if wants { Vec::new() } else { parts },
                }
            })
            .collect();
        let survey = Discovery {
            services,
            ..Discovery::default()
        };
        let orders = self.ledger.surveyed(survey, &snapshot, self.now);
        runs(&orders)
    }

    pub(super) fn follow(&mut self) -> Vec<String> {
        let orders = self.ledger.follow_nodes(self.now);
        runs(&orders.unwrap_or_default())
    }

    /// Takes a part up.
    pub(super) fn take(&mut self, part: &str) -> Option<Task> {
        self.ledger.take(&PartKey::new(part), self.now)
    }

    pub(super) fn conclude(&mut self, task: &Task, report: &PartReport) -> (Vec<Order>, Next) {
        self.ledger.conclude(task, report, self.now)
    }

    /// Runs a part to a good end: everybody in it is served, with this address.
    pub(super) fn run(&mut self, part: &str, members: &[&str]) -> Vec<Order> {
        let task = self.take(part).unwrap();
        self.conclude(&task, &done(part, members)).0
    }

    /// A Service that is served.
    pub(super) fn served(&mut self, service: &str) {
        self.change(&view(service, |_| {}));
        self.survey();
        self.run(&format!("lb/{service}"), &[service]);
        let all: Vec<_> = self
            .ledger
            .records
            .values()
            .map(|record| record.view.id.name.to_string())
            .collect();
        let all: Vec<_> = all.iter().map(String::as_str).collect();
        self.run(SHARED, &all);
        assert!(self.record(service).is_settled());
    }

    pub(super) fn record(&self, service: &str) -> &Record {
        &self.ledger.records[format!("ns/{service}").as_str()]
    }
}

pub(super) fn report(part: &str, state: PartState) -> PartReport {
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

pub(super) fn done(part: &str, members: &[&str]) -> PartReport {
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
        finished: true,
    });
    PartReport {
        members: members.collect(),
        pass_steps: 1,
        ..report(part, PartState::Done)
    }
}

pub(super) fn runs(orders: &[Order]) -> Vec<String> {
    let mut runs: Vec<_> = orders
        .iter()
        .filter_map(|order| match order {
            Order::Run(part) | Order::RunUnlessWaiting(part) => Some(part.to_string()),
            _ => None,
        })
        .collect();
    runs.sort();
    runs
}

pub(super) fn reasons(orders: &[Order]) -> Vec<&'static str> {
    orders
        .iter()
        .filter_map(|order| match order {
            Order::Tell(telling) => Some(telling.reason),
            _ => None,
        })
        .collect()
}

pub(super) fn steps(service: Option<&str>) -> Vec<StepDescription> {
    let description = StepDescription::new("balancer_update", Effect::Change, "do something");
    vec![StepDescription {
        service: service.map(|name| ServiceId::new("ns", name, format!("uid-{name}"))),
        ..description
    }]
}
