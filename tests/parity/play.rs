//! Plays the Services of a case, phase by phase, and waits until the cloud and the cluster look as they were recorded.

use std::{
    collections::BTreeMap,
    env, fs,
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result};
use ccm_testbed::{
    binary::Ccm,
    nodes::{self, NodeSpec},
    observe,
    stage::Stage,
};
use k8s_openapi::api::core::v1::{Event, Node, Service};
use kube::{
    Api,
    api::{DeleteParams, ListParams, Patch, PatchParams, PostParams},
};
use serde_json::{Map, Value, json};

use crate::{
    cases::{Case, Scene, name_of},
    compare::{Row, Rules, differences},
    record::{Base, Normal, Things, dump},
    rest::{items, patiently, text},
    site::{Call, Moment, Site},
    upstream::{self, Host, Told},
};

/// The cluster of the recordings.
pub(crate) const CLUSTER: &str = "parity";
const FINALIZER: &str = "service.kubernetes.io/load-balancer-cleanup";

/// How a phase went.
#[derive(Debug)]
pub(crate) struct Phase {
    pub(crate) name: String,
    pub(crate) rows: Vec<Row>,
    /// Rules that excused something.
    pub(crate) used: Vec<usize>,
    /// What the upstream program would write if it came back now.
    pub(crate) back: Vec<String>,
    pub(crate) used_back: Vec<usize>,
    pub(crate) calls: usize,
    pub(crate) writes: usize,
    pub(crate) recorded_calls: u64,
}

/// A cluster, a cloud and the program.
pub(crate) struct Play {
    pub(crate) site: Site,
    pub(crate) stage: Stage,
    pub(crate) services: Api<Service>,
    nodes: Api<Node>,
    events: Api<Event>,
    base: Base,
    agent: String,
    running: Option<(Value, Ccm)>,
}

impl Play {
    pub(crate) async fn set(site: Site, agent: &str) -> Result<Self> {
        let program = env!("CARGO_BIN_EXE_cloud-controller-manager");
        let stage = Stage::set(program, true).await?;
        let client = stage.control_plane.client().await?;
        let specs: Vec<NodeSpec> = (1..=3)
            .map(|i| {
                let mut spec = NodeSpec::new(format!("node-{i}"));
                let pool = if i == 3 { "b" } else { "a" };
                spec.labels.insert("pool".to_owned(), pool.to_owned());
                spec
            })
            .collect();
        nodes::register(&client, &specs).await?;
        let base = Things::of(&site).await?.ids();
        Ok(Self {
            services: Api::namespaced(client.clone(), "default"),
            nodes: Api::all(client.clone()),
            events: Api::namespaced(client, "default"),
            base,
            site,
            stage,
            agent: agent.to_owned(),
            running: None,
        })
    }

    /// How long a phase may take.
    fn limit(&self) -> Duration {
        let given = env::var("CCM_TEST_PARITY_SECONDS")
            .ok()
            .and_then(|text| text.parse().ok());
        let usual = if self.site.is_real() { 400 } else { 60 };
        Duration::from_secs(given.unwrap_or(usual))
    }

    /// How long nothing must have happened.
    fn quiet(&self) -> Duration {
        Duration::from_millis(if self.site.is_real() { 2500 } else { 1100 })
    }

    /// The program with this config; it goes on if it has it already.
    pub(crate) async fn run(&mut self, config: &Value) -> Result<()> {
        if self.running.as_ref().is_some_and(|(has, _)| has == config) {
            return Ok(());
        }
        self.stop().await?;
        self.stage.write_cloud_config(&self.site.cloud_conf(config))?;
        let agent = format!("--user-agent={}", self.agent);
        let cluster = format!("--cluster-name={CLUSTER}");
        let flags = [
            agent.as_str(),
            &cluster,
            "--leader-elect=false",
            "--allocate-node-cidrs=false",
            "--configure-cloud-routes=false",
            "-v=4",
        ];
        let mut ccm = self.stage.launch("openstack", &flags)?;
        ccm.wait_healthy("/readyz", self.limit()).await?;
        let ready = async || {
            let nodes = self.nodes.list(&ListParams::default()).await.ok()?.items;
            nodes.iter().all(observe::is_initialized).then_some(())
        };
        let ready = observe::eventually(self.limit(), ready).await;
        ready.with_context(|| format!("nodes are not initialized: {}", self.log()))?;
        self.running = Some((config.clone(), ccm));
        Ok(())
    }

