//! The fixture of the scenarios: machines, and passes over their routes.

use super::*;
use crate::{
    Priority,
    routes::{Routes, plan},
    testkit::nodes::node_view,
};

/// Machines that live as long as the suite.
pub(super) struct RouteFixture<'a> {
    pub(super) subject: &'a dyn RouteSubject,
    pub(super) cidrs: ClusterCidrs,
    pub(super) nodes: Vec<RouteNode>,
}

impl<'a> RouteFixture<'a> {
    pub(super) async fn new(subject: &'a dyn RouteSubject) -> Result<Self, BoxError> {
        let mut fixture = Self {
            subject,
            cidrs: ClusterCidrs::parse(CLUSTER_CIDR)?,
            nodes: Vec::new(),
        };
        for i in 0..subject.machine_count().clamp(3, MAX_MACHINES) {
            let node = fixture.machine(&format!("conf-route-{i}"), i).await?;
            fixture.nodes.push(node);
        }
        // Routes of an earlier run.
        fixture.delete_routes().await?;
        Ok(fixture)
    }

    pub(super) async fn clean_up(&self) -> Checked {
        self.delete_routes().await?;
        for node in &self.nodes {
            self.subject.delete(&node.view.name).await?;
        }
        Ok(())
    }

    /// A new machine as an initialized node without podCIDRs.
    pub(super) async fn machine(&self, name: &str, age: usize) -> Result<RouteNode, BoxError> {
        self.subject.create(name).await?;
        let instance = present(by_name(self.subject, name).await?)?;
        Ok(RouteNode {
            view: node_view(name, Some(&instance.provider_id)),
            addresses: instance.addresses,
            created: i64::try_from(age)?,
            ..RouteNode::default()
        })
    }

    /// The first nodes, each with the podCIDR of its index.
    pub(super) fn nodes(&self, count: usize) -> Result<Vec<Arc<RouteNode>>, BoxError> {
        let nodes = self.nodes.iter().take(count).enumerate();
        nodes.map(|(i, node)| with_pods(node, i)).collect()
    }

    /// Deletes the routes that the scenarios created.
    pub(super) async fn delete_routes(&self) -> Checked {
        let cloud = self.subject.restarted().await?;
        let outside: IpNet = OUTSIDE.parse()?;
        let observed = observe(&*cloud, &Desired::default()).await?;
        let ours = |route: &CloudRoute| {
            let destination = route.destination.trunc();
            self.cidrs.contain(&destination) || destination == outside
        };
        let delete: Vec<_> = observed.routes.into_iter().filter(ours).collect();
        let changes = RouteChanges {
            delete,
            ..RouteChanges::default()
        };
        ensure_applied(&apply(&*cloud, &changes).await?)
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

    /// Runs one pass, as the controller does.
    pub(super) async fn pass(&self, nodes: &[Arc<RouteNode>]) -> Result<(RoutePlan, Applied), BoxError> {
        let cloud = self.subject.cloud();
        let plan = self.plan(&*cloud, nodes).await?;
        let applied = apply(&*cloud, &plan.changes).await?;
        Ok((plan, applied))
    }

    /// Runs a pass without failures, after which neither this nor a restarted process has changes to apply.
    pub(super) async fn converge(&self, nodes: &[Arc<RouteNode>]) -> Checked {
        let (_, applied) = self.pass(nodes).await?;
        ensure_applied(&applied)?;
        for cloud in [self.subject.cloud(), self.subject.restarted().await?] {
            let rest = self.plan(&*cloud, nodes).await?;
            ensure!(rest.changes.is_empty(), "changes remain: {:?}", rest.changes.sentences());
            ensure!(rest.complete.iter().all(|complete| *complete), "not all routes are complete");
        }
        self.check_table().await
    }

    /// Checks that the provider and another client read the same table.
    pub(super) async fn check_table(&self) -> Checked {
        let Some(expected) = self.subject.table().await? else {
            return Ok(());
        };
        let mut expected: Vec<_> = expected.into_iter().map(|(to, via)| (to.trunc(), via)).collect();
        let mut observed = self.table().await?;
        expected.sort();
        observed.sort();
        ensure!(expected == observed, "the provider reads {observed:?}, others {expected:?}");
        Ok(())
    }

    /// All routes as a restarted process reads them.
    pub(super) async fn table(&self) -> Result<Vec<(IpNet, String)>, BoxError> {
        let cloud = self.subject.restarted().await?;
        let observed = observe(&*cloud, &Desired::default()).await?;
        let text = |route: CloudRoute| (route.destination.trunc(), route.next_hop.to_string());
        Ok(observed.routes.into_iter().map(text).collect())
    }

    /// The next hops of the routes to this destination.
    pub(super) async fn hops(&self, destination: IpNet) -> Result<BTreeSet<String>, BoxError> {
        let table = self.table().await?;
        let routes = table.into_iter().filter(|(to, _)| *to == destination);
        Ok(routes.map(|(_, via)| via).collect())
    }
}

/// The podCIDR of the node with this index.
pub(super) fn pods(index: usize) -> Result<IpNet, BoxError> {
    Ok(format!("10.249.{index}.0/24").parse()?)
}

pub(super) fn with_pods(node: &RouteNode, index: usize) -> Result<Arc<RouteNode>, BoxError> {
    Ok(Arc::new(RouteNode {
        pod_cidrs: vec![pods(index)?],
        ..node.clone()
    }))
}

pub(super) fn routes_of(cloud: &dyn Cloud) -> Result<&dyn Routes, BoxError> {
    cloud.routes().ok_or_else(|| "the cloud has no routes".into())
}

/// Reads the routes, and checks that no two have the same handle, by which the controller retries deletions.
pub(super) async fn observe(cloud: &dyn Cloud, desired: &Desired) -> Result<Observed, BoxError> {
    let observed = routes_of(cloud)?.observe(&desired.routes, Priority::User).await?;
    let mut handles = BTreeSet::new();
    for route in &observed.routes {
        let handle = &route.handle;
        ensure!(handles.insert(handle), "several routes have the handle {handle:?}");
    }
    Ok(observed)
}

/// Applies the changes, and checks that each has a result.
pub(super) async fn apply(cloud: &dyn Cloud, changes: &RouteChanges) -> Result<Applied, BoxError> {
    let applied = routes_of(cloud)?.apply(changes, Priority::User).await;
    for (what, results, expected) in [
        ("deletions", &applied.deleted, changes.delete.len()),
        ("creations", &applied.created, changes.create.len()),
        ("completions", &applied.finished, changes.finish.len()),
    ] {
        ensure!(results.len() == expected, "{} results of {expected} {what}", results.len());
    }
    Ok(applied)
}

/// Checks that no change failed.
pub(super) fn ensure_applied(applied: &Applied) -> Checked {
    let all = [&applied.deleted, &applied.created, &applied.finished];
    match all.into_iter().flatten().find_map(|result| result.as_ref().err()) {
        Some(error) => Err(error.report().into()),
        None => Ok(()),
    }
}
