//! Routers and their static routes.

use std::net::IpAddr;

use ccm_sim::openstack::RouterSpec;
use reqwest::Method;
use serde_json::{Value, json};

use crate::client::{Answer, Session};

/// A router in the network of the nodes, `10.0.0.0/12`.
struct Ground {
    session: Session,
    router: String,
}

impl Ground {
    async fn lay() -> Self {
        let session = Session::start().await;
        let spec = RouterSpec {
            name: "pods".to_owned(),
            networks: vec!["private".to_owned()],
            ..RouterSpec::default()
        };
        let router = session.cloud.create_router(&spec).unwrap();
        Self { session, router }
    }

    /// `PUT` of these routes on the router, or on a path below it.
    async fn put(&self, below: &str, routes: &[(&str, &str)], revision: Option<u64>) -> Answer {
        let routes: Vec<Value> =
            routes.iter().map(|(to, via)| json!({"destination": to, "nexthop": via})).collect();
        let path = format!("/RegionOne/network/v2.0/routers/{}{below}", self.router);
        let mut request =
            self.session.request(Method::PUT, &path).json(&json!({"router": {"routes": routes}}));
        if let Some(revision) = revision {
            request = request.header("if-match", format!("revision_number={revision}"));
        }
        Answer::of(request.send().await.unwrap()).await
    }

    async fn add(&self, routes: &[(&str, &str)]) -> Answer {
        self.put("/add_extraroutes", routes, None).await
    }

    async fn remove(&self, routes: &[(&str, &str)]) -> Answer {
        self.put("/remove_extraroutes", routes, None).await
    }

    fn table(&self) -> Vec<String> {
        let routes = self.session.cloud.router_routes(&self.router);
        routes.iter().map(|(to, via)| format!("{to} {via}")).collect()
    }

    async fn shown(&self) -> Value {
        let answer = self.session.neutron(&format!("/routers/{}", self.router)).await;
        answer.json["router"].clone()
    }
}

#[tokio::test]
async fn routes_are_added_and_removed_and_the_answer_has_all_of_them() {
    let ground = Ground::lay().await;
    let one = ("10.244.1.0/24", "10.0.0.7");
    let added = ground.add(&[one]).await;
    assert_eq!(added.status, 200, "{}", added.text);
    // An existing route is no error, and a second path to the same network is another route.
    let more = ground.add(&[one, ("10.244.1.0/24", "10.0.0.8")]).await;
    assert_eq!(more.json["router"]["routes"].as_array().unwrap().len(), 2, "{}", more.text);
    assert_eq!(ground.shown().await["routes"], more.json["router"]["routes"]);
    // Nor is a missing one.
    let removed = ground.remove(&[one, ("10.244.9.0/24", "10.0.0.7")]).await;
    assert_eq!(removed.status, 200, "{}", removed.text);
    assert_eq!(ground.table(), ["10.244.1.0/24 10.0.0.8"]);
}

#[tokio::test]
async fn the_whole_resulting_set_is_checked() {
    let ground = Ground::lay().await;
    let good = ("10.244.1.0/24", "10.0.0.7");
    for (bad, reason) in [
        (("10.244.2.0/24", "192.0.2.77"), "the nexthop is not connected with router"),
        (("10.244.2.0/24", "10.0.0.1"), "the nexthop is used by router"),
    ] {
        for refused in [
            ground.add(&[good, bad]).await,
            ground.put("", &[good, bad], None).await,
        ] {
            assert_eq!(refused.status, 400, "{}", refused.text);
            assert_eq!(refused.at("/NeutronError/type"), "InvalidRoutes");
            let message = refused.at("/NeutronError/message");
            assert!(message.ends_with(reason), "{message}");
            assert!(message.contains("'10.244.1.0/24'"), "all of them are repeated: {message}");
        }
        assert!(ground.table().is_empty(), "all or nothing");
    }
    // An invalid route that was set in another way fails every change, except the one that removes it.
    let foreign: (ipnet::IpNet, IpAddr) = ("172.16.0.0/12".parse().unwrap(), "192.0.2.1".parse().unwrap());
    let cloud = &ground.session.cloud;
    cloud.set_router_routes(&ground.router, &[foreign]).unwrap();
    assert_eq!(ground.add(&[good]).await.status, 400);
    assert_eq!(ground.remove(&[("172.16.0.0/12", "192.0.2.1")]).await.status, 200);
    assert_eq!(ground.add(&[good]).await.status, 200);
}

