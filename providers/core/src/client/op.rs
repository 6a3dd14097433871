//! What the kit knows about a provider's calls.

use std::{fmt::Debug, hash::Hash};

/// One kind of cloud call. Each provider has one enum of them, so that no metric label, quota bucket or rule for
/// repeating is a free string at the place of the call.
pub trait Operation: Copy + Eq + Hash + Debug + Send + Sync + 'static {
    /// The metric label and the span's `operation`, such as `server_get`.
    fn name(self) -> &'static str;

    /// The quota bucket it draws from, such as `compute`. Calls that the cloud counts together share one.
    fn bucket(self) -> &'static str;

    /// What a second sending would do.
    fn effect(self) -> Effect;
}

/// What a call changes in the cloud, and so when it may be sent again.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Effect {
    /// Changes nothing. Repeated on every error that says so.
    Read,
    /// Sent twice, it leaves the same state as sent once (`PUT` of a whole object, `DELETE`). Repeated as a read is.
    IdempotentWrite,
    /// A second sending might do the work twice (`POST`). Repeated only when the cloud refused it for its rate.
    Write,
}
