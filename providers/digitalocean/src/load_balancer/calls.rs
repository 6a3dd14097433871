//! The [`PartCloud`]: reads, writes and polls of load balancers.
//!
//! All reads of load balancers share one listing, which our own writes and polls correct. A change is one `POST`, `PUT` or
//! `DELETE`.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
    time::Duration,
};

use ccm_core::{
    Error, ErrorKind, Freshness, InstanceQuery, InstanceState, Need, NodeView, Priority, Result, Retry,
    async_trait,
    client::{Cache, CacheConfig, ClientMetrics, Indexed as _, IndexedCache, Listing},
    load_balancer::{ClusterView, Effect, ReadOptions, ServiceId},
    plan::{
        CredentialsCheck, GatheredInputs, Membership, Outcome, PartCloud, PollIntervals, PollTiming,
        ScopeCheck, Wait,
    },
};
use http::Method;
use parking_lot::Mutex;
use serde_json::Value;
use tokio::time::Instant;

use super::{
    desired::CertificateRef,
    document::{Balancer, OneBalancer},
    model::{Change, Inputs, Key, Model, Observed, PartMember, Reply},
};
use crate::{
    NAME, View,
    client::{Api, Certificate, OneCertificate, Op},
    instances::droplet_id,
};

/// How long a load balancer may take to become active.
const PATIENCE: Duration = Duration::from_secs(900);
/// How long it usually takes.
const USUAL: Duration = Duration::from_secs(60);
/// If many load balancers are waited for, one listing is good for this long.
const SHARED_POLL: Duration = Duration::from_millis(500);
/// Certificates hardly change.
const CERTIFICATE_AGE: Duration = Duration::from_secs(300);
/// How many certificates are remembered.
const CERTIFICATES: usize = 1000;

/// The calls.
#[derive(Debug)]
pub(crate) struct Calls {
    api: Api,
    view: Arc<View>,
    balancers: IndexedCache<Balancer>,
    certificates: Cache<CertificateRef, Option<Certificate>>,
    credentials: CredentialsCheck,
    polls: Mutex<PollIntervals<Key>>,
    /// Droplets of nodes that the API does not know.
    gone: Mutex<BTreeSet<u64>>,
    /// Services whose certificate was renewed under another id.
    renewed: Mutex<BTreeSet<ServiceId>>,
}

impl Calls {
    /// Calls of this API. `view`: through which nodes are seen.
    pub(crate) fn new(api: &Api, view: Arc<View>, metrics: &ClientMetrics) -> Self {
        let certificates = CacheConfig {
            max_entries: Some(CERTIFICATES),
            max_age: Some(CERTIFICATE_AGE),
            ..CacheConfig::new("digitalocean_certificates")
        };
        Self {
            api: api.clone(),
            view,
            balancers: IndexedCache::new("digitalocean_load_balancers", metrics),
            certificates: Cache::new(certificates, metrics),
            credentials: CredentialsCheck::default(),
            polls: Mutex::new(PollIntervals::new(|kind| PollTiming {
                usual: (kind == Effect::Create).then_some(USUAL),
                ..PollTiming::default()
            })),
            gone: Mutex::default(),
            renewed: Mutex::default(),
        }
    }

    /// All load balancers of the account. `key`: the id or the name of the one that matters.
    async fn listing(&self, key: Option<&str>, read: ReadOptions) -> Result<Arc<Listing<Balancer>>> {
        let api = self.api.clone();
        let load = || async move {
            api.list(Op::LoadBalancerList, "load_balancers", &[], read.priority)
                .await
        };
        self.balancers.get(key, read.freshness, load).await
    }

    /// Records that a load balancer was tagged by another call, so that the next listing is a new one.
    pub(crate) fn tagged(&self, id: &str) {
        self.balancers.invalidate(id);
    }

    /// Reads one load balancer.
    async fn read(&self, id: &str, priority: Priority) -> Result<Option<Balancer>> {
        let path = ["load_balancers", id];
        let found: Option<OneBalancer> = self.api.find(Op::LoadBalancerGet, &path, priority).await?;
        match &found {
            Some(found) => self.balancers.insert(found.load_balancer.clone()),
            None => self.balancers.remove(id),
        }
        Ok(found.map(|found| found.load_balancer))
    }

