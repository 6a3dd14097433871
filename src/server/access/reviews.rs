//! Reviews by the API server: TokenReviews authenticate clients, SubjectAccessReviews authorize them.

use std::{fmt::Debug, time::Duration};

use ccm_core::{controllers::Backoff, error::report};
use k8s_openapi::api::{
    authentication::v1::{TokenReview, TokenReviewSpec},
    authorization::v1::{NonResourceAttributes, SubjectAccessReview, SubjectAccessReviewSpec},
};
use kube::{Api, Client, Resource, api::PostParams};
use prometheus_client::{
    metrics::{counter::Counter, family::Family, histogram::Histogram},
    registry::Registry,
};
use serde::{Serialize, de::DeserializeOwned};
use tokio::{
    sync::Semaphore,
    time::{Instant, sleep, timeout},
};
use tracing::{debug, info, warn};

use super::{cache::Cache, user::User};
use crate::{api, config::AccessConfig, logging::Failing, metrics::register};

/// The most reviews in progress. A few scrapers need far fewer.
const AT_ONCE: usize = 64;
/// The limit of a request for its reviews: no scraper waits longer.
pub(super) const LIMIT: Duration = Duration::from_secs(10);
/// The limit of one review with all its tries, so that the failure is reported before requests stop waiting.
const ANSWER_LIMIT: Duration = Duration::from_secs(9);
/// The most tries of a review.
const TRIES: u32 = 5;
const BACKOFF: Backoff = Backoff::millis(500, 1500);

/// The clients that send reviews.
#[derive(Clone)]
pub(crate) struct Reviewers {
    /// Sends TokenReviews, and reads the cluster's client CA.
    pub(crate) authentication: Client,
    /// Sends SubjectAccessReviews.
    pub(crate) authorization: Client,
    /// Whether the program ends if the cluster refuses to return its client CA.
    pub(crate) lookup_required: bool,
}

/// The answer to a SubjectAccessReview.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct ReviewVerdict {
    pub(super) allowed: bool,
    /// The reason of the API server.
    pub(super) reason: String,
}

/// Sends reviews and caches the results.
pub(super) struct Reviews {
    token_ttl: Duration,
    allowed_ttl: Duration,
    denied_ttl: Duration,
    tokens: Cache<Option<User>>,
    rights: Cache<ReviewVerdict>,
    under_way: Semaphore,
    authentication: ReviewMetrics,
    authorization: ReviewMetrics,
}

