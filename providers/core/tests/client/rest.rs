//! The REST kit against a server: an API with a bearer token, pages by links and rate-limit headers.

use std::{
    sync::atomic::{AtomicUsize, Ordering},
    time::Duration,
};

use ccm_core::{
    Error, ErrorKind, Priority, RequestOutcome, Result,
    client::{
        ClientMetrics, Gate, GateConfig, Operation, Page, collect, operations,
        rest::{self, Answer, Call, RestApi, Target, reqwest},
    },
    testkit::{self, server::Server},
};
use http::{HeaderMap, Method, StatusCode};
use parking_lot::Mutex;
use serde_json::{Value, json};
use tokio::time::Instant;
use url::Url;

operations! {
    /// The calls of the API.
    enum Op {
        /// Machines.
        List = "machine_list", "api", Read;
        /// A new machine.
        Create = "machine_create", "api", Write;
        /// Deletion of a machine.
        Delete = "machine_delete", "api", IdempotentWrite;
    }
}

/// A server with one answer after the other; the last one stays.
async fn server(answers: Vec<String>) -> Server {
    let number = AtomicUsize::new(0);
    let respond = move |_: &str| {
        let number = number.fetch_add(1, Ordering::Relaxed);
        answers.get(number).or(answers.last()).unwrap().clone()
    };
    Server::start(respond).await
}

fn answer(status: &str, headers: &str, body: &Value) -> String {
    testkit::server::answer(status, headers, &body.to_string())
}

/// An API with a token that can be renewed so many times.
struct Acme {
    http: reqwest::Client,
    gate: Gate,
    url: Url,
    renewals: usize,
    token: AtomicUsize,
    answers: Mutex<Vec<Option<u16>>>,
}

impl Acme {
    fn of(server: &Server, renewals: usize) -> Self {
        Self {
            http: rest::http_client(&rest::Tls::default(), &rest::Proxies::default(), "acme-ccm/1").unwrap(),
            gate: Gate::new(GateConfig::new("acme"), &ClientMetrics::default()),
            url: server.url().parse().unwrap(),
            renewals,
            token: AtomicUsize::new(0),
            answers: Mutex::default(),
        }
    }

    async fn page(&self, page: u64) -> Result<Page<String, u64>> {
        let number = page.to_string();
        let query = [("page", number.as_str()), ("per_page", "200")];
        let mut call = Call::new(Op::List, (), Method::GET, &["v2", "machines"]);
        call.query = &query;
        let list: Value = rest::json(self, &call, Priority::User).await?;
        let link = list.pointer("/links/pages/next").and_then(Value::as_str);
        let next = link.and_then(|link| {
            let link = Url::parse(link).ok()?;
            let (_, page) = link.query_pairs().find(|(key, _)| key == "page")?;
            page.parse().ok()
        });
        let machines = list.get("machines").and_then(Value::as_array).unwrap();
        let items = machines.iter().map(|name| name.as_str().unwrap().to_owned()).collect();
        Ok(Page { items, next })
    }

    async fn create(&self) -> Result<Value> {
        let call = Call::new(Op::Create, (), Method::POST, &["v2", "machines"]);
        let call = call.json(&json!({"name": "a"}))?;
        rest::json(self, &call, Priority::User).await
    }

    async fn delete(&self, id: &str) -> Result<()> {
        let path = ["v2", "machines", id];
        let call = Call::new(Op::Delete, (), Method::DELETE, &path);
        rest::execute(self, &call, Priority::User).await
    }
}

impl RestApi for Acme {
    type Operation = Op;
    type Endpoint = ();
    type Credentials = usize;

    const BODY_MAX: usize = 1000;

    fn http(&self) -> &reqwest::Client {
        &self.http
    }

    fn gate(&self) -> &Gate {
        &self.gate
    }

    async fn credentials(&self) -> Result<usize> {
        Ok(self.token.load(Ordering::Relaxed))
    }

    async fn renew(&self, refused: &usize) -> Result<Option<usize>> {
        let next = refused + 1;
        self.token.store(next, Ordering::Relaxed);
        Ok((next <= self.renewals).then_some(next))
    }

    async fn base_url(&self, (): ()) -> Result<Url> {
        Ok(self.url.clone())
    }

    fn authorize(&self, request: reqwest::RequestBuilder, token: &usize) -> reqwest::RequestBuilder {
        request.bearer_auth(format!("token-{token}"))
    }

    fn refused(&self, target: &Target, answer: &Answer) -> Error {
        let (kind, retry) = answer.kind(&target.method);
        let body: Value = serde_json::from_slice(&answer.body).unwrap_or_default();
        let message = body.get("message").and_then(Value::as_str).unwrap_or_default();
        let error = answer.error(target, kind, message, Self::REQUEST_ID);
        match retry {
            Some(retry) => error.with_retry(retry),
            None => error,
        }
    }

    fn answered(&self, operation: Op, _: &Method, answer: Option<(StatusCode, &HeaderMap)>, _: Duration) {
        self.answers.lock().push(answer.map(|(status, _)| status.as_u16()));
        let left = answer.and_then(|(_, headers)| {
            let left = headers.get("ratelimit-remaining")?.to_str().ok()?;
            left.parse::<u32>().ok()
        });
        if let Some(left) = left {
            let reset = Instant::now() + Duration::from_secs(3600);
            self.gate.bucket(operation.bucket()).observe_remaining(left, left, Some(reset));
        }
    }
}

