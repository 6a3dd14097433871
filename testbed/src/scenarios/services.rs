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
use crate::sweep::{Party, Scenario};

/// Nothing that prepares a scenario takes this long unless it is broken.
const LIMIT: Duration = Duration::from_secs(120);
const NAME: &str = "web";
const FINALIZER: &str = "service.kubernetes.io/load-balancer-cleanup";
const EXCLUDED: &str = "node.kubernetes.io/exclude-from-external-load-balancers";
/// Patches of the Service that a life of the program may need: its finalizer, and everything else at once.
const MOST_PATCHES: usize = 2;

/// What happens to the Service.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Turn {
    /// It comes.
    Serve,
    /// Ports, annotations and nodes change.
    Reshape,
    /// It goes.
    Release,
}

/// A Service with three ports, a floating address and a security group on a few nodes. All that happens is there to be
/// found when the program starts.
#[derive(Debug)]
pub struct Services {
    site: Arc<Site>,
    nodes: Vec<String>,
    turn: Turn,
    services: Api<Service>,
    /// How the cloud is before, and after a run that nothing disturbed.
    before: Mutex<Option<Picture>>,
    after: Mutex<Option<Picture>>,
    /// Objects that a run which nothing disturbed creates: what comes twice would be found only by a sweep.
    creates: Mutex<Option<Vec<(&'static str, usize)>>>,
}

impl Services {
    /// The scenario with this many nodes.
    #[must_use]
    pub fn new(site: Arc<Site>, nodes: usize, turn: Turn) -> Self {
        Self {
            services: Api::default_namespaced(site.nodes.clone().into_client()),
            site,
            nodes: names("served", nodes),
            turn,
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

    /// The cloud now; names bear the Service's uid.
    async fn picture(&self, service: Option<&Service>) -> Result<Picture> {
        let uid = service
            .and_then(|service| service.metadata.uid.clone())
            .unwrap_or_default();
        let short = uid.replace('-', "");
        let short = short.get(..31).unwrap_or_default().to_owned();
        let words = [(uid, "uid".to_owned()), (short, "short uid".to_owned())];
        self.site.cloud.picture(&words).await
    }

    /// Nothing is left of the Service, here and in the cloud.
    async fn wipe(&self) -> Result<()> {
        if self.service().await?.is_some() {
            self.merge(json!({"metadata": {"finalizers": null}})).await?;
            let _gone = self.services.delete(NAME, &DeleteParams::default()).await;
        }
        let gone = async || matches!(self.service().await, Ok(None)).then_some(());
        let gone = eventually(LIMIT, gone).await;
        gone.context("the Service does not go")?;
        self.site.cloud.clear().await?;
        self.exclude(self.nodes.last(), &self.nodes).await?;
        self.site.wipe_events().await
    }

    /// Only this one of the nodes is left out by load balancers.
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
        let service = serde_json::from_value(json!({
            "apiVersion": "v1", "kind": "Service",
            "metadata": {"name": NAME, "annotations": self.site.cloud.service().annotations},
            "spec": {"type": "LoadBalancer", "selector": {"app": NAME}, "ports": ports([80, 443, 8080])},
        }))?;
        self.services.create(&PostParams::default(), &service).await?;
        Ok(())
    }

    /// A Service that is served, by running the program until it is.
    async fn serve(&self) -> Result<()> {
        self.create().await?;
        let mut ccm = Ccm::start(&self.quiet())?;
        let ready = async || {
            let service = self.service().await.ok()??;
            let is_served = self.unserved(&service).await.ok()?.is_none();
            (is_served && self.told("EnsuredLoadBalancer").await.ok()?).then_some(())
        };
        let done = eventually(LIMIT, ready).await;
        ccm.kill()?;
        if done.is_none() {
            bail!("the Service is not served; {}", ccm.log()?);
        }
        self.site.wipe_events().await
    }

    /// Whether the program has said so of the Service.
    async fn told(&self, reason: &str) -> Result<bool> {
        let fields = format!("involvedObject.kind=Service,reason={reason}");
        let found = self
            .site
            .events
            .list(&ListParams::default().fields(&fields))
            .await?;
        Ok(!found.items.is_empty())
    }

    /// Why the Service does not name its load balancer, if it does not.
    async fn unserved(&self, service: &Service) -> Result<Option<String>> {
        let finalizers = &service.metadata.finalizers;
        if !finalizers
            .iter()
            .flatten()
            .any(|finalizer| finalizer == FINALIZER)
        {
            return Ok(Some("no finalizer".to_owned()));
        }
        self.site.cloud.unserved(service).await
    }
}

fn ports(ports: [u16; 3]) -> Value {
    let each = ports.into_iter().map(|port| {
        // Node ports are chosen, so that all runs have the same.
        json!({"name": format!("p{port}"), "port": port, "targetPort": port, "nodePort": 30000 + port % 2700})
    });
    each.collect()
}

#[async_trait(?Send)]
impl Scenario for Services {
    fn name(&self) -> String {
        let what = match self.turn {
            Turn::Serve => "comes",
            Turn::Reshape => "changes",
            Turn::Release => "goes",
        };
        format!("a Service on {} nodes {what}", self.nodes.len() - 1)
    }

