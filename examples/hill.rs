//! The cloud of the tutorial `docs/tutorials/cloud.md`: servers and load balancers of an HTTP API. The page shows this file in
//! parts, and `tests/tutorial.rs` runs it on a real API server.

// ANCHOR: register
use std::{process::ExitCode, sync::Arc, time::Duration};

use ccm_core::{
    AddressType, BuildContext, Cloud, Error, ErrorKind, Instance, InstanceState, Instances, NodeAddress,
    NodeView, Priority, Result, async_trait,
    client::{
        Gate, GateConfig, IndexedCache, Listing, Page, Quota, operations,
        rest::{self, Answer, Call, Proxies, RestApi, Target, Tls, reqwest},
    },
    config::{self, ConfigFiles, KeyCase, KeyPath, LoadError, Parsed, config_section},
    instances::finder::{Finder, InstanceSource, Lookup, Record},
    load_balancer::{
        ClusterSnapshot, ClusterView, Effect, Effects, Ingress, IpMode, LoadBalancers, Ownership, Protocol,
        ReadOptions, ServiceView, default_name,
    },
    plan::{
        CheckResult, CredentialsCheck, Engine, GatheredInputs, Member, Membership, Orphan, PartCloud,
        PartModel, PartOutput, Parts, Plan, ScopeCheck, SendOptions, SendOutcome, Step,
        document::{Document, DocumentChange, Rules},
        part_keys,
    },
    register_provider,
};
use http::Method;
use secrecy::{ExposeSecret as _, SecretString};
use serde::Deserialize;
use serde_json::{Value, json};
use url::Url;

/// The name on `--cloud-provider` and before `://` in provider IDs.
const NAME: &str = "hill";

register_provider! {
    name: NAME,
    summary: "Hill Cloud: servers and load balancers",
    build: build,
    validate: |context| config::validate(load(context)),
}

fn main() -> ExitCode {
    cloud_controller_manager::main()
}
// ANCHOR_END: register

// ANCHOR: config
config_section! {
    /// The file of `--cloud-config`, in YAML.
    struct HillConfig {
        /// URL of the API. Example: `https://api.hill.example/`.
        "endpoint" => endpoint: String,
        /// Token for the API. Required.
        "token" | "HILL_TOKEN" => token: Option<SecretString>,
    }
}

/// The checked configuration.
#[derive(Debug)]
struct Settings {
    endpoint: Url,
    token: SecretString,
}

fn load(context: &BuildContext) -> Result<Parsed<Settings>, LoadError> {
    let (path, environment) = (context.cloud_config.as_deref(), &context.environment);
    let mut files = ConfigFiles::default();
    config::load_yaml(
        path,
        environment,
        KeyCase::Sensitive,
        &mut files,
        |config: &HillConfig, _, problems| {
            let endpoint = Url::parse(&config.endpoint).ok().filter(Url::has_host);
            problems.require(endpoint.is_some(), KeyPath::key("endpoint"), "not a URL; write https://host/");
            problems.require(
                config.token.is_some(),
                KeyPath::key("token"),
                "missing; set it to an API token",
            );
            Some(Settings {
                endpoint: endpoint?,
                token: config.token.clone()?,
            })
        },
    )
}
// ANCHOR_END: config

// ANCHOR: client
operations! {
    /// The calls. All of them draw from one quota bucket.
    enum Op {
        /// One server.
        ServerGet = "server_get", "api", Read;
        /// All servers, or those with a name.
        ServerList = "server_list", "api", Read;
        /// All load balancers.
        LoadBalancerList = "load_balancer_list", "api", Read;
        /// Creates a load balancer.
        LoadBalancerCreate = "load_balancer_create", "api", Write;
        /// Replaces a load balancer.
        LoadBalancerUpdate = "load_balancer_update", "api", IdempotentWrite;
        /// Deletes a load balancer.
        LoadBalancerDelete = "load_balancer_delete", "api", IdempotentWrite;
    }
}

/// The API allows 10 requests per second.
const QUOTA: Quota = Quota {
    rate: 10.0,
    burst: 20,
    max_in_flight: 8,
};

