//! Quota buckets: how fast and how much at once, for two priorities, adapted to the cloud's replies.
//!
//! One bucket represents one quota of the cloud and is shared by everything that draws from it. It has tokens that
//! refill at a rate, and slots for requests in flight. The rules:
//!
//! - Waiting calls are served in the order of arrival, but a user's call overtakes every background call.
//! - A background call is sent if the bucket has *more* tokens than a reserve for users (a fifth of the burst unless the
//!   provider sets another share, at least one token) and more than that share of the slots (at least one) are free. So a
//!   user's call gets a token and a slot, and background waits only while users take all tokens that refill.
//! - A reply that asks to slow down halves the rate and empties the bucket at once (once per wave: replies to requests
//!   sent before the last halving do not halve again); `Retry-After` pauses the bucket, for at most five minutes. Each
//!   second with an accepted request restores 1 % of the configured rate. The floor is a twentieth of it.
//! - A call that stops waiting returns its place. A call that got a permit and did not use it returns the token.
//!
//! The `governor` crate was considered: it supports neither priorities nor a rate that changes at run time.

mod level;

use std::{
    collections::BTreeMap,
    fmt,
    sync::{Arc, Weak},
    time::Duration,
};

use parking_lot::Mutex;
use tokio::{
    runtime::Handle,
    sync::oneshot,
    task::AbortHandle,
    time::{Instant, sleep_until},
};

use crate::{Error, ErrorKind, Priority, Result, Retry};
use level::{Level, Refused};

/// The share of a bucket's burst and slots that is reserved for users, if a provider sets no other.
pub(super) const RESERVED: f64 = 0.2;

/// Background work stops while fewer than one in this many of the cloud's requests remain.
const SHORT: u32 = 10;
/// After this long, one background request checks whether more remain.
const SHORT_FOR: Duration = Duration::from_secs(60);

/// The quota of one client.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Quota {
    /// The average number of requests per second.
    pub rate: f64,
    /// Requests at once after an idle time.
    pub burst: u32,
    /// Requests without a reply yet.
    pub max_in_flight: u32,
}

impl Default for Quota {
    /// For clouds that publish no limit: 20 per second, bursts of 50, 8 in flight.
    fn default() -> Self {
        Self {
            rate: 20.0,
            burst: 50,
            max_in_flight: 8,
        }
    }
}

impl Quota {
    /// So many requests in a minute, for [`Refill::EachMinute`].
    #[must_use]
    pub fn per_minute(requests: u32, max_in_flight: u32) -> Self {
        Self {
            rate: f64::from(requests) / 60.0,
            burst: requests,
            max_in_flight,
        }
    }

    /// Limits the requests per second to this many, on average and in bursts.
    #[must_use]
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "cut to the size of the bucket, and positive"
    )]
    pub fn at_most(self, rate: f64) -> Self {
        Self {
            rate: self.rate.min(rate),
            burst: rate.ceil().clamp(1.0, f64::from(self.burst)) as u32,
            ..self
        }
    }

    /// Raises a quota of zero, which would block every call: at least one request, one slot, one in 1000 s.
    fn sane(self) -> Self {
        let rate = if self.rate.is_finite() {
            self.rate.max(0.001)
        } else {
            Self::default().rate
        };
        Self {
            rate,
            burst: self.burst.max(1),
            max_in_flight: self.max_in_flight.max(1),
        }
    }
}

/// How the tokens of a bucket come back.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Refill {
    /// Steadily, at the rate of the quota.
    #[default]
    Steady,
    /// All at once, at each full minute of the clock: for clouds that count requests by the minute. [`Quota::burst`] is the number of
    /// requests in a minute.
    EachMinute,
}

/// The state of a bucket at one moment.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct BucketState {
    /// Requests that could be sent at once; none while the bucket pauses.
    pub tokens: f64,
    /// Requests per second.
    pub rate: f64,
    /// Requests without a reply yet.
    pub in_flight: u32,
    /// Users that wait.
    pub waiting_user: usize,
    /// Background work that waits.
    pub waiting_background: usize,
    /// The cloud's quota: the rate of a bucket that was not throttled, and the tokens of a full one.
    pub quota: Quota,
}

/// A quota that many callers share; see the module. A clone is the same bucket.
#[derive(Clone)]
pub struct Bucket(Arc<Shared>);

/// Does not keep the bucket alive.
pub(super) struct WeakBucket(Weak<Shared>);

struct Shared {
    state: Mutex<LimiterState>,
}

