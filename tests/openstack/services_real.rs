//! A Service on a real OpenStack, and a program that is killed after a change was made and before it reads the answer.

use std::{
    collections::BTreeMap,
    env, process,
    time::{Duration, Instant},
};

use ccm_sim::Moment;
use ccm_testbed::{
    binary::Ccm,
    cache::say,
    nodes::NodeSpec,
    observe::{eventually, is_initialized},
    openstack_real::OpenStack,
    proxy::{CloudProxy, OpenStackDialect, Request},
    stage::Stage,
    sweep::Party,
};
use k8s_openapi::api::core::v1::{Node, Service};
use kube::{
    Api,
    api::{DeleteParams, ListParams, PostParams},
};
use serde_json::{Value, json};

use crate::scene::{program, read};

/// The cluster's name, so that tests on the same cloud use different names.
const CLUSTER: &str = "cut";
/// Time limit of each wait. The real cloud is slow on a busy machine.
const PATIENCE: Duration = Duration::from_secs(400);
const FLAGS: [&str; 2] = ["--leader-elect=false", "--cluster-name=cut"];
const CONFIG: &str = "\n[LoadBalancer]\nmanage-security-groups = true\ncreate-monitor = true\n";
/// The number of kills of each kind, unless all are requested.
const SOME: usize = 4;

/// The name of the Service and, with a number, of its servers. It is unique, because another run may have left objects.
fn name() -> String {
    format!("cut-{}", process::id())
}

/// Reads the cloud without program and proxy.
struct CloudReader {
    http: reqwest::Client,
    token: String,
    endpoints: BTreeMap<String, String>,
}

impl CloudReader {
    async fn log_in(cloud: &OpenStack) -> Self {
        let conf = read(&cloud.cloud_conf());
        let key = |name: &str| {
            let mut lines = conf.lines().filter_map(|line| line.split_once('='));
            let found = lines.find(|(key, _)| key.trim() == name);
            found.unwrap().1.trim().trim_matches('"').to_owned()
        };
        let credential = json!({
            "id": key("application-credential-id"), "secret": key("application-credential-secret"),
        });
        let identity = json!({
            "methods": ["application_credential"], "application_credential": credential,
        });
        let http = reqwest::Client::new();
        let url = format!("{}/auth/tokens", cloud.auth_url());
        let body = json!({"auth": {"identity": identity}});
        let answer = http.post(url).json(&body).send().await.unwrap();
        let token = answer
            .headers()
            .get("X-Subject-Token")
            .unwrap()
            .to_str()
            .unwrap()
            .to_owned();
        let answer: Value = answer.json().await.unwrap();
        let entries = answer["token"]["catalog"].as_array().unwrap();
        let endpoints = entries.iter().map(|entry| {
            let all = entry["endpoints"].as_array().unwrap();
            let public = all.iter().find(|one| one["interface"] == "public").unwrap();
            let url = public["url"].as_str().unwrap();
            let url = url
                .trim_end_matches('/')
                .trim_end_matches("/v2.0")
                .trim_end_matches("/v2");
            (entry["type"].as_str().unwrap().to_owned(), url.to_owned())
        });
        Self {
            endpoints: endpoints.collect(),
            token,
            http,
        }
    }

    async fn get(&self, service: &str, path: &str) -> Value {
        let url = format!("{}/{path}", self.endpoints[service]);
        let request = self.http.get(url).header("X-Auth-Token", &self.token);
        request.send().await.unwrap().json().await.unwrap()
    }

    async fn list(&self, service: &str, path: &str, key: &str, ours: impl Fn(&Value) -> bool) -> Vec<Value> {
        let mut found = self.get(service, path).await[key].as_array().unwrap().clone();
        found.retain(ours);
        found
    }

