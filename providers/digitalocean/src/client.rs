//! The API's client: a dozen calls behind the gate.

use std::{
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use ccm_core::{
    BuildContext, Error, ErrorKind, Priority, Result, Retry,
    client::{
        Gate, GateConfig, Page, Pages, Quota, operations,
        rest::{self, Answer, Call, Proxies, RestApi, Target, Tls, reqwest},
    },
};
use http::{HeaderMap, Method, StatusCode};
use jiff::Timestamp;
use parking_lot::{Mutex, RwLock};
use reqwest::RequestBuilder;
use secrecy::{ExposeSecret, SecretString};
use serde::{Deserialize, de::DeserializeOwned};
use serde_json::{Value, json};
use tokio::time::Instant;
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
/// Background work stops while fewer than one in this many of the hour's requests remain.
const RESERVE: u32 = 10;
/// After this long, background work finds out by a request whether more remain.
const SHORT_FOR: Duration = Duration::from_secs(60);

operations! {
    /// The calls.
    pub(crate) enum Op {
        /// Who the token is. `DEBUG_ADDR` and `validate` ask.
        AccountGet = "account_get", BUCKET, Read;
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
        /// A new load balancer.
        LoadBalancerCreate = "load_balancer_create", BUCKET, Write;
        /// The whole load balancer anew.
        LoadBalancerUpdate = "load_balancer_update", BUCKET, IdempotentWrite;
        /// No load balancer.
        LoadBalancerDelete = "load_balancer_delete", BUCKET, IdempotentWrite;
        /// One certificate.
        CertificateGet = "certificate_get", BUCKET, Read;
        /// Certificates by name.
        CertificateList = "certificate_list", BUCKET, Read;
        /// One firewall.
        FirewallGet = "firewall_get", BUCKET, Read;
        /// A page of firewalls.
        FirewallList = "firewall_list", BUCKET, Read;
        /// A new firewall.
        FirewallCreate = "firewall_create", BUCKET, Write;
        /// The whole firewall anew.
        FirewallUpdate = "firewall_update", BUCKET, IdempotentWrite;
        /// Tags, for `validate`.
        TagList = "tag_list", BUCKET, Read;
        /// A new tag. One that exists stays.
        TagCreate = "tag_create", BUCKET, IdempotentWrite;
        /// A tag on resources.
        TagAssign = "tag_assign", BUCKET, IdempotentWrite;
    }
}

/// A token, and how many there were before it.
#[derive(Clone, Debug)]
pub(crate) struct Token {
    secret: SecretString,
    generation: u64,
}

/// The API with one account's token. A clone shares everything but the fence.
#[derive(Clone)]
pub(crate) struct Api {
    shared: Arc<Shared>,
    gate: Gate,
}

struct Shared {
    http: reqwest::Client,
    url: Url,
    token: RwLock<Token>,
    generation: AtomicU64,
    /// Since when fewer requests remain than background work may use.
    short: Mutex<Option<Instant>>,
}

impl std::fmt::Debug for Api {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Api")
            .field("url", &self.shared.url.as_str())
            .finish_non_exhaustive()
    }
}

impl Api {
    /// The API at the settings' URL. Asks nothing.
    ///
    /// # Errors
    /// A proxy of the environment cannot be used.
    pub(crate) fn new(settings: &Settings, context: &BuildContext) -> Result<Self> {
        let proxies = Proxies::of(&context.environment);
        let quota = settings.qps.map_or(QUOTA, |rate| Quota {
            rate: rate.min(QUOTA.rate),
            // As the former cloud controller: a token bucket of one second.
            burst: rate_burst(rate),
            ..QUOTA
        });
        let gate = GateConfig {
            buckets: vec![(BUCKET, quota)],
            attempt_timeout: settings.request_timeout,
            fence: context.fences.load_balancers.clone(),
            ..GateConfig::new(crate::NAME)
        };
        let token = Token {
            secret: settings.token.clone(),
            generation: 0,
        };
        Ok(Self {
            shared: Arc::new(Shared {
                http: rest::http_client(&Tls::default(), &proxies, &context.user_agent)?,
                url: settings.url.clone(),
                token: RwLock::new(token),
                generation: AtomicU64::new(0),
                short: Mutex::default(),
            }),
            gate: Gate::new(gate, &context.metrics),
        })
    }

