//! The REST kit against a server: an API with a bearer token, pages by links and rate-limit headers.
#![allow(clippy::unwrap_used)]

use std::{
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use ccm_core::{
    Error, ErrorKind, Outcome, Priority, Result,
    client::{
        ClientMetrics, Effect, Gate, GateConfig, Operation, Page, collect,
        rest::{self, Answer, Call, RestApi, Target, reqwest},
    },
};
use http::{HeaderMap, Method, StatusCode};
use parking_lot::Mutex;
use serde_json::{Value, json};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{TcpListener, TcpStream},
    time::Instant,
};
use url::Url;

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Op {
    List,
    Create,
    Delete,
}

impl Operation for Op {
    fn name(self) -> &'static str {
        match self {
            Self::List => "machine_list",
            Self::Create => "machine_create",
            Self::Delete => "machine_delete",
        }
    }

    fn bucket(self) -> &'static str {
        "api"
    }

    fn effect(self) -> Effect {
        match self {
            Self::List => Effect::Read,
            Self::Create => Effect::Write,
            Self::Delete => Effect::IdempotentWrite,
        }
    }
}

/// A request as the server saw it.
#[derive(Clone, Debug)]
struct Request {
    /// Method and path with query.
    line: String,
    /// In lower case.
    head: String,
    body: String,
}

/// A server with one answer after the other; the last one stays. Answers are whole HTTP messages.
struct Server {
    url: Url,
    requests: Arc<Mutex<Vec<Request>>>,
}

impl Server {
    async fn start(answers: Vec<String>) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}/", listener.local_addr().unwrap());
        let requests = Arc::new(Mutex::new(Vec::new()));
        let seen = Arc::clone(&requests);
        tokio::spawn(async move {
            while let Ok((mut stream, _)) = listener.accept().await {
                let request = read(&mut stream).await;
                let number = {
                    let mut seen = seen.lock();
                    seen.push(request);
                    seen.len() - 1
                };
                let answer = answers.get(number).or(answers.last()).unwrap();
                stream.write_all(answer.as_bytes()).await.unwrap();
            }
        });
        Self {
            url: url.parse().unwrap(),
            requests,
        }
    }

    fn lines(&self) -> Vec<String> {
        self.requests
            .lock()
            .iter()
            .map(|request| request.line.clone())
            .collect()
    }
}

async fn read(stream: &mut TcpStream) -> Request {
    let mut bytes = Vec::new();
    loop {
        let mut chunk = [0; 4096];
        let length = stream.read(&mut chunk).await.unwrap();
        bytes.extend_from_slice(&chunk[..length]);
        let text = String::from_utf8_lossy(&bytes).into_owned();
        let Some((head, body)) = text.split_once("\r\n\r\n") else {
            assert!(length > 0, "the request has an end: {text}");
            continue;
        };
        let lower = head.to_lowercase();
        let announced = lower
            .lines()
            .find_map(|line| line.strip_prefix("content-length: ")?.parse::<usize>().ok());
        if body.len() >= announced.unwrap_or(0) {
            let line = head.lines().next().unwrap().trim_end_matches(" HTTP/1.1");
            return Request {
                line: line.to_owned(),
                head: lower,
                body: body.to_owned(),
            };
        }
    }
}

fn answer(status: &str, headers: &str, body: &Value) -> String {
    let body = body.to_string();
    let length = body.len();
    format!("HTTP/1.1 {status}\r\nContent-Length: {length}\r\nConnection: close\r\n{headers}\r\n{body}")
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
            url: server.url.clone(),
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
        let items = machines
            .iter()
            .map(|name| name.as_str().unwrap().to_owned())
            .collect();
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
        self.answers
            .lock()
            .push(answer.map(|(status, _)| status.as_u16()));
        let left = answer.and_then(|(_, headers)| {
            let left = headers.get("ratelimit-remaining")?.to_str().ok()?;
            left.parse::<u32>().ok()
        });
        if let Some(left) = left {
            let reset = Instant::now() + Duration::from_secs(3600);
            self.gate
                .bucket(operation.bucket())
                .observe_remaining(left, left, Some(reset));
        }
    }
}

