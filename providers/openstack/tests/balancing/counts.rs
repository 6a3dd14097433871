//! The Go cloud controller's metrics of work on load balancers.

use std::collections::BTreeMap;

use ccm_sim::{Action, Fault};
use prometheus_client::{encoding::text::encode, registry::Registry};

use crate::stage::{Stage, service};

const OPERATIONS: [&str; 3] = [
    "loadbalancer_ensure",
    "loadbalancer_update",
    "loadbalancer_delete",
];

/// The counts since the last check, by kind and operation, without zeros.
#[derive(Default)]
struct Counted(BTreeMap<String, f64>);

impl Counted {
    fn since(&mut self, registry: &Registry) -> BTreeMap<String, f64> {
        let mut text = String::new();
        encode(&mut text, registry).unwrap();
        let now: BTreeMap<_, _> = text.lines().filter_map(sample).collect();
        let grown = now.iter().filter_map(|(name, value)| {
            let more = value - self.0.get(name).copied().unwrap_or_default();
            (more > 0.0).then(|| (name.clone(), more))
        });
        let grown = grown.collect();
        self.0 = now;
        grown
    }
}

/// `total loadbalancer_ensure` and the like, with its value.
fn sample(line: &str) -> Option<(String, f64)> {
    let rest = line.strip_prefix("cloudprovider_openstack_reconcile_")?;
    let (kind, rest) = rest.split_once("{operation=\"")?;
    let (operation, rest) = rest.split_once('"')?;
    assert!(OPERATIONS.contains(&operation), "{line}");
    if kind.ends_with("_bucket") {
        return None;
    }
    let value = rest.rsplit(' ').next()?.parse().unwrap();
    Some((format!("{kind} {operation}"), value))
}

fn count(counted: &BTreeMap<String, f64>, kind: &str) -> Vec<(&'static str, f64)> {
    let value = |operation: &&str| counted.get(&format!("{kind} {operation}")).copied();
    OPERATIONS
        .into_iter()
        .filter_map(|operation| Some((operation, value(&operation)?)))
        .collect()
}

#[tokio::test]
async fn work_is_counted_under_the_names_of_the_go_cloud_controller() {
    let mut stage = Stage::new(2, "manage-security-groups = true").await;
    let registry = stage.watched().await;
    let mut counted = Counted::default();
    stage.services.push(service("web", &[80, 443]));
    stage.pass_once().await;
    let parked = counted.since(&registry);
    assert!(parked.is_empty(), "it is not over: {parked:?}");
    stage.settle().await;
    let created = counted.since(&registry);
    let [(operation, times)] = count(&created, "total")[..] else {
        panic!("{created:?}")
    };
    assert_eq!(operation, "loadbalancer_ensure");
    assert_eq!(count(&created, "duration_seconds_count"), [(operation, times)]);
    // From the first pass to the last one, including Octavia's time.
    let [(_, seconds)] = count(&created, "duration_seconds_sum")[..] else {
        panic!("{created:?}")
    };
    assert!(seconds > 1.0, "{created:?}");
    assert_eq!(count(&created, "errors_total"), []);

    stage.join();
    stage.settle().await;
    let joined = counted.since(&registry);
    let updates: Vec<_> = count(&joined, "total");
    assert!(updates.contains(&("loadbalancer_update", 1.0)), "{joined:?}");
    assert_eq!(count(&joined, "errors_total"), []);

    stage.service("web").deleting = true;
    stage.settle().await;
    assert!(stage.services.is_empty(), "{:?}", stage.complaints());
    let deleted = counted.since(&registry);
    assert_eq!(count(&deleted, "total"), [("loadbalancer_delete", 1.0)]);
    assert_eq!(count(&deleted, "errors_total"), []);
}

#[tokio::test]
async fn a_load_balancer_that_waits_for_its_deletion_is_not_counted() {
    let mut stage = Stage::new(1, "manage-security-groups = true").await;
    let registry = stage.watched().await;
    let mut counted = Counted::default();
    stage.services.push(service("web", &[80]));
    stage.settle().await;
    counted.since(&registry);
    stage.service("web").deleting = true;
    // The load balancer is deleted first, but its part ends last.
    stage.run_through().await;
    let deleted = counted.since(&registry);
    assert_eq!(count(&deleted, "total"), [("loadbalancer_delete", 1.0)]);
}

#[tokio::test]
async fn failures_and_refusals_are_counted() {
    let mut stage = Stage::new(1, "").await;
    let registry = stage.watched().await;
    let mut counted = Counted::default();
    let fault = Fault::on("loadbalancer_create", Action::status(400));
    stage.sim.add_fault(fault);
    stage.services.push(service("web", &[80]));
    stage.pass_once().await;
    let failed = counted.since(&registry);
    let once = [("loadbalancer_ensure", 1.0)];
    assert_eq!((count(&failed, "errors_total"), count(&failed, "total")), (once.to_vec(), once.to_vec()));
    stage.sim.clear_faults();
    stage.settle_well().await;
    counted.since(&registry);
    // A Service with an invalid annotation.
    let limit = "loadbalancer.openstack.org/connection-limit";
    crate::stage::annotate(stage.service("web"), limit, Some("-7"));
    stage.pass_once().await;
    let held = counted.since(&registry);
    assert_eq!(count(&held, "errors_total"), once);
    // A failed deletion counts as a deletion.
    stage.sim.add_fault(Fault::on("loadbalancer_delete", Action::status(400)));
    stage.service("web").deleting = true;
    stage.pass_once().await;
    let failed = counted.since(&registry);
    assert_eq!(count(&failed, "errors_total"), [("loadbalancer_delete", 1.0)]);
}
