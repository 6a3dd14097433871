//! Finds the machines behind nodes in as few requests as a cloud allows: by targeted reads or by a listing, whichever is
//! cheaper.
//!
//! A provider supplies an [`InstanceSource`]; [`Finder`] makes [`Instances`] of it. Questions that come twice in a batch are
//! asked once. A listing is shared by all callers whose freshness allows it, and only ever proves that a machine
//! *exists*. A missing id is confirmed by a targeted read; a missing name by a targeted read, or by a listing that began
//! after the question. How many pages the last listings had decides what is cheaper.

mod listing;

use std::{
    collections::{HashMap, HashSet},
    fmt,
    sync::Arc,
    time::Duration,
};

use async_trait::async_trait;
use futures_util::future::join_all;
use parking_lot::Mutex;
use tokio::time::Instant;
use tracing::debug;

use self::listing::{Listing, NameMatch, common_prefix};
use super::{Instance, InstanceQuery, InstanceState, Instances, Need, NodeView};
use crate::{
    Error, ErrorKind, Freshness, Priority, Result,
    client::{Cache, CacheConfig, ClientMetrics, Marker, Page, Pages},
};

/// Listings are freed after this: nobody accepts older ones, and an idle cluster should not pay for them in memory.
const LISTING_MAX_AGE: Duration = Duration::from_secs(60);
/// How many listings, and sizes of listings, are remembered.
const LISTINGS: usize = 4;

/// What a provider keeps of a machine.
pub trait Record: Send + Sync + 'static {
    /// The cloud's id.
    fn id(&self) -> &str;

    /// The names of nodes that this machine can be found by. Mostly one.
    fn names(&self) -> Vec<&str>;
}

/// What a node asks of the cloud.
#[derive(Clone, Debug)]
pub enum Lookup {
    /// Nothing: the answer is known.
    Known(Result<InstanceState>),
    /// The machine with this id.
    Id(String),
    /// The machine with the node's name.
    Name,
}

/// How a cloud's machines are read.
#[async_trait]
pub trait InstanceSource: Send + Sync + 'static {
    /// What is kept of a machine.
    type Record: Record;
    /// How the next page of a listing is asked for.
    type Marker: Marker + Send + Sync;

    /// The name of the cache of listings in metrics.
    const CACHE: &'static str;
    /// How many ids one targeted read takes.
    const IDS_PER_READ: usize = 1;
    /// How many names one targeted read takes.
    const NAMES_PER_READ: usize = 1;
    /// Whether a listing can be limited to names with a prefix.
    const LISTS_BY_PREFIX: bool = false;

    /// What to look for.
    fn lookup(&self, node: &NodeView) -> Lookup;

    /// A targeted read of at most [`IDS_PER_READ`](Self::IDS_PER_READ) machines. `None` only if the cloud says that there is
    /// no such id, not because a list lacks it: it can lead to the deletion of the node.
    async fn by_ids(&self, ids: &[&str], priority: Priority) -> Vec<Result<Option<Self::Record>>>;

    /// A targeted read by at most [`NAMES_PER_READ`](Self::NAMES_PER_READ) exact names: all machines of each name.
    async fn by_names(&self, names: &[&str], priority: Priority) -> Vec<Result<Vec<Self::Record>>>;

    /// A page of the listing of all machines whose names begin with `prefix`, which is empty unless
    /// [`LISTS_BY_PREFIX`](Self::LISTS_BY_PREFIX). An error of kind `Unexpected` after the first page begins the listing again,
    /// once: the machine that was the marker may have been deleted.
    async fn page(
        &self,
        prefix: &str,
        marker: Option<Self::Marker>,
        priority: Priority,
    ) -> Result<Page<Self::Record, Self::Marker>>;

    /// What is known of a machine whose existence alone was asked for: provider id and power.
    fn existence(&self, record: &Self::Record) -> Instance;

    /// Everything that is known of these machines, each once, with whatever further reads that needs.
    async fn metadata(&self, records: &[&Self::Record], priority: Priority) -> Vec<Result<Instance>>;
}

/// A question about a machine.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Question {
    /// The machine's id; without it the name decides.
    id: Option<String>,
    /// The node's name, which also suggests what to list.
    name: String,
}

/// The answer to a question.
#[derive(Debug)]
enum LookupResult<R> {
    Record(Arc<R>),
    /// The cloud knows no such id.
    Absent,
    /// The cloud shows no such name.
    Unresolved,
}

/// What becomes of a query.
enum Resolution {
    /// Its answer is known.
    Known(Result<InstanceState>),
    /// The index of its question.
    Question(usize),
}

type Answer<R> = Option<Result<LookupResult<R>>>;

/// Finds machines; see the [module](self).
pub struct Finder<S: InstanceSource>(Arc<Inner<S>>);

