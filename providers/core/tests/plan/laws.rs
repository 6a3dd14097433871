//! The toy keeps the laws, and a toy with one flaw breaks the law that the flaw is about.

use ccm_core::testkit::laws::{examine, laws};

use crate::{
    toy::{Flaw, Toy},
    toy_cases::some_case,
};

#[test]
fn a_sound_model_keeps_all_laws() {
    laws(&Toy::default(), &some_case(), 400);
}

fn breaks(flaw: Flaw, law: &str) {
    let toy = Toy { flaw: Some(flaw) };
    let (broken, case) = examine(&toy, &some_case(), 2000).expect_err("the flaw goes unseen");
    assert_eq!(broken.law, law, "{broken}\n{case:#?}");
}

#[test]
fn a_difference_that_is_forgotten_breaks_convergence() {
    breaks(Flaw::ForgetsColour, "converges");
}

#[test]
fn a_step_that_is_always_due_breaks_convergence() {
    breaks(Flaw::PaintsAlways, "converges");
}

#[test]
fn making_something_anew_breaks_convergence() {
    breaks(Flaw::Recreates, "converges");
}

#[test]
fn saying_something_else_every_time_breaks_quiet() {
    breaks(Flaw::Chatty, "quiet");
}

#[test]
fn what_can_not_be_found_again_breaks_restartability() {
    breaks(Flaw::TagsLater, "restartable");
}

#[test]
fn touching_what_is_not_ours_breaks_politeness() {
    breaks(Flaw::Rude, "polite");
}

#[test]
fn a_plan_that_does_not_see_to_the_end_breaks_foretelling() {
    breaks(Flaw::Vague, "foretold");
}