    /// Parts of load balancers by how their last pass ended, as the program tells.
    pub(crate) async fn parts(&self) -> Result<BTreeMap<String, u64>> {
        let text = self.metrics().await?;
        let parts = text.lines().filter_map(|line| {
            let (state, count) = line
                .strip_prefix("ccm_service_parts{state=\"")?
                .split_once("\"} ")?;
            Some((state.to_owned(), count.parse().ok()?))
        });
        Ok(parts.collect())
    }

    /// Whether the program waits for nothing: neither for the cloud, which may be at work longer than there are no calls,
    /// nor for one of its own workers. What is changed before that is done together with what is under way.
    async fn is_idle(&self) -> Result<bool> {
        const BUSY: [&str; 4] = [
            "ccm_service_parts{state=\"new\"}",
            "ccm_service_parts{state=\"parked\"}",
            "ccm_service_parts_running",
            "ccm_service_queue{state=\"ready\"}",
        ];
        let text = self.metrics().await?;
        let mut samples = text.lines().filter_map(|line| line.split_once(' '));
        Ok(samples.all(|(name, value)| value == "0" || !BUSY.contains(&name)))
    }

    async fn metrics(&self) -> Result<String> {
        let (_, ccm) = self.running.as_ref().context("nothing runs")?;
        Ok(ccm.get("/metrics").await?.1)
    }

    pub(crate) async fn stop(&mut self) -> Result<()> {
        if let Some((_, mut ccm)) = self.running.take() {
            ccm.terminate()?;
            ccm.wait(self.limit()).await?;
        }
        Ok(())
    }

    pub(crate) fn log(&self) -> String {
        fs::read_to_string(self.stage.log()).unwrap_or_default()
    }

    /// Plays a case to its end; what is left over is removed.
    pub(crate) async fn case(&mut self, case: &Case, rules: &Rules) -> Result<Vec<Phase>> {
        self.run(&case.config).await?;
        let mut scene = Scene::new(case)?;
        let mut phases = Vec::new();
        let mut moment = self.site.mark()?;
        let names: Vec<String> = case.services.iter().map(name_of).collect();
        if case.one_by_one {
            for (name, service) in names.iter().zip(&case.services) {
                self.create(&mut scene, service).await?;
                phases.push(
                    self.phase(&mut scene, &format!("create {name}"), &moment, rules)
                        .await?,
                );
                moment = self.site.mark()?;
            }
        } else {
            for service in &case.services {
                self.create(&mut scene, service).await?;
            }
            phases.push(self.phase(&mut scene, "create", &moment, rules).await?);
        }
        for step in &case.steps {
            moment = self.site.mark()?;
            self.step(step, &names).await?;
            phases.push(
                self.phase(&mut scene, &text(&step["name"]), &moment, rules)
                    .await?,
            );
        }
        moment = self.site.mark()?;
        for name in &names {
            let _gone_already = self.services.delete(name, &DeleteParams::default()).await;
        }
        phases.push(self.phase(&mut scene, "delete", &moment, rules).await?);
        for step in &case.steps {
            if !step["undo_node"].is_null() {
                self.patch_node(step, "undo_node").await?;
            }
        }
        self.tidy(&names).await?;
        Ok(phases)
    }

    async fn step(&self, step: &Value, names: &[String]) -> Result<()> {
        let merge = PatchParams::default();
        if !step["patch"].is_null() {
            let first = names.first().cloned().unwrap_or_default();
            let name = step["service"].as_str().unwrap_or(&first);
            self.services
                .patch(name, &merge, &Patch::Merge(&step["patch"]))
                .await?;
        }
        if !step["node"].is_null() {
            self.patch_node(step, "patch_node").await?;
        }
        if let Some(name) = step["delete"].as_str() {
            self.services.delete(name, &DeleteParams::default()).await?;
        }
        Ok(())
    }

    async fn patch_node(&self, step: &Value, what: &str) -> Result<()> {
        let node = text(&step["node"]);
        let patch = Patch::Merge(&step[what]);
        self.nodes.patch(&node, &PatchParams::default(), &patch).await?;
        Ok(())
    }

