//! Load balancers of the simulated OpenStack that are served on loopback.

#![allow(clippy::unwrap_used, clippy::expect_used)]

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::time::Duration;

use ccm_sim::openstack::{Config, OpenStack, ServerSpec, SubnetSpec};
use ccm_testbed::observe;
use ccm_testbed::rest::{Rest, by_password};
use serde_json::{Map, Value, json};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinHandle;

use super::{Forward, Forwarder, allows};

const LIMIT: Duration = Duration::from_secs(20);
const OCTAVIA: &str = "load-balancer/v2.0/lbaas";

/// A simulated cloud whose load balancers are served, and an authenticated client.
struct Session {
    cloud: OpenStack,
    forwarder: Option<Forwarder>,
    rest: Rest,
}

impl Session {
    async fn with(config: Config) -> Self {
        let login = by_password(&config.user, &config.password, &config.project);
        let cloud = OpenStack::start(config).await.unwrap();
        Self {
            forwarder: Some(Forwarder::start(cloud.control())),
            rest: Rest::log_in(&cloud.auth_url(), &login).await.unwrap(),
            cloud,
        }
    }

    fn forwards(&self) -> Vec<Forward> {
        self.forwarder.as_ref().unwrap().forwards()
    }

    /// Creates a load balancer, and returns its document.
    async fn create(&self, balancer: Value) -> Value {
        let path = format!("{OCTAVIA}/loadbalancers");
        let body = json!({ "loadbalancer": balancer });
        self.rest.post(&path, body).await.unwrap()["loadbalancer"].clone()
    }
}

/// A cloud with the networks 127.N.0.0/17 and 127.N.128.0/24, so that parallel tests use different addresses.
async fn on_loopback(number: u8) -> Session {
    Session::with(Config {
        private_subnet: format!("127.{number}.0.0/17").parse().unwrap(),
        public_subnet: format!("127.{number}.128.0/24").parse().unwrap(),
        ..Config::default()
    })
    .await
}

/// A server that answers every connection with its name, until it is dropped.
struct Member {
    address: SocketAddr,
    task: JoinHandle<()>,
}

impl Drop for Member {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl Member {
    async fn start(address: [u8; 4], name: &'static str) -> Self {
        let socket = TcpListener::bind((Ipv4Addr::from(address), 0)).await.unwrap();
        let address = socket.local_addr().unwrap();
        let task = tokio::spawn(async move {
            loop {
                let (mut client, _) = socket.accept().await.unwrap();
                // The client may have disconnected.
                let _sent = client.write_all(name.as_bytes()).await;
            }
        });
        Self { address, task }
    }

    fn json(&self) -> Value {
        json!({"address": self.address.ip(), "protocol_port": self.address.port()})
    }
}

/// A free port at an address of this machine.
async fn free_port(address: [u8; 4]) -> u16 {
    let socket = TcpListener::bind((Ipv4Addr::from(address), 0)).await.unwrap();
    socket.local_addr().unwrap().port()
}

/// The answer at an address. None if the connection is refused, or closed without an answer.
async fn read_answer(address: SocketAddr) -> Option<String> {
    let mut stream = TcpStream::connect(address).await.ok()?;
    let mut text = String::new();
    let _read = stream.read_to_string(&mut text).await;
    (!text.is_empty()).then_some(text)
}

async fn eventually<T>(what: &str, check: impl AsyncFn() -> Option<T>) -> T {
    let found = observe::eventually(LIMIT, check).await;
    found.unwrap_or_else(|| panic!("not within {LIMIT:?}: {what}"))
}

async fn wait_for_no_answer(address: SocketAddr) {
    eventually("no answer", async || TcpStream::connect(address).await.is_err().then_some(())).await;
}

/// A created load balancer.
struct Balancer {
    id: String,
    port_id: String,
    listener: String,
    pool: String,
    front: SocketAddr,
}

impl Session {
    /// Creates a load balancer with one port and these members.
    async fn balancing(&self, listener: Value, members: &[Value]) -> Balancer {
        let subnets = self.rest.list("network/v2.0/subnets?name=private-0").await.unwrap();
        let mut listener = listener;
        let protocol = listener["protocol"].as_str().unwrap_or("TCP").to_owned();
        listener["protocol"] = json!(protocol);
        listener["default_pool"] =
            json!({"name": "p", "protocol": protocol, "lb_algorithm": "ROUND_ROBIN", "members": members});
        let balancer = json!({"name": "web", "vip_subnet_id": subnets[0]["id"], "listeners": [listener]});
        let created = self.create(balancer).await;
        let of = |pointer: &str| created.pointer(pointer).unwrap().as_str().unwrap().to_owned();
        let port = listener["protocol_port"].as_u64().unwrap();
        let vip: IpAddr = of("/vip_address").parse().unwrap();
        Balancer {
            id: of("/id"),
            port_id: of("/vip_port_id"),
            listener: of("/listeners/0/id"),
            pool: of("/pools/0/id"),
            front: SocketAddr::new(vip, u16::try_from(port).unwrap()),
        }
    }

