//! Divides a refused batch until the bad items are alone.

use ccm_core::{Error, ErrorKind, RequestOutcome, Result};

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
    error.kind() == ErrorKind::Conflict && error.outcome() == RequestOutcome::NotDone
}

/// Sends a batch, and returns the result of each item.
///
/// A refused batch is sent again in halves, the first half first. A reached limit ends the division, since later items
/// would not fit either. An error that is not about the items ends it, too.
pub(super) async fn divide<'a, T, Fut>(
    items: &'a [T],
    mut send: impl FnMut(&'a [T]) -> Fut,
) -> Vec<Result<()>>
where
    Fut: Future<Output = Result<Vec<Result<()>>>>,
{
    let mut results = Vec::with_capacity(items.len());
    let mut refusals = 0;
    // The next one last.
    let mut batches = vec![items];
    batches.retain(|batch| !batch.is_empty());
    while let Some(batch) = batches.pop() {
        let error = match send(batch).await {
            Ok(each) => {
                results.extend(each);
                continue;
            }
            Err(error) => error,
        };
        refusals += 1;
        let is_of_item = error.kind() == ErrorKind::InvalidSpec;
        let may_divide = is_of_item || error.kind() == ErrorKind::QuotaExceeded;
        if may_divide && batch.len() > 1 && refusals < REFUSALS_MAX {
            let (first, second) = batch.split_at(batch.len() / 2);
            batches.extend([second, first]);
            continue;
        }
        // The error of all items that are not sent any more.
        let last = if !is_of_item {
            Some(error.clone())
        } else if refusals >= REFUSALS_MAX {
            // This error is about other items.
            let text = "not tried, since too many others were refused at the same time";
            Some(Error::new(ErrorKind::InvalidSpec, text))
        } else {
            None
        };
        let cause = match &last {
            Some(last) if batch.len() > 1 => last.clone(),
            _ => error,
        };
        results.resize(results.len() + batch.len(), Err(cause));
        if let Some(error) = last {
            results.resize(items.len(), Err(error));
            break;
        }
    }
    results
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::expect_used)]
    use super::*;

    /// Simulates a cloud with a limit that refuses some items. Returns the accepted items, the results, and the number of calls.
    async fn play(items: usize, bad: &[usize], room: usize) -> (Vec<usize>, Vec<Result<()>>, usize) {
        let (mut table, mut calls) = (Vec::new(), 0);
        let all: Vec<_> = (0..items).collect();
        let results = divide(&all, |batch| {
            calls += 1;
            let answer = if bad.iter().any(|bad| batch.contains(bad)) {
                Err(Error::new(ErrorKind::InvalidSpec, "bad"))
            } else if table.len() + batch.len() > room {
                Err(Error::new(ErrorKind::QuotaExceeded, "full"))
            } else {
                table.extend(batch);
                Ok(vec![Ok(()); batch.len()])
            };
            async { answer }
        });
        let results = results.await;
        (table, results, calls)
    }

    fn kind(result: &Result<()>) -> Option<ErrorKind> {
        result.as_ref().err().map(Error::kind)
    }

    #[tokio::test]
    async fn good_items_are_one_request() {
        let (table, results, calls) = play(500, &[], 500).await;
        assert_eq!((table.len(), calls), (500, 1));
        assert!(results.len() == 500 && results.iter().all(Result::is_ok));
        assert_eq!(play(0, &[], 1).await.2, 0);
    }

    #[tokio::test]
    async fn bad_items_are_refused_alone() {
        let (table, results, calls) = play(100, &[3, 77], 1000).await;
        assert_eq!(table.len(), 98);
        for (i, result) in results.iter().enumerate() {
            let is_bad = [3, 77].contains(&i);
            assert_eq!(kind(result), is_bad.then_some(ErrorKind::InvalidSpec), "{i}");
        }
        assert!(calls <= 30, "{calls}");
    }

    #[tokio::test]
    async fn a_limit_is_filled_from_the_beginning() {
        for (items, bad, room) in [(31, &[][..], 30), (31, &[5], 29), (1, &[], 0), (1000, &[], 7)] {
            let (table, results, calls) = play(items, bad, room).await;
            assert_eq!(table.len(), room);
            assert!(table.is_sorted(), "the first ones have it");
            assert_eq!(results.iter().filter(|result| result.is_ok()).count(), room);
            assert_eq!(results.last().and_then(kind), Some(ErrorKind::QuotaExceeded));
            assert!(calls <= 25, "{calls}");
        }
    }

    #[tokio::test]
    async fn a_batch_with_few_good_items_is_abandoned() {
        let all: Vec<usize> = (0..1000).collect();
        let (_, results, calls) = play(1000, &all, 1000).await;
        assert_eq!(calls, REFUSALS_MAX);
        let errors: Vec<_> = results.into_iter().map(Result::unwrap_err).collect();
        assert!(errors.iter().all(|error| error.kind() == ErrorKind::InvalidSpec));
        assert_eq!((errors.len(), errors[0].message()), (1000, "bad"));
        assert!(errors[999].message().starts_with("not tried"), "{}", errors[999]);
    }

    #[tokio::test]
    async fn an_error_that_is_not_about_items_fails_all() {
        let mut sent = Vec::new();
        let results = divide(&[0, 1, 2, 3, 4, 5, 6, 7], |batch| {
            sent.push(batch);
            let answer = match sent.len() {
                1 => Err(Error::new(ErrorKind::InvalidSpec, "bad")),
                2 => Ok(vec![Ok(()); 4]),
                3 => Err(Error::new(ErrorKind::InvalidSpec, "bad")),
                _ => Err(Error::new(ErrorKind::Unavailable, "down")),
            };
            async { answer }
        });
        let failed: Vec<_> = results.await.iter().map(kind).collect();
        let down = Some(ErrorKind::Unavailable);
        assert_eq!(failed, [None, None, None, None, down, down, down, down]);
        assert_eq!(sent[1..], [&[0, 1, 2, 3][..], &[4, 5, 6, 7], &[4, 5]]);
    }
}