struct LimiterState {
    level: Level,
    user: Queue,
    background: Queue,
    arrivals: u64,
    timer: Option<Timer>,
    /// The time since when fewer of the cloud's requests remain than background work may use.
    short: Option<Instant>,
    /// The runtime of the timer: permits may be dropped outside of any runtime.
    runtime: Option<Handle>,
}

/// The waiting calls, by order of arrival.
type Queue = BTreeMap<u64, oneshot::Sender<Permit>>;

/// Wakes the bucket when the next waiter can be served.
struct Timer {
    at: Instant,
    task: AbortHandle,
}

impl Bucket {
    /// A full bucket.
    #[must_use]
    pub fn new(quota: Quota) -> Self {
        Self::reserving(quota, RESERVED)
    }

    /// A full bucket that reserves this share of its burst and slots for users, from 0 to 1. At least one is always reserved, and
    /// background always gets at least one.
    #[must_use]
    pub fn reserving(quota: Quota, share: f64) -> Self {
        Self::refilled(quota, share, Refill::Steady)
    }

    /// As [`reserving`](Self::reserving), with tokens that come back in this way.
    #[must_use]
    pub fn refilled(quota: Quota, share: f64, refill: Refill) -> Self {
        let state = LimiterState {
            level: Level::new(quota, share, refill, Instant::now()),
            user: Queue::new(),
            background: Queue::new(),
            arrivals: 0,
            timer: None,
            short: None,
            runtime: None,
        };
        Self(Arc::new(Shared {
            state: Mutex::new(state),
        }))
    }

    /// Waits for a token and a slot.
    ///
    /// Dropping the future leaves the queue.
    pub async fn acquire(&self, priority: Priority) -> Permit {
        loop {
            let (place, granted) = {
                let mut state = self.0.state.lock();
                let is_first =
                    state.user.is_empty() && (priority == Priority::User || state.background.is_empty());
                if is_first && state.level.take(priority, Instant::now()).is_ok() {
                    return Permit::new(&self.0, state.level.epoch());
                }
                let (grant, granted) = oneshot::channel();
                let ticket = state.arrivals;
                state.arrivals += 1;
                state.queue(priority).insert(ticket, grant);
                state.runtime = Handle::try_current().ok();
                (
                    Place {
                        shared: &self.0,
                        priority,
                        ticket,
                    },
                    granted,
                )
            };
            self.0.serve();
            let permit = granted.await;
            drop(place);
            // The sender is dropped only with the bucket, which `self` keeps alive: the loop runs once.
            if let Ok(permit) = permit {
                return permit;
            }
        }
    }

    /// Applies the cloud's own counter from a reply: of `limit` requests, `remaining` are left until `reset` (`None`: not
    /// known). Slows the bucket down so that they last. While fewer than a tenth remain, background calls are refused, so that
    /// the rest is left to users. Once a minute, one background call checks whether more remain.
    pub fn observe_remaining(&self, remaining: u32, limit: u32, reset: Option<Instant>) {
        let now = Instant::now();
        {
            let mut state = self.0.state.lock();
            state.short = (remaining < limit / SHORT).then_some(now);
            if let Some(reset) = reset {
                state.level.remaining(remaining, reset, now);
            }
        }
        self.0.serve();
    }

    /// Refuses background work while few of the cloud's requests remain.
    ///
    /// # Errors
    /// `RateLimited`: it is background work, and few requests remain.
    pub(super) fn check_reserve(&self, priority: Priority) -> Result<()> {
        if priority == Priority::User {
            return Ok(());
        }
        let mut state = self.0.state.lock();
        if state.short.is_none_or(|since| since.elapsed() >= SHORT_FOR) {
            // Of all calls that wait, one finds out whether more requests remain now.
            state.short = state.short.map(|_| Instant::now());
            return Ok(());
        }
        let text = "fewer than 10 % of the API requests that the cloud allows remain; background work waits";
        Err(Error::new(ErrorKind::RateLimited, text).with_retry(Retry::After(SHORT_FOR)))
    }

    /// Replaces the quota, but not the rate that was learned from the cloud's replies: a bucket at half of the old rate continues
    /// with half of the new one.
    pub fn set_quota(&self, quota: Quota) {
        self.0.state.lock().level.set_quota(quota, Instant::now());
        self.0.serve();
    }

    /// The state of the bucket now.
    #[must_use]
    pub fn state(&self) -> BucketState {
        let now = Instant::now();
        let mut state = self.0.state.lock();
        BucketState {
            tokens: state.level.tokens(now),
            rate: state.level.rate(now),
            in_flight: state.level.in_flight(),
            waiting_user: state.user.len(),
            waiting_background: state.background.len(),
            quota: state.level.quota(),
        }
    }

    pub(super) fn downgrade(&self) -> WeakBucket {
        WeakBucket(Arc::downgrade(&self.0))
    }
}

