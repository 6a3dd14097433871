//! Leader migration between this program and managers on upstream's library. At no time do two of them write for the same
//! controller.

use std::time::Duration;

use ccm_testbed::{binary::Ccm, contender::ElectionConfig};

use super::contest::{LIMIT, Stage, THIEF, short};

/// The migrated controller, with upstream's name.
const ROUTES: &str = "node-route-controller";
/// A controller that is not migrated.
const NODES: &str = "cloud-node-controller";
/// The Lease of the migrated controllers.
const LEASE: &str = "handover";

/// The flags of a migration that assigns the migrated controllers to this component.
fn flags(stage: &Stage, component: &str) -> Vec<String> {
    let file = stage.file(
        &format!("migration-{}.yaml", component.replace('*', "any")),
        &format!(
            "apiVersion: controllermanager.config.k8s.io/v1\nkind: LeaderMigrationConfiguration\nleaderName: {LEASE}\n\
             controllerLeaders:\n- name: {ROUTES}\n  component: '{component}'\n\
             - name: service-lb-controller\n  component: '{component}'\n\
             - name: cloud-node-lifecycle-controller\n  component: '{component}'\n"
        ),
    );
    vec![
        "--enable-leader-migration".to_owned(),
        format!("--leader-migration-config={}", file.display()),
        "--cluster-cidr=10.244.0.0/16".to_owned(),
        "--route-reconciliation-period=20ms".to_owned(),
    ]
}

fn words(flags: &[String]) -> Vec<&str> {
    flags.iter().map(String::as_str).collect()
}

fn routes(name: &str) -> String {
    format!("{name}/{ROUTES}")
}

/// Waits until a manager writes for all controllers.
async fn runs_all(stage: &Stage, nodes: &str, name: &str) {
    stage.wait_for_writes(nodes).await;
    stage.wait_for_writes(&routes(name)).await;
}

/// The writers for the nodes, and the writers for the routes.
fn successions(stage: &Stage) -> (Vec<String>, Vec<String>) {
    let is_routes = |writer: &str| writer.ends_with(ROUTES);
    // The other Go controllers do not matter here.
    let is_nodes = |writer: &str| writer.ends_with(NODES) || !writer.contains('/');
    (stage.writes.successions_of(is_nodes), stage.writes.successions_of(is_routes))
}

/// Waits until an upstream manager has read that another holder has this Lease.
async fn sees_another(stage: &Stage, name: &str, lease: &str) {
    let lock = format!("lock=\"kube-system/{lease}\"");
    stage
        .eventually(&format!("{name} waits for {lease}"), async || {
            let log = stage.log(name);
            let waits = |line: &str| line.contains(&lock) && line.contains("Lease is held by");
            log.lines().any(waits).then_some(())
        })
        .await;
}

/// Waits until a replica of this program has read that another manager holds the Lease of the migration.
async fn waits_for_the_migration(stage: &Stage, name: &str) {
    stage
        .eventually(&format!("{name} waits for the migration"), async || {
            let log = stage.log(name);
            let waits = |line: &str| line.contains(LEASE) && line.contains("Another process leads");
            log.lines().any(waits).then_some(())
        })
        .await;
}

async fn ends_well(stage: &Stage, name: &str, ccm: &mut Ccm) {
    ccm.terminate().unwrap();
    let status = ccm.wait(LIMIT).await.unwrap();
    let log = stage.log(name);
    assert!(status.success(), "{log}");
    assert_eq!(log.matches("Released the lease").count(), 2, "{log}");
}

async fn metric(ccm: &Ccm, lease: &str) -> String {
    let (_, metrics) = ccm.get("/metrics").await.unwrap();
    let start = format!("leader_election_master_status{{name=\"{lease}\"}} ");
    let value = metrics.lines().find_map(|line| line.strip_prefix(&start));
    value.unwrap_or_else(|| panic!("{start}\n{metrics}")).to_owned()
}

#[tokio::test(flavor = "multi_thread")]
async fn leadership_passes_to_and_from_a_manager_on_upstreams_library() {
    let stage = Stage::set().await;
    let (contest, flags) = (short(), flags(&stage, "*"));
    let flags = words(&flags);
    let theirs = &flags[..2];
    let mut go = stage.manager("go-1", &contest, theirs).await;
    runs_all(&stage, &format!("go-1/{NODES}"), "go-1").await;
    let mut ours = stage.standby_with("ours-1", &contest, &flags).await;
    runs_all(&stage, &format!("go-1/{NODES}"), "go-1").await;
    go.kill().unwrap();
    runs_all(&stage, "ours-1", "ours-1").await;

    let mut go = stage.manager("go-2", &contest, theirs).await;
    sees_another(&stage, "go-2", &contest.name).await;
    runs_all(&stage, "ours-1", "ours-1").await;
    ends_well(&stage, "ours-1", &mut ours).await;
    runs_all(&stage, &format!("go-2/{NODES}"), "go-2").await;

    let mut ours = stage.standby_with("ours-2", &contest, &flags).await;
    go.terminate().unwrap();
    go.wait(LIMIT).await.unwrap();
    runs_all(&stage, "ours-2", "ours-2").await;

    let _go = stage.manager("go-3", &contest, theirs).await;
    sees_another(&stage, "go-3", &contest.name).await;
    ours.kill().unwrap();
    runs_all(&stage, &format!("go-3/{NODES}"), "go-3").await;

    let (nodes, routes) = successions(&stage);
    let of = |suffix: &str, ours: &str| {
        vec![
            format!("go-1/{suffix}"),
            format!("ours-1{ours}"),
            format!("go-2/{suffix}"),
            format!("ours-2{ours}"),
            format!("go-3/{suffix}"),
        ]
    };
    assert_eq!(nodes, of(NODES, ""));
    assert_eq!(routes, of(ROUTES, &format!("/{ROUTES}")));
}

