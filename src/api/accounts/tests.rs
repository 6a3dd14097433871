#![allow(clippy::unwrap_used, clippy::expect_used)]

use std::collections::BTreeMap;

use tower::service_fn;

use super::*;

/// The state and requests of an API server.
#[derive(Default)]
struct Server {
    account: bool,
    /// Valid tokens end at this number.
    revoked: u64,
    given: u64,
    lifetime: u64,
    /// Answers to questions for tokens, instead of a token.
    faults: Vec<u16>,
    /// By method, path and what the request showed.
    asked: BTreeMap<String, usize>,
}

fn refusal(code: u16) -> Response<Body> {
    let status = json!({
        "kind": "Status", "apiVersion": "v1", "status": "Failure", "code": code, "message": format!("refused with {code}"),
    });
    let mut response = Response::new(Body::from(status.to_string().into_bytes()));
    *response.status_mut() = StatusCode::from_u16(code).unwrap();
    response
}

impl Server {
    fn answer(&mut self, request: &Request<Body>) -> Response<Body> {
        let shown = request.headers().get(header::AUTHORIZATION);
        let shown = shown.map(|shown| shown.to_str().unwrap().to_owned()).unwrap_or_default();
        let path = request.uri().path();
        let asked = format!("{} {} {shown}", request.method(), path.rsplit('/').next().unwrap());
        *self.asked.entry(asked).or_default() += 1;
        if path.ends_with("/serviceaccounts") {
            self.account = true;
            return Response::new(Body::from(b"{}".to_vec()));
        }
        if !path.ends_with("/token") {
            let number = shown.strip_prefix("Bearer t").and_then(|number| number.parse::<u64>().ok());
            return match number {
                Some(number) if number > self.revoked => Response::new(Body::from(b"{}".to_vec())),
                _ => refusal(401),
            };
        }
        assert_eq!(path, "/api/v1/namespaces/kube-system/serviceaccounts/node-controller/token");
        if let Some(code) = self.faults.pop() {
            return refusal(code);
        }
        if !self.account {
            return refusal(404);
        }
        self.given += 1;
        let token = json!({
            "spec": {"expirationSeconds": self.lifetime},
            "status": {"token": format!("t{}", self.given), "expirationTimestamp": "2030-01-01T00:00:00Z"},
        });
        Response::new(Body::from(token.to_string().into_bytes()))
    }
}

/// A controller's client and the server.
fn stage() -> (Client, Arc<Mutex<Server>>) {
    let server = Arc::new(Mutex::new(Server {
        account: true,
        lifetime: 3600,
        ..Server::default()
    }));
    let shared = Arc::clone(&server);
    let answer = move |request: Request<Body>| {
        let answer = shared.lock().answer(&request);
        async move { Ok::<_, BoxError>(answer) }
    };
    let root = Client::new(service_fn(answer), "default");
    let account = Account::new("node-controller", root.clone());
    let send = move |request| account.clone().send(root.clone(), request);
    (Client::new(service_fn(send), "default"), server)
}

async fn patch(client: &Client) -> Result<String, String> {
    let request = Request::patch("/api/v1/nodes/n").body(b"{}".to_vec()).unwrap();
    client.request_text(request).await.map_err(|error| report(&error))
}

fn asked(server: &Mutex<Server>) -> Vec<(String, usize)> {
    std::mem::take(&mut server.lock().asked).into_iter().collect()
}

fn all(expected: &[(&str, usize)]) -> Vec<(String, usize)> {
    expected.iter().map(|(asked, times)| ((*asked).to_owned(), *times)).collect()
}

#[tokio::test(start_paused = true)]
async fn a_token_is_asked_for_once_and_an_account_that_is_missing_is_created() {
    let (client, server) = stage();
    server.lock().account = false;
    let (first, second) = tokio::join!(patch(&client), patch(&client));
    first.unwrap();
    second.unwrap();
    let expected = [
        ("PATCH n Bearer t1", 2),
        ("POST serviceaccounts ", 1),
        ("POST token ", 2),
    ];
    assert_eq!(asked(&server), all(&expected));
}

#[tokio::test(start_paused = true)]
async fn a_token_is_replaced_when_a_fifth_of_its_life_is_left_while_it_is_used_on() {
    let (client, server) = stage();
    patch(&client).await.unwrap();
    sleep(Duration::from_secs(2879)).await;
    patch(&client).await.unwrap();
    assert_eq!(asked(&server), all(&[("PATCH n Bearer t1", 2), ("POST token ", 1)]));
    sleep(Duration::from_secs(2)).await;
    patch(&client).await.unwrap();
    sleep(Duration::from_secs(1)).await;
    patch(&client).await.unwrap();
    let expected = [
        ("PATCH n Bearer t1", 1),
        ("PATCH n Bearer t2", 1),
        ("POST token ", 1),
    ];
    assert_eq!(asked(&server), all(&expected));
}

#[tokio::test(start_paused = true)]
async fn the_api_server_sets_the_lifetime_of_a_token_and_a_token_that_cannot_be_replaced_is_used_to_its_end()
{
    let (client, server) = stage();
    server.lock().lifetime = 600;
    patch(&client).await.unwrap();
    server.lock().faults = vec![403; 1000];
    for _ in 0..59 {
        sleep(Duration::from_secs(10)).await;
        patch(&client).await.unwrap();
    }
    let tries = server.lock().asked["POST token "];
    assert!((3..=6).contains(&tries), "{tries}");
    sleep(Duration::from_secs(11)).await;
    let error = patch(&client).await.unwrap_err();
    assert!(
        error.contains("no token for the service account kube-system/node-controller: refused with 403; grant the account"),
        "{error}"
    );
    server.lock().faults.clear();
    sleep(FAILED).await;
    patch(&client).await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn one_that_is_not_accepted_is_replaced_and_the_request_sent_again() {
    let (client, server) = stage();
    patch(&client).await.unwrap();
    {
        let mut server = server.lock();
        // As when the account was deleted and created again.
        (server.revoked, server.account) = (1, false);
        server.asked.clear();
    }
    let (first, second) = tokio::join!(patch(&client), patch(&client));
    first.unwrap();
    second.unwrap();
    let expected = [
        ("PATCH n Bearer t1", 2),
        ("PATCH n Bearer t2", 2),
        ("POST serviceaccounts ", 1),
        ("POST token ", 2),
    ];
    assert_eq!(asked(&server), all(&expected));
    // If the new token is not accepted either, the request fails.
    server.lock().revoked = 100;
    let error = patch(&client).await.unwrap_err();
    assert!(error.contains("refused with 401"), "{error}");
}

#[tokio::test(start_paused = true)]
async fn what_passes_is_tried_four_times_and_a_failure_is_not_asked_for_by_everyone() {
    let (client, server) = stage();
    server.lock().faults = vec![500; 3];
    patch(&client).await.unwrap();
    assert_eq!(asked(&server), all(&[("PATCH n Bearer t1", 1), ("POST token ", 4)]));

    let (client, server) = stage();
    server.lock().faults = vec![500; 4];
    let began = Instant::now();
    let answers = futures_util::future::join_all((0..50).map(|_| patch(&client))).await;
    assert!(answers.iter().all(Result::is_err));
    // Up to a fifth of a wait is taken off at random.
    let took = began.elapsed().as_millis();
    assert!((2800..=3500).contains(&took), "{took}");
    assert_eq!(asked(&server), all(&[("POST token ", 4)]));
}
