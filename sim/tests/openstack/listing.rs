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
    let ids = session.cloud.create_servers(7, &ServerSpec::named("node-{i}")).unwrap();
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
    session.cloud.create_servers(5, &ServerSpec::named("n{i}")).unwrap();
    session.cloud.configure(|settings| settings.max_limit = 3);
    for (query, count, linked) in [("", 3, true), ("?limit=100", 3, true), ("?limit=2", 2, true)] {
        let page = session.nova("2.1", &format!("/servers/detail{query}")).await;
        assert_eq!(page.each("servers", "id").len(), count, "{query}");
        assert_eq!(page.json.get("servers_links").is_some(), linked, "{query}");
    }
}

#[tokio::test]
async fn names_are_searched_by_pattern_as_the_database_does() {
    let session = Session::start().await;
    for name in ["web", "web-1", "web-2", "Web-1", "node.x", "nodeyx"] {
        session.cloud.create_server(&ServerSpec::named(name)).unwrap();
    }
    for (pattern, want) in [
        ("^web", vec!["Web-1", "web", "web-1", "web-2"]),
        ("^WEB-", vec!["Web-1", "web-1", "web-2"]),
        ("^web$", vec!["web"]),
        ("^web-1$", vec!["Web-1", "web-1"]),
        (r"^node\.x$", vec!["node.x"]),
        ("^eb", vec![]),
    ] {
        let encoded: String =
            reqwest::Url::parse_with_params("http://x/", [("name", pattern)]).unwrap().into();
        let query = encoded.split_once('?').unwrap().1.to_owned();
        let mut found = names(&session, "2.1", &format!("?{query}")).await;
        found.sort();
        assert_eq!(found, want, "{pattern}");
    }
}

#[tokio::test]
async fn a_deleted_server_is_shown_no_more_and_is_still_a_marker() {
    let session = Session::start().await;
    session.cloud.create_server(&ServerSpec::named("stays")).unwrap();
    session.cloud.advance_clock(Duration::from_secs(60));
    let gone = session.cloud.create_server(&ServerSpec::named("gone")).unwrap();
    session.cloud.delete_server(&gone).unwrap();
    assert_eq!(names(&session, "2.1", "").await, ["stays"]);
    let answer = session.nova("2.1", &format!("/servers/{gone}")).await;
    assert_eq!(answer.status, 404);
    assert_eq!(answer.at("/itemNotFound/message"), format!("Instance {gone} could not be found."));
    let after = format!("?limit=5&marker={gone}");
    assert_eq!(names(&session, "2.1", &after).await, ["stays"]);
    let answer = session.nova("2.1", "/servers/detail?marker=none").await;
    assert_eq!((answer.status, answer.at("/badRequest/message")), (400, "marker [none] not found"));
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
