//! The real OpenStack. Only where `CCM_TEST_OPENSTACK_REAL` is set, as `cargo xtask test` does: it installs packages and
//! starts a dozen services.

use std::env;
use std::path::PathBuf;

use ccm_testbed::cache::{self, say};
use ccm_testbed::openstack_real::OpenStack;

/// The folder with the cloud's state.
fn state() -> PathBuf {
    env::var_os("OSREAL_DIR")
        .map_or_else(|| cache::dir().unwrap().join("openstack-real/cloud"), PathBuf::from)
}

#[tokio::test]
async fn servers_of_a_real_cloud_are_created_and_deleted_and_calls_are_logged() {
    if env::var_os("CCM_TEST_OPENSTACK_REAL").is_none() {
        say("left out, since CCM_TEST_OPENSTACK_REAL is not set: the test of the real OpenStack");
        return;
    }
    // A cloud that other processes use keeps running after this test.
    let shared = state().join("run").exists();
    let cloud = OpenStack::start(2).await.unwrap();
    assert_eq!(cloud.dir(), state());
    let conf = std::fs::read_to_string(cloud.cloud_conf()).unwrap();
    assert!(conf.contains(&format!("auth-url={}\n", cloud.auth_url())), "{conf}");
    assert_ne!(conf, std::fs::read_to_string(cloud.other_cloud_conf()).unwrap());

    let mark = cloud.mark().unwrap();
    let servers = cloud.create_servers(&["extra-1", "extra-2"]).await.unwrap();
    for name in ["node-1", "node-2", "extra-1", "extra-2"] {
        let server = servers.iter().find(|s| s.name == name).unwrap();
        assert_eq!((server.status.as_str(), server.addresses.len()), ("ACTIVE", 1), "{name}");
    }
    let calls = cloud.calls_since(&mark).unwrap();
    let created = calls.iter().filter(|c| c.service == "nova" && c.method == "POST" && c.path == "/servers");
    assert_eq!(created.map(|c| c.status).collect::<Vec<_>>(), [202, 202]);
    assert!(calls.iter().any(|c| c.user_agent.starts_with("openstacksdk")));

    let servers = cloud.stop_servers(&["extra-1"]).await.unwrap();
    assert_eq!(servers.iter().find(|s| s.name == "extra-1").unwrap().status, "SHUTOFF");
    let servers = cloud.delete_servers(&["extra-1", "extra-2"]).await.unwrap();
    assert!(!servers.iter().any(|s| s.name.starts_with("extra")));

    let mark = cloud.mark().unwrap();
    let second = OpenStack::start(2).await.unwrap();
    let calls = cloud.calls_since(&mark).unwrap();
    let logins: Vec<_> = calls
        .iter()
        .filter(|c| c.service == "keystone" && c.method == "POST" && c.user_agent.starts_with("openstacksdk"))
        .collect();
    assert!(logins.is_empty(), "a second start needs no setup: {logins:?}");
    let dir = cloud.dir().to_owned();
    cloud.stop().await.unwrap();
    assert!(second.list_servers().await.unwrap().len() >= 2, "the cloud runs while a process uses it");
    second.stop().await.unwrap();
    assert_eq!(dir.join("run").exists(), shared, "stopped and wiped after the last user, and not before");
}
