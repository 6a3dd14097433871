//! Nova.

use ccm_sim::openstack::{AddressSpec, FlavorSpec, NetworkSpec, PortSpec, ServerPatch, ServerSpec, UserSpec};
use reqwest::Method;
use serde_json::{Value, json};

use crate::client::{Answer, Session, password_login};

/// Names of a listing.
pub(crate) async fn names(session: &Session, version: &str, query: &str) -> Vec<String> {
    let answer = session.nova(version, &format!("/servers/detail{query}")).await;
    assert_eq!(answer.status, 200, "{query}: {}", answer.text);
    answer.each("servers", "name")
}

#[tokio::test]
async fn a_server_has_the_fields_of_its_microversion() {
    let session = Session::start().await;
    let spec = ServerSpec {
        access_ipv4: Some("198.51.100.7".parse().unwrap()),
        metadata: [("hostname".to_owned(), "a.example".to_owned())].into(),
        availability_zone: Some("az-2".into()),
        ..ServerSpec::named("node-1")
    };
    let id = session.cloud.create_server(&spec).unwrap();
    let old = session.nova("2.1", &format!("/servers/{id}")).await;
    assert_eq!(old.header("openstack-api-version"), "compute 2.1");
    assert_eq!(old.header("x-openstack-nova-api-version"), "2.1");
    assert_eq!(old.header("content-type"), "application/json");
    let server = &old.json["server"];
    for (field, want) in [
        ("id", json!(id)),
        ("name", json!("node-1")),
        ("status", json!("ACTIVE")),
        ("tenant_id", json!(session.cloud.project_id())),
        ("accessIPv4", json!("198.51.100.7")),
        ("accessIPv6", json!("")),
        ("metadata", json!({"hostname": "a.example"})),
        ("OS-EXT-AZ:availability_zone", json!("az-2")),
        ("OS-EXT-STS:power_state", json!(1)),
        ("OS-EXT-STS:vm_state", json!("active")),
        ("OS-EXT-STS:task_state", Value::Null),
        ("security_groups", json!([{"name": "default"}])),
    ] {
        assert_eq!(server[field], want, "{field}");
    }
    assert_eq!(server["flavor"]["id"], "2");
    assert!(server["flavor"].get("original_name").is_none());
    assert_eq!(server["addresses"]["private"][0]["OS-EXT-IPS:type"], "fixed");
    assert_eq!(server["addresses"]["private"][0]["version"], 4);
    assert!((1200..4000).contains(&old.text.len()), "{} bytes", old.text.len());

    let new = session.nova("2.47", &format!("/servers/{id}")).await;
    let flavor = &new.json["server"]["flavor"];
    assert_eq!((&flavor["original_name"], &flavor["vcpus"]), (&json!("m1.small"), &json!(1)));
    assert!(flavor.get("id").is_none());
    for field in ["locked", "description", "tags"] {
        assert!(old.json["server"].get(field).is_none(), "{field}");
        assert!(new.json["server"].get(field).is_some(), "{field}");
    }
}

#[tokio::test]
async fn microversions_are_negotiated() {
    let session = Session::start().await;
    session.cloud.configure(|settings| settings.max_microversion = 60);
    assert_eq!(session.get("/RegionOne/compute/").await.at("/versions/1/version"), "2.60");
    for (version, status, said) in [
        ("2.47", 200, "compute 2.47"),
        ("2.46", 501, ""),
        ("2.48", 501, ""),
        ("latest", 501, ""),
        ("2.61", 406, "compute 2.61"),
        ("3.1", 406, "compute 3.1"),
        ("2", 400, ""),
        ("2.07", 400, ""),
    ] {
        let answer = session.nova(version, "/servers/detail").await;
        assert_eq!((answer.status, answer.header("openstack-api-version")), (status, said), "{version}");
    }
    let answer = session.nova("2.61", "/servers/detail").await;
    assert_eq!(
        answer.at("/computeFault/message"),
        "Version 2.61 is not supported by the API. Minimum is 2.1 and maximum is 2.60."
    );
    session.cloud.configure(|settings| settings.max_microversion = 1);
    assert_eq!(session.nova("2.47", "/servers/detail").await.status, 406, "a cloud with 2.1 only");
    assert_eq!(session.nova("2.1", "/servers/detail").await.status, 200);
}

