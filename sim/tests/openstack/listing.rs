//! Nova's server listings.

use std::time::Duration;

use ccm_sim::openstack::{ServerPatch, ServerSpec};

use crate::client::Session;
use crate::compute::names;

#[tokio::test]
async fn pages_are_walked_by_their_links_newest_first() {
    let session = Session::start().await;
    let first = session.cloud.create_server(&ServerSpec::named("oldest")).unwrap();
    session.cloud.advance_clock(Duration::from_secs(5));
    let ids = session
        .cloud
        .create_servers(7, &ServerSpec::named("node-{i}"))
        .unwrap();
    let mut url = "/RegionOne/compute/v2.1/servers/detail?limit=4".to_owned();
    let mut pages = Vec::new();
    loop {
        let page = session.get(&url).await;
        pages.push(page.each("servers", "id"));
        let next = page.at("/servers_links/0/href").to_owned();
        if next.is_empty() {
            break;
        }
        url = next;
    }
    let sizes: Vec<usize> = pages.iter().map(Vec::len).collect();
    assert_eq!(sizes, [4, 4, 0], "a full last page links to an empty one");
    let seen: Vec<String> = pages.concat();
    let mut want = ids;
    want.sort();
    want.push(first);
    assert_eq!(seen, want, "newest first, and by id within a second");
}

#[tokio::test]
async fn a_page_never_exceeds_the_limit_of_the_service() {
    let session = Session::start().await;
    session
        .cloud
        .create_servers(5, &ServerSpec::named("n{i}"))
        .unwrap();
    session.cloud.configure(|settings| settings.max_limit = 3);
    for (query, count, linked) in [
        ("", 3, true),
        ("?limit=100", 3, true),
        ("?limit=2", 2, true),
        ("?limit=0", 0, false),
    ] {
        let page = session.nova("2.1", &format!("/servers/detail{query}")).await;
        assert_eq!(page.each("servers", "id").len(), count, "{query}");
        assert_eq!(page.json.get("servers_links").is_some(), linked, "{query}");
    }
}

#[tokio::test]
async fn names_are_searched_by_pattern_as_the_database_does() {
    let session = Session::start().await;
    for name in ["web", "web-1", "web-2", "Web-1", "a|b", "node.x", "nodeyx"] {
        session.cloud.create_server(&ServerSpec::named(name)).unwrap();
    }
    for (pattern, want) in [
        ("web", vec!["Web-1", "web", "web-1", "web-2"]),
        ("^web$", vec!["web"]),
        ("^web-1$", vec!["Web-1", "web-1"]),
        ("^(web-1|web-2)$", vec![]),
        ("a|b", vec!["a|b"]),
        (r"^node\.x$", vec!["node.x"]),
        ("^node.x$", vec!["node.x", "nodeyx"]),
        ("^web-[0-9]$", vec!["Web-1", "web-1", "web-2"]),
    ] {
        let encoded: String = reqwest::Url::parse_with_params("http://x/", [("name", pattern)])
            .unwrap()
            .into();
        let query = encoded.split_once('?').unwrap().1.to_owned();
        let mut found = names(&session, "2.1", &format!("?{query}")).await;
        found.sort();
        assert_eq!(found, want, "{pattern}");
    }
}

#[tokio::test]
async fn filters_by_status_flavor_tags_and_address() {
    let session = Session::start().await;
    let make = |name: &str, status: &str, flavor: &str, tag: &str| {
        let (status, flavor, tags) = (Some(status.into()), Some(flavor.into()), vec![tag.into()]);
        session
            .cloud
            .create_server(&ServerSpec {
                status,
                flavor,
                tags,
                ..ServerSpec::named(name)
            })
            .unwrap()
    };
    make("a", "ACTIVE", "m1.small", "x");
    make("b", "SHUTOFF", "m1.medium", "y");
    let ports = session.cloud.server_ports(&make("c", "ERROR", "m1.small", "y"));
    let address = session.cloud.port_addresses(&ports[0])[0];
    for (version, query, want) in [
        ("2.1", "?status=ACTIVE", "a"),
        ("2.1", "?status=shutoff&status=error", "b c"),
        ("2.1", "?status=nonsense", ""),
        ("2.1", "?flavor=3", "b"),
        ("2.26", "?tags=y", "b c"),
        ("2.26", "?not-tags-any=x,z", "b c"),
        ("2.1", &format!("?ip={address}"), "c"),
    ] {
        let mut found = names(&session, version, query).await;
        found.sort();
        assert_eq!(found.join(" "), want, "{query}");
    }
}