struct Inner<S: InstanceSource> {
    source: S,
    /// By prefix of the names, and by priority: a user must not wait for background work.
    listings: Cache<(String, Priority), Listing<S::Record>>,
    statistics: Mutex<Statistics>,
}

/// What was learned about the cloud.
#[derive(Debug, Default)]
struct Statistics {
    /// The sizes of the last listings, the latest first.
    sizes: Vec<Size>,
    /// Nodes have other names than their machines, so that a prefix of theirs finds little.
    names_differ: bool,
}

#[derive(Debug)]
struct Size {
    prefix: String,
    pages: usize,
    /// If not, there are more pages than this.
    complete: bool,
}

/// The same finder.
impl<S: InstanceSource> Clone for Finder<S> {
    fn clone(&self) -> Self {
        Self(Arc::clone(&self.0))
    }
}

impl<S: InstanceSource> fmt::Debug for Finder<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Finder")
            .field("statistics", &self.0.statistics)
            .finish_non_exhaustive()
    }
}

#[async_trait]
impl<S: InstanceSource> Instances for Finder<S> {
    async fn describe(
        &self,
        queries: &[InstanceQuery],
        freshness: Freshness,
        priority: Priority,
    ) -> Vec<Result<InstanceState>> {
        let mut questions = Vec::new();
        let mut known = HashMap::new();
        let resolutions: Vec<Resolution> = queries
            .iter()
            .map(|query| {
                let id = match self.0.source.lookup(&query.node) {
                    Lookup::Known(answer) => return Resolution::Known(answer),
                    Lookup::Id(id) => Some(id),
                    Lookup::Name => None,
                };
                let question = Question {
                    id,
                    name: query.node.name.clone(),
                };
                Resolution::Question(*known.entry(question.clone()).or_insert_with(|| {
                    questions.push(question);
                    questions.len() - 1
                }))
            })
            .collect();
        let found = self.find(&questions, freshness, priority).await;

        let mut records: Vec<&S::Record> = Vec::new();
        let mut metadata = HashMap::new();
        for (query, resolution) in queries.iter().zip(&resolutions) {
            if let (Need::Metadata, Resolution::Question(index)) = (query.need, resolution)
                && let Some(Ok(LookupResult::Record(record))) = found.get(*index)
            {
                metadata.entry(record.id()).or_insert_with(|| {
                    records.push(record);
                    records.len() - 1
                });
            }
        }
        let described = if records.is_empty() {
            Vec::new()
        } else {
            self.0.source.metadata(&records, priority).await
        };

        let answer = |query: &InstanceQuery, index: usize| match found.get(index) {
            Some(Ok(LookupResult::Record(record))) if query.need == Need::Metadata => {
                let index = metadata.get(record.id());
                let described = index.and_then(|index| described.get(*index)).cloned();
                described
                    .unwrap_or_else(|| Err(unanswered()))
                    .map(InstanceState::Present)
            }
            Some(Ok(LookupResult::Record(record))) => {
                Ok(InstanceState::Present(self.0.source.existence(record)))
            }
            Some(Ok(LookupResult::Absent)) => Ok(InstanceState::Absent),
            Some(Ok(LookupResult::Unresolved)) => Ok(InstanceState::Unresolved),
            Some(Err(error)) => Err(error.clone()),
            None => Err(unanswered()),
        };
        let each = queries
            .iter()
            .zip(resolutions)
            .map(|(query, resolution)| match resolution {
                Resolution::Known(known) => known,
                Resolution::Question(index) => answer(query, index),
            });
        each.collect()
    }
}

impl<S: InstanceSource> Finder<S> {
    /// Finds machines through this source.
    pub fn new(source: S, metrics: &ClientMetrics) -> Self {
        let config = CacheConfig::bounded(S::CACHE, LISTINGS, LISTING_MAX_AGE);
        Self(Arc::new(Inner {
            source,
            listings: Cache::new(config, metrics),
            statistics: Mutex::default(),
        }))
    }

    /// Forgets the listings, also those under way: they were read with other credentials.
    pub fn forget(&self) {
        self.0.listings.invalidate_all();
    }

