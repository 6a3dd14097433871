//! The plan of this program: `plan` and `--dry-run`.
//!
//! | Module | Contents |
//! |---|---|
//! | this file | the plan of all controllers together, and its summary |
//! | [`cluster`] | the cluster at one moment |
//! | [`text`] | the plan as text |
//! | [`json`] | the plan as JSON |
//! | [`dry_run`] | repeats the plan and logs what changed |
//!
//! The actions and findings of a plan are [`crate::controllers::plan`]'s.

mod cluster;
mod dry_run;
mod json;
mod text;

use std::fmt;

use anyhow::bail;
use ccm_core::{
    Cloud,
    load_balancer::{Effect, ReadOptions},
};
use serde::Serialize;

pub(crate) use cluster::Cluster;
pub(crate) use dry_run::DryRun;
pub(crate) use json::render as as_json;
pub(crate) use text::render as as_text;

pub(crate) use crate::controllers::plan::Plan;
use crate::{
    config::Config,
    controllers::{lifecycle, node, route, service},
};

/// Plans the work of all controllers, or `only` of one Service, by its namespace and name, without nodes.
///
/// # Errors
/// If that Service does not exist or has no controller.
pub(crate) async fn plan(
    cloud: &dyn Cloud,
    config: &Config,
    cluster: &Cluster,
    only: Option<&(String, String)>,
    ask: ReadOptions,
) -> anyhow::Result<Plan> {
    let mut plan = Plan::default();
    let mut nodes = cluster.nodes.clone();
    let everything = only.is_none();
    let enabled = |name| config.controllers.is_enabled(name);
    // Load balancers and routes follow the nodes with their planned changes. The plan of one Service shows no nodes.
    let mut hidden = Plan::default();
    let of_nodes = if everything { &mut plan } else { &mut hidden };
    for node in &cluster.nodes {
        of_nodes.node(&node.view.name);
    }
    if enabled(lifecycle::COMPONENT) && everything {
        lifecycle::plan(&mut nodes, cloud, &config.lifecycle, of_nodes).await;
    }
    if enabled(node::COMPONENT) && (everything || node::has_uninitialized(&nodes)) {
        node::plan(&mut nodes, cloud, &config.node, ask, of_nodes).await;
    }
    let with_services = enabled(service::NAME);
    match (cloud.load_balancers().filter(|_| with_services), only) {
        (Some(balancers), _) => {
            let planned = service::PlannedCluster {
                services: &cluster.services,
                nodes: &nodes,
                cluster_name: &config.cluster_name,
                ownership_tag: &cluster.ownership_tag,
                delete_orphans: config.service.orphans.delete,
            };
            let only = only.map(|(namespace, name)| planned.find(namespace, name)).transpose()?;
            service::plan(&planned, balancers, only.as_ref(), ask, &mut plan).await;
        }
        (None, Some(_)) if with_services => {
            bail!("--service: the cloud provider {} has no load balancers", cloud.name())
        }
        (None, Some(_)) => match config.controllers.elsewhere.get(service::NAME) {
            Some(component) => {
                bail!("--service: --leader-migration-config assigns the service controller to {component}")
            }
            None => bail!("--service: the service controller is switched off by --controllers"),
        },
        (None, None) => {}
    }
    let with_routes = enabled(route::NAME) && config.route.enabled && cloud.routes().is_some();
    if everything && with_routes {
        route::plan(&nodes, cloud, &config.route, ask.priority, &mut plan).await;
    }
    Ok(plan)
}

/// The outcome of a plan.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum PlanVerdict {
    /// Everything is as desired.
    Nothing,
    /// There is something to do.
    Changes,
    /// Something differs, and nothing would be done about it.
    Blocked,
    /// Not everything could be determined.
    Incomplete,
}

impl PlanVerdict {
    /// The exit code of `plan`.
    pub(crate) fn exit_code(self) -> u8 {
        match self {
            Self::Nothing => 0,
            Self::Incomplete => 1,
            Self::Changes => 2,
            Self::Blocked => 3,
        }
    }
}

/// A plan in numbers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub(crate) struct Summary {
    pub(crate) create: usize,
    pub(crate) change: usize,
    pub(crate) delete: usize,
    pub(crate) blocked: usize,
    pub(crate) warnings: usize,
    pub(crate) problems: usize,
}

impl Summary {
    pub(crate) fn of(plan: &Plan) -> Self {
        let mut summary = Self {
            problems: plan.problems.len(),
            ..Self::default()
        };
        for (_, findings) in plan.objects() {
            for change in &findings.changes {
                *match change.effect {
                    Effect::Create => &mut summary.create,
                    Effect::Change => &mut summary.change,
                    Effect::Delete => &mut summary.delete,
                } += 1;
            }
            summary.blocked += findings.blocked.len();
            summary.warnings += findings.warnings.len();
        }
        summary
    }

    pub(crate) fn verdict(&self) -> PlanVerdict {
        if self.problems > 0 {
            PlanVerdict::Incomplete
        } else if self.create + self.change + self.delete > 0 {
            PlanVerdict::Changes
        } else if self.blocked > 0 {
            PlanVerdict::Blocked
        } else {
            PlanVerdict::Nothing
        }
    }
}

impl fmt::Display for Summary {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (create, change, delete) = (self.create, self.change, self.delete);
        write!(f, "{create} to create, {change} to change, {delete} to delete")?;
        let warnings = if self.warnings == 1 { "warning" } else { "warnings" };
        let further = [
            (self.blocked, "blocked"),
            (self.problems, "not determined"),
            (self.warnings, warnings),
        ];
        let mut sign = ";";
        for (number, name) in further.into_iter().filter(|(number, _)| *number > 0) {
            write!(f, "{sign} {number} {name}")?;
            sign = ",";
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests;
