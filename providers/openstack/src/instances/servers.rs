//! Finding servers: by listing or one by one, whichever is cheaper.
//!
//! A listing is shared by everybody who asks within the freshness they allow, and only ever says that a server *is*
//! there. That one is missing is said by a read of this one server, or, for a name, by a listing that began after the
//! question: Nova leaves the servers of a cell that is down out of both alike, so that a name is never proof of absence.

use std::{
    collections::HashSet,
    fmt,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use ccm_core::{
    Error, ErrorKind, Freshness, Priority, Result,
    client::{Cache, CacheConfig, ClientMetrics, Page, Pages},
};
use parking_lot::Mutex;
use tokio::time::Instant;
use tracing::debug;

use super::{
    listing::{Listing, Named, common_prefix, escape},
    records::{OneServer, Server, ServerPage, has_next},
};
use crate::client::{Api, Get, Op, catalogue::Service};

/// From here on a server record names its flavor.
pub(crate) const FLAVOR_INLINE: &str = "2.47";
/// Nova's own default for the longest page. A cloud that allows less gives less.
const PAGE: &str = "1000";
/// Listings are freed after this: nobody accepts older ones, and an idle cluster should not pay for them in memory.
const KEPT: Duration = Duration::from_secs(60);

/// What to look for.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) enum Wanted {
    /// The server with this id. The node's name tells where to look.
    Id { id: String, node: String },
    /// The server with exactly this name.
    Name(String),
}

impl Wanted {
    fn node(&self) -> &str {
        match self {
            Self::Id { node, .. } => node,
            Self::Name(name) => name,
        }
    }
}

/// What was found.
#[derive(Clone, Debug)]
pub(super) enum Found {
    /// It is there.
    Server(Arc<Server>),
    /// Nova knows no such id.
    Absent,
    /// Nova shows no such name.
    Unresolved,
}

type Answer = Option<Result<Found>>;

/// Finds servers.
pub(super) struct Servers(Arc<Inner>);

struct Inner {
    api: Api,
    /// By prefix of the names, and by who waits: a user must not wait for what goes in the background.
    listings: Cache<(String, Priority), Listing>,
    memory: Mutex<Memory>,
    /// Set once this Nova has refused [`FLAVOR_INLINE`].
    old: AtomicBool,
}

/// What was learnt of the cloud.
#[derive(Debug, Default)]
struct Memory {
    /// The pages of the listings of the last prefixes, the latest first.
    sizes: Vec<Size>,
    /// Nodes are named otherwise than their servers, so that a prefix of theirs finds little.
    names_differ: bool,
}

#[derive(Debug)]
struct Size {
    prefix: String,
    pages: usize,
    /// If not, there are more pages than this.
    complete: bool,
}

impl fmt::Debug for Servers {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Servers")
            .field("memory", &self.0.memory)
            .finish_non_exhaustive()
    }
}

impl Servers {
    pub(super) fn new(api: Api, metrics: &ClientMetrics) -> Self {
        let config = CacheConfig {
            max_entries: Some(4),
            max_age: Some(KEPT),
            ..CacheConfig::new("openstack_servers")
        };
        Self(Arc::new(Inner {
            api,
            listings: Cache::new(config, metrics),
            memory: Mutex::default(),
            old: AtomicBool::new(false),
        }))
    }

    /// Finds each, in the order of the questions.
    pub(super) async fn find(
        &self,
        wanted: &[Wanted],
        freshness: Freshness,
        priority: Priority,
    ) -> Vec<Result<Found>> {
        let began = Instant::now();
        let mut answers: Vec<Answer> = vec![None; wanted.len()];
        for listing in self.kept(freshness) {
            take(&listing, began, wanted, &mut answers);
        }
        // How many ids were found by listings of a part of the servers.
        let mut narrow = None;
        let mut allowed = freshness;
        // A listing that others began may be too old to have everything; then there is one of our own.
        for _ in 0..2 {
            let open: Vec<&Wanted> = wanted
                .iter()
                .zip(&answers)
                .filter(|(_, answer)| answer.is_none())
                .map(|(wanted, _)| wanted)
                .collect();
            let (prefix, pages) = self.0.choose(&open);
            if pages >= open.len() {
                break;
            }
            let listing = match self.list(prefix, &open, allowed, priority).await {
                Ok(listing) => listing,
                Err(error) => {
                    // Each by itself would cost more and most likely fail as well.
                    return answers
                        .into_iter()
                        .map(|answer| answer.unwrap_or_else(|| Err(error.clone())))
                        .collect();
                }
            };
            let found = take(&listing, began, wanted, &mut answers);
            if listing.complete && !listing.prefix.is_empty() {
                narrow = Some(narrow.unwrap_or(0) + found);
            }
            if listing.began >= began {
                break;
            }
            allowed = Freshness::After(began);
        }
        let singles = self.singles(wanted, &mut answers, priority).await;
        if narrow.is_some_and(|listed| singles > listed.max(3)) {
            // Most of what the listing should have had was found only by id.
            self.0.memory.lock().names_differ = true;
        }
        answers
            .into_iter()
            .map(|answer| answer.unwrap_or(Ok(Found::Unresolved)))
            .collect()
    }

