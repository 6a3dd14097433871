//! One engine for clouds whose API consists of documents and that have no emulator: collections, pages, revisions,
//! asynchronous operations, quotas and rate limits. It uses the same server, faults, clock and call log as every cloud.
//!
//! A cloud adds its rules and the published description of its API. The call log uses the operations of the
//! description. Every request is checked against the description and refused as the cloud refuses it. Every answer is
//! checked, too; a violation becomes a 500 that names it. Operations of the description without a rule are answered
//! with 501. All of these are [recorded](Control::take_violations), and fail the test.

mod description;
mod store;
#[cfg(test)]
mod tests;

use std::net::SocketAddr;
use std::sync::Arc;

use http::StatusCode;
use jiff::Timestamp;
use parking_lot::{Mutex, RwLock};
use rand::rngs::StdRng;
use rand::{Rng as _, SeedableRng as _};
use serde::Deserialize;
use serde_json::{Map, Value, json};
use uuid::Builder;

pub(crate) use description::{Description, Gap};
pub(crate) use store::{Document, Effect, Store};

use crate::clock::Clock;
use crate::control::{self, Behavior, body, done, ok};
use crate::error::{Error, Result};
use crate::faults::{self, Snapshot};
use crate::http::{Reply, Request, segments};
use crate::quota::Level;
use crate::server::{Cloud, Server, Target, Traffic, bind};

/// The pagination of a cloud.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Paging {
    /// By number (`page`, `per_page`), with links to other pages and the total number.
    Numbers {
        /// The default number of documents on a page.
        default: usize,
    },
    /// By tokens: the names of the parameters for size and token, and of the answer's field for the next token.
    #[cfg_attr(not(test), expect(dead_code, reason = "the first cloud numbers its pages"))]
    Tokens {
        size: &'static str,
        token: &'static str,
        next: &'static str,
        /// The default number of documents on a page.
        default: usize,
    },
}

/// The protection of a cloud against lost updates.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Revisions {
    /// None.
    Unchecked,
    /// By an entity tag in a field, which a request may repeat in `If-Match`.
    #[cfg_attr(not(test), expect(dead_code, reason = "the first cloud has no revisions"))]
    EntityTag(&'static str),
    /// By a fingerprint in a field, which a change must repeat in its body.
    #[cfg_attr(not(test), expect(dead_code, reason = "the first cloud has no revisions"))]
    Fingerprint(&'static str),
}

/// The behavior of a cloud in addition to its description.
pub(crate) trait Rules: Send + Sync + 'static {
    /// The service's name in the call log and quotas.
    fn service(&self) -> &'static str;
    fn paging(&self) -> Paging;
    fn revisions(&self) -> Revisions;
    /// The status of a request that violates the description.
    fn invalid(&self) -> StatusCode;
    /// Checks the credentials of a request.
    fn authenticate(&self, request: &Request) -> std::result::Result<(), DocumentFault>;
    /// The cloud's error document.
    fn error(&self, fault: &DocumentFault, request_id: &str) -> Value;
    /// The headers of every answer.
    fn headers(&self, rate: Option<Level>, now: Timestamp) -> Vec<(&'static str, String)>;
    /// Completes the fields of a new document and returns its ID.
    fn complete(&self, collection: &str, fields: &mut Map<String, Value>, fresh: &Fresh<'_>) -> String;
    /// How the service words its limits and refusals: each is a fault.
    fn refusals(&self) -> Vec<faults::Fault>;
    /// Carries out an operation; `None` if the simulator does not have it.
    fn run(&self, operation: &str, call: &mut Call<'_>) -> Option<Outcome>;
}

/// A refusal.
#[derive(Debug)]
pub(crate) struct DocumentFault {
    pub(crate) status: StatusCode,
    pub(crate) message: String,
}

impl DocumentFault {
    pub(crate) fn new(status: StatusCode, message: impl Into<String>) -> Self {
        Self {
            status,
            message: message.into(),
        }
    }
}

/// An answer: its status and its body, if it has one.
pub(crate) type Outcome = std::result::Result<(StatusCode, Option<Value>), DocumentFault>;

/// The source of new IDs and times.
pub(crate) struct Fresh<'a> {
    pub(crate) now: Timestamp,
    rng: &'a Mutex<StdRng>,
    place: u64,
}

impl Fresh<'_> {
    /// A random UUID.
    pub(crate) fn uuid(&self) -> String {
        let bits = self.rng.lock().random::<u128>();
        let uuid = Builder::from_random_bytes(bits.to_be_bytes()).into_uuid();
        uuid.to_string()
    }

    /// A unique number.
    pub(crate) fn number(&self) -> u64 {
        self.place
    }
}

/// A checked request to a cloud, with the state that it reads and changes.
pub(crate) struct Call<'a> {
    cloud: &'a Documents,
    pub(crate) request: &'a Request,
    /// The path's parameters.
    pub(crate) path: &'a [String],
    /// The body; null if there is none.
    pub(crate) body: Value,
    pub(crate) store: &'a mut Store,
    pub(crate) now: Timestamp,
}

