//! Leader election: replicas of the program, and programs of others, contend for Leases in a real API server. Each
//! writes to a ledger all the time while it leads. The order in which the ledger has the writes tells whether there were
//! ever two writers.
#![allow(clippy::unwrap_used, clippy::expect_used)]

mod contest;
mod endings;
mod faults;
mod ledger;
mod migration;
mod successions;
