//! The program needs all rights in the cluster that `deploy/` grants, and no others. The roles of the Go programs are enough to
//! change the image alone.

use std::{
    collections::BTreeSet,
    path::{Path, PathBuf},
    sync::Arc,
};

use ccm_testbed::{
    binary::Ccm,
    controlplane::{self, AuditEntry},
    manifests,
    nodes::{self, NodeSpec},
    proxy::{Action, Proxy, Rule},
    test_cloud::{Machine, TestCloud},
};
use k8s_openapi::api::core::v1::{Event, Node};
use kube::{
    Api,
    api::{DeleteParams, ListParams, PostParams},
};
use serde_json::{Value, json};

use crate::{LIMIT, life::Life, on_each};

const NODES: usize = 3;
/// The start of the names of the program's account, and of those of its controllers.
const ACCOUNTS: &str = "system:serviceaccount:kube-system:";
/// A right that the roles of the Go programs lack, except on Compute Engine. Without it, objects in the cloud get no ownership tag.
const NEVER_GRANTED: &str = "get namespaces kube-system";

/// The program with all of its work: nodes join and get routes, one leaves, a Service is created and deleted, and a client
/// reads the metrics.
struct Rights {
    life: Life,
    ccm: Ccm,
    machines: Vec<Machine>,
    _proxy: Proxy,
}

impl Rights {
    /// Does all of this, except that no node leaves. The first patch of each node meets a conflict, so that the node is read.
    /// `roles`: the account and its rights. `more`: further flags. `scraped`: the accepted status of an authorized request for the metrics.
    async fn begin(cloud: Arc<dyn TestCloud>, roles: &[Value], more: &[&str], scraped: &[u16]) -> Self {
        let life = Life::begin(cloud, 0).await;
        let plane = &life.stage.control_plane;
        let account = manifests::account_with(plane, roles).await.unwrap();
        let mut flags = more.to_vec();
        flags.extend([
            "--cluster-name=test",
            "--node-monitor-period=1s",
            "--node-deletion-grace=0s",
            "--node-deletion-confirm=1s",
            "--node-status-update-frequency=1s",
            "--authorization-always-allow-paths=/healthz,/readyz,/livez",
        ]);
        match life.cloud.routes() {
            Some(routes) => {
                let table = routes.create_table().await.unwrap();
                let config = format!("{}\n{table}", life.cloud.config());
                life.stage.write_cloud_config(&config).unwrap();
                flags.push("--cluster-cidr=10.244.0.0/16");
            }
            None => flags.push("--configure-cloud-routes=false"),
        }
        // The proxy sends requests as the account, except those of controllers with accounts of their own.
        let upstream = controlplane::client(&account).await.unwrap();
        let others = controlplane::client_without_credentials(&account).await.unwrap();
        let proxy = Proxy::start_with_tokens(upstream, others, life.stage.folder()).await.unwrap();
        let conflict = Action::status(409);
        let first_patch = Rule::when(
            |request| {
                request.method == "PATCH" && request.resource == "nodes" && request.subresource.is_empty()
            },
            conflict,
        );
        proxy.add(first_patch.at(1));
        // As in a Pod: the account that reads the cluster's client CA is known, so it is an error if this is refused.
        let reviewer = format!("--authentication-kubeconfig={}", proxy.kubeconfig().display());
        flags.push(&reviewer);
        let mut launch = life.stage.command(life.cloud.provider(), proxy.kubeconfig(), &flags);
        launch.envs = life.cloud.environment();
        let mut ccm = Ccm::start(&launch).unwrap();
        ccm.wait_healthy("/readyz", LIMIT).await.unwrap();

        let mut machines = Vec::new();
        for at in 1..=NODES {
            let machine = life.cloud.create_machine(&format!("n-{at}")).await.unwrap();
            let spec = NodeSpec {
                pod_cidrs: vec![format!("10.244.{at}.0/24")],
                ..NodeSpec::new(&machine.node)
            };
            nodes::register(&life.nodes.clone().into_client(), [&spec]).await.unwrap();
            machines.push(machine);
        }
        life.initialized(NODES).await;
        let rights = Self {
            life,
            ccm,
            machines,
            _proxy: proxy,
        };
        rights.event(&rights.machines[0], "Synced").await;
        rights.routes(NODES).await;
        let token = rights.scraper().await;
        let answered = async || {
            let (status, _) = rights.ccm.get_as(&token, "/metrics").await.ok()?;
            scraped.contains(&status).then_some(())
        };
        rights.life.eventually("the scraper is answered", answered).await;
        rights.serve("web").await;
        rights
    }

    /// Waits until the cloud has so many routes, if it supports routes.
    async fn routes(&self, count: usize) {
        let Some(routes) = self.life.cloud.routes() else {
            return;
        };
        let complete = async || (routes.table().await.ok()?.len() == count).then_some(());
        self.life.eventually("the routes exist", complete).await;
    }

