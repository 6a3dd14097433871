//! Names of objects.

use crate::stage::{ID, Stage, annotate, service};

#[tokio::test]
async fn a_guests_things_bear_the_guests_name() {
    let mut stage = Stage::new(2, "create-monitor=true").await;
    stage.services.push(service("owner", &[80]));
    stage.settle().await;
    let id = stage.balancers()[0].loadbalancer.id.clone();
    let mut guest = service("guest", &[8081]);
    annotate(&mut guest, ID, Some(&id));
    stage.services.push(guest);
    stage.settle().await;
    let balancers = stage.balancers();
    assert_eq!(balancers.len(), 1, "{balancers:?}");
    let balancer = &balancers[0];
    for (kind, objects) in [
        ("listener", &balancer.listeners),
        ("pool", &balancer.pools),
        ("monitor", &balancer.healthmonitors),
    ] {
        let mut names: Vec<&str> = objects.iter().map(|object| object.name.as_str()).collect();
        names.sort_unstable();
        let wanted = ["guest", "owner"].map(|name| format!("{kind}_0_kube_service_kubernetes_shop_{name}"));
        assert_eq!(names, wanted);
    }
}