#[tokio::test]
async fn a_down_cell_hides_servers_from_lists_and_fails_a_read_by_id() {
    let session = Session::start().await;
    let lost = ServerSpec {
        cell: Some("cell2".into()),
        ..ServerSpec::named("lost")
    };
    let lost = session.cloud.create_server(&lost).unwrap();
    session.cloud.create_server(&ServerSpec::named("fine")).unwrap();
    session.cloud.set_cell_up("cell2", false);
    for (version, query) in [
        ("2.1", ""),
        ("2.47", "?limit=10"),
        ("2.47", "?name=^lost$"),
        ("2.47", "?name=^"),
    ] {
        let found = names(&session, version, query).await;
        assert!(!found.contains(&"lost".to_owned()), "{version} {query}: {found:?}");
    }
    let old = session.nova("2.47", &format!("/servers/{lost}")).await;
    assert_eq!(old.status, 500);
    assert!(old.at("/computeFault/message").ends_with("<class 'nova.exception.NovaException'>"));
    session.cloud.set_cell_up("cell2", true);
    assert_eq!(session.nova("2.1", &format!("/servers/{lost}")).await.at("/server/name"), "lost");
}

#[tokio::test]
async fn another_project_sees_nothing() {
    let session = Session::start().await;
    let id = session.cloud.create_server(&ServerSpec::named("mine")).unwrap();
    session.cloud.create_project("other");
    let projects = Some(vec!["other".into()]);
    let user = UserSpec {
        name: "else".into(),
        password: "p".into(),
        projects,
        admin: false,
    };
    session.cloud.create_user(&user).unwrap();
    session
        .cloud
        .create_user(&UserSpec {
            name: "root".into(),
            admin: true,
            ..user
        })
        .unwrap();
    let token = session
        .login(&password_login("else", "p", Some("other")))
        .await
        .header("x-subject-token")
        .to_owned();
    let other = Session { token, ..session };
    assert_eq!(other.nova("2.1", &format!("/servers/{id}")).await.status, 404);
    assert!(names(&other, "2.1", "").await.is_empty());
    assert!(other.neutron("/ports").await.each("ports", "id").is_empty());
    let token = other
        .login(&password_login("root", "p", Some("other")))
        .await
        .header("x-subject-token")
        .to_owned();
    let admin = Session { token, ..other };
    assert_eq!(admin.nova("2.1", &format!("/servers/{id}")).await.status, 200);
}

#[tokio::test]
async fn addresses_follow_ports_and_floating_addresses() {
    let session = Session::start().await;
    let subnets = vec!["192.168.7.0/24".parse().unwrap(), "fd00:7::/64".parse().unwrap()];
    let network = NetworkSpec {
        name: "dual".into(),
        subnets,
        ..NetworkSpec::default()
    };
    session.cloud.create_network(&network).unwrap();
    let spec = ServerSpec {
        ports: Some(vec![
            PortSpec {
                floating: Some("203.0.113.9".parse().unwrap()),
                ..PortSpec::on("private")
            },
            PortSpec {
                addresses: Some(vec!["192.168.7.77".parse().unwrap()]),
                ..PortSpec::on("dual")
            },
        ]),
        ..ServerSpec::named("node")
    };
    let id = session.cloud.create_server(&spec).unwrap();
    let port = session.cloud.attach_port(&id, &PortSpec::on("dual")).unwrap();
    let shown = |answer: &Answer| -> Vec<String> {
        let addresses = answer.json["server"]["addresses"].as_object().unwrap();
        let entries = addresses.iter().flat_map(|(name, list)| {
            list.as_array().unwrap().iter().map(move |entry| {
                let text = |key: &str| entry[key].as_str().unwrap().to_owned();
                format!("{name} {} {}", text("addr"), text("OS-EXT-IPS:type"))
            })
        });
        entries.collect()
    };
    let path = format!("/servers/{id}");
    assert_eq!(
        shown(&session.nova("2.1", &path).await),
        [
            "dual 192.168.7.77 fixed",
            "dual 192.168.7.2 fixed",
            "dual fd00:7::2 fixed",
            "private 10.0.0.2 fixed",
            "private 203.0.113.9 floating",
        ]
    );
    session.cloud.delete_port(&port).unwrap();
    session.cloud.remove_floating("203.0.113.9".parse().unwrap()).unwrap();
    assert_eq!(
        shown(&session.nova("2.1", &path).await),
        ["dual 192.168.7.77 fixed", "private 10.0.0.2 fixed"]
    );
    let address = AddressSpec {
        addr: "192.0.2.1".parse().unwrap(),
        kind: "fixed".into(),
    };
    let addresses = Some([("other".to_owned(), vec![address])].into());
    session
        .cloud
        .update_server(
            &id,
            &ServerPatch {
                addresses,
                ..ServerPatch::default()
            },
        )
        .unwrap();
    assert_eq!(shown(&session.nova("2.1", &path).await), ["other 192.0.2.1 fixed"]);
}