/// The API client.
#[derive(Debug)]
struct Api {
    http: reqwest::Client,
    settings: Settings,
    gate: Gate,
}

impl Api {
    async fn send(&self, op: Op, path: &[&str], body: Option<&Value>, priority: Priority) -> Result<Value> {
        let method = match op {
            Op::ServerGet | Op::ServerList | Op::LoadBalancerList => Method::GET,
            Op::LoadBalancerCreate => Method::POST,
            Op::LoadBalancerUpdate => Method::PUT,
            Op::LoadBalancerDelete => Method::DELETE,
        };
        let mut call = Call::new(op, (), method, path);
        if let Some(body) = body {
            call = call.json(body)?;
        }
        match op {
            Op::LoadBalancerDelete => rest::execute(self, &call, priority).await.map(|()| Value::Null),
            _ => rest::json(self, &call, priority).await,
        }
    }
}

impl RestApi for Api {
    type Operation = Op;
    type Endpoint = ();
    type Credentials = ();

    fn http(&self) -> &reqwest::Client {
        &self.http
    }

    fn gate(&self) -> &Gate {
        &self.gate
    }

    async fn credentials(&self) -> Result<()> {
        Ok(())
    }

    async fn base_url(&self, (): ()) -> Result<Url> {
        Ok(self.settings.endpoint.clone())
    }

    fn authorize(&self, request: reqwest::RequestBuilder, (): &()) -> reqwest::RequestBuilder {
        request.bearer_auth(self.settings.token.expose_secret())
    }

    /// The API describes an error in the field `message`.
    fn refused(&self, target: &Target, answer: &Answer) -> Error {
        let (kind, retry) = answer.kind(&target.method);
        let body: Value = serde_json::from_slice(&answer.body).unwrap_or_default();
        let message = body["message"].as_str().unwrap_or_default();
        let error = answer.error(target, kind, message, Self::REQUEST_ID);
        match retry {
            Some(retry) => error.with_retry(retry),
            None => error,
        }
    }
}

/// Reads a field of an answer.
fn field<T: serde::de::DeserializeOwned>(mut answer: Value, name: &str) -> Result<T> {
    serde_json::from_value(answer[name].take()).map_err(|error| {
        Error::new(ErrorKind::Unexpected, format!("the answer has no valid {name:?}")).with_source(error)
    })
}
// ANCHOR_END: client

// ANCHOR: instances
/// A server, as the API returns it.
#[derive(Deserialize)]
struct Server {
    id: String,
    name: String,
    address: String,
}

impl Record for Server {
    fn id(&self) -> &str {
        &self.id
    }

    fn names(&self) -> Vec<&str> {
        vec![&self.name]
    }
}

/// The reads of servers. `Finder` decides which of them a question costs.
#[derive(Debug)]
struct Servers(Arc<Api>);

#[async_trait]
impl InstanceSource for Servers {
    type Record = Server;
    type Marker = String;

    const CACHE: &'static str = "hill_servers";

    fn lookup(&self, node: &NodeView) -> Lookup {
        match node.provider_id.as_deref().and_then(|id| id.split_once("://")) {
            Some((NAME, id)) => Lookup::Id(id.to_owned()),
            Some(_) => Lookup::Known(Ok(InstanceState::Unmanaged)),
            None => Lookup::Name,
        }
    }

    async fn by_ids(&self, ids: &[&str], priority: Priority) -> Vec<Result<Option<Server>>> {
        let mut servers = Vec::new();
        for id in ids {
            servers.push(match self.0.send(Op::ServerGet, &["servers", id], None, priority).await {
                Ok(answer) => field(answer, "server").map(Some),
                // Only this answer can lead to the deletion of a node.
                Err(error) if error.kind() == ErrorKind::NotFound => Ok(None),
                Err(error) => Err(error),
            });
        }
        servers
    }

    /// The API cannot filter by names, so that this is a listing, too.
    async fn by_names(&self, names: &[&str], priority: Priority) -> Vec<Result<Vec<Server>>> {
        let mut found = Vec::new();
        for name in names {
            let page = self.page("", None, priority).await;
            found.push(
                page.map(|page| page.items.into_iter().filter(|server| server.name == *name).collect()),
            );
        }
        found
    }