#[tokio::test]
async fn pages_follow_links_and_the_rate_limit_is_known() {
    let server = Server::start(vec![
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
    let machines = collect(|page: Option<u64>| acme.page(page.unwrap_or(1)))
        .await
        .unwrap();
    assert_eq!(machines, ["a", "b", "c"]);
    assert_eq!(
        server.lines(),
        [
            "GET /v2/machines?page=1&per_page=200",
            "GET /v2/machines?page=2&per_page=200"
        ]
    );
    for request in server.requests.lock().iter() {
        for header in [
            "authorization: bearer token-0",
            "accept: application/json",
            "user-agent: acme-ccm/1",
        ] {
            assert!(request.head.contains(header), "{header} in {}", request.head);
        }
    }
    let bucket = acme.gate.bucket("api").state();
    assert!(bucket.tokens < 1.0, "{bucket:?}");
}

#[tokio::test]
async fn refused_credentials_are_renewed_once_for_each_attempt() {
    let unauthorized = || {
        answer(
            "401 Unauthorized",
            "",
            &json!({"message": "Unable to authenticate you"}),
        )
    };
    let server = Server::start(vec![unauthorized(), answer("200 OK", "", &json!({"id": 7}))]).await;
    let acme = Acme::of(&server, 1);
    assert_eq!(acme.create().await.unwrap(), json!({"id": 7}));
    let requests = server.requests.lock().clone();
    let [first, second] = requests.as_slice() else {
        panic!("{requests:?}")
    };
    assert!(first.head.contains("bearer token-0") && second.head.contains("bearer token-1"));
    assert_eq!(
        (first.body.as_str(), &first.body),
        (r#"{"name":"a"}"#, &second.body)
    );
    assert_eq!(*acme.answers.lock(), [Some(401), Some(200)]);

    let server = Server::start(vec![unauthorized()]).await;
    let error = Acme::of(&server, 0).create().await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unauthenticated);
    assert!(
        error.to_string().contains("401 Unable to authenticate you"),
        "{error}"
    );
    assert_eq!(server.lines().len(), 1, "there are no other credentials");
}

#[tokio::test]
async fn a_write_that_may_have_been_done_is_not_sent_again() {
    for (answer, kind) in [
        (answer("500 Oops", "", &json!({})), ErrorKind::Unavailable),
        (
            answer("303 See Other", "Location: /elsewhere\r\n", &json!({})),
            ErrorKind::Unexpected,
        ),
        (
            "HTTP/1.1 200 OK\r\nContent-Length: 90\r\n\r\n{\"id\":".to_owned(),
            ErrorKind::Unavailable,
        ),
        (
            answer("200 OK", "", &json!("x".repeat(2000))),
            ErrorKind::Unexpected,
        ),
        (String::new(), ErrorKind::Unavailable),
    ] {
        let after = self::answer("200 OK", "", &json!({}));
        let server = Server::start(vec![answer.clone(), after]).await;
        let error = Acme::of(&server, 0).create().await.unwrap_err();
        assert_eq!(
            (error.kind(), error.outcome()),
            (kind, Outcome::Unknown),
            "{answer}: {error}"
        );
        let posts = server
            .lines()
            .iter()
            .filter(|line| line.starts_with("POST"))
            .count();
        assert_eq!(posts, 1, "{answer}");
        assert_eq!(rest::is_too_large(&error), answer.len() > 2000);
    }
}

#[tokio::test]
async fn a_throttled_write_is_sent_again_and_a_refused_one_is_not() {
    let throttled = answer("429 Too Many Requests", "Retry-After: 0\r\n", &json!({}));
    // The body that is cut off is not needed.
    let cut = "HTTP/1.1 202 Accepted\r\nContent-Length: 90\r\n\r\n{".to_owned();
    let server = Server::start(vec![throttled, cut]).await;
    Acme::of(&server, 0).delete("a/b").await.unwrap();
    assert_eq!(server.lines(), ["DELETE /v2/machines/a%2Fb"; 2]);

    for (status, kind) in [
        ("404 Not Found", ErrorKind::NotFound),
        ("422 Unprocessable Entity", ErrorKind::InvalidSpec),
        ("403 Forbidden", ErrorKind::PermissionDenied),
    ] {
        let server = Server::start(vec![answer(status, "x-request-id: r-1\r\n", &json!({}))]).await;
        let error = Acme::of(&server, 0).delete("a").await.unwrap_err();
        assert_eq!(
            (error.kind(), error.outcome()),
            (kind, Outcome::NotDone),
            "{error}"
        );
        assert_eq!(error.operation(), Some("machine_delete"));
        assert!(error.to_string().contains("request_id=r-1"), "{error}");
        assert_eq!(server.lines().len(), 1);
    }
}
