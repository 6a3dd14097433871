//! Finds the instances behind nodes in as few requests as a cloud allows: by targeted reads or by a listing, whichever is
//! cheaper.
//!
//! A provider supplies an [`InstanceSource`]; [`Finder`] implements [`Instances`] with it. Repeated questions in a batch are
//! asked once. A listing is shared by all callers whose freshness allows it, and only ever proves that an instance
//! *exists*. A missing id is confirmed by a targeted read; a missing name by a targeted read, or by a listing that began
//! after the question if it has all names. The number of pages of the last listings decides which is cheaper. While listings fail,
//! targeted reads answer, as far as the quota allows.

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
    config::suggest,
};

/// Listings are freed after this time: no caller accepts older ones, and an idle cluster needs no memory for them.
const LISTING_MAX_AGE: Duration = Duration::from_secs(60);
/// How many listings, and sizes of listings, are remembered.
const LISTINGS: usize = 4;
/// After so many failed listings in a row, instances are found by targeted reads.
const FAILED_LISTINGS: u32 = 2;
/// Meanwhile, a listing is tried again after this: it may take a timeout to fail.
const LISTING_PAUSE: Duration = Duration::from_secs(60);

/// A provider's record of an instance.
pub trait Record: Send + Sync + 'static {
    /// The cloud's id.
    fn id(&self) -> &str;

    /// The node names of this instance. Usually one.
    fn names(&self) -> Vec<&str>;
}

/// The lookup of a node's instance.
#[derive(Clone, Debug)]
pub enum Lookup {
    /// No lookup: the answer is known.
    Known(Result<InstanceState>),
    /// The instance with this id.
    Id(String),
    /// The instance with the node's name.
    Name,
    /// The instance with this name: that of the node without its domain, for example.
    Named(String),
}

/// The reads of a cloud's instances.
#[async_trait]
pub trait InstanceSource: Send + Sync + 'static {
    /// The record of an instance.
    type Record: Record;
    /// The marker of the next page of a listing.
    type Marker: Marker + Send + Sync;

    /// The name of the cache of listings in metrics.
    const CACHE: &'static str;
    /// The most ids of one targeted read.
    const IDS_PER_READ: usize = 1;
    /// The most names of one targeted read.
    const NAMES_PER_READ: usize = 1;
    /// Whether a listing can be limited to names with a prefix.
    const LISTS_BY_PREFIX: bool = false;
    /// Whether an instance that [`by_names`](Self::by_names) finds is always in the listing, under this name.
    const LISTS_ALL_NAMES: bool = true;

    /// How many targeted reads cost as much as a page of the listing.
    fn page_cost(&self) -> usize {
        1
    }

    /// The lookup for this node.
    fn lookup(&self, node: &NodeView) -> Lookup;

    /// A targeted read of at most [`IDS_PER_READ`](Self::IDS_PER_READ) instances. `None` only if the cloud reports that the
    /// id does not exist, not because a list lacks it: the node may be deleted.
    async fn by_ids(&self, ids: &[&str], priority: Priority) -> Vec<Result<Option<Self::Record>>>;

    /// A targeted read by at most [`NAMES_PER_READ`](Self::NAMES_PER_READ) exact names: all instances of each name.
    async fn by_names(&self, names: &[&str], priority: Priority) -> Vec<Result<Vec<Self::Record>>>;

    /// A page of the listing of all instances whose names begin with `prefix`, which is empty unless
    /// [`LISTS_BY_PREFIX`](Self::LISTS_BY_PREFIX). An error of kind `Unexpected` after the first page restarts the listing
    /// once: the instance that was the marker may have been deleted.
    async fn page(
        &self,
        prefix: &str,
        marker: Option<Self::Marker>,
        priority: Priority,
    ) -> Result<Page<Self::Record, Self::Marker>>;

    /// The answer to a query for existence only: provider id and power.
    fn existence(&self, record: &Self::Record) -> Instance;

    /// The metadata of these instances, which are distinct. May need further reads.
    async fn metadata(&self, records: &[&Self::Record], priority: Priority) -> Vec<Result<Instance>>;
}