    async fn page(
        &self,
        _prefix: &str,
        _marker: Option<String>,
        priority: Priority,
    ) -> Result<Page<Server, String>> {
        let answer = self.0.send(Op::ServerList, &["servers"], None, priority).await?;
        Ok(Page {
            items: field(answer, "servers")?,
            next: None,
        })
    }

    fn existence(&self, server: &Server) -> Instance {
        Instance {
            provider_id: format!("{NAME}://{}", server.id),
            ..Instance::default()
        }
    }

    async fn metadata(&self, servers: &[&Server], _priority: Priority) -> Vec<Result<Instance>> {
        let instances = servers.iter().map(|server| {
            Ok(Instance {
                addresses: vec![
                    NodeAddress::new(AddressType::Hostname, &server.name),
                    NodeAddress::new(AddressType::InternalIP, &server.address),
                ],
                ..self.existence(server)
            })
        });
        instances.collect()
    }
}
// ANCHOR_END: instances

// ANCHOR: model
part_keys! {
    /// The parts of a Service: one load balancer. Its name is unique in an account of Hill Cloud.
    enum Key {
        /// The load balancer with this name.
        LoadBalancer(String) = "lb/";
    }
}

/// The decisions about load balancers.
#[derive(Debug)]
struct Model;

/// The desired load balancer.
#[derive(Debug)]
enum Desired {
    /// None: its Service leaves.
    Absent,
    /// The present one with these fields. Nothing is created for a Service that is refused.
    Kept(Value),
    /// A load balancer with these fields, created with this body.
    Requested { fields: Value, create: Value },
}

/// How documents are compared: the order of servers and ports has no meaning.
fn rules() -> Rules {
    Rules::default().set("servers", &[]).set("ports", &["port"]).read_only(&["id", "address"])
}

fn ownership(balancer: &Document, cluster: &ClusterView) -> Ownership {
    cluster.ownership_tag.ownership(balancer.list("labels").filter_map(Value::as_str))
}

/// The IDs of the servers of the nodes that may be members.
fn servers(cluster: &ClusterView) -> Vec<&str> {
    let ids = cluster.nodes.eligible().filter_map(|node| node.view.provider_id.as_deref());
    ids.filter_map(|id| id.strip_prefix("hill://")).collect()
}

impl PartModel for Model {
    type Key = Key;
    type Directory = Listing<Document>;
    type Inputs = Option<Arc<Document>>;
    type Spec = ();
    type Facts = ();
    type Desired = Desired;
    type Observed = Option<Document>;
    type Change = DocumentChange<Op>;
    type Reply = Option<Document>;

