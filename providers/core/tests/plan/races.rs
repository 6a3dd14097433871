//! Passes of different Services at the same time, on listings and snapshots of different age.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use ccm_core::{
    load_balancer::{LoadBalancers, PartKey, PartReport, PartState, Request},
    plan::Fact,
};
use tokio::{sync::Notify, time::advance};

use crate::{
    stage::{Answer, WAIT, stage},
    toy::{Balancer, balancer_name, tag},
    toy_cases::{Truth, id, nodes, service, tags, world},
};

fn finished(report: &PartReport, name: &str) -> bool {
    let member = report.members.iter().find(|member| &*member.service.name == name);
    member.is_some_and(|member| member.finished)
}

#[tokio::test(start_paused = true)]
async fn the_new_key_of_a_part_is_known_to_a_pass_with_an_older_listing() {
    let stage = Arc::new(stage(Truth::default(), vec![service(0, &[80], &[])]));
    stage.answer("create balancer", Answer::Wait(WAIT));
    stage.cloud.script.lock().polls = vec![Ok(true)];
    let late = Arc::new(Notify::new());
    stage.cloud.script.lock().slow_directory = Some(Arc::clone(&late));
    let other = Arc::clone(&stage);
    let discovery = tokio::spawn(async move { other.engine.discover(&other.request()).await });
    tokio::task::yield_now().await;

    let created = stage.run("balancer/new:balancer_n_s0").await.renamed.unwrap();
    stage.engine.discover(&stage.request()).await.unwrap();
    late.notify_one();
    let old = discovery.await.unwrap().unwrap();
    assert_eq!(old.services[0].joins, [created, PartKey::new("firewall")]);
    // After a deletion by another client it is recreated: for newer listings its old name has no meaning.
    stage.cloud.memory.edit(|truth| truth.balancers.clear());
    let new = stage.engine.discover(&stage.request()).await.unwrap();
    assert_eq!(new.services[0].joins[0], PartKey::new("balancer/new:balancer_n_s0"));
}

#[tokio::test(start_paused = true)]
async fn the_state_of_a_service_outlives_a_pass_that_began_before_it_was_created() {
    let services = vec![service(0, &[80], &[]), service(1, &[81], &[])];
    let stage = stage(Truth::default(), services);
    let before = Request {
        snapshot: Arc::new(world(vec![service(0, &[80], &[])], nodes([("n0", true)]))),
        ..stage.request()
    };
    let balancer = stage.run("balancer/new:balancer_n_s1").await;
    assert!(matches!(balancer.state, PartState::Done));
    let firewall = stage.engine.run(&PartKey::new("firewall"), &before).await;
    assert!(matches!(firewall.state, PartState::Done));
    let firewall = stage.run("firewall").await;
    assert!(finished(&firewall, "s1"), "{firewall:?}");
}

/// Another client deletes the load balancer of a Service. A pass with an older listing reads it by its id and finds nothing, and a
/// pass with a newer one finds nothing by its name.
#[tokio::test(start_paused = true)]
async fn only_one_of_two_parts_creates_the_load_balancer_that_another_client_deleted() {
    let balancer = Balancer {
        id: Fact::Known(10),
        name: balancer_name(&id(0)),
        tags: [tag(&id(0)), tags().for_create().unwrap().to_string()].into(),
        flavor: "pine".to_owned(),
        address: Fact::Known("192.0.2.1".to_owned()),
        listeners: BTreeMap::new(),
    };
    let truth = Truth {
        balancers: vec![balancer],
        ..Truth::default()
    };
    let stage = Arc::new(stage(truth, vec![service(0, &[80], &[])]));
    let late = Arc::new(Notify::new());
    stage.cloud.script.lock().slow_directory = Some(Arc::clone(&late));
    let other = Arc::clone(&stage);
    let with_older_listing = tokio::spawn(async move { other.run("balancer/#10").await });
    tokio::task::yield_now().await;

    stage.cloud.memory.edit(|truth| truth.balancers.clear());
    let created = stage.run("balancer/new:balancer_n_s0").await;
    assert!(created.renamed.is_some(), "{created:?}");
    late.notify_one();
    let waiting = with_older_listing.await.unwrap();
    assert!(matches!(waiting.state, PartState::Parked { .. }), "{waiting:?}");
    assert_eq!(stage.cloud.memory.truth().balancers.len(), 1);
    advance(Duration::from_secs(1)).await;
    // In the next listing it has another part.
    let next = stage.run("balancer/#10").await;
    assert!(matches!(next.state, PartState::Done) && next.steps.is_empty(), "{next:?}");
    assert_eq!(stage.cloud.memory.truth().balancers.len(), 1);
}
