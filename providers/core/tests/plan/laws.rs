//! The toy keeps the laws, and a toy with one flaw breaks the law that the flaw is about.

use std::{collections::BTreeMap, pin::Pin};

use ccm_core::{
    plan::Fact,
    testkit::laws::{
        Broken, Case, built, cases, check, converges, foretold, laws, polite, quiet, restartable,
    },
};
use proptest::{
    strategy::{Strategy, ValueTree},
    test_runner::TestRunner,
};

use crate::{
    toy::{Balancer, Flaw, Toy, balancer_name},
    toy_cases::{Truth, id, nodes, service, world},
};

#[test]
fn a_sound_model_keeps_all_laws() {
    laws(&Toy::default(), 150);
}

type Verdict<'a> = Pin<Box<dyn Future<Output = Result<(), Broken>> + 'a>>;

/// There is a case in which a toy with this flaw breaks the law, and a sound one does not.
fn breaks(flaw: Flaw, law: for<'a> fn(&'a Toy, &'a Case<Truth>) -> Verdict<'a>) {
    let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
    let flawed = Toy { flaw: Some(flaw) };
    // The same cases in every run.
    let mut runner = TestRunner::deterministic();
    let strategy = cases(&Toy::default());
    let cases = (0..1000).map(|_| {
        let case = strategy.new_tree(&mut runner).unwrap().current();
        // A sound toy builds: the flaw shall show in the law.
        runtime.block_on(built(&Toy::default(), &case)).unwrap()
    });
    let mut broken = cases.filter(|case| runtime.block_on(law(&flawed, case)).is_err());
    let case = broken.next().expect("the flaw goes unseen");
    runtime.block_on(law(&Toy::default(), &case)).unwrap();
}

/// A Service left a load balancer whose other Service does not exist: it is an orphan then, for the process that saw it leave,
/// too.
#[test]
fn a_service_that_left_a_part_is_no_member_of_the_orphan() {
    let mut gone = service(1, &[82], &[]);
    gone.service_type = ccm_core::load_balancer::ServiceType::ClusterIp;
    gone.finalizers.clear();
    let balancer = |index: usize, tags: &[&str]| Balancer {
        id: Fact::Known(10 + index as u64),
        name: balancer_name(&id(index)),
        tags: tags.iter().map(|tag_text| (*tag_text).to_owned()).collect(),
        flavor: "pine".to_owned(),
        address: Fact::Known(format!("192.0.2.{index}")),
        listeners: BTreeMap::new(),
    };
    let truth = Truth {
        balancers: vec![
            balancer(0, &["kube_cluster_id_others", "svc:n/s1/u1"]),
            balancer(1, &["kube_cluster_id_me", "svc:n/s0/u0", "svc:n/s1/u1"]),
        ],
        ..Truth::default()
    };
    let case = Case::of(truth, vec![world(vec![gone], nodes([]))]);
    check(&Toy::default(), &case).unwrap();
}

#[test]
fn a_difference_that_is_forgotten_breaks_convergence() {
    breaks(Flaw::ForgetsAlgorithm, |toy, case| Box::pin(converges(toy, case)));
}

#[test]
fn a_step_that_is_always_due_breaks_convergence() {
    breaks(Flaw::UpdatesAlways, |toy, case| Box::pin(converges(toy, case)));
}

#[test]
fn making_something_anew_breaks_convergence() {
    breaks(Flaw::Recreates, |toy, case| Box::pin(converges(toy, case)));
}

#[test]
fn saying_something_else_every_time_breaks_quiet() {
    breaks(Flaw::Chatty, |toy, case| Box::pin(quiet(toy, case)));
}

#[test]
fn what_can_not_be_found_again_breaks_restartability() {
    breaks(Flaw::TagsLater, |toy, case| Box::pin(restartable(toy, case)));
}

#[test]
fn touching_what_is_not_ours_breaks_politeness() {
    breaks(Flaw::Rude, |toy, case| Box::pin(polite(toy, case)));
}

#[test]
fn a_plan_that_does_not_see_to_the_end_breaks_foretelling() {
    breaks(Flaw::Vague, |toy, case| Box::pin(foretold(toy, case)));
}