/// A question about an instance.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Question {
    /// The instance's id; without it, the instance is found by name.
    id: Option<String>,
    /// The node's name, or that of its instance. It also suggests what to list.
    name: String,
}

/// The answer to a question.
#[derive(Debug)]
enum LookupResult<R> {
    Record(Arc<R>),
    /// The id does not exist in the cloud.
    Absent,
    /// No instance has the name.
    Unresolved,
}

/// The resolution of a query.
enum Resolution {
    /// Its answer is known.
    Known(Result<InstanceState>),
    /// The index of its question.
    Question(usize),
}

type Answer<R> = Option<Result<LookupResult<R>>>;

/// Finds instances; see the [module](self).
pub struct Finder<S: InstanceSource>(Arc<Inner<S>>);

struct Inner<S: InstanceSource> {
    source: S,
    /// By prefix of the names.
    listings: Cache<String, Listing<S::Record>>,
    statistics: Mutex<Statistics>,
}

/// Statistics about the cloud.
#[derive(Debug, Default)]
struct Statistics {
    /// The sizes of the last listings, the latest first.
    sizes: Vec<ListingSize>,
    /// Nodes and their instances have different names, so that listing by the nodes' prefix finds few of them.
    names_differ: bool,
    /// How many listings in a row failed.
    failed_listings: u32,
    /// The last failure of a listing, and when it occurred.
    last_failure: Option<(Instant, Error)>,
}

#[derive(Debug)]
struct ListingSize {
    prefix: String,
    pages: usize,
    /// Whether these were all pages.
    complete: bool,
    /// The names of the listed instances. The listing itself is freed much earlier.
    names: Arc<[Box<str>]>,
}

/// Clones share the same finder.
impl<S: InstanceSource> Clone for Finder<S> {
    fn clone(&self) -> Self {
        Self(Arc::clone(&self.0))
    }
}

impl<S: InstanceSource> fmt::Debug for Finder<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Finder").field("statistics", &self.0.statistics).finish_non_exhaustive()
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
                let (id, name) = match self.0.source.lookup(&query.node) {
                    Lookup::Known(answer) => return Resolution::Known(answer),
                    Lookup::Id(id) => (Some(id), query.node.name.clone()),
                    Lookup::Name => (None, query.node.name.clone()),
                    Lookup::Named(name) => (None, name),
                };
                let question = Question { id, name };
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

        let mut answers = Vec::with_capacity(queries.len());
        for (query, resolution) in queries.iter().zip(resolutions) {
            let result = match resolution {
                Resolution::Known(known) => {
                    answers.push(known);
                    continue;
                }
                Resolution::Question(index) => found.get(index),
            };
            answers.push(match result {
                Some(Ok(LookupResult::Record(record))) if query.need == Need::Metadata => {
                    let index = metadata.get(record.id());
                    let described = index.and_then(|index| described.get(*index)).cloned();
                    described.unwrap_or_else(|| Err(unanswered())).map(InstanceState::Present)
                }
                Some(Ok(LookupResult::Record(record))) => {
                    Ok(InstanceState::Present(self.0.source.existence(record)))
                }
                Some(Ok(LookupResult::Absent)) => Ok(InstanceState::Absent),
                Some(Ok(LookupResult::Unresolved)) => Ok(InstanceState::Unresolved),
                Some(Err(error)) => Err(error.clone()),
                None => Err(unanswered()),
            });
        }
        answers
    }

    fn similar_names(&self, name: &str) -> Vec<String> {
        let listed: Vec<_> =
            self.0.statistics.lock().sizes.iter().map(|size| Arc::clone(&size.names)).collect();
        let known = listed.iter().flat_map(|names| names.iter()).map(AsRef::as_ref);
        suggest::similar(name, known).into_iter().map(ToOwned::to_owned).collect()
    }
}

impl<S: InstanceSource> Finder<S> {
    /// Finds instances through this source.
    pub fn new(source: S, metrics: &ClientMetrics) -> Self {
        let config = CacheConfig::bounded(S::CACHE, LISTINGS, LISTING_MAX_AGE);
        Self(Arc::new(Inner {
            source,
            listings: Cache::new(config, metrics),
            statistics: Mutex::default(),
        }))
    }

