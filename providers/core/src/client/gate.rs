//! The gate, which every cloud call passes.
//!
//! # Expected flow
//!
//! 1. A provider calls [`Gate::call`] with an operation, a priority, and a function that sends the request once.
//! 2. The priority is raised if a user waits for the answer of a load that began in the background. While few requests remain of
//!    the cloud's quota, background work is refused at once ([`ErrorKind::RateLimited`]).
//! 3. The call gets a number, a span and a deadline, within which all of the following happens.
//! 4. A write asks the fence whether this process may write.
//! 5. The call waits for a permit of the operation's bucket: rate, burst and requests in flight. Users come before background.
//! 6. The attempt runs with its own timeout. The fence cuts off a write when the lease is lost.
//! 7. The answer goes to the bucket: one that throttles lowers the rate.
//! 8. After an error, the table of [`Gate::call`] decides: the call ends, or it waits (as long as the cloud asks for, else with
//!    backoff) and continues at 4.
//! 9. The metrics count the call, also if its future was dropped.
//!
//! # Guarantees
//!
//! - This is the only layer that repeats the call of an API.
//! - A write that may have been carried out is never repeated blindly. Its error has [`RequestOutcome::Unknown`], and the caller reads.
//! - No write begins after the lease is lost, not even between two attempts.
//! - A call ends by its deadline, whatever the cloud does.
//! - Dropping the future cancels the attempt and returns its permit.
//!
//! # Caveats
//!
//! - The priority that a caller passes is a lower bound: a user who waits for the same answer raises it.
//! - A call with a timeout of its own may wait for quota for a minute longer.
//! - Requests for credentials (tokens, metadata) do not pass the gate unless the provider sends them through it.

use std::{
    collections::HashMap,
    fmt,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
    time::Duration,
};

use futures_util::future::BoxFuture;
use parking_lot::Mutex;
use rand::{SeedableRng, rngs::SmallRng};
use tokio::{
    select,
    time::{Instant, sleep, timeout_at},
};
use tracing::{Instrument, debug, info_span};

use super::{
    fence::{Fence, Fenced},
    later,
    metrics::ClientMetrics,
    op::{Effect, Operation},
    rate_limit::{Bucket, Permit, Quota, RESERVED, Refill},
    retry::RetryPolicy,
    urgency::{raised, user_waits},
};
use crate::{Error, ErrorKind, Priority, RequestOutcome, Result, Retry};

/// How long a call with a timeout of its own may wait for quota.
const QUOTA_WAIT: Duration = Duration::from_secs(60);

/// How a [`Gate`] treats its calls.
#[derive(Clone, Debug)]
pub struct GateConfig {
    /// The provider's name, as a metric label.
    pub provider: &'static str,
    /// The quota buckets that operations name. A bucket that is not listed gets [`Quota::default`].
    pub buckets: Vec<(&'static str, Quota)>,
    /// The share of each bucket's burst and slots that background leaves to users, from 0 to 1.
    pub reserved: f64,
    /// How the tokens of all buckets come back.
    pub refill: Refill,
    /// When calls are repeated.
    pub retry: RetryPolicy,
    /// How long one attempt may take.
    pub attempt_timeout: Duration,
    /// How long a call may take in all, waiting for quota and between attempts included.
    pub deadline: Duration,
    /// The permission of this process to write: one of [`BuildContext::fences`](crate::BuildContext).
    pub fence: Fence,
}

impl GateConfig {
    /// The defaults: [`Quota::default`], [`RetryPolicy::default`], 30 s per attempt, 2 minutes in all, and a fence that
    /// is open.
    #[must_use]
    pub fn new(provider: &'static str) -> Self {
        Self {
            provider,
            buckets: Vec::new(),
            reserved: RESERVED,
            refill: Refill::default(),
            retry: RetryPolicy::default(),
            attempt_timeout: Duration::from_secs(30),
            deadline: Duration::from_secs(120),
            fence: Fence::default(),
        }
    }
}

/// The options of one call. A bare [`Priority`] converts into them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CallOptions {
    /// The priority.
    pub priority: Priority,
    /// How long one attempt may take, if not as long as others. In all, the call may take a minute longer.
    pub timeout: Option<Duration>,
}

impl From<Priority> for CallOptions {
    fn from(priority: Priority) -> Self {
        Self {
            priority,
            timeout: None,
        }
    }
}

/// The gate of one provider, which every cloud call passes; see the [module](super). A clone shares its quota.
#[derive(Clone)]
pub struct Gate {
    inner: Arc<Inner>,
    fence: Fence,
}