    /// Creates a Service and deletes it.
    async fn serve(&self, name: &str) {
        let life = &self.life;
        let service = json!({
            "apiVersion": "v1", "kind": "Service",
            "metadata": {"name": name, "annotations": life.cloud.service().annotations},
            "spec": {"type": "LoadBalancer", "selector": {"app": name}, "ports": [{"name": "http", "port": 80}]},
        });
        let service = serde_json::from_value(service).unwrap();
        life.services.create(&PostParams::default(), &service).await.unwrap();
        life.served(name).await;
        life.services.delete(name, &DeleteParams::default()).await.unwrap();
        let deleted = async || life.services.get_opt(name).await.ok()?.is_none().then_some(());
        life.eventually("the Service is deleted", deleted).await;
    }

    /// Deletes the last node's machine and sets the node to not ready.
    async fn lose_machine(&self) -> &Machine {
        let machine = self.machines.last().unwrap();
        self.life.cloud.delete_machine(machine).await.unwrap();
        let client = self.life.nodes.clone().into_client();
        nodes::set_ready(&client, &machine.node, false).await.unwrap();
        machine
    }

    async fn deleted(&self, machine: &Machine) {
        let nodes: &Api<Node> = &self.life.nodes;
        let deleted = async || nodes.get_opt(&machine.node).await.ok()?.is_none().then_some(());
        self.life.eventually("the node is deleted", deleted).await;
    }

    async fn event(&self, machine: &Machine, reason: &str) -> Event {
        let events: Api<Event> = Api::all(self.life.nodes.clone().into_client());
        let fields = format!("involvedObject.name={},reason={reason}", machine.node);
        let params = ListParams::default().fields(&fields);
        let check = async || events.list(&params).await.ok()?.items.pop();
        self.life.eventually(&format!("the event {reason}"), check).await
    }

    /// Waits until the route of the deleted node is deleted, and ends the program. Returns the program's requests.
    async fn end(mut self) -> Vec<AuditEntry> {
        self.routes(NODES - 1).await;
        self.ccm.terminate().unwrap();
        let log = self.life.log();
        assert!(self.ccm.wait(LIMIT).await.unwrap().success(), "{log}");
        let log = self.life.log();
        assert!(log.contains("Released the lease"), "{log}");
        // Nothing was in progress any more, so nothing had to be cut off.
        assert!(!log.contains("Cutting off"), "{log}");
        let requests = self.requests();
        assert!(!requests.is_empty());
        requests
    }

    /// The requests of the program to the API server so far.
    fn requests(&self) -> Vec<AuditEntry> {
        let log = self.life.stage.control_plane.audit_log().unwrap();
        log.into_iter().filter(|entry| entry.user.starts_with(ACCOUNTS)).collect()
    }

    /// The token of an account that may read the metrics and nothing else.
    async fn scraper(&self) -> String {
        let client = self.life.nodes.clone().into_client();
        let rules = json!([{"nonResourceURLs": ["/metrics"], "verbs": ["get"]}]);
        manifests::cluster_role(&client, "metrics-reader", &rules).await.unwrap();
        manifests::bind(&client, "default", "scraper", "metrics-reader").await.unwrap();
        let plane = &self.life.stage.control_plane;
        let file = plane.service_account_kubeconfig("default", "scraper").await.unwrap();
        let config: Value = serde_json::from_str(&std::fs::read_to_string(file).unwrap()).unwrap();
        config["users"][0]["user"]["token"].as_str().unwrap().to_owned()
    }
}

/// The roles of `deploy/` for a cloud.
fn shipped_roles(cloud: &dyn TestCloud) -> Vec<Value> {
    let files = ["base/rbac.yaml"].into_iter().chain(cloud.roles().iter().copied());
    files.flat_map(|file| manifests::read(&manifests::shipped(file)).unwrap()).collect()
}

/// Every kind of request that was denied.
fn denied(requests: &[AuditEntry]) -> BTreeSet<String> {
    let denied = requests.iter().filter(|entry| entry.code == 403);
    denied.map(|entry| format!("{} {} {}", entry.verb, entry.resource, entry.name)).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn all_rights_of_the_manifest_are_needed_and_no_others() {
    on_each(async |cloud| {
        let provider = cloud.provider();
        let manifest = shipped_roles(&*cloud);
        let (mut granted, borrowed) = (manifests::rights(&manifest), manifests::borrowed(&manifest));
        assert!(!granted.is_empty());
        // The cluster defines the roles that the manifest binds. Each of them must be used, but not each right in it.
        granted.extend(borrowed.into_iter().filter(|right| right.verb == "create"));
        let rights = Rights::begin(cloud, &manifest, &[], &[200]).await;
        let leaver = rights.lose_machine().await;
        rights.deleted(leaver).await;
        let log = rights.life.log();
        let requests = rights.end().await;
        assert_eq!(denied(&requests), BTreeSet::new(), "{provider}: {log}");
        let unused: Vec<_> = granted
            .iter()
            .filter(|right| !requests.iter().any(|request| right.covers(request)))
            .map(ToString::to_string)
            .collect();
        assert_eq!(unused, [""; 0], "{provider}");
    })
    .await;
}

/// The flag with which the Go program of this cloud runs, if its rights are those of several accounts.
fn flags_of_upstream(provider: &str) -> &'static [&'static str] {
    match provider {
        "gce" => &["--use-service-account-credentials"],
        _ => &[],
    }
}

