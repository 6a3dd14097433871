//! x
mod engine;
#[cfg(feature = "testkit")]
mod look;
mod memory;
mod metrics;
mod model;
mod pass;
mod steps;
mod survey;
mod vouch;

pub use engine::Engine;
#[cfg(feature = "testkit")]
pub use look::Seen;
pub use metrics::PlanMetrics;
pub use model::{
    Fact, Gathered, Member, Outcome, PartCloud, PartModel, Parts, Plan, Review, Standing, Step, Stray, Told,
    Vouch, Wait,
};
pub use vouch::vouch_by_nodes;