struct Inner {
    config: GateConfig,
    metrics: ClientMetrics,
    buckets: Mutex<HashMap<&'static str, Bucket>>,
    rng: Mutex<SmallRng>,
    /// Calls so far. The number of a call is in its span, so that its log lines can be distinguished.
    calls: AtomicU64,
}

impl Gate {
    /// A gate with full buckets.
    #[must_use]
    pub fn new(config: GateConfig, metrics: &ClientMetrics) -> Self {
        let rng = config
            .retry
            .seed
            .map_or_else(|| SmallRng::from_rng(&mut rand::rng()), SmallRng::seed_from_u64);
        let gate = Self {
            fence: config.fence.clone(),
            inner: Arc::new(Inner {
                metrics: metrics.clone(),
                buckets: Mutex::default(),
                rng: Mutex::new(rng),
                calls: AtomicU64::new(0),
                config,
            }),
        };
        for (name, _) in &gate.inner.config.buckets {
            drop(gate.bucket(name));
        }
        gate
    }

    /// This gate with shared quota and metrics, for writes that pass another fence: those of a controller that runs under
    /// another lease.
    #[must_use]
    pub fn fenced_by(&self, fence: &Fence) -> Self {
        Self {
            inner: Arc::clone(&self.inner),
            fence: fence.clone(),
        }
    }

    /// The bucket of this name.
    #[must_use]
    pub fn bucket(&self, name: &'static str) -> Bucket {
        let inner = &self.inner;
        let mut buckets = inner.buckets.lock();
        let bucket = buckets.entry(name).or_insert_with(|| {
            let listed = inner.config.buckets.iter().find(|(bucket, _)| *bucket == name);
            let quota = listed.map_or_else(Quota::default, |(_, quota)| *quota);
            let bucket = Bucket::refilled(quota, inner.config.reserved, inner.config.refill);
            inner.metrics.watch_bucket(inner.config.provider, name, &bucket);
            bucket
        });
        bucket.clone()
    }

    /// Runs the call: `attempt` runs once or, where that is safe and may help, several times.
    ///
    /// Which errors are tried again:
    ///
    /// | | read | idempotent write | write |
    /// |---|---|---|---|
    /// | [`RateLimited`](ErrorKind::RateLimited): the cloud refused it | yes | yes | yes |
    /// | no answer within the attempt's timeout | yes | yes | never |
    /// | another error that [allows it](Error::retry) | yes | yes | no |
    /// | [`Retry::Never`], or [`RequestOutcome::Unknown`] of a write | no (read: by `retry`) | by `retry` | never |
    ///
    /// Dropping the future cancels the attempt and returns its quota.
    ///
    /// # Errors
    /// The last attempt's error, with the number of attempts if there were several. [`ErrorKind::Timeout`] once the
    /// deadline has passed, with the call's activity at that time and the last attempt's error as its source.
    ///
    /// The error of a write has [`RequestOutcome::Unknown`] if *any* of its attempts may have been carried out. The caller must then
    /// read the state instead of sending the write again. A [`Effect::Write`] of that kind has [`Retry::Never`].
    ///
    /// [`ErrorKind::NotLeader`] for a write that the [fence](GateConfig::fence) refuses or cuts off.
    /// [`ErrorKind::RateLimited`] for background work while [few requests remain](Bucket::observe_remaining).
    pub async fn call<O, T, F, Fut>(&self, op: O, options: impl Into<CallOptions>, attempt: F) -> Result<T>
    where
        O: Operation,
        T: Send,
        F: FnMut() -> Fut + Send,
        Fut: Future<Output = Result<T>> + Send,
    {
        let value = Mutex::new(None);
        let attempt = storing(attempt, &value);
        // Boxed: otherwise every future of a provider would contain this type, and take long to compile.
        let ended: BoxFuture<'_, _> = Box::pin(self.run(op, options.into(), Box::new(attempt)));
        ended.await?;
        value
            .into_inner()
            .ok_or_else(|| Error::new(ErrorKind::Unexpected, "the call ended without a result"))
    }

    async fn run<O: Operation>(&self, op: O, mut options: CallOptions, attempt: Attempt<'_>) -> Result<()> {
        let inner = &*self.inner;
        options.priority = raised(options.priority);
        self.bucket(op.bucket()).check_reserve(options.priority)?;
        let number = inner.calls.fetch_add(1, Relaxed) + 1;
        let span =
            info_span!("cloud", provider = inner.config.provider, operation = op.name(), call = number);
        let mut record = CallRecord {
            inner,
            op: op.name(),
            began: Instant::now(),
            result: "cancelled",
        };
        let call = Call::new(self, op, options, record.began);
        let result = call.run(attempt).instrument(span).await;
        record.result = if result.is_ok() { "ok" } else { "error" };
        result
    }
}