    /// The same API, for writes that pass another fence.
    pub(crate) fn fenced_by(&self, fence: &ccm_core::client::Fence) -> Self {
        Self {
            shared: Arc::clone(&self.shared),
            gate: self.gate.fenced_by(fence),
        }
    }

    /// The API's URL.
    pub(crate) fn url(&self) -> &Url {
        &self.shared.url
    }

    /// Counts the tokens that were in use before.
    pub(crate) fn generation(&self) -> u64 {
        self.shared.generation.load(Ordering::Acquire)
    }

    /// Uses another token from now on, if the API accepts it.
    ///
    /// # Errors
    /// The API refuses the token; the old one stays in use.
    pub(crate) async fn replace_token(&self, secret: &SecretString) -> Result<()> {
        let generation = self.generation() + 1;
        let new = Token {
            secret: secret.clone(),
            generation,
        };
        let candidate = Self {
            shared: Arc::new(Shared {
                http: self.shared.http.clone(),
                url: self.shared.url.clone(),
                token: RwLock::new(new.clone()),
                generation: AtomicU64::new(generation),
                short: Mutex::default(),
            }),
            gate: self.gate.clone(),
        };
        match candidate.account(Priority::User).await {
            // A token without the scope account:read is accepted all the same.
            Err(error) if error.kind() != ErrorKind::PermissionDenied => return Err(error),
            _ => {}
        }
        *self.shared.token.write() = new;
        self.shared.generation.store(generation, Ordering::Release);
        Ok(())
    }

