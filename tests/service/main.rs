//! The service controller against a real API server, with load balancers in memory: what is made, followed, taken away,
//! said, and above all what is not done.
#![allow(clippy::unwrap_used, clippy::expect_used, missing_docs)]

mod life;
mod many;
mod orphans;
mod restart;
mod rights;
mod stage;
mod status;
mod trouble;
