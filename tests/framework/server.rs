//! The process from its start to its end, as in its Pod. It runs with the provider of `examples/out_of_tree.rs`, which every
//! build has, and without an API server.

use std::{fs, net::TcpListener, path::Path, time::Duration};

use ccm_testbed::{
    binary::{Ccm, Launch, free_port},
    observe,
};
use tempfile::TempDir;

use crate::binaries;

const LIMIT: Duration = Duration::from_secs(60);

fn write_kubeconfig(folder: &Path) -> String {
    let file = folder.join("admin.conf");
    let server = format!("https://127.0.0.1:{}", free_port().unwrap());
    let text = format!(
        "{{apiVersion: v1, kind: Config, current-context: c, clusters: [{{name: k, cluster: {{server: '{server}'}}}}], \
         contexts: [{{name: c, context: {{cluster: k, user: u}}}}], users: [{{name: u, user: {{token: t}}}}]}}"
    );
    fs::write(&file, text).unwrap();
    file.to_str().unwrap().to_owned()
}

/// Starts the program with these flags. Its files are in the folder.
fn start(more: &[&str]) -> (Ccm, TempDir) {
    let folder = tempfile::tempdir().unwrap();
    let mut args = vec![
        "--cloud-provider=acme".to_owned(),
        format!("--kubeconfig={}", write_kubeconfig(folder.path())),
        format!("--cert-dir={}", folder.path().display()),
    ];
    args.extend(more.iter().map(|flag| (*flag).to_owned()));
    let launch = Launch {
        program: binaries::example("out_of_tree").get_program().into(),
        args,
        envs: Vec::new(),
        log: folder.path().join("log"),
    };
    (Ccm::start(&launch).unwrap(), folder)
}

/// Waits for a line of the log with this text.
async fn line(ccm: &Ccm, text: &str) -> String {
    let line = async || {
        let log = ccm.log().unwrap();
        // The last line may be incomplete.
        let (complete, _) = log.rsplit_once('\n')?;
        complete.lines().find(|line| line.contains(text)).map(str::to_owned)
    };
    let found = observe::eventually(LIMIT, line).await;
    found.unwrap_or_else(|| panic!("{text:?} is not in the log:\n{}", ccm.log().unwrap()))
}

/// Waits for the end of the program without an error, and returns its log.
async fn end(mut ccm: Ccm) -> String {
    let status = ccm.wait(LIMIT).await.unwrap();
    let log = ccm.log().unwrap();
    assert_eq!(status.code(), Some(0), "{log}");
    log
}

#[tokio::test]
async fn it_answers_probes_while_it_waits_and_ends_in_order_on_sigterm() {
    let (ccm, _folder) = start(&[]);
    line(&ccm, "HTTPS server listening").await;
    line(&ccm, "Connected to the cloud").await;
    for path in ["/healthz", "/livez"] {
        assert_eq!(ccm.get(path).await.unwrap().0, 200, "{path}");
    }
    let (status, ready) = ccm.get("/readyz?verbose").await.unwrap();
    assert_eq!(status, 500, "{ready}");
    assert!(
        ready.contains("[+]cloud-provider ok\n[-]informer-sync failed: reason withheld\n"),
        "{ready}"
    );
    let (_, metrics) = ccm.get("/metrics").await.unwrap();
    assert!(metrics.contains("ccm_build_info{") && metrics.contains("acme"), "{metrics}");
    ccm.terminate().unwrap();
    let log = end(ccm).await;
    assert!(log.contains("Shutting down") && log.contains("Stopped"), "{log}");
    assert!(
        !log.contains("Cutting off"),
        "the drain took its whole time without work in progress:\n{log}"
    );
}

#[tokio::test]
async fn sigint_ends_it_too_and_json_is_one_object_a_line() {
    let (ccm, _folder) = start(&["--logging-format=json", "-v=4"]);
    let flag = line(&ccm, "\"flag\":\"logging-format\"").await;
    let event: serde_json::Value = serde_json::from_str(&flag).unwrap();
    assert_eq!((&event["level"], &event["value"]), (&"DEBUG".into(), &"json".into()));
    line(&ccm, "HTTPS server listening").await;
    ccm.interrupt().unwrap();
    for line in end(ccm).await.lines() {
        let event: serde_json::Value = serde_json::from_str(line).expect(line);
        // docs/operations.md names these keys.
        for key in ["timestamp", "level", "message", "target"] {
            assert!(event[key].is_string(), "{key}: {line}");
        }
    }
}

#[tokio::test]
async fn port_zero_runs_without_a_server() {
    let (ccm, _folder) = start(&["--secure-port=0"]);
    line(&ccm, "Connected to the cloud").await;
    ccm.terminate().unwrap();
    let log = end(ccm).await;
    assert!(!log.contains("HTTPS server listening"), "{log}");
}

#[tokio::test]
async fn a_controller_that_is_switched_off_is_not_started() {
    let (ccm, _folder) = start(&[
        "--controllers=cloud-node-lifecycle",
        "--leader-elect=false",
        "--secure-port=0",
    ]);
    let text = "The controller is switched off controller=\"cloud-node-controller\"";
    line(&ccm, text).await;
    ccm.terminate().unwrap();
    end(ccm).await;
}

#[test]
fn all_problems_of_the_start_are_reported_at_once() {
    let taken = TcpListener::bind(("127.0.0.1", 0)).unwrap();
    let output = binaries::example("out_of_tree")
        .args([
            "--cloud-provider=acme",
            "--bind-address=127.0.0.1",
            "--kubeconfig=no/such/file",
        ])
        .arg(format!("--secure-port={}", taken.local_addr().unwrap().port()))
        .output()
        .unwrap();
    assert_eq!(output.status.code(), Some(1));
    let log = String::from_utf8(output.stderr).unwrap();
    assert!(log.contains("--kubeconfig: cannot read no/such/file"), "{log}");
    assert!(log.contains("HTTPS server: cannot listen on 127.0.0.1:"), "{log}");
}

#[test]
fn outside_of_a_pod_a_missing_kubeconfig_is_reported() {
    let output = binaries::example("out_of_tree")
        .args(["--cloud-provider=acme", "--secure-port=0"])
        .output()
        .unwrap();
    assert_eq!(output.status.code(), Some(1));
    let log = String::from_utf8(output.stderr).unwrap();
    assert!(
        log.contains("set --kubeconfig or --master: outside of a pod there is no service account"),
        "{log}"
    );
}