    /// The certificate; `None` if it does not exist. A cached answer never says so.
    async fn certificate(&self, named: &CertificateRef, read: ReadOptions) -> Result<Option<Certificate>> {
        let freshness = match read.freshness {
            Freshness::AtMost(age) => Freshness::AtMost(age.min(CERTIFICATE_AGE)),
            // A slow verification reads many load balancers, whose certificates hardly changed.
            Freshness::After(_) => Freshness::AtMost(CERTIFICATE_AGE),
        };
        for freshness in [freshness, Freshness::now()] {
            let (api, wanted, priority) = (self.api.clone(), named.clone(), read.priority);
            let load = || async move {
                match wanted {
                    CertificateRef::Id(id) => {
                        let path = ["certificates", id.as_str()];
                        let found: Option<OneCertificate> =
                            api.find(Op::CertificateGet, &path, priority).await?;
                        Ok(found.map(|found| found.certificate))
                    }
                    CertificateRef::Name(name) => {
                        let filter = [("name", name.as_str())];
                        let found: Vec<Certificate> = api
                            .list(Op::CertificateList, "certificates", &filter, priority)
                            .await?;
                        Ok(found.into_iter().find(|found| found.name == name))
                    }
                }
            };
            let found = self.certificates.get(named.clone(), freshness, load).await?;
            if found.is_some() {
                return Ok((*found).clone());
            }
        }
        Ok(None)
    }

    /// The id of the certificate for a Service whose load balancer has `current`, and whether Let's Encrypt renewed the one
    /// that the Service names: then the load balancer already has its successor.
    async fn resolve(
        &self,
        named: &CertificateRef,
        current: Option<&str>,
        read: ReadOptions,
    ) -> Result<(String, bool)> {
        let missing = |text: String| Error::new(ErrorKind::InvalidSpec, text);
        match named {
            CertificateRef::Name(name) => match self.certificate(named, read).await? {
                Some(found) => Ok((found.id, false)),
                None => Err(missing(format!("there is no certificate with the name {name:?}"))),
            },
            CertificateRef::Id(id) if current.is_none_or(|current| current == id) => Ok((id.clone(), false)),
            CertificateRef::Id(id) => {
                let annotated = self.certificate(named, read).await?;
                let current = match current {
                    Some(current) => {
                        self.certificate(&CertificateRef::Id(current.to_owned()), read)
                            .await?
                    }
                    None => None,
                };
                match (annotated, current.filter(Certificate::is_renewed)) {
                    (None, Some(current)) => Ok((current.id, true)),
                    (Some(annotated), Some(current)) if annotated.name == current.name => {
                        Ok((current.id, true))
                    }
                    (Some(annotated), _) => Ok((annotated.id, false)),
                    (None, None) => Err(missing(format!("there is no certificate with the id {id}"))),
                }
            }
        }
    }

    /// The droplets of the nodes that have no provider ID yet.
    async fn by_name(&self, cluster: &ClusterView, read: ReadOptions) -> BTreeMap<String, u64> {
        let nameless = cluster.nodes.eligible().filter(|node| {
            let id = node.view.provider_id.as_deref();
            id.is_none_or(str::is_empty)
        });
        let queries: Vec<_> = nameless
            .map(|node| InstanceQuery {
                node: Arc::clone(&node.view),
                need: Need::Existence,
            })
            .collect();
        if queries.is_empty() {
            return BTreeMap::new();
        }
        let answers = self.view.describe(&queries, read.freshness, read.priority).await;
        let pairs = queries
            .iter()
            .zip(answers)
            .filter_map(|(query, answer)| match answer {
                // A node that cannot be found joins later.
                Ok(InstanceState::Present(instance)) => {
                    let id = droplet_id(&instance.provider_id).ok().flatten()?;
                    Some((query.node.name.clone(), id))
                }
                _ => None,
            });
        pairs.collect()
    }