    /// Waits until the only forward satisfies a condition.
    async fn forward(&self, what: &str, like: impl Fn(&Forward) -> bool) -> Forward {
        eventually(what, async || match self.forwards().as_slice() {
            [one] if like(one) => Some(one.clone()),
            _ => None,
        })
        .await
    }
}

#[tokio::test]
async fn members_answer_in_turn_at_the_virtual_address_until_it_is_deleted() {
    let session = on_loopback(101).await;
    let (one, two) =
        (Member::start([127, 101, 1, 1], "one").await, Member::start([127, 101, 1, 2], "two").await);
    let port = free_port([127, 101, 0, 1]).await;
    let members = [one.json(), two.json()];
    let created = session.balancing(json!({ "protocol_port": port }), &members).await;
    let first = eventually("an answer", async || read_answer(created.front).await).await;
    let mut answers = vec![first];
    for _ in 0..5 {
        answers.push(read_answer(created.front).await.unwrap());
    }
    answers.sort();
    assert_eq!(answers, ["one", "one", "one", "two", "two", "two"]);

    // A member that does not answer is skipped.
    drop(one);
    eventually("the other one only", async || {
        let answers = [
            read_answer(created.front).await?,
            read_answer(created.front).await?,
        ];
        (answers == ["two", "two"]).then_some(())
    })
    .await;

    // Members are replaced.
    let joined = Member::start([127, 101, 1, 4], "joined").await;
    let path = format!("{OCTAVIA}/pools/{}/members", created.pool);
    let members = json!({ "members": [joined.json()] });
    session.rest.put(&path, members).await.unwrap();
    eventually("the one that joined", async || {
        read_answer(created.front).await.filter(|name| name == "joined")
    })
    .await;
    assert_eq!(read_answer(created.front).await.as_deref(), Some("joined"));

    let path = format!("{OCTAVIA}/loadbalancers/{}?cascade=true", created.id);
    session.rest.delete(&path).await.unwrap();
    wait_for_no_answer(created.front).await;
    eventually("no forwards", async || session.forwards().is_empty().then_some(())).await;
}

#[tokio::test]
async fn floating_address_answers_while_it_leads_to_the_load_balancer() {
    let session = on_loopback(102).await;
    let member = Member::start([127, 102, 1, 1], "one").await;
    let port = free_port([127, 102, 0, 1]).await;
    let created = session.balancing(json!({ "protocol_port": port }), &[member.json()]).await;
    let address: IpAddr = "127.102.128.9".parse().unwrap();
    let floating = SocketAddr::new(address, port);
    eventually("an answer", async || read_answer(created.front).await).await;
    wait_for_no_answer(floating).await;
    session.cloud.add_floating(&created.port_id, address).unwrap();
    assert_eq!(eventually("an answer", async || read_answer(floating).await).await, "one");
    let attached = session.cloud.floating_ips().remove(0);
    assert_eq!(attached.port_id.as_ref(), Some(&created.port_id));
    session.cloud.remove_floating(address).unwrap();
    assert_eq!(session.cloud.floating_ips(), []);
    wait_for_no_answer(floating).await;
    assert_eq!(read_answer(created.front).await.as_deref(), Some("one"));
}

#[tokio::test]
async fn clients_outside_of_the_allowed_ranges_get_no_answer() {
    let session = on_loopback(103).await;
    let member = Member::start([127, 103, 1, 1], "one").await;
    let port = free_port([127, 103, 0, 1]).await;
    let listener = json!({"protocol_port": port, "allowed_cidrs": ["192.0.2.0/24"]});
    let created = session.balancing(listener, &[member.json()]).await;
    session.forward("listening", |forward| forward.problem.is_none()).await;
    assert_eq!(read_answer(created.front).await, None);
    let change = json!({"listener": {"allowed_cidrs": ["192.0.2.0/24", "127.0.0.0/8"]}});
    let path = format!("{OCTAVIA}/listeners/{}", created.listener);
    session.rest.put(&path, change).await.unwrap();
    eventually("an answer", async || read_answer(created.front).await).await;
}

#[tokio::test]
async fn nothing_answers_without_a_forwarder_or_while_the_load_balancer_does_not_work() {
    let mut session = on_loopback(104).await;
    session.forwarder = None;
    let member = Member::start([127, 104, 1, 1], "one").await;
    let port = free_port([127, 104, 0, 1]).await;
    let created = session.balancing(json!({ "protocol_port": port }), &[member.json()]).await;
    assert!(TcpStream::connect(created.front).await.is_err());

    session.forwarder = Some(Forwarder::start(session.cloud.control()));
    eventually("an answer", async || read_answer(created.front).await).await;
    let shown = session.forward("listening", |_| true).await;
    assert_eq!(shown.address, created.front);
    assert_eq!(shown.listener_id, created.listener);

    session.cloud.set_provisioning_status(&created.id, "ERROR").unwrap();
    wait_for_no_answer(created.front).await;
    session.cloud.set_provisioning_status(&created.id, "ACTIVE").unwrap();
    eventually("an answer", async || read_answer(created.front).await).await;
    let off = Map::from_iter([("admin_state_up".to_owned(), json!(false))]);
    session.cloud.patch_object(&created.listener, &off).unwrap();
    wait_for_no_answer(created.front).await;
    let on = Map::from_iter([("admin_state_up".to_owned(), json!(true))]);
    session.cloud.patch_object(&created.listener, &on).unwrap();
    eventually("an answer", async || read_answer(created.front).await).await;

    session.forwarder = None;
    wait_for_no_answer(created.front).await;
}

#[tokio::test]
async fn an_address_in_use_is_reported_and_served_when_it_is_free() {
    let session = on_loopback(105).await;
    let member = Member::start([127, 105, 1, 1], "one").await;
    // The first address of the subnet, which is already in use.
    let taken = TcpListener::bind("127.105.0.2:0").await.unwrap();
    let place = taken.local_addr().unwrap();
    let created = session.balancing(json!({ "protocol_port": place.port() }), &[member.json()]).await;
    assert_eq!(created.front, place);
    let forward = session.forward("a problem", |forward| forward.problem.is_some()).await;
    let problem = forward.problem.unwrap();
    assert!(problem.contains(&format!("cannot listen on {place}: ")), "{problem}");
    drop(taken);
    eventually("an answer", async || read_answer(place).await).await;
    session.forward("no problem", |forward| forward.problem.is_none()).await;
}

#[tokio::test]
async fn unsupported_listeners_are_reported() {
    let session = on_loopback(106).await;
    let member = json!({"address": "127.106.1.1", "protocol_port": 30000});
    session.balancing(json!({"protocol_port": 5353, "protocol": "UDP"}), &[member]).await;
    let forward = session.forward("a problem", |forward| forward.problem.is_some()).await;
    assert_eq!(forward.problem.unwrap(), "listeners of protocol UDP are not forwarded");
}

#[tokio::test]
async fn addresses_outside_of_loopback_are_not_served() {
    let session = Session::with(Config::default()).await;
    session.cloud.create_server(&ServerSpec::named("node-1")).unwrap();
    let member = json!({"address": "10.0.0.2", "protocol_port": 30000});
    let created = session.balancing(json!({"protocol_port": 8080}), &[member]).await;
    assert!(!created.front.ip().is_loopback());
    // A second load balancer, on loopback, proves that the first one was read.
    let subnet = SubnetSpec {
        name: "loop".to_owned(),
        cidr: Some("127.107.0.0/24".parse().unwrap()),
        ..SubnetSpec::default()
    };
    let subnet = session.cloud.create_subnet("private", &subnet).unwrap();
    let port = free_port([127, 107, 0, 1]).await;
    let balancer = json!({
        "vip_subnet_id": subnet,
        "listeners": [{"protocol": "TCP", "protocol_port": port}],
    });
    let created = session.create(balancer).await;
    let forward = session.forward("the second one only", |_| true).await;
    assert_eq!(forward.address.ip().to_string(), created["vip_address"]);
}

#[test]
fn only_clients_in_allowed_ranges_are_accepted() {
    let client = IpAddr::from([127, 0, 0, 1]);
    for (cidrs, expected) in [
        (Value::Null, true),
        (json!(["10.0.0.0/8", "127.0.0.0/8"]), true),
        (json!(["10.0.0.0/8"]), false),
        (json!(["10.0.0.1/32", "::/0"]), false),
    ] {
        assert_eq!(allows(&cidrs, client), expected, "{cidrs}");
    }
}