impl Call<'_> {
    /// The document that the path names.
    ///
    /// # Errors
    /// 404 if the document does not exist.
    pub(crate) fn find(&self, collection: &str) -> std::result::Result<Arc<Document>, DocumentFault> {
        let id = self.path.first().map(String::as_str).unwrap_or_default();
        let found = self.store.get(collection, id).cloned();
        found.ok_or_else(|| {
            DocumentFault::new(StatusCode::NOT_FOUND, "The resource you requested could not be found.")
        })
    }

    /// The document that the path names, for a change. The request may require a revision.
    ///
    /// # Errors
    /// 404 if the document does not exist, 412 if it has another revision.
    pub(crate) fn find_to_change(
        &self,
        collection: &str,
    ) -> std::result::Result<Arc<Document>, DocumentFault> {
        let found = self.find(collection)?;
        let revision = found.revision.to_string();
        let matches = match self.cloud.rules.revisions() {
            Revisions::Unchecked => true,
            Revisions::EntityTag(_) => {
                let requested = self.request.header("if-match");
                requested.is_none_or(|requested| requested == "*" || requested == revision)
            }
            Revisions::Fingerprint(field) => {
                self.body.is_null() || self.body.get(field).and_then(Value::as_str) == Some(&revision)
            }
        };
        if !matches {
            return Err(DocumentFault::new(
                StatusCode::PRECONDITION_FAILED,
                "The resource was changed meanwhile.",
            ));
        }
        Ok(found)
    }

    /// Creates a document from fields that the cloud's rules complete, and returns its ID.
    ///
    /// # Errors
    /// 422 if the quota is exhausted.
    pub(crate) fn create(
        &mut self,
        collection: &str,
        fields: Map<String, Value>,
    ) -> std::result::Result<String, DocumentFault> {
        if !self.store.has_room(collection) {
            let message = format!("The limit of {collection} is reached.");
            return Err(DocumentFault::new(StatusCode::UNPROCESSABLE_ENTITY, message));
        }
        Ok(self.cloud.insert(self.store, collection, fields))
    }

    /// Whether requests are limited.
    pub(crate) fn has_quota(&self) -> bool {
        let (traffic, rules) = (&self.cloud.traffic, &self.cloud.rules);
        traffic.quotas.level(rules.service(), traffic.clock.elapsed()).is_some()
    }

    /// A document as the API shows it, with its revision.
    pub(crate) fn show(&self, document: &Document) -> Value {
        let mut shown = document.fields.clone();
        if let Revisions::EntityTag(field) | Revisions::Fingerprint(field) = self.cloud.rules.revisions() {
            shown.insert(field.to_owned(), json!(document.revision.to_string()));
        }
        Value::Object(shown)
    }

    /// A page of the documents that match a filter.
    pub(crate) fn page(&self, collection: &str, filter: impl Fn(&Document) -> bool) -> Value {
        let found: Vec<&Arc<Document>> =
            self.store.all(collection).filter(|document| filter(document)).collect();
        let number = |name: &str| self.request.last(name).and_then(|text| text.parse::<usize>().ok());
        let shown = |start: usize, size: usize| -> Value {
            let page = found.iter().skip(start).take(size);
            page.map(|document| self.show(document)).collect()
        };
        match self.cloud.rules.paging() {
            Paging::Numbers { default } => {
                let size = number("per_page").unwrap_or(default).max(1);
                let page = number("page").unwrap_or(1).max(1);
                let last = found.len().div_ceil(size).max(1);
                let mut links = Map::new();
                if page > 1 {
                    links.insert("first".to_owned(), json!(self.link(1, size)));
                    links.insert("prev".to_owned(), json!(self.link(page - 1, size)));
                }
                if page < last {
                    links.insert("next".to_owned(), json!(self.link(page + 1, size)));
                    links.insert("last".to_owned(), json!(self.link(last, size)));
                }
                json!({
                    collection: shown((page - 1).saturating_mul(size), size),
                    "links": if links.is_empty() { json!({}) } else { json!({ "pages": links }) },
                    "meta": {"total": found.len()},
                })
            }
            Paging::Tokens {
                size,
                token,
                next,
                default,
            } => {
                let size = number(size).unwrap_or(default).max(1);
                let start = number(token).unwrap_or_default();
                let mut page = json!({ collection: shown(start, size) });
                if start + size < found.len() {
                    page[next] = json!((start + size).to_string());
                }
                page
            }
        }
    }

    fn link(&self, page: usize, size: usize) -> String {
        let kept = self
            .request
            .params
            .iter()
            .filter(|(name, _)| !matches!(name.as_str(), "page" | "per_page"));
        let query = url::form_urlencoded::Serializer::new(String::new())
            .extend_pairs(kept)
            .append_pair("page", &page.to_string())
            .append_pair("per_page", &size.to_string())
            .finish();
        format!("{}{}?{query}", self.cloud.base, self.request.path)
    }
}