#[tokio::test]
async fn a_quota_bounds_the_routes_of_one_router() {
    let ground = Ground::lay().await;
    let cloud = &ground.session.cloud;
    cloud.configure(|settings| {
        settings.resource_quotas.insert("router_route".to_owned(), 2);
    });
    let networks: Vec<String> = (1..=3).map(|i| format!("10.244.{i}.0/24")).collect();
    let routes: Vec<_> = networks.iter().map(|to| (to.as_str(), "10.0.0.7")).collect();
    let refused = ground.add(&routes).await;
    assert_eq!(refused.status, 409, "{}", refused.text);
    assert_eq!(refused.at("/NeutronError/type"), "OverQuota");
    assert!(ground.table().is_empty(), "all or nothing");
    assert_eq!(ground.add(&routes[..2]).await.status, 200);
    assert_eq!(ground.add(&routes[2..]).await.status, 409);
    let quota = ground.session.neutron(&format!("/quotas/{}", cloud.project_id())).await;
    assert_eq!(quota.json["quota"]["router_route"], 2);
}

#[tokio::test]
async fn a_list_is_written_only_at_the_revision_that_is_named() {
    let ground = Ground::lay().await;
    let routes = [("10.244.1.0/24", "10.0.0.7")];
    let revision = ground.shown().await["revision_number"].as_u64().unwrap();
    assert_eq!(ground.put("", &routes, Some(revision)).await.status, 200);
    let stale = ground.put("", &[], Some(revision)).await;
    assert_eq!(stale.status, 412, "{}", stale.text);
    assert_eq!(stale.at("/NeutronError/type"), "RevisionNumberConstraintFailed");
    assert_eq!(ground.table().len(), 1);
}

#[tokio::test]
async fn host_bits_and_repetitions_are_refused_where_the_list_is_written() {
    let ground = Ground::lay().await;
    let odd = [("10.244.1.9/24", "10.0.0.7")];
    let refused = ground.put("", &odd, None).await;
    assert_eq!(refused.status, 400, "{}", refused.text);
    assert!(refused.text.contains("'10.244.1.0/24' is recommended"), "{}", refused.text);
    assert_eq!(ground.add(&odd).await.status, 200, "single ones are not looked at as closely");
    let twice = [("10.244.2.0/24", "10.0.0.7"); 2];
    assert_eq!(ground.put("", &twice, None).await.status, 400);
}

#[tokio::test]
async fn either_extension_can_be_missing() {
    let ground = Ground::lay().await;
    let routes = [("10.244.1.0/24", "10.0.0.7")];
    let missing = |aliases: &[&str]| {
        let aliases = aliases.iter().map(|alias| (*alias).to_owned()).collect();
        ground.session.cloud.configure(|settings| settings.missing_extensions = aliases);
    };
    missing(&["extraroute-atomic"]);
    for refused in [ground.add(&routes).await, ground.remove(&routes).await] {
        assert_eq!(refused.status, 404, "{}", refused.text);
    }
    assert_eq!(ground.put("", &routes, None).await.status, 200);
    missing(&["extraroute-atomic", "extraroute"]);
    let refused = ground.put("", &[], None).await;
    assert_eq!(refused.status, 400, "{}", refused.text);
    assert!(refused.text.contains("Unrecognized attribute(s) 'routes'"), "{}", refused.text);
    assert_eq!(ground.table().len(), 1);
}
