//! Passes of different Services at the same time, on listings and worlds of different age.

use std::sync::Arc;

use ccm_core::load_balancer::{LoadBalancers, PartKey, PartReport, PartState, Request};
use tokio::sync::Notify;

use crate::{
    stage::{Answer, WAIT, stage},
    toy_cases::{Truth, nodes, service, world},
};

fn finished(report: &PartReport, name: &str) -> bool {
    let member = report.members.iter().find(|member| &*member.service.name == name);
    member.is_some_and(|member| member.finished)
}

#[tokio::test(start_paused = true)]
async fn a_part_that_has_its_id_is_known_to_a_pass_with_an_older_listing() {
    let stage = Arc::new(stage(Truth::default(), vec![service(0, &[80], &[])]));
    stage.answer("create balancer", Answer::Wait(WAIT));
    stage.cloud.script.lock().polls = vec![Ok(true)];
    let late = Arc::new(Notify::new());
    stage.cloud.script.lock().slow_directory = Some(Arc::clone(&late));
    let other = Arc::clone(&stage);
    let survey = tokio::spawn(async move { other.engine.discover(&other.request()).await });
    tokio::task::yield_now().await;

    let made = stage.run("balancer/new:balancer_n_s0").await.renamed.unwrap();
    stage.engine.discover(&stage.request()).await.unwrap();
    late.notify_one();
    let old = survey.await.unwrap().unwrap();
    assert_eq!(old.services[0].joins, [made, PartKey::new("firewall")]);
    // Gone without us, it is made anew: the name that it had means nothing for newer listings.
    stage.cloud.memory.edit(|truth| truth.balancers.clear());
    let new = stage.engine.discover(&stage.request()).await.unwrap();
    assert_eq!(
        new.services[0].joins[0],
        PartKey::new("balancer/new:balancer_n_s0")
    );
}

#[tokio::test(start_paused = true)]
async fn what_is_known_of_a_service_outlives_a_pass_that_began_before_it_came() {
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