    /// Finds out which droplets of a refused body do not exist: one missing droplet makes the API refuse all of them.
    async fn find_gone(&self, body: &Value, priority: Priority) -> bool {
        let ids = body
            .get("droplet_ids")
            .and_then(Value::as_array)
            .into_iter()
            .flatten();
        let ids: Vec<u64> = ids.filter_map(Value::as_u64).collect();
        let queries: Vec<_> = ids
            .iter()
            .map(|id| InstanceQuery {
                node: Arc::new(NodeView {
                    name: id.to_string(),
                    provider_id: Some(format!("{NAME}://{id}")),
                    ..NodeView::default()
                }),
                need: Need::Existence,
            })
            .collect();
        let answers = self.view.describe(&queries, Freshness::now(), priority).await;
        let absent = ids
            .into_iter()
            .zip(answers)
            .filter_map(|(id, answer)| match answer {
                Ok(InstanceState::Absent) => Some(id),
                _ => None,
            });
        let mut gone = self.gone.lock();
        let before = gone.len();
        gone.extend(absent);
        gone.len() > before
    }

    /// Invalidates what a failed write may have changed, and explains a refusal because of a missing droplet.
    async fn failed(&self, key: &str, body: Option<&Value>, error: Error, priority: Priority) -> Error {
        self.balancers.invalidate(key);
        let refused = error.kind() == ErrorKind::InvalidSpec;
        match body.filter(|_| refused) {
            Some(body) if self.find_gone(body, priority).await => {
                let text = "a droplet of the load balancer does not exist any more";
                let busy = Error::new(ErrorKind::Conflict, text).with_source(error);
                // The next pass leaves it out.
                busy.with_retry(Retry::Fixed(Duration::from_secs(1)))
            }
            _ => error,
        }
    }
}

