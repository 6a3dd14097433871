//! The law of two clusters in one project, for models whose objects have no place for an ownership tag.

use std::sync::Arc;

use super::{
    Broken, CloudBehavior, LawEngine, Lawful, MemoryCloud, SERVICES,
    drive::{engine, request, settle},
    shape,
};
use crate::load_balancer::{ClusterSnapshot, LoadBalancers, OrphanPart, ServiceView};

const LAW: &str = "neighbors";

fn broken(how: impl Into<String>) -> Broken {
    Broken {
        law: LAW,
        how: how.into(),
    }
}

struct Project<L: Lawful> {
    model: L,
    cloud: Arc<MemoryCloud<L>>,
}

impl<L: Lawful> Project<L> {
    fn engine(&self) -> LawEngine<L> {
        engine(&self.model, &self.cloud)
    }

    fn shape(&self) -> Vec<String> {
        shape(&self.model, &self.cloud.truth())
    }

    async fn orphans(&self, world: &Arc<ClusterSnapshot>) -> Result<Vec<OrphanPart>, Broken> {
        let discovery = self.engine().discover(&request(world)).await;
        Ok(discovery.map_err(|error| broken(error.report()))?.orphans)
    }

    /// Settles a cluster, and checks that these lines are unchanged.
    async fn settle(&self, when: &str, world: &Arc<ClusterSnapshot>, stay: &[String]) -> Result<(), Broken> {
        settle(&self.engine(), world).await.map_err(|how| broken(format!("{when}: {how}")))?;
        let now = self.shape();
        match stay.iter().find(|line| !now.contains(line)) {
            Some(lost) => Err(broken(format!("{when}: `{lost}` was changed"))),
            None => Ok(()),
        }
    }
}

/// Two clusters in one project, with Services of the same names, create load balancers, change them and delete them: neither
/// changes what the other one has. When the API server of one has lost its Services, their objects are orphans of this cluster
/// alone, since its nodes are their members, and are never deleted. With the Services, nothing is written. Returns the orphans.
///
/// # Errors
/// If that is not so.
pub async fn neighbors<L: Lawful>(model: &L) -> Result<Vec<OrphanPart>, Broken> {
    let project = Project {
        model: model.clone(),
        cloud: Arc::new(MemoryCloud::new(model.clone(), model.ground(), CloudBehavior::default())),
    };
    let clusters = model.clusters();
    let ours = Arc::new(clusters.with_services(SERVICES));
    let theirs = Arc::new(clusters.of_another_cluster(SERVICES));
    project.settle("ours begins", &ours, &[]).await?;
    let alone = project.shape();
    project.settle("theirs begins", &theirs, &alone).await?;
    project.settle("ours again", &ours, &alone).await?;
    let leaves = |service: &Arc<ServiceView>| {
        let mut service = ServiceView::clone(service);
        service.deleting = true;
        Arc::new(service)
    };
    let leaving = Arc::new(ClusterSnapshot {
        services: theirs.services.iter().map(leaves).collect(),
        cluster: theirs.cluster.clone(),
    });
    project.settle("theirs leaves", &leaving, &alone).await?;
    if project.shape() != alone {
        return Err(broken(format!("theirs has left objects: {:?}, not {alone:?}", project.shape())));
    }

    project.settle("theirs begins again", &theirs, &alone).await?;
    let both = project.shape();
    let lost = |cluster: &ClusterSnapshot| {
        Arc::new(ClusterSnapshot {
            services: Vec::new(),
            cluster: cluster.cluster.clone(),
        })
    };
    let orphans = project.orphans(&lost(&theirs)).await?;
    if let Some(deletable) = orphans.iter().find(|orphan| orphan.deletable) {
        return Err(broken(format!("{} may be deleted", deletable.what)));
    }
    project.settle("theirs has lost its Services", &lost(&theirs), &both).await?;
    if let Some(foreign) = project.orphans(&ours).await?.first() {
        return Err(broken(format!("ours reports {}", foreign.what)));
    }
    project.settle("ours has lost its Services", &lost(&ours), &both).await?;
    project.cloud.take_done();
    for world in [&ours, &theirs] {
        project.settle("the Services are there again", world, &both).await?;
    }
    match project.cloud.take_done().first() {
        Some(step) => Err(broken(format!("the Services are there again, and `{step}` was sent"))),
        None => Ok(orphans),
    }
}
