//! The [`PartCloud`]: reads, writes and polls of load balancers.
//!
//! All reads of load balancers share one listing, which is updated by our own writes and polls. A change is one `POST`, `PUT`
//! or `DELETE`.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
    time::Duration,
};

use ccm_core::{
    Error, ErrorKind, Freshness, InstanceState, NodeView, Priority, Result, Retry, async_trait,
    client::{Cache, CacheConfig, ClientMetrics, IndexedCache, Listing},
    instances::existence,
    load_balancer::{ClusterView, Effect, ReadOptions, ServiceId},
    plan::{
        CredentialsCheck, GatheredInputs, Member, Outcome, PartCloud, PollIntervals, PollTiming, ScopeCheck,
        Wait,
    },
};
use parking_lot::Mutex;
use serde_json::Value;
use tokio::time::Instant;

use super::{
    annotations,
    desired::{self, CertificateRef},
    document::{Balancer, RULES, certificate, is_active, is_new},
    model::{Change, Inputs, Key, Model, Observed, PartMember, Reply},
};
use crate::{
    NAME, Nodes,
    client::{Certificate, Op},
    config::{LbType, Settings, is_uuid},
    instances::droplet_id,
};

/// Time limit for a load balancer to become active.
const CREATE_TIMEOUT: Duration = Duration::from_secs(900);
/// Usual time until a load balancer is active.
const USUAL_CREATE_TIME: Duration = Duration::from_secs(60);
/// Maximum age of the listing that is shared by polls of several load balancers.
const SHARED_POLL: Duration = Duration::from_millis(500);
/// Maximum age of cached certificates, which rarely change.
const CERTIFICATE_AGE: Duration = Duration::from_secs(300);
/// Maximum age of a load balancer's document that is changed and sent back.
const DOCUMENT_AGE: Duration = Duration::from_secs(5);
/// A droplet that did not exist is sent again after this, in case the answer was wrong.
const MISSING_AGE: Duration = Duration::from_secs(300);
/// Maximum age of droplets by name: a pass over all load balancers may take a minute.
const NAMES_AGE: Duration = Duration::from_secs(60);
/// Maximum number of cached certificates.
const CERTIFICATES: usize = 1000;

/// The API calls for load balancers.
#[derive(Debug)]
pub(crate) struct Calls {
    nodes: Nodes,
    settings: Arc<Settings>,
    balancers: IndexedCache<Balancer>,
    certificates: Cache<CertificateRef, Option<Certificate>>,
    /// The droplets of nodes without a provider ID, by the list of their names.
    names: Cache<Vec<String>, BTreeMap<String, u64>>,
    credentials: CredentialsCheck,
    polls: Mutex<PollIntervals<Key>>,
    /// Droplets of nodes that do not exist, and when that was read.
    missing: Mutex<BTreeMap<u64, Instant>>,
    /// Services whose certificate was renewed under another id.
    renewed: Mutex<BTreeSet<ServiceId>>,
}

impl Calls {
    /// The calls with the API of these nodes.
    pub(crate) fn new(nodes: Nodes, settings: Arc<Settings>, metrics: &ClientMetrics) -> Self {
        let certificates = CacheConfig::bounded("digitalocean_certificates", CERTIFICATES, CERTIFICATE_AGE);
        let names = CacheConfig::bounded("digitalocean_node_names", 1, NAMES_AGE);
        Self {
            nodes,
            settings,
            balancers: IndexedCache::new("digitalocean_load_balancers", metrics),
            certificates: Cache::new(certificates, metrics),
            names: Cache::new(names, metrics),
            credentials: CredentialsCheck::default(),
            polls: Mutex::new(PollIntervals::new(|kind| PollTiming {
                usual: (kind == Effect::Create).then_some(USUAL_CREATE_TIME),
                ..PollTiming::default()
            })),
            missing: Mutex::default(),
            renewed: Mutex::default(),
        }
    }

    /// All load balancers of the account. `key`: the ID or name of the requested one.
    async fn listing(&self, key: Option<&str>, read: ReadOptions) -> Result<Arc<Listing<Balancer>>> {
        let api = self.nodes.api.clone();
        let load = || async move { api.list(Op::LoadBalancerList, &[], read.priority).await };
        self.balancers.get(key, read.freshness, read.priority, load).await
    }

    /// Invalidates the listing after another controller tagged a load balancer.
    pub(crate) fn tagged(&self, id: &str) {
        self.balancers.invalidate(id);
    }