impl WeakBucket {
    pub(super) fn upgrade(&self) -> Option<Bucket> {
        self.0.upgrade().map(Bucket)
    }
}

impl fmt::Debug for Bucket {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Bucket").field(&self.state()).finish()
    }
}

impl LimiterState {
    fn queue(&mut self, priority: Priority) -> &mut Queue {
        match priority {
            Priority::User => &mut self.user,
            Priority::Background => &mut self.background,
        }
    }

    /// Grants permits to all waiters that can be served now, users first. Also returns when the next can be, if time alone decides.
    fn grant(&mut self, now: Instant) -> (Vec<oneshot::Sender<Permit>>, Option<Instant>) {
        let mut granted = Vec::new();
        loop {
            let priority = if self.user.is_empty() {
                Priority::Background
            } else {
                Priority::User
            };
            if self.queue(priority).is_empty() {
                return (granted, None);
            }
            match self.level.take(priority, now) {
                Ok(()) => granted.extend(self.queue(priority).pop_first().map(|(_, grant)| grant)),
                Err(Refused::Until(at)) => return (granted, Some(at)),
                // The reply that frees a slot serves the next one.
                Err(Refused::NoSlot) => return (granted, None),
            }
        }
    }
}

impl Shared {
    /// Serves the calls that can be sent, and schedules the next run for when another one can.
    fn serve(self: &Arc<Self>) {
        let (granted, epoch) = {
            let mut state = self.state.lock();
            let (granted, next) = state.grant(Instant::now());
            if let Some(at) = next {
                self.wake_at(&mut state, at);
            }
            (granted, state.level.epoch())
        };
        // Outside of the lock: a waiter that has just left drops its permit here, which takes the lock.
        for grant in granted {
            drop(grant.send(Permit::new(self, epoch)));
        }
    }

    fn wake_at(self: &Arc<Self>, state: &mut LimiterState, at: Instant) {
        if let Some(timer) = &state.timer {
            if timer.at <= at && !timer.task.is_finished() {
                return;
            }
            timer.task.abort();
        }
        let Some(runtime) = &state.runtime else {
            return;
        };
        let shared = Arc::downgrade(self);
        let task = runtime.spawn(async move {
            sleep_until(at).await;
            if let Some(shared) = shared.upgrade() {
                // Another timer may have replaced this one. An additional run does no harm.
                shared.state.lock().timer = None;
                shared.serve();
            }
        });
        state.timer = Some(Timer {
            at,
            task: task.abort_handle(),
        });
    }
}

/// A place in the queue. Leaving it is safe at any moment. Before the grant nothing was taken. After it the permit is
/// in the channel, and is returned when the channel is dropped.
struct Place<'a> {
    shared: &'a Arc<Shared>,
    priority: Priority,
    ticket: u64,
}

impl Drop for Place<'_> {
    fn drop(&mut self) {
        self.shared.state.lock().queue(self.priority).remove(&self.ticket);
    }
}

/// The right to send one request. Occupies a slot until it is dropped.
#[must_use]
pub struct Permit {
    shared: Arc<Shared>,
    epoch: u64,
    used: bool,
    reply: PermitReply,
}

/// The meaning of a reply for the quota.
#[derive(Clone, Copy, Debug)]
enum PermitReply {
    Nothing,
    Accepted,
    Throttled(Option<Duration>),
}

impl Permit {
    fn new(shared: &Arc<Shared>, epoch: u64) -> Self {
        Self {
            shared: Arc::clone(shared),
            epoch,
            used: false,
            reply: PermitReply::Nothing,
        }
    }

    /// The request is being sent: from now on the token is used.
    pub fn begin(&mut self) {
        self.used = true;
    }

    /// The cloud accepted the request.
    pub fn accepted(mut self) {
        self.reply = PermitReply::Accepted;
    }

    /// The cloud throttles, and may request a pause of this time.
    pub fn throttled(mut self, retry_after: Option<Duration>) {
        self.reply = PermitReply::Throttled(retry_after);
    }
}

impl Drop for Permit {
    fn drop(&mut self) {
        {
            let now = Instant::now();
            let mut state = self.shared.state.lock();
            match self.reply {
                PermitReply::Nothing => {}
                PermitReply::Accepted => state.level.accepted(self.epoch, now),
                PermitReply::Throttled(retry_after) => state.level.throttled(self.epoch, retry_after, now),
            }
            state.level.release(self.used, self.epoch, now);
        }
        self.shared.serve();
    }
}

impl fmt::Debug for Permit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Permit").field("used", &self.used).finish_non_exhaustive()
    }
}
