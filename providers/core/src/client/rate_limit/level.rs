//! The arithmetic of a bucket, without waiting: whether a request may be sent now, and when the next one may be.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use tokio::time::Instant;

use super::{Quota, Refill};
use crate::Priority;

/// The longest pause that the cloud may request: a wrong header must not stop a controller for hours.
pub(super) const MAX_PAUSE: Duration = Duration::from_secs(300);
/// Throttles never bring the rate below this part of the configured one.
const FLOOR: f64 = 1.0 / 20.0;
/// A second with an accepted request restores this part of the configured rate: half to full in 50 s.
const STEP: f64 = 0.01;
/// The time between two refills of a bucket that is refilled at once.
const MINUTE: Duration = Duration::from_secs(60);
/// The largest rounding error of a token.
const EPSILON: f64 = 1e-6;

/// The reason why no token was taken.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Refused {
    /// No token is available before this instant.
    Until(Instant),
    /// All slots are taken.
    NoSlot,
}

/// The rate that follows from the cloud's own counter of remaining requests.
#[derive(Clone, Copy, Debug)]
struct Hint {
    rate: f64,
    until: Instant,
}

/// Tokens, rate and slots of one bucket.
#[derive(Debug)]
pub(super) struct Level {
    quota: Quota,
    /// The share of the burst and of the slots that is reserved for users, at least one of each.
    reserved: f64,
    tokens: f64,
    rate: f64,
    /// Tokens are counted up to here. Lies in the future while the bucket pauses.
    counted_to: Instant,
    hint: Option<Hint>,
    /// The next refill, if the tokens do not refill steadily.
    next_refill: Option<Instant>,
    restored: Instant,
    /// Counts the throttles. A request from before the last throttle gives no information about the rate after it.
    epoch: u64,
    in_flight: u32,
}

impl Level {
    pub(super) fn new(quota: Quota, reserved: f64, refill: Refill, now: Instant) -> Self {
        let quota = quota.sane();
        let next_refill = match refill {
            Refill::Steady => None,
            Refill::EachMinute => Some(now + until_next_minute(SystemTime::now())),
        };
        Self {
            tokens: f64::from(quota.burst),
            rate: quota.rate,
            counted_to: now,
            hint: None,
            next_refill,
            restored: now,
            epoch: 0,
            in_flight: 0,
            reserved: reserved.clamp(0.0, 1.0),
            quota,
        }
    }

    /// The quota as it is configured.
    pub(super) fn quota(&self) -> Quota {
        self.quota
    }

    /// Replaces the quota, but not the learned rate. A bucket that was full is full again.
    pub(super) fn set_quota(&mut self, quota: Quota, now: Instant) {
        self.refill(now);
        let quota = quota.sane();
        let full = self.counted_to <= now && self.tokens >= f64::from(self.quota.burst) - EPSILON;
        self.rate = (self.rate / self.quota.rate * quota.rate).max(quota.rate * FLOOR);
        self.tokens = if full {
            f64::from(quota.burst)
        } else {
            self.tokens.min(f64::from(quota.burst))
        };
        self.quota = quota;
    }

    pub(super) fn epoch(&self) -> u64 {
        self.epoch
    }

    pub(super) fn in_flight(&self) -> u32 {
        self.in_flight
    }

    /// The rate at `now`.
    pub(super) fn rate(&self, now: Instant) -> f64 {
        match self.hint {
            Some(hint) if hint.until > now => hint.rate.min(self.rate),
            _ => self.rate,
        }
    }

    /// The tokens at `now`; none while the bucket pauses.
    pub(super) fn tokens(&mut self, now: Instant) -> f64 {
        self.refill(now);
        if self.counted_to > now { 0.0 } else { self.tokens }
    }

    /// Takes a token and a slot.
    pub(super) fn take(&mut self, priority: Priority, now: Instant) -> Result<(), Refused> {
        self.refill(now);
        let (needed, slots) = match priority {
            Priority::User => (1.0, self.quota.max_in_flight),
            Priority::Background => (
                1.0 + f64::from(self.reserve(self.most_tokens())),
                self.quota.max_in_flight - self.reserve(self.quota.max_in_flight),
            ),
        };
        if self.in_flight >= slots {
            return Err(Refused::NoSlot);
        }
        if self.counted_to > now || self.tokens < needed - EPSILON {
            return Err(Refused::Until(self.when(needed, now)));
        }
        self.tokens = (self.tokens - 1.0).max(0.0);
        self.in_flight += 1;
        Ok(())
    }

    /// Returns a slot, and the token too if it was not used.
    pub(super) fn release(&mut self, used: bool, epoch: u64, now: Instant) {
        self.refill(now);
        self.in_flight = self.in_flight.saturating_sub(1);
        // A throttle emptied the bucket; an old token must not fill it again.
        if !used && epoch == self.epoch {
            self.tokens = (self.tokens + 1.0).min(f64::from(self.quota.burst));
        }
    }

    /// The cloud refused a request that was let through in `epoch`.
    pub(super) fn throttled(&mut self, epoch: u64, retry_after: Option<Duration>, now: Instant) {
        self.refill(now);
        // Eight refusals of eight requests in flight are one signal, not eight.
        if epoch == self.epoch {
            self.epoch += 1;
            self.rate = (self.rate / 2.0).max(self.quota.rate * FLOOR);
            self.restored = now;
            self.tokens = 0.0;
        }
        if let Some(pause) = retry_after {
            let until = now + pause.min(MAX_PAUSE);
            if self.next_refill.is_some() {
                // The minute of the cloud's clock, which may differ from that of this machine.
                self.next_refill = Some(until);
            }
            self.pause(until, now);
        }
    }