/// Sends a request once.
type Attempt<'a> = Box<dyn FnMut() -> BoxFuture<'a, Result<()>> + Send + 'a>;

/// Wraps an attempt so that it stores its value.
fn storing<'a, T, F, Fut>(
    mut attempt: F,
    value: &'a Mutex<Option<T>>,
) -> impl FnMut() -> BoxFuture<'a, Result<()>>
where
    T: Send,
    F: FnMut() -> Fut,
    Fut: Future<Output = Result<T>> + Send + 'a,
{
    move || {
        let attempt = attempt();
        Box::pin(async {
            let replied = attempt.await?;
            *value.lock() = Some(replied);
            Ok(())
        })
    }
}

impl fmt::Debug for Gate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Gate")
            .field("config", &self.inner.config)
            .field("fence", &self.fence)
            .finish_non_exhaustive()
    }
}

/// Counts a call when it ends, even if its future is dropped.
struct CallRecord<'a> {
    inner: &'a Inner,
    op: &'static str,
    began: Instant,
    result: &'static str,
}

impl Drop for CallRecord<'_> {
    fn drop(&mut self) {
        self.inner
            .metrics
            .call_ended(self.inner.config.provider, self.op, self.result, self.began.elapsed());
    }
}

/// A call in progress.
struct Call<'a, O> {
    inner: &'a Inner,
    fence: &'a Fence,
    bucket: Bucket,
    op: O,
    priority: Priority,
    attempt_timeout: Duration,
    allowed: Duration,
    deadline: Instant,
    attempts: u32,
    last: Option<Error>,
    /// Whether an attempt of a write may have been carried out.
    unknown: bool,
}

/// The decision after a failed attempt.
enum Next {
    GiveUp,
    RetryIn(Duration),
}

impl<'a, O: Operation> Call<'a, O> {
    fn new(gate: &'a Gate, op: O, options: CallOptions, began: Instant) -> Self {
        let inner = &*gate.inner;
        let allowed = match options.timeout {
            Some(timeout) => timeout.saturating_add(QUOTA_WAIT),
            None => inner.config.deadline,
        };
        Self {
            inner,
            fence: &gate.fence,
            bucket: gate.bucket(op.bucket()),
            op,
            priority: options.priority,
            attempt_timeout: options.timeout.unwrap_or(inner.config.attempt_timeout),
            allowed,
            deadline: later(began, allowed),
            attempts: 0,
            last: None,
            unknown: false,
        }
    }

    async fn run(mut self, mut attempt: Attempt<'_>) -> Result<()> {
        let mut backoff = self.inner.config.retry.backoff();
        loop {
            // Checked before waiting for quota as well, which may take long.
            if self.writes() && !self.fence.allows() {
                return Err(self.finish(fenced(Fenced::Refused)));
            }
            let permit = self.permit().await?;
            let error = match self.attempt(permit, &mut attempt).await {
                Ok(()) => return Ok(()),
                Err(error) => error,
            };
            let wait = {
                let mut rng = self.inner.rng.lock();
                self.next(&error, || backoff.next(&mut *rng))
            };
            let Next::RetryIn(wait) = wait else {
                return Err(self.finish(error));
            };
            debug!(attempt = self.attempts, kind = %error.kind(), ?wait, error = %error.report(), "Will retry a cloud call");
            self.last = Some(error);
            sleep(wait).await;
            self.inner.metrics.retried(self.inner.config.provider, self.op.name());
        }
    }

    /// Waits for quota, but not past the deadline.
    async fn permit(&mut self) -> Result<Permit> {
        let began = Instant::now();
        let acquire = async {
            if self.priority == Priority::Background {
                select! {
                    permit = self.bucket.acquire(self.priority) => return permit,
                    () = user_waits() => self.priority = Priority::User,
                }
            }
            self.bucket.acquire(self.priority).await
        };
        let permit = timeout_at(self.deadline, acquire).await;
        let config = &self.inner.config;
        self.inner
            .metrics
            .waited(config.provider, self.op.bucket(), self.priority, began.elapsed());
        // A permit that comes at the last moment leaves no time for the request.
        if let Ok(permit) = permit
            && Instant::now() < self.deadline
        {
            return Ok(permit);
        }
        let message = format!("gave up after {:?}, waiting for the cloud's quota", self.allowed);
        let mut error = Error::new(ErrorKind::Timeout, message).with_context("bucket", self.op.bucket());
        if let Some(last) = self.last.take() {
            error = error.with_source(last);
        }
        Err(self.finish(error))
    }

