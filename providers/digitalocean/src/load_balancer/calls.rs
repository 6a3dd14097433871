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
    client::{Cache, CacheConfig, ClientMetrics, IndexedCache, Listing, provider_metrics},
    instances::existence,
    load_balancer::{ClusterView, Effect, ReadOptions, ServiceId, ServiceView},
    plan::{
        CredentialsCheck, GatheredInputs, Member, PartCloud, PollIntervals, PollTiming, ScopeCheck,
        SendOptions, SendOutcome, Wait,
    },
};
use parking_lot::Mutex;
use prometheus_client::metrics::gauge::Gauge;
use serde_json::Value;
use tokio::time::Instant;
use tracing::{debug, info, warn};

use super::{
    annotations,
    desired::{self, CertificateRef, Reading},
    document::{Balancer, certificate, dropped, field, has_tags, is_active, is_new, tags, written},
    model::{
        BalancerChange, BalancerDirectory, BalancerInputs, BalancerKey, BalancerReply, Model,
        ObservedBalancer, PartMember, TagChange,
    },
    ownership::{ClusterIdentity, droplets_of},
};
use crate::{
    NAME, Nodes,
    client::{Certificate, Op},
    config::{LbType, Settings, is_uuid},
    instances::droplet_id,
    tags as tags_api,
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
/// The shortest and the longest pause after a listing that failed.
const SHORTEST_PAUSE: Duration = Duration::from_secs(5);
const LONGEST_PAUSE: Duration = Duration::from_secs(300);
/// A change that the API did not apply is sent again after this, in case it does by then.
const DROPPED_AGE: Duration = Duration::from_secs(24 * 3600);
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
    polls: Mutex<PollIntervals<BalancerKey>>,
    /// Droplets of nodes that do not exist, and when that was read.
    missing: Mutex<BTreeMap<u64, Instant>>,
    /// Services whose certificate was renewed under another id.
    renewed: Mutex<BTreeSet<ServiceId>>,
    /// The last directory. It is replaced only if its contents are.
    directory: Mutex<Option<Arc<BalancerDirectory>>>,
    /// The last listing that failed.
    failed_listing: Arc<Mutex<Option<FailedListing>>>,
    /// What distinguishes this cluster's load balancers, as of the last pass.
    identity: Mutex<Arc<ClusterIdentity>>,
    /// The changes of load balancers that the API accepted and did not apply, by ID.
    dropped: Mutex<BTreeMap<String, DroppedChanges>>,
    /// The tags that this process has written, by the IDs of load balancers.
    written_tags: Mutex<BTreeMap<String, BTreeSet<String>>>,
    tag_metrics: TagMetrics,
}

/// Changes of a load balancer that the API accepted and did not apply.
#[derive(Clone, Debug)]
struct DroppedChanges {
    sent: Instant,
    changes: BTreeSet<String>,
}

/// The certificate of a Service.
struct ResolvedCertificate {
    id: String,
    /// It is the successor of a renewed Let's Encrypt certificate, which the Service names.
    is_renewed: bool,
}

/// A listing that failed. Until the pause is over, load balancers are read by their IDs.
#[derive(Clone, Debug)]
struct FailedListing {
    error: Error,
    pause_ends: Instant,
    /// A load balancer could not be read alone either: the API fails, and more requests do not help.
    singles_fail: bool,
}

impl FailedListing {
    fn new(error: Error, began: Instant) -> Self {
        Self {
            error,
            pause_ends: Self::end_of_pause(began),
            singles_fail: false,
        }
    }

    /// The end of the pause after a read that began then and failed now. The pause is longer than the read took, so that
    /// passes do not always wait for a read.
    fn end_of_pause(began: Instant) -> Instant {
        let took = began.elapsed();
        Instant::now() + took.saturating_mul(4).clamp(SHORTEST_PAUSE, LONGEST_PAUSE)
    }
}

/// Whether listings fail while the API works, so that single load balancers may be readable.
fn is_only_listing(error: &Error) -> bool {
    matches!(error.kind(), ErrorKind::Unavailable | ErrorKind::Timeout)
}

