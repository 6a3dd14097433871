//! A Service gets, changes and loses its load balancer.

use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context as _, Result, bail, ensure};
use async_trait::async_trait;
use k8s_openapi::api::core::v1::{Node, Service};
use kube::Api;
use kube::api::{DeleteParams, ListParams, Patch, PatchParams, PostParams};
use parking_lot::Mutex;
use serde_json::{Value, json};

use super::site::{Site, names};
use crate::binary::{Ccm, Launch};
use crate::observe::eventually;
use crate::picture::Picture;
use crate::sweep::{Environment, Scenario};

/// Time limit of each step that prepares a scenario.
const LIMIT: Duration = Duration::from_secs(120);
const NAME: &str = "web";
const FINALIZER: &str = "service.kubernetes.io/load-balancer-cleanup";
const EXCLUDED: &str = "node.kubernetes.io/exclude-from-external-load-balancers";
/// Maximum number of patches of the Service by one process: its finalizer, and all other changes at once.
const MOST_PATCHES: usize = 2;

/// The change of the Service.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ServiceChange {
    /// The Service is created.
    Create,
    /// Ports, annotations and nodes change.
    Update,
    /// The Service is deleted.
    Delete,
}

/// A Service with three ports, a floating IP and a security group on a few nodes. The change is done before the program
/// starts.
#[derive(Debug)]
pub struct Services {
    site: Arc<Site>,
    nodes: Vec<String>,
    change: ServiceChange,
    services: Api<Service>,
    /// The state of the cloud before and after a run without faults.
    before: Mutex<Option<Picture>>,
    after: Mutex<Option<Picture>>,
    /// The number of objects that a run without faults creates, to detect duplicates.
    creates: Mutex<Option<Vec<(&'static str, usize)>>>,
}

impl Services {
    /// The scenario with this many nodes.
    #[must_use]
    pub fn new(site: Arc<Site>, nodes: usize, change: ServiceChange) -> Self {
        Self {
            services: Api::default_namespaced(site.nodes.clone().into_client()),
            site,
            nodes: names("served", nodes),
            change,
            before: Mutex::default(),
            after: Mutex::default(),
            creates: Mutex::default(),
        }
    }

    fn quiet(&self) -> Launch {
        self.site.launch(&["--controllers=service"])
    }

    async fn service(&self) -> Result<Option<Service>> {
        Ok(self.services.get_opt(NAME).await?)
    }

    /// The present state of the cloud. Names contain the Service's UID.
    async fn picture(&self, service: Option<&Service>) -> Result<Picture> {
        let uid = service.and_then(|service| service.metadata.uid.clone()).unwrap_or_default();
        let short = uid.replace('-', "");
        let short = short.get(..31).unwrap_or_default().to_owned();
        let words = [(uid, "uid".to_owned()), (short, "short uid".to_owned())];
        self.site.cloud.picture(&words).await
    }

    /// Deletes the Service and its cloud objects.
    async fn wipe(&self) -> Result<()> {
        if self.service().await?.is_some() {
            self.merge(json!({"metadata": {"finalizers": null}})).await?;
            let _deleted = self.services.delete(NAME, &DeleteParams::default()).await;
        }
        let is_deleted = async || matches!(self.service().await, Ok(None)).then_some(());
        let deleted = eventually(LIMIT, is_deleted).await;
        deleted.context("the Service was not deleted")?;
        self.site.cloud.clear().await?;
        self.exclude(self.nodes.last(), &self.nodes).await?;
        self.site.wipe_events().await
    }

    /// Excludes only this node from load balancers.
    async fn exclude(&self, excluded: Option<&String>, nodes: &[String]) -> Result<()> {
        for name in nodes {
            let value = (Some(name) == excluded).then_some("true");
            let name = &self.site.machine(name).await?.node;
            let patch = Patch::Merge(json!({"metadata": {"labels": {EXCLUDED: value}}}));
            let api: &Api<Node> = &self.site.nodes;
            api.patch(name, &PatchParams::default(), &patch).await?;
        }
        Ok(())
    }

    async fn merge(&self, patch: Value) -> Result<()> {
        let params = PatchParams::default();
        self.services.patch(NAME, &params, &Patch::Merge(patch)).await?;
        Ok(())
    }

    async fn create(&self) -> Result<()> {
        let service: Service = serde_json::from_value(json!({
            "apiVersion": "v1", "kind": "Service",
            "metadata": {"name": NAME, "annotations": self.site.cloud.service().annotations},
            "spec": {"type": "LoadBalancer", "selector": {"app": NAME}, "ports": ports([80, 443, 8080])},
        }))?;
        // The API server releases the node ports of a deleted Service a moment after the Service is gone.
        let is_early = |error: &kube::Error| error.to_string().contains("already allocated");
        let create = async || match self.services.create(&PostParams::default(), &service).await {
            Err(error) if is_early(&error) => None,
            result => Some(result),
        };
        let created = eventually(LIMIT, create).await;
        created.context("the node ports stay allocated")??;
        Ok(())
    }