type CodeLabel = [(&'static str, String); 1];

/// The outcome of one kind of review.
struct ReviewMetrics {
    what: &'static str,
    failing: Failing,
    total: Family<CodeLabel, Counter>,
    duration: Family<CodeLabel, Histogram>,
}

impl Reviews {
    pub(super) fn new(config: &AccessConfig, registry: &mut Registry) -> Self {
        Self {
            token_ttl: config.token_ttl,
            allowed_ttl: config.allowed_ttl,
            denied_ttl: config.denied_ttl,
            tokens: Cache::default(),
            rights: Cache::default(),
            under_way: Semaphore::new(AT_ONCE),
            authentication: ReviewMetrics::new("TokenReview", "authn", registry),
            authorization: ReviewMetrics::new("SubjectAccessReview", "authz", registry),
        }
    }

    /// The user of the token; `None` if the token is not valid.
    ///
    /// # Errors
    /// The review failed.
    pub(super) async fn authenticate(&self, client: &Client, token: &str) -> Result<Option<User>, String> {
        let ask = async {
            let review = TokenReview {
                spec: TokenReviewSpec {
                    token: Some(token.to_owned()),
                    ..TokenReviewSpec::default()
                },
                ..TokenReview::default()
            };
            let status = self.review(&self.authentication, client, &review).await?.status.unwrap_or_default();
            if let Some(error) = status.error.filter(|error| !error.is_empty()) {
                debug!(error, "The API server does not accept a client's token");
            }
            let user = if status.authenticated == Some(true) {
                status.user.map(User::of_review)
            } else {
                None
            };
            Ok((user, self.token_ttl))
        };
        self.tokens.get(token.as_bytes(), ask).await
    }

    /// Whether the user may do this to the path.
    ///
    /// # Errors
    /// The review failed.
    pub(super) async fn authorize(
        &self,
        client: &Client,
        user: &User,
        verb: &str,
        path: &str,
    ) -> Result<ReviewVerdict, String> {
        let ask = async {
            let review = SubjectAccessReview {
                spec: SubjectAccessReviewSpec {
                    user: Some(user.name.clone()),
                    uid: Some(user.uid.clone()).filter(|uid| !uid.is_empty()),
                    groups: Some(user.groups.clone()),
                    extra: Some(user.extra.clone()).filter(|extra| !extra.is_empty()),
                    non_resource_attributes: Some(NonResourceAttributes {
                        path: Some(path.to_owned()),
                        verb: Some(verb.to_owned()),
                    }),
                    resource_attributes: None,
                },
                ..SubjectAccessReview::default()
            };
            let status = self.review(&self.authorization, client, &review).await?.status.unwrap_or_default();
            let verdict = ReviewVerdict {
                allowed: status.allowed && status.denied != Some(true),
                reason: status.reason.unwrap_or_default(),
            };
            let ttl = if verdict.allowed {
                self.allowed_ttl
            } else {
                self.denied_ttl
            };
            Ok((verdict, ttl))
        };
        let question = serde_json::to_vec(&(user, verb, path)).map_err(|error| error.to_string())?;
        self.rights.get(&question, ask).await
    }

    async fn review<K: Review>(
        &self,
        metrics: &ReviewMetrics,
        client: &Client,
        review: &K,
    ) -> Result<K, String> {
        let ask = async {
            let turn = self.under_way.acquire().await;
            let _turn = turn.map_err(|error| error.to_string())?;
            let api: Api<K> = Api::all(client.clone());
            let mut tries = 1;
            loop {
                let began = Instant::now();
                let answer = api.create(&PostParams::default(), review).await;
                metrics.count(&answer, began.elapsed());
                let error = match answer {
                    Ok(answer) => return Ok(answer),
                    Err(error) if tries == TRIES || !api::may_pass(&error) => return Err(report(&error)),
                    Err(error) => report(&error),
                };
                debug!(error, what = metrics.what, "Trying the review again");
                sleep(BACKOFF.delay(tries)).await;
                tries += 1;
            }
        };
        let answer = timeout(ANSWER_LIMIT, ask).await.unwrap_or_else(|_| Err("no answer in time".to_owned()));
        metrics.report(answer.as_ref().err().map(String::as_str));
        answer
    }
}

/// A review object.
trait Review: Resource<DynamicType = ()> + Clone + Debug + Serialize + DeserializeOwned {}

impl Review for TokenReview {}
impl Review for SubjectAccessReview {}

impl ReviewMetrics {
    fn new(what: &'static str, name: &str, registry: &mut Registry) -> Self {
        let metrics = Self {
            what,
            failing: Failing::default(),
            total: Family::default(),
            duration: Family::new_with_constructor(|| {
                Histogram::new([0.25, 0.5, 0.7, 1.0, 1.5, 3.0, 5.0, 10.0])
            }),
        };
        let (total, duration) = (metrics.total.clone(), metrics.duration.clone());
        register(registry, format!("apiserver_delegated_{name}_request"), total);
        register(registry, format!("apiserver_delegated_{name}_request_duration_seconds"), duration);
        metrics
    }

    fn count<K>(&self, answer: &kube::Result<K>, took: Duration) {
        let code = match answer {
            Ok(_) => "201".to_owned(),
            Err(kube::Error::Api(status)) => status.code.to_string(),
            Err(_) => "<error>".to_owned(),
        };
        let label = [("code", code)];
        self.total.get_or_create(&label).inc();
        self.duration.get_or_create(&label).observe(took.as_secs_f64());
    }

    /// Logs the first failure and its end.
    fn report(&self, failure: Option<&str>) {
        match failure {
            Some(error) if self.failing.begins(()) => {
                warn!(error, what = self.what, "Reviews of clients fail");
            }
            None if self.failing.ends() => info!(what = self.what, "Reviews of clients succeed again"),
            _ => {}
        }
    }
}

#[cfg(test)]
#[path = "reviews_tests.rs"]
pub(super) mod tests;
