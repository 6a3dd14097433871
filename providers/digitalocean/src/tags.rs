//! The tags controller: load balancers of Services that lack the tag `k8s:<cluster id>` get it.
//!
//! A load balancer that we create or change has the tag from that write. This is for those that need no change.

use std::{collections::BTreeSet, time::Duration};

use ccm_core::{
    Freshness, Priority, Result,
    controllers::{ControllerContext, ControllerDef, ControllerFuture, Needs, NotStarted},
    load_balancer::{ClusterView, ReadOptions},
    plan::{PartCloud as _, PartModel as _},
};
use tokio::time::{MissedTickBehavior, interval};
use tracing::{info, warn};

use crate::{
    DigitalOcean,
    client::Api,
    load_balancer::{document::cluster_tag, model::Key},
};

/// How often load balancers are looked over (upstream's).
const PERIOD: Duration = Duration::from_secs(15 * 60);

/// The controller.
pub(crate) const CONTROLLER: ControllerDef = ControllerDef {
    name: "do-tags-controller",
    aliases: &["do-tags"],
    migration_name: None,
    client_name: "do-tags-controller",
    default_on: true,
    needs: |setup| {
        let cloud = setup.cloud_as::<DigitalOcean>();
        match cloud.is_ok_and(|cloud| cloud.settings.cluster_id.is_some()) {
            true => Ok(Needs {
                load_balancer_services: true,
                ..Needs::default()
            }),
            false => Err(NotStarted::NotConfigured("DO_CLUSTER_ID is not set")),
        }
    },
    start,
};

fn start(context: ControllerContext) -> Result<ControllerFuture> {
    let cloud = context.setup.cloud_as::<DigitalOcean>()?;
    let api = cloud.view.api.fenced_by(&context.fence);
    Ok(Box::pin(async move {
        let work = async {
            context.services.synced().await;
            let mut ticks = interval(PERIOD);
            ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
            let mut failed = false;
            loop {
                ticks.tick().await;
                match add_tags(&cloud, &api, &context).await {
                    Ok(()) => failed = false,
                    Err(error) if !std::mem::replace(&mut failed, true) => {
                        warn!(
                            error = error.report(),
                            "Could not tag load balancers, will try again"
                        );
                    }
                    Err(_) => {}
                }
            }
        };
        tokio::select! {
            () = context.shutdown.cancelled() => {}
            () = work => {}
        }
    }))
}

/// Tags the load balancers of Services that lack the cluster's tag. All of them with one call.
async fn add_tags(cloud: &DigitalOcean, api: &Api, context: &ControllerContext) -> Result<()> {
    let Some(tag) = cloud.settings.cluster_id.as_deref().map(cluster_tag) else {
        return Ok(());
    };
    let services = context.services.list();
    let model = cloud.engine.model();
    let wanting = services.iter().filter(|service| {
        service.view.wants_load_balancer()
            && model.claims(&service.view) == ccm_core::load_balancer::Claim::Ours
    });
    let wanting: Vec<_> = wanting.collect();
    if wanting.is_empty() {
        return Ok(());
    }
    let read = ReadOptions {
        freshness: Freshness::AtMost(PERIOD / 2),
        priority: Priority::Background,
    };
    let directory = cloud.engine.cloud().directory(read).await?;
    let cluster = ClusterView::default();
    let keys = wanting
        .iter()
        .flat_map(|service| model.parts(&service.view, &cluster, &directory).named);
    let ids: BTreeSet<String> = keys
        .filter_map(|key| match key {
            Key::Balancer(id) => Some(id),
            Key::New(_) => None,
        })
        .collect();
    let lacks = |id: &String| {
        let balancer = directory.by_id(id);
        balancer.is_some_and(|balancer| {
            // Another cluster's load balancer, which its name alone leads to.
            let tags = balancer.tags().unwrap_or_default();
            !tags.contains(&tag.as_str()) && !tags.iter().any(|other| other.starts_with("k8s:"))
        })
    };
    let untagged: Vec<String> = ids.into_iter().filter(lacks).collect();
    if untagged.is_empty() {
        return Ok(());
    }
    api.tag_load_balancers(&tag, &untagged, Priority::Background)
        .await?;
    for id in &untagged {
        cloud.engine.cloud().tagged(id);
    }
    info!(tag, load_balancers = untagged.len(), "Tagged load balancers");
    Ok(())
}
