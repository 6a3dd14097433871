//! The tags controller: adds the tag `k8s:<cluster id>` to load balancers of Services that lack it.
//!
//! Creates and updates already set the tag. This controller tags load balancers that need no other change.

use std::{collections::BTreeSet, time::Duration};

use ccm_core::{
    ErrorKind, Freshness, Priority, Result,
    client::Listing,
    controllers::{ControllerContext, ControllerDef, ControllerFuture, Needs},
    load_balancer::{Claim, ClusterTag, ClusterView, ReadOptions, ServiceView},
    plan::{PartCloud as _, PartModel as _},
};
use serde_json::json;
use tokio::time::{MissedTickBehavior, interval};
use tracing::{info, warn};

use crate::{
    DigitalOcean,
    client::{Api, Op},
    load_balancer::{
        document::{Balancer, CLUSTER_PREFIX, cluster_tag, tags},
        model::{Key, Model, names},
    },
};

/// Interval between checks (upstream's).
const PERIOD: Duration = Duration::from_secs(15 * 60);

/// The controller.
pub(crate) const CONTROLLER: ControllerDef = ControllerDef {
    name: "do-tags-controller",
    aliases: &["do-tags"],
    migration_name: None,
    client_name: "do-tags-controller",
    default_on: true,
    needs: |setup| {
        let is_configured = |cloud: &DigitalOcean| cloud.settings.cluster_id.is_some();
        let needs = Needs {
            load_balancer_services: true,
            ..Needs::default()
        };
        setup.needs_if(is_configured, "DO_CLUSTER_ID is not set", needs)
    },
    start,
};

fn start(context: ControllerContext) -> Result<ControllerFuture> {
    let cloud = context.setup.cloud_as::<DigitalOcean>()?;
    let api = cloud.nodes.api.fenced_by(&context.fence);
    Ok(Box::pin(async move {
        let (services, shutdown) = (&context.services, &context.shutdown);
        if shutdown.run_until_cancelled(services.synced()).await.is_none() {
            return;
        }
        let mut ticks = interval(PERIOD);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let mut failed = false;
        // A write that was begun is finished.
        while shutdown.run_until_cancelled(ticks.tick()).await.is_some() {
            match add_tags(&cloud, &api, &context).await {
                Ok(()) => failed = false,
                Err(error) if !std::mem::replace(&mut failed, true) => {
                    warn!(error = error.report(), "Could not tag load balancers, will retry");
                }
                Err(_) => {}
            }
        }
    }))
}

/// Adds the cluster's tag to load balancers of Services that lack it, with one call.
async fn add_tags(cloud: &DigitalOcean, api: &Api, context: &ControllerContext) -> Result<()> {
    let Some(tag) = cloud.settings.cluster_id.as_deref().map(cluster_tag) else {
        return Ok(());
    };
    let model = cloud.engine.model();
    let mut services = context.services.list();
    let wants = |service: &ServiceView| service.wants_load_balancer() && model.claims(service) == Claim::Ours;
    services.retain(|service| wants(&service.view));
    if services.is_empty() {
        return Ok(());
    }
    let read = ReadOptions {
        freshness: Freshness::AtMost(PERIOD / 2),
        priority: Priority::Background,
    };
    let directory = cloud.engine.cloud().directory(read).await?;
    let views = services.iter().map(|service| &*service.view);
    let untagged = untagged(model, views, &directory);
    if untagged.is_empty() {
        return Ok(());
    }
    tag_load_balancers(api, &tag, &untagged).await?;
    for id in &untagged {
        cloud.engine.cloud().tagged(id);
    }
    info!(tag, load_balancers = untagged.len(), "Tagged load balancers");
    Ok(())
}

/// The load balancers of Services without the tag of a cluster. A load balancer with an ownership tag is skipped unless its
/// Service names it by its ID, because it may belong to another cluster.
fn untagged<'a>(
    model: &Model,
    services: impl Iterator<Item = &'a ServiceView>,
    directory: &Listing<Balancer>,
) -> Vec<String> {
    let cluster = ClusterView::default();
    let lacks = |service: &ServiceView, id: &str| {
        directory.by_id(id).is_some_and(|balancer| {
            let may_be_foreign = |tag: &str| tag.starts_with(ClusterTag::PREFIX) && !names(service, balancer);
            !tags(balancer).any(|tag| tag.starts_with(CLUSTER_PREFIX) || may_be_foreign(tag))
        })
    };
    let ids = services.flat_map(|service| {
        let keys = model.parts(service, &cluster, directory).named.into_iter();
        keys.filter_map(move |key| match key {
            Key::Balancer(id) => lacks(service, &id).then_some(id),
            Key::New(_) => None,
        })
    });
    let ids: BTreeSet<_> = ids.collect();
    ids.into_iter().collect()
}