    /// All objects of this test's Services in the cloud, without IDs.
    async fn picture(&self) -> Vec<String> {
        let mut lines = Vec::new();
        let prefix = format!("kube_service_{CLUSTER}_");
        let name = name();
        let ours = |one: &Value| one["name"].as_str().unwrap() == format!("{prefix}default_{name}");
        let path = "v2/lbaas/loadbalancers";
        for balancer in self.list("load-balancer", path, "loadbalancers", ours).await {
            let id = balancer["id"].as_str().unwrap();
            let mut tree = self.get("load-balancer", &format!("{path}/{id}/status")).await;
            normalize(&mut tree);
            lines.push(format!(
                "{} {} {} {tree}",
                balancer["name"], balancer["description"], balancer["tags"]
            ));
        }
        let ours = |one: &Value| one["description"].as_str().unwrap().contains(&name);
        for floating in self
            .list("network", "v2.0/floatingips", "floatingips", ours)
            .await
        {
            let attached = floating["port_id"].is_string();
            lines.push(format!("floating {} {attached}", floating["description"]));
        }
        let ours = |one: &Value| {
            let group = one["name"].as_str().unwrap();
            group.starts_with("lb-sg-") && group.ends_with(&format!("-default-{name}"))
        };
        for group in self
            .list("network", "v2.0/security-groups", "security_groups", ours)
            .await
        {
            let rules = group["security_group_rules"].as_array().unwrap().iter();
            let mut rules: Vec<_> = rules
                .map(|rule| {
                    let what = [
                        "direction",
                        "ethertype",
                        "protocol",
                        "port_range_min",
                        "remote_ip_prefix",
                    ];
                    what.map(|key| rule[key].to_string()).join(" ")
                })
                .collect();
            rules.sort();
            let has = |port: &Value| port["security_groups"].as_array().unwrap().contains(&group["id"]);
            let ports = self.list("network", "v2.0/ports", "ports", has).await.len();
            lines.push(format!("group of {ports} ports: {rules:?}"));
        }
        lines.sort();
        lines
    }
}

/// Removes IDs and the results of monitors.
fn normalize(value: &mut Value) {
    match value {
        Value::Object(fields) => {
            fields.remove("id");
            fields.remove("operating_status");
            fields.values_mut().for_each(normalize);
        }
        Value::Array(items) => {
            items.iter_mut().for_each(normalize);
            items.sort_by_key(ToString::to_string);
        }
        _ => {}
    }
}

struct RealService {
    reader: CloudReader,
    proxy: CloudProxy<OpenStackDialect>,
    stage: Stage,
    services: Api<Service>,
    /// The cloud when the Service is served.
    served: Option<Vec<String>>,
}

impl RealService {
    fn start(&self) -> Ccm {
        self.stage.launch("openstack", &FLAGS).unwrap()
    }

    async fn create(&self) {
        let service = json!({
            "apiVersion": "v1", "kind": "Service", "metadata": {"name": name()},
            "spec": {"type": "LoadBalancer", "selector": {"app": "cut"}, "ports": [
                {"name": "a", "port": 80, "nodePort": 30080}, {"name": "b", "port": 443, "nodePort": 30443},
                {"name": "c", "port": 8080, "nodePort": 30880},
            ]},
        });
        let service = serde_json::from_value(service).unwrap();
        self.services
            .create(&PostParams::default(), &service)
            .await
            .unwrap();
    }

    async fn delete(&self) {
        self.services
            .delete(&name(), &DeleteParams::default())
            .await
            .unwrap();
    }

    async fn is_served(&self) -> bool {
        let Ok(service) = self.services.get(&name()).await else {
            return false;
        };
        let status = service.status.and_then(|status| status.load_balancer);
        if status.and_then(|status| status.ingress).is_none() {
            return false;
        }
        match &self.served {
            Some(served) => self.reader.picture().await == *served,
            None => true,
        }
    }

    /// The time that Octavia itself takes for the load balancer, from the request until it is `ACTIVE`.
    async fn creation_time(&self) -> Option<Duration> {
        let is_creation =
            |request: &Request| request.method == "POST" && request.path.ends_with("/loadbalancers");
        self.proxy
            .wait_for(|requests| requests.iter().any(is_creation))
            .await;
        let began = Instant::now();
        let name = format!("kube_service_{CLUSTER}_default_{}", name());
        let is_ours = |balancer: &Value| balancer["name"] == name.as_str();
        let is_active = async || {
            let path = "v2/lbaas/loadbalancers";
            let balancers = self
                .reader
                .list("load-balancer", path, "loadbalancers", is_ours)
                .await;
            let balancer = balancers.first()?;
            (balancer["provisioning_status"] == "ACTIVE").then(|| began.elapsed())
        };
        eventually(PATIENCE, is_active).await
    }

    async fn is_deleted(&self) -> bool {
        matches!(self.services.get_opt(&name()).await, Ok(None)) && self.reader.picture().await.is_empty()
    }