    /// Runs one attempt and reports to the bucket the effect of the reply on the quota.
    async fn attempt(&mut self, mut permit: Permit, attempt: &mut Attempt<'_>) -> Result<()> {
        self.attempts += 1;
        let now = Instant::now();
        let limit = later(now, self.attempt_timeout).min(self.deadline);
        permit.begin();
        let config = &self.inner.config;
        let result = if self.writes() {
            // The timeout is outside, so that the fence observes an abandoned write.
            let fenced_attempt = self.fence.run(async { attempt().await });
            timeout_at(limit, fenced_attempt)
                .await
                .map(|result| result.unwrap_or_else(|reason| Err(fenced(reason))))
        } else {
            timeout_at(limit, attempt()).await
        };
        let result = result.unwrap_or_else(|_| Err(self.no_answer(limit)));
        let error = match result {
            Ok(()) => {
                permit.accepted();
                self.inner.metrics.attempt_succeeded(self.op.bucket());
                return Ok(());
            }
            Err(error) => error.with_operation(self.op.name()),
        };
        self.inner
            .metrics
            .attempt_failed(config.provider, self.op.name(), self.op.bucket(), &error);
        match error.kind() {
            ErrorKind::RateLimited => {
                self.inner.metrics.throttled(config.provider, self.op.bucket());
                permit.throttled(match error.retry() {
                    Retry::After(wait) | Retry::Fixed(wait) => Some(wait),
                    Retry::Never | Retry::Backoff => None,
                });
            }
            // The cloud may be overloaded or did not get the request: the reply gives no information about its quota.
            ErrorKind::Unavailable | ErrorKind::Timeout | ErrorKind::NotLeader => drop(permit),
            _ => permit.accepted(),
        }
        if self.writes() && (error.outcome() == RequestOutcome::Unknown || error.kind() == ErrorKind::Timeout)
        {
            self.unknown = true;
        }
        Err(error)
    }

    fn writes(&self) -> bool {
        self.op.effect() != Effect::Read
    }

    fn no_answer(&mut self, limit: Instant) -> Error {
        let message = if limit < self.deadline {
            format!("no answer within {:?}", self.attempt_timeout)
        } else {
            format!("gave up after {:?}, waiting for the answer", self.allowed)
        };
        let error = Error::new(ErrorKind::Timeout, message);
        match self.last.take() {
            Some(last) => error.with_source(last),
            None => error,
        }
    }

    /// Decides whether and when to try again.
    fn next(&self, error: &Error, backoff: impl FnOnce() -> Duration) -> Next {
        let refused = error.kind() == ErrorKind::RateLimited && error.outcome() == RequestOutcome::NotDone;
        let safe = self.op.effect() != Effect::Write || (refused && !self.unknown);
        // A wait for a busy object is the caller's: here, it would hold a worker.
        let is_busy = error.kind() == ErrorKind::Conflict && error.retry() != Retry::Backoff;
        if !safe || (self.writes() && is_busy) || self.attempts >= self.inner.config.retry.max_attempts {
            return Next::GiveUp;
        }
        let wait = match error.retry() {
            Retry::Never => return Next::GiveUp,
            Retry::Backoff => backoff(),
            // A little later than requested, so that calls that were refused together are not repeated together.
            retry @ (Retry::After(wait) | Retry::Fixed(wait)) => {
                let backoff = backoff();
                let jittered = wait.saturating_add(backoff.min(Duration::from_secs(1)));
                jittered.max(retry.wait(backoff))
            }
        };
        // A call that could only end at the deadline ends now, with an error that gives the reason.
        if later(Instant::now(), wait) >= self.deadline {
            Next::GiveUp
        } else {
            Next::RetryIn(wait)
        }
    }

    /// The error for the caller.
    fn finish(&self, error: Error) -> Error {
        let mut error = error.with_operation(self.op.name());
        if self.attempts > 1 {
            error = error.with_context("attempts", self.attempts.to_string());
        }
        if self.unknown {
            error = error.with_outcome(RequestOutcome::Unknown);
            if self.op.effect() == Effect::Write {
                error = error.with_retry(Retry::Never);
            }
        }
        error
    }
}

fn fenced(reason: Fenced) -> Error {
    let outcome = match reason {
        Fenced::Refused => RequestOutcome::NotDone,
        Fenced::Cut => RequestOutcome::Unknown,
    };
    Error::new(ErrorKind::NotLeader, reason.to_string()).with_outcome(outcome)
}