#[async_trait]
impl PartCloud<Model> for Calls {
    /// The load balancer's id.
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
        let existing = match key {
            Key::Balancer(id) => self.listing(None, read).await?.by_id(id).cloned(),
            Key::New(_) => None,
        };
        let current = existing.as_deref().and_then(Balancer::certificate);
        let mut refused = Vec::new();
        let mut certificates = BTreeMap::new();
        let active = members
            .iter()
            .filter(|member| member.membership == Membership::Active);
        for (service, named) in
            active.filter_map(|member| Some((&member.service, CertificateRef::of(&member.service)?)))
        {
            match self.resolve(&named, current, read).await {
                Ok((id, renewed)) => {
                    let mut known = self.renewed.lock();
                    if renewed {
                        known.insert(service.id.clone());
                    } else {
                        known.remove(&service.id);
                    }
                    certificates.insert(service.id.clone(), id);
                }
                Err(error) => refused.push((service.id.clone(), error)),
            }
        }
        let by_name = self.by_name(cluster, read).await;
        let mut gone = self.gone.lock();
        if !gone.is_empty() {
            let ids = cluster
                .nodes
                .all()
                .iter()
                .filter_map(|node| node.view.provider_id.as_deref());
            let known: BTreeSet<u64> = ids.filter_map(|id| droplet_id(id).ok().flatten()).collect();
            gone.retain(|id| known.contains(id));
        }
        let inputs = Inputs {
            existing,
            certificates,
            by_name,
            gone: gone.clone(),
        };
        Ok(GatheredInputs { inputs, refused })
    }

    async fn observe(&self, key: &Key, members: &[PartMember], read: ReadOptions) -> Result<Observed> {
        let text = match key {
            Key::Balancer(text) | Key::New(text) => text,
        };
        let listing = self.listing(Some(text), read).await?;
        let mut ids: Vec<&str> = match key {
            Key::Balancer(id) => vec![id],
            Key::New(_) => Vec::new(),
        };
        let annotated = members
            .iter()
            .filter_map(|member| member.service.annotation(super::annotations::ID));
        ids.extend(annotated.filter(|id| crate::config::is_uuid(id)));
        let by_name = |name: &String| listing.by_key(name).find(|found| found.name() == name);
        let mut balancer = ids.iter().find_map(|id| listing.by_id(id));
        if let (None, Key::New(name)) = (balancer, key) {
            balancer = by_name(name);
        }
        let mut balancer = balancer.map(|balancer| (**balancer).clone());
        if balancer.is_none() && matches!(read.freshness, Freshness::AtMost(_)) {
            // A listing that may be old proves nothing.
            for id in ids {
                balancer = self.read(id, read.priority).await?;
                if balancer.is_some() {
                    break;
                }
            }
        }
        let renewed = self.renewed.lock();
        let renewed = members
            .iter()
            .map(|member| &member.service.id)
            .filter(|id| renewed.contains(*id));
        Ok(Observed {
            balancer,
            leaving: members
                .iter()
                .all(|member| member.membership == Membership::Leaving),
            renewed: renewed.cloned().collect(),
        })
    }

    async fn send(
        &self,
        _: &Key,
        change: &Change,
        observed: &Observed,
        priority: Priority,
    ) -> Result<Outcome<Reply, String>> {
        let id = observed
            .balancer
            .as_ref()
            .map(|balancer| balancer.id().to_owned())
            .unwrap_or_default();
        let path = ["load_balancers", id.as_str()];
        match change {
            Change::Create { name, body } => {
                let path = ["load_balancers"];
                let sent = self
                    .api
                    .write(Op::LoadBalancerCreate, Method::POST, &path, body, priority)
                    .await;
                let created: OneBalancer = match sent {
                    Ok(created) => created,
                    Err(error) => return Err(self.failed(name, Some(body), error, priority).await),
                };
                let balancer = created.load_balancer;
                self.balancers.insert(balancer.clone());
                if balancer.is_active() {
                    return Ok(Outcome::Done(Reply(Some(balancer))));
                }
                let id = balancer.id().to_owned();
                let poll = self
                    .polls
                    .lock()
                    .accepted(&Key::Balancer(id.clone()), Effect::Create);
                Ok(Outcome::Accepted {
                    reply: Reply(Some(balancer)),
                    ticket: id,
                    wait: wait(poll),
                })
            }
            Change::Update { body, .. } => {
                let sent = self
                    .api
                    .write(Op::LoadBalancerUpdate, Method::PUT, &path, body, priority)
                    .await;
                let updated: OneBalancer = match sent {
                    Ok(updated) => updated,
                    Err(error) => return Err(self.failed(&id, Some(body), error, priority).await),
                };
                let reply = updated.load_balancer;
                if let Some(before) = &observed.balancer {
                    self.balancers.insert(before.after(body, Some(&reply)));
                }
                Ok(Outcome::Done(Reply(Some(reply))))
            }
            Change::Delete { .. } => {
                let sent = self
                    .api
                    .execute(Op::LoadBalancerDelete, Method::DELETE, &path, None, priority)
                    .await;
                match sent {
                    Err(error) if error.kind() != ErrorKind::NotFound => {
                        return Err(self.failed(&id, None, error, priority).await);
                    }
                    _ => self.balancers.remove(&id),
                }
                Ok(Outcome::Done(Reply(None)))
            }
        }
    }

    async fn poll(&self, key: &Key, id: &String, priority: Priority) -> Result<Option<Wait>> {
        let polled = Instant::now();
        let (_, waiting) = self.polls.lock().since(key);
        let balancer = if waiting > 1 {
            let freshness = Freshness::AtMost(SHARED_POLL);
            let listing = self.listing(None, ReadOptions { freshness, priority }).await?;
            listing.by_id(id).map(|balancer| (**balancer).clone())
        } else {
            self.read(id, priority).await?
        };
        let failed = |text: String| {
            self.polls.lock().ended(key, None);
            Err(Error::new(ErrorKind::Unexpected, text))
        };
        match balancer {
            Some(balancer) if balancer.is_new() => Ok(Some(wait(self.polls.lock().not_ended(key, polled)))),
            Some(balancer) if balancer.is_active() => {
                self.polls.lock().ended(key, Some(polled));
                Ok(None)
            }
            Some(balancer) => failed(format!(
                "the load balancer has the status {}",
                balancer.text("status")
            )),
            None => failed("the load balancer was deleted while it was being created".to_owned()),
        }
    }

    async fn is_pending(&self, _: &Key, observed: &Observed, priority: Priority) -> Result<bool> {
        let Some(balancer) = &observed.balancer else {
            return Ok(false);
        };
        let now = self.read(balancer.id(), priority).await?;
        Ok(now.is_some_and(|balancer| balancer.is_new()))
    }

    async fn verify_scope(&self, cluster: &ClusterView, read: ReadOptions) -> Result<ScopeCheck> {
        self.credentials.run(&*self.view, cluster, read).await
    }
}

fn wait(poll: Duration) -> Wait {
    Wait {
        poll,
        deadline: PATIENCE,
    }
}