provider_metrics! {
    /// Whether the API returns tags.
    struct TagMetrics {
        without_tags: Gauge, "ccm_digitalocean_load_balancers_without_tags" =>
            "Load balancers of the account that the API returned without the field `tags`";
    }
}

impl TagMetrics {
    /// Counts the load balancers of a listing.
    fn count(&self, all: &[Balancer]) {
        let without = all.iter().filter(|balancer| !has_tags(balancer)).count();
        let before = self.without_tags.set(i64::try_from(without).unwrap_or(i64::MAX));
        if before == 0 && without > 0 {
            info!(
                load_balancers = without,
                "The API omits the tags of load balancers; orphaned load balancers cannot be found"
            );
        }
    }
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
            directory: Mutex::default(),
            failed_listing: Arc::default(),
            identity: Mutex::default(),
            dropped: Mutex::default(),
            written_tags: Mutex::default(),
            tag_metrics: TagMetrics::publish(NAME, metrics),
        }
    }

    /// All load balancers of the account. `key`: the ID or name of the requested one.
    pub(crate) async fn listing(
        &self,
        key: Option<&str>,
        read: ReadOptions,
    ) -> Result<Arc<Listing<Balancer>>> {
        let (api, tag_metrics) = (self.nodes.api.clone(), self.tag_metrics.clone());
        let failed = Arc::clone(&self.failed_listing);
        self.balancers
            .get(key, read.freshness, read.priority, || async move {
                let last = failed.lock().clone();
                if let Some(last) = last
                    && Instant::now() < last.pause_ends
                {
                    return Err(last.error);
                }
                let began = Instant::now();
                let listed: Result<Vec<Balancer>> = api.list(Op::LoadBalancerList, &[], read.priority).await;
                *failed.lock() = match &listed {
                    Err(error) if is_only_listing(error) => Some(FailedListing::new(error.clone(), began)),
                    _ => None,
                };
                let all = listed?;
                tag_metrics.count(&all);
                Ok(all)
            })
            .await
    }

    /// The number of load balancers in the last listing that have no field `tags`.
    #[cfg(test)]
    pub(crate) fn without_tags(&self) -> i64 {
        self.tag_metrics.without_tags.get()
    }

    /// Whether this process has written the tag to the load balancer.
    pub(crate) fn has_written_tag(&self, id: &str, tag: &str) -> bool {
        let written = self.written_tags.lock();
        written.get(id).is_some_and(|tags| tags.contains(tag))
    }

    /// Records that tags of a load balancer were written, so that they are not written again.
    fn tags_written(&self, id: &str, tags: impl IntoIterator<Item = String>) {
        let mut written = self.written_tags.lock();
        written.entry(id.to_owned()).or_default().extend(tags);
    }

    /// Records that another controller tagged a load balancer.
    pub(crate) fn tagged(&self, id: &str, tag: &str) {
        self.tags_written(id, [tag.to_owned()]);
        self.balancers.invalidate(id);
    }

    /// Changes the tags of a load balancer. A failure changes nothing else: the tags only help to find orphans.
    async fn change_tags(&self, balancer: &Balancer, change: &TagChange, priority: Priority) -> Balancer {
        let (api, id) = (&self.nodes.api, balancer.id());
        for tag in &change.added {
            let result = tags_api::assign(api, tag, &[id.to_owned()], priority).await;
            self.tag_changed(id, tag, result);
        }
        for tag in &change.removed {
            let result = tags_api::unassign(api, tag, id, priority).await;
            self.tag_changed(id, tag, result);
        }
        let changed = change.applied(balancer);
        self.balancers.insert(changed.clone());
        changed
    }

    /// Records the result of a change of a tag.
    fn tag_changed(&self, id: &str, tag: &str, result: Result<()>) {
        match result {
            Ok(()) => {}
            // It is tried with the next change of the load balancer.
            Err(error) if error.retry() != Retry::Never => {
                debug!(id, tag, error = error.report(), "Could not change a tag, will retry");
                return;
            }
            Err(error) => {
                warn!(id, tag, error = error.report(), "Could not change a tag of a load balancer");
            }
        }
        self.tags_written(id, [tag.to_owned()]);
    }

    /// The load balancer with this ID: as listed, or read alone while listings fail.
    pub(crate) async fn existing(&self, id: &str, read: ReadOptions) -> Result<Option<Arc<Balancer>>> {
        match self.listing(None, read).await {
            Ok(listing) => Ok(listing.by_id(id).cloned()),
            Err(error) if is_only_listing(&error) => {
                let found = self.read_alone(id, &error, read.priority).await?;
                Ok(found.map(Arc::new))
            }
            Err(error) => Err(error),
        }
    }

    /// Reads one load balancer while listings fail with this error.
    async fn read_alone(&self, id: &str, listing: &Error, priority: Priority) -> Result<Option<Balancer>> {
        if let Some(failed) = &*self.failed_listing.lock()
            && failed.singles_fail
            && Instant::now() < failed.pause_ends
        {
            return Err(listing.clone());
        }
        let began = Instant::now();
        let read = self.read(id, priority).await;
        if let Err(error) = &read
            && is_only_listing(error)
            && let Some(failed) = &mut *self.failed_listing.lock()
        {
            failed.singles_fail = true;
            failed.pause_ends = FailedListing::end_of_pause(began);
        }
        read
    }

    /// The directory with this listing, or with the last one if it could not be read.
    fn directory_of(
        &self,
        listing: Option<Arc<Listing<Balancer>>>,
        is_current: bool,
    ) -> Arc<BalancerDirectory> {
        let mut last = self.directory.lock();
        let listing = listing
            .or_else(|| Some(Arc::clone(&last.as_ref()?.listing)))
            .unwrap_or_else(|| Arc::new(std::iter::empty().collect()));
        if let Some(last) = &*last
            && last.is_current == is_current
            && Arc::ptr_eq(&last.listing, &listing)
        {
            return Arc::clone(last);
        }
        let now = Arc::new(BalancerDirectory { listing, is_current });
        *last = Some(Arc::clone(&now));
        now
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
            let found = self
                .certificates
                .get(named.clone(), freshness, priority, || async move {
                    match certificate {
                        CertificateRef::Id(id) => api.find(Op::CertificateGet, &id, priority).await,
                        CertificateRef::Name(name) => {
                            let filter = [("name", name.as_str())];
                            let all: Vec<Certificate> =
                                api.list(Op::CertificateList, &filter, priority).await?;
                            Ok(all.into_iter().find(|found| found.name == name))
                        }
                    }
                })
                .await?;
            if found.is_some() {
                return Ok((*found).clone());
            }
        }
        Ok(None)
    }

    /// The certificate that a Service names. `current`: the certificate of the load balancer.
    async fn resolve(
        &self,
        named: &CertificateRef,
        current: Option<&str>,
        read: ReadOptions,
    ) -> Result<ResolvedCertificate> {
        if let CertificateRef::Id(id) = named
            && current.is_none_or(|current| current == id)
        {
            return Ok(ResolvedCertificate {
                id: id.clone(),
                is_renewed: false,
            });
        }
        let age = match read.freshness {
            Freshness::AtMost(age) => age.min(CERTIFICATE_AGE),
            // A background resync reads many load balancers, and certificates rarely change.
            Freshness::After(_) => CERTIFICATE_AGE,
        };
        let (cached, priority) = (Freshness::AtMost(age), read.priority);
        let mut annotated = self.certificate(named, cached, priority).await?;
        // The cached certificate may be the one before a renewal.
        if let (CertificateRef::Name(_), Some(found), Some(current)) = (named, &annotated, current)
            && found.id != current
        {
            annotated = self.certificate(named, Freshness::now(), priority).await?;
        }
        // A name refers to the present certificate. An ID may be that of a certificate that was renewed.
        if let (CertificateRef::Id(_), Some(current)) = (named, current) {
            let current = CertificateRef::Id(current.to_owned());
            if let Some(current) = self.certificate(&current, cached, priority).await?
                && current.kind == "lets_encrypt"
                && annotated.as_ref().is_none_or(|found| found.name == current.name)
            {
                return Ok(ResolvedCertificate {
                    id: current.id,
                    is_renewed: true,
                });
            }
        }
        if let Some(found) = annotated {
            return Ok(ResolvedCertificate {
                id: found.id,
                is_renewed: false,
            });
        }
        let text = match named {
            CertificateRef::Id(id) => format!("certificate with the ID {id} not found"),
            CertificateRef::Name(name) => format!("certificate with the name {name:?} not found"),
        };
        Err(Error::new(ErrorKind::InvalidSpec, text))
    }

    /// The droplets of the nodes that have no provider ID yet. All load balancers share the answer.
    async fn by_name(&self, cluster: &ClusterView, priority: Priority) -> Result<Arc<BTreeMap<String, u64>>> {
        let without_id: Vec<_> = cluster
            .nodes
            .eligible()
            .map(|node| &node.view)
            .filter(|node| node.provider_id.as_deref().is_none_or(str::is_empty))
            .cloned()
            .collect();
        if without_id.is_empty() {
            return Ok(Arc::default());
        }
        let names = without_id.iter().map(|node| node.name.clone()).collect();
        let droplets = self.nodes.droplets.clone();
        self.names
            .get(names, Freshness::AtMost(NAMES_AGE), priority, || async move {
                let mut by_name = BTreeMap::new();
                for (node, answer) in existence(&droplets, without_id, Freshness::now(), priority).await {
                    match answer {
                        Ok(InstanceState::Present(found)) => {
                            if let Ok(Some(id)) = droplet_id(&found.provider_id) {
                                by_name.insert(node.name.clone(), id);
                            }
                        }
                        // Two droplets with the name. The others are unknown only now, and must not lose their traffic.
                        Err(error) if error.kind() != ErrorKind::InvalidSpec => return Err(error),
                        // It is added when it has its provider ID.
                        _ => {}
                    }
                }
                Ok(by_name)
            })
            .await
    }

    /// What a Service asks for, with the ID of its certificate. `existing`: its load balancer.
    async fn reading(
        &self,
        service: &ServiceView,
        existing: Option<&Balancer>,
        read: ReadOptions,
    ) -> Result<Reading> {
        let mut certificate_id = None;
        // The annotation has no effect on the other type, so that a missing certificate does not matter.
        if desired::balancer_type(service, &self.settings, existing) == LbType::Regional
            && let Some(named) = CertificateRef::of(service)
        {
            let resolved = self.resolve(&named, existing.and_then(certificate), read).await?;
            let mut renewed = self.renewed.lock();
            if resolved.is_renewed {
                renewed.insert(service.id.clone());
            } else {
                renewed.remove(&service.id);
            }
            certificate_id = Some(resolved.id);
        }
        Ok(desired::read(service, &self.settings, existing, certificate_id.as_deref()))
    }

    /// The droplets of nodes that do not exist, as far as that is known and still matters.
    fn missing_droplets(&self, cluster: &ClusterView, by_name: &BTreeMap<String, u64>) -> BTreeSet<u64> {
        let mut missing = self.missing.lock();
        if !missing.is_empty() {
            let known = droplets_of(&cluster.nodes, by_name);
            missing.retain(|id, since| known.contains(id) && since.elapsed() < MISSING_AGE);
        }
        missing.keys().copied().collect()
    }

    /// The observed state of this load balancer, with what this process remembers of it and of the members.
    fn with_memory(
        &self,
        balancer: Option<Balancer>,
        members: &[PartMember],
        leaving: bool,
    ) -> ObservedBalancer {
        let mut observed = ObservedBalancer {
            identity: Arc::clone(&self.identity.lock()),
            leaving,
            ..ObservedBalancer::default()
        };
        let renewed = self.renewed.lock();
        for member in members {
            if renewed.contains(&member.service.id) {
                observed.renewed.insert(member.service.id.clone());
            }
        }
        if let Some(balancer) = &balancer {
            if let Some(tags) = self.written_tags.lock().get(balancer.id()) {
                observed.written_tags.clone_from(tags);
            }
            let mut dropped = self.dropped.lock();
            dropped.retain(|_, dropped| dropped.sent.elapsed() < DROPPED_AGE);
            if let Some(dropped) = dropped.get(balancer.id()) {
                observed.dropped.clone_from(&dropped.changes);
            }
        }
        observed.balancer = balancer;
        observed
    }

    /// Reads which droplets of a refused body do not exist: the API refuses all droplets if one is missing.
    async fn find_missing(&self, body: &Value, priority: Priority) -> bool {
        let ids = body.get(field::DROPLET_IDS).and_then(Value::as_array);
        let nodes = ids.into_iter().flatten().map(|id| {
            Arc::new(NodeView {
                name: id.to_string(),
                provider_id: Some(format!("{NAME}://{id}")),
                ..NodeView::default()
            })
        });
        let answers = existence(&self.nodes.droplets, nodes, Freshness::now(), priority).await;
        let mut missing = self.missing.lock();
        let before = missing.len();
        for (node, answer) in answers {
            if let (Ok(InstanceState::Absent), Ok(id)) = (answer, node.name.parse()) {
                missing.insert(id, Instant::now());
            }
        }
        missing.len() > before
    }

    /// Invalidates cached objects after a failed write, and explains a refusal because of a missing certificate or droplet.
    async fn failed(&self, change: &BalancerChange, id: &str, error: Error, priority: Priority) -> Error {
        let name = change.body[field::NAME].as_str().unwrap_or_default();
        self.balancers.invalidate(if id.is_empty() { name } else { id });
        let is_missing = error.kind() == ErrorKind::NotFound;
        // What the body names is missing, such as a certificate, and not the load balancer.
        let error = if is_missing && (id.is_empty() || matches!(self.read(id, priority).await, Ok(Some(_)))) {
            Error::new(ErrorKind::InvalidSpec, error.message().to_owned()).with_source(error)
        } else {
            error
        };
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

    /// If the listing cannot be read, the last one, for Services that name the ID of their load balancer.
    async fn directory(&self, read: ReadOptions) -> Result<Arc<BalancerDirectory>> {
        match self.listing(None, read).await {
            Ok(listing) => Ok(self.directory_of(Some(listing), true)),
            Err(error) if is_only_listing(&error) => {
                let any_age = Freshness::AtMost(Duration::MAX);
                let known = self.balancers.get(None, any_age, read.priority, || async { Err(error) }).await;
                Ok(self.directory_of(known.ok(), false))
            }
            Err(error) => Err(error),
        }
    }

    async fn inputs(
        &self,
        key: &BalancerKey,
        members: &[PartMember],
        cluster: &ClusterView,
        read: ReadOptions,
    ) -> Result<GatheredInputs<BalancerInputs>> {
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
            BalancerKey::Existing(id) => self.existing(id, recent).await?,
            BalancerKey::New(_) => None,
        };
        let (mut readings, mut refused) = (BTreeMap::new(), Vec::new());
        for PartMember { service, .. } in PartMember::active(members) {
            match self.reading(service, existing.as_deref(), read).await {
                Ok(reading) => {
                    readings.insert(service.id.clone(), reading);
                }
                Err(error) => refused.push((service.id.clone(), error)),
            }
        }
        let by_name = self.by_name(cluster, read.priority).await?;
        let model = Model {
            settings: Arc::clone(&self.settings),
            region: self.nodes.region.clone(),
        };
        let identity = Arc::new(model.identity(cluster, &by_name));
        *self.identity.lock() = Arc::clone(&identity);
        let inputs = BalancerInputs {
            existing,
            identity,
            readings,
            missing: self.missing_droplets(cluster, &by_name),
            by_name,
        };
        Ok(GatheredInputs { inputs, refused })
    }

    async fn observe(
        &self,
        key: &BalancerKey,
        members: &[PartMember],
        read: ReadOptions,
    ) -> Result<ObservedBalancer> {
        let (BalancerKey::Existing(text) | BalancerKey::New(text)) = key;
        let listing = match self.listing(Some(text), read).await {
            Err(error) if !is_only_listing(&error) => return Err(error),
            listing => listing,
        };
        let own_id = match key {
            BalancerKey::Existing(id) => Some(id.as_str()),
            BalancerKey::New(_) => None,
        };
        // The part's own comes first. Annotations may have changed since the Service got it.
        let mut ids: Vec<&str> = own_id.into_iter().collect();
        for member in members {
            if let Some(id) = member.service.annotation(annotations::ID)
                && is_uuid(id)
                && own_id != Some(id)
            {
                ids.push(id);
            }
        }
        let mut balancer = None;
        if let Ok(listing) = &listing {
            let mut found = ids.iter().find_map(|id| listing.by_id(id));
            if let (None, BalancerKey::New(name)) = (found, key) {
                found = listing.by_key(name).find(|balancer| balancer.name() == name);
            }
            balancer = found.map(|found| (**found).clone());
        }
        // A listing does not prove that a load balancer is absent: it may be old, or have changed between two pages.
        for id in ids {
            if balancer.is_none() {
                balancer = match &listing {
                    Ok(_) => self.read(id, read.priority).await?,
                    Err(error) => self.read_alone(id, error, read.priority).await?,
                };
            }
        }
        let leaving = members.iter().all(Member::leaves);
        // Only a listing shows whether another load balancer has the name, so that none may be created.
        if let (None, Err(error)) = (&balancer, listing)
            && !(leaving && own_id.is_some())
        {
            return Err(error);
        }
        Ok(self.with_memory(balancer, members, leaving))
    }

    async fn send(
        &self,
        _: &BalancerKey,
        change: &BalancerChange,
        observed: &ObservedBalancer,
        options: &SendOptions,
    ) -> Result<SendOutcome<BalancerReply, String>> {
        let priority = options.priority;
        let before = observed.balancer.as_ref();
        let id = before.map(Balancer::id).unwrap_or_default();
        let (api, operation, body) = (&self.nodes.api, change.operation, &change.body);
        if let (Op::TagAssign, Some(before)) = (operation, before) {
            let changed = self.change_tags(before, &TagChange::of(body), priority).await;
            return Ok(SendOutcome::Done(Some(changed)));
        }
        let sent: Result<BalancerReply> = match change.effect {
            Effect::Create => api.write(operation, &[], body, priority).await.map(Some),
            Effect::Change => api.write(operation, &[id], body, priority).await.map(Some),
            Effect::Delete => match api.send(operation, &[id], &[], body, priority).await {
                Err(error) if error.kind() != ErrorKind::NotFound => Err(error),
                _ => Ok(None),
            },
        };
        let reply = match sent {
            Ok(reply) => reply,
            Err(error) => return Err(self.failed(change, id, error, priority).await),
        };
        match (before, &reply) {
            (_, None) => {
                self.balancers.remove(id);
                self.written_tags.lock().remove(id);
                self.dropped.lock().remove(id);
            }
            (Some(before), Some(reply)) => {
                self.balancers.insert(written(before, body, reply));
                let dropped = DroppedChanges {
                    sent: Instant::now(),
                    changes: dropped(body, reply),
                };
                self.dropped.lock().insert(id.to_owned(), dropped);
            }
            (None, Some(balancer)) => {
                self.balancers.insert(balancer.clone());
                let created = Balancer::planned(body);
                self.tags_written(balancer.id(), tags(&created).map(str::to_owned));
            }
        }
        let Some(balancer) = reply.as_ref().filter(|balancer| !is_active(balancer)) else {
            return Ok(SendOutcome::Done(reply));
        };
        if change.effect != Effect::Create && !is_new(balancer) {
            return Ok(SendOutcome::Done(reply));
        }
        let ticket = balancer.id().to_owned();
        let key = BalancerKey::Existing(ticket.clone());
        let wait = Wait {
            poll: self.polls.lock().accepted(&key, change.effect),
            deadline: CREATE_TIMEOUT,
        };
        Ok(SendOutcome::Accepted { reply, ticket, wait })
    }

    async fn poll(&self, key: &BalancerKey, id: &String, priority: Priority) -> Result<Option<Duration>> {
        let polled = Instant::now();
        let (_, waiting) = self.polls.lock().since(key);
        let balancer = if waiting > 1 {
            let freshness = Freshness::AtMost(SHARED_POLL);
            let found = self.existing(id, ReadOptions { freshness, priority }).await?;
            found.map(|balancer| (*balancer).clone())
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
            Some(balancer) => format!("the load balancer has the status {}", balancer.text(field::STATUS)),
            None => "the load balancer was deleted while the API changed it".to_owned(),
        };
        polls.ended(key, None);
        Err(Error::new(ErrorKind::Unexpected, text))
    }

    async fn is_pending(
        &self,
        _: &BalancerKey,
        observed: &ObservedBalancer,
        priority: Priority,
    ) -> Result<bool> {
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
