//! Shared copies of strings that occur in many objects.

use std::{collections::HashSet, sync::Arc};

/// Shares strings. Labels of a cluster's nodes are mostly the same; objects from the watch replace theirs by the known copy.
#[derive(Debug, Default)]
pub struct Interner {
    known: HashSet<Arc<str>>,
    /// The number of strings at which unused ones are dropped.
    limit: usize,
}

impl Interner {
    /// Replaces the string by the known copy, or adds it.
    pub fn share(&mut self, text: &mut Arc<str>) {
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
    fn equal_strings_are_shared_and_unused_ones_dropped() {
        let mut interner = Interner::default();
        let (mut a, mut b): (Arc<str>, Arc<str>) = ("same".into(), "same".into());
        interner.share(&mut a);
        interner.share(&mut b);
        assert!(Arc::ptr_eq(&a, &b));
        for i in 0..5000 {
            interner.share(&mut format!("unused-{i}").into());
        }
        assert!(interner.known.len() <= 1024 + 1, "{}", interner.known.len());
        assert!(interner.known.contains("same"), "a used string is kept");
    }
}
