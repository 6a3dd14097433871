#![allow(clippy::unwrap_used, clippy::expect_used)]

use std::sync::{
    Arc,
    atomic::{AtomicU32, Ordering},
};

use http::{Request, Response};
use kube::client::Body;
use serde_json::{Value, json};

use super::*;
use crate::api::answering;
pub(in crate::server) use crate::api::answering::failure;

/// An API server that answers with these, and then always with the last one: a status and an object.
pub(in crate::server) fn api_server(answers: Vec<(u16, Value)>) -> (Client, Arc<AtomicU32>) {
    let asked = Arc::new(AtomicU32::new(0));
    let count = Arc::clone(&asked);
    let client = answering::client(move |_| {
        let number = count.fetch_add(1, Ordering::Relaxed) as usize;
        std::future::ready(answers[number.min(answers.len() - 1)].clone())
    });
    (client, asked)
}

pub(in crate::server) fn token_of(user: &str) -> (u16, Value) {
    let status = json!({"authenticated": true, "user": {"username": user, "groups": ["dev"]}});
    (201, json!({"spec": {}, "status": status}))
}

fn reviews() -> (Reviews, Registry) {
    let config = AccessConfig {
        token_ttl: Duration::from_secs(10),
        allowed_ttl: Duration::from_secs(10),
        denied_ttl: Duration::from_secs(2),
        ..AccessConfig::default()
    };
    let mut registry = Registry::default();
    (Reviews::new(&config, &mut registry), registry)
}

#[tokio::test(start_paused = true)]
async fn a_failure_that_may_pass_is_tried_again_for_a_while() {
    let (reviews, registry) = reviews();
    let (client, asked) = api_server(vec![failure(500), failure(429), token_of("jane")]);
    let user = reviews.authenticate(&client, "t").await.unwrap().unwrap();
    assert_eq!(user.name, "jane");
    assert_eq!(asked.load(Ordering::Relaxed), 3);
    let (client, asked) = api_server(vec![failure(503)]);
    let began = Instant::now();
    reviews.authenticate(&client, "other").await.unwrap_err();
    assert_eq!(asked.load(Ordering::Relaxed), TRIES);
    let took = began.elapsed();
    assert!(took > Duration::from_secs(3) && took < ANSWER_LIMIT, "{took:?}");
    let (client, asked) = api_server(vec![failure(403)]);
    let error = reviews.authenticate(&client, "third").await.unwrap_err();
    assert_eq!(asked.load(Ordering::Relaxed), 1, "{error}");
    let mut text = String::new();
    prometheus_client::encoding::text::encode(&mut text, &registry).unwrap();
    for line in [
        "apiserver_delegated_authn_request_total{code=\"201\"} 1",
        "apiserver_delegated_authn_request_total{code=\"503\"} 5",
        "apiserver_delegated_authn_request_duration_seconds_bucket{le=\"0.7\",code=\"403\"} 1",
    ] {
        assert!(text.lines().any(|have| have == line), "{line}\n{text}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_no_is_remembered_for_its_own_time() {
    let (reviews, _) = reviews();
    let verdict = |allowed| (201, json!({"spec": {}, "status": {"allowed": allowed, "reason": "so"}}));
    let (client, asked) = api_server(vec![verdict(false), verdict(true)]);
    let user = User::anonymous();
    let may = async |path| reviews.authorize(&client, &user, "get", path).await.unwrap().allowed;
    assert!(!may("/metrics").await);
    assert!(!may("/metrics").await);
    // Another path is another question.
    assert!(may("/configz").await);
    tokio::time::advance(Duration::from_secs(2)).await;
    assert!(may("/metrics").await);
    assert_eq!(asked.load(Ordering::Relaxed), 3);
}

#[tokio::test(start_paused = true)]
async fn a_token_is_valid_only_if_the_api_server_accepts_it() {
    let (reviews, _) = reviews();
    let answers = |status: Value| api_server(vec![(201, json!({"spec": {}, "status": status}))]).0;
    let user = json!({"username": "jane"});
    for (number, status) in [
        json!({}),
        json!({"authenticated": false, "user": user.clone()}),
        json!({"authenticated": false, "error": "token has expired"}),
        json!({"user": user}),
        json!({"authenticated": true}),
    ]
    .into_iter()
    .enumerate()
    {
        let user = reviews.authenticate(&answers(status), &number.to_string()).await.unwrap();
        assert_eq!(user, None, "{number}");
    }
}

#[tokio::test(start_paused = true)]
async fn an_api_server_that_never_answers_is_not_waited_for() {
    let (reviews, _) = reviews();
    let silent = tower::service_fn(async |_: Request<Body>| {
        std::future::pending::<Result<Response<Body>, tower::BoxError>>().await
    });
    let client = Client::new(silent, "default");
    let began = Instant::now();
    reviews.authenticate(&client, "t").await.unwrap_err();
    assert_eq!(began.elapsed(), ANSWER_LIMIT);
}