/// A cloud of documents.
pub(crate) struct Documents {
    rules: Box<dyn Rules>,
    description: &'static Description,
    /// URL of the listener, without a path.
    base: String,
    store: RwLock<Arc<Store>>,
    traffic: Arc<Traffic>,
    rng: Mutex<StdRng>,
    violations: Mutex<Vec<String>>,
}

impl Documents {
    /// Records a violation by a client or the simulator.
    fn violation(&self, request: &Request, status: StatusCode, reason: &str) -> DocumentFault {
        let text = format!("{} {}: {reason}", request.method, request.target());
        self.violations.lock().push(text);
        DocumentFault::new(status, reason)
    }

    fn insert(&self, store: &mut Store, collection: &str, mut fields: Map<String, Value>) -> String {
        let fresh = Fresh {
            now: self.traffic.clock.now(),
            rng: &self.rng,
            place: store.next(),
        };
        let id = self.rules.complete(collection, &mut fields, &fresh);
        store.insert(collection, &id, fields);
        id
    }

    /// Changes the state after all due operations have ended.
    fn with_store<T>(&self, change: impl FnOnce(&mut Store) -> T) -> T {
        let mut store = self.store.write();
        let store = Arc::make_mut(&mut store);
        store.settle(self.traffic.clock.now());
        change(store)
    }

    fn answer(&self, request: &Request, target: &Target, snapshot: Option<&Snapshot>) -> Outcome {
        self.rules.authenticate(request)?;
        let Some(operation) = self.description.operation(target.op) else {
            return Err(self.violation(
                request,
                StatusCode::NOT_FOUND,
                "The description has no such operation.",
            ));
        };
        let body = if request.body.is_empty() {
            Value::Null
        } else {
            serde_json::from_slice(&request.body)
                .map_err(|error| DocumentFault::new(StatusCode::BAD_REQUEST, error.to_string()))?
        };
        self.description
            .check_request(operation, &target.rest, &request.params, &body)
            .map_err(|reason| self.violation(request, self.rules.invalid(), &reason))?;
        let run = |store: &mut Store| {
            let mut call = Call {
                cloud: self,
                request,
                path: &target.rest,
                body,
                store,
                now: self.traffic.clock.now(),
            };
            self.rules.run(target.op, &mut call)
        };
        // Writes change the current state, even if reads use an older one.
        let outcome = match snapshot.and_then(|snapshot| snapshot.downcast_ref::<Store>()) {
            Some(frozen) if request.method == http::Method::GET => run(&mut frozen.clone()),
            _ => self.with_store(run),
        };
        outcome.unwrap_or_else(|| {
            let reason = "The simulator does not have this operation.";
            Err(self.violation(request, StatusCode::NOT_IMPLEMENTED, reason))
        })
    }