    /// Reads one document.
    ///
    /// # Errors
    /// As [`rest::json`]; `RateLimited` for background work while the hour's requests run out.
    pub(crate) async fn get<T: DeserializeOwned>(
        &self,
        op: Op,
        path: &[&str],
        query: &[(&'static str, &str)],
        priority: Priority,
    ) -> Result<T> {
        self.check_reserve(op, priority)?;
        let path = full(path);
        let call = Call {
            query,
            ..Call::new(op, (), Method::GET, &path)
        };
        rest::json(self, &call, priority).await
    }

    /// Reads one document; `None` if there is none.
    ///
    /// # Errors
    /// As [`get`](Self::get).
    pub(crate) async fn find<T: DeserializeOwned>(
        &self,
        op: Op,
        path: &[&str],
        priority: Priority,
    ) -> Result<Option<T>> {
        match self.get(op, path, &[], priority).await {
            Ok(found) => Ok(Some(found)),
            Err(error) if error.kind() == ErrorKind::NotFound => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Writes, and reads the document of the answer.
    ///
    /// # Errors
    /// As [`rest::json`].
    pub(crate) async fn write<T: DeserializeOwned>(
        &self,
        op: Op,
        method: Method,
        path: &[&str],
        body: &Value,
        priority: Priority,
    ) -> Result<T> {
        self.check_reserve(op, priority)?;
        let path = full(path);
        let call = Call::new(op, (), method, &path).json(body)?;
        rest::json(self, &call, priority).await
    }

    /// Writes without reading the answer.
    ///
    /// # Errors
    /// As [`rest::execute`].
    pub(crate) async fn execute(
        &self,
        op: Op,
        method: Method,
        path: &[&str],
        body: Option<&Value>,
        priority: Priority,
    ) -> Result<()> {
        self.check_reserve(op, priority)?;
        let path = full(path);
        let call = Call::new(op, (), method, &path);
        let call = match body {
            Some(body) => call.json(body)?,
            None => call,
        };
        rest::execute(self, &call, priority).await
    }

    /// One page of a collection, with the number of the next page.
    ///
    /// # Errors
    /// As [`get`](Self::get), and if the collection is not in the answer.
    pub(crate) async fn page<T: DeserializeOwned>(
        &self,
        op: Op,
        collection: &str,
        filter: &[(&'static str, &str)],
        number: u64,
        priority: Priority,
    ) -> Result<Page<T, u64>> {
        let page = number.to_string();
        let query = [filter, &[("page", page.as_str()), ("per_page", PER_PAGE)]].concat();
        let mut answer: Value = self.get(op, &[collection], &query, priority).await?;
        let has_next = answer
            .pointer("/links/pages/next")
            .is_some_and(|next| !next.is_null());
        let items = answer.get_mut(collection).map(Value::take);
        let unreadable = |error: serde_json::Error| {
            let text = format!("the answer has an unexpected form in {collection}");
            Error::new(ErrorKind::Unavailable, text)
                .with_operation(op_name(op))
                .with_source(error)
        };
        // The API answers null for an empty list here and there, but a page without the list is none.
        let missing = || {
            let text = format!("the answer has no {collection}");
            Error::new(ErrorKind::Unavailable, text).with_operation(op_name(op))
        };
        let items: Option<Vec<T>> = serde_json::from_value(items.ok_or_else(missing)?).map_err(unreadable)?;
        Ok(Page {
            items: items.unwrap_or_default(),
            next: has_next.then_some(number + 1),
        })
    }

    /// A whole collection.
    ///
    /// # Errors
    /// As [`page`](Self::page). A part is never returned.
    pub(crate) async fn list<T: DeserializeOwned>(
        &self,
        op: Op,
        collection: &str,
        filter: &[(&'static str, &str)],
        priority: Priority,
    ) -> Result<Vec<T>> {
        let (mut pages, mut all) = (Pages::new(None), Vec::new());
        loop {
            let next = pages.next(|number| self.page(op, collection, filter, number.unwrap_or(1), priority));
            let Some(items) = next.await? else {
                return Ok(all);
            };
            all.extend(items);
        }
    }

    /// Checks that the API accepts the token.
    ///
    /// # Errors
    /// It does not, or cannot be asked.
    pub(crate) async fn account(&self, priority: Priority) -> Result<()> {
        let _: Value = self.get(Op::AccountGet, &["account"], &[], priority).await?;
        Ok(())
    }

    /// The region of the droplet on which this program runs. `metadata`: URL of the metadata service.
    ///
    /// # Errors
    /// The metadata service does not answer with the slug of a region.
    pub(crate) async fn metadata_region(&self, metadata: &Url) -> Result<String> {
        let url = metadata.join("metadata/v1/region").map_err(|error| {
            Error::new(ErrorKind::InvalidConfig, "the metadata service has no such URL").with_source(error)
        })?;
        let failed = |what: String| {
            let text = format!("the metadata service does not know the region ({what}); set REGION");
            Error::new(ErrorKind::Unavailable, text)
        };
        let attempt = || async {
            let answer = self.shared.http.get(url.clone()).send().await;
            let answer =
                answer.map_err(|error| failed("no answer".to_owned()).with_source(error.without_url()))?;
            let status = answer.status();
            let text = answer.text().await.unwrap_or_default();
            match text.trim() {
                slug if status == StatusCode::OK && !slug.is_empty() => Ok(slug.to_owned()),
                _ => Err(failed(format!("status {status}"))),
            }
        };
        self.gate.call(Op::MetadataGet, Priority::User, attempt).await
    }

    /// Stops background work while the hour's requests run out, so that they are left to what users wait for.
    fn check_reserve(&self, op: Op, priority: Priority) -> Result<()> {
        let short = self.shared.short.lock();
        let is_short = short.is_some_and(|since| since.elapsed() < SHORT_FOR);
        if priority == Priority::User || !is_short {
            return Ok(());
        }
        let text = "fewer than 10 % of the hour's API requests remain; background work waits";
        let error = Error::new(ErrorKind::RateLimited, text).with_operation(op_name(op));
        Err(error.with_retry(Retry::After(SHORT_FOR)))
    }

    fn observe_rate(&self, headers: &HeaderMap) {
        let number = |name: &str| headers.get(name)?.to_str().ok()?.trim().parse::<u32>().ok();
        let (Some(limit), Some(remaining)) = (number("ratelimit-limit"), number("ratelimit-remaining"))
        else {
            return;
        };
        *self.shared.short.lock() = (remaining < limit / RESERVE).then(Instant::now);
        // Epoch of the moment when the oldest request of the hour no longer counts.
        let reset = headers
            .get("ratelimit-reset")
            .and_then(|reset| reset.to_str().ok());
        let reset = reset.and_then(|reset| reset.trim().parse::<i64>().ok());
        let left = reset.map(|reset| reset.saturating_sub(Timestamp::now().as_second()));
        let left = left
            .and_then(|left| u64::try_from(left).ok())
            .map(Duration::from_secs);
        if let Some(left) = left {
            let reset = ccm_core::client::later(Instant::now(), left);
            self.gate.observe_remaining(BUCKET, remaining, reset);
        }
    }
}

fn op_name(op: Op) -> &'static str {
    ccm_core::client::Operation::name(op)
}

/// A whole number of requests for one second.
#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "cut to the size of the bucket, and positive"
)]
fn rate_burst(rate: f64) -> u32 {
    rate.ceil().min(f64::from(QUOTA.burst)) as u32
}

fn full<'a>(path: &[&'a str]) -> Vec<&'a str> {
    ["v2"].into_iter().chain(path.iter().copied()).collect()
}

impl RestApi for Api {
    type Operation = Op;
    type Endpoint = ();
    type Credentials = Token;

    fn http(&self) -> &reqwest::Client {
        &self.shared.http
    }

    fn gate(&self) -> &Gate {
        &self.gate
    }

    async fn credentials(&self) -> Result<Token> {
        Ok(self.shared.token.read().clone())
    }

    /// The token was replaced while the request was under way.
    async fn renew(&self, refused: &Token) -> Result<Option<Token>> {
        let now = self.shared.token.read().clone();
        Ok((now.generation != refused.generation).then_some(now))
    }

    async fn base_url(&self, (): ()) -> Result<Url> {
        Ok(self.shared.url.clone())
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

/// A droplet, as far as nodes have to do with it.
#[derive(Clone, Debug, Deserialize)]
pub(crate) struct Droplet {
    pub(crate) id: u64,
    pub(crate) name: String,
    #[serde(default)]
    pub(crate) status: String,
    #[serde(default)]
    pub(crate) size_slug: String,
    pub(crate) region: Option<Region>,
    pub(crate) networks: Option<Networks>,
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
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
pub(crate) struct Certificate {
    pub(crate) id: String,
    #[serde(default)]
    pub(crate) name: String,
    #[serde(default, rename = "type")]
    pub(crate) kind: String,
}

impl Certificate {
    /// Whether it is renewed under another id.
    pub(crate) fn is_renewed(&self) -> bool {
        self.kind == "lets_encrypt"
    }
}

/// The answer with one certificate.
#[derive(Debug, Deserialize)]
pub(crate) struct OneCertificate {
    pub(crate) certificate: Certificate,
}

/// The answer with one droplet.
#[derive(Debug, Deserialize)]
pub(crate) struct OneDroplet {
    pub(crate) droplet: Droplet,
}

impl Api {
    /// Puts a tag on load balancers. Creates the tag if it does not exist.
    ///
    /// # Errors
    /// The API refuses it.
    pub(crate) async fn tag_load_balancers(
        &self,
        tag: &str,
        ids: &[String],
        priority: Priority,
    ) -> Result<()> {
        let resources: Vec<Value> = ids
            .iter()
            .map(|id| json!({"resource_id": id, "resource_type": "load_balancer"}))
            .collect();
        let body = json!({ "resources": resources });
        let path = ["tags", tag, "resources"];
        let assign = || self.execute(Op::TagAssign, Method::POST, &path, Some(&body), priority);
        match assign().await {
            Err(error) if error.kind() == ErrorKind::NotFound => {
                let body = json!({ "name": tag });
                self.execute(Op::TagCreate, Method::POST, &["tags"], Some(&body), priority)
                    .await?;
                assign().await
            }
            result => result,
        }
    }
}
