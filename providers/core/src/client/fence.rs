//! Permission to write: the fence of leader election.

use std::{fmt, future::poll_fn, pin::pin, sync::Arc, task::Poll, time::Duration};

use parking_lot::Mutex;
use tokio::{
    sync::watch,
    time::{Instant, sleep_until},
};

/// The permission of this process to write, to the cloud and to the API server. Clones are the same fence.
///
/// Among replicas only the leader may write, and only while no other process can have its lease. Permission is therefore
/// given *until an instant* and expires by itself: a process that was stopped, starved or cut off may not write when it
/// wakes up.
///
/// A write in progress when permission ends is cut off. Its outcome is unknown.
///
/// The fence cannot call back a request that is already in the SDK's connection, in the system or in the network. If the
/// process is stopped just before such a request is sent, it is sent when the process continues. Only the cloud could
/// prevent that, by refusing writes of an old leader.
///
/// ```
/// # use std::time::Duration;
/// # use ccm_core::client::{Fence, Fenced};
/// # use tokio::time::Instant;
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() {
/// let fence = Fence::standby();
/// assert_eq!(fence.run(async { "written" }).await, Err(Fenced::Refused));
/// fence.allow_until(Instant::now() + Duration::from_secs(10));
/// assert_eq!(fence.run(async { "written" }).await, Ok("written"));
/// fence.close();
/// assert_eq!(fence.run(async { "written" }).await, Err(Fenced::Refused));
/// # }
/// ```
#[derive(Clone)]
pub struct Fence(Arc<Inner>);

struct Inner {
    state: watch::Sender<FenceState>,
    writes: watch::Sender<usize>,
    /// When a write was last abandoned before it returned.
    abandoned: Mutex<Option<Instant>>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum FenceState {
    /// There is no election.
    Open,
    /// This process is not the leader yet.
    Standby,
    Until(Instant),
    /// Writes are refused permanently.
    Closed,
}

impl FenceState {
    fn allows(self, now: Instant) -> bool {
        match self {
            Self::Open => true,
            Self::Standby | Self::Closed => false,
            Self::Until(end) => now < end,
        }
    }
}

/// The reason why a write was not carried out, or was cut off.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fenced {
    /// The write was not begun.
    Refused,
    /// The write was in progress. Whether it was carried out is unknown.
    Cut,
}

impl fmt::Display for Fenced {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Refused => "this process is not the leader and may not write",
            Self::Cut => "this process lost leadership before the answer arrived",
        })
    }
}

impl std::error::Error for Fenced {}

impl Default for Fence {
    /// Writes are allowed until [`Fence::close`]: there is no election.
    fn default() -> Self {
        Self::new(FenceState::Open)
    }
}

impl Fence {
    fn new(state: FenceState) -> Self {
        Self(Arc::new(Inner {
            state: watch::Sender::new(state),
            writes: watch::Sender::new(0),
            abandoned: Mutex::new(None),
        }))
    }

    /// A fence that allows nothing before [`Fence::allow_until`].
    #[must_use]
    pub fn standby() -> Self {
        Self::new(FenceState::Standby)
    }

    /// Allows writes until this instant, instead of the previous one. After [`Fence::close`] it does nothing.
    pub fn allow_until(&self, end: Instant) {
        self.0.state.send_if_modified(|state| {
            let changes = *state != FenceState::Closed && *state != FenceState::Until(end);
            if changes {
                *state = FenceState::Until(end);
            }
            changes
        });
    }

    /// Refuses writes from now on, permanently, and cuts off writes in progress.
    pub fn close(&self) {
        self.0.state.send_replace(FenceState::Closed);
    }

    /// Whether a write may begin now.
    #[must_use]
    pub fn allows(&self) -> bool {
        self.0.state.borrow().allows(Instant::now())
    }

    /// Returns when writes are not allowed.
    pub async fn closed(&self) {
        let mut state = self.0.state.subscribe();
        loop {
            let now = *state.borrow_and_update();
            // The sender lives as long as `self`, so that waiting for a change does not fail.
            match now {
                FenceState::Standby | FenceState::Closed => return,
                FenceState::Open => {
                    let _ = state.changed().await;
                }
                FenceState::Until(end) if Instant::now() >= end => return,
                FenceState::Until(end) => tokio::select! {
                    _ = state.changed() => {}
                    () = sleep_until(end) => {}
                },
            }
        }
    }

    /// Runs a write if writes are allowed, and only for as long as they are.
    ///
    /// # Errors
    /// Writes are not allowed, or no longer.
    pub async fn run<T>(&self, write: impl Future<Output = T>) -> Result<T, Fenced> {
        let mut running = RunningCall::begin(self);
        if !self.allows() {
            running.returned = true;
            return Err(Fenced::Refused);
        }
        let (mut write, mut closed) = (pin!(write), pin!(self.closed()));
        // After a long sleep, nothing may be sent before permission is checked. At each waking, permission comes first, and the
        // clock decides, since timers may be late.
        let result = poll_fn(|context| {
            if !self.allows() || closed.as_mut().poll(context).is_ready() {
                return Poll::Ready(Err(Fenced::Cut));
            }
            write.as_mut().poll(context).map(Ok)
        });
        let result = result.await;
        running.returned = result.is_ok();
        result
    }

    /// Returns when no write is in progress.
    pub async fn idle(&self) {
        // As in `closed`, waiting cannot fail.
        let _ = self.0.writes.subscribe().wait_for(|writes| *writes == 0).await;
    }

    /// Whether no write can still arrive: no write is in progress, and none was abandoned without an answer within the last
    /// `within`.
    #[must_use]
    pub fn is_settled(&self, within: Duration) -> bool {
        let abandoned = *self.0.abandoned.lock();
        *self.0.writes.borrow() == 0 && abandoned.is_none_or(|at| at.elapsed() >= within)
    }
}

/// The fences of writes to a cloud, by the controller that requests the write.
///
/// Usually all are the same. In a leader migration some controllers run under a lease of their own, which another process
/// may have. Their writes must not depend on this process's other lease.
#[derive(Clone, Debug, Default)]
pub struct Fences {
    /// For load balancers and all objects that are created for them.
    pub load_balancers: Fence,
    /// For routes and all objects that are managed with them.
    pub routes: Fence,
    /// For all other writes.
    pub others: Fence,
}

impl From<Fence> for Fences {
    /// One fence for all writes.
    fn from(fence: Fence) -> Self {
        Self {
            load_balancers: fence.clone(),
            routes: fence.clone(),
            others: fence,
        }
    }
}

impl fmt::Debug for Fence {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Fence").field(&*self.0.state.borrow()).finish()
    }
}

/// Counts a write while it lasts.
struct RunningCall {
    fence: Fence,
    returned: bool,
}

impl RunningCall {
    fn begin(fence: &Fence) -> Self {
        fence.0.writes.send_modify(|writes| *writes += 1);
        Self {
            fence: fence.clone(),
            returned: false,
        }
    }
}

impl Drop for RunningCall {
    fn drop(&mut self) {
        let inner = &self.fence.0;
        if !self.returned {
            *inner.abandoned.lock() = Some(Instant::now());
        }
        inner.writes.send_modify(|writes| *writes = writes.saturating_sub(1));
    }
}
