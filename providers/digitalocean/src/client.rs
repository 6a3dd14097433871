//! The API client. All calls pass the gate.

use std::{collections::BTreeSet, sync::Arc, time::Duration};

use ccm_core::{
    BuildContext, Error, ErrorKind, Outcome, Priority, Result,
    client::{
        Bucket, Gate, GateConfig, Operation as _, Page, Pages, Quota, later, operations,
        rest::{self, Answer, Call, Proxies, RestApi, Target, Tls, reqwest},
    },
};
use http::{HeaderMap, Method, StatusCode};
use jiff::Timestamp;
use parking_lot::RwLock;
use reqwest::RequestBuilder;
use secrecy::{ExposeSecret, SecretString};
use serde::{Deserialize, Deserializer, de::DeserializeOwned};
use serde_json::Value;
use tokio::time::Instant;
use tracing::warn;
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
pub(crate) const PER_PAGE: &str = "200";
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
            "delete" => Method::DELETE,
            _ => Method::POST,
        };
        let collection = collection(name);
        let path = [&["v2", collection.as_str()], path].concat();
        let mut call = Call::new(op, (), method, &path);
        if !body.is_null() {
            call = call.json(body)?;
        }
        let call = Call { query, ..call };
        if let Some(pace) = self.pace.as_ref().filter(|_| op.bucket() == BUCKET) {
            pace.acquire(priority).await.begin();
        }
        match verb {
            "delete" | "assign" => rest::execute(self, &call, priority).await.map(|()| Value::Null),
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

    /// One page of a collection, with the number of the next page, and the number of items of all pages.
    ///
    /// # Errors
    /// The errors of [`send`](Self::send), and an answer without the collection.
    pub(crate) async fn page<T: DeserializeOwned + Send>(
        &self,
        op: Op,
        filter: &[(&'static str, &str)],
        number: u64,
        priority: Priority,
    ) -> Result<(Page<T, u64>, Option<u64>)> {
        let page = number.to_string();
        let query = [filter, &[("page", page.as_str()), ("per_page", PER_PAGE)]].concat();
        let answer = self.send(op, &[], &query, &Value::Null, priority).await?;
        let next = answer.pointer("/links/pages/next");
        let next = next.filter(|next| !next.is_null()).map(|_| number + 1);
        let total = answer.pointer("/meta/total").and_then(Value::as_u64);
        // The API sometimes returns null for an empty list.
        let items: Option<Vec<T>> = take(op, answer, &collection(names(op).0))?;
        let items = items.unwrap_or_default();
        Ok((Page { items, next }, total))
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
                let page = async |number: Option<u64>| {
                    let number = number.unwrap_or(1);
                    let (page, total) = self.page(op, filter, number, priority).await?;
                    totals.extend(total);
                    Ok(page)
                };
                all.extend(pages.next(page).await?.unwrap_or_default());
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
        let account = self.send(Op::AccountGet, &[], &[], &Value::Null, priority);
        account.await.map(drop)
    }

    /// The region of the droplet on which this program runs. `metadata`: URL of the metadata service.
    ///
    /// # Errors
    /// The metadata service does not return the slug of a region.
    pub(crate) async fn metadata_region(&self, metadata: &Url) -> Result<String> {
        let mut url = metadata.clone();
        url.set_path("metadata/v1/region");
        let failed = || {
            let text = "the metadata service did not return a region; set REGION";
            Error::new(ErrorKind::Unavailable, text)
        };
        let read = async || {
            let answer = self.http.get(url.clone()).send().await?;
            answer.error_for_status()?.text().await
        };
        let attempt = || async {
            let text = read().await;
            let text = text.map_err(|error| failed().with_source(error.without_url()))?;
            let slug = Some(text.trim().to_owned()).filter(|slug| !slug.is_empty());
            slug.ok_or_else(failed)
        };
        self.gate.call(Op::MetadataGet, Priority::User, attempt).await
    }

    fn observe_rate(&self, headers: &HeaderMap) {
        let number = |name: &str| headers.get(name)?.to_str().ok()?.trim().parse::<i64>().ok();
        let count = |name: &str| u32::try_from(number(name)?).ok();
        let (Some(limit), Some(remaining)) = (count("ratelimit-limit"), count("ratelimit-remaining")) else {
            return;
        };
        // Unix time at which the oldest request of the hour no longer counts.
        let left = number("ratelimit-reset").map(|reset| reset.saturating_sub(Timestamp::now().as_second()));
        let left = left.and_then(|left| u64::try_from(left).ok());
        let reset = left.map(|left| later(Instant::now(), Duration::from_secs(left)));
        self.gate.bucket(BUCKET).observe_remaining(remaining, limit, reset);
    }
}

/// Ignores the error of a token that lacks the scope for an optional check.
pub(crate) fn accept_without_right(error: Error) -> Result<()> {
    if error.kind() != ErrorKind::PermissionDenied {
        return Err(error);
    }
    warn!(error = error.report(), "Skipped an optional check: the token lacks the scope");
    Ok(())
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
        let error = Error::new(ErrorKind::Unavailable, text).with_outcome(Outcome::Unknown);
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

    fn refused(&self, target: &Target, answer: &Answer) -> Error {
        error::refused(target, answer)
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
    #[serde(default)]
    pub(crate) status: String,
    #[serde(default)]
    pub(crate) size_slug: String,
    #[serde(default)]
    pub(crate) region: Region,
    pub(crate) networks: Option<Networks>,
}

/// Deserializes a number as text.
fn number<'de, D: Deserializer<'de>>(deserializer: D) -> Result<String, D::Error> {
    u64::deserialize(deserializer).map(|number| number.to_string())
}

/// A region.
#[derive(Clone, Debug, Default, Deserialize)]
pub(crate) struct Region {
    #[serde(default)]
    pub(crate) slug: String,
}

/// The addresses of a droplet.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub(crate) struct Networks {
    pub(crate) v4: Vec<NetworkAddress>,
    pub(crate) v6: Vec<NetworkAddress>,
}

/// An address of a droplet.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub(crate) struct NetworkAddress {
    pub(crate) ip_address: String,
    #[serde(rename = "type")]
    pub(crate) kind: String,
}

/// A certificate.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub(crate) struct Certificate {
    pub(crate) id: String,
    pub(crate) name: String,
    #[serde(rename = "type")]
    pub(crate) kind: String,
}