    /// Builds the answer. `request`: the request and its operation, whose description the answer is checked against;
    /// `None` if a fault or the quota refused the request.
    fn reply(&self, outcome: Outcome, request: Option<(&Request, &str)>) -> Reply {
        let (status, body) = outcome.unwrap_or_else(|fault| (fault.status, Some(self.error(&fault))));
        let reply = match &body {
            Some(body) => Reply::json(status, body),
            None => Reply::empty(status).with(http::header::CONTENT_TYPE, "application/json"),
        };
        let clock = &self.traffic.clock;
        let rate = self.traffic.quotas.level(self.rules.service(), clock.elapsed());
        let headers = self.rules.headers(rate, clock.now()).into_iter();
        let reply = headers.fold(reply, |reply, (name, value)| reply.with(name, &value));
        let checked = request.and_then(|(request, name)| {
            let operation = self.description.operation(name)?;
            let (status, headers) = (status.as_u16(), &reply.headers);
            let checked = self.description.check_answer(operation, status, headers, body.as_ref());
            Some((request, checked.err()?))
        });
        let Some((request, violation)) = checked else {
            return reply;
        };
        let reason = format!("The simulator's answer violates the description: {violation}");
        let fault = self.violation(request, StatusCode::INTERNAL_SERVER_ERROR, &reason);
        Reply::json(fault.status, &self.error(&fault))
    }

    fn error(&self, fault: &DocumentFault) -> Value {
        let fresh = Fresh {
            now: self.traffic.clock.now(),
            rng: &self.rng,
            place: 0,
        };
        self.rules.error(fault, &fresh.uuid())
    }
}

impl Cloud for Documents {
    fn services(&self) -> Vec<&'static str> {
        vec![self.rules.service()]
    }

    fn target(&self, request: &Request) -> Target {
        let found = self.description.find(&request.method, &segments(&request.path));
        let (op, rest) =
            found.map_or(("unknown", Vec::new()), |(operation, rest)| (operation.name.as_str(), rest));
        Target {
            service: self.rules.service(),
            region: String::new(),
            interface: "public",
            op,
            rest,
        }
    }

    fn handle(&self, request: &Request, target: &Target, snapshot: Option<&Snapshot>) -> Reply {
        self.reply(self.answer(request, target, snapshot), Some((request, target.op)))
    }

    fn refuse(&self, _: &Target, status: StatusCode) -> Reply {
        let message = status.canonical_reason().unwrap_or("Error");
        self.reply(Err(DocumentFault::new(status, message)), None)
    }

    fn throttle(&self, target: &Target, retry_after: u64) -> Reply {
        let reply = self.refuse(target, StatusCode::TOO_MANY_REQUESTS);
        reply.with("retry-after", &retry_after.to_string())
    }

    fn refusals(&self) -> Vec<faults::Fault> {
        self.rules.refusals()
    }

    fn snapshot(&self) -> Snapshot {
        let store: Arc<Store> = Arc::clone(&self.store.read());
        store
    }

    fn control(
        self: Arc<Self>,
        request: &Request,
        method: &str,
        path: &[&str],
        behavior: Behavior,
    ) -> control::Answer {
        let control = Control {
            cloud: self,
            behavior,
        };
        match (method, path) {
            ("GET", []) => ok(&json!({"url": control.url(), "service": control.cloud.rules.service()})),
            ("GET", ["documents", collection]) => ok(&json!({ *collection: control.documents(collection) })),
            ("POST", ["documents", collection]) => control::id(&control.create(collection, body(request)?)),
            ("PATCH", ["documents", collection, id]) => {
                control.change(collection, id, body(request)?).and_then(done)
            }
            ("DELETE", ["documents", collection, id]) => control.remove(collection, id).and_then(done),
            ("PUT", ["limits", collection]) => {
                control.set_limit(collection, body::<Count>(request)?.count);
                done(())
            }
            ("POST", ["failures"]) => {
                control.fail_next_changes(body::<Count>(request)?.count.unwrap_or(1));
                done(())
            }
            _ => Ok(None),
        }
    }
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Count {
    count: Option<u32>,
}

/// A handle to a simulated cloud of documents. Clones are cheap and belong to the same cloud. [`Behavior`], its `Deref`
/// target, sets faults and reads the call log.
#[derive(Clone)]
pub struct Control {
    cloud: Arc<Documents>,
    behavior: Behavior,
}