#[tokio::test]
async fn pages_follow_links_and_the_rate_limit_is_known() {
    let server = self::server(vec![
        answer(
            "200 OK",
            "",
            &json!({"machines": ["a", "b"], "links": {"pages": {"next": "https://api.acme.example/v2/machines?page=2&per_page=200"}}}),
        ),
        answer(
            "200 OK",
            "ratelimit-remaining: 0\r\n",
            &json!({"machines": ["c"], "links": {}}),
        ),
    ])
    .await;
    let acme = Acme::of(&server, 0);
    let machines = collect(|page: Option<u64>| acme.page(page.unwrap_or(1))).await.unwrap();
    assert_eq!(machines, ["a", "b", "c"]);
    assert_eq!(
        server.lines(),
        [
            "GET /v2/machines?page=1&per_page=200",
            "GET /v2/machines?page=2&per_page=200"
        ]
    );
    for request in server.requests() {
        let request = request.to_ascii_lowercase();
        for header in [
            "authorization: bearer token-0",
            "accept: application/json",
            "user-agent: acme-ccm/1",
        ] {
            assert!(request.contains(header), "{header} in {request}");
        }
    }
    let bucket = acme.gate.bucket("api").state();
    assert!(bucket.tokens < 1.0, "{bucket:?}");
}

#[tokio::test]
async fn refused_credentials_are_renewed_once_for_each_attempt() {
    let unauthorized = || answer("401 Unauthorized", "", &json!({"message": "Unable to authenticate you"}));
    let server = self::server(vec![unauthorized(), answer("200 OK", "", &json!({"id": 7}))]).await;
    let acme = Acme::of(&server, 1);
    assert_eq!(acme.create().await.unwrap(), json!({"id": 7}));
    let requests = server.requests();
    assert_eq!(requests.len(), 2);
    for (request, token) in requests.iter().zip(["Bearer token-0", "Bearer token-1"]) {
        assert!(request.contains(token), "{request}");
        assert!(request.ends_with("\r\n\r\n{\"name\":\"a\"}"), "{request}");
    }
    assert_eq!(*acme.answers.lock(), [Some(401), Some(200)]);

    let server = self::server(vec![unauthorized()]).await;
    let error = Acme::of(&server, 0).create().await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unauthenticated);
    assert!(error.to_string().contains("401 Unable to authenticate you"), "{error}");
    assert_eq!(server.lines().len(), 1, "there are no other credentials");
}

#[tokio::test]
async fn a_write_that_may_have_been_done_is_not_sent_again() {
    for (answer, kind) in [
        (answer("500 Oops", "", &json!({})), ErrorKind::Unavailable),
        (answer("303 See Other", "Location: /elsewhere\r\n", &json!({})), ErrorKind::Unexpected),
        ("HTTP/1.1 200 OK\r\nContent-Length: 90\r\n\r\n{\"id\":".to_owned(), ErrorKind::Unavailable),
        (answer("200 OK", "", &json!("x".repeat(2000))), ErrorKind::Unexpected),
        (String::new(), ErrorKind::Unavailable),
    ] {
        let after = self::answer("200 OK", "", &json!({}));
        let server = self::server(vec![answer.clone(), after]).await;
        let error = Acme::of(&server, 0).create().await.unwrap_err();
        assert_eq!((error.kind(), error.outcome()), (kind, RequestOutcome::Unknown), "{answer}: {error}");
        let posts = server.lines().iter().filter(|line| line.starts_with("POST")).count();
        assert_eq!(posts, 1, "{answer}");
        assert_eq!(rest::is_too_large(&error), answer.len() > 2000);
    }
}

#[tokio::test]
async fn a_throttled_write_is_sent_again_and_a_refused_one_is_not() {
    let throttled = answer("429 Too Many Requests", "Retry-After: 0\r\n", &json!({}));
    // The body that is cut off is not needed.
    let cut = "HTTP/1.1 202 Accepted\r\nContent-Length: 90\r\n\r\n{".to_owned();
    let server = self::server(vec![throttled, cut]).await;
    Acme::of(&server, 0).delete("a/b").await.unwrap();
    assert_eq!(server.lines(), ["DELETE /v2/machines/a%2Fb"; 2]);

    for (status, kind) in [
        ("404 Not Found", ErrorKind::NotFound),
        ("422 Unprocessable Entity", ErrorKind::InvalidSpec),
        ("403 Forbidden", ErrorKind::PermissionDenied),
    ] {
        let server = self::server(vec![answer(status, "x-request-id: r-1\r\n", &json!({}))]).await;
        let error = Acme::of(&server, 0).delete("a").await.unwrap_err();
        assert_eq!((error.kind(), error.outcome()), (kind, RequestOutcome::NotDone), "{error}");
        assert_eq!(error.operation(), Some("machine_delete"));
        assert!(error.to_string().contains("request_id=r-1"), "{error}");
        assert_eq!(server.lines().len(), 1);
    }
}
