//! The service controller against a real API server, with load balancers in memory: changes, Events, and needless changes that
//! must not happen.

mod life;
mod many;
mod orphans;
mod restart;
mod rights;
mod stage;
mod status;
mod trouble;
