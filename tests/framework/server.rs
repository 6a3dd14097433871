//! The process from its start to its end, as in its Pod. It runs with the provider of `examples/out_of_tree.rs`, which every
//! build has, and without an API server.

use std::{
    fs,
    io::{BufRead, BufReader, Read},
    net::TcpListener,
    path::Path,
    process::{Child, ChildStderr, Command, ExitStatus, Stdio},
    sync::Arc,
};

use rustls::{
    ClientConfig, RootCertStore,
    pki_types::{CertificateDer, ServerName, pem::PemObject},
};
use tempfile::TempDir;
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpStream,
};
use tokio_rustls::TlsConnector;

use crate::binaries;

/// A port without a listener.
fn free_port() -> u16 {
    TcpListener::bind(("127.0.0.1", 0))
        .unwrap()
        .local_addr()
        .unwrap()
        .port()
}

fn write_kubeconfig(folder: &Path) -> String {
    let file = folder.join("admin.conf");
    let server = format!("https://127.0.0.1:{}", free_port());
    let text = format!(
        "{{apiVersion: v1, kind: Config, current-context: c, clusters: [{{name: k, cluster: {{server: '{server}'}}}}], \
         contexts: [{{name: c, context: {{cluster: k, user: u}}}}], users: [{{name: u, user: {{token: t}}}}]}}"
    );
    fs::write(&file, text).unwrap();
    file.to_str().unwrap().to_owned()
}

/// A running process, which is killed if the test ends before it.
struct RunningProgram {
    child: Child,
    log: BufReader<ChildStderr>,
    port: u16,
    folder: TempDir,
}

impl RunningProgram {
    fn start(more: &[&str]) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let kubeconfig = write_kubeconfig(folder.path());
        let port = free_port();
        let mut child = binaries::out_of_tree()
            .args(["--cloud-provider=acme", "--bind-address=127.0.0.1"])
            .arg(format!("--kubeconfig={kubeconfig}"))
            .arg(format!("--secure-port={port}"))
            .arg(format!("--cert-dir={}", folder.path().display()))
            .arg("--authorization-always-allow-paths=/healthz,/livez,/readyz,/metrics")
            .args(more)
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let log = BufReader::new(child.stderr.take().unwrap());
        Self {
            child,
            log,
            port,
            folder,
        }
    }

    /// Waits for the next line of the log with this text.
    fn wait_for_line(&mut self, text: &str) -> String {
        let mut seen = String::new();
        loop {
            let mut line = String::new();
            assert_ne!(
                self.log.read_line(&mut line).unwrap(),
                0,
                "the log ended without {text:?}:\n{seen}"
            );
            if line.contains(text) {
                return line;
            }
            seen.push_str(&line);
        }
    }

    fn signal(&self, name: &str) {
        let status = Command::new("kill")
            .args(["-s", name, &self.child.id().to_string()])
            .status()
            .unwrap();
        assert!(status.success());
    }

    fn end(mut self) -> (ExitStatus, String) {
        let mut rest = String::new();
        self.log.read_to_string(&mut rest).unwrap();
        (self.child.wait().unwrap(), rest)
    }

    async fn get(&self, path: &str) -> String {
        let mut roots = RootCertStore::empty();
        let file = self.folder.path().join("cloud-controller-manager.crt");
        roots.add(CertificateDer::from_pem_file(file).unwrap()).unwrap();
        let config =
            ClientConfig::builder_with_provider(Arc::new(rustls::crypto::aws_lc_rs::default_provider()))
                .with_safe_default_protocol_versions()
                .unwrap()
                .with_root_certificates(roots)
                .with_no_client_auth();
        let stream = TcpStream::connect(("127.0.0.1", self.port)).await.unwrap();
        let name = ServerName::try_from("localhost").unwrap();
        let mut stream = TlsConnector::from(Arc::new(config))
            .connect(name, stream)
            .await
            .unwrap();
        let request = format!("GET {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n");
        stream.write_all(request.as_bytes()).await.unwrap();
        let mut answer = String::new();
        let _ = stream.read_to_string(&mut answer).await;
        answer
    }
}

impl Drop for RunningProgram {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[tokio::test]
async fn it_answers_probes_while_it_waits_and_ends_in_order_on_sigterm() {
    let mut running = RunningProgram::start(&[]);
    running.wait_for_line("HTTPS server listening");
    running.wait_for_line("Connected to the cloud");
    for path in ["/healthz", "/livez"] {
        assert!(running.get(path).await.starts_with("HTTP/1.1 200 OK"), "{path}");
    }
    let ready = running.get("/readyz?verbose").await;
    assert!(ready.starts_with("HTTP/1.1 500 "), "{ready}");
    assert!(
        ready.contains("[+]cloud-provider ok\n[-]informer-sync failed: reason withheld\n"),
        "{ready}"
    );
    let metrics = running.get("/metrics").await;
    assert!(
        metrics.contains("ccm_build_info{") && metrics.contains("acme"),
        "{metrics}"
    );
    running.signal("TERM");
    let (status, log) = running.end();
    assert_eq!(status.code(), Some(0), "{log}");
    assert!(log.contains("Shutting down") && log.contains("Stopped"), "{log}");
    assert!(
        !log.contains("Cutting off"),
        "the drain took its whole time without work in progress:\n{log}"
    );
}

#[tokio::test]
async fn sigint_ends_it_too_and_json_is_one_object_a_line() {
    let mut running = RunningProgram::start(&["--logging-format=json", "-v=4"]);
    let line = running.wait_for_line("\"flag\":\"logging-format\"");
    let event: serde_json::Value = serde_json::from_str(&line).unwrap();
    assert_eq!(
        (&event["level"], &event["value"]),
        (&"DEBUG".into(), &"json".into())
    );
    running.wait_for_line("HTTPS server listening");
    running.signal("INT");
    let (status, log) = running.end();
    assert_eq!(status.code(), Some(0), "{log}");
    for line in log.lines() {
        serde_json::from_str::<serde_json::Value>(line).expect(line);
    }
}

#[test]
fn port_zero_runs_without_a_server() {
    let mut running = RunningProgram::start(&["--secure-port=0"]);
    running.wait_for_line("Connected to the cloud");
    assert!(std::net::TcpStream::connect(("127.0.0.1", running.port)).is_err());
    running.signal("TERM");
    assert_eq!(running.end().0.code(), Some(0));
}

#[test]
fn a_controller_that_is_switched_off_is_not_started() {
    let mut running = RunningProgram::start(&[
        "--controllers=cloud-node-lifecycle",
        "--leader-elect=false",
        "--secure-port=0",
    ]);
    running.wait_for_line("The controller is switched off controller=\"cloud-node-controller\"");
    running.signal("TERM");
    assert_eq!(running.end().0.code(), Some(0));
}

#[test]
fn all_problems_of_the_start_are_reported_at_once() {
    let taken = TcpListener::bind(("127.0.0.1", 0)).unwrap();
    let output = binaries::out_of_tree()
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
    let output = binaries::out_of_tree()
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
