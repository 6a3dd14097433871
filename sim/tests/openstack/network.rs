//! Neutron.

use ccm_sim::openstack::{NetworkSpec, PortPatch, PortSpec, ServerSpec};
use reqwest::Method;
use serde_json::json;

use crate::client::{Answer, Session};

#[tokio::test]
async fn the_catalog_has_the_url_of_a_version_document() {
    let session = Session::start().await;
    let answer = session.get("/RegionOne/network").await;
    assert_eq!(answer.at("/versions/0/id"), "v2.0");
    assert_eq!(answer.at("/versions/0/links/0/href"), format!("{}/RegionOne/network/v2.0/", session.base));
}

#[tokio::test]
async fn ports_have_the_real_fields() {
    let session = Session::start().await;
    let server = session.cloud.create_server(&ServerSpec::named("n")).unwrap();
    let id = &session.cloud.server_ports(&server)[0];
    let port = session.neutron(&format!("/ports/{id}")).await.json["port"].clone();
    for (field, want) in [
        ("device_id", json!(server)),
        ("device_owner", json!("compute:nova")),
        ("status", json!("ACTIVE")),
        ("admin_state_up", json!(true)),
        ("project_id", json!(session.cloud.project_id())),
        ("tenant_id", json!(session.cloud.project_id())),
        ("port_security_enabled", json!(true)),
        ("allowed_address_pairs", json!([])),
    ] {
        assert_eq!(port[field], want, "{field}");
    }
    assert_eq!(port["fixed_ips"][0]["ip_address"], "10.0.0.2");
    assert!(port.get("trunk_details").is_none(), "only parents of trunks have them");
    let subnet = port["fixed_ips"][0]["subnet_id"].as_str().unwrap();
    let subnet = session.neutron(&format!("/subnets/{subnet}")).await;
    assert_eq!((subnet.at("/subnet/cidr"), subnet.at("/subnet/gateway_ip")), ("10.0.0.0/12", "10.0.0.1"));
    assert_eq!(subnet.json["subnet"]["network_id"], port["network_id"]);
}

#[tokio::test]
async fn equal_filters_are_alternatives_and_fields_cut_the_answer() {
    let session = Session::start().await;
    let servers = session.cloud.create_servers(4, &ServerSpec::named("n{i}")).unwrap();
    let query = format!(
        "?device_id={}&device_id={}&fields=id&fields=device_id&fields=nonsense",
        servers[0], servers[2]
    );
    let answer = session.neutron(&format!("/ports{query}")).await;
    let mut devices = answer.each("ports", "device_id");
    devices.sort();
    let mut want = vec![servers[0].clone(), servers[2].clone()];
    want.sort();
    assert_eq!(devices, want);
    assert_eq!(answer.json["ports"][0].as_object().unwrap().len(), 2);
    let ports: Vec<String> = servers.iter().flat_map(|server| session.cloud.server_ports(server)).collect();
    let by_id = session.neutron(&format!("/ports?id={}&id={}&id=unknown", ports[0], ports[1])).await;
    assert_eq!(by_id.each("ports", "id").len(), 2);
    let both = session.neutron(&format!("/ports?id={}&device_id={}", ports[0], servers[1])).await;
    assert!(both.each("ports", "id").is_empty(), "different filters all have to match");
}

#[tokio::test]
async fn ports_are_filtered_by_every_kind_of_attribute() {
    let session = Session::start().await;
    let spec = NetworkSpec {
        name: "other".into(),
        subnets: vec!["192.168.0.0/24".parse().unwrap()],
        ..NetworkSpec::default()
    };
    let network = session.cloud.create_network(&spec).unwrap();
    let ports = Some(vec![
        PortSpec {
            name: "a".into(),
            tags: vec!["x".into(), "y".into()],
            ..PortSpec::on("private")
        },
        PortSpec {
            name: "b".into(),
            status: Some("DOWN".into()),
            ..PortSpec::on("other")
        },
    ]);
    session
        .cloud
        .create_server(&ServerSpec {
            ports,
            ..ServerSpec::named("n")
        })
        .unwrap();
    for (query, want) in [
        ("", "a b"),
        ("?name=a", "a"),
        ("?status=DOWN", "b"),
        (&*format!("?network_id={network}"), "b"),
        ("?device_owner=compute:nova", "a b"),
        ("?device_owner=network:dhcp", ""),
        (&*format!("?project_id={}", session.cloud.project_id()), "a b"),
        ("?tenant_id=other", ""),
        ("?admin_state_up=False", ""),
        ("?admin_state_up=1", "a b"),
        ("?fixed_ips=ip_address=192.168.0.2", "b"),
        ("?revision_number=4", "a b"),
    ] {
        let answer = session.neutron(&format!("/ports{query}")).await;
        let mut names = answer.each("ports", "name");
        names.sort();
        assert_eq!(names.join(" "), want, "{query}");
    }
}

#[tokio::test]
async fn refuses_bad_queries_as_neutron_does() {
    let session = Session::start().await;
    for (query, class, message) in [
        ("nonsense=1", "HTTPBadRequest", "['nonsense'] is invalid attribute for filtering"),
        ("created_at=x", "HTTPBadRequest", "['created_at'] is invalid attribute for filtering"),
        (
            "limit=x",
            "BadRequest",
            "Bad limit request: Limit must be an integer 0 or greater and not 'x'.",
        ),
    ] {
        let answer = session.neutron(&format!("/ports?{query}")).await;
        assert_eq!(answer.status, 400, "{query}");
        assert_eq!(
            (answer.at("/NeutronError/type"), answer.at("/NeutronError/message")),
            (class, message),
            "{query}"
        );
    }
}

