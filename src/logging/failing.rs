//! Failures that last: they are reported when they begin and when they end, not each time.

use std::collections::{BTreeSet, HashMap, HashSet};

use parking_lot::Mutex;

/// The most kinds that are remembered, in case a kind is a text that changes each time.
const MAX_KINDS: usize = 16;

/// The kinds of failures of one thing since it last worked.
#[derive(Debug)]
pub(crate) struct Failing<K = ()>(Mutex<BTreeSet<K>>);

impl<K> Default for Failing<K> {
    fn default() -> Self {
        Self(Mutex::default())
    }
}

impl<K: Ord> Failing<K> {
    /// Records a failure. Returns whether to report it: there was none of this kind since the thing last worked.
    pub(crate) fn begins(&self, kind: K) -> bool {
        let mut kinds = self.0.lock();
        if kinds.len() >= MAX_KINDS && !kinds.contains(&kind) {
            kinds.clear();
        }
        kinds.insert(kind)
    }

    /// Whether the thing failed when it was last tried.
    pub(crate) fn is_ongoing(&self) -> bool {
        !self.0.lock().is_empty()
    }

    /// Records that the thing works. Returns whether to report it: the thing did not work before.
    pub(crate) fn ends(&self) -> bool {
        !std::mem::take(&mut *self.0.lock()).is_empty()
    }
}

/// Things that fail, by the kind of failure. When a cloud fails, it fails for everything: one line is logged when the first
/// thing fails in some way, and one when the last thing does not fail in that way any more.
#[derive(Debug, Default)]
pub(crate) struct FailingByKind(Mutex<HashMap<&'static str, HashSet<String>>>);

impl FailingByKind {
    /// Records that a thing fails. Returns whether it is the first to fail in this way; and the kind of its last failure, if no
    /// other thing fails in that way.
    pub(crate) fn failed(&self, thing: &str, kind: &'static str) -> (bool, Option<&'static str>) {
        let mut failing = self.0.lock();
        let ended = remove(&mut failing, thing, Some(kind));
        let things = failing.entry(kind).or_default();
        let is_first = things.is_empty();
        things.insert(thing.to_owned());
        (is_first, ended)
    }

    /// Records that a thing works. Returns the kind of its last failure, if no other thing fails in that way.
    pub(crate) fn works(&self, thing: &str) -> Option<&'static str> {
        remove(&mut self.0.lock(), thing, None)
    }
}

fn remove(
    failing: &mut HashMap<&'static str, HashSet<String>>,
    thing: &str,
    except: Option<&str>,
) -> Option<&'static str> {
    let (kind, things) = failing
        .iter_mut()
        .find(|(kind, things)| Some(**kind) != except && things.contains(thing))?;
    things.remove(thing);
    let ended = things.is_empty().then_some(*kind)?;
    failing.remove(ended)?;
    Some(ended)
}

/// Logs a new failure as a warning, and one that continues at the level of details.
macro_rules! warn_if_new {
    ($is_new:expr, $($event:tt)+) => {
        if $is_new {
            tracing::warn!($($event)+);
        } else {
            tracing::debug!($($event)+);
        }
    };
}
pub(crate) use warn_if_new;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_failure_is_reported_once_for_each_kind_and_so_is_its_end() {
        let failing = Failing::default();
        assert!(!failing.ends());
        assert!(failing.begins("timeout") && !failing.begins("timeout"));
        assert!(failing.begins("refused") && !failing.begins("timeout"));
        assert!(failing.ends() && !failing.ends());
        assert!(failing.begins("timeout"));
        let texts = Failing::default();
        assert!((0..1000).all(|number| texts.begins(number)));
        assert!(texts.0.lock().len() <= MAX_KINDS);
    }

    #[test]
    fn the_first_thing_that_fails_and_the_last_that_works_are_reported() {
        let failing = FailingByKind::default();
        assert_eq!(failing.failed("a", "timeout"), (true, None));
        assert_eq!(failing.failed("a", "timeout"), (false, None));
        assert_eq!(failing.failed("b", "timeout"), (false, None));
        assert_eq!(failing.failed("a", "refused"), (true, None));
        assert_eq!(failing.failed("b", "refused"), (false, Some("timeout")));
        assert_eq!(failing.works("a"), None);
        assert_eq!(failing.works("b"), Some("refused"));
        assert_eq!(failing.works("b"), None);
    }
}