    /// Drops the listings, including those in progress: they were read with other credentials.
    pub fn forget(&self) {
        self.0.listings.invalidate_all();
        for size in &mut self.0.statistics.lock().sizes {
            size.names = Arc::default();
        }
        self.0.listing_ended(None);
    }

    /// The records of instances by their ids, as they are now; `None` for those that do not exist. For controllers of a provider that
    /// need more than an [`Instance`].
    pub async fn records(&self, ids: &[&str], priority: Priority) -> Vec<Result<Option<Arc<S::Record>>>> {
        let mut questions: Vec<Question> = Vec::new();
        let mut places = Vec::with_capacity(ids.len());
        let mut known = HashMap::new();
        for id in ids {
            places.push(*known.entry(*id).or_insert_with(|| {
                questions.push(Question {
                    id: Some((*id).to_owned()),
                    name: String::new(),
                });
                questions.len() - 1
            }));
        }
        let answers = self.find(&questions, Freshness::now(), priority).await;
        places
            .into_iter()
            .map(|place| match answers.get(place) {
                Some(Ok(LookupResult::Record(record))) => Ok(Some(Arc::clone(record))),
                Some(Ok(LookupResult::Absent | LookupResult::Unresolved)) => Ok(None),
                Some(Err(error)) => Err(error.clone()),
                None => Err(unanswered()),
            })
            .collect()
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
            answer_from_listing::<S>(&listing, began, questions, &mut answers);
        }
        // How many ids were found by listings of a part of the instances.
        let mut narrow = None;
        let mut allowed = freshness;
        // A listing that another caller began may be too old. In this case, a new one is started.
        for _ in 0..2 {
            let remaining = remaining(questions, &answers);
            let (prefix, pages) = self.0.choose(&remaining);
            if pages * self.0.source.page_cost() >= cost::<S>(&remaining) {
                break;
            }
            let listing = match self.list(prefix, &remaining, allowed, priority).await {
                Ok(listing) => listing,
                Err(error) => {
                    if self.0.listings_keep_failing() {
                        debug!(error = error.report(), "Reading instances one by one");
                        self.probe(questions, &mut answers, &error, priority).await;
                    } else {
                        // Most likely, targeted reads would fail as well.
                        fail_remaining(&mut answers, &error);
                    }
                    break;
                }
            };
            let found = answer_from_listing::<S>(&listing, began, questions, &mut answers);
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
            // Most instances were found only by id, although the listing should contain them.
            self.0.statistics.lock().names_differ = true;
        }
        answers.into_iter().map(|answer| answer.unwrap_or(Ok(LookupResult::Unresolved))).collect()
    }

    /// The cached listings, the latest first.
    fn cached(&self, freshness: Freshness) -> Vec<Arc<Listing<S::Record>>> {
        let prefixes: Vec<String> =
            self.0.statistics.lock().sizes.iter().map(|size| size.prefix.clone()).collect();
        let mut listings = Vec::new();
        for prefix in prefixes {
            if let Some((listing, _)) = self.0.listings.peek(&prefix, freshness) {
                listings.push(listing);
            }
        }
        listings
    }

    /// Reads the instance of the first question without an answer. If that fails, the cloud answers nothing at all, and all other
    /// questions fail with the error of the listing: thousands of reads would fail as well.
    async fn probe(
        &self,
        questions: &[Question],
        answers: &mut [Answer<S::Record>],
        error: &Error,
        priority: Priority,
    ) {
        let Some(first) = answers.iter().position(Option::is_none) else {
            return;
        };
        let (Some(question), Some(answer)) = (questions.get(first), answers.get_mut(first)) else {
            return;
        };
        self.read(std::slice::from_ref(question), std::slice::from_mut(answer), priority).await;
        // An invalid node says nothing about the cloud.
        if let Some(Err(failure)) = answer
            && failure.kind() != ErrorKind::InvalidSpec
        {
            fail_remaining(answers, error);
        }
    }

    async fn list(
        &self,
        prefix: String,
        remaining: &[&Question],
        freshness: Freshness,
        priority: Priority,
    ) -> Result<Arc<Listing<S::Record>>> {
        if let Some(error) = self.0.recent_failure() {
            return Err(error);
        }
        let ids: HashSet<String> = remaining.iter().filter_map(|question| question.id.clone()).collect();
        let names = remaining.len() - ids.len();
        let inner = Arc::clone(&self.0);
        let load = {
            let prefix = prefix.clone();
            move || async move {
                let listed = inner.walk(prefix, ids, names, priority).await;
                inner.listing_ended(listed.as_ref().err());
                listed
            }
        };
        self.0.listings.get(prefix, freshness, priority, load).await
    }

    /// Answers the remaining questions by targeted reads. Returns how many ids were found.
    async fn read(
        &self,
        questions: &[Question],
        answers: &mut [Answer<S::Record>],
        priority: Priority,
    ) -> usize {
        let source = &self.0.source;
        let (ids, names): (Vec<_>, Vec<_>) =
            remaining(questions, answers).into_iter().partition(|question| question.id.is_some());
        let by_ids = ids.chunks(S::IDS_PER_READ).map(|chunk| async move {
            let ids: Vec<&str> = chunk.iter().filter_map(|question| question.id.as_deref()).collect();
            let found = source.by_ids(&ids, priority).await.into_iter().map(|record| {
                let record = record?.map(|record| LookupResult::Record(Arc::new(record)));
                Ok(record.unwrap_or(LookupResult::Absent))
            });
            chunk.iter().copied().zip(found).collect::<Vec<_>>()
        });
        let by_names = names.chunks(S::NAMES_PER_READ).map(|chunk| async move {
            let names: Vec<&str> = chunk.iter().map(|question| question.name.as_str()).collect();
            let found = source.by_names(&names, priority).await;
            let results = names.iter().zip(found).map(|(name, records)| only_one(name, records?));
            chunk.iter().copied().zip(results).collect::<Vec<_>>()
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

/// The result of a lookup by name.
fn only_one<R: Record>(name: &str, mut records: Vec<R>) -> Result<LookupResult<R>> {
    match records.len() {
        0 => Ok(LookupResult::Unresolved),
        1 => Ok(LookupResult::Record(Arc::new(records.remove(0)))),
        _ => {
            let ids: Vec<&str> = records.iter().map(Record::id).collect();
            Err(ambiguous(name, &ids))
        }
    }
}

/// Answers all questions without an answer with the error.
fn fail_remaining<R>(answers: &mut [Answer<R>], error: &Error) {
    for answer in answers {
        answer.get_or_insert_with(|| Err(error.clone()));
    }
}

fn unanswered() -> Error {
    Error::new(ErrorKind::Unexpected, "bug: an instance query has no answer")
}

/// The questions without an answer.
fn remaining<'q, R>(questions: &'q [Question], answers: &[Answer<R>]) -> Vec<&'q Question> {
    questions
        .iter()
        .zip(answers)
        .filter(|(_, answer)| answer.is_none())
        .map(|(question, _)| question)
        .collect()
}

/// How many targeted reads would answer these questions.
fn cost<S: InstanceSource>(remaining: &[&Question]) -> usize {
    let ids = remaining.iter().filter(|question| question.id.is_some()).count();
    reads::<S>(ids, remaining.len() - ids)
}

fn reads<S: InstanceSource>(ids: usize, names: usize) -> usize {
    ids.div_ceil(S::IDS_PER_READ) + names.div_ceil(S::NAMES_PER_READ)
}

/// Answers questions from a listing. Returns how many ids were found. `asked` is the time of the questions.
fn answer_from_listing<S: InstanceSource>(
    listing: &Listing<S::Record>,
    asked: Instant,
    questions: &[Question],
    answers: &mut [Answer<S::Record>],
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
            NameMatch::None if S::LISTS_ALL_NAMES && listing.began >= asked => {
                Some(Ok(LookupResult::Unresolved))
            }
            // An older listing proves only that an instance exists.
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
    /// The listing that can answer these questions, and its minimum number of pages.
    fn choose(&self, remaining: &[&Question]) -> (String, usize) {
        let statistics = self.statistics.lock();
        let by_id = remaining.iter().any(|question| question.id.is_some());
        let narrow = if !S::LISTS_BY_PREFIX || (statistics.names_differ && by_id) {
            ""
        } else {
            common_prefix(remaining.iter().map(|question| question.name.as_str()))
        };
        // Prefer a cheap listing that other callers use.
        let cheap = (remaining.len() / 10).max(1);
        for size in &statistics.sizes {
            if narrow.starts_with(&size.prefix) && size.complete && size.pages <= cheap {
                return (size.prefix.clone(), size.pages);
            }
        }
        // An incomplete listing has at least one more page. Twice as many are expected, so that it is not repeated in vain
        // for the same few instances. The size of a wider listing does not apply to this one.
        let pages = match statistics.sizes.iter().find(|size| size.prefix == narrow) {
            Some(size) if size.complete => size.pages,
            Some(size) => 2 * size.pages + 1,
            None => 1,
        };
        (narrow.to_owned(), pages)
    }

    /// A listing ended, with this error if it failed.
    fn listing_ended(&self, error: Option<&Error>) {
        let mut statistics = self.statistics.lock();
        match error {
            None => {
                statistics.failed_listings = 0;
                statistics.last_failure = None;
            }
            // The request was not sent.
            Some(error) if error.kind() == ErrorKind::RateLimited => {}
            Some(error) => {
                statistics.failed_listings = statistics.failed_listings.saturating_add(1);
                statistics.last_failure = Some((Instant::now(), error.clone()));
            }
        }
    }

    fn listings_keep_failing(&self) -> bool {
        self.statistics.lock().failed_listings >= FAILED_LISTINGS
    }

    /// The error of the last listing, while it is too early to try the next one.
    fn recent_failure(&self) -> Option<Error> {
        let statistics = self.statistics.lock();
        let (at, error) = statistics.last_failure.as_ref()?;
        let is_paused = statistics.failed_listings >= FAILED_LISTINGS && at.elapsed() < LISTING_PAUSE;
        is_paused.then(|| error.clone())
    }

    fn remember(&self, prefix: &str, pages: usize, complete: bool, records: &[Arc<S::Record>]) {
        let size = ListingSize {
            prefix: prefix.to_owned(),
            pages,
            complete,
            names: records.iter().flat_map(|record| record.names()).map(Box::from).collect(),
        };
        let mut statistics = self.statistics.lock();
        statistics.sizes.retain(|known| known.prefix != prefix);
        statistics.sizes.insert(0, size);
        statistics.sizes.truncate(LISTINGS);
    }

    /// Reads pages while that can be cheaper than targeted reads of the remaining instances: while fewer pages were read than
    /// targeted reads remain. An unsuccessful walk at most doubles the cost.
    async fn walk(
        &self,
        prefix: String,
        ids: HashSet<String>,
        names: usize,
        priority: Priority,
    ) -> Result<Listing<S::Record>> {
        let mut restarted = false;
        'walk: loop {
            let began = Instant::now();
            let (mut ids, mut records) = (ids.clone(), Vec::new());
            let mut pages = Pages::start();
            // A name is known to be unique only after all pages.
            let page_cost = self.source.page_cost();
            while !pages.is_complete() && pages.fetched() * page_cost < reads::<S>(ids.len(), names) {
                let fetched = pages.fetched();
                let next = pages.next(|marker| self.source.page(&prefix, marker, priority));
                match next.await {
                    Ok(page) => {
                        for record in page.into_iter().flatten() {
                            ids.remove(record.id());
                            records.push(Arc::new(record));
                        }
                    }
                    // The instance that was the marker was deleted.
                    Err(error) if error.kind() == ErrorKind::Unexpected && fetched > 0 && !restarted => {
                        debug!(error = error.report(), "Restarting the listing of instances");
                        restarted = true;
                        continue 'walk;
                    }
                    Err(error) => return Err(error),
                }
            }
            let (fetched, complete) = (pages.fetched(), pages.is_complete());
            self.remember(&prefix, fetched, complete, &records);
            return Ok(Listing::new(began, prefix, records, complete));
        }
    }
}

#[cfg(test)]
mod tests;
