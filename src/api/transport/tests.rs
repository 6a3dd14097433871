//! Against a real API server, with a relay before it that swallows packets.
#![allow(clippy::unwrap_used, clippy::expect_used)]

use std::{
    fs,
    net::SocketAddr,
    path::Path,
    sync::{Arc, Mutex},
    time::Instant as RealInstant,
};

use ccm_core::{
    client::Fence,
    controllers::{Informer, Needs, NodeObject, StoreChange},
    testkit::server::{Server, answer},
};
use ccm_testbed::{
    controlplane::ControlPlane,
    nodes::{self, NodeSpec},
    proxy::Proxy,
    relay::Relay,
};
use futures_util::StreamExt;
use k8s_openapi::api::core::v1::{Namespace, Node};
use kube::{Api, api::WatchParams};
use prometheus_client::{encoding::text::encode, registry::Registry};
use serde_json::{Value, json};
use tempfile::TempDir;
use tokio::{
    io::{AsyncBufReadExt, AsyncWriteExt, BufReader, copy_bidirectional},
    net::{TcpListener, TcpStream},
    sync::{OnceCell, mpsc},
    time::{Instant, timeout},
};
use tokio_util::sync::CancellationToken;

use super::*;
use crate::{
    api::{client::ApiServer, requests::ApiRequests},
    config::ApiServerConfig,
};

/// The promise, for every connection.
const LIMIT: Duration = Duration::from_secs(60);
/// The shortest that the kernel can do for TCP.
const SHORT: Keepalive = Keepalive {
    ping_interval: Duration::from_millis(200),
    ping_timeout: Duration::from_millis(200),
    probe_after: Duration::from_secs(1),
    probe_interval: Duration::from_secs(1),
    probes: 1,
    user_timeout: Duration::from_secs(1),
};

async fn control_plane() -> &'static ControlPlane {
    static PLANE: OnceCell<ControlPlane> = OnceCell::const_new();
    let start = || async { ControlPlane::start().await.unwrap() };
    PLANE.get_or_init(start).await
}

fn address(url: &str) -> SocketAddr {
    let uri: Uri = url.parse().unwrap();
    uri.authority().unwrap().as_str().parse().unwrap()
}

/// The flags for a kubeconfig: the administrator's with these fields of its cluster.
fn kubeconfig(plane: &ControlPlane, folder: &Path, cluster: &Value) -> ApiServerConfig {
    let text = fs::read_to_string(plane.kubeconfig()).unwrap();
    let mut config: Value = serde_json::from_str(&text).unwrap();
    for (key, value) in cluster.as_object().unwrap() {
        config["clusters"][0]["cluster"][key] = value.clone();
    }
    let path = folder.join("kubeconfig");
    fs::write(&path, config.to_string()).unwrap();
    ApiServerConfig {
        kubeconfig: Some(path),
        ..ApiServerConfig::default()
    }
}

/// The API server behind a relay, over TLS, under a name of its certificate.
async fn behind_relay(plane: &ControlPlane) -> (Relay, ApiServerConfig, TempDir) {
    let folder = tempfile::tempdir().unwrap();
    let relay = Relay::start(address(plane.server())).await.unwrap();
    let server = format!("https://{}", relay.address());
    let cluster = json!({"server": server, "tls-server-name": "kubernetes.default"});
    let config = kubeconfig(plane, folder.path(), &cluster);
    (relay, config, folder)
}

async fn load(config: &ApiServerConfig, keepalive: Keepalive) -> ApiServer {
    let mut server = ApiServer::load(config, "test", &Default::default()).await.unwrap();
    server.keepalive = keepalive;
    server
}

fn work(server: &ApiServer) -> Client {
    let work = server.for_work(None, &Fence::default()).unwrap();
    work.client(None).unwrap()
}

async fn join(client: &Client, name: &str) {
    nodes::register(client, &[NodeSpec::new(name)]).await.unwrap();
}

async fn sees(changes: &mut mpsc::UnboundedReceiver<StoreChange>, name: &str) {
    let found = async {
        while let Some(change) = changes.recv().await {
            if change == StoreChange::Applied(name.to_owned()) {
                return;
            }
        }
        panic!("the informer has ended");
    };
    timeout(LIMIT, found).await.unwrap_or_else(|_| panic!("{name} is not seen"));
}

