//! The state of a cloud of documents: collections, and changes that take effect later.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use jiff::Timestamp;
use serde_json::{Map, Value};

/// A document of a collection.
#[derive(Clone, Debug)]
pub(crate) struct Document {
    pub(crate) id: String,
    pub(crate) fields: Map<String, Value>,
    /// The number of the last change.
    pub(crate) revision: u64,
}

impl Document {
    /// A text field; empty if there is none.
    pub(crate) fn text(&self, name: &str) -> &str {
        self.fields.get(name).and_then(Value::as_str).unwrap_or_default()
    }
}

/// Documents in the order of their creation.
#[derive(Clone, Debug, Default)]
struct Collection {
    documents: BTreeMap<u64, Arc<Document>>,
    places: HashMap<String, u64>,
}

/// The effect of an operation on a document.
#[derive(Clone, Debug)]
pub(crate) enum Effect {
    /// Sets these fields.
    Merge(Map<String, Value>),
    /// Deletes the document.
    #[cfg_attr(not(test), expect(dead_code, reason = "the first cloud deletes at once"))]
    Remove,
}

/// A document and the effect on it.
pub(crate) type Change = (&'static str, String, Effect);

/// An asynchronous operation.
#[derive(Clone, Debug)]
struct Pending {
    due: Timestamp,
    success: Vec<Change>,
    failure: Vec<Change>,
}

/// All documents of a cloud. Documents are behind `Arc`, so that freezing the state for a stale read copies none.
#[derive(Clone, Debug, Default)]
pub(crate) struct Store {
    collections: BTreeMap<String, Collection>,
    pending: Vec<Pending>,
    created: u64,
    /// How many of the next asynchronous operations fail.
    pub(crate) failing: u32,
    /// The most documents of each collection; unlimited if missing.
    pub(crate) limits: BTreeMap<String, usize>,
}

impl Store {
    /// The documents of a collection, in the order of their creation.
    pub(crate) fn all(&self, collection: &str) -> impl Iterator<Item = &Arc<Document>> {
        let found = self.collections.get(collection);
        found.into_iter().flat_map(|found| found.documents.values())
    }

    pub(crate) fn get(&self, collection: &str, id: &str) -> Option<&Arc<Document>> {
        let found = self.collections.get(collection)?;
        found.documents.get(found.places.get(id)?)
    }

    /// Whether the quota allows another document.
    pub(crate) fn has_room(&self, collection: &str) -> bool {
        let limit = self.limits.get(collection);
        limit.is_none_or(|limit| self.all(collection).count() < *limit)
    }

    /// Returns the number of the next change.
    pub(crate) fn next(&self) -> u64 {
        self.created + 1
    }

    /// Adds a document, or replaces the one with this id.
    pub(crate) fn insert(&mut self, collection: &str, id: &str, fields: Map<String, Value>) {
        self.created += 1;
        let created = self.created;
        let found = self.collections.entry(collection.to_owned()).or_default();
        let place = *found.places.entry(id.to_owned()).or_insert(created);
        let document = Document {
            id: id.to_owned(),
            fields,
            revision: created,
        };
        found.documents.insert(place, Arc::new(document));
    }

    /// Changes a document; `false` if it does not exist.
    pub(crate) fn change(
        &mut self,
        collection: &str,
        id: &str,
        change: impl FnOnce(&mut Map<String, Value>),
    ) -> bool {
        self.created += 1;
        let revision = self.created;
        let found = self.collections.get_mut(collection).and_then(|found| {
            let place = found.places.get(id)?;
            found.documents.get_mut(place)
        });
        let Some(document) = found else {
            return false;
        };
        let document = Arc::make_mut(document);
        change(&mut document.fields);
        document.revision = revision;
        true
    }

    /// Deletes a document; `false` if it does not exist.
    pub(crate) fn remove(&mut self, collection: &str, id: &str) -> bool {
        let Some(found) = self.collections.get_mut(collection) else {
            return false;
        };
        let place = found.places.remove(id);
        place.is_some_and(|place| found.documents.remove(&place).is_some())
    }

    /// Starts an asynchronous operation. When it ends, the changes in `success` take effect together, or those in
    /// `failure`.
    pub(crate) fn schedule(&mut self, due: Timestamp, success: Vec<Change>, failure: Vec<Change>) {
        self.pending.push(Pending {
            due,
            success,
            failure,
        });
    }

    /// Ends the due operations in the order of their due times.
    pub(crate) fn settle(&mut self, now: Timestamp) {
        let (mut ended, pending) = std::mem::take(&mut self.pending)
            .into_iter()
            .partition::<Vec<_>, _>(|pending| pending.due <= now);
        self.pending = pending;
        ended.sort_by_key(|ended| ended.due);
        for ended in ended {
            let changes = match self.failing.checked_sub(1) {
                Some(left) => {
                    self.failing = left;
                    ended.failure
                }
                None => ended.success,
            };
            for (collection, id, effect) in changes {
                // The document may have been deleted meanwhile.
                let _present = match effect {
                    Effect::Merge(fields) => self.change(collection, &id, |known| known.extend(fields)),
                    Effect::Remove => self.remove(collection, &id),
                };
            }
        }
    }
}