    /// Reads one load balancer.
    async fn read(&self, id: &str, priority: Priority) -> Result<Option<Balancer>> {
        let found: Option<Balancer> = self.nodes.api.find(Op::LoadBalancerGet, id, priority).await?;
        match &found {
            Some(found) => self.balancers.insert(found.clone()),
            None => self.balancers.remove(id),
        }
        Ok(found)
    }

    /// The certificate; `None` if it does not exist. Absence is never read from the cache.
    async fn certificate(
        &self,
        named: &CertificateRef,
        freshness: Freshness,
        priority: Priority,
    ) -> Result<Option<Certificate>> {
        for freshness in [freshness, Freshness::now()] {
            let (api, certificate) = (self.nodes.api.clone(), named.clone());
            let load = || async move {
                match certificate {
                    CertificateRef::Id(id) => api.find(Op::CertificateGet, &id, priority).await,
                    CertificateRef::Name(name) => {
                        let filter = [("name", name.as_str())];
                        let found = api.list(Op::CertificateList, &filter, priority).await?;
                        let is_it = |found: &Certificate| found.name == name;
                        Ok(found.into_iter().find(is_it))
                    }
                }
            };
            let found = self.certificates.get(named.clone(), freshness, priority, load);
            let found = found.await?;
            if found.is_some() {
                return Ok((*found).clone());
            }
        }
        Ok(None)
    }

    /// The ID of a Service's certificate, and whether it is the successor of a renewed Let's Encrypt certificate. `current`:
    /// the certificate of the load balancer.
    async fn resolve(
        &self,
        named: &CertificateRef,
        current: Option<&str>,
        read: ReadOptions,
    ) -> Result<(String, bool)> {
        if let CertificateRef::Id(id) = named
            && current.is_none_or(|current| current == id)
        {
            return Ok((id.clone(), false));
        }
        let age = match read.freshness {
            Freshness::AtMost(age) => age.min(CERTIFICATE_AGE),
            // A background resync reads many load balancers, and certificates rarely change.
            Freshness::After(_) => CERTIFICATE_AGE,
        };
        let (cached, priority) = (Freshness::AtMost(age), read.priority);
        let mut annotated = self.certificate(named, cached, priority).await?;
        // The cached certificate may be the one before a renewal.
        let differs = |found: &Certificate| current.is_some_and(|current| current != found.id);
        if matches!(named, CertificateRef::Name(_)) && annotated.as_ref().is_some_and(differs) {
            annotated = self.certificate(named, Freshness::now(), priority).await?;
        }
        // A name refers to the present certificate. An ID may be that of a certificate that was renewed.
        if let (CertificateRef::Id(_), Some(current)) = (named, current) {
            let current = CertificateRef::Id(current.to_owned());
            let current = self.certificate(&current, cached, priority).await?;
            let is_successor = |current: &Certificate| {
                let same_name = annotated.as_ref().is_none_or(|found| found.name == current.name);
                current.kind == "lets_encrypt" && same_name
            };
            if let Some(current) = current.filter(is_successor) {
                return Ok((current.id, true));
            }
        }
        let text = match named {
            CertificateRef::Id(id) => format!("certificate with the ID {id} not found"),
            CertificateRef::Name(name) => format!("certificate with the name {name:?} not found"),
        };
        let found = annotated.map(|found| (found.id, false));
        found.ok_or_else(|| Error::new(ErrorKind::InvalidSpec, text))
    }

    /// The droplets of the nodes that have no provider ID yet. All load balancers share the answer.
    async fn by_name(&self, cluster: &ClusterView, priority: Priority) -> Result<Arc<BTreeMap<String, u64>>> {
        let nodes = cluster.nodes.eligible().map(|node| &node.view);
        let nameless = nodes.filter(|node| node.provider_id.as_deref().is_none_or(str::is_empty));
        let nameless: Vec<_> = nameless.cloned().collect();
        if nameless.is_empty() {
            return Ok(Arc::default());
        }
        let names = nameless.iter().map(|node| node.name.clone()).collect();
        let droplets = self.nodes.droplets.clone();
        let load = || async move {
            let answers = existence(&droplets, nameless, Freshness::now(), priority).await;
            let mut by_name = BTreeMap::new();
            for (node, answer) in answers {
                match answer {
                    Ok(InstanceState::Present(found)) => {
                        let id = droplet_id(&found.provider_id).ok().flatten();
                        by_name.extend(id.map(|id| (node.name.clone(), id)));
                    }
                    // Two droplets with the name. The others are unknown only now, and must not lose their traffic.
                    Err(error) if error.kind() != ErrorKind::InvalidSpec => return Err(error),
                    // It is added when it has its provider ID.
                    _ => {}
                }
            }
            Ok(by_name)
        };
        let age = Freshness::AtMost(NAMES_AGE);
        self.names.get(names, age, priority, load).await
    }