    /// Creates a Service, and runs the program until it is served.
    async fn serve(&self) -> Result<()> {
        self.create().await?;
        let mut ccm = Ccm::start(&self.quiet())?;
        let ready = async || {
            let service = self.service().await.ok()??;
            let is_served = self.unserved(&service).await.ok()?.is_none();
            (is_served && self.has_event("EnsuredLoadBalancer").await.ok()?).then_some(())
        };
        let done = eventually(LIMIT, ready).await;
        ccm.kill()?;
        if done.is_none() {
            bail!("the Service is not served; {}", ccm.log()?);
        }
        self.site.wipe_events().await
    }

    /// Whether the Service has an Event with this reason.
    async fn has_event(&self, reason: &str) -> Result<bool> {
        let fields = format!("involvedObject.kind=Service,reason={reason}");
        let found = self.site.events.list(&ListParams::default().fields(&fields)).await?;
        Ok(!found.items.is_empty())
    }

    /// Why the Service is not served, if it is not.
    async fn unserved(&self, service: &Service) -> Result<Option<String>> {
        let finalizers = &service.metadata.finalizers;
        if !finalizers.iter().flatten().any(|finalizer| finalizer == FINALIZER) {
            return Ok(Some("no finalizer".to_owned()));
        }
        self.site.cloud.unserved(service).await
    }
}

fn ports(ports: [u16; 3]) -> Value {
    let each = ports.into_iter().map(|port| {
        // Fixed node ports, so that all runs are equal.
        json!({"name": format!("p{port}"), "port": port, "targetPort": port, "nodePort": 30000 + port % 2700})
    });
    each.collect()
}

#[async_trait(?Send)]
impl Scenario for Services {
    fn name(&self) -> String {
        let what = match self.change {
            ServiceChange::Create => "is created",
            ServiceChange::Update => "is changed",
            ServiceChange::Delete => "is deleted",
        };
        format!("a Service on {} nodes {what}", self.nodes.len() - 1)
    }

    fn launch(&self) -> Launch {
        self.quiet()
    }

    fn environment(&self) -> &dyn Environment {
        &*self.site
    }

    async fn prepare(&self) -> Result<()> {
        self.site.settle(&self.nodes, &self.site.launch(&[])).await?;
        self.wipe().await?;
        if self.change == ServiceChange::Create {
            ensure!(self.picture(None).await?.is_empty(), "the cloud cannot be emptied");
            return self.create().await;
        }
        self.serve().await?;
        let before = self.picture(self.service().await?.as_ref()).await?;
        let problem = before.differs(self.before.lock().get_or_insert_with(|| before.clone()));
        if let Some(problem) = problem {
            bail!("the initial state differs from the first run: {problem}");
        }
        if self.change == ServiceChange::Delete {
            self.services.delete(NAME, &DeleteParams::default()).await?;
            return Ok(());
        }
        let affinity = match self.site.cloud.service().has_affinity {
            true => "ClientIP",
            false => "None",
        };
        let changed = json!({
            "metadata": {"annotations": self.site.cloud.service().changed},
            "spec": {
                "ports": ports([80, 8443, 8080]), "sessionAffinity": affinity,
                "loadBalancerSourceRanges": ["10.0.0.0/8", "192.0.2.0/24"],
            },
        });
        self.merge(changed).await?;
        // Excludes one node, and includes another one.
        self.exclude(self.nodes.first(), &self.nodes).await
    }

    async fn missing(&self) -> Result<Option<String>> {
        let service = self.service().await?;
        let picture = self.picture(service.as_ref()).await?;
        if self.change == ServiceChange::Delete {
            return Ok(match service {
                Some(_) => Some("the Service still exists".to_owned()),
                None => picture.differs(&Picture::default()),
            });
        }
        let Some(service) = service else {
            bail!("the Service was deleted")
        };
        if let Some(problem) = self.unserved(&service).await? {
            return Ok(Some(problem));
        }
        let known = self.after.lock().clone();
        match known {
            Some(after) => Ok(picture.differs(&after)),
            None => Ok((!self.has_event("EnsuredLoadBalancer").await?).then(|| "not ensured yet".to_owned())),
        }
    }

    async fn check(&self) -> Result<()> {
        let service = self.service().await?;
        let picture = self.picture(service.as_ref()).await?;
        let created = self.site.cloud.created();
        {
            let mut creates = self.creates.lock();
            let most = creates.get_or_insert_with(|| created.clone());
            ensure!(
                created.iter().zip(&*most).all(|((_, count), (_, most))| count <= most),
                "created {created:?} instead of {most:?}"
            );
        }
        if self.change != ServiceChange::Delete {
            let problem = picture.differs(self.after.lock().get_or_insert_with(|| picture.clone()));
            if let Some(problem) = problem {
                bail!("{problem}");
            }
        }
        let writes = self.site.proxy.writes();
        let deletes = writes.iter().find(|write| write.method == "DELETE");
        if let Some(write) = deletes {
            bail!("unexpected delete: {write}");
        }
        let patches = writes
            .iter()
            .filter(|write| write.resource == "services" && write.status.is_some_and(|status| status < 300));
        let count = patches.count();
        ensure!(count <= MOST_PATCHES * 2, "the Service was patched {count} times: {writes:#?}");
        self.site.check_events().await
    }
}
