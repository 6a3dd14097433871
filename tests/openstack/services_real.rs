//! A Service on a real OpenStack, and a program that is killed after a change was made and before it reads the answer.

use std::{
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
    rest::Rest,
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
const BALANCERS: &str = "load-balancer/v2.0/lbaas/loadbalancers";
const CONFIG: &str = "\n[LoadBalancer]\nmanage-security-groups = true\ncreate-monitor = true\n";
/// The number of kills of each kind, unless all are requested.
const SOME: usize = 4;

/// The name of the Service and, with a number, of its servers. It is unique, because another run may have left objects.
fn name() -> String {
    format!("cut-{}", process::id())
}

/// The load balancers of this test's Service.
async fn balancers(rest: &Rest) -> Vec<Value> {
    let name = format!("kube_service_{CLUSTER}_default_{}", name());
    let mut found = rest.list(BALANCERS).await.unwrap();
    found.retain(|balancer| balancer["name"] == name.as_str());
    found
}

/// All objects of this test's Services in the cloud, without IDs.
async fn picture(rest: &Rest) -> Vec<String> {
    let mut lines = Vec::new();
    let name = name();
    for balancer in balancers(rest).await {
        let path = format!("{BALANCERS}/{}/status", balancer["id"].as_str().unwrap());
        // The load balancer may be deleted between two requests.
        let mut tree = rest.get(&path).await.unwrap_or_default();
        normalize(&mut tree);
        lines.push(format!("{} {} {} {tree}", balancer["name"], balancer["description"], balancer["tags"]));
    }
    for floating in rest.list("network/v2.0/floatingips").await.unwrap() {
        if floating["description"].as_str().unwrap().contains(&name) {
            let attached = floating["port_id"].is_string();
            lines.push(format!("floating {} {attached}", floating["description"]));
        }
    }
    for group in rest.list("network/v2.0/security-groups").await.unwrap() {
        let group_name = group["name"].as_str().unwrap();
        if !group_name.starts_with("lb-sg-") || !group_name.ends_with(&format!("-default-{name}")) {
            continue;
        }
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
        let has = |port: &&Value| port["security_groups"].as_array().unwrap().contains(&group["id"]);
        let ports = rest.list("network/v2.0/ports").await.unwrap();
        let ports = ports.iter().filter(has).count();
        lines.push(format!("group of {ports} ports: {rules:?}"));
    }
    lines.sort();
    lines
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
    rest: Rest,
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
        self.services.create(&PostParams::default(), &service).await.unwrap();
    }

    async fn delete(&self) {
        self.services.delete(&name(), &DeleteParams::default()).await.unwrap();
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
            Some(served) => picture(&self.rest).await == *served,
            None => true,
        }
    }

    /// The time that Octavia itself takes for the load balancer, from the request until it is `ACTIVE`.
    async fn creation_time(&self) -> Option<Duration> {
        let is_creation =
            |request: &Request| request.method == "POST" && request.path.ends_with("/loadbalancers");
        self.proxy.wait_for(|requests| requests.iter().any(is_creation)).await;
        let began = Instant::now();
        let is_active = async || {
            let balancer = balancers(&self.rest).await.pop()?;
            (balancer["provisioning_status"] == "ACTIVE").then(|| began.elapsed())
        };
        eventually(PATIENCE, is_active).await
    }

    async fn is_deleted(&self) -> bool {
        matches!(self.services.get_opt(&name()).await, Ok(None)) && picture(&self.rest).await.is_empty()
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
                picture(&self.rest).await,
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
    let proxy = CloudProxy::<OpenStackDialect>::start(cloud.auth_url()).await.unwrap();
    let stage = Stage::set(program()).await.unwrap();
    let conf = format!("{}{CONFIG}", proxy.cloud_conf(&read(&cloud.cloud_conf())));
    stage.write_cloud_config(&conf).unwrap();
    let client = stage.control_plane.client().await.unwrap();
    let specs: Vec<_> = servers.into_iter().map(NodeSpec::new).collect();
    ccm_testbed::nodes::register(&client, &specs).await.unwrap();
    let nodes: Api<Node> = Api::all(client.clone());
    let mut scene = RealService {
        rest: cloud.log_in().await.unwrap(),
        services: Api::default_namespaced(client),
        proxy,
        stage,
        served: None,
    };
    assert_eq!(picture(&scene.rest).await, [""; 0], "objects of another run exist");

    let mut ccm = scene.start();
    let initialized = async || {
        let nodes = nodes.list(&ListParams::default()).await.ok()?.items;
        nodes.iter().all(is_initialized).then_some(())
    };
    eventually(PATIENCE, initialized).await.expect("initialized nodes");
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
    scene.served = Some(picture(&scene.rest).await);
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