    pub(crate) async fn create(&self, scene: &mut Scene, service: &Value) -> Result<()> {
        let mut written = service.to_string();
        while let Some((before, rest)) = written.split_once("${LB_OF_") {
            let (of, after) = rest.split_once('}').context("an open brace")?;
            let annotations = self
                .services
                .get(of)
                .await?
                .metadata
                .annotations
                .unwrap_or_default();
            let id = annotations
                .get("loadbalancer.openstack.org/load-balancer-id")
                .context("no load balancer")?;
            written = format!("{before}{id}{after}");
        }
        let mut service: Value = serde_json::from_str(&written)?;
        default(&mut service["spec"], "type", json!("LoadBalancer"));
        default(&mut service["spec"], "selector", json!({"app": "x"}));
        let service: Service = serde_json::from_value(service)?;
        let made = self.services.create(&PostParams::default(), &service).await?;
        let uid = made.metadata.uid.unwrap_or_default();
        scene.uids.insert(made.metadata.name.unwrap_or_default(), uid);
        Ok(())
    }

    /// Waits until all is as recorded and at rest, and else says what differs in the end.
    async fn phase(&self, scene: &mut Scene, name: &str, moment: &Moment, rules: &Rules) -> Result<Phase> {
        let began = Instant::now();
        let want = scene.expect(rules.like(&scene.case, name))?;
        loop {
            self.rest_of_calls(moment).await?;
            let got = match self.look(scene).await {
                Ok(got) => got,
                // Something went while it was looked at.
                Err(_) if began.elapsed() < self.limit() => continue,
                Err(error) => return Err(error),
            };
            let (rows, used) = rules.judge(&scene.case, name, differences(&want, &got));
            if (rows.is_empty() && self.is_idle().await?) || began.elapsed() > self.limit() {
                let calls = self.calls(moment)?;
                let recorded = want["calls"].as_object().into_iter().flatten();
                let back = upstream::writes(&got, &self.hosts().await?, self.told());
                let (back, used_back) = rules.judge_back(&scene.case, name, back);
                return Ok(Phase {
                    back,
                    used_back,
                    name: name.to_owned(),
                    rows,
                    used,
                    calls: calls.len(),
                    writes: calls.iter().filter(|call| call.is_write()).count(),
                    recorded_calls: recorded.filter_map(|(_, count)| count.as_u64()).sum(),
                });
            }
        }
    }

    async fn hosts(&self) -> Result<Vec<Host>> {
        let nodes = self.nodes.list(&ListParams::default()).await?.items;
        let host = |node: Node| {
            let labels = node.metadata.labels.unwrap_or_default();
            Host {
                name: node.metadata.name.unwrap_or_default(),
                excluded: labels.contains_key("node.kubernetes.io/exclude-from-external-load-balancers"),
                labels,
            }
        };
        Ok(nodes.into_iter().map(host).collect())
    }

    fn told(&self) -> Told {
        let config = self.running.as_ref().map(|(config, _)| &config["LoadBalancer"]);
        let on = |key: &str| config.is_none_or(|config| config[key] != "false");
        Told {
            monitors: on("create-monitor"),
            groups: on("manage-security-groups"),
        }
    }

    pub(crate) fn calls(&self, moment: &Moment) -> Result<Vec<Call>> {
        let mut calls = self.site.calls_since(moment, &self.agent)?;
        calls.retain(Call::is_of_the_cloud);
        Ok(calls)
    }

    /// Waits until the program has not called for a while.
    pub(crate) async fn rest_of_calls(&self, moment: &Moment) -> Result<()> {
        let mut seen = usize::MAX;
        let mut since = Instant::now();
        loop {
            let count = self.calls(moment)?.len();
            if count != seen {
                seen = count;
                since = Instant::now();
            } else if since.elapsed() > self.quiet() {
                return Ok(());
            }
            tokio::time::sleep(self.quiet() / 10).await;
        }
    }

