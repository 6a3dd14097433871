//! Histories that follow from a seed, and the variables of the environment that request others than a test plays by itself.

use std::fmt::Display;

/// A number in a variable of the environment.
#[must_use]
pub fn requested(variable: &str) -> Option<u64> {
    std::env::var(variable).ok()?.parse().ok()
}

/// Plays a history for each of the first `count` seeds. `CCM_TEST_HISTORIES=20000` plays so many; `CCM_TEST_HISTORY=76` plays that
/// seed alone.
///
/// # Panics
/// If a history fails; the message contains how the first one did, and the seeds of all that failed.
pub fn every_seed<T, E: Display>(count: u64, play: impl Fn(u64) -> Result<T, E>) {
    let seeds = match requested("CCM_TEST_HISTORY") {
        Some(seed) => seed..seed + 1,
        None => 0..requested("CCM_TEST_HISTORIES").unwrap_or(count),
    };
    let mut first = None;
    let mut failed = Vec::new();
    for seed in seeds {
        if let Err(how) = play(seed) {
            first.get_or_insert(how);
            failed.push(seed);
        }
    }
    if let Some(how) = first {
        panic!("the histories {failed:?} broke a law; the first: {how}");
    }
}