    /// Answers each question, in their order.
    async fn find(
        &self,
        questions: &[Question],
        freshness: Freshness,
        priority: Priority,
    ) -> Vec<Result<LookupResult<S::Record>>> {
        let began = Instant::now();
        let mut answers: Vec<Answer<S::Record>> = questions.iter().map(|_| None).collect();
        for listing in self.cached(freshness) {
            take(&listing, began, questions, &mut answers);
        }
        // How many ids were found by listings of a part of the machines.
        let mut narrow = None;
        let mut allowed = freshness;
        // A listing that others began may be too old to have everything; then there is one of our own.
        for _ in 0..2 {
            let open = open(questions, &answers);
            let (prefix, pages) = self.0.choose(&open);
            if pages >= cost::<S>(&open) {
                break;
            }
            let listing = match self.list(prefix, &open, allowed, priority).await {
                Ok(listing) => listing,
                Err(error) => {
                    // Targeted reads would cost more and most likely fail as well.
                    return answers
                        .into_iter()
                        .map(|answer| answer.unwrap_or_else(|| Err(error.clone())))
                        .collect();
                }
            };
            let found = take(&listing, began, questions, &mut answers);
            if listing.complete && !listing.prefix.is_empty() {
                narrow = Some(narrow.unwrap_or(0) + found);
            }
            if listing.began >= began {
                break;
            }
            allowed = Freshness::After(began);
        }
        let targeted = self.read(questions, &mut answers, priority).await;
        if narrow.is_some_and(|listed| targeted > listed.max(3)) {
            // Most of what the listing should have had was found only by id.
            self.0.statistics.lock().names_differ = true;
        }
        answers
            .into_iter()
            .map(|answer| answer.unwrap_or(Ok(LookupResult::Unresolved)))
            .collect()
    }

    /// The listings that are at hand, the latest first.
    fn cached(&self, freshness: Freshness) -> Vec<Arc<Listing<S::Record>>> {
        let statistics = self.0.statistics.lock();
        let prefixes: Vec<String> = statistics.sizes.iter().map(|size| size.prefix.clone()).collect();
        drop(statistics);
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
        open: &[&Question],
        freshness: Freshness,
        priority: Priority,
    ) -> Result<Arc<Listing<S::Record>>> {
        let ids: HashSet<String> = open.iter().filter_map(|question| question.id.clone()).collect();
        let names = open.len() - ids.len();
        let inner = Arc::clone(&self.0);
        let load = {
            let prefix = prefix.clone();
            move || async move { inner.walk(prefix, ids, names, priority).await }
        };
        self.0.listings.get((prefix, priority), freshness, load).await
    }

    /// Answers what is still open by targeted reads. Returns how many ids were found.
    async fn read(
        &self,
        questions: &[Question],
        answers: &mut [Answer<S::Record>],
        priority: Priority,
    ) -> usize {
        let source = &self.0.source;
        let (ids, names): (Vec<_>, Vec<_>) = open(questions, answers)
            .into_iter()
            .partition(|question| question.id.is_some());
        let by_ids = ids.chunks(S::IDS_PER_READ).map(|chunk| async move {
            let ids: Vec<&str> = chunk
                .iter()
                .filter_map(|question| question.id.as_deref())
                .collect();
            let found = source.by_ids(&ids, priority).await.into_iter().map(|record| {
                let record = record?.map(|record| LookupResult::Record(Arc::new(record)));
                Ok(record.unwrap_or(LookupResult::Absent))
            });
            chunk.iter().copied().zip(found).collect::<Vec<_>>()
        });
        let by_names = names.chunks(S::NAMES_PER_READ).map(|chunk| async move {
            let names: Vec<&str> = chunk.iter().map(|question| question.name.as_str()).collect();
            let records = source.by_names(&names, priority).await;
            let found = names.iter().zip(records).map(|(name, records)| {
                let mut records = records?;
                match (records.pop(), records.last()) {
                    (None, _) => Ok(LookupResult::Unresolved),
                    (Some(record), None) => Ok(LookupResult::Record(Arc::new(record))),
                    (Some(record), Some(_)) => {
                        let ids = records.iter().chain([&record]).map(Record::id);
                        Err(ambiguous(name, &ids.collect::<Vec<_>>()))
                    }
                }
            });
            chunk.iter().copied().zip(found).collect::<Vec<_>>()
        });
        let (by_ids, by_names) = tokio::join!(join_all(by_ids), join_all(by_names));
        let mut read: HashMap<&Question, Result<LookupResult<S::Record>>> =
            by_ids.into_iter().chain(by_names).flatten().collect();
        let found = read
            .iter()
            .filter(|(question, found)| question.id.is_some() && matches!(found, Ok(LookupResult::Record(_))))
            .count();
        for (question, answer) in questions.iter().zip(answers) {
            if answer.is_none() {
                *answer = Some(read.remove(question).unwrap_or_else(|| Err(unanswered())));
            }
        }
        found
    }
}

fn unanswered() -> Error {
    Error::new(ErrorKind::Unexpected, "a question was left unanswered")
}

/// The questions without an answer.
fn open<'q, R>(questions: &'q [Question], answers: &[Answer<R>]) -> Vec<&'q Question> {
    let pairs = questions.iter().zip(answers);
    pairs
        .filter(|(_, answer)| answer.is_none())
        .map(|(question, _)| question)
        .collect()
}

