//! The last errors of the cloud, and whether it answers, for status pages.

use std::{
    collections::{BTreeMap, VecDeque},
    time::SystemTime,
};

use parking_lot::Mutex;

use crate::{Error, ErrorKind};

/// The most errors that are kept.
const MOST: usize = 20;

/// A failed attempt of a cloud call, which may have repeated in the same way.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct RecentError {
    /// When it was last seen.
    pub at: SystemTime,
    /// The operation.
    pub operation: &'static str,
    /// The kind of error.
    pub kind: ErrorKind,
    /// The error message.
    pub message: String,
    /// How often it occurred since it became one of the recent errors.
    pub count: u64,
}

/// The recent errors, the latest first.
#[derive(Debug, Default)]
pub(super) struct RecentErrors {
    errors: Mutex<VecDeque<RecentError>>,
    /// By bucket: the error of its last call, if it got no answer or was not authenticated.
    silent: Mutex<BTreeMap<&'static str, String>>,
}

impl RecentErrors {
    /// A call of this bucket was answered.
    pub(super) fn answered(&self, bucket: &'static str) {
        self.silent.lock().remove(bucket);
    }

    /// The error if the cloud does not answer.
    pub(super) fn silent(&self) -> Option<String> {
        let silent = self.silent.lock();
        let (bucket, error) = silent.first_key_value()?;
        Some(format!("{bucket}: {error}"))
    }

    pub(super) fn add(&self, operation: &'static str, bucket: &'static str, error: &Error) {
        match error.kind() {
            ErrorKind::Unavailable | ErrorKind::Timeout | ErrorKind::Unauthenticated => {
                self.silent.lock().insert(bucket, error.report());
            }
            // No request was sent.
            ErrorKind::NotLeader => {}
            _ => self.answered(bucket),
        }
        // A missing object may be the normal result of a search, and a refused write of a standby replica was never sent.
        if matches!(error.kind(), ErrorKind::NotFound | ErrorKind::NotLeader) {
            return;
        }
        let mut recent = self.errors.lock();
        let (kind, message) = (error.kind(), error.report());
        let known = recent
            .iter()
            .position(|other| other.operation == operation && other.kind == kind && other.message == message);
        let before = known.and_then(|place| recent.remove(place)).map_or(0, |known| known.count);
        recent.truncate(MOST - 1);
        recent.push_front(RecentError {
            at: SystemTime::now(),
            operation,
            kind,
            message,
            count: before + 1,
        });
    }

    pub(super) fn list(&self) -> Vec<RecentError> {
        self.errors.lock().iter().cloned().collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn equal_errors_are_counted_and_the_latest_is_first() {
        let recent = RecentErrors::default();
        for number in 0..30 {
            recent.add("list", "a", &Error::new(ErrorKind::Unavailable, format!("no {number}")));
            recent.add("get", "b", &Error::new(ErrorKind::Timeout, "no answer"));
            recent.add("get", "b", &Error::new(ErrorKind::NotFound, "not found"));
        }
        let seen: Vec<_> = recent.list().into_iter().map(|error| (error.operation, error.count)).collect();
        assert_eq!(seen.len(), MOST);
        assert_eq!(seen[..2], [("get", 30), ("list", 1)]);
        let silent = recent.silent().unwrap_or_default();
        assert!(silent.starts_with("a: ") && silent.contains("no 29"), "{silent}");
        recent.answered("a");
        assert_eq!(recent.silent(), None, "not found is an answer");
    }
}
