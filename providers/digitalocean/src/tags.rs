//! The tags controller: adds the tag `k8s:<cluster id>` to load balancers of Services that lack it.
//!
//! Creates and updates already set the tag. This controller tags load balancers that need no other change.

use std::{collections::BTreeSet, time::Duration};

use ccm_core::{
    ErrorKind, Freshness, Priority, Result,
    controllers::{ControllerContext, ControllerDef, ControllerFuture, ControllerNames, Needs},
    load_balancer::{Claim, ClusterTag, ClusterView, ReadOptions, ServiceView},
    plan::PartModel as _,
};
use serde_json::{Value, json};
use tokio::time::{MissedTickBehavior, interval};
use tracing::{info, warn};

use crate::{
    DigitalOcean,
    client::{Api, Op},
    load_balancer::{
        document::{Balancer, tags},
        model::{BalancerDirectory, BalancerKey, Model},
        ownership::{CLUSTER_PREFIX, cluster_tag, is_of, names},
    },
};

/// Interval between checks (upstream's).
const PERIOD: Duration = Duration::from_secs(15 * 60);

/// The controller.
pub(crate) const CONTROLLER: ControllerDef = ControllerDef {
    names: ControllerNames {
        name: "do-tags-controller",
        aliases: &["do-tags"],
        migration_name: None,
        client_name: "do-tags-controller",
    },
    default_on: true,
    needs: |setup| {
        let needs = Needs {
            load_balancer_services: true,
            ..Needs::default()
        };
        setup.needs_if(
            |cloud: &DigitalOcean| cloud.settings.cluster_id.is_some(),
            "DO_CLUSTER_ID is not set",
            needs,
        )
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
            let all = services.list();
            let views: Vec<_> = all.iter().map(|service| &*service.view).collect();
            match add_tags(&cloud, &api, &views).await {
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
async fn add_tags(cloud: &DigitalOcean, api: &Api, services: &[&ServiceView]) -> Result<()> {
    let Some(tag) = cloud.settings.cluster_id.as_deref().map(cluster_tag) else {
        return Ok(());
    };
    let (model, calls) = (cloud.engine.model(), cloud.engine.cloud());
    let services: Vec<_> = services
        .iter()
        .copied()
        .filter(|service| service.wants_load_balancer() && model.claims(service) == Claim::Ours)
        .collect();
    if services.is_empty() {
        return Ok(());
    }
    let read = ReadOptions {
        freshness: Freshness::AtMost(PERIOD / 2),
        priority: Priority::Background,
    };
    let directory = BalancerDirectory {
        listing: calls.listing(None, read).await?,
        is_current: true,
    };
    let mut untagged = untagged(model, services.into_iter(), &directory);
    // The API may omit the tags.
    untagged.retain(|id| !calls.has_written_tag(id, &tag));
    if untagged.is_empty() {
        return Ok(());
    }
    assign(api, &tag, &untagged, Priority::Background).await?;
    for id in &untagged {
        calls.tagged(id, &tag);
    }
    info!(tag, load_balancers = untagged.len(), "Tagged load balancers");
    Ok(())
}

/// The load balancers of Services without the tag of a cluster. One that a Service found by a name of its choice may belong to
/// others, and is skipped until the Service has its ID. A load balancer with an ownership tag is skipped unless its
/// Service names it by its ID, because it may belong to another cluster.
fn untagged<'a>(
    model: &Model,
    services: impl Iterator<Item = &'a ServiceView>,
    directory: &BalancerDirectory,
) -> Vec<String> {
    let cluster = ClusterView::default();
    let mut ids = BTreeSet::new();
    for service in services {
        for key in model.parts(service, &cluster, directory).named {
            if let BalancerKey::Existing(id) = key
                && let Some(balancer) = directory.listing.by_id(&id)
                && is_of(service, balancer)
                && lacks_cluster_tag(service, balancer)
            {
                ids.insert(id);
            }
        }
    }
    ids.into_iter().collect()
}

/// Whether the load balancer has no cluster's tag, and no ownership tag of a cluster that may be another one.
fn lacks_cluster_tag(service: &ServiceView, balancer: &Balancer) -> bool {
    let is_named = names(service, balancer);
    !tags(balancer)
        .any(|tag| tag.starts_with(CLUSTER_PREFIX) || (tag.starts_with(ClusterTag::PREFIX) && !is_named))
}

/// Adds a tag to load balancers. Creates the tag if it does not exist.
pub(crate) async fn assign(api: &Api, tag: &str, ids: &[String], priority: Priority) -> Result<()> {
    let (path, body) = ([tag, "resources"], resources(ids));
    match api.send(Op::TagAssign, &path, &[], &body, priority).await {
        Err(error) if error.kind() == ErrorKind::NotFound => {
            api.send(Op::TagCreate, &[], &[], &json!({ "name": tag }), priority).await?;
            api.send(Op::TagAssign, &path, &[], &body, priority).await?;
            Ok(())
        }
        result => result.map(drop),
    }
}

/// Removes a tag from a load balancer.
pub(crate) async fn unassign(api: &Api, tag: &str, id: &str, priority: Priority) -> Result<()> {
    let (path, body) = ([tag, "resources"], resources(&[id.to_owned()]));
    match api.send(Op::TagUnassign, &path, &[], &body, priority).await {
        // A tag that does not exist is on no load balancer.
        Err(error) if error.kind() != ErrorKind::NotFound => Err(error),
        _ => Ok(()),
    }
}

fn resources(ids: &[String]) -> Value {
    let resources: Vec<_> = ids
        .iter()
        .map(|id| json!({"resource_id": id, "resource_type": "load_balancer"}))
        .collect();
    json!({ "resources": resources })
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use std::sync::Arc;

    use ccm_core::{
        client::Listing,
        load_balancer::{Ingress, IpMode},
        testkit::cluster::{annotate, service},
    };
    use ccm_sim::{
        Action, Fault,
        digitalocean::{Config, DigitalOcean, Switches},
    };

    use super::*;
    use crate::load_balancer::{annotations, desired::tests};

    #[test]
    fn load_balancers_without_a_clusters_tag_are_found_by_id_and_by_name() {
        let model = Model {
            settings: Arc::new(tests::settings(&[])),
            region: "nyc3".to_owned(),
        };
        let balancers = json!([
            {"id": "1", "name": "auidfirst", "tags": ["web"]},
            {"id": "2", "name": "custom", "tags": [], "ip": "203.0.113.2"},
            {"id": "3", "name": "x", "tags": []},
            {"id": "4", "name": "auidtagged", "tags": ["k8s:c-1"]},
            {"id": "5", "name": "auidforeign", "tags": ["k8s:c-2"]},
            {"id": "6", "name": "unused", "tags": []},
            {"id": "7", "name": "auidowned", "tags": ["kube_cluster_id_b"]},
            {"id": "8", "name": "y", "tags": ["kube_cluster_id_b"]},
        ]);
        let balancers: Vec<Balancer> = serde_json::from_value(balancers).unwrap();
        let listing: Listing<Balancer> = balancers.into_iter().collect();
        let directory = BalancerDirectory {
            listing: Arc::new(listing),
            is_current: true,
        };
        let all = "first by-name by-id tagged foreign new owned moved".split(' ');
        let mut services: Vec<_> = all.map(|name| service(name, &[80])).collect();
        annotate(&mut services[1], annotations::NAME, Some("custom"));
        annotate(&mut services[2], annotations::ID, Some("3"));
        annotate(&mut services[7], annotations::ID, Some("8"));
        let of = |services: &[ServiceView]| untagged(&model, services.iter(), &directory);
        assert_eq!(of(&services), ["1", "3", "8"]);
        // It serves the Service.
        services[1].ingress = vec![Ingress::address("203.0.113.2", IpMode::Vip)];
        assert_eq!(of(&services), ["1", "2", "3", "8"]);
        assert_eq!(of(&[]), [""; 0]);
    }

    #[tokio::test]
    async fn a_load_balancer_whose_tags_the_api_omits_is_tagged_once_by_each_process() {
        for returns_tags in [true, false] {
            let config = Config {
                switches: Switches {
                    returns_tags,
                    ..Switches::default()
                },
                ..Config::default()
            };
            let sim = DigitalOcean::start(config).await.unwrap();
            let id = tests::create_balancer(&sim, "auidweb");
            let mut web = service("web", &[80]);
            annotate(&mut web, annotations::ID, Some(&id));
            let token = Config::default().token;
            let variables = [
                ("DO_OVERRIDE_URL", sim.url()),
                ("DO_ACCESS_TOKEN", token.as_str()),
                ("REGION", "nyc3"),
                ("DO_CLUSTER_ID", "c-1"),
            ];
            let cloud = crate::connect(tests::context(&variables)).await.unwrap();
            let api = cloud.nodes.api.clone();
            sim.clear_calls();
            for _ in 0..3 {
                add_tags(&cloud, &api, &[&web]).await.unwrap();
            }
            let writes: Vec<_> = sim.calls().into_iter().filter(|call| call.method != "GET").collect();
            let writes: Vec<_> = writes.iter().map(|call| call.op).collect();
            let expected = ["tags_assign_resources", "tags_create", "tags_assign_resources"];
            assert_eq!(writes, expected, "{returns_tags}");
            assert_eq!(sim.documents("load_balancers")[0]["tags"], json!(["k8s:c-1"]));
            assert_eq!(cloud.engine.cloud().without_tags(), i64::from(!returns_tags));
        }
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
            let result = super::assign(&tests::api(&sim), "k8s:c-1", &[id], Priority::User).await;
            assert_eq!(result.is_err(), has_failed, "{result:?}");
            let Some(expected) = expected else { continue };
            let calls: Vec<_> = sim.calls().into_iter().map(|call| call.op).collect();
            assert_eq!(calls, expected);
            assert_eq!(sim.documents("load_balancers")[0]["tags"], json!(["k8s:c-1"]));
        }
    }
}