/// How many targeted reads would answer these questions.
fn cost<S: InstanceSource>(open: &[&Question]) -> usize {
    let ids = open.iter().filter(|question| question.id.is_some()).count();
    reads::<S>(ids, open.len() - ids)
}

fn reads<S: InstanceSource>(ids: usize, names: usize) -> usize {
    ids.div_ceil(S::IDS_PER_READ) + names.div_ceil(S::NAMES_PER_READ)
}

/// Answers from a listing what it can answer. Returns how many ids were found. `asked` is when the questions came.
fn take<R: Record>(
    listing: &Listing<R>,
    asked: Instant,
    questions: &[Question],
    answers: &mut [Answer<R>],
) -> usize {
    let mut found = 0;
    for (question, answer) in questions.iter().zip(answers) {
        if answer.is_some() {
            continue;
        }
        if let Some(id) = &question.id {
            if let Some(record) = listing.by_id(id) {
                found += 1;
                *answer = Some(Ok(LookupResult::Record(Arc::clone(record))));
            }
            continue;
        }
        *answer = match listing.by_name(&question.name) {
            NameMatch::One(record) => Some(Ok(LookupResult::Record(Arc::clone(record)))),
            NameMatch::Several(ids) if listing.began >= asked => Some(Err(ambiguous(&question.name, &ids))),
            NameMatch::None if listing.began >= asked => Some(Ok(LookupResult::Unresolved)),
            // An older listing proves only that a machine exists.
            NameMatch::Several(_) | NameMatch::None | NameMatch::Unknown => None,
        };
    }
    found
}

fn ambiguous(name: &str, ids: &[&str]) -> Error {
    let text = format!(
        "multiple results where only one expected: machines {} all have the name {name:?}",
        ids.join(", ")
    );
    Error::new(ErrorKind::InvalidSpec, text)
}

impl<S: InstanceSource> Inner<S> {
    /// Which listing would answer these questions, and how many pages it has at least.
    fn choose(&self, open: &[&Question]) -> (String, usize) {
        let statistics = self.statistics.lock();
        let by_id = open.iter().any(|question| question.id.is_some());
        let narrow = if !S::LISTS_BY_PREFIX || (statistics.names_differ && by_id) {
            ""
        } else {
            common_prefix(open.iter().map(|question| question.name.as_str()))
        };
        let wider = statistics
            .sizes
            .iter()
            .filter(|size| narrow.starts_with(&size.prefix));
        // One that others use right now, if it is cheap.
        let cheap = |size: &&Size| size.complete && size.pages <= (open.len() / 10).max(1);
        if let Some(size) = wider.clone().find(cheap) {
            return (size.prefix.clone(), size.pages);
        }
        // An incomplete listing has at least one more page; to expect twice as many prevents walking in vain again for the
        // same few machines. A wider one says nothing about this one.
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
        let mut statistics = self.statistics.lock();
        let sizes = &mut statistics.sizes;
        sizes.retain(|size| size.prefix != prefix);
        sizes.insert(
            0,
            Size {
                prefix: prefix.to_owned(),
                pages,
                complete,
            },
        );
        sizes.truncate(LISTINGS);
    }

    /// Reads page after page while that may still be cheaper than targeted reads of what is open: as long as fewer pages were
    /// read than targeted reads are left. So a walk in vain at most doubles the cost.
    async fn walk(
        &self,
        prefix: String,
        mut ids: HashSet<String>,
        names: usize,
        priority: Priority,
    ) -> Result<Listing<S::Record>> {
        let mut restarted = false;
        'walk: loop {
            let began = Instant::now();
            let mut records = Vec::new();
            let mut pages = Pages::new(None);
            // Without all pages a name is not known to be the only one.
            while !pages.is_complete() && pages.fetched() < reads::<S>(ids.len(), names) {
                let fetched = pages.fetched();
                let next = pages.next(|marker| self.source.page(&prefix, marker, priority));
                match next.await {
                    Ok(page) => {
                        for record in page.into_iter().flatten() {
                            ids.remove(record.id());
                            records.push(Arc::new(record));
                        }
                    }
                    // The machine that was the marker is gone.
                    Err(error) if error.kind() == ErrorKind::Unexpected && fetched > 0 && !restarted => {
                        debug!(error = error.report(), "Listing machines again");
                        restarted = true;
                        continue 'walk;
                    }
                    Err(error) => return Err(error),
                }
            }
            let (fetched, complete) = (pages.fetched(), pages.is_complete());
            self.remember(&prefix, fetched, complete);
            return Ok(Listing::new(began, prefix, records, complete));
        }
    }
}

#[cfg(test)]
mod tests;
