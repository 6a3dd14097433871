//! Serves the load balancers of a simulated OpenStack: forwards connections to a virtual or floating IP to the
//! members.
//!
//! Only addresses in 127.0.0.0/8 are served, which every Linux machine has without configuration. Other machines cannot
//! reach them. All members have equal shares. Bytes are forwarded unchanged. A listener or pool that changes them (TLS, PROXY, headers) or that is not TCP
//! is not served; [`Forwarder::forwards`] reports it.

use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use ccm_sim::openstack::{BalancerState, Control, ObjectState};
use ipnet::IpNet;
use parking_lot::RwLock;
use serde_json::Value;
use tokio::net::{TcpListener, TcpStream};
use tokio::task::{AbortHandle, JoinHandle, JoinSet};

/// Interval between reads of the load balancers.
const POLL_INTERVAL: Duration = Duration::from_millis(50);
/// Time limit for a member to accept a connection before the next one is tried (Octavia's default).
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);
/// Pause after a failure to accept, such as too many open files.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// An address and port of a load balancer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Forward {
    /// The virtual or floating IP with the listener's port.
    pub(super) address: SocketAddr,
    /// Id of the listener.
    pub(super) listener_id: String,
    /// Why the address does not answer, if it does not.
    pub(super) problem: Option<String>,
}

/// The open socket of a listener. Dropping it closes it and all its connections.
struct OpenSocket {
    listener: String,
    task: AbortHandle,
}

impl Drop for OpenSocket {
    fn drop(&mut self) {
        self.task.abort();
    }
}

/// Opens and closes sockets when load balancers are created and deleted. Dropping it closes all sockets.
#[derive(Debug)]
pub(super) struct Forwarder {
    task: JoinHandle<()>,
    forwards: Arc<RwLock<Vec<Forward>>>,
}

impl Forwarder {
    /// Starts to serve the load balancers of this cloud.
    pub(super) fn start(cloud: Control) -> Self {
        let forwards = Arc::default();
        Self {
            task: tokio::spawn(run(cloud, Arc::clone(&forwards))),
            forwards,
        }
    }

    /// The addresses of load balancers, each once, as of the last read.
    pub(super) fn forwards(&self) -> Vec<Forward> {
        self.forwards.read().clone()
    }
}

impl Drop for Forwarder {
    fn drop(&mut self) {
        self.task.abort();
    }
}

async fn run(cloud: Control, shown: Arc<RwLock<Vec<Forward>>>) {
    let mut sockets = JoinSet::new();
    let mut open: BTreeMap<SocketAddr, OpenSocket> = BTreeMap::new();
    loop {
        let mut forwards = forwards(&cloud);
        open.retain(|address, known| {
            forwards.iter().any(|forward| {
                forward.address == *address
                    && forward.listener_id == known.listener
                    && forward.problem.is_none()
            })
        });
        for forward in &mut forwards {
            if forward.problem.is_some() || open.contains_key(&forward.address) {
                continue;
            }
            match TcpListener::bind(forward.address).await {
                Ok(socket) => {
                    let listener = forward.listener_id.clone();
                    let task = sockets.spawn(serve(cloud.clone(), socket, listener.clone()));
                    open.insert(forward.address, OpenSocket { listener, task });
                }
                Err(error) => forward.problem = Some(unbound(forward.address, &error)),
            }
        }
        *shown.write() = forwards;
        while sockets.try_join_next().is_some() {}
        tokio::time::sleep(POLL_INTERVAL).await;
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

/// An attribute, or null.
fn attribute<'a>(object: &'a ObjectState, name: &str) -> &'a Value {
    object.attributes.get(name).unwrap_or(&Value::Null)
}

fn text<'a>(object: &'a ObjectState, name: &str) -> &'a str {
    attribute(object, name).as_str().unwrap_or_default()
}

/// The addresses at which load balancers must answer, each once, sorted.
fn forwards(cloud: &Control) -> Vec<Forward> {
    let floating = cloud.floating_ips();
    let mut found: BTreeMap<SocketAddr, Forward> = BTreeMap::new();
    let balancers = cloud.load_balancers();
    for state in balancers.iter().filter(|state| serves(&state.loadbalancer)) {
        let port_id = text(&state.loadbalancer, "vip_port_id");
        let leading = floating.iter().filter(|floating| floating.port_id.as_deref() == Some(port_id));
        let virtual_address = text(&state.loadbalancer, "vip_address").parse().ok();
        let addresses: Vec<IpAddr> = virtual_address
            .into_iter()
            .chain(leading.map(|floating| floating.address))
            .filter(|address| address.is_ipv4() && address.is_loopback())
            .collect();
        for listener in state.listeners.iter().filter(|listener| serves(listener)) {
            let port = attribute(listener, "protocol_port").as_u64();
            let Some(port) = port.and_then(|port| u16::try_from(port).ok()) else {
                continue;
            };
            for address in &addresses {
                let address = SocketAddr::new(*address, port);
                found.entry(address).or_insert_with(|| Forward {
                    address,
                    listener_id: listener.id.clone(),
                    problem: unsupported(state, listener),
                });
            }
        }
    }
    found.into_values().collect()
}

