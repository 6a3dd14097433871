//! The toy obeys the laws, and a toy with a flaw breaks the law that the flaw is about.

use std::{collections::BTreeMap, pin::Pin};

use ccm_core::{
    plan::Fact,
    testkit::laws::{
        Broken, Case, built, cases, check,
        concurrent::{self, Breakage},
        converges, laws, polite, predictable, quiet, restartable,
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
fn a_correct_model_obeys_all_laws() {
    laws(&Toy::default(), 60);
}

#[test]
fn a_correct_model_keeps_the_laws_when_passes_run_at_the_same_time() {
    concurrent::histories(&Toy::default(), 200);
}

/// Seeds of histories that found faults. 1267, 7274: a Service moved while a step for it was being sent in its former part. 7430: it
/// moved during a create in its former part. 4277, 8211: it was deleted while a step for it was being sent.
const FOUND_FAULTS: [u64; 5] = [1267, 4277, 7274, 7430, 8211];

#[test]
fn histories_that_found_faults_keep_the_laws() {
    for seed in FOUND_FAULTS {
        concurrent::play(&Toy::default(), seed, None).unwrap();
    }
}

/// The first history that finds a breakage of the driver is one of so many.
const HISTORIES_TO_FIND: u64 = 300;

/// The first history that finds this breakage, and the law that is broken.
fn first_found(breakage: Breakage) -> (u64, Broken) {
    let mut broken = (0..HISTORIES_TO_FIND)
        .filter_map(|seed| Some((seed, concurrent::play(&Toy::default(), seed, Some(breakage)).err()?)));
    broken.next().expect("a history finds the breakage")
}

#[test]
fn histories_find_each_breakage_of_the_driver() {
    for (breakage, law) in [
        (Breakage::Lock, "concurrent: complete"),
        (Breakage::WakeUp, "concurrent: complete"),
        (Breakage::StaleSnapshot, "concurrent: current"),
    ] {
        let (seed, broken) = first_found(breakage);
        assert_eq!(broken.law, law, "history {seed} finds {breakage:?}");
        concurrent::play(&Toy::default(), seed, None).unwrap();
        // A history is the same in every run.
        assert_eq!(concurrent::play(&Toy::default(), seed, Some(breakage)), Err(broken));
    }
}

type Verdict<'a> = Pin<Box<dyn Future<Output = Result<(), Broken>> + 'a>>;

/// Finds a case in which a toy with this flaw breaks the law, and a correct one does not.
fn breaks(flaw: Flaw, law: for<'a> fn(&'a Toy, &'a Case<Truth>) -> Verdict<'a>) {
    let mut builder = tokio::runtime::Builder::new_current_thread();
    let runtime = builder.enable_time().start_paused(true).build().unwrap();
    let flawed = Toy { flaw: Some(flaw) };
    // The same cases in every run.
    let mut runner = TestRunner::deterministic();
    let strategy = cases(&Toy::default());
    let cases = (0..1000).map(|_| {
        let case = strategy.new_tree(&mut runner).unwrap().current();
        // A correct toy builds, so that only the law finds the flaw.
        runtime.block_on(built(&Toy::default(), &case)).unwrap()
    });
    let mut broken = cases.filter(|case| runtime.block_on(law(&flawed, case)).is_err());
    let case = broken.next().expect("the law does not find the flaw");
    runtime.block_on(law(&Toy::default(), &case)).unwrap();
}

/// A Service left a load balancer whose other Service does not exist. The load balancer is an orphan then, even for the process
/// that observed it.
#[test]
fn a_service_that_left_a_part_is_no_member_of_the_orphan() {
    let mut leaving = service(1, &[82], &[]);
    leaving.service_type = ccm_core::load_balancer::ServiceType::ClusterIp;
    leaving.finalizers.clear();
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
    let case = Case::of(truth, vec![world(vec![leaving], nodes([]))]);
    check(&Toy::default(), &case).unwrap();
}

#[test]
fn an_ignored_difference_breaks_converges() {
    breaks(Flaw::IgnoresAlgorithm, |toy, case| Box::pin(converges(toy, case)));
}

#[test]
fn a_step_that_is_always_due_breaks_converges() {
    breaks(Flaw::UpdatesAlways, |toy, case| Box::pin(converges(toy, case)));
}

#[test]
fn recreating_an_object_breaks_converges() {
    breaks(Flaw::Recreates, |toy, case| Box::pin(converges(toy, case)));
}

#[test]
fn effects_that_always_differ_break_quiet() {
    breaks(Flaw::ChangesEffects, |toy, case| Box::pin(quiet(toy, case)));
}

#[test]
fn an_object_that_cannot_be_found_again_breaks_restartable() {
    breaks(Flaw::TagsLater, |toy, case| Box::pin(restartable(toy, case)));
}

#[test]
fn a_change_of_a_foreign_object_breaks_polite() {
    breaks(Flaw::RemovesForeignTags, |toy, case| Box::pin(polite(toy, case)));
}

#[test]
fn an_incomplete_dry_run_breaks_predictable() {
    breaks(Flaw::HidesLaterFacts, |toy, case| Box::pin(predictable(toy, case)));
}