/// Adds a tag to load balancers. Creates the tag if it does not exist.
async fn tag_load_balancers(api: &Api, tag: &str, ids: &[String]) -> Result<()> {
    let resource = |id| json!({"resource_id": id, "resource_type": "load_balancer"});
    let body = json!({"resources": ids.iter().map(resource).collect::<Vec<_>>()});
    let path = [tag, "resources"];
    let new = json!({ "name": tag });
    let send = async |op, path: &[&str], body| api.send(op, path, &[], body, Priority::Background).await;
    match send(Op::TagAssign, &path, &body).await {
        Err(error) if error.kind() == ErrorKind::NotFound => {
            send(Op::TagCreate, &[], &new).await?;
            send(Op::TagAssign, &path, &body).await.map(drop)
        }
        result => result.map(drop),
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use ccm_core::testkit::cluster::{annotate, service};
    use ccm_sim::{
        Action, Fault,
        digitalocean::{Config, DigitalOcean},
    };

    use super::*;
    use crate::load_balancer::{annotations, desired::tests};

    #[test]
    fn load_balancers_without_a_clusters_tag_are_found_by_id_and_by_name() {
        let model = Model {
            settings: std::sync::Arc::new(tests::settings(&[])),
            region: "nyc3".to_owned(),
        };
        let balancers = json!([
            {"id": "1", "name": "auidfirst", "tags": ["web"]},
            {"id": "2", "name": "custom", "tags": []},
            {"id": "3", "name": "x", "tags": []},
            {"id": "4", "name": "auidtagged", "tags": ["k8s:c-1"]},
            {"id": "5", "name": "auidforeign", "tags": ["k8s:c-2"]},
            {"id": "6", "name": "unused", "tags": []},
            {"id": "7", "name": "auidowned", "tags": ["kube_cluster_id_b"]},
            {"id": "8", "name": "y", "tags": ["kube_cluster_id_b"]},
        ]);
        let balancers: Vec<Balancer> = serde_json::from_value(balancers).unwrap();
        let directory: Listing<Balancer> = balancers.into_iter().collect();
        let all = "first by-name by-id tagged foreign new owned moved".split(' ');
        let mut services: Vec<_> = all.map(|name| service(name, &[80])).collect();
        annotate(&mut services[1], annotations::NAME, Some("custom"));
        annotate(&mut services[2], annotations::ID, Some("3"));
        annotate(&mut services[7], annotations::ID, Some("8"));
        let of = |services: &[ServiceView]| untagged(&model, services.iter(), &directory);
        assert_eq!(of(&services), ["1", "2", "3", "8"]);
        assert_eq!(of(&[]), [""; 0]);
    }

    #[tokio::test]
    async fn a_missing_tag_is_created_and_failures_are_errors() {
        let fault = |op| Fault::on(op, Action::status(403));
        let (assign, create) = ("tags_assign_resources", "tags_create");
        for (has_tag, fault, expected) in [
            (true, None, Some(&[assign][..])),
            (false, None, Some(&[assign, create, assign][..])),
            (true, Some(fault(assign)), None),
            (false, Some(fault(create)), None),
        ] {
            let sim = DigitalOcean::start(Config::default()).await.unwrap();
            let id = tests::create_balancer(&sim, "web");
            if has_tag {
                tests::create(&sim, "tags", json!({"name": "k8s:c-1"}));
            }
            let has_failed = fault.map(|fault| sim.add_fault(fault)).is_some();
            let result = tag_load_balancers(&tests::api(&sim), "k8s:c-1", &[id]).await;
            assert_eq!(result.is_err(), has_failed, "{result:?}");
            let Some(expected) = expected else { continue };
            let calls: Vec<_> = sim.calls().into_iter().map(|call| call.op).collect();
            assert_eq!(calls, expected);
            assert_eq!(sim.documents("load_balancers")[0]["tags"], json!(["k8s:c-1"]));
        }
    }
}