/// The role of the Go program of a cloud.
fn upstream(provider: &str) -> PathBuf {
    let file = match provider {
        "digitalocean" => "tests/chart/upstream/digitalocean.yaml".to_owned(),
        _ => format!("tests/every_cloud/roles/{provider}.yaml"),
    };
    Path::new(env!("CARGO_MANIFEST_DIR")).join(file)
}

#[tokio::test(flavor = "multi_thread")]
async fn the_role_of_the_go_program_is_enough_to_change_the_image_alone() {
    on_each(async |cloud| {
        let provider = cloud.provider();
        let role = manifests::read(&upstream(provider)).unwrap();
        let rights = Rights::begin(cloud, &role, flags_of_upstream(provider), &[200, 503]).await;
        let leaver = rights.lose_machine().await;
        rights.deleted(leaver).await;
        let mut denied = denied(&rights.end().await);
        // Without these rights, the program cannot authenticate and authorize clients of the metrics.
        for right in [
            "create tokenreviews ",
            "create subjectaccessreviews ",
            "list configmaps extension-apiserver-authentication",
        ] {
            denied.remove(right);
        }
        let expected: &[&str] = match provider {
            "gce" => &[],
            _ => &[NEVER_GRANTED],
        };
        assert!(denied.iter().eq(expected), "{provider}: {denied:?}");
    })
    .await;
}

/// The roles of `deploy/` for a cloud without the right to delete nodes.
fn without_deletion(cloud: &dyn TestCloud) -> Vec<Value> {
    let mut objects = shipped_roles(cloud);
    let mut removed = 0;
    for object in &mut objects {
        for rule in object.get_mut("rules").and_then(Value::as_array_mut).into_iter().flatten() {
            if rule["resources"].as_array().is_some_and(|all| all.contains(&json!("nodes"))) {
                let verbs = rule["verbs"].as_array_mut().unwrap();
                let before = verbs.len();
                verbs.retain(|verb| verb != "delete");
                removed += before - verbs.len();
            }
        }
    }
    assert_eq!(removed, 1);
    objects
}

#[tokio::test(flavor = "multi_thread")]
async fn without_the_right_to_delete_nodes_one_warning_names_it_and_everything_else_works() {
    on_each(async |cloud| {
        let provider = cloud.provider();
        let role = without_deletion(&*cloud);
        let rights = Rights::begin(cloud, &role, &[], &[200]).await;
        let leaver = rights.lose_machine().await;
        let event = rights.event(leaver, "DeletingNodeFailed").await;
        let message = event.message.unwrap_or_default();
        assert!(message.contains(r#"the verb "delete" for the resource "nodes""#), "{provider}: {message}");
        rights.serve("api").await;
        // The waits between attempts grow, and nothing more is reported.
        let deletions = || {
            let requests = rights.requests().into_iter();
            let deletions = requests.filter(|entry| entry.verb == "delete" && entry.resource == "nodes");
            deletions.filter(|entry| entry.code == 403).count()
        };
        rights.life.eventually("another attempt", async || (deletions() >= 2).then_some(())).await;
        let events: Api<Event> = Api::all(rights.life.nodes.clone().into_client());
        let params = ListParams::default().fields(&format!("involvedObject.name={}", leaver.node));
        let events = events.list(&params).await.unwrap().items;
        for reason in ["DeletingNode", "DeletingNodeFailed"] {
            let reported = events.iter().filter(|event| event.reason.as_deref() == Some(reason));
            assert_eq!(reported.count(), 1, "{provider}: {reason}");
        }
        assert_eq!(rights.life.log().matches("Not allowed to delete nodes").count(), 1);

        // As soon as the right is granted, the node is deleted.
        let whole = manifests::shipped("base/rbac.yaml");
        manifests::account(&rights.life.stage.control_plane, &whole).await.unwrap();
        rights.deleted(leaver).await;
        assert!(deletions() <= 4, "{}", rights.life.log());
        let leaver = leaver.node.clone();
        let denied = denied(&rights.end().await);
        assert_eq!(denied, BTreeSet::from([format!("delete nodes {leaver}")]), "{provider}");
    })
    .await;
}
