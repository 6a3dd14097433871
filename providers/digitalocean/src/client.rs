//! The API client. All calls pass the gate.

use std::{
    collections::{BTreeMap, BTreeSet},
    str::FromStr,
    sync::Arc,
    time::Duration,
};

use ccm_core::{
    BuildContext, Error, ErrorKind, Priority, RequestOutcome, Result, Retry,
    client::{
        Bucket, Gate, GateConfig, Operation as _, Page, Pages, Quota, later, operations,
        rest::{self, Answer, Call, Proxies, RestApi, Target, Tls, reqwest},
    },
};
use http::{HeaderMap, Method, StatusCode};
use jiff::Timestamp;
use parking_lot::{Mutex, RwLock};
use reqwest::RequestBuilder;
use secrecy::{ExposeSecret, SecretString};
use serde::{Deserialize, Deserializer, de::DeserializeOwned};
use serde_json::Value;
use tokio::time::Instant;
use tracing::{debug, warn};
use url::Url;

use crate::{config::Settings, error};

/// The quota bucket of a token's requests.
const BUCKET: &str = "api";
/// The API allows 5,000 requests an hour and 250 a minute for each token. A bucket of this size and rate stays below both:
/// 160 + 60 s x 1.344/s = 241 in any minute, 160 + 3600 s x 1.344/s = 4,998 in any hour.
const QUOTA: Quota = Quota {
    rate: 1.344,
    burst: 160,
    max_in_flight: 16,
};
/// The largest page (API: `per_page`).
const LARGEST_PAGE: u64 = 200;
/// The largest page of collections of large documents. The API fails to return 200 load balancers with many droplets, and the Go
/// cloud controller reads 50.
const LARGE_DOCUMENTS: u64 = 50;
/// After a page failed, pages are smaller. Their size doubles in this time.
const PAGES_GROW: Duration = Duration::from_secs(60);
/// How often a collection is read that changes all the time.
const LIST_ATTEMPTS: u32 = 3;

operations! {
    /// The API operations. A name consists of a document kind and a verb, which determine path and method ([`Api::send`]).
    pub(crate) enum Op {
        /// The account of the token, for `DEBUG_ADDR` and `validate`. A probe does not wait for writes of load balancers.
        AccountGet = "account_get", "account", Read;
        /// All regions.
        RegionList = "region_list", BUCKET, Read;
        /// The region of this droplet, from its metadata service.
        MetadataGet = "metadata_get", "metadata", Read;
        /// A VPC, for `validate`.
        VpcGet = "vpc_get", BUCKET, Read;
        /// One droplet.
        DropletGet = "droplet_get", BUCKET, Read;
        /// Droplets by name, or a page of all.
        DropletList = "droplet_list", BUCKET, Read;
        /// One load balancer.
        LoadBalancerGet = "load_balancer_get", BUCKET, Read;
        /// A page of load balancers.
        LoadBalancerList = "load_balancer_list", BUCKET, Read;
        /// Creates a load balancer.
        LoadBalancerCreate = "load_balancer_create", BUCKET, Write;
        /// Replaces a load balancer.
        LoadBalancerUpdate = "load_balancer_update", BUCKET, IdempotentWrite;
        /// Deletes a load balancer.
        LoadBalancerDelete = "load_balancer_delete", BUCKET, IdempotentWrite;
        /// One certificate.
        CertificateGet = "certificate_get", BUCKET, Read;
        /// Certificates by name.
        CertificateList = "certificate_list", BUCKET, Read;
        /// One firewall.
        FirewallGet = "firewall_get", BUCKET, Read;
        /// A page of firewalls.
        FirewallList = "firewall_list", BUCKET, Read;
        /// Creates a firewall.
        FirewallCreate = "firewall_create", BUCKET, Write;
        /// Replaces a firewall.
        FirewallUpdate = "firewall_update", BUCKET, IdempotentWrite;
        /// Tags, for `validate`.
        TagList = "tag_list", BUCKET, Read;
        /// Creates a tag. One that exists stays.
        TagCreate = "tag_create", BUCKET, IdempotentWrite;
        /// Adds a tag to resources.
        TagAssign = "tag_assign", BUCKET, IdempotentWrite;
        /// Removes a tag from resources.
        TagUnassign = "tag_unassign", BUCKET, IdempotentWrite;
    }
}

/// A token, and the number of tokens before it.
#[derive(Clone, Debug)]
pub(crate) struct Token {
    secret: SecretString,
    generation: u64,
}