#[tokio::test]
async fn refuses_bad_queries_as_the_microversion_demands() {
    let session = Session::start().await;
    for (version, query, status, message) in [
        (
            "2.1",
            "limit=abc",
            400,
            "Invalid input for query parameters limit. Value: abc. 'abc' does not match '^[0-9]*$'",
        ),
        (
            "2.1",
            "limit=-1",
            400,
            "Invalid input for query parameters limit. Value: -1. '-1' does not match '^[0-9]*$'",
        ),
        ("2.1", "marker=none", 400, "marker [none] not found"),
        (
            "2.1",
            "name=[",
            400,
            "Invalid input for query parameters name. Value: [. '[' is not a 'regex'",
        ),
        (
            "2.1",
            "changes-since=now",
            400,
            "Invalid input for query parameters changes-since. Value: now. 'now' is not a 'date-time'",
        ),
        ("2.1", "_x=1", 200, ""),
        ("2.75", "_x=1", 200, ""),
        ("2.1", "marker=", 200, ""),
        (
            "2.1",
            "name=",
            400,
            "Invalid input for query parameters name. Value: . '' is not a 'regex'",
        ),
        (
            "2.1",
            "sort_dir=up",
            400,
            "Invalid input received: Unknown sort direction, must be 'desc' or 'asc'",
        ),
        ("2.1", "nonsense=1", 200, ""),
        ("2.74", "nonsense=1", 200, ""),
        (
            "2.75",
            "nonsense=1",
            400,
            "'nonsense' does not match any of the regexes: '^_'",
        ),
        ("2.38", "status=nonsense", 400, "Invalid status value"),
        ("2.1", "host=compute-nova", 200, ""),
    ] {
        let answer = session.nova(version, &format!("/servers/detail?{query}")).await;
        assert_eq!(
            (answer.status, answer.at("/badRequest/message")),
            (status, message),
            "{version} {query}"
        );
    }
    let answer = session.nova("2.1", "/servers/detail?all_tenants").await;
    assert_eq!(answer.status, 403);
    let answer = session.nova("2.1", "/servers/detail?all_tenants=1").await;
    assert_eq!(answer.status, 403);
    assert_eq!(
        answer.at("/forbidden/message"),
        "Policy doesn't allow os_compute_api:servers:detail:get_all_tenants to be performed."
    );
}

#[tokio::test]
async fn changes_since_shows_deleted_servers() {
    let session = Session::start().await;
    let gone = session.cloud.create_server(&ServerSpec::named("gone")).unwrap();
    session.cloud.create_server(&ServerSpec::named("stays")).unwrap();
    session.cloud.advance_clock(Duration::from_secs(60));
    session.cloud.delete_server(&gone).unwrap();
    assert_eq!(names(&session, "2.1", "").await, ["stays"]);
    let answer = session.nova("2.1", &format!("/servers/{gone}")).await;
    assert_eq!(answer.status, 404);
    assert_eq!(
        answer.at("/itemNotFound/message"),
        format!("Instance {gone} could not be found.")
    );
    let all = session
        .nova("2.1", "/servers/detail?changes-since=2020-01-01T00:00:00Z")
        .await;
    let mut seen: Vec<(String, String)> = all
        .each("servers", "name")
        .into_iter()
        .zip(all.each("servers", "status"))
        .collect();
    seen.sort();
    assert_eq!(
        seen,
        [
            ("gone".into(), "DELETED".into()),
            ("stays".into(), "ACTIVE".into())
        ]
    );
    let deletion = all.json["servers"]
        .as_array()
        .unwrap()
        .iter()
        .find(|server| server["id"] == gone.as_str());
    let since = deletion.unwrap()["updated"].as_str().unwrap();
    assert_eq!(
        names(&session, "2.1", &format!("?changes-since={since}")).await,
        ["gone"]
    );
}

#[tokio::test]
async fn a_renamed_server_is_found_by_its_new_name_only() {
    let session = Session::start().await;
    let id = session.cloud.create_server(&ServerSpec::named("old")).unwrap();
    let patch = ServerPatch {
        name: Some("new".into()),
        ..ServerPatch::default()
    };
    session.cloud.update_server(&id, &patch).unwrap();
    assert!(names(&session, "2.1", "?name=^old$").await.is_empty());
    assert_eq!(names(&session, "2.1", "?name=^new$").await, ["new"]);
}
