//! The documents that were read or written last, with the times of their reads.
//!
//! A list is read once and answers for as long as its age allows. An answer to a write replaces the document of the list. What another
//! client changes is seen by the next read that must be newer, or by a write, whose etag does not fit then.

use std::{collections::BTreeMap, sync::Arc};

use ccm_core::{ErrorKind, Freshness, Priority, Result};
use parking_lot::Mutex;
use serde_json::Value;
use tokio::{sync::Mutex as AsyncMutex, time::Instant};

use crate::client::{Arm, resource::Resource};

/// The documents.
#[derive(Debug)]
pub(crate) struct DocumentStore {
    arm: Arm,
    known: Mutex<KnownDocuments>,
    /// One list is read at a time, so that callers that ask at one moment share it.
    reading: AsyncMutex<()>,
}

/// What is known.
#[derive(Debug, Default)]
struct KnownDocuments {
    /// By ID in lower case.
    documents: BTreeMap<String, KnownDocument>,
    /// When the read of a list began, by the beginning of the IDs of its documents.
    lists: BTreeMap<String, Instant>,
    /// Counts the changes.
    version: u64,
}

#[derive(Debug)]
struct KnownDocument {
    /// When its read or write began.
    began: Instant,
    /// `None`: it does not exist.
    document: Option<Arc<Value>>,
    /// It may have changed since: it is read again before it is used. Lists have it as it was.
    is_stale: bool,
}

/// A list of documents whose IDs begin with `prefix`, in lower case and with a slash at the end.
#[derive(Clone, Copy, Debug)]
pub(crate) struct DocumentList<'a> {
    pub(crate) prefix: &'a str,
    pub(crate) resource: Resource<'a>,
}

impl KnownDocuments {
    fn in_list(&self, prefix: &str) -> Vec<Arc<Value>> {
        let range = self.documents.range(prefix.to_owned()..);
        range
            .take_while(|(id, _)| id.starts_with(prefix))
            // Documents below those of the list, such as instances below scale sets, are not in it.
            .filter(|(id, _)| !id[prefix.len()..].contains('/'))
            .filter_map(|(_, known)| known.document.clone())
            .collect()
    }

    fn insert(&mut self, id: &str, began: Instant, document: Option<Value>) {
        let id = id.to_ascii_lowercase();
        let document = document.map(Arc::new);
        let before = self.documents.get(&id).and_then(|known| known.document.as_ref());
        if before != document.as_ref() {
            self.version += 1;
        }
        let known = KnownDocument {
            began,
            document,
            is_stale: false,
        };
        self.documents.insert(id, known);
    }
}

impl DocumentStore {
    pub(crate) fn new(arm: &Arm) -> Self {
        Self {
            arm: arm.clone(),
            known: Mutex::default(),
            reading: AsyncMutex::default(),
        }
    }

    /// Changes whenever a document does.
    pub(crate) fn version(&self) -> u64 {
        self.known.lock().version
    }

    /// The documents of a list. A resource group that does not exist has none.
    ///
    /// # Errors
    /// The list could not be read.
    pub(crate) async fn list(
        &self,
        list: DocumentList<'_>,
        freshness: Freshness,
        priority: Priority,
    ) -> Result<Vec<Arc<Value>>> {
        if let Some(documents) = self.known_list(list.prefix, freshness) {
            return Ok(documents);
        }
        let reading = self.reading.lock().await;
        if let Some(documents) = self.known_list(list.prefix, freshness) {
            return Ok(documents);
        }
        let began = Instant::now();
        let read = match self.arm.list(list.resource, priority).await {
            Err(error) if error.kind() == ErrorKind::NotFound => Vec::new(),
            read => read?,
        };
        let mut known = self.known.lock();
        let prefix = list.prefix;
        // A document that was written meanwhile is newer than the list.
        known.documents.retain(|id, known| {
            known.began >= began || id.strip_prefix(prefix).is_none_or(|name| name.contains('/'))
        });
        for document in read {
            let Some(id) = document.get("id").and_then(Value::as_str).map(str::to_ascii_lowercase) else {
                continue;
            };
            if !known.documents.contains_key(&id) {
                known.insert(&id, began, Some(document));
            }
        }
        known.version += 1;
        known.lists.insert(prefix.to_owned(), began);
        let documents = known.in_list(prefix);
        drop(known);
        drop(reading);
        Ok(documents)
    }

    fn known_list(&self, prefix: &str, freshness: Freshness) -> Option<Vec<Arc<Value>>> {
        let known = self.known.lock();
        let began = known.lists.get(prefix)?;
        freshness.allows(*began).then(|| known.in_list(prefix))
    }

    /// One document; `None` if it does not exist.
    ///
    /// # Errors
    /// It could not be read.
    pub(crate) async fn get(
        &self,
        id: &str,
        resource: Resource<'_>,
        freshness: Freshness,
        priority: Priority,
    ) -> Result<Option<Arc<Value>>> {
        if let Some(known) = self.known_document(id, freshness) {
            return Ok(known);
        }
        let began = Instant::now();
        let document = self.arm.find(resource, priority).await?;
        self.known.lock().insert(id, began, document.clone());
        Ok(document.map(Arc::new))
    }

    fn known_document(&self, id: &str, freshness: Freshness) -> Option<Option<Arc<Value>>> {
        let id = id.to_ascii_lowercase();
        let known = self.known.lock();
        if let Some(document) = known.documents.get(&id) {
            let is_usable = !document.is_stale && freshness.allows(document.began);
            return is_usable.then(|| document.document.clone());
        }
        let (list, _) = id.rsplit_once('/')?;
        let began = known.lists.get(&format!("{list}/"))?;
        freshness.allows(*began).then_some(None)
    }

    /// Records a document as a write returned it; `None`: it was deleted.
    pub(crate) fn written(&self, id: &str, document: Option<Value>) {
        self.known.lock().insert(id, Instant::now(), document);
    }

    /// Forgets the lists of resources whose IDs have this text in lower case, since a change elsewhere changed them.
    pub(crate) fn forget_lists(&self, kind: &str) {
        let mut known = self.known.lock();
        known.lists.retain(|prefix, _| !prefix.contains(kind));
        known.version += 1;
    }

    /// Records that a document may have changed: a write was refused, or its result is not known.
    pub(crate) fn changed(&self, id: &str) {
        let known = &mut *self.known.lock();
        let unknown = KnownDocument {
            began: Instant::now(),
            document: None,
            is_stale: true,
        };
        known.documents.entry(id.to_ascii_lowercase()).or_insert(unknown).is_stale = true;
    }
}