/// The API with the token of one account. Clones share everything except the fence.
#[derive(Clone, Debug)]
pub(crate) struct Api {
    http: reqwest::Client,
    url: Url,
    token: Arc<RwLock<Token>>,
    gate: Gate,
    /// The configured requests per second, if the gate allows more in a burst.
    pace: Option<Bucket>,
    /// Collections whose larger pages failed.
    small_pages: Arc<Mutex<BTreeMap<&'static str, SmallPages>>>,
}

/// The page size of a collection whose larger pages failed.
#[derive(Clone, Copy, Debug)]
struct SmallPages {
    size: u64,
    since: Instant,
}

impl SmallPages {
    /// The size to use now: the failure may have been one of the API, not one of the size.
    fn grown(&self) -> u64 {
        let doublings = self.since.elapsed().as_secs() / PAGES_GROW.as_secs();
        let factor = 1_u64.checked_shl(u32::try_from(doublings).unwrap_or(u32::MAX));
        self.size.saturating_mul(factor.unwrap_or(u64::MAX))
    }
}

impl Api {
    /// The API at the URL of the settings. Sends no request.
    ///
    /// # Errors
    /// A proxy of the environment cannot be used.
    pub(crate) fn new(settings: &Settings, context: &BuildContext) -> Result<Self> {
        let proxies = Proxies::of(&context.environment);
        let (quota, pace) = match settings.conf.rate_limit_qps {
            // The API's own limits are lower on average. This one limits bursts.
            Some(rate) if rate > QUOTA.rate => (QUOTA, Some(Quota { rate, ..QUOTA }.at_most(rate))),
            Some(rate) => (QUOTA.at_most(rate), None),
            None => (QUOTA, None),
        };
        let gate = GateConfig {
            buckets: vec![(BUCKET, quota)],
            attempt_timeout: settings.conf.request_timeout.to_std(),
            fence: context.fences.load_balancers.clone(),
            ..GateConfig::new(crate::NAME)
        };
        Ok(Self {
            http: rest::http_client(&Tls::default(), &proxies, &context.user_agent)?,
            url: settings.url.clone(),
            token: Arc::new(RwLock::new(Token {
                secret: settings.token.clone(),
                generation: 0,
            })),
            gate: Gate::new(gate, &context.metrics),
            pace: pace.map(Bucket::new),
            small_pages: Arc::default(),
        })
    }

    /// The same API, for writes that pass another fence.
    pub(crate) fn fenced_by(&self, fence: &ccm_core::client::Fence) -> Self {
        Self {
            gate: self.gate.fenced_by(fence),
            ..self.clone()
        }
    }

    /// The API's URL.
    pub(crate) fn url(&self) -> &Url {
        &self.url
    }

    /// Counts the tokens that were in use before.
    pub(crate) fn generation(&self) -> u64 {
        self.token.read().generation
    }

    /// Uses another token from now on, if the API accepts it.
    ///
    /// # Errors
    /// The API refuses the token; the old one stays in use.
    pub(crate) async fn replace_token(&self, secret: &SecretString) -> Result<()> {
        let token = Token {
            secret: secret.clone(),
            generation: self.generation() + 1,
        };
        let candidate = Self {
            token: Arc::new(RwLock::new(token.clone())),
            ..self.clone()
        };
        // A token without the scope account:read is accepted, too.
        let account = candidate.account(Priority::User).await;
        account.or_else(accept_without_right)?;
        *self.token.write() = token;
        Ok(())
    }