    /// The cloud accepted a request that was let through in `epoch`.
    pub(super) fn accepted(&mut self, epoch: u64, now: Instant) {
        if epoch == self.epoch
            && self.rate < self.quota.rate
            && now.saturating_duration_since(self.restored) >= Duration::from_secs(1)
        {
            self.refill(now);
            self.rate = (self.rate + self.quota.rate * STEP).min(self.quota.rate);
            self.restored = now;
        }
    }

    /// The cloud reports that `remaining` requests are left until `reset`.
    pub(super) fn remaining(&mut self, remaining: u32, reset: Instant, now: Instant) {
        self.refill(now);
        let left = reset.saturating_duration_since(now).min(MAX_PAUSE);
        if left.is_zero() {
            return;
        }
        // The cloud may not have counted the requests in flight yet.
        let remaining = f64::from(remaining.saturating_sub(self.in_flight));
        if remaining < 1.0 {
            self.pause(now + left, now);
            return;
        }
        self.tokens = self.tokens.min(remaining);
        let rate = (remaining - self.tokens) / left.as_secs_f64();
        self.hint = Some(Hint {
            rate,
            until: now + left,
        });
    }

    fn pause(&mut self, until: Instant, now: Instant) {
        if until <= self.counted_to {
            return;
        }
        // Only one request is sent when the pause ends. It shows whether the cloud accepts requests again.
        let saved = match self.next_refill {
            None => self.tokens + self.rate * until.saturating_duration_since(now).as_secs_f64(),
            // The cloud refills at once, too: after a refill, it accepts requests again.
            Some(_) => self.tokens,
        };
        self.tokens = saved.min(1.0);
        self.counted_to = until;
    }

    fn refill(&mut self, now: Instant) {
        if let Some(next) = self.next_refill {
            // A pause may end at the very moment of a refill.
            if now < self.counted_to {
                return;
            }
            if now >= next {
                let minutes = (now - next).as_secs() / MINUTE.as_secs();
                self.next_refill = Some(next + MINUTE + Duration::from_secs(minutes * MINUTE.as_secs()));
                self.tokens = f64::from(self.most_tokens());
            }
            self.counted_to = now;
            return;
        }
        if now <= self.counted_to {
            return;
        }
        let mut from = self.counted_to;
        if let Some(hint) = self.hint {
            if hint.until > from {
                let to = hint.until.min(now);
                self.tokens += hint.rate.min(self.rate) * (to - from).as_secs_f64();
                from = to;
            }
            if hint.until <= now {
                self.hint = None;
            }
        }
        self.tokens += self.rate * (now - from).as_secs_f64();
        self.tokens = self.tokens.min(f64::from(self.quota.burst));
        self.counted_to = now;
    }

    /// When the bucket will have `needed` tokens, if none are taken.
    fn when(&self, needed: f64, now: Instant) -> Instant {
        let mut at = self.counted_to.max(now);
        let mut missing = needed - self.tokens;
        if let Some(next) = self.next_refill {
            return if missing <= EPSILON { at } else { at.max(next) };
        }
        if let Some(hint) = self.hint
            && hint.until > at
        {
            let rate = hint.rate.min(self.rate);
            let until_reset = rate * (hint.until - at).as_secs_f64();
            if until_reset >= missing {
                return at + seconds(missing / rate);
            }
            missing -= until_reset;
            at = hint.until;
        }
        at + seconds(missing / self.rate)
    }

    /// The most tokens that the bucket can have. One that is refilled at once gets fewer after the cloud refused requests, because
    /// other programs use the same quota.
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "a part of a u32 is a u32"
    )]
    fn most_tokens(&self) -> u32 {
        if self.next_refill.is_none() {
            return self.quota.burst;
        }
        let share = self.rate / self.quota.rate;
        ((f64::from(self.quota.burst) * share).floor() as u32).max(1)
    }

    /// The part of `all` that is reserved for users. Less than `all`, so that background work can run.
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "a part of a u32 is a u32"
    )]
    fn reserve(&self, all: u32) -> u32 {
        ((f64::from(all) * self.reserved).ceil() as u32).max(1).min(all.saturating_sub(1))
    }
}

/// The time until the next full minute of the clock. It is never zero.
fn until_next_minute(now: SystemTime) -> Duration {
    let since_epoch = now.duration_since(UNIX_EPOCH).unwrap_or_default();
    MINUTE - Duration::new(since_epoch.as_secs() % MINUTE.as_secs(), since_epoch.subsec_nanos())
}

/// At most an hour, so that a tiny rate does not overflow an instant. Never zero, so that waiting ends.
fn seconds(seconds: f64) -> Duration {
    const HOUR: Duration = Duration::from_secs(3600);
    const TICK: Duration = Duration::from_micros(1);
    Duration::try_from_secs_f64(seconds.max(0.0)).map_or(HOUR, |wait| wait.clamp(TICK, HOUR))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_minute_ends_with_that_of_the_clock() {
        let at = |millis| UNIX_EPOCH + Duration::from_millis(millis);
        assert_eq!(until_next_minute(at(120_000)), MINUTE);
        assert_eq!(until_next_minute(at(179_250)), Duration::from_millis(750));
    }
}
