//! What the scenarios stand on: machines, and passes over their routes.

use super::*;
use crate::{
    NodeView, Priority,
    routes::{Routes, plan},
};

/// Machines that live as long as the suite.
pub(super) struct Ground<'a> {
    pub(super) subject: &'a dyn RouteSubject,
    pub(super) cidrs: ClusterCidrs,
    pub(super) nodes: Vec<RouteNode>,
}

impl<'a> Ground<'a> {
    pub(super) async fn lay(subject: &'a dyn RouteSubject) -> Result<Self, BoxError> {
        let mut ground = Self {
            subject,
            cidrs: ClusterCidrs::parse(CLUSTER_CIDR)?,
            nodes: Vec::new(),
        };
        for i in 0..subject.crowd().clamp(3, CROWD) {
            let node = ground.machine(&format!("conf-route-{i}"), i).await?;
            ground.nodes.push(node);
        }
        // What an earlier run left.
        ground.clear().await?;
        Ok(ground)
    }

    pub(super) async fn leave(&self) -> Checked {
        self.clear().await?;
        for node in &self.nodes {
            self.subject.delete(&node.view.name).await?;
        }
        Ok(())
    }

    /// A new machine as a node that was initialised, without Pods.
    pub(super) async fn machine(&self, name: &str, age: usize) -> Result<RouteNode, BoxError> {
        self.subject.create(name).await?;
        let instance = present(by_name(self.subject, name).await?)?;
        Ok(RouteNode {
            view: Arc::new(NodeView {
                name: name.to_owned(),
                uid: format!("uid-of-{name}"),
                provider_id: Some(instance.provider_id),
                ..NodeView::default()
            }),
            addresses: instance.addresses,
            created: i64::try_from(age)?,
            ..RouteNode::default()
        })
    }

    /// The first nodes, each with Pods in the network of its place.
    pub(super) fn nodes(&self, count: usize) -> Result<Vec<Arc<RouteNode>>, BoxError> {
        let nodes = self.nodes.iter().take(count).enumerate();
        nodes.map(|(i, node)| with_pods(node, i)).collect()
    }

    /// Deletes what the scenarios made.
    pub(super) async fn clear(&self) -> Checked {
        let cloud = self.subject.restarted().await?;
        let outside: IpNet = OUTSIDE.parse()?;
        let observed = observe(&*cloud, &Desired::default()).await?;
        let ours = |route: &CloudRoute| {
            let destination = route.destination.trunc();
            self.cidrs.contain(&destination) || destination == outside
        };
        let delete: Vec<_> = observed.routes.into_iter().filter(ours).collect();
        let changes = Changes {
            delete,
            ..Changes::default()
        };
        well(&apply(&*cloud, &changes).await?)
    }

    pub(super) fn desired(&self, cloud: &dyn Cloud, nodes: &[Arc<RouteNode>]) -> Result<Desired, BoxError> {
        let routes = routes_of(cloud)?;
        Ok(Desired::of(
            nodes.iter().cloned(),
            &self.cidrs,
            |id| cloud.owns(id),
            |node, destination| routes.next_hop(node, destination),
        ))
    }

    pub(super) async fn plan(
        &self,
        cloud: &dyn Cloud,
        nodes: &[Arc<RouteNode>],
    ) -> Result<RoutePlan, BoxError> {
        let desired = self.desired(cloud, nodes)?;
        let observed = observe(cloud, &desired).await?;
        Ok(plan(&desired, &observed, &self.cidrs))
    }

    /// One pass, as the controller plays it.
    pub(super) async fn pass(&self, nodes: &[Arc<RouteNode>]) -> Result<(RoutePlan, Applied), BoxError> {
        let cloud = self.subject.cloud();
        let plan = self.plan(&*cloud, nodes).await?;
        let applied = apply(&*cloud, &plan.changes).await?;
        Ok((plan, applied))
    }

    /// A pass in which nothing fails and after which nothing is to do, for a new process neither.
    pub(super) async fn settle(&self, nodes: &[Arc<RouteNode>]) -> Checked {
        let (_, applied) = self.pass(nodes).await?;
        well(&applied)?;
        for cloud in [self.subject.cloud(), self.subject.restarted().await?] {
            let rest = self.plan(&*cloud, nodes).await?;
            ensure!(
                rest.changes.is_empty(),
                "there is more to do: {:?}",
                rest.changes.sentences()
            );
            ensure!(rest.done.iter().all(|done| *done), "not all is done");
        }
        self.agree().await
    }

    /// What the provider sees is what everybody sees.
    pub(super) async fn agree(&self) -> Checked {
        let Some(shown) = self.subject.table().await? else {
            return Ok(());
        };
        let mut shown: Vec<_> = shown.into_iter().map(|(to, via)| (to.trunc(), via)).collect();
        let mut seen = self.table().await?;
        shown.sort();
        seen.sort();
        ensure!(shown == seen, "the provider sees {seen:?}, others {shown:?}");
        Ok(())
    }

    /// All routes as a new process sees them.
    pub(super) async fn table(&self) -> Result<Vec<(IpNet, String)>, BoxError> {
        let cloud = self.subject.restarted().await?;
        let observed = observe(&*cloud, &Desired::default()).await?;
        let text = |route: CloudRoute| (route.destination.trunc(), route.next_hop.to_string());
        Ok(observed.routes.into_iter().map(text).collect())
    }

    /// The next hops of the routes to this destination.
    pub(super) async fn hops(&self, destination: IpNet) -> Result<BTreeSet<String>, BoxError> {
        let table = self.table().await?;
        let there = table.into_iter().filter(|(to, _)| *to == destination);
        Ok(there.map(|(_, via)| via).collect())
    }
}

/// Where the Pods of the node in this place are.
pub(super) fn pods(place: usize) -> Result<IpNet, BoxError> {
    Ok(format!("10.249.{place}.0/24").parse()?)
}

pub(super) fn with_pods(node: &RouteNode, place: usize) -> Result<Arc<RouteNode>, BoxError> {
    Ok(Arc::new(RouteNode {
        pod_cidrs: vec![pods(place)?],
        ..node.clone()
    }))
}

pub(super) fn routes_of(cloud: &dyn Cloud) -> Result<&dyn Routes, BoxError> {
    cloud.routes().ok_or_else(|| "the cloud has no routes".into())
}

pub(super) async fn observe(cloud: &dyn Cloud, desired: &Desired) -> Result<Observed, BoxError> {
    Ok(routes_of(cloud)?.observe(&desired.wanted, Priority::User).await?)
}

/// Makes the changes; there is a result for each.
pub(super) async fn apply(cloud: &dyn Cloud, changes: &Changes) -> Result<Applied, BoxError> {
    let applied = routes_of(cloud)?.apply(changes, Priority::User).await;
    for (what, results, asked) in [
        ("deletions", &applied.deleted, changes.delete.len()),
        ("creations", &applied.created, changes.create.len()),
        ("completions", &applied.finished, changes.finish.len()),
    ] {
        ensure!(
            results.len() == asked,
            "{} results of {asked} {what}",
            results.len()
        );
    }
    Ok(applied)
}

/// Nothing failed.
pub(super) fn well(applied: &Applied) -> Checked {
    let all = [&applied.deleted, &applied.created, &applied.finished];
    match all.into_iter().flatten().find_map(|result| result.as_ref().err()) {
        Some(error) => Err(error.report().into()),
        None => Ok(()),
    }
}
