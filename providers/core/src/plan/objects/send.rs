//! Sending the changes of objects.

use async_trait::async_trait;

use super::{Action, Attributes, ChangeReply, Kind, Object, ObjectChange, Objects, Set, UpdateCall as _};
use crate::{Error, ErrorKind, RequestOutcome, Result, Retry, plan::WriteConflict};

/// The calls of a provider for its objects. Ids are in the observed objects.
#[async_trait]
pub trait ObjectCalls<K: Kind>: Sync {
    /// Creates an object and its children, if any. `observed` has the ids that it refers to.
    async fn create(
        &self,
        object: &Object<K>,
        children: &[Object<K>],
        observed: &Objects<K>,
    ) -> Result<ChangeReply<K>>;

    /// Gives attributes of an object other values.
    async fn update(
        &self,
        object: &Object<K>,
        call: K::Update,
        _attributes: &Attributes,
        _observed: &Objects<K>,
    ) -> Result<ChangeReply<K>> {
        Err(unsupported(object, call.label()))
    }

    /// Deletes an object. Succeeds if the object does not exist.
    async fn delete(&self, object: &Object<K>, cascade: bool) -> Result<()>;

    /// Adds entries to a set of an object. An error means that none was added.
    async fn add(
        &self,
        object: &Object<K>,
        set: &'static str,
        _entries: &[K::Entry],
    ) -> Result<ChangeReply<K>> {
        Err(unsupported(object, set))
    }

    /// Removes entries from a set of an object. An error means that none was removed.
    async fn remove(&self, object: &Object<K>, set: &'static str, _entries: &[K::Entry]) -> Result<()> {
        Err(unsupported(object, set))
    }

    /// Gives a set of an object these entries and no others.
    async fn set(
        &self,
        object: &Object<K>,
        set: &'static str,
        _entries: &[K::Entry],
    ) -> Result<ChangeReply<K>> {
        Err(unsupported(object, set))
    }
}

/// The error for a change that no call implements: a bug.
pub fn unsupported<K: Kind>(object: &Object<K>, what: &str) -> Error {
    let text = format!("the provider has no call to change {what} of {}; this is a bug", object.title());
    Error::new(ErrorKind::Unexpected, text)
}

/// The error if the part changed since it was read, and nothing was sent: the engine reads the part again.
#[must_use]
pub fn stale() -> Error {
    Error::new(ErrorKind::Conflict, "the object changed since it was read").with_retry(Retry::Never)
}

/// Sends a change.
///
/// A batch that the cloud refuses because of an entry is halved until the entry is alone; it is then in
/// [`ChangeReply::refused`], and everything else is done. Once an entry is refused because a quota is exhausted, the rest is
/// refused with it.
///
/// # Errors
/// As the call fails; [`stale`] if the object is not among the observed ones, or its id is not known.
pub async fn send<K: Kind>(
    calls: &impl ObjectCalls<K>,
    change: &ObjectChange<K>,
    observed: &Objects<K>,
) -> Result<ChangeReply<K>> {
    if let Action::Create(object, children) = &change.action {
        return calls.create(object, children, observed).await;
    }
    let object = observed.get(change.kind, &change.key);
    let object = object.filter(|object| !object.id.is_empty()).ok_or_else(stale)?;
    match &change.action {
        Action::Update(call, attributes) => calls.update(object, *call, attributes, observed).await,
        Action::Delete(cascade) => calls.delete(object, *cascade).await.map(|()| ChangeReply::default()),
        Action::Add(set, entries) => bisect(calls, object, set, entries, true).await,
        Action::Remove(set, entries) => {
            // As they were observed: entries that the cloud itself added to a new object have an id there.
            let observed = entries.iter().filter_map(|entry| object.entry(set.name, entry));
            let observed: Vec<_> = observed.cloned().collect();
            bisect(calls, object, set, &observed, false).await
        }
        Action::Set(set, entries) => calls.set(object, set.name, entries).await,
        Action::Create(..) => Err(stale()),
    }
}

async fn bisect<K: Kind>(
    calls: &impl ObjectCalls<K>,
    object: &Object<K>,
    set: &Set<K>,
    entries: &[K::Entry],
    add: bool,
) -> Result<ChangeReply<K>> {
    let mut all = ChangeReply::default();
    let mut rest = vec![entries];
    rest.retain(|entries| !entries.is_empty());
    while let Some(entries) = rest.pop() {
        let result = if add {
            calls.add(object, set.name, entries).await
        } else {
            calls.remove(object, set.name, entries).await.map(|()| ChangeReply::default())
        };
        match (result, entries) {
            (Ok(reply), _) => {
                all.objects.extend(reply.objects);
                all.entries.extend(reply.entries);
                all.refused.extend(reply.refused);
            }
            (Err(error), _) if matches!(set.batch, 1 | usize::MAX) || !is_about_entries(&error) => {
                return Err(error);
            }
            (Err(error), [_]) if is_done_already(&error, add) => {}
            (Err(error), [entry]) => {
                let reason = error.report_without_request();
                all.refused.push((entry.clone(), reason.clone()));
                if error.kind() == ErrorKind::QuotaExceeded {
                    let unsent = rest.drain(..).flatten();
                    all.refused.extend(unsent.map(|entry| (entry.clone(), reason.clone())));
                }
            }
            (Err(_), several) => {
                let (left, right) = several.split_at(several.len() / 2);
                rest.extend([right, left]);
            }
        }
    }
    Ok(all)
}

/// Whether a call was refused because of its entries, so that a call with fewer entries may succeed.
fn is_about_entries(error: &Error) -> bool {
    error.outcome() != RequestOutcome::Unknown
        && WriteConflict::of(error).is_none()
        && matches!(
            error.kind(),
            ErrorKind::InvalidSpec
                | ErrorKind::NotFound
                | ErrorKind::AlreadyExists
                | ErrorKind::Conflict
                | ErrorKind::QuotaExceeded
                | ErrorKind::Unsupported
        )
}

fn is_done_already(error: &Error, add: bool) -> bool {
    error.kind()
        == if add {
            ErrorKind::AlreadyExists
        } else {
            ErrorKind::NotFound
        }
}
