//! Divides a refused batch until the bad items are alone.

use std::ops::Range;

use ccm_core::{Error, ErrorKind, Outcome, Result};

/// The most refused requests of one batch. One bad route among `n` costs about `2 log2 n` of them. With more refusals,
/// few items are good, and the rest waits for the next pass.
pub(super) const REFUSALS_MAX: usize = 64;

/// Whether a retry may help.
pub(super) fn is_passing(error: &Error) -> bool {
    !matches!(
        error.kind(),
        ErrorKind::NotFound | ErrorKind::PermissionDenied | ErrorKind::InvalidSpec | ErrorKind::Unsupported
    )
}

/// Whether nothing was done because of another writer: a revision (412) or the database (409) conflicted.
pub(super) fn is_overtaken(error: &Error) -> bool {
    error.kind() == ErrorKind::Conflict && error.outcome() == Outcome::NotDone
}

/// Selects the next batch to send, and stores the results.
///
/// A refused batch is sent again in halves, the first half first. A reached limit ends the division, since later items
/// would not fit either. An error that is not about the items ends it, too.
#[derive(Debug)]
pub(super) struct Bisect {
    results: Vec<Result<()>>,
    refusals: usize,
    /// The batches to send, the next one last.
    batches: Vec<Range<usize>>,
}

impl Bisect {
    /// Starts with a number of items.
    pub(super) fn new(items: usize) -> Self {
        Self {
            results: vec![Ok(()); items],
            refusals: 0,
            batches: (items > 0).then_some(0..items).into_iter().collect(),
        }
    }

    /// The next batch to send, until its answer is known.
    pub(super) fn next(&self) -> Option<Range<usize>> {
        self.batches.last().cloned()
    }

    /// Stores the cloud's answer to the next batch: results of its items, or an error of the batch.
    pub(super) fn answer(&mut self, answer: Result<Vec<Result<()>>>) {
        let Some(batch) = self.batches.pop() else { return };
        let error = match answer {
            Ok(each) => {
                for (slot, result) in self.of(batch).zip(each) {
                    *slot = result;
                }
                return;
            }
            Err(error) => error,
        };
        self.refusals += 1;
        let about_items = matches!(error.kind(), ErrorKind::InvalidSpec | ErrorKind::QuotaExceeded);
        if about_items && batch.len() > 1 && self.refusals < REFUSALS_MAX {
            let middle = batch.start + batch.len() / 2;
            self.batches.push(middle..batch.end);
            self.batches.push(batch.start..middle);
            return;
        }
        if error.kind() == ErrorKind::InvalidSpec && self.refusals >= REFUSALS_MAX {
            // The error is about other items.
            let text = "not tried, since too many others were refused at the same time";
            let untried = Error::new(ErrorKind::InvalidSpec, text);
            let cause = if batch.len() == 1 { &error } else { &untried };
            self.fail(batch, cause);
            return self.fail_rest(&untried);
        }
        self.fail(batch, &error);
        if error.kind() != ErrorKind::InvalidSpec {
            self.fail_rest(&error);
        }
    }

    /// The result of each item.
    pub(super) fn into_results(self) -> Vec<Result<()>> {
        self.results
    }

    fn of(&mut self, batch: Range<usize>) -> impl Iterator<Item = &mut Result<()>> {
        self.results.iter_mut().skip(batch.start).take(batch.len())
    }

    /// Fails all remaining batches.
    fn fail_rest(&mut self, error: &Error) {
        for batch in std::mem::take(&mut self.batches) {
            self.fail(batch, error);
        }
    }

    fn fail(&mut self, batch: Range<usize>, error: &Error) {
        for slot in self.of(batch) {
            *slot = Err(error.clone());
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::expect_used)]
    use super::*;

    /// Simulates a cloud with a limit that refuses some items. Returns the accepted items and the results.
    fn play(items: usize, bad: &[usize], room: usize) -> (Vec<usize>, Vec<Option<ErrorKind>>, usize) {
        let mut bisect = Bisect::new(items);
        let (mut table, mut calls) = (Vec::new(), 0);
        while let Some(batch) = bisect.next() {
            calls += 1;
            let answer = if bad.iter().any(|bad| batch.contains(bad)) {
                Err(Error::new(ErrorKind::InvalidSpec, "bad"))
            } else if table.len() + batch.len() > room {
                Err(Error::new(ErrorKind::QuotaExceeded, "full"))
            } else {
                table.extend(batch.clone());
                Ok(vec![Ok(()); batch.len()])
            };
            bisect.answer(answer);
        }
        let kinds = bisect.into_results();
        let kinds = kinds.iter().map(|result| result.as_ref().err().map(Error::kind));
        (table, kinds.collect(), calls)
    }

    #[test]
    fn good_items_are_one_request() {
        let (table, kinds, calls) = play(500, &[], 500);
        assert_eq!((table.len(), calls), (500, 1));
        assert!(kinds.iter().all(Option::is_none));
        assert_eq!(play(0, &[], 1).2, 0);
    }

    #[test]
    fn bad_items_are_refused_alone() {
        let (table, kinds, calls) = play(100, &[3, 77], 1000);
        assert_eq!(table.len(), 98);
        for (i, kind) in kinds.iter().enumerate() {
            assert_eq!(
                *kind,
                [3, 77].contains(&i).then_some(ErrorKind::InvalidSpec),
                "{i}"
            );
        }
        assert!(calls <= 30, "{calls}");
    }

    #[test]
    fn a_limit_is_filled_from_the_beginning() {
        for (items, bad, room) in [(31, &[][..], 30), (31, &[5], 29), (1, &[], 0), (1000, &[], 7)] {
            let (table, kinds, calls) = play(items, bad, room);
            assert_eq!(table.len(), room);
            assert!(table.is_sorted(), "the first ones have it");
            assert_eq!(kinds.iter().filter(|kind| kind.is_none()).count(), room);
            assert_eq!(kinds.last().unwrap(), &Some(ErrorKind::QuotaExceeded));
            assert!(calls <= 25, "{calls}");
        }
    }

    #[test]
    fn a_batch_with_few_good_items_is_abandoned() {
        let all: Vec<usize> = (0..1000).collect();
        let (_, kinds, calls) = play(1000, &all, 1000);
        assert_eq!(calls, REFUSALS_MAX);
        assert!(kinds.iter().all(|kind| *kind == Some(ErrorKind::InvalidSpec)));
        let mut bisect = Bisect::new(1000);
        while bisect.next().is_some() {
            bisect.answer(Err(Error::new(ErrorKind::InvalidSpec, "bad")));
        }
        let results = bisect.into_results();
        let errors: Vec<_> = results
            .iter()
            .map(|result| result.as_ref().unwrap_err().message())
            .collect();
        assert_eq!(errors[0], "bad");
        assert!(errors[999].starts_with("not tried"), "{}", errors[999]);
    }

    #[test]
    fn an_error_that_is_not_about_items_fails_all() {
        let mut bisect = Bisect::new(4);
        bisect.answer(Err(Error::new(ErrorKind::InvalidSpec, "bad")));
        assert_eq!(bisect.next(), Some(0..2));
        bisect.answer(Ok(vec![Ok(()), Ok(())]));
        assert_eq!(bisect.next(), Some(2..4));
        bisect.answer(Err(Error::new(ErrorKind::Unavailable, "down")));
        assert_eq!(bisect.next(), None);
        let failed: Vec<_> = bisect.into_results().iter().map(Result::is_err).collect();
        assert_eq!(failed, [false, false, true, true]);
    }
}