impl std::fmt::Debug for Control {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.debug_struct("Control").field("base", &self.cloud.base).finish_non_exhaustive()
    }
}

impl std::ops::Deref for Control {
    type Target = Behavior;

    fn deref(&self) -> &Behavior {
        &self.behavior
    }
}

impl Control {
    /// URL of the API, without a path.
    pub fn url(&self) -> &str {
        &self.cloud.base
    }

    /// URL of the HTTP form of this API.
    pub fn control_url(&self) -> String {
        format!("{}/_sim", self.cloud.base)
    }

    /// The documents of a collection, by its name in the API (`droplets`), in the order of their creation.
    pub fn documents(&self, collection: &str) -> Vec<Value> {
        self.cloud.with_store(|store| {
            let found = store.all(collection);
            found.map(|document| Value::Object(document.fields.clone())).collect()
        })
    }

    /// A document of a collection.
    pub fn document(&self, collection: &str, id: &str) -> Option<Value> {
        self.cloud.with_store(|store| {
            let found = store.get(collection, id)?;
            Some(Value::Object(found.fields.clone()))
        })
    }

    /// Creates a document with defaults for missing fields, and returns its ID.
    pub fn create(&self, collection: &str, fields: Map<String, Value>) -> String {
        self.cloud.with_store(|store| self.cloud.insert(store, collection, fields))
    }

    /// Changes fields of a document like another client.
    ///
    /// # Errors
    /// If the document does not exist.
    pub fn change(&self, collection: &str, id: &str, fields: Map<String, Value>) -> Result<()> {
        let found = self.cloud.with_store(|store| store.change(collection, id, |known| known.extend(fields)));
        found.then_some(()).ok_or_else(|| Error::unknown("document", id))
    }

    /// Deletes a document like another client.
    ///
    /// # Errors
    /// If the document does not exist.
    pub fn remove(&self, collection: &str, id: &str) -> Result<()> {
        let found = self.cloud.with_store(|store| store.remove(collection, id));
        found.then_some(()).ok_or_else(|| Error::unknown("document", id))
    }

    /// Sets or removes the most documents of a collection.
    pub fn set_limit(&self, collection: &str, count: Option<u32>) {
        self.cloud.with_store(|store| match count {
            Some(count) => {
                store.limits.insert(collection.to_owned(), count as usize);
            }
            None => {
                store.limits.remove(collection);
            }
        });
    }

    /// Returns the violations of the description since the last call: unknown or invalid requests, and invalid answers.
    #[must_use]
    pub fn take_violations(&self) -> Vec<String> {
        std::mem::take(&mut *self.cloud.violations.lock())
    }

    /// Makes the next `count` asynchronous operations fail at their end.
    pub fn fail_next_changes(&self, count: u32) {
        self.cloud.with_store(|store| store.failing = count);
    }
}

/// A control that panics when it is dropped with violations that were not taken.
#[derive(Debug)]
pub(crate) struct Checked(pub(crate) Control);

impl Drop for Checked {
    fn drop(&mut self) {
        let violations = self.0.take_violations();
        assert!(violations.is_empty() || std::thread::panicking(), "{violations:#?}");
    }
}

/// Starts a cloud of documents on an address. Dropping the server closes the listener and all connections.
pub(crate) async fn start(
    listen: SocketAddr,
    seed: u64,
    description: &'static std::result::Result<Description, String>,
    rules: Box<dyn Rules>,
) -> Result<(Control, Server)> {
    let description = description.as_ref().map_err(|error| Error::Invalid(error.clone()))?;
    let (listener, address) = bind(listen).await?;
    let traffic = Arc::new(Traffic::new(Arc::new(Clock::new()), 8190));
    let cloud = Arc::new(Documents {
        rules,
        description,
        base: format!("http://{address}"),
        store: RwLock::default(),
        traffic: Arc::clone(&traffic),
        rng: Mutex::new(StdRng::seed_from_u64(seed)),
        violations: Mutex::default(),
    });
    let shared: Arc<dyn Cloud> = Arc::clone(&cloud) as _;
    let behavior = Behavior::new(Arc::clone(&shared), Arc::clone(&traffic));
    let control = Control { cloud, behavior };
    Ok((control, Server::start(listener, traffic, shared)))
}