    /// Sends a call and returns its answer, or null without one. `path`: below the collection. `body`: null for no body.
    ///
    /// # Errors
    /// The errors of [`rest::json`].
    pub(crate) async fn send(
        &self,
        op: Op,
        path: &[&str],
        query: &[(&'static str, &str)],
        body: &Value,
        priority: Priority,
    ) -> Result<Value> {
        let (name, verb) = names(op);
        let method = match verb {
            "get" | "list" => Method::GET,
            "update" => Method::PUT,
            "delete" | "unassign" => Method::DELETE,
            _ => Method::POST,
        };
        let collection = collection(name);
        let path = [&["v2", collection.as_str()], path].concat();
        let mut call = Call::new(op, (), method, &path);
        if !body.is_null() {
            call = call.json(body)?;
        }
        let call = Call { query, ..call };
        if let Some(pace) = &self.pace
            && op.bucket() == BUCKET
        {
            pace.acquire(priority).await.begin();
        }
        match verb {
            "delete" | "assign" | "unassign" => {
                rest::execute(self, &call, priority).await.map(|()| Value::Null)
            }
            _ => rest::json(self, &call, priority).await,
        }
    }

    /// Sends a write, and returns the document of the answer.
    ///
    /// # Errors
    /// As [`send`](Self::send).
    pub(crate) async fn write<T: DeserializeOwned + Send>(
        &self,
        op: Op,
        path: &[&str],
        body: &Value,
        priority: Priority,
    ) -> Result<T> {
        let answer = self.send(op, path, &[], body, priority).await?;
        take(op, answer, names(op).0)
    }

    /// Reads one document; `None` if it does not exist.
    ///
    /// # Errors
    /// As [`send`](Self::send).
    pub(crate) async fn find<T: DeserializeOwned + Send>(
        &self,
        op: Op,
        id: &str,
        priority: Priority,
    ) -> Result<Option<T>> {
        match self.write(op, &[id], &Value::Null, priority).await {
            Err(error) if error.kind() == ErrorKind::NotFound => Ok(None),
            found => found.map(Some),
        }
    }

    /// The page of a collection that begins with the item `offset`, with the offset of the next page, and the number of items of
    /// all pages. A page that fails is read again with half its size.
    ///
    /// # Errors
    /// The errors of [`send`](Self::send), and an answer without the collection.
    pub(crate) async fn page<T: DeserializeOwned + Send>(
        &self,
        op: Op,
        filter: &[(&'static str, &str)],
        offset: u64,
        priority: Priority,
    ) -> Result<(Page<T, u64>, Option<u64>)> {
        let largest = aligned(offset, self.page_size(op));
        let mut size = largest;
        loop {
            match self.page_of_size(op, filter, offset, size, priority).await {
                Err(error) if size > 1 && is_failure(&error) => {
                    debug!(operation = op.name(), size, error = error.report(), "A page failed");
                    size = aligned(offset, size / 2);
                }
                // Only the smaller page was the repetition.
                Err(error) if is_failure(&error) => return Err(error.with_retry(Retry::Backoff)),
                Ok(page) if size < largest => {
                    let smaller = SmallPages {
                        size,
                        since: Instant::now(),
                    };
                    self.small_pages.lock().insert(op.name(), smaller);
                    return Ok(page);
                }
                page => return page,
            }
        }
    }

    async fn page_of_size<T: DeserializeOwned + Send>(
        &self,
        op: Op,
        filter: &[(&'static str, &str)],
        offset: u64,
        size: u64,
        priority: Priority,
    ) -> Result<(Page<T, u64>, Option<u64>)> {
        let (page, per_page) = ((offset / size + 1).to_string(), size.to_string());
        let paging = [("page", page.as_str()), ("per_page", per_page.as_str())];
        let answer = self.send(op, &[], &[filter, &paging].concat(), &Value::Null, priority).await?;
        let has_next = answer.pointer("/links/pages/next").is_some_and(|next| !next.is_null());
        let next = has_next.then_some(offset + size);
        let total = answer.pointer("/meta/total").and_then(Value::as_u64);
        // The API sometimes returns null for an empty list.
        let items: Option<Vec<T>> = take(op, answer, &collection(names(op).0))?;
        let page = Page {
            items: items.unwrap_or_default(),
            next,
        };
        Ok((page, total))
    }

    /// The page size with which a listing begins.
    fn page_size(&self, op: Op) -> u64 {
        let small_pages = self.small_pages.lock();
        let small = small_pages.get(op.name()).map(SmallPages::grown);
        small.unwrap_or(u64::MAX).min(largest_page(op))
    }

    /// A whole collection. It is read again if it changed between two pages, since an item may be missing then.
    ///
    /// # Errors
    /// The errors of [`page`](Self::page). A collection that lacks a page is never returned.
    pub(crate) async fn list<T: DeserializeOwned + Send>(
        &self,
        op: Op,
        filter: &[(&'static str, &str)],
        priority: Priority,
    ) -> Result<Vec<T>> {
        let mut all = Vec::new();
        for _ in 0..LIST_ATTEMPTS {
            all.clear();
            let (mut pages, mut totals) = (Pages::start(), BTreeSet::new());
            while !pages.is_complete() {
                let items = pages
                    .next(async |offset: Option<u64>| {
                        let offset = offset.unwrap_or_default();
                        let (page, total) = self.page(op, filter, offset, priority).await?;
                        totals.extend(total);
                        Ok(page)
                    })
                    .await?;
                all.extend(items.unwrap_or_default());
            }
            let count = u64::try_from(all.len()).unwrap_or_default();
            if pages.fetched() == 1 || totals.iter().all(|total| *total == count) {
                break;
            }
        }
        Ok(all)
    }

    /// Checks that the API accepts the token.
    ///
    /// # Errors
    /// The API refuses the token, or cannot be reached.
    pub(crate) async fn account(&self, priority: Priority) -> Result<()> {
        self.send(Op::AccountGet, &[], &[], &Value::Null, priority).await?;
        Ok(())
    }

    /// The region of the droplet on which this program runs. `metadata`: URL of the metadata service.
    ///
    /// # Errors
    /// The metadata service does not return the slug of a region.
    pub(crate) async fn metadata_region(&self, metadata: &Url) -> Result<String> {
        let mut url = metadata.clone();
        url.set_path("metadata/v1/region");
        self.gate
            .call(Op::MetadataGet, Priority::User, || async {
                let error = Error::new(
                    ErrorKind::Unavailable,
                    "the metadata service did not return a region; set REGION",
                );
                match self.text(&url).await {
                    Ok(text) if !text.trim().is_empty() => Ok(text.trim().to_owned()),
                    Ok(_) => Err(error),
                    Err(source) => Err(error.with_source(source.without_url())),
                }
            })
            .await
    }

    /// The body of the answer to a plain GET.
    async fn text(&self, url: &Url) -> Result<String, reqwest::Error> {
        self.http.get(url.clone()).send().await?.error_for_status()?.text().await
    }

    fn observe_rate(&self, headers: &HeaderMap) {
        let (Some(limit), Some(remaining)) =
            (header(headers, "ratelimit-limit"), header(headers, "ratelimit-remaining"))
        else {
            return;
        };
        // Unix time at which the oldest request of the hour no longer counts.
        let reset = header::<i64>(headers, "ratelimit-reset")
            .and_then(|reset| u64::try_from(reset.saturating_sub(Timestamp::now().as_second())).ok())
            .map(|seconds| later(Instant::now(), Duration::from_secs(seconds)));
        self.gate.bucket(BUCKET).observe_remaining(remaining, limit, reset);
    }
}

/// A header as a number.
fn header<T: FromStr>(headers: &HeaderMap, name: &str) -> Option<T> {
    headers.get(name)?.to_str().ok()?.trim().parse().ok()
}

/// Ignores the error of a token that lacks the scope for an optional check.
pub(crate) fn accept_without_right(error: Error) -> Result<()> {
    if error.kind() != ErrorKind::PermissionDenied {
        return Err(error);
    }
    warn!(error = error.report(), "Skipped an optional check: the token lacks the scope");
    Ok(())
}

/// The page size with which a listing begins, unless a page of that size failed.
fn largest_page(op: Op) -> u64 {
    match op {
        Op::LoadBalancerList | Op::DropletList => LARGE_DOCUMENTS,
        _ => LARGEST_PAGE,
    }
}

/// The largest page size up to `size` with which a page begins at this offset.
fn aligned(offset: u64, size: u64) -> u64 {
    (1..=size).rev().find(|size| offset.is_multiple_of(*size)).unwrap_or(1)
}

/// Whether a smaller page may succeed.
fn is_failure(error: &Error) -> bool {
    matches!(error.kind(), ErrorKind::Unavailable | ErrorKind::Timeout)
}

/// The document kind and the verb of an operation: `load_balancer` and `create`.
fn names(op: Op) -> (&'static str, &'static str) {
    op.name().rsplit_once('_').unwrap_or_default()
}

/// The collection of a kind of document, in paths and in answers.
fn collection(name: &str) -> String {
    match name {
        "account" => name.to_owned(),
        _ => format!("{name}s"),
    }
}

/// A field of an answer.
fn take<T: DeserializeOwned + Send>(op: Op, mut answer: Value, field: &str) -> Result<T> {
    let unreadable = || {
        let text = format!("the answer has no {field}, or its format is unexpected");
        // A write with an unreadable answer may have succeeded.
        let error = Error::new(ErrorKind::Unavailable, text).with_outcome(RequestOutcome::Unknown);
        error.with_operation(op.name())
    };
    let value = answer.get_mut(field).map(Value::take).ok_or_else(unreadable)?;
    serde_json::from_value(value).map_err(|error| unreadable().with_source(error))
}

impl RestApi for Api {
    type Operation = Op;
    type Endpoint = ();
    type Credentials = Token;

    fn http(&self) -> &reqwest::Client {
        &self.http
    }

    fn gate(&self) -> &Gate {
        &self.gate
    }

    async fn credentials(&self) -> Result<Token> {
        Ok(self.token.read().clone())
    }

    /// The present token, if it was replaced during the request.
    async fn renew(&self, refused: &Token) -> Result<Option<Token>> {
        let now = self.token.read().clone();
        Ok((now.generation != refused.generation).then_some(now))
    }

    async fn base_url(&self, (): ()) -> Result<Url> {
        Ok(self.url.clone())
    }

    fn authorize(&self, request: RequestBuilder, token: &Token) -> RequestBuilder {
        request.bearer_auth(token.secret.expose_secret())
    }

    /// A deletion that was carried out is answered with 204. Another success, as of a proxy, says nothing about it.
    fn is_success(&self, (): (), method: &Method, status: StatusCode) -> bool {
        match *method {
            Method::GET => status == StatusCode::OK,
            Method::DELETE => status == StatusCode::NO_CONTENT,
            _ => status.is_success(),
        }
    }

    fn refused(&self, target: &Target, answer: &Answer) -> Error {
        if answer.status.is_success() {
            let text = format!("{target}: unexpected status {}", answer.status.as_u16());
            let error = Error::new(ErrorKind::Unavailable, text).with_outcome(RequestOutcome::Unknown);
            return error.with_status(answer.status.as_u16());
        }
        let error = error::refused(target, answer);
        let is_listing = target.method == Method::GET
            && ["/load_balancers", "/droplets"].iter().any(|end| target.path.ends_with(end));
        match error.retry() {
            // The same page would probably fail again. `page` reads a smaller one.
            Retry::Backoff if is_listing && error.kind() == ErrorKind::Unavailable => {
                error.with_retry(Retry::Never)
            }
            _ => error,
        }
    }

    fn answered(&self, _: Op, _: &Method, answer: Option<(StatusCode, &HeaderMap)>, _: Duration) {
        if let Some((_, headers)) = answer {
            self.observe_rate(headers);
        }
    }
}

/// A droplet, with the fields that nodes need.
#[derive(Clone, Debug, Deserialize)]
pub(crate) struct Droplet {
    #[serde(deserialize_with = "number")]
    pub(crate) id: String,
    pub(crate) name: String,
    #[serde(default, deserialize_with = "or_default")]
    pub(crate) status: String,
    #[serde(default, deserialize_with = "or_default")]
    pub(crate) size_slug: String,
    #[serde(default, deserialize_with = "or_default")]
    pub(crate) region: Region,
    pub(crate) networks: Option<Networks>,
}

/// Deserializes a number as text.
fn number<'de, D: Deserializer<'de>>(deserializer: D) -> Result<String, D::Error> {
    u64::deserialize(deserializer).map(|number| number.to_string())
}

/// Deserializes null as the default: one such field must not make a page unreadable.
fn or_default<'de, D: Deserializer<'de>, T: Default + Deserialize<'de>>(
    deserializer: D,
) -> Result<T, D::Error> {
    Option::deserialize(deserializer).map(Option::unwrap_or_default)
}

/// A region.
#[derive(Clone, Debug, Default, Deserialize)]
pub(crate) struct Region {
    #[serde(default, deserialize_with = "or_default")]
    pub(crate) slug: String,
}

/// The addresses of a droplet.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub(crate) struct Networks {
    #[serde(deserialize_with = "or_default")]
    pub(crate) v4: Vec<NetworkAddress>,
    #[serde(deserialize_with = "or_default")]
    pub(crate) v6: Vec<NetworkAddress>,
}

/// An address of a droplet.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub(crate) struct NetworkAddress {
    #[serde(deserialize_with = "or_default")]
    pub(crate) ip_address: String,
    #[serde(rename = "type", deserialize_with = "or_default")]
    pub(crate) kind: String,
}

/// A certificate.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub(crate) struct Certificate {
    #[serde(deserialize_with = "or_default")]
    pub(crate) id: String,
    #[serde(deserialize_with = "or_default")]
    pub(crate) name: String,
    #[serde(rename = "type", deserialize_with = "or_default")]
    pub(crate) kind: String,
}
