//! Load balancers whose Services the API server lost.

use ccm_core::load_balancer::{OrphanPart, Request};

use crate::stage::{ID, Stage, annotate, service};

async fn orphans(stage: &Stage) -> Vec<OrphanPart> {
    let balancers = stage.cloud.load_balancers().unwrap();
    balancers.discover(&stage.request()).await.unwrap().orphans.unwrap()
}

fn texts(orphans: &[OrphanPart]) -> Vec<String> {
    orphans.iter().map(|orphan| orphan.what.clone()).collect()
}

/// The state of the cloud, for comparison.
fn picture(stage: &Stage) -> String {
    format!("{:?} {:?}", stage.balancers(), stage.sim.security_groups())
}

fn groups_of_services(stage: &Stage) -> Vec<String> {
    let groups = stage.sim.security_groups().into_iter().map(|group| group.name);
    groups.filter(|name| name.starts_with("lb-sg-")).collect()
}

#[tokio::test]
async fn orphans_are_listed_and_nothing_but_a_permitted_pass_deletes_one() {
    let mut stage = Stage::served().await;
    let id = stage.balancers()[0].loadbalancer.id.clone();
    let mut api = service("api", &[8080]);
    annotate(&mut api, ID, Some(&id));
    stage.services.push(api);
    stage.settle().await;
    assert_eq!(orphans(&stage).await, []);

    stage.services.retain(|service| &*service.id.name == "web");
    let before = picture(&stage);
    let shared = orphans(&stage).await;
    assert_eq!(
        texts(&shared),
        [
            format!(
                "listeners tagged kube_service_kubernetes_shop_api on load balancer kube_service_kubernetes_shop_web ({id})"
            ),
            "security group lb-sg-uid-api-shop-api".to_owned(),
        ]
    );
    assert!(shared.iter().all(|orphan| !orphan.deletable));
    stage.settle().await;

    let web = stage.services.remove(0);
    let alone = orphans(&stage).await;
    let balancer = format!("load balancer kube_service_kubernetes_shop_web ({id})");
    assert_eq!(texts(&alone)[0], balancer);
    assert_eq!(alone.iter().filter(|orphan| orphan.deletable).count(), 1);
    let permitted = |stage: &Stage| Request {
        delete_orphan: true,
        ..stage.request()
    };
    let balancers = std::sync::Arc::clone(&stage.cloud);
    let balancers = balancers.load_balancers().unwrap();
    for orphan in &alone {
        let report = balancers.run(&orphan.part, &stage.request()).await;
        assert!(report.steps.is_empty(), "{report:?}");
        if !orphan.deletable {
            let report = balancers.run(&orphan.part, &permitted(&stage)).await;
            assert!(report.steps.is_empty(), "{report:?}");
        }
    }
    assert_eq!(picture(&stage), before);

    // A new Service of the same name adopts it, including the address.
    let mut again = service("web", &[80, 443]);
    again.id.uid = "another".into();
    stage.services.push(again);
    stage.settle().await;
    assert_eq!(stage.balancers()[0].loadbalancer.id, id);
    assert_eq!(stage.services[0].ingress, web.ingress);

    stage.services.clear();
    let orphan = orphans(&stage).await.remove(0);
    assert_eq!(orphan.what, balancer);
    let groups = groups_of_services(&stage);
    let request = permitted(&stage);
    while !stage.balancers().is_empty() {
        stage.run(&orphan.part, &request).await;
    }
    assert_eq!(groups_of_services(&stage), groups, "groups are only reported");
}
