//! The crash sweep finds exactly the points from which a program does not recover.

use std::path::PathBuf;
use std::time::Duration;

use anyhow::Result;
use async_trait::async_trait;
use ccm_testbed::binary::Launch;
use ccm_testbed::controlplane::ControlPlane;
use ccm_testbed::proxy::Proxy;
use ccm_testbed::sweep::{Environment, Party, Scenario, Sweep};
use k8s_openapi::api::core::v1::ConfigMap;
use kube::Api;
use kube::api::{DeleteParams, ListParams};

/// Creates a lock, creates the result, and deletes the lock. With `CARE=none` it fails if the lock of a previous process
/// exists.
const PROGRAM: &str = r#"
    ask() {
        exec 3<>"/dev/tcp/127.0.0.1/$PORT"
        printf '%s /api/v1/namespaces/default/configmaps%s HTTP/1.1\r\nHost: x\r\nConnection: close\r\n' "$1" "$2" >&3
        printf 'Content-Type: application/json\r\nContent-Length: %s\r\n\r\n%s' "${#3}" "$3" >&3
        IFS=' ' read -r _ status _ <&3
        cat <&3 >/dev/null
    }
    trap 'exit 0' TERM
    ask POST '' '{"metadata":{"name":"lock"}}'
    if [ "$status" = 409 ] && [ "$CARE" = none ]; then echo 'there is a lock'; exit 1; fi
    ask POST '' '{"metadata":{"name":"result"}}'
    ask DELETE /lock ''
    while :; do sleep 0.05; done
"#;

struct Locks {
    _plane: ControlPlane,
    proxy: Proxy,
    maps: Api<ConfigMap>,
    care: &'static str,
    log: PathBuf,
}

impl Locks {
    async fn set(care: &'static str) -> Self {
        let plane = ControlPlane::start().await.unwrap();
        let client = plane.client().await.unwrap();
        Self {
            proxy: Proxy::start(client.clone(), plane.dir()).await.unwrap(),
            maps: Api::default_namespaced(client),
            care,
            log: plane.dir().join("program.log"),
            _plane: plane,
        }
    }

    async fn exists(&self, name: &str) -> Result<bool> {
        Ok(self.maps.get_opt(name).await?.is_some())
    }
}

impl Environment for Locks {
    fn parties(&self) -> Vec<&dyn Party> {
        vec![&self.proxy]
    }
}

#[async_trait(?Send)]
impl Scenario for Locks {
    fn name(&self) -> String {
        "a lock and a result".to_owned()
    }

    fn launch(&self) -> Launch {
        let port = self.proxy.url().rsplit(':').next().unwrap().to_owned();
        Launch {
            program: "bash".into(),
            args: vec!["-c".to_owned(), PROGRAM.to_owned(), "bash".to_owned()],
            envs: vec![
                ("PORT".to_owned(), port),
                ("CARE".to_owned(), self.care.to_owned()),
            ],
            log: self.log.clone(),
        }
    }

    fn environment(&self) -> &dyn Environment {
        self
    }

    async fn prepare(&self) -> Result<()> {
        let (delete, all) = (DeleteParams::default(), ListParams::default());
        self.maps.delete_collection(&delete, &all).await?;
        Ok(())
    }

    async fn missing(&self) -> Result<Option<String>> {
        let done = self.exists("result").await? && !self.exists("lock").await?;
        Ok((!done).then(|| "no result, or a lock".to_owned()))
    }

    async fn check(&self) -> Result<()> {
        Ok(())
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_program_that_recovers_from_every_crash_passes() {
    let scenario = Locks::set("some").await;
    let mut reports = Vec::new();
    let sweep = Sweep::default();
    let report = sweep
        .run(&scenario, |progress| {
            reports.push((progress.done, progress.total));
        })
        .await
        .unwrap();
    report.verdict().unwrap();
    assert_eq!((report.possible, report.played, report.missed), (9, 9, 0), "{report}");
    assert_eq!(reports.len(), 9);
    assert_eq!(reports.last(), Some(&(9, 9)));
}

#[tokio::test(flavor = "multi_thread")]
async fn every_point_without_recovery_is_reported() {
    let scenario = Locks::set("none").await;
    let report = Sweep {
        limit: Duration::from_secs(30),
        ..Sweep::default()
    }
    .run(&scenario, |_| {})
    .await
    .unwrap();
    // A crash after a reply is a race: the program may continue, even to its end, before it is killed.
    let places: Vec<_> = report
        .failures
        .iter()
        .map(|failure| failure.place.as_str())
        .filter(|place| !place.ends_with("after the reply"))
        .collect();
    let expected = [
        "call 1 of the API server (POST configmaps), after it is handled",
        "call 2 of the API server (POST configmaps), before it is handled",
        "call 2 of the API server (POST configmaps), after it is handled",
        "call 3 of the API server (DELETE configmaps lock), before it is handled",
    ];
    assert_eq!(places, expected);
    let problem = report.verdict().unwrap_err().to_string();
    assert!(problem.contains("there is a lock"), "the end of its log is shown: {problem}");
}
