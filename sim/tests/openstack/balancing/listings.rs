//! The content of listings, by caller and time.

use super::*;

impl Session {
    /// This field of all listed load balancers.
    async fn listed(&self, field: &str) -> Vec<String> {
        self.lb_get("/loadbalancers").await.each("loadbalancers", field)
    }
}

#[tokio::test]
async fn a_listing_is_of_the_own_project_and_of_all_for_an_administrator_who_names_none() {
    let mut session = Session::start().await;
    session.balancer(json!({})).await;
    let id = session.cloud.load_balancers()[0].loadbalancer.id.clone();
    let other = session.cloud.create_project("other");
    let token_of = async |name: &str, admin: bool| {
        let spec = UserSpec {
            name: name.to_owned(),
            password: "p".to_owned(),
            projects: Some(vec!["other".to_owned()]),
            admin,
        };
        session.cloud.create_user(&spec).unwrap();
        let answer = session.login(&password_login(name, "p", Some("other"))).await;
        answer.header("x-subject-token").to_owned()
    };
    let (theirs, admin) = (token_of("them", false).await, token_of("root", true).await);
    session.token = theirs;
    assert!(session.listed("id").await.is_empty());
    assert_eq!(session.lb_get(&format!("/loadbalancers/{id}")).await.status, 403);
    session.token = admin;
    assert_eq!(session.listed("id").await, std::slice::from_ref(&id));
    let own = format!("/loadbalancers?project_id={other}");
    assert!(session.lb_get(&own).await.each("loadbalancers", "id").is_empty());
    assert_eq!(
        session
            .lb(Method::PUT, &format!("/loadbalancers/{id}/failover"), Value::Null)
            .await
            .status,
        202
    );
}

#[tokio::test]
async fn listings_are_cut_into_pages_by_a_limit() {
    let session = Session::start().await;
    session.cloud.configure(|settings| settings.load_balancing.max_limit = 2);
    for name in ["a", "b", "c"] {
        session.balancer(json!({"name": name, "listeners": []})).await;
    }
    let mut seen = Vec::new();
    let mut next = Some("/RegionOne/load-balancer/v2.0/lbaas/loadbalancers".to_owned());
    while let Some(path) = next {
        let page = session.get(&path).await;
        seen.extend(page.each("loadbalancers", "name"));
        let links = page.json["loadbalancers_links"].as_array().unwrap().clone();
        let link = links.iter().find(|link| link["rel"] == "next");
        next = link.map(|link| link["href"].as_str().unwrap().to_owned());
    }
    seen.sort();
    assert_eq!(seen, ["a", "b", "c"]);
}

#[tokio::test]
async fn a_stale_listing_shows_the_past_while_writes_are_made_now() {
    let session = Session::start().await;
    let rule = Fault::on("loadbalancer_list", Action::StaleRead).once();
    session.cloud.add_fault(rule);
    assert_eq!(session.balancer(json!({})).await.status, 201);
    assert!(session.listed("id").await.is_empty());
    assert_eq!(session.listed("name").await, ["web"]);
    let ops = session.cloud.call_counts();
    assert_eq!((ops["loadbalancer_create"], ops["loadbalancer_list"]), (1, 2));
}