    fn provider(&self) -> &'static str {
        NAME
    }

    fn spec(&self, _: &ServiceView, _: &ClusterView) {}

    fn parts(&self, service: &ServiceView, _: &ClusterView, _: &Listing<Document>) -> Parts<Key> {
        Parts::from(Key::LoadBalancer(default_name(&service.id)))
    }

    fn orphans(&self, snapshot: &ClusterSnapshot, listing: &Listing<Document>) -> Vec<Orphan<Key>> {
        let used: Vec<_> = snapshot.services.iter().map(|service| default_name(&service.id)).collect();
        let owned = listing.all().filter(|found| ownership(found, &snapshot.cluster) == Ownership::Ours);
        let orphans = owned.filter(|found| !used.iter().any(|name| name == found.name()));
        orphans
            .map(|found| Orphan {
                key: Key::LoadBalancer(found.name().to_owned()),
                what: format!("load balancer {}", found.name()),
                deletable: true,
            })
            .collect()
    }

    /// Refuses what the cloud cannot do, with a sentence for the Event.
    fn check(
        &self,
        _: &Key,
        members: &[Member<Self>],
        cluster: &ClusterView,
        existing: &Option<Arc<Document>>,
    ) -> CheckResult {
        let mut result = CheckResult::default();
        for member in Member::active(members) {
            let service = &member.service;
            if service.ports.iter().any(|port| port.protocol != Protocol::Tcp) {
                result.refuse(&service.id, "load balancers of Hill Cloud have only TCP ports");
            }
            let foreign = existing.as_ref().map(|found| ownership(found, cluster));
            if let Some(Ownership::Foreign(tag)) = foreign {
                result.refuse(&service.id, format!("the load balancer has the tag {tag} of another cluster"));
            }
        }
        result
    }

    fn desired(
        &self,
        Key::LoadBalancer(name): &Key,
        members: &[Member<Self>],
        cluster: &ClusterView,
        _: &Option<Arc<Document>>,
    ) -> Desired {
        let Some(member) = Member::staying(members).next() else {
            return Desired::Absent;
        };
        let mut fields = json!({});
        // Without a node that may be a member, the present members stay.
        if member.follows_nodes() && !cluster.nodes.keeps_members() {
            fields["servers"] = json!(servers(cluster));
        }
        if member.membership != Membership::Active {
            return Desired::Kept(fields);
        }
        let ports = member.service.ports.iter();
        let ports: Vec<_> =
            ports.map(|port| json!({"port": port.port, "node_port": port.node_port})).collect();
        fields["name"] = json!(name);
        fields["ports"] = json!(ports);
        let mut create = fields.clone();
        // The tag proves that it is this cluster's. Labels of people are left unchanged later.
        if let Some(tag) = cluster.ownership_tag.for_create() {
            create["labels"] = json!([tag.as_str()]);
        }
        Desired::Requested { fields, create }
    }

    fn missing(&self, key: &Key, members: &[Member<Self>], observed: &Option<Document>) -> Option<String> {
        let was_served = members.iter().any(|member| !member.service.ingress.is_empty());
        (observed.is_none() && was_served).then(|| key.to_string())
    }

    fn plan(&self, desired: &Desired, observed: &Option<Document>) -> Plan<DocumentChange<Op>> {
        let (operation, effect, body, reasons) = match (observed, desired) {
            (None, Desired::Requested { create, .. }) => {
                (Op::LoadBalancerCreate, Effect::Create, create.clone(), Vec::new())
            }
            (None, _) => return Plan::default(),
            (Some(_), Desired::Absent) => (Op::LoadBalancerDelete, Effect::Delete, Value::Null, Vec::new()),
            (Some(observed), Desired::Kept(fields) | Desired::Requested { fields, .. }) => {
                // An edited copy of what was read: fields that this program does not know are sent back unchanged.
                match rules().edit(observed, fields) {
                    Some(edit) => (Op::LoadBalancerUpdate, Effect::Change, edit.document, edit.changes),
                    None => return Plan::default(),
                }
            }
        };
        let name = body["name"].as_str().or(observed.as_ref().map(Document::name)).unwrap_or_default();
        let step = Step::new(DocumentChange {
            operation,
            effect,
            title: format!("load balancer {name}"),
            body,
        });
        Plan {
            steps: vec![step.because(reasons.join(", "))],
            blocked: Vec::new(),
        }
    }

    fn fold(
        &self,
        _: &Key,
        change: &DocumentChange<Op>,
        reply: Option<&Option<Document>>,
        observed: &mut Option<Document>,
    ) {
        rules().fold(change, reply.and_then(Option::as_ref), observed);
    }

    /// A load balancer with an address serves its Service.
    fn facts(&self, _: &Key, member: &Member<Self>, observed: &Option<Document>) -> Option<PartOutput<()>> {
        let mut effects = Effects::default();
        if !member.leaves() {
            let address = observed.as_ref()?.text("address");
            effects.ingress = Some(vec![Ingress::address(address, IpMode::Vip)]);
        }
        Some(PartOutput { facts: (), effects })
    }
}
// ANCHOR_END: model

// ANCHOR: calls
/// The calls for load balancers.
#[derive(Debug)]
struct Calls {
    api: Arc<Api>,
    servers: Finder<Servers>,
    /// One listing answers all Services.
    balancers: IndexedCache<Document>,
    credentials: CredentialsCheck,
}

#[async_trait]
impl PartCloud<Model> for Calls {
    type Ticket = ();

