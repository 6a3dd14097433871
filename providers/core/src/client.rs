//! The client kit: everything between a provider and its SDK.
//!
//! Clouds differ in their calls, but not in the needs around a call: a quota that many controllers share, throttling replies,
//! requests that hang, paged listings, and the same question from twenty callers at once. The kit implements this once.
//! A provider describes its calls (an enum that implements [`Operation`]: [`operations!`]) and passes each to [`Gate::call`].
//! SDKs own their transports, so everything here acts on *operations*, not on HTTP requests.
//! The module `rest` (feature `rest`) is the transport of clouds without an SDK.
//!
//! The layers of a call, outermost first:
//!
//! | Layer | Type | Does |
//! |---|---|---|
//! | sharing | [`Cache`], [`IndexedCache`], [`Batcher`] | many questions, one request; chosen by the provider per call; a cache's load has the highest priority of its callers |
//! | span and metrics | [`Gate`], [`ClientMetrics`] | one span `cloud{provider, operation, call}`, the last a number, `ccm_cloud_*` |
//! | deadline | [`Gate`] | bounds everything below it, waiting for quota and between attempts included |
//! | retry | [`RetryPolicy`] | the only layer that repeats a request; the SDK's own retry is off |
//! | rate limit | [`Bucket`] | one token and one in-flight slot per attempt, users before background |
//! | attempt timeout | [`Gate`] | bounds one attempt |
//! | fence | [`Fence`] | lets writes through only while this process is the leader |
//! | attempt | the provider's closure | the SDK call, its error mapped to [`Error`](crate::Error) |
//!
//! A write without a reply may or may not have been carried out, and is never repeated blindly. The error contains
//! [`RequestOutcome::Unknown`](crate::RequestOutcome::Unknown), and the caller reads before it writes.
//!
//! ```
//! use ccm_core::client::{ClientMetrics, Gate, GateConfig, operations};
//! use ccm_core::{Priority, Result};
//!
//! operations! {
//!     /// The calls.
//!     enum Op {
//!         /// One server.
//!         ServerGet = "server_get", "compute", Read;
//!         /// A new server.
//!         ServerCreate = "server_create", "compute", Write;
//!     }
//! }
//!
//! async fn server(gate: &Gate, id: &str) -> Result<String> {
//!     gate.call(Op::ServerGet, Priority::User, || async { Ok(format!("server {id}")) }).await
//! }
//!
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() {
//! let gate = Gate::new(GateConfig::new("acme"), &ClientMetrics::default());
//! assert_eq!(server(&gate, "7").await.unwrap(), "server 7");
//! # }
//! ```

use std::time::Duration;

use tokio::time::Instant;

mod batch;
mod cache;
mod fence;
mod gate;
mod indexed;
mod metrics;
mod op;
mod page;
mod rate_limit;
mod recent;
#[cfg(feature = "rest")]
pub mod rest;
mod retry;
mod timed;
mod urgency;

pub use batch::{BatchConfig, Batcher};
pub use cache::{Cache, CacheConfig};
pub use fence::{Fence, Fenced, Fences};
pub use gate::{CallOptions, Gate, GateConfig};
pub use indexed::{Indexed, IndexedCache, Listing};
pub use metrics::{ClientMetrics, PROMETHEUS_BUCKETS, ProviderMetric};
pub use op::{Effect, Operation};

pub use crate::{operations, provider_metrics};
pub use page::{Marker, Page, Pages, collect};
pub use rate_limit::{Bucket, BucketState, Permit, Quota, Refill};
pub use recent::RecentError;
pub use retry::{Backoff, RetryPolicy};
pub use timed::{TimedConfig, TimedMetrics};

/// `instant + duration`, or an instant far in the future if the sum overflows: durations come from headers and config
/// files.
#[must_use]
pub fn later(instant: Instant, duration: Duration) -> Instant {
    const CENTURY: Duration = Duration::from_secs(100 * 365 * 86400);
    instant.checked_add(duration.min(CENTURY)).unwrap_or(instant)
}
