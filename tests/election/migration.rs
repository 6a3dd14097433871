//! Leader migration: controllers are handed over between ours and managers on upstream's library, and at no time do two
//! of them write for the same controller.

use std::time::Duration;

use ccm_testbed::{binary::Ccm, contender::Contest};

use crate::contest::{LIMIT, Stage, THIEF, short};

/// What is handed over, as upstream calls it.
const ROUTES: &str = "node-route-controller";
/// What stays with each cloud-controller-manager.
const NODES: &str = "cloud-node-controller";
/// The Lease of what is handed over.
const LEASE: &str = "handover";

/// The flags for a migration in which this component runs what is handed over.
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

/// One that runs everything.
async fn runs_all(stage: &Stage, nodes: &str, name: &str) {
    stage.writes(nodes).await;
    stage.writes(&routes(name)).await;
}

/// Who wrote for the nodes, and who for the routes, in this order.
fn successions(stage: &Stage) -> (Vec<String>, Vec<String>) {
    let is_routes = |writer: &str| writer.ends_with(ROUTES);
    // What else Go's controllers write is of no interest here.
    let is_nodes = |writer: &str| writer.ends_with(NODES) || !writer.contains('/');
    (
        stage.ledger.successions_of(is_nodes),
        stage.ledger.successions_of(is_routes),
    )
}

/// Waits until one of upstream's has seen that somebody else holds this lease.
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

/// Waits until one of ours has seen that another manager holds the lease of the migration.
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
async fn ours_follows_a_manager_on_upstreams_library_and_is_followed_by_it() {
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

/// The other one stands for kube-controller-manager: it has a main lease of its own.
#[tokio::test(flavor = "multi_thread")]
async fn only_what_is_handed_over_waits_for_a_manager_of_another_kind() {
    let stage = Stage::set().await;
    let contest = short();
    let other = Contest {
        name: "kube-controller-manager".to_owned(),
        ..short()
    };
    let flags = flags(&stage, "*");
    let flags = words(&flags);
    let theirs = [flags[0], flags[1], "--controllers=node-route-controller"];
    let mut go = stage.manager("go-1", &other, &theirs).await;
    stage.writes(&routes("go-1")).await;

    let mut ours = stage.ours("ours", &contest, &flags);
    stage.writes("ours").await;
    waits_for_the_migration(&stage, "ours").await;
    stage.writes(&routes("go-1")).await;
    assert_eq!(stage.ledger.count(&routes("ours")), 0);
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
    stage.writes(&routes("ours")).await;
    assert_eq!(metric(&ours, LEASE).await, "1");
    let mut go = stage.manager("go-2", &other, &theirs).await;
    sees_another(&stage, "go-2", LEASE).await;
    ends_well(&stage, "ours", &mut ours).await;
    stage.writes(&routes("go-2")).await;
    // And once more without a word of farewell, in both directions.
    let mut ours = stage.ours("again", &contest, &flags);
    waits_for_the_migration(&stage, "again").await;
    go.terminate().unwrap();
    go.wait(LIMIT).await.unwrap();
    stage.writes(&routes("again")).await;
    let _go = stage.manager("go-3", &other, &theirs).await;
    sees_another(&stage, "go-3", LEASE).await;
    ours.kill().unwrap();
    stage.writes(&routes("go-3")).await;
    assert_eq!(
        successions(&stage).1,
        ["go-1", "ours", "go-2", "again", "go-3"].map(routes)
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn what_another_component_runs_is_left_to_it_with_its_lease() {
    let stage = Stage::set().await;
    let flags = flags(&stage, "kube-controller-manager");
    let mut ours = stage.ours("ours", &short(), &words(&flags));
    for _ in 0..10 {
        stage.writes("ours").await;
    }
    assert_eq!(stage.ledger.count(&routes("ours")), 0);
    assert!(stage.leases.get_opt(LEASE).await.unwrap().is_none());
    let log = stage.log("ours");
    assert_eq!(
        log.matches("Another component runs the controller").count(),
        3,
        "{log}"
    );
    ours.terminate().unwrap();
    assert!(ours.wait(LIMIT).await.unwrap().success());
}

#[tokio::test(flavor = "multi_thread")]
async fn the_loss_of_either_lease_ends_the_process() {
    for (stolen, other, words_of_the_end) in [
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
        assert!(log.contains(words_of_the_end), "{stolen}: {log}");
        assert_eq!(stage.holder(stolen).await, THIEF);
        // Unless its last write was cut off, which may still arrive.
        let kept = log.contains("Not releasing the lease before it expires");
        assert!(kept || stage.holder(&other).await.is_empty(), "{stolen}: {log}");
    }
}

/// Each lease has a fence of its own: what is cut off at the end of one does not hold up the other.
#[tokio::test(flavor = "multi_thread")]
async fn a_write_that_is_cut_off_keeps_only_its_own_lease() {
    let stage = Stage::set().await;
    let mut flags = flags(&stage, "*");
    flags.push("--shutdown-drain=1s".to_owned());
    let mut ours = stage.ours("ours", &short(), &words(&flags));
    runs_all(&stage, "ours", "ours").await;
    stage.ledger.delay_of(&routes("ours"), Duration::from_secs(25));
    stage
        .eventually("a slow write is under way", async || {
            let mut entries = stage.ledger.entries();
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