    async fn directory(&self, read: ReadOptions) -> Result<Arc<Listing<Document>>> {
        let api = Arc::clone(&self.api);
        let load = || async move {
            let answer = api.send(Op::LoadBalancerList, &["load-balancers"], None, read.priority).await?;
            field(answer, "load_balancers")
        };
        self.balancers.get(None, read.freshness, read.priority, load).await
    }

    async fn inputs(
        &self,
        key: &Key,
        members: &[Member<Model>],
        _: &ClusterView,
        read: ReadOptions,
    ) -> Result<GatheredInputs<Option<Arc<Document>>>> {
        let observed = self.observe(key, members, read).await?;
        Ok(GatheredInputs::from(observed.map(Arc::new)))
    }

    async fn observe(
        &self,
        Key::LoadBalancer(name): &Key,
        _: &[Member<Model>],
        read: ReadOptions,
    ) -> Result<Option<Document>> {
        let listing = self.directory(read).await?;
        Ok(listing.by_key(name).next().map(|found| (**found).clone()))
    }

    async fn send(
        &self,
        Key::LoadBalancer(name): &Key,
        change: &DocumentChange<Op>,
        observed: &Option<Document>,
        options: &SendOptions,
    ) -> Result<SendOutcome<Option<Document>, ()>> {
        let priority = options.priority;
        let id = observed.as_ref().map(Document::id).unwrap_or_default();
        let (path, body): (&[&str], _) = match change.effect {
            Effect::Create => (&["load-balancers"], Some(&change.body)),
            Effect::Change => (&["load-balancers", id], Some(&change.body)),
            Effect::Delete => (&["load-balancers", id], None),
        };
        match self.api.send(change.operation, path, body, priority).await {
            Ok(_) if change.effect == Effect::Delete => {
                self.balancers.remove(id);
                Ok(SendOutcome::Done(None))
            }
            Ok(answer) => {
                let balancer: Document = field(answer, "load_balancer")?;
                self.balancers.insert(balancer.clone());
                Ok(SendOutcome::Done(Some(balancer)))
            }
            Err(error) => {
                self.balancers.invalidate(name);
                Err(error)
            }
        }
    }

    async fn verify_scope(&self, cluster: &ClusterView, read: ReadOptions) -> Result<ScopeCheck> {
        self.credentials.run(&Nodes(self.servers.clone()), cluster, read).await
    }
}
// ANCHOR_END: calls

// ANCHOR: cloud
/// What the check of the credentials needs of the cloud: its servers.
#[derive(Debug)]
struct Nodes(Finder<Servers>);

impl Cloud for Nodes {
    fn name(&self) -> &'static str {
        NAME
    }

    fn instances(&self) -> Option<&dyn Instances> {
        Some(&self.0)
    }
}

/// The whole cloud.
#[derive(Debug)]
struct Hill {
    nodes: Nodes,
    engine: Engine<Model, Calls>,
}

impl Cloud for Hill {
    ccm_core::cloud_of_nodes!(nodes);

    fn load_balancers(&self) -> Option<&dyn LoadBalancers> {
        Some(&self.engine)
    }
}

async fn build(context: BuildContext) -> Result<Arc<dyn Cloud>> {
    let settings = load(&context)?.value;
    let gate = GateConfig {
        buckets: vec![("api", QUOTA)],
        attempt_timeout: Duration::from_secs(30),
        fence: context.fences.load_balancers.clone(),
        ..GateConfig::new(NAME)
    };
    let proxies = Proxies::of(&context.environment);
    let api = Arc::new(Api {
        http: rest::http_client(&Tls::default(), &proxies, &context.user_agent)?,
        settings,
        gate: Gate::new(gate, &context.metrics),
    });
    let servers = Finder::new(Servers(Arc::clone(&api)), &context.metrics);
    let calls = Calls {
        api,
        servers: servers.clone(),
        balancers: IndexedCache::new("hill_load_balancers", &context.metrics),
        credentials: CredentialsCheck::default(),
    };
    Ok(Arc::new(Hill {
        nodes: Nodes(servers),
        engine: Engine::new(Model, Arc::new(calls), context.plan.clone()),
    }))
}
// ANCHOR_END: cloud
