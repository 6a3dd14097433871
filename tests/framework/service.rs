//! The service controller against a real API server, with load balancers in memory: changes, Events, and needless changes that
//! must not happen.

mod leader;
mod life;
mod many;
mod orphans;
mod restart;
mod restored;
mod rights;
mod stage;
mod status;
mod throttled;
mod trouble;
