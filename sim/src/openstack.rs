//! A simulated OpenStack: Keystone v3, Nova 2.1 with its microversion 2.47, Neutron v2.0, Octavia v2 and the part of
//! Barbican v1 that load balancers need.
//!
//! All services share one listener. The catalog has the paths `/identity`, `/<region>/compute/v2.1`,
//! `/<region>/network`, `/<region>/load-balancer` and `/<region>/key-manager`. The interfaces `internal` and `admin`
//! have paths of their own (`/internal/identity`, `/<region>/internal/compute/v2.1`), so that the call log shows the
//! interface. Texts, shapes and status codes of answers are those of the real services' 2026.2 release.

mod barbican;
mod control;
mod control_http;
mod identity;
mod ids;
mod keystone;
mod listing;
mod neutron;
mod nova;
mod octavia;
mod ops;
mod python;
mod refusals;
mod region;
mod settings;
mod spec;

use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use http::StatusCode;
use ipnet::{IpNet, Ipv4Net};
use parking_lot::RwLock;
use serde_json::json;

pub use control::{BalancerState, Control, FloatingState, GroupState, ObjectState};
pub use settings::{LoadBalancing, Settings};
pub use spec::{
    AddressSpec, AppCredential, AppCredentialSpec, FlavorSpec, NetworkSpec, PortPatch, PortSpec, RouterSpec,
    SecretSpec, ServerPatch, ServerSpec, SubnetSpec, UserSpec,
};

use crate::clock::Clock;
use crate::control::{Answer, Behavior};
use crate::error::Result;
use crate::faults::{Fault, Snapshot};
use crate::http::{Reply, Request, segments};
use crate::server::{Cloud, Server, Target, Traffic, bind};
use identity::{Caller, Identity};
use ids::Ids;
use region::{Birth, Region};

/// The longest request line that the front end accepts.
const MAX_REQUEST_LINE: usize = 8190;

/// The services, as the catalog's URLs name them.
const SERVICES: [&str; 5] = ["identity", "compute", "network", "load-balancer", "key-manager"];

/// The configuration of a simulated OpenStack.
#[derive(Clone, Debug)]
pub struct Config {
    /// Where to listen; port 0 lets the system choose.
    pub listen: SocketAddr,
    /// Regions; the first is the default one.
    pub regions: Vec<String>,
    /// Name of the default project.
    pub project: String,
    /// Name of the default user, a member of the default project.
    pub user: String,
    /// The default user's password.
    pub password: String,
    /// How long tokens are valid.
    pub token_lifetime: Duration,
    /// The subnet of every region's network `private`.
    pub private_subnet: IpNet,
    /// The subnet of every region's external network `public`.
    pub public_subnet: IpNet,
    /// Settings that can be changed later.
    pub settings: Settings,
    /// Seed of IDs and all other random values.
    pub seed: u64,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            listen: SocketAddr::from((Ipv4Addr::LOCALHOST, 0)),
            regions: vec!["RegionOne".to_owned()],
            project: "k8s".to_owned(),
            user: "ccm".to_owned(),
            password: "correct-horse".to_owned(),
            token_lifetime: Duration::from_secs(3600),
            private_subnet: subnet([10, 0, 0, 0], 12),
            public_subnet: subnet([203, 0, 113, 0], 24),
            settings: Settings::default(),
            seed: 0,
        }
    }
}

/// An IPv4 network; a single address if the length is invalid.
fn subnet(address: [u8; 4], length: u8) -> IpNet {
    let address = Ipv4Addr::from(address);
    IpNet::V4(Ipv4Net::new(address, length).unwrap_or_else(|_| Ipv4Net::from(address)))
}

/// A running simulated OpenStack. Dropping it closes the listener and all connections.
///
/// [`Control`], its `Deref` target, has all operations.
#[derive(Debug)]
pub struct OpenStack {
    control: Control,
    server: Server,
}

impl OpenStack {
    /// Starts a new cloud with one network, two flavors, one project and one user.
    ///
    /// # Errors
    /// If the address cannot be bound, or the configuration names no region.
    pub async fn start(config: Config) -> Result<Self> {
        let (listener, address) = bind(config.listen).await?;
        let clock = Arc::new(Clock::new());
        let traffic = Arc::new(Traffic::new(Arc::clone(&clock), MAX_REQUEST_LINE));
        let ids = Ids::new(config.seed);
        let user = UserSpec {
            name: config.user,
            password: config.password,
            ..UserSpec::default()
        };
        let identity = Identity::new(&config.project, &user, config.token_lifetime, &ids);
        let cloud = Arc::new(OpenStackCloud {
            base: format!("http://{address}"),
            clock,
            ids,
            identity: RwLock::new(identity),
            regions: RwLock::new(Arc::new(Vec::new())),
            private_subnet: config.private_subnet,
            public_subnet: config.public_subnet,
            settings: RwLock::new(config.settings),
        });
        let shared: Arc<dyn Cloud> = Arc::clone(&cloud) as _;
        let behavior = Behavior::new(Arc::clone(&shared), Arc::clone(&traffic));
        let control = Control::new(cloud, behavior);
        for region in &config.regions {
            control.create_region(region)?;
        }
        control.require_region()?;
        let server = Server::start(listener, traffic, shared);
        Ok(Self { control, server })
    }