/// Whether an object is enabled, created, and not being deleted. A change in progress does not interrupt it.
fn serves(object: &ObjectState) -> bool {
    matches!(object.provisioning_status.as_str(), "ACTIVE" | "PENDING_UPDATE")
        && attribute(object, "admin_state_up") != &Value::Bool(false)
        && object.operating_status != "ERROR"
}

fn pool_of<'a>(state: &'a BalancerState, listener: &ObjectState) -> Option<&'a ObjectState> {
    let id = text(listener, "default_pool_id");
    state.pools.iter().find(|pool| pool.id == id)
}

/// Why a listener cannot be served by forwarding bytes, if it cannot.
fn unsupported(state: &BalancerState, listener: &ObjectState) -> Option<String> {
    let protocol = text(listener, "protocol");
    if !matches!(protocol, "TCP" | "HTTP" | "HTTPS") {
        return Some(format!("listeners of protocol {protocol} are not forwarded"));
    }
    let headers = attribute(listener, "insert_headers").as_object();
    if headers.is_some_and(|headers| !headers.is_empty()) {
        return Some("listeners that insert headers are not forwarded".to_owned());
    }
    let protocol = text(pool_of(state, listener)?, "protocol");
    (!matches!(protocol, "TCP" | "HTTP" | "HTTPS"))
        .then(|| format!("pools of protocol {protocol} are not forwarded"))
}

/// Accepts connections for a listener until it is aborted.
async fn serve(cloud: Control, socket: TcpListener, listener: String) {
    let turn = Arc::new(AtomicUsize::new(0));
    let mut connections = JoinSet::new();
    loop {
        while connections.try_join_next().is_some() {}
        let Ok((client, peer)) = socket.accept().await else {
            tokio::time::sleep(ACCEPT_PAUSE).await;
            continue;
        };
        let members = members(&cloud.load_balancers(), &listener, peer.ip());
        let turn = Arc::clone(&turn);
        connections.spawn(async move { connect(client, &members, &turn).await });
    }
}

/// The members for a connection of this client. Empty if the client is not allowed.
fn members(balancers: &[BalancerState], listener: &str, client: IpAddr) -> Vec<SocketAddr> {
    let found = balancers.iter().find_map(|state| {
        let found = state.listeners.iter().find(|known| known.id == listener)?;
        allows(attribute(found, "allowed_cidrs"), client).then_some(())?;
        let pool = pool_of(state, found).filter(|pool| serves(pool))?;
        Some((state, pool))
    });
    let Some((state, pool)) = found else {
        return Vec::new();
    };
    let members = state.members.iter();
    members
        .filter(|member| member.parent_id == pool.id && serves(member))
        .filter_map(address)
        .collect()
}

/// The address of a member, if it is on this machine.
fn address(member: &ObjectState) -> Option<SocketAddr> {
    let address: IpAddr = text(member, "address").parse().ok()?;
    let port = u16::try_from(attribute(member, "protocol_port").as_u64()?).ok()?;
    address.is_loopback().then(|| SocketAddr::new(address, port))
}

/// Whether a listener accepts connections of this client. Without a list it accepts all.
fn allows(cidrs: &Value, client: IpAddr) -> bool {
    let Some(cidrs) = cidrs.as_array() else {
        return true;
    };
    let mut nets = cidrs.iter().filter_map(Value::as_str).filter_map(|text| text.parse::<IpNet>().ok());
    nets.any(|net| net.contains(&client))
}

/// Forwards a connection to the next member, or else to the first one after it that accepts the connection.
async fn connect(mut client: TcpStream, members: &[SocketAddr], turn: &AtomicUsize) {
    let next = turn.fetch_add(1, Ordering::Relaxed) % members.len().max(1);
    for address in members.iter().cycle().skip(next).take(members.len()) {
        let connecting = tokio::time::timeout(CONNECT_TIMEOUT, TcpStream::connect(address));
        if let Ok(Ok(mut member)) = connecting.await {
            // Either side may end the connection.
            let _ended = tokio::io::copy_bidirectional(&mut client, &mut member).await;
            return;
        }
    }
}

#[cfg(test)]
mod tests;