/// Silences the connection of an informer that is up to date; it must see what comes afterwards.
async fn reconnects(admin: &Client, relay: &Relay, config: &ApiServerConfig, prefix: &str) {
    let server = load(config, SHORT).await;
    let informer = Informer::<NodeObject>::new(work(&server), Needs::default());
    let mut changes = informer.subscribe();
    let running = Arc::clone(&informer);
    let stop = CancellationToken::new();
    let stopped = stop.clone();
    let task = tokio::spawn(async move { running.run(stopped).await });
    informer.synced().await;
    let (before, after) = (format!("{prefix}-before"), format!("{prefix}-after"));
    join(admin, &before).await;
    sees(&mut changes, &before).await;
    let began = RealInstant::now();
    relay.silence().await.unwrap();
    let connections = relay.connections();
    join(admin, &after).await;
    sees(&mut changes, &after).await;
    let took = began.elapsed();
    assert!(relay.connections() > connections, "{prefix}: it came through the silence");
    assert!(took < Duration::from_secs(30), "{prefix}: {took:?}");
    stop.cancel();
    task.await.unwrap();
}

#[tokio::test]
async fn a_watch_on_a_silent_connection_is_opened_again() {
    let plane = control_plane().await;
    let admin = plane.client().await.unwrap();
    let (tls, secure, folder) = behind_relay(plane).await;
    let proxy = Proxy::start(admin.clone(), folder.path()).await.unwrap();
    let plain = Relay::start(address(&proxy.url())).await.unwrap();
    let master = ApiServerConfig {
        master: Some(format!("http://{}", plain.address()).parse().unwrap()),
        ..ApiServerConfig::default()
    };
    tokio::join!(reconnects(&admin, &tls, &secure, "tls"), reconnects(&admin, &plain, &master, "plain"),);
}

#[tokio::test]
async fn an_idle_connection_that_died_as_well_is_not_used_again() {
    let plane = control_plane().await;
    let (tls, secure, folder) = behind_relay(plane).await;
    let proxy = Proxy::start(plane.client().await.unwrap(), folder.path()).await.unwrap();
    let plain = Relay::start(address(&proxy.url())).await.unwrap();
    let master = ApiServerConfig {
        master: Some(format!("http://{}", plain.address()).parse().unwrap()),
        ..ApiServerConfig::default()
    };
    for (relay, config) in [(tls, secure), (plain, master)] {
        let api: Api<Namespace> = Api::all(work(&load(&config, Keepalive::default()).await));
        api.get("default").await.unwrap();
        relay.silence().await.unwrap();
        tokio::time::pause();
        // The watch on another connection has just been given up.
        tokio::time::advance(POOL_IDLE_LIMIT).await;
        tokio::time::resume();
        let again = timeout(Duration::from_secs(15), api.get("default"));
        again.await.expect("sent on the dead connection").unwrap();
        assert_eq!(relay.connections(), 2);
    }
}

#[tokio::test]
async fn the_default_times_keep_the_promise() {
    let Keepalive {
        ping_interval,
        ping_timeout,
        probe_after,
        probe_interval,
        probes,
        user_timeout,
    } = Keepalive::default();
    assert!(ping_interval + ping_timeout < LIMIT);
    // The kernel looks at the user timeout when the next probe is due.
    let probed = probe_after + probe_interval * probes;
    assert!(POOL_IDLE_LIMIT < probed && POOL_IDLE_LIMIT < ping_interval + ping_timeout);
    assert!(probed < LIMIT && user_timeout + probe_interval < LIMIT);

    // The same for a real watch, as far as time can be virtual.
    let plane = control_plane().await;
    let (relay, config, _folder) = behind_relay(plane).await;
    let server = load(&config, Keepalive::default()).await;
    let api: Api<Node> = Api::all(work(&server));
    let version = api.list(&Default::default()).await.unwrap();
    let version = version.metadata.resource_version.unwrap();
    let params = WatchParams::default().timeout(290);
    let mut watch = std::pin::pin!(api.watch(&params, &version).await.unwrap());
    join(&plane.client().await.unwrap(), "times").await;
    watch.next().await.unwrap().unwrap();
    relay.silence().await.unwrap();
    tokio::time::pause();
    let began = Instant::now();
    let end = loop {
        match watch.next().await {
            Some(Ok(_)) => {}
            end => break end,
        }
    };
    let took = began.elapsed();
    assert!(matches!(end, Some(Err(_))), "{end:?}");
    assert!(
        took >= ping_interval && took <= ping_interval + ping_timeout + Duration::from_secs(1),
        "{took:?}"
    );
}