    /// Reads which droplets of a refused body do not exist: the API refuses all droplets if one is missing.
    async fn find_missing(&self, body: &Value, priority: Priority) -> bool {
        let ids = body.get("droplet_ids").and_then(Value::as_array);
        let nodes = ids.into_iter().flatten().map(|id| {
            Arc::new(NodeView {
                name: id.to_string(),
                provider_id: Some(format!("{NAME}://{id}")),
                ..NodeView::default()
            })
        });
        let answers = existence(&self.nodes.droplets, nodes, Freshness::now(), priority).await;
        let absent = answers.into_iter().filter_map(|(node, answer)| match answer {
            Ok(InstanceState::Absent) => node.name.parse::<u64>().ok(),
            _ => None,
        });
        let mut missing = self.missing.lock();
        let before = missing.len();
        missing.extend(absent.map(|id| (id, Instant::now())));
        missing.len() > before
    }

    /// Invalidates cached objects after a failed write, and explains a refusal because of a missing droplet.
    async fn failed(&self, change: &Change, id: &str, error: Error, priority: Priority) -> Error {
        let name = change.body["name"].as_str().unwrap_or_default();
        self.balancers.invalidate(if id.is_empty() { name } else { id });
        let is_refused = error.kind() == ErrorKind::InvalidSpec;
        if !is_refused || !self.find_missing(&change.body, priority).await {
            return error;
        }
        let text = "a droplet of the load balancer no longer exists";
        let busy = Error::new(ErrorKind::Conflict, text).with_source(error);
        // The next pass skips the droplet.
        busy.with_retry(Retry::Fixed(Duration::from_secs(1)))
    }
}

#[async_trait]
impl PartCloud<Model> for Calls {
    /// The load balancer's ID.
    type Ticket = String;

    async fn directory(&self, read: ReadOptions) -> Result<Arc<Listing<Balancer>>> {
        self.listing(None, read).await
    }

    async fn inputs(
        &self,
        key: &Key,
        members: &[PartMember],
        cluster: &ClusterView,
        read: ReadOptions,
    ) -> Result<GatheredInputs<Inputs>> {
        if members.iter().all(Member::leaves) {
            // The load balancer is deleted only if it is certain that no Service disowned it.
            for member in members {
                desired::is_disowned(&member.service)?;
            }
        }
        // An update replaces the whole document, also fields that others have changed.
        let freshness = match read.freshness {
            Freshness::AtMost(age) => Freshness::AtMost(age.min(DOCUMENT_AGE)),
            after => after,
        };
        let recent = ReadOptions { freshness, ..read };
        let existing = match key {
            Key::Balancer(id) => self.listing(None, recent).await?.by_id(id).cloned(),
            Key::New(_) => None,
        };
        let current = existing.as_deref().and_then(certificate);
        let (mut certificates, mut refused) = (BTreeMap::new(), Vec::new());
        for PartMember { service, .. } in PartMember::active(members) {
            // The annotation has no effect on the other type, so that a missing certificate does not matter.
            let kind = desired::balancer_type(service, &self.settings, existing.as_deref());
            let named = CertificateRef::of(service).filter(|_| kind == LbType::Regional);
            let Some(named) = named else {
                continue;
            };
            match self.resolve(&named, current, read).await {
                Ok((id, renewed)) => {
                    let mut known = self.renewed.lock();
                    match renewed {
                        true => known.insert(service.id.clone()),
                        false => known.remove(&service.id),
                    };
                    certificates.insert(service.id.clone(), id);
                }
                Err(error) => refused.push((service.id.clone(), error)),
            }
        }
        let by_name = self.by_name(cluster, read.priority).await?;
        let mut missing = self.missing.lock();
        if !missing.is_empty() {
            let nodes = cluster.nodes.all().iter();
            let ids = nodes.filter_map(|node| droplet_id(node.view.provider_id.as_deref()?).ok()?);
            let known: BTreeSet<u64> = ids.chain(by_name.values().copied()).collect();
            missing.retain(|id, since| known.contains(id) && since.elapsed() < MISSING_AGE);
        }
        let inputs = Inputs {
            existing,
            certificates,
            by_name,
            missing: missing.keys().copied().collect(),
        };
        Ok(GatheredInputs { inputs, refused })
    }