    /// A handle that may outlive the server.
    pub fn control(&self) -> Control {
        self.control.clone()
    }

    /// Stops the cloud, and returns when the listener is closed.
    pub async fn shutdown(self) {
        self.server.shutdown().await;
    }
}

impl std::ops::Deref for OpenStack {
    type Target = Control;

    fn deref(&self) -> &Control {
        &self.control
    }
}

/// The state of all services. Locks are taken in the order regions, identity, settings.
pub(crate) struct OpenStackCloud {
    /// URL of the listener, without a path.
    base: String,
    clock: Arc<Clock>,
    ids: Ids,
    identity: RwLock<Identity>,
    regions: RwLock<Arc<Vec<Region>>>,
    private_subnet: IpNet,
    public_subnet: IpNet,
    settings: RwLock<Settings>,
}

impl OpenStackCloud {
    /// URL of the endpoint that a request used, without a version.
    fn endpoint(&self, target: &Target) -> String {
        self.url(&target.region, target.interface, target.service)
    }

    /// URL of a service in a region, without a version.
    fn url(&self, region: &str, interface: &str, service: &str) -> String {
        let region: String = url::form_urlencoded::byte_serialize(region.as_bytes()).collect();
        format!("{}/{region}{}/{service}", self.base, infix(interface))
    }

    /// The answer to an unknown request.
    fn missing(&self, request: &Request, target: &Target) -> Reply {
        let message = format!("The simulator does not have {} {}.", request.method, request.target());
        error(target.service, StatusCode::NOT_IMPLEMENTED, &message)
    }

    /// The caller of a request; an error answer if the token is not valid.
    fn caller(&self, request: &Request) -> std::result::Result<Caller, Box<Reply>> {
        let identity = self.identity.read();
        let token = request.header("x-auth-token").and_then(|id| identity.token(id, self.clock.now()));
        let Some(token) = token else {
            let reply = keystone::error(
                StatusCode::UNAUTHORIZED,
                "The request you have made requires authentication.",
                None,
            );
            return Err(Box::new(
                reply.with("WWW-Authenticate", &format!("Keystone uri=\"{}/identity/v3\"", self.base)),
            ));
        };
        Ok(identity.caller(token))
    }
}

/// The segment of a URL's path for an interface of the catalog.
fn infix(interface: &str) -> String {
    match interface {
        "public" => String::new(),
        interface => format!("/{interface}"),
    }
}

/// The error document of a service.
fn error(service: &str, status: StatusCode, message: &str) -> Reply {
    match service {
        "compute" => nova::error(status, message),
        "network" => neutron::error(status, "HTTPError", message),
        "load-balancer" => octavia::error(status, message),
        "key-manager" => barbican::error(status, message),
        _ => keystone::error(status, message, None),
    }
}

