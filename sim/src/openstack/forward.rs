//! Load balancers that really balance: connections to a virtual or floating address are led on to the members.
//!
//! Off unless [`LoadBalancing::forward`](super::LoadBalancing::forward) is set, and then only for addresses in 127.0.0.0/8, which every
//! Linux machine has without being told: nothing here can be reached from another machine, and nothing here reaches one.
//! Bytes are passed on as they are. A listener or pool that would have to change them (TLS, PROXY, headers) or that is
//! no TCP is not served; [`Control::forwards`](super::Control::forwards) says so.

use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use ipnet::IpNet;
use serde::Serialize;
use serde_json::Value;
use tokio::net::{TcpListener, TcpStream};
use tokio::task::{AbortHandle, JoinHandle, JoinSet};

use super::OpenStackCloud;
use super::region::{Kind, Object, Provisioning, Region};

/// How often it is looked whether there are other load balancers now.
const PAUSE: Duration = Duration::from_millis(50);
/// How long a member may take to answer before the next one is tried; Octavia's default.
const CONNECT: Duration = Duration::from_secs(5);
/// After a failure to accept, such as too many open files.
const BREATH: Duration = Duration::from_millis(100);

/// An address and port at which a load balancer is to answer.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Forward {
    /// The virtual or floating address with the listener's port.
    pub address: SocketAddr,
    /// Id of the listener.
    pub listener_id: String,
    /// Why nothing answers there, if so.
    pub problem: Option<String>,
}

/// A listener at one of its addresses, as the cloud has it.
struct Front {
    address: SocketAddr,
    region: String,
    listener: String,
    /// Why it can not be served, if so.
    unfit: Option<String>,
}

/// A socket that is open for a listener. Dropping it closes it with all its connections.
struct Open {
    listener: String,
    task: AbortHandle,
}

impl Drop for Open {
    fn drop(&mut self) {
        self.task.abort();
    }
}

/// What opens and closes sockets as load balancers come and go. Dropping it closes them all.
#[derive(Debug)]
pub(super) struct Forwarder {
    task: JoinHandle<()>,
}

impl Forwarder {
    pub(super) fn start(cloud: Arc<OpenStackCloud>) -> Self {
        Self {
            task: tokio::spawn(run(cloud)),
        }
    }
}

impl Drop for Forwarder {
    fn drop(&mut self) {
        self.task.abort();
    }
}

async fn run(cloud: Arc<OpenStackCloud>) {
    let mut sockets = JoinSet::new();
    let mut open: BTreeMap<SocketAddr, Open> = BTreeMap::new();
    loop {
        if !cloud.settings.read().load_balancing.forward {
            open.clear();
            cloud.forwards.write().clear();
            cloud.reconfigured.notified().await;
            continue;
        }
        cloud.settle();
        let fronts = fronts(&cloud);
        open.retain(|address, known| {
            fronts.iter().any(|front| {
                front.address == *address && front.listener == known.listener && front.unfit.is_none()
            })
        });
        let mut shown = Vec::with_capacity(fronts.len());
        for front in fronts {
            let problem = match (front.unfit.clone(), open.contains_key(&front.address)) {
                (Some(unfit), _) => Some(unfit),
                (None, true) => None,
                (None, false) => match TcpListener::bind(front.address).await {
                    Ok(socket) => {
                        let (region, listener) = (front.region.clone(), front.listener.clone());
                        let task = sockets.spawn(serve(Arc::clone(&cloud), socket, region, listener));
                        let listener = front.listener.clone();
                        open.insert(front.address, Open { listener, task });
                        None
                    }
                    Err(error) => Some(unbound(front.address, &error)),
                },
            };
            shown.push(Forward {
                address: front.address,
                listener_id: front.listener,
                problem,
            });
        }
        *cloud.forwards.write() = shown;
        while sockets.try_join_next().is_some() {}
        tokio::time::sleep(PAUSE).await;
    }
}