    /// Cloud and Services as they are now, in the words of the recordings.
    pub(crate) async fn look(&self, scene: &mut Scene) -> Result<Value> {
        let (cloud, mut names) = dump(&self.site, &self.base).await?;
        let (mut live, mut specs) = (Map::new(), Map::new());
        for (name, uid) in &scene.uids {
            scene.words.insert(uid.clone(), format!("<uid:{name}>"));
            let Some(service) = self.services.get_opt(name).await? else {
                continue;
            };
            let service = serde_json::to_value(service)?;
            for port in items(&service["spec"]["ports"]) {
                if port["nodePort"].as_u64().is_some_and(|number| number > 0) {
                    let word = format!("<nodeport:{name}:{}>", port["port"]);
                    scene.words.insert(port["nodePort"].to_string(), word);
                }
            }
            let health = &service["spec"]["healthCheckNodePort"];
            if health.as_u64().is_some_and(|number| number > 0) {
                scene
                    .words
                    .insert(health.to_string(), format!("<hcnodeport:{name}>"));
            }
            let metadata = &service["metadata"];
            specs.insert(
                name.clone(),
                json!({
                    "metadata": {
                        "annotations": metadata["annotations"],
                        "deletionTimestamp": metadata["deletionTimestamp"],
                    },
                    "spec": service["spec"],
                }),
            );
            let or = |value: &Value, other: Value| if value.is_null() { other } else { value.clone() };
            live.insert(
                name.clone(),
                json!({
                    "annotations": or(&metadata["annotations"], json!({})),
                    "finalizers": or(&metadata["finalizers"], json!([])),
                    "status": or(&service["status"], json!({})),
                }),
            );
        }
        let events = self.events(scene).await?;
        names.words = scene.words.clone();
        let normal = Normal::of(&names);
        Ok(json!({
            "cloud": normal.value(&cloud),
            "services": normal.value(&Value::Object(live)),
            "specs": normal.value(&Value::Object(specs)),
            "events": normal.value(&events),
        }))
    }

    async fn events(&self, scene: &Scene) -> Result<Value> {
        let mut found: BTreeMap<&String, Vec<Value>> = BTreeMap::new();
        let all = self.events.list(&ListParams::default()).await?.items;
        for (name, uid) in &scene.uids {
            let list = found.entry(name).or_default();
            for event in &all {
                // That one is the API server's own.
                if event.involved_object.uid.as_ref() != Some(uid)
                    || event.reason.as_deref() == Some("ClusterIPNotAllocated")
                {
                    continue;
                }
                let source = event.source.as_ref().and_then(|source| source.component.clone());
                let component = source.or_else(|| event.reporting_component.clone());
                let event = json!({
                    "type": event.type_, "reason": event.reason, "message": event.message,
                    "component": component,
                });
                if !list.contains(&event) {
                    list.push(event);
                }
            }
        }
        Ok(serde_json::to_value(found)?)
    }

    /// Removes Services without a program that would care, and what they have.
    pub(crate) async fn clear(&self, names: &[String]) -> Result<()> {
        for name in names {
            self.services.delete(name, &DeleteParams::default()).await?;
        }
        self.tidy(names).await
    }

    /// The next case finds the cloud as this one did.
    pub(crate) async fn tidy(&self, names: &[String]) -> Result<()> {
        for name in names {
            if let Some(service) = self.services.get_opt(name).await?
                && service
                    .metadata
                    .finalizers
                    .is_some_and(|list| list.contains(&FINALIZER.to_owned()))
            {
                let patch = json!({"metadata": {"finalizers": null}});
                self.services
                    .patch(name, &PatchParams::default(), &Patch::Merge(patch))
                    .await?;
            }
        }
        let left = Things::of(&self.site).await?.without(&self.base);
        let rest = &self.site.rest;
        for balancer in &left.balancers {
            let id = text(&balancer["id"]);
            rest.delete(&format!(
                "load-balancer/v2.0/lbaas/loadbalancers/{id}?cascade=true"
            ))
            .await?;
        }
        let gone = async || {
            let now = Things::of(&self.site).await.ok()?;
            now.without(&self.base).balancers.is_empty().then_some(())
        };
        patiently(self.limit(), gone)
            .await
            .context("a load balancer stays")?;
        for floating in &left.floating {
            rest.delete(&format!("network/v2.0/floatingips/{}", text(&floating["id"])))
                .await?;
        }
        let groups: Vec<String> = left.groups.iter().map(|group| text(&group["id"])).collect();
        for port in Things::of(&self.site).await?.ports {
            let has: Vec<String> = items(&port["security_groups"]).iter().map(text).collect();
            if has.iter().any(|group| groups.contains(group)) {
                let keep: Vec<&String> = has.iter().filter(|group| !groups.contains(group)).collect();
                let path = format!("network/v2.0/ports/{}", text(&port["id"]));
                rest.put(&path, json!({"port": {"security_groups": keep}}))
                    .await?;
            }
        }
        for group in &groups {
            rest.delete(&format!("network/v2.0/security-groups/{group}"))
                .await?;
        }
        Ok(())
    }
}

fn default(object: &mut Value, key: &str, value: Value) {
    if object[key].is_null() {
        object[key] = value;
    }
}
