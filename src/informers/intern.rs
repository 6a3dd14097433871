//! One copy of strings that many objects share.

use std::{collections::HashSet, sync::Arc};

/// Labels of a cluster's nodes are mostly the same strings. Objects that come from the watch exchange theirs for the
/// copy that is here.
#[derive(Debug, Default)]
pub(crate) struct Interner {
    known: HashSet<Arc<str>>,
    /// When this many are known, those that nobody uses any more are dropped.
    limit: usize,
}

/// An object in a store, whose strings can be exchanged.
pub(crate) trait Intern {
    /// Exchanges the strings that are worth it.
    fn intern(&mut self, interner: &mut Interner);

    /// Whether anybody has to do with it. Of others nothing is stored.
    fn is_kept(&self) -> bool {
        true
    }
}

impl Interner {
    /// Exchanges the string for the copy that is known, or makes it known.
    pub(crate) fn share(&mut self, text: &mut Arc<str>) {
        if let Some(known) = self.known.get(text) {
            text.clone_from(known);
            return;
        }
        if self.known.len() >= self.limit {
            self.known.retain(|known| Arc::strong_count(known) > 1);
            self.limit = (self.known.len() * 2).max(1024);
        }
        self.known.insert(Arc::clone(text));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn equal_strings_become_one_and_unused_ones_go() {
        let mut interner = Interner::default();
        let (mut a, mut b): (Arc<str>, Arc<str>) = ("same".into(), "same".into());
        interner.share(&mut a);
        interner.share(&mut b);
        assert!(Arc::ptr_eq(&a, &b));
        for i in 0..5000 {
            interner.share(&mut format!("unused-{i}").into());
        }
        assert!(interner.known.len() <= 1024 + 1, "{}", interner.known.len());
        assert!(interner.known.contains("same"), "what is used stays");
    }
}