/// The other manager has a main Lease of its own, as kube-controller-manager does.
#[tokio::test(flavor = "multi_thread")]
async fn only_migrated_controllers_wait_for_a_manager_of_another_kind() {
    let stage = Stage::set().await;
    let contest = short();
    let other = ElectionConfig {
        name: "kube-controller-manager".to_owned(),
        ..short()
    };
    let flags = flags(&stage, "*");
    let flags = words(&flags);
    let theirs = [flags[0], flags[1], "--controllers=node-route-controller"];
    let mut go = stage.manager("go-1", &other, &theirs).await;
    stage.wait_for_writes(&routes("go-1")).await;

    let mut ours = stage.ours("ours", &contest, &flags);
    stage.wait_for_writes("ours").await;
    waits_for_the_migration(&stage, "ours").await;
    stage.wait_for_writes(&routes("go-1")).await;
    assert_eq!(stage.writes.count(&routes("ours")), 0);
    assert_eq!(metric(&ours, &contest.name).await, "1");
    assert_eq!(metric(&ours, LEASE).await, "0");
    for path in [
        "/readyz",
        "/healthz/leaderElection",
        "/healthz/leaderElection-migration",
    ] {
        assert_eq!(ours.get(path).await.unwrap().0, 200, "{path}");
    }
    let (_, page) = ours.get("/statusz").await.unwrap();
    assert!(
        page.contains(&format!(" holds the lease kube-system/{LEASE}")) && !page.contains("has no holder"),
        "{page}"
    );

    go.kill().unwrap();
    stage.wait_for_writes(&routes("ours")).await;
    assert_eq!(metric(&ours, LEASE).await, "1");
    let mut go = stage.manager("go-2", &other, &theirs).await;
    sees_another(&stage, "go-2", LEASE).await;
    ends_well(&stage, "ours", &mut ours).await;
    stage.wait_for_writes(&routes("go-2")).await;
    // Once more in both directions, with a killed leader.
    let mut ours = stage.ours("again", &contest, &flags);
    waits_for_the_migration(&stage, "again").await;
    go.terminate().unwrap();
    go.wait(LIMIT).await.unwrap();
    stage.wait_for_writes(&routes("again")).await;
    let _go = stage.manager("go-3", &other, &theirs).await;
    sees_another(&stage, "go-3", LEASE).await;
    ours.kill().unwrap();
    stage.wait_for_writes(&routes("go-3")).await;
    assert_eq!(successions(&stage).1, ["go-1", "ours", "go-2", "again", "go-3"].map(routes));
}

#[tokio::test(flavor = "multi_thread")]
async fn controllers_of_another_component_are_not_run_and_its_lease_is_not_taken() {
    let stage = Stage::set().await;
    let flags = flags(&stage, "kube-controller-manager");
    let mut ours = stage.ours("ours", &short(), &words(&flags));
    for _ in 0..10 {
        stage.wait_for_writes("ours").await;
    }
    assert_eq!(stage.writes.count(&routes("ours")), 0);
    assert!(stage.leases.get_opt(LEASE).await.unwrap().is_none());
    let log = stage.log("ours");
    assert_eq!(log.matches("Another component runs the controller").count(), 3, "{log}");
    ours.terminate().unwrap();
    assert!(ours.wait(LIMIT).await.unwrap().success());
}

#[tokio::test(flavor = "multi_thread")]
async fn the_loss_of_either_lease_ends_the_process() {
    for (stolen, other, message) in [
        (LEASE, short().name, "migration leaderelection lost: "),
        (short().name.as_str(), LEASE.to_owned(), "leaderelection lost: "),
    ] {
        let stage = Stage::set().await;
        let flags = flags(&stage, "*");
        let mut ours = stage.ours("ours", &short(), &words(&flags));
        runs_all(&stage, "ours", "ours").await;
        stage.steal(stolen).await;
        let status = ours.wait(LIMIT).await.unwrap();
        let log = stage.log("ours");
        assert_eq!(status.code(), Some(1), "{stolen}: {log}");
        assert!(log.contains(message), "{stolen}: {log}");
        assert_eq!(stage.holder(stolen).await, THIEF);
        // The other Lease is released, unless a write was cut off, which may still arrive.
        let kept = log.contains("Not releasing the lease before it expires");
        assert!(kept || stage.holder(&other).await.is_empty(), "{stolen}: {log}");
    }
}

/// Each Lease has a fence of its own: a write that is cut off under one Lease does not delay the release of the other.
#[tokio::test(flavor = "multi_thread")]
async fn a_write_that_is_cut_off_keeps_only_its_own_lease() {
    let stage = Stage::set().await;
    let mut flags = flags(&stage, "*");
    flags.push("--shutdown-drain=1s".to_owned());
    let mut ours = stage.ours("ours", &short(), &words(&flags));
    runs_all(&stage, "ours", "ours").await;
    stage.writes.delay_of(&routes("ours"), Duration::from_secs(25));
    stage
        .eventually("a slow write is under way", async || {
            let mut entries = stage.writes.entries();
            entries.retain(|entry| entry.writer == routes("ours"));
            let before = entries.iter().rev().nth(1)?.returned?;
            let slow = before.elapsed().ok()? > Duration::from_millis(300);
            (slow && entries.last()?.returned.is_none()).then_some(())
        })
        .await;
    ours.terminate().unwrap();
    let status = ours.wait(LIMIT).await.unwrap();
    let log = stage.log("ours");
    assert!(status.success(), "{log}");
    assert_eq!(stage.holder(&short().name).await, "", "{log}");
    assert_ne!(stage.holder(LEASE).await, "", "{log}");
}