    fn launch(&self) -> Launch {
        self.quiet()
    }

    fn parties(&self) -> Vec<&dyn Party> {
        self.site.parties()
    }

    async fn prepare(&self) -> Result<()> {
        self.site.settle(&self.nodes, &self.site.launch(&[])).await?;
        self.wipe().await?;
        if self.turn == Turn::Serve {
            ensure!(
                self.picture(None).await?.is_empty(),
                "the cloud cannot be emptied"
            );
            return self.create().await;
        }
        self.serve().await?;
        let before = self.picture(self.service().await?.as_ref()).await?;
        let problem = before.differs(self.before.lock().get_or_insert_with(|| before.clone()));
        if let Some(problem) = problem {
            bail!("it does not begin as the first run did: {problem}");
        }
        if self.turn == Turn::Release {
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
        // One node goes, another one comes.
        self.exclude(self.nodes.first(), &self.nodes).await
    }

    async fn missing(&self) -> Result<Option<String>> {
        let service = self.service().await?;
        let picture = self.picture(service.as_ref()).await?;
        if self.turn == Turn::Release {
            return Ok(match service {
                Some(_) => Some("the Service is still there".to_owned()),
                None => picture.differs(&Picture::default()),
            });
        }
        let Some(service) = service else {
            bail!("the Service is gone")
        };
        if let Some(problem) = self.unserved(&service).await? {
            return Ok(Some(problem));
        }
        let known = self.after.lock().clone();
        match known {
            Some(after) => Ok(picture.differs(&after)),
            None => Ok((!self.told("EnsuredLoadBalancer").await?).then(|| "not ensured yet".to_owned())),
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
                created
                    .iter()
                    .zip(&*most)
                    .all(|((_, count), (_, most))| count <= most),
                "created {created:?} instead of {most:?}"
            );
        }
        if self.turn != Turn::Release {
            let problem = picture.differs(self.after.lock().get_or_insert_with(|| picture.clone()));
            if let Some(problem) = problem {
                bail!("{problem}");
            }
        }
        let writes = self.site.proxy.writes();
        let deletes = writes.iter().find(|write| write.method == "DELETE");
        if let Some(write) = deletes {
            bail!("deleted without a reason: {write}");
        }
        let patches = writes
            .iter()
            .filter(|write| write.resource == "services" && write.status.is_some_and(|status| status < 300));
        let count = patches.count();
        ensure!(
            count <= MOST_PATCHES * 2,
            "the Service was patched {count} times: {writes:#?}"
        );
        self.site.check_events().await
    }

    async fn disturb(&self) -> Result<()> {
        self.site.restart_api_server().await
    }

    fn secrets(&self) -> Vec<String> {
        self.site.secrets()
    }
}
