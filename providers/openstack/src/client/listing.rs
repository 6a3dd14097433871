//! Listings of Neutron and Octavia: `{"<things>": [...], "<things>_links": [...]}`. The ID of the last object selects
//! the next page.

use std::{fmt, marker::PhantomData};

use ccm_core::{
    Error, ErrorKind, Priority, Result,
    client::{Page, Pages, rest::is_too_large},
};
use serde::{
    Deserialize, Deserializer, Serialize, Serializer,
    de::{self, DeserializeOwned, IgnoredAny, MapAccess, Visitor},
};
use tracing::debug;

use super::{
    api::{Api, Call, read},
    catalog::Service,
    ops::Op,
};

/// An object of a service.
pub(crate) trait Resource: DeserializeOwned + Send + Sync + 'static {
    /// The key of one object in a document.
    const ONE: &'static str;
    /// The key of several objects in a document.
    const MANY: &'static str;
    /// The service.
    const SERVICE: Service;
    /// The path of the listing below the service.
    const PATH: &'static [&'static str];
    /// The operation that reads a page.
    const LIST: Op;

    /// The object's ID.
    fn id(&self) -> &str;
}

/// Declares the paths and keys of resources, one line for each.
macro_rules! resources {
    ($($record:ident: $one:literal $many:literal of $service:ident at $path:expr, $list:ident;)+) => {$(
        impl $crate::client::listing::Resource for $record {
            const ONE: &'static str = $one;
            const MANY: &'static str = $many;
            const SERVICE: $crate::client::catalog::Service = $crate::client::catalog::Service::$service;
            const PATH: &'static [&'static str] = &$path;
            const LIST: $crate::client::Op = $crate::client::Op::$list;

            fn id(&self) -> &str {
                &self.id
            }
        }
    )+};
}
pub(crate) use resources;

/// A document with one object.
#[derive(Debug)]
pub(crate) struct Single<T>(pub(crate) T);

/// A document that wraps one object under its key.
struct Envelope<'a, B: ?Sized>(&'static str, &'a B);

impl<B: Serialize + ?Sized> Serialize for Envelope<'_, B> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_map([(self.0, self.1)])
    }
}

/// A page of objects.
#[derive(Debug)]
struct Collection<T> {
    things: Vec<T>,
    has_next: bool,
}

#[derive(Deserialize)]
struct PageLink {
    #[serde(default)]
    rel: String,
}

/// Reads the value of a key of a document, and whether the document has a link to the next page.
fn document<'de, V: Deserialize<'de>, D: Deserializer<'de>>(
    deserializer: D,
    key: &'static str,
) -> Result<(V, bool), D::Error> {
    struct ResourceDocument<V>(&'static str, PhantomData<V>);
    impl<'de, V: Deserialize<'de>> Visitor<'de> for ResourceDocument<V> {
        type Value = (V, bool);

        fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            write!(f, "a document with {}", self.0)
        }

        fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<(V, bool), A::Error> {
            let (mut found, mut links) = (None, None::<Vec<PageLink>>);
            while let Some(key) = map.next_key::<String>()? {
                if key == self.0 {
                    found = Some(map.next_value()?);
                } else if key.strip_suffix("_links") == Some(self.0) {
                    links = map.next_value()?;
                } else {
                    map.next_value::<IgnoredAny>()?;
                }
            }
            // The link's URL is not used: services behind a proxy often return one that cannot be reached.
            let has_next = links.unwrap_or_default().iter().any(|link| link.rel == "next");
            Ok((found.ok_or_else(|| de::Error::missing_field(self.0))?, has_next))
        }
    }
    deserializer.deserialize_map(ResourceDocument(key, PhantomData))
}

impl<'de, T: Resource> Deserialize<'de> for Single<T> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        document(deserializer, T::ONE).map(|(thing, _)| Self(thing))
    }
}

impl<'de, T: Resource> Deserialize<'de> for Collection<T> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let (things, has_next) = document(deserializer, T::MANY)?;
        Ok(Self { things, has_next })
    }
}