#[tokio::test]
async fn unknown_objects_are_404() {
    let session = Session::start().await;
    for (method, path, status, class) in [
        (Method::GET, "/ports/none", 404, "PortNotFound"),
        (Method::GET, "/networks/none", 404, "NetworkNotFound"),
        (Method::GET, "/subnets/none", 404, "SubnetNotFound"),
        (Method::GET, "/ports?limit=1&marker=none", 404, "PortNotFound"),
        (Method::GET, "/subnets?limit=1&marker=none", 200, ""),
        (Method::GET, "/ports?fixed_ips=none%3D1", 200, ""),
        (Method::GET, "/ports/none?nonsense=1", 400, "HTTPBadRequest"),
    ] {
        let request = session.request(method.clone(), &format!("/RegionOne/network/v2.0{path}"));
        let answer = Answer::of(request.send().await.unwrap()).await;
        assert_eq!((answer.status, answer.at("/NeutronError/type")), (status, class), "{method} {path}");
    }
}

#[tokio::test]
async fn an_empty_list_of_fields_selects_none() {
    let session = Session::start().await;
    session.cloud.create_server(&ServerSpec::named("node-1")).unwrap();
    let answer = session.neutron("/ports?fields=").await;
    assert_eq!(answer.json["ports"], serde_json::json!([{}]));
}

#[tokio::test]
async fn pages_are_walked_by_their_links() {
    let session = Session::start().await;
    session.cloud.create_servers(7, &ServerSpec::named("n{i}")).unwrap();
    let all = session.neutron("/ports?fields=id").await;
    assert!(all.json.get("ports_links").is_none(), "paged only when asked to");
    let mut url = "/RegionOne/network/v2.0/ports?limit=3&fields=id".to_owned();
    let mut seen = Vec::new();
    while !url.is_empty() {
        let page = session.get(&url).await;
        seen.extend(page.each("ports", "id"));
        let links = page.json["ports_links"].as_array().unwrap().clone();
        let next = links.iter().find(|link| link["rel"] == "next");
        url = next.map(|link| link["href"].as_str().unwrap().to_owned()).unwrap_or_default();
    }
    assert_eq!(seen, all.each("ports", "id"));
}

#[tokio::test]
async fn trunks_list_their_sub_ports() {
    let session = Session::start().await;
    let server = session.cloud.create_server(&ServerSpec::named("n")).unwrap();
    let parent = session.cloud.server_ports(&server)[0].clone();
    let sub = session.cloud.add_sub_port(&parent, 101, &PortSpec::on("private")).unwrap();
    let details = session.neutron(&format!("/ports/{parent}")).await.json["port"]["trunk_details"].clone();
    assert_eq!(details["sub_ports"][0]["port_id"], sub.as_str());
    assert_eq!(details["sub_ports"][0]["segmentation_id"], 101);
    let sub_port = session.neutron(&format!("/ports/{sub}")).await;
    assert_eq!((sub_port.at("/port/device_owner"), sub_port.at("/port/device_id")), ("trunk:subport", ""));
    session.cloud.delete_port(&sub).unwrap();
    let details = session.neutron(&format!("/ports/{parent}")).await.json["port"]["trunk_details"].clone();
    assert_eq!(details["sub_ports"], json!([]));
}

#[tokio::test]
async fn a_port_changes_its_addresses_and_its_revision() {
    let session = Session::start().await;
    let server = session.cloud.create_server(&ServerSpec::named("n")).unwrap();
    let port = session.cloud.server_ports(&server)[0].clone();
    let patch = |address: &str| PortPatch {
        addresses: Some(vec![address.parse().unwrap()]),
        ..PortPatch::default()
    };
    session.cloud.update_port(&port, &patch("10.0.0.9")).unwrap();
    let shown = session.neutron(&format!("/ports/{port}")).await;
    assert_eq!(shown.at("/port/fixed_ips/0/ip_address"), "10.0.0.9");
    assert_eq!(shown.json["port"]["revision_number"], 5);
    assert!(
        session.cloud.update_port(&port, &patch("192.0.2.1")).is_err(),
        "in no subnet of the network"
    );
    let other = session.cloud.create_server(&ServerSpec::named("o")).unwrap();
    let other = session.cloud.server_ports(&other)[0].clone();
    assert!(session.cloud.update_port(&other, &patch("10.0.0.9")).is_err(), "taken");
}

#[tokio::test]
async fn refuses_a_request_line_beyond_the_front_ends_limit() {
    let session = Session::start().await;
    let ids = |count: usize| (0..count).map(|n| format!("id={n:036}")).collect::<Vec<_>>().join("&");
    assert_eq!(session.neutron(&format!("/ports?{}", ids(150))).await.status, 200);
    let answer = session.neutron(&format!("/ports?{}", ids(220))).await;
    assert_eq!(answer.status, 414);
    assert!(answer.text.contains("Request-URI Too Long"));
}

#[tokio::test]
async fn networks_of_others_are_visible_if_shared_or_external() {
    let session = Session::start().await;
    let other = session.cloud.create_project("other");
    let network = |name: &str, shared: bool| NetworkSpec {
        name: name.into(),
        project: Some(other.clone()),
        shared,
        ..NetworkSpec::default()
    };
    session.cloud.create_network(&network("hidden", false)).unwrap();
    session.cloud.create_network(&network("common", true)).unwrap();
    let mut names = session.neutron("/networks").await.each("networks", "name");
    names.sort();
    assert_eq!(names, ["common", "private", "public"]);
    let external = session.neutron("/networks?router:external=true").await.each("networks", "name");
    assert_eq!(external, ["public"]);
}