impl Cloud for OpenStackCloud {
    fn services(&self) -> Vec<&'static str> {
        SERVICES.to_vec()
    }

    fn target(&self, request: &Request) -> Target {
        let segments = segments(&request.path);
        let mut rest = segments.as_slice();
        let mut region = String::new();
        if let Some((name, others)) = rest.split_first()
            && self.regions.read().iter().any(|region| region.name == *name)
        {
            region.clone_from(name);
            rest = others;
        }
        let interface = match rest.first().map(String::as_str) {
            Some("internal") => "internal",
            Some("admin") => "admin",
            _ => "public",
        };
        if interface != "public" {
            rest = rest.get(1..).unwrap_or_default();
        }
        let mut service = "unknown";
        if let Some((name, others)) = rest.split_first()
            && let Some(known) = SERVICES.into_iter().find(|service| *service == name.as_str())
        {
            rest = others;
            // Only Keystone is the same for all regions.
            if (known == "identity") == region.is_empty() {
                service = known;
            }
        }
        let path: Vec<&str> = rest.iter().map(String::as_str).collect();
        let op = match service {
            "identity" => keystone::op(&request.method, &path),
            "compute" => nova::op(request, &path),
            "network" => neutron::op(request, &path),
            "load-balancer" => octavia::op(request, &path),
            "key-manager" => barbican::op(&request.method, &path),
            _ => ops::UNKNOWN,
        };
        Target {
            service,
            region,
            interface,
            op,
            rest: rest.to_vec(),
        }
    }

    fn handle(&self, request: &Request, target: &Target, snapshot: Option<&Snapshot>) -> Reply {
        if target.op == ops::UNKNOWN {
            return self.sign(target, self.missing(request, target));
        }
        if target.service == "identity" {
            return self.sign(target, keystone::handle(self, request, target));
        }
        self.settle();
        // Writes change the current state, even if reads use an older one.
        let written = match target.service {
            "network" if neutron::writes(target.op) => Some(neutron::write(self, request, target)),
            "load-balancer" if octavia::writes(target.op) => Some(octavia::write(self, request, target)),
            _ => None,
        };
        if let Some(reply) = written {
            return self.sign(target, reply);
        }
        let frozen = snapshot.and_then(|snapshot| snapshot.downcast_ref::<Vec<Region>>());
        let guard = self.regions.read();
        let regions = frozen.unwrap_or(&guard);
        let region = regions.iter().find(|region| region.name == target.region);
        let Some(region) = region else {
            return self.refuse(target, StatusCode::NOT_FOUND);
        };
        let reply = match target.service {
            "compute" => {
                nova::handle(self, region, request, target).unwrap_or_else(|| self.missing(request, target))
            }
            "network" => neutron::handle(self, region, request, target),
            "load-balancer" => octavia::handle(self, region, request, target),
            _ => barbican::handle(self, region, request, target),
        };
        self.sign(target, reply)
    }

    fn refuse(&self, target: &Target, status: StatusCode) -> Reply {
        let message = match status.as_u16() {
            503 => "The server is currently unavailable. Please try again at a later time.",
            500 => "The server has either erred or is incapable of performing the requested operation.",
            _ => status.canonical_reason().unwrap_or("Error"),
        };
        self.sign(target, error(target.service, status, message))
    }

    fn throttle(&self, target: &Target, retry_after: u64) -> Reply {
        let status = StatusCode::TOO_MANY_REQUESTS;
        let message = "This request was rate-limited.";
        let retry_after = retry_after.to_string();
        let reply = match target.service {
            "compute" => {
                let fault = json!({"code": 429, "message": message, "retryAfter": retry_after});
                Reply::json(status, &json!({ "overLimit": fault }))
            }
            "network" => neutron::error(status, "HTTPTooManyRequests", message),
            service => error(service, status, message),
        };
        self.sign(target, reply.with("Retry-After", &retry_after))
    }

    fn refusals(&self) -> Vec<Fault> {
        refusals::all()
    }

    fn snapshot(&self) -> Snapshot {
        let regions: Arc<Vec<Region>> = Arc::clone(&self.regions.read());
        regions
    }

    fn control(
        self: Arc<Self>,
        request: &Request,
        method: &str,
        path: &[&str],
        behavior: Behavior,
    ) -> Answer {
        control_http::handle(&Control::new(self, behavior), request, method, path)
    }
}

impl OpenStackCloud {
    /// Applies the due changes of load balancers.
    fn settle(&self) {
        let now = self.clock.now();
        if !self.regions.read().iter().any(|region| region.balancing.is_due(now)) {
            return;
        }
        let mut regions = self.regions.write();
        let heartbeats = self.settings.read().load_balancing.heartbeats;
        for region in Arc::make_mut(&mut regions) {
            region.settle(now, heartbeats);
        }
    }

    /// The creation time and the owner of a new object.
    fn birth(&self, caller: &Caller) -> Birth {
        let at = self.clock.now();
        Birth {
            at,
            project_id: caller.project_id.clone(),
            user_id: String::new(),
        }
    }

    /// Adds the request ID, which every answer has except those of paths outside of all versions.
    fn sign(&self, target: &Target, reply: Reply) -> Reply {
        let versioned = target.rest.first().is_some_and(|first| first.starts_with("v2."));
        // Octavia's middleware refuses a bad token before it assigns an ID.
        let unsigned = if target.service == "load-balancer" {
            reply.status == StatusCode::UNAUTHORIZED
        } else {
            target.service != "identity" && !versioned
        };
        if unsigned {
            return reply;
        }
        let id = format!("req-{}", self.ids.uuid());
        let reply = if target.service == "compute" {
            reply.with("x-compute-request-id", &id)
        } else {
            reply
        };
        reply.with("x-openstack-request-id", &id)
    }
}