#[tokio::test]
async fn a_building_server_has_no_addresses_yet() {
    let session = Session::start().await;
    let spec = ServerSpec {
        status: Some("BUILD".into()),
        ..ServerSpec::named("young")
    };
    let id = session.cloud.create_server(&spec).unwrap();
    let answer = session.nova("2.1", &format!("/servers/{id}")).await;
    assert_eq!(answer.json["server"]["addresses"], json!({}));
    session.cloud.set_status(&id, "SHUTOFF").unwrap();
    let answer = session.nova("2.1", &format!("/servers/{id}")).await;
    assert_eq!(answer.at("/server/OS-EXT-STS:vm_state"), "stopped");
    assert_eq!(answer.json["server"]["OS-EXT-STS:power_state"], 4);
    assert_eq!(answer.json["server"]["addresses"]["private"].as_array().unwrap().len(), 1);
    assert!(session.cloud.set_status(&id, "ASLEEP").is_err());
}

#[tokio::test]
async fn flavors_are_shown_and_outlived_by_their_servers() {
    let session = Session::start().await;
    let spec = FlavorSpec {
        name: "big".into(),
        vcpus: 8,
        ram: 65536,
        disk: 80,
        ..FlavorSpec::default()
    };
    let flavor = session.cloud.create_flavor(&spec).unwrap();
    let answer = session.nova("2.1", &format!("/flavors/{flavor}")).await;
    assert_eq!((answer.at("/flavor/name"), &answer.json["flavor"]["ram"]), ("big", &json!(65536)));
    let server = ServerSpec {
        flavor: Some("big".into()),
        ..ServerSpec::named("n")
    };
    let server = session.cloud.create_server(&server).unwrap();
    session.cloud.delete_flavor(&flavor).unwrap();
    let answer = session.nova("2.1", &format!("/flavors/{flavor}")).await;
    assert_eq!(
        (answer.status, answer.at("/itemNotFound/message")),
        (404, &*format!("Flavor {flavor} could not be found."))
    );
    assert_eq!(session.nova("2.1", &format!("/servers/{server}")).await.at("/server/flavor/id"), flavor);
    assert_eq!(
        session
            .nova("2.47", &format!("/servers/{server}"))
            .await
            .at("/server/flavor/original_name"),
        "big"
    );
}

#[tokio::test]
async fn an_unknown_request_is_501_and_named() {
    let session = Session::start().await;
    for (method, path) in [
        (Method::GET, "/RegionOne/compute/v2.1"),
        (Method::GET, "/RegionOne/compute/v2.1/nothing"),
        (Method::GET, "/RegionOne/compute/v2.1/servers"),
        (Method::GET, "/RegionOne/compute/v2.1/servers/"),
        (Method::GET, "/RegionOne/compute/v2.1/servers/detail?status=ACTIVE"),
        (Method::GET, "/RegionOne/compute/v2.1/servers/detail?name=web"),
        (Method::GET, "/RegionOne/compute/v2.1/servers/detail?name=^web-.$"),
        (Method::GET, "/RegionOne/compute/v2.1/flavors/detail"),
        (Method::POST, "/RegionOne/compute/v2.1/servers"),
        (Method::GET, "/RegionOne/network/v2.0/nothing"),
        (Method::GET, "/RegionOne/network/v2.0/ports?sort_key=id&sort_dir=asc"),
        (Method::DELETE, "/RegionOne/network/v2.0/ports"),
        (Method::PUT, "/RegionOne/network/v2.0/networks/none"),
        (Method::GET, "/RegionOne/load-balancer/v2.0/lbaas/flavors"),
        (Method::GET, "/RegionOne/load-balancer/v2.0/lbaas/pools?tags=x"),
        (Method::PATCH, "/identity/v3/auth/tokens"),
        (Method::GET, "/identity/v3/nothing"),
        (Method::GET, "/Elsewhere/compute/v2.1/servers/detail"),
        (Method::GET, "/"),
    ] {
        let answer = Answer::of(session.request(method.clone(), path).send().await.unwrap()).await;
        assert_eq!(answer.status, 501, "{method} {path}");
        let text = format!("The simulator does not have {method} {path}.");
        assert!(answer.text.contains(&text), "{}", answer.text);
    }
    assert_eq!(session.nova("2.1", "/servers/node-1").await.status, 404, "not an id");
}
