//! Listings in pages.

use std::{collections::HashSet, hash::Hash};

use crate::{Error, ErrorKind, Result};

/// The key of the next page: a token, the ID of the last item, an offset, a URL.
pub trait Marker: Clone + Eq + Hash {
    /// Whether this marker means that no page follows. Some clouds send an empty token instead of none.
    fn is_end(&self) -> bool {
        false
    }
}

impl Marker for String {
    fn is_end(&self) -> bool {
        self.is_empty()
    }
}

impl Marker for u64 {}

/// One page of a listing.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Page<T, M> {
    /// Its items.
    pub items: Vec<T>,
    /// The marker of the page after it; `None` (or an empty token) after the last one.
    pub next: Option<M>,
}

/// An iteration over the pages of one listing, a page at a time, so that the caller may stop early.
///
/// Guards against a server whose listing never ends: a repeated marker is an error, and so are more pages than allowed.
#[derive(Debug)]
pub struct Pages<M> {
    /// The marker of the next page; the outer `None` after the last one.
    next: Option<Option<M>>,
    seen: HashSet<M>,
    fetched: usize,
}

/// More pages than this in one listing are an error of the server. 1000 pages of 1000 items are a million.
const MAX_PAGES: usize = 1000;

impl<M: Marker> Pages<M> {
    /// Starts at the first page.
    #[must_use]
    pub fn start() -> Self {
        Self {
            next: Some(None),
            seen: HashSet::new(),
            fetched: 0,
        }
    }

    /// The number of pages fetched so far.
    #[must_use]
    pub fn fetched(&self) -> usize {
        self.fetched
    }

    /// Whether the last page was fetched. Only then is the listing complete.
    #[must_use]
    pub fn is_complete(&self) -> bool {
        self.next.is_none()
    }

    /// Returns the items of the next page; `None` after the last one.
    ///
    /// After an error of `fetch` the same page may be requested again.
    ///
    /// # Errors
    /// The error of `fetch`; `Unexpected` for a repeated marker and for too many pages.
    pub async fn next<T, Fut>(&mut self, fetch: impl FnOnce(Option<M>) -> Fut) -> Result<Option<Vec<T>>>
    where
        Fut: Future<Output = Result<Page<T, M>>>,
    {
        let Some(marker) = self.next.clone() else {
            return Ok(None);
        };
        if self.fetched >= MAX_PAGES {
            return Err(Error::new(ErrorKind::Unexpected, "the listing has too many pages")
                .with_context("pages", MAX_PAGES.to_string()));
        }
        let page = fetch(marker).await?;
        self.fetched += 1;
        self.next = match page.next.filter(|next| !next.is_end()) {
            None => None,
            Some(next) if self.seen.insert(next.clone()) => Some(Some(next)),
            Some(_) => {
                return Err(Error::new(
                    ErrorKind::Unexpected,
                    "the listing does not end: a page marker was repeated",
                )
                .with_context("pages", self.fetched.to_string()));
            }
        };
        Ok(Some(page.items))
    }
}

/// Returns all items of a listing.
///
/// All or nothing: an incomplete listing is never returned as if it were complete.
///
/// # Errors
/// As [`Pages::next`].
pub async fn collect<T, M, F, Fut>(mut fetch: F) -> Result<Vec<T>>
where
    M: Marker,
    F: FnMut(Option<M>) -> Fut,
    Fut: Future<Output = Result<Page<T, M>>>,
{
    let mut pages = Pages::start();
    let mut all = Vec::new();
    while let Some(items) = pages.next(&mut fetch).await? {
        if all.is_empty() {
            all = items;
        } else {
            all.extend(items);
        }
    }
    Ok(all)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;

    fn page(items: &[u32], next: Option<&str>) -> Page<u32, String> {
        Page {
            items: items.to_vec(),
            next: next.map(str::to_owned),
        }
    }

    #[tokio::test]
    async fn collects_until_there_is_no_next_page() {
        for end in [None, Some("")] {
            let all = collect(async |marker: Option<String>| {
                Ok(match marker.as_deref() {
                    None => page(&[1, 2], Some("a")),
                    Some("a") => page(&[], Some("b")),
                    _ => page(&[3], end),
                })
            })
            .await
            .unwrap();
            assert_eq!(all, [1, 2, 3], "end {end:?}");
        }
    }

    #[tokio::test]
    async fn a_repeated_marker_is_an_error_and_not_an_endless_loop() {
        let mut calls = 0;
        let error = collect(|marker: Option<String>| {
            calls += 1;
            async move { Ok(page(&[1], Some(if marker.as_deref() == Some("a") { "b" } else { "a" }))) }
        })
        .await
        .unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Unexpected);
        assert!(error.to_string().contains("was repeated"), "{error}");
        assert_eq!(calls, 3);
    }

    #[tokio::test]
    async fn too_many_pages_are_an_error() {
        let mut pages = Pages::start();
        let mut fetch = async |marker: Option<u64>| {
            Ok(Page {
                items: vec![()],
                next: Some(marker.map_or(1, |page| page + 1)),
            })
        };
        for _ in 0..MAX_PAGES {
            assert!(pages.next(&mut fetch).await.unwrap().is_some());
        }
        assert!(pages.next(&mut fetch).await.is_err());
        assert!(!pages.is_complete());
    }

    #[tokio::test]
    async fn a_failed_page_fails_the_listing_and_may_be_requested_again() {
        let mut pages = Pages::start();
        let failed = pages
            .next(async |_: Option<String>| {
                Err::<Page<u32, String>, _>(Error::new(ErrorKind::Unavailable, "down"))
            })
            .await;
        assert_eq!(failed.unwrap_err().kind(), ErrorKind::Unavailable);
        assert_eq!(pages.next(async |_| Ok(page(&[4], None))).await.unwrap(), Some(vec![4]));
        assert!(pages.is_complete());
        assert_eq!(pages.next(async |_| Ok(page(&[5], None))).await.unwrap(), None);
        assert_eq!(pages.fetched(), 1);
    }
}