impl Api {
    /// Lists all objects that match the query. An incomplete listing is an error.
    ///
    /// # Errors
    ///
    /// As [`crate::error`] maps them, but never of kind `NotFound`: a missing listing proves nothing about objects.
    pub(crate) async fn list<T: Resource>(
        &self,
        query: &[(&'static str, &str)],
        priority: Priority,
    ) -> Result<Vec<T>> {
        self.list_at(T::PATH, query, priority).await
    }

    /// As [`Self::list`], for objects below others.
    ///
    /// # Errors
    ///
    /// As [`Self::list`].
    pub(crate) async fn list_at<T: Resource>(
        &self,
        path: &[&str],
        query: &[(&'static str, &str)],
        priority: Priority,
    ) -> Result<Vec<T>> {
        let mut restarted = false;
        'walk: loop {
            let mut things = Vec::new();
            let mut pages = Pages::start();
            loop {
                let fetched = pages.fetched();
                let size = self.page_sizes.get(T::MANY);
                match pages.next(|marker| self.page(path, query, (marker, size), priority)).await {
                    Ok(Some(page)) => things.extend(page),
                    Ok(None) => return Ok(things),
                    Err(error) if is_too_large(&error) && self.page_sizes.shorten(T::MANY, size) => {
                        debug!(things = T::MANY, size, "A page is too large, requesting shorter ones");
                    }
                    // The object whose ID was the marker was deleted.
                    Err(error)
                        if matches!(error.kind(), ErrorKind::Unexpected | ErrorKind::NotFound)
                            && fetched > 0
                            && !restarted =>
                    {
                        debug!(things = T::MANY, error = error.report(), "Listing again from the start");
                        restarted = true;
                        continue 'walk;
                    }
                    Err(error) if error.kind() == ErrorKind::NotFound => {
                        let what = format!("the listing of {} could not be read", T::MANY);
                        return Err(Error::new(ErrorKind::Unexpected, what).with_source(error));
                    }
                    Err(error) => {
                        self.page_sizes.failed(T::MANY, &error);
                        return Err(error);
                    }
                }
            }
        }
    }

    /// Reads the object with this ID; `None` if it does not exist.
    ///
    /// # Errors
    /// If it cannot be read, or the answer is another object.
    pub(crate) async fn find<T: Resource>(&self, op: Op, id: &str, priority: Priority) -> Result<Option<T>> {
        let path: Vec<_> = T::PATH.iter().copied().chain([id]).collect();
        let get = read(op, T::SERVICE, &path);
        match self.get::<Single<T>>(&get, priority).await {
            Ok(Single(found)) if found.id() != id => {
                let (kind, other) = (T::ONE, found.id());
                let text = format!("requested {kind} {id}, the answer is {kind} {other}");
                Err(Error::new(ErrorKind::Unexpected, text))
            }
            Ok(Single(found)) => Ok(Some(found)),
            Err(error) if error.kind() == ErrorKind::NotFound => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Sends a document with one object, and returns the object from the answer.
    ///
    /// # Errors
    ///
    /// As [`Api::write`].
    pub(crate) async fn write_one<T: Resource>(
        &self,
        write: Call<'_>,
        body: &(impl Serialize + ?Sized),
        priority: Priority,
    ) -> Result<T> {
        let body = Envelope(T::ONE, body);
        let Single(thing) = self.write(&write.json(&body)?, priority).await?;
        Ok(thing)
    }

    async fn page<T: Resource>(
        &self,
        path: &[&str],
        query: &[(&'static str, &str)],
        (marker, size): (Option<String>, usize),
        priority: Priority,
    ) -> Result<Page<T, String>> {
        let mut all = query.to_vec();
        let size = size.to_string();
        all.push(("limit", &size));
        all.extend(marker.as_deref().map(|marker| ("marker", marker)));
        let get = Call {
            query: &all,
            ..read(T::LIST, T::SERVICE, path)
        };
        let page: Collection<T> = self.get(&get, priority).await?;
        let last = page.things.last().map(|thing| thing.id().to_owned());
        Ok(Page {
            next: if page.has_next { last } else { None },
            items: page.things,
        })
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[derive(Debug, Deserialize)]
    struct Apple {
        id: String,
    }

    resources! { Apple: "apple" "apples" of Network at ["apples"], NetworkList; }

    #[test]
    fn reads_its_own_key_and_leaves_the_others() {
        let page: Collection<Apple> = serde_json::from_str(
            r#"{"pears": [1], "apples": [{"id": "a", "new": {}}], "apples_links": [{"rel": "next", "href": "x"}]}"#,
        )
        .unwrap();
        assert!(page.has_next && page.things.len() == 1);
        let page: Collection<Apple> =
            serde_json::from_str(r#"{"apples": [], "apples_links": null}"#).unwrap();
        assert!(!page.has_next && page.things.is_empty());
        let one: Single<Apple> = serde_json::from_str(r#"{"apple": {"id": "a"}, "more": 1}"#).unwrap();
        assert_eq!(one.0.id(), "a");
    }

    #[test]
    fn a_page_without_its_list_is_an_error() {
        for text in [r#"{}"#, r#"{"apples": null}"#, "[]", r#"{"pears": []}"#] {
            assert!(serde_json::from_str::<Collection<Apple>>(text).is_err(), "{text}");
        }
        assert!(serde_json::from_str::<Single<Apple>>(r#"{"apples": []}"#).is_err());
    }
}