    /// The listings that are at hand, the widest first.
    fn kept(&self, freshness: Freshness) -> Vec<Arc<Listing>> {
        let prefixes: Vec<String> = self
            .0
            .memory
            .lock()
            .sizes
            .iter()
            .map(|size| size.prefix.clone())
            .collect();
        let keys = prefixes
            .into_iter()
            .flat_map(|prefix| [(prefix.clone(), Priority::User), (prefix, Priority::Background)]);
        keys.filter_map(|key| self.0.listings.peek(&key, freshness))
            .map(|(listing, _)| listing)
            .collect()
    }

    async fn list(
        &self,
        prefix: String,
        open: &[&Wanted],
        freshness: Freshness,
        priority: Priority,
    ) -> Result<Arc<Listing>> {
        let ids: HashSet<String> = open
            .iter()
            .filter_map(|wanted| match wanted {
                Wanted::Id { id, .. } => Some(id.clone()),
                Wanted::Name(_) => None,
            })
            .collect();
        let names = open.len() - ids.len();
        let inner = Arc::clone(&self.0);
        let load = {
            let prefix = prefix.clone();
            move || async move { inner.walk(prefix, ids, names, priority).await }
        };
        self.0.listings.get((prefix, priority), freshness, load).await
    }

    /// Reads what is still open one by one. Returns how many ids were found.
    async fn singles(&self, wanted: &[Wanted], answers: &mut [Answer], priority: Priority) -> usize {
        let open: Vec<usize> = answers
            .iter()
            .enumerate()
            .filter(|(_, answer)| answer.is_none())
            .map(|(index, _)| index)
            .collect();
        let reads = open
            .iter()
            .filter_map(|index| wanted.get(*index))
            .map(|wanted| self.0.single(wanted, priority));
        let results = futures_util::future::join_all(reads).await;
        let mut found = 0;
        for (index, result) in open.into_iter().zip(results) {
            if matches!(
                (&result, wanted.get(index)),
                (Ok(Found::Server(_)), Some(Wanted::Id { .. }))
            ) {
                found += 1;
            }
            if let Some(answer) = answers.get_mut(index) {
                *answer = Some(result);
            }
        }
        found
    }
}

/// Answers from a listing what it can answer. Returns how many ids were found. `asked` is when the questions came.
fn take(listing: &Listing, asked: Instant, wanted: &[Wanted], answers: &mut [Answer]) -> usize {
    let mut found = 0;
    for (wanted, answer) in wanted
        .iter()
        .zip(answers.iter_mut())
        .filter(|(_, answer)| answer.is_none())
    {
        match wanted {
            Wanted::Id { id, .. } => {
                if let Some(server) = listing.by_id(id) {
                    found += 1;
                    *answer = Some(Ok(Found::Server(Arc::clone(server))));
                }
            }
            Wanted::Name(name) => {
                *answer = match listing.by_name(name) {
                    Named::One(server) => Some(Ok(Found::Server(Arc::clone(server)))),
                    Named::Several(ids) if listing.began >= asked => Some(Err(ambiguous(name, &ids))),
                    Named::None if listing.began >= asked => Some(Ok(Found::Unresolved)),
                    // Old news; only the presence of a server may be told from such.
                    Named::Several(_) | Named::None | Named::Unknown => None,
                };
            }
        }
    }
    found
}

fn ambiguous(name: &str, ids: &[&str]) -> Error {
    let text = format!(
        "multiple results where only one expected: servers {} all have the name {name:?}",
        ids.join(", ")
    );
    Error::new(ErrorKind::InvalidSpec, text)
}

impl Inner {
    /// Which listing would find these, and how many pages it has at least.
    fn choose(&self, open: &[&Wanted]) -> (String, usize) {
        let memory = self.memory.lock();
        let by_id = open.iter().any(|wanted| matches!(wanted, Wanted::Id { .. }));
        let narrow = if memory.names_differ && by_id {
            ""
        } else {
            common_prefix(open.iter().map(|wanted| wanted.node()))
        };
        let wider = memory
            .sizes
            .iter()
            .filter(|size| narrow.starts_with(&size.prefix));
        // One that others use right now, if it is cheap.
        let cheap = |size: &&Size| size.complete && size.pages <= (open.len() / 10).max(1);
        if let Some(size) = wider.clone().find(cheap) {
            return (size.prefix.clone(), size.pages);
        }
        // An incomplete listing has a page more at least; that it has twice as many keeps us from walking in vain again
        // for the same few servers. A wider one tells nothing.
        let known = wider.filter(|size| size.prefix == narrow).map(|size| {
            if size.complete {
                size.pages
            } else {
                2 * size.pages + 1
            }
        });
        (narrow.to_owned(), known.max().unwrap_or(1))
    }