#[tokio::test]
async fn the_election_does_not_wait_for_keepalive() {
    let plane = control_plane().await;
    let (relay, config, _folder) = behind_relay(plane).await;
    let server = load(&config, Keepalive::default()).await;
    let election: Api<Namespace> = Api::all(server.for_election(Duration::from_secs(1)).unwrap());
    let other: Api<Namespace> = Api::all(work(&server));
    election.get("default").await.unwrap();
    other.get("default").await.unwrap();
    assert_eq!(relay.connections(), 2, "a connection of its own");
    relay.silence().await.unwrap();
    election.get("default").await.unwrap_err();
    election.get("default").await.unwrap();
    assert_eq!(relay.connections(), 3);
}

/// Passes one connection on after CONNECT, and returns what was asked for.
async fn connect_proxy(listener: TcpListener) -> Vec<String> {
    let (stream, _) = listener.accept().await.unwrap();
    let mut stream = BufReader::new(stream);
    let mut head = Vec::new();
    loop {
        let mut line = String::new();
        stream.read_line(&mut line).await.unwrap();
        match line.trim_end() {
            "" => break,
            line => head.push(line.to_owned()),
        }
    }
    let target = head[0].split(' ').nth(1).unwrap().to_owned();
    stream.write_all(b"HTTP/1.1 200 OK\r\n\r\n").await.unwrap();
    let mut target = TcpStream::connect(target).await.unwrap();
    tokio::spawn(async move { copy_bidirectional(&mut stream, &mut target).await });
    head
}

#[tokio::test]
async fn proxy_server_name_and_credentials_of_a_kubeconfig_are_used() {
    let plane = control_plane().await;
    let folder = tempfile::tempdir().unwrap();
    let get = async |config| {
        let server = load(&config, Keepalive::default()).await;
        Api::<Namespace>::all(work(&server)).get("default").await
    };

    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let proxy = format!("http://user:p%40ss@{}", listener.local_addr().unwrap());
    let head = tokio::spawn(connect_proxy(listener));
    get(kubeconfig(plane, folder.path(), &json!({"proxy-url": proxy}))).await.unwrap();
    let head = head.await.unwrap();
    assert_eq!(head[0], format!("CONNECT {} HTTP/1.1", address(plane.server())));
    let credentials = head.iter().find_map(|line| line.strip_prefix("Proxy-Authorization: "));
    assert_eq!(credentials, Some("Basic dXNlcjpwQHNz"), "{head:?}");

    let cluster = json!({"tls-server-name": "another.example"});
    let refused = get(kubeconfig(plane, folder.path(), &cluster)).await.unwrap_err();
    let refused = ccm_core::error::report(&refused);
    assert!(refused.contains("another.example") || refused.contains("NotValidForName"), "{refused}");

    let path = plane.service_account_kubeconfig("default", "tokens").await.unwrap();
    let token = ApiServerConfig {
        kubeconfig: Some(path),
        ..ApiServerConfig::default()
    };
    // Without its token it would be 401 or anonymous.
    let refused = get(token).await.unwrap_err().to_string();
    assert!(refused.contains("system:serviceaccount:default:tokens"), "{refused}");
}

#[tokio::test]
async fn each_try_of_a_request_counts() {
    let statuses = ["503 Unavailable", "503 Unavailable", "200 OK"];
    let statuses = Mutex::new(statuses.into_iter());
    let master = Server::start(move |_| answer(statuses.lock().unwrap().next().unwrap(), "", "{}")).await;
    let config = ApiServerConfig {
        master: Some(master.url().parse().unwrap()),
        ..ApiServerConfig::default()
    };
    let mut registry = Registry::default();
    let requests = ApiRequests::register(&mut registry);
    let server = ApiServer::load(&config, "test", &requests).await.unwrap();
    let request = Request::get("/version").body(Vec::new()).unwrap();
    assert_eq!(work(&server).request_text(request).await.unwrap(), "{}");
    let mut text = String::new();
    encode(&mut text, &registry).unwrap();
    for (code, tries) in [(503, 2), (200, 1)] {
        let count = |line: &&str| {
            line.starts_with(&format!("rest_client_requests_total{{code=\"{code}\""))
                && line.ends_with(&format!(" {tries}"))
        };
        assert!(text.lines().any(|line| count(&line)), "{code}: {text}");
    }
}

#[tokio::test]
async fn an_error_names_the_api_server() {
    let config = ApiServerConfig {
        master: Some("http://127.0.0.1:1".into()),
        ..ApiServerConfig::default()
    };
    let server = load(&config, Keepalive::default()).await;
    let client = server.for_election(Duration::from_secs(30)).unwrap();
    let error = client.apiserver_version().await.unwrap_err().to_string();
    assert!(error.contains("API server 127.0.0.1:1: client error"), "{error}");
}