fn unbound(address: SocketAddr, error: &std::io::Error) -> String {
    let port = address.port();
    if error.kind() == std::io::ErrorKind::PermissionDenied && port < 1024 {
        format!("only root may listen on port {port}; a Service with a port from 1024 on is served")
    } else {
        format!("cannot listen on {address}: {error}")
    }
}

/// Where load balancers are to answer now, each address once.
fn fronts(cloud: &OpenStackCloud) -> Vec<Front> {
    let heartbeats = cloud.settings.read().load_balancing.heartbeats;
    let regions = cloud.regions.read();
    let mut found: BTreeMap<SocketAddr, Front> = BTreeMap::new();
    for region in regions.iter() {
        let state = &region.balancing;
        for balancer in state.all(Kind::LoadBalancer).filter(|lb| serves(lb, heartbeats)) {
            let addresses = addresses(region, balancer);
            for listener in state.below(&balancer.id, Kind::Listener) {
                let port = listener.get("protocol_port").as_u64();
                let Some(port) = port.and_then(|port| u16::try_from(port).ok()) else {
                    continue;
                };
                if !serves(listener, false) {
                    continue;
                }
                for address in &addresses {
                    let address = SocketAddr::new(*address, port);
                    found.entry(address).or_insert_with(|| Front {
                        address,
                        region: region.name.clone(),
                        listener: listener.id.clone(),
                        unfit: unfit(region, listener),
                    });
                }
            }
        }
    }
    found.into_values().collect()
}

/// Whether a thing takes part: switched on, made, and not being deleted. A change under way interrupts nothing.
fn serves(object: &Object, must_be_online: bool) -> bool {
    matches!(
        object.provisioning,
        Provisioning::Active | Provisioning::PendingUpdate
    ) && object.get("admin_state_up") != &Value::Bool(false)
        && object.operating != "ERROR"
        && !(must_be_online && object.operating == "OFFLINE")
}

/// The addresses on loopback at which a load balancer is reached.
fn addresses(region: &Region, balancer: &Object) -> Vec<IpAddr> {
    let more = balancer.get("additional_vips").as_array();
    let more = more.into_iter().flatten().filter_map(|vip| vip.get("ip_address"));
    let fixed = std::iter::once(balancer.get("vip_address")).chain(more);
    let fixed = fixed
        .filter_map(Value::as_str)
        .filter_map(|text| text.parse().ok());
    let floating = region.network.floating_of(balancer.text("vip_port_id"));
    fixed
        .chain(floating.map(|floating| floating.address))
        .filter(|address: &IpAddr| address.is_ipv4() && address.is_loopback())
        .collect()
}

/// Why a listener can not be served by passing bytes on, if so.
fn unfit(region: &Region, listener: &Object) -> Option<String> {
    let protocol = listener.text("protocol");
    if !matches!(protocol, "TCP" | "HTTP" | "HTTPS") {
        return Some(format!("listeners of protocol {protocol} are not forwarded"));
    }
    let headers = listener.get("insert_headers").as_object();
    if headers.is_some_and(|headers| !headers.is_empty()) {
        return Some("listeners that insert headers are not forwarded".to_owned());
    }
    let pool = region
        .balancing
        .get(Kind::Pool, listener.text("default_pool_id"))?;
    let protocol = pool.text("protocol");
    (!matches!(protocol, "TCP" | "HTTP" | "HTTPS"))
        .then(|| format!("pools of protocol {protocol} are not forwarded"))
}

/// Takes connections for a listener until it is aborted.
async fn serve(cloud: Arc<OpenStackCloud>, socket: TcpListener, region: String, listener: String) {
    let turn = Arc::new(AtomicUsize::new(0));
    let mut connections = JoinSet::new();
    loop {
        while connections.try_join_next().is_some() {}
        let Ok((client, peer)) = socket.accept().await else {
            tokio::time::sleep(BREATH).await;
            continue;
        };
        let members = members(&cloud, &region, &listener, peer.ip());
        let turn = Arc::clone(&turn);
        connections.spawn(async move { lead(client, &members, &turn).await });
    }
}

/// A member and its share of the connections.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Backend {
    address: SocketAddr,
    weight: usize,
}