    fn remember(&self, prefix: &str, pages: usize, complete: bool) {
        let mut memory = self.memory.lock();
        memory.sizes.retain(|size| size.prefix != prefix);
        memory.sizes.insert(
            0,
            Size {
                prefix: prefix.to_owned(),
                pages,
                complete,
            },
        );
        memory.sizes.truncate(4);
    }

    /// Reads page after page while that may still be cheaper than single reads of what is open: as long as fewer pages
    /// were read than are left to find. So a walk in vain at most doubles the cost.
    async fn walk(
        &self,
        prefix: String,
        mut ids: HashSet<String>,
        names: usize,
        priority: Priority,
    ) -> Result<Listing> {
        let mut restarted = false;
        'walk: loop {
            let began = Instant::now();
            let mut servers = Vec::new();
            let mut pages = Pages::new(None);
            // Without all pages a name is not known to be the only one.
            while pages.fetched() < ids.len() + names {
                let fetched = pages.fetched();
                match pages.next(|marker| self.page(&prefix, marker, priority)).await {
                    Ok(Some(page)) => {
                        for server in &page {
                            ids.remove(&server.id);
                        }
                        servers.extend(page.into_iter().map(Arc::new));
                    }
                    Ok(None) => break,
                    // The server whose id was the marker is gone.
                    Err(error) if error.kind() == ErrorKind::Unexpected && fetched > 0 && !restarted => {
                        debug!(error = error.report(), "Listing servers anew");
                        restarted = true;
                        continue 'walk;
                    }
                    Err(error) => return Err(error),
                }
                if pages.is_complete() {
                    break;
                }
            }
            let (fetched, complete) = (pages.fetched(), pages.is_complete());
            self.remember(&prefix, fetched, complete);
            return Ok(Listing::new(began, prefix, servers, complete));
        }
    }

    async fn page(
        &self,
        prefix: &str,
        marker: Option<String>,
        priority: Priority,
    ) -> Result<Page<Server, String>> {
        let name = format!("^{}", escape(prefix));
        let mut query = vec![("limit", PAGE)];
        if !prefix.is_empty() {
            query.push(("name", &name));
        }
        if let Some(marker) = &marker {
            query.push(("marker", marker));
        }
        let page: ServerPage = self
            .read(Op::ServerList, &["servers", "detail"], &query, priority)
            .await?;
        let last = page.servers.last().map(|server| server.id.clone());
        Ok(Page {
            next: last.filter(|_| has_next(&page.servers_links)),
            items: page.servers,
        })
    }

    async fn single(&self, wanted: &Wanted, priority: Priority) -> Result<Found> {
        match wanted {
            Wanted::Id { id, .. } => match self.read(Op::ServerGet, &["servers", id], &[], priority).await {
                Ok(OneServer { server }) if server.id.eq_ignore_ascii_case(id) => {
                    Ok(Found::Server(Arc::new(server)))
                }
                Ok(OneServer { server }) => Err(Error::new(
                    ErrorKind::Unexpected,
                    format!("asked for server {id}, Nova answered with server {}", server.id),
                )),
                Err(error) if error.kind() == ErrorKind::NotFound => Ok(Found::Absent),
                Err(error) => Err(error),
            },
            Wanted::Name(name) => {
                let pattern = format!("^{}$", escape(name));
                let page: ServerPage = self
                    .read(
                        Op::ServerList,
                        &["servers", "detail"],
                        &[("name", &pattern)],
                        priority,
                    )
                    .await?;
                // The database may compare without regard to case.
                let mut same = page.servers.into_iter().filter(|server| server.name == *name);
                match (same.next(), same.next()) {
                    (Some(server), None) => Ok(Found::Server(Arc::new(server))),
                    (Some(first), Some(second)) => Err(ambiguous(name, &[&first.id, &second.id])),
                    (None, _) => Ok(Found::Unresolved),
                }
            }
        }
    }

    /// Reads with the newer microversion, unless Nova does not have it.
    async fn read<T: serde::de::DeserializeOwned>(
        &self,
        op: Op,
        path: &[&str],
        query: &[(&'static str, &str)],
        priority: Priority,
    ) -> Result<T> {
        let get = |microversion| Get {
            op,
            service: Service::Compute,
            path,
            query,
            microversion,
        };
        if !self.old.load(Ordering::Relaxed) {
            match self.api.get(&get(Some(FLAVOR_INLINE)), priority).await {
                Err(error) if error.kind() == ErrorKind::Unsupported => {
                    debug!(
                        error = error.report(),
                        "Nova is old, going on with its version 2.1"
                    );
                    self.old.store(true, Ordering::Relaxed);
                }
                result => return result,
            }
        }
        self.api.get(&get(None), priority).await
    }
}