    async fn observe(&self, key: &Key, members: &[PartMember], read: ReadOptions) -> Result<Observed> {
        let (Key::Balancer(text) | Key::New(text)) = key;
        let listing = self.listing(Some(text), read).await?;
        let services = || members.iter().map(|member| &member.service);
        let annotated = services().filter_map(|service| service.annotation(annotations::ID));
        let own = Some(text.as_str()).filter(|_| matches!(key, Key::Balancer(_)));
        // The part's own comes first. Annotations may have changed since the Service got it.
        let annotated = annotated.filter(|id| is_uuid(id) && own != Some(*id));
        let ids: Vec<&str> = own.into_iter().chain(annotated).collect();
        let by_id = ids.iter().find_map(|id| listing.by_id(id));
        let by_name = || match key {
            Key::Balancer(_) => None,
            Key::New(name) => listing.by_key(name).find(|found| found.name() == name),
        };
        let mut balancer = by_id.or_else(by_name).map(|balancer| (**balancer).clone());
        // A listing does not prove that a load balancer is absent: it may be old, or have changed between two pages.
        for id in ids {
            if balancer.is_none() {
                balancer = self.read(id, read.priority).await?;
            }
        }
        let renewed = self.renewed.lock();
        let services = services().map(|service| &service.id);
        Ok(Observed {
            balancer,
            leaving: members.iter().all(Member::leaves),
            renewed: services.filter(|id| renewed.contains(*id)).cloned().collect(),
        })
    }

    async fn send(
        &self,
        _: &Key,
        change: &Change,
        observed: &Observed,
        priority: Priority,
    ) -> Result<Outcome<Reply, String>> {
        let before = observed.balancer.as_ref();
        let id = before.map(Balancer::id).unwrap_or_default();
        let (operation, body) = (change.operation, &change.body);
        let path = Some(id).filter(|_| change.effect != Effect::Create);
        let path: Vec<_> = path.into_iter().collect();
        let sent: Result<Reply> = if change.effect == Effect::Delete {
            match self.nodes.api.send(operation, &path, &[], body, priority).await {
                Err(error) if error.kind() != ErrorKind::NotFound => Err(error),
                _ => Ok(None),
            }
        } else {
            let sent = self.nodes.api.write(operation, &path, body, priority).await;
            sent.map(Some)
        };
        let reply = match sent {
            Ok(reply) => reply,
            Err(error) => return Err(self.failed(change, id, error, priority).await),
        };
        match (before, &reply) {
            (_, None) => self.balancers.remove(id),
            (Some(before), reply) => self.balancers.insert(RULES.after(before, body, reply.as_ref())),
            (None, Some(balancer)) => {
                self.balancers.insert(balancer.clone());
                if !is_active(balancer) {
                    let ticket = balancer.id().to_owned();
                    let key = Key::Balancer(ticket.clone());
                    let poll = self.polls.lock().accepted(&key, Effect::Create);
                    let wait = Wait {
                        poll,
                        deadline: CREATE_TIMEOUT,
                    };
                    return Ok(Outcome::Accepted { reply, ticket, wait });
                }
            }
        }
        Ok(Outcome::Done(reply))
    }

    async fn poll(&self, key: &Key, id: &String, priority: Priority) -> Result<Option<Duration>> {
        let polled = Instant::now();
        let (_, waiting) = self.polls.lock().since(key);
        let balancer = if waiting > 1 {
            let freshness = Freshness::AtMost(SHARED_POLL);
            let listing = self.listing(None, ReadOptions { freshness, priority }).await?;
            listing.by_id(id).map(|balancer| (**balancer).clone())
        } else {
            self.read(id, priority).await?
        };
        let mut polls = self.polls.lock();
        let text = match balancer {
            Some(balancer) if is_new(&balancer) => {
                return Ok(Some(polls.not_ended(key, polled)));
            }
            Some(balancer) if is_active(&balancer) => {
                polls.ended(key, Some(polled));
                return Ok(None);
            }
            Some(balancer) => format!("the load balancer has the status {}", balancer.text("status")),
            None => "the load balancer was deleted while it was being created".to_owned(),
        };
        polls.ended(key, None);
        Err(Error::new(ErrorKind::Unexpected, text))
    }

    async fn is_pending(&self, _: &Key, observed: &Observed, priority: Priority) -> Result<bool> {
        let Some(balancer) = &observed.balancer else {
            return Ok(false);
        };
        let now = self.read(balancer.id(), priority).await?;
        Ok(now.as_ref().is_some_and(is_new))
    }

    async fn verify_scope(&self, cluster: &ClusterView, read: ReadOptions) -> Result<ScopeCheck> {
        self.credentials.run(&self.nodes, cluster, read).await
    }
}