/// The members that may have a connection of this client; none if it may have none.
fn members(cloud: &OpenStackCloud, region: &str, listener: &str, client: IpAddr) -> Vec<Backend> {
    let regions = cloud.regions.read();
    let Some(region) = regions.iter().find(|known| known.name == region) else {
        return Vec::new();
    };
    let state = &region.balancing;
    let Some(listener) = state.get(Kind::Listener, listener) else {
        return Vec::new();
    };
    if !allows(listener.get("allowed_cidrs"), client) {
        return Vec::new();
    }
    let pool = state.get(Kind::Pool, listener.text("default_pool_id"));
    let Some(pool) = pool.filter(|pool| serves(pool, false)) else {
        return Vec::new();
    };
    let (spare, mut first): (Vec<_>, Vec<_>) = state
        .below(&pool.id, Kind::Member)
        .filter(|member| serves(member, false))
        .filter_map(|member| Some((member.get("backup") == &Value::Bool(true), backend(member)?)))
        .partition(|(backup, _)| *backup);
    if first.is_empty() {
        first = spare;
    }
    first.into_iter().map(|(_, backend)| backend).collect()
}

/// Where a member is, if it has a weight and is on this machine.
fn backend(member: &Object) -> Option<Backend> {
    let address: IpAddr = member.text("address").parse().ok()?;
    let port = u16::try_from(member.get("protocol_port").as_u64()?).ok()?;
    let weight = member.get("weight").as_u64().unwrap_or(1);
    let weight = usize::try_from(weight).ok().filter(|weight| *weight > 0)?;
    address.is_loopback().then(|| Backend {
        address: SocketAddr::new(address, port),
        weight,
    })
}

/// Whether a listener takes connections from there. Without a list it takes all.
fn allows(cidrs: &Value, client: IpAddr) -> bool {
    let Some(cidrs) = cidrs.as_array() else {
        return true;
    };
    let mut nets = cidrs
        .iter()
        .filter_map(Value::as_str)
        .filter_map(|text| text.parse::<IpNet>().ok());
    nets.any(|net| net.contains(&client))
}

/// The members in the order in which a connection tries them: whose turn it is by weight, then those after it.
fn order(members: &[Backend], turn: usize) -> impl Iterator<Item = SocketAddr> + '_ {
    let total: usize = members.iter().map(|member| member.weight).sum();
    let mut left = turn.checked_rem(total).unwrap_or_default();
    let first = members.iter().position(|member| {
        let mine = left < member.weight;
        left = left.saturating_sub(member.weight);
        mine
    });
    let all = members.iter().cycle().skip(first.unwrap_or_default());
    all.take(members.len()).map(|member| member.address)
}

/// Leads a connection to the next member, or to one after it that answers; else it is closed.
async fn lead(mut client: TcpStream, members: &[Backend], turn: &AtomicUsize) {
    for address in order(members, turn.fetch_add(1, Ordering::Relaxed)) {
        let connecting = tokio::time::timeout(CONNECT, TcpStream::connect(address));
        if let Ok(Ok(mut member)) = connecting.await {
            // Either side may break off, which ends it for both.
            let _ended = tokio::io::copy_bidirectional(&mut client, &mut member).await;
            return;
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn backends(weights: &[usize]) -> Vec<Backend> {
        let member = |(port, &weight)| Backend {
            address: SocketAddr::from(([127, 0, 0, 1], port)),
            weight,
        };
        (1..).zip(weights).map(member).collect()
    }

    #[test]
    fn members_take_turns_by_weight_and_stand_in_for_each_other() {
        let members = backends(&[1, 2, 1]);
        let ports = |turn| -> Vec<u16> { order(&members, turn).map(|address| address.port()).collect() };
        let turns: Vec<_> = (0..5).map(|turn| ports(turn).first().copied()).collect();
        assert_eq!(turns, [Some(1), Some(2), Some(2), Some(3), Some(1)]);
        assert_eq!(ports(3), [3, 1, 2]);
        assert_eq!(order(&[], 7).next(), None);
    }

    #[test]
    fn allowed_ranges_decide_who_may_come() {
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
}