    async fn wait(&self, created: bool) -> Option<()> {
        let done = async || {
            let done = if created {
                self.is_served().await
            } else {
                self.is_deleted().await
            };
            done.then_some(())
        };
        eventually(PATIENCE, done).await
    }

    /// Creates or deletes the Service, and kills the program at this write, if one is named. Returns the number of writes.
    async fn play(&self, ccm: &mut Ccm, created: bool, kill_at: Option<u64>) -> usize {
        self.proxy.forget();
        let reached = kill_at.map(|nth| self.proxy.stop_at(nth, Moment::AfterCommit));
        if created {
            self.create().await;
        } else {
            self.delete().await;
        }
        let mut place = "nowhere".to_owned();
        if let Some(reached) = reached {
            tokio::select! {
                Some(call) = reached => place = call,
                _ = self.wait(created) => {}
            }
            ccm.kill().unwrap();
            self.proxy.clear();
            *ccm = self.start();
        }
        if self.wait(created).await.is_none() {
            panic!(
                "killed at write {kill_at:?} ({place}), it did not finish: {:#?} instead of {:#?}; {}",
                self.reader.picture().await,
                self.served,
                self.stage.log()
            );
        }
        self.proxy.writes().len()
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_program_killed_before_an_answer_finishes_on_a_real_cloud() {
    if env::var_os("CCM_TEST_OPENSTACK_REAL").is_none() {
        say("left out, since CCM_TEST_OPENSTACK_REAL is not set: kills on a real OpenStack");
        return;
    }
    let cloud = OpenStack::start(1).await.unwrap();
    let servers = [1, 2, 3, 4, 5, 6].map(|number| format!("{}-{number}", name()));
    let servers = servers.each_ref().map(String::as_str);
    cloud.create_servers(&servers).await.unwrap();
    let proxy = CloudProxy::<OpenStackDialect>::start(cloud.auth_url())
        .await
        .unwrap();
    let stage = Stage::set(program()).await.unwrap();
    let conf = format!("{}{CONFIG}", proxy.cloud_conf(&read(&cloud.cloud_conf())));
    stage.write_cloud_config(&conf).unwrap();
    let client = stage.control_plane.client().await.unwrap();
    let specs: Vec<_> = servers.into_iter().map(NodeSpec::new).collect();
    ccm_testbed::nodes::register(&client, &specs).await.unwrap();
    let nodes: Api<Node> = Api::all(client.clone());
    let mut scene = RealService {
        reader: CloudReader::log_in(&cloud).await,
        services: Api::default_namespaced(client),
        proxy,
        stage,
        served: None,
    };
    assert_eq!(
        scene.reader.picture().await,
        [""; 0],
        "objects of another run exist"
    );

    let mut ccm = scene.start();
    let initialized = async || {
        let nodes = nodes.list(&ListParams::default()).await.ok()?.items;
        nodes.iter().all(is_initialized).then_some(())
    };
    eventually(PATIENCE, initialized)
        .await
        .expect("initialized nodes");
    let began = Instant::now();
    let play = async {
        let creating = scene.play(&mut ccm, true, None).await;
        (creating, began.elapsed())
    };
    let ((creating, took), own) = tokio::join!(play, scene.creation_time());
    say(format!(
        "served after {took:.1?} on a real OpenStack, whose load balancer took {:.1?}",
        own.expect("an active load balancer")
    ));
    scene.served = Some(scene.reader.picture().await);
    let deleting = scene.play(&mut ccm, false, None).await;
    assert!(creating >= 9 && deleting >= 5, "{creating} and {deleting} writes");
    // Each turn has a kill during the creation of the Service, and one during its deletion.
    let turns = creating.max(deleting);
    let all = env::var_os("CCM_TEST_FULL").is_some();
    let step = if all { 1 } else { turns.div_ceil(SOME) };
    for turn in (1..=turns).step_by(step) {
        let at = |most: usize| (turn <= most).then_some(turn as u64);
        scene.play(&mut ccm, true, at(creating)).await;
        scene.play(&mut ccm, false, at(deleting)).await;
    }
    say(format!(
        "{creating} writes to create a Service and {deleting} to delete it on a real OpenStack; killed at one of {step}"
    ));
    cloud.delete_servers(&servers).await.unwrap();
}
