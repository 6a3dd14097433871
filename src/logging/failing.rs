//! Failures that last: reported when they begin and when they end, not each time.

use std::collections::BTreeSet;

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
    /// Records a failure. Whether it is to be reported: there was none of this kind since the thing last worked.
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

    /// Records that the thing works. Whether that is to be reported: it did not work before.
    pub(crate) fn ends(&self) -> bool {
        !std::mem::take(&mut *self.0.lock()).is_empty()
    }
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
}
