//! Plays the Services of a case, phase by phase, and waits until cloud and cluster equal the recording.

use std::{
    collections::BTreeMap,
    env,
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result};
use ccm_testbed::{
    binary::Ccm,
    nodes,
    observe::{self, eventually},
    stage::Stage,
};
use k8s_openapi::api::core::v1::{Event, Node, Service};
use kube::{
    Api,
    api::{DeleteParams, ListParams, Patch, PatchParams, PostParams},
};
use serde_json::{Map, Value, json};

use crate::{
    cases::{Case, CaseState, items, name_of, text},
    compare::{Row, Rules, differences},
    site::{Call, Host, Normalizer, Site},
};

/// The cluster of the recordings.
pub(crate) const CLUSTER: &str = "parity";
/// Names of the nodes in the recordings.
const RECORDED_NODES: [&str; 3] = ["node-1", "node-2", "node-3"];
/// Reasons of Events that the API server writes itself.
const OF_THE_API_SERVER: [&str; 2] = ["ClusterIPNotAllocated", "ClusterIPOutOfSync"];
/// An annotation of cases of GCE, by which its recorder knows Services that get no load balancer. It is not recorded.
const FOR_THE_RECORDER: &str = "parity/elsewhere";
pub(crate) const FINALIZER: &str = "service.kubernetes.io/load-balancer-cleanup";

/// The result of a phase.
#[derive(Debug)]
pub(crate) struct Phase {
    pub(crate) name: String,
    pub(crate) rows: Vec<Row>,
    /// The rules that matched a difference.
    pub(crate) used: Vec<usize>,
    /// The writes of the upstream program after a rollback to it.
    pub(crate) upstream_writes: Vec<String>,
    pub(crate) used_writes: Vec<usize>,
    pub(crate) calls: usize,
    pub(crate) writes: usize,
    pub(crate) recorded_calls: u64,
}

/// A cluster, a cloud and the program.
pub(crate) struct Play<S> {
    pub(crate) site: S,
    pub(crate) stage: Stage,
    pub(crate) services: Api<Service>,
    nodes: Api<Node>,
    events: Api<Event>,
    running: Option<RunningProgram>,
}

/// The program with the config and the flags with which it was started.
struct RunningProgram {
    config: Value,
    flags: Vec<String>,
    ccm: Ccm,
}

impl<S: Site> Play<S> {
    pub(crate) async fn set(site: S) -> Result<Self> {
        let program = env!("CARGO_BIN_EXE_cloud-controller-manager");
        let stage = Stage::set(program).await?;
        let client = stage.control_plane.client().await?;
        nodes::register(&client, &site.nodes()).await?;
        site.prepare(&client).await?;
        Ok(Self {
            services: Api::namespaced(client.clone(), "default"),
            nodes: Api::all(client.clone()),
            events: Api::namespaced(client, "default"),
            site,
            stage,
            running: None,
        })
    }

    /// Time limit of a phase.
    pub(crate) fn limit(&self) -> Duration {
        let given = env::var("CCM_TEST_PARITY_SECONDS").ok().and_then(|text| text.parse().ok());
        given.map_or(self.site.patience().0, Duration::from_secs)
    }

    /// Time without a call after which a phase has ended.
    fn quiet(&self) -> Duration {
        self.site.patience().1
    }

    /// Runs the program with this config. A running program with the same config and without further flags continues.
    pub(crate) async fn run(&mut self, config: &Value) -> Result<()> {
        self.run_with(config, &[]).await
    }

    /// The same with further flags, of which the last one of a name counts.
    pub(crate) async fn run_with(&mut self, config: &Value, more: &[String]) -> Result<()> {
        if self
            .running
            .as_ref()
            .is_some_and(|running| running.config == *config && running.flags == more)
        {
            return Ok(());
        }
        self.stop().await?;
        self.stage.write_cloud_config(&self.site.cloud_conf(config))?;
        let cluster = format!("--cluster-name={CLUSTER}");
        let flags = [
            cluster.as_str(),
            "--leader-elect=false",
            "--allocate-node-cidrs=false",
            "--configure-cloud-routes=false",
            "-v=4",
        ];
        let kubeconfig = self.stage.control_plane.kubeconfig();
        let mut launch = self.stage.command(S::CLOUD, &kubeconfig, &flags);
        launch.args.extend(self.site.flags());
        launch.args.extend_from_slice(more);
        launch.envs = self.site.environment();
        let mut ccm = Ccm::start(&launch)?;
        ccm.wait_healthy("/readyz", self.limit()).await?;
        let ready = async || {
            let nodes = self.nodes.list(&ListParams::default()).await.ok()?.items;
            nodes.iter().all(observe::is_initialized).then_some(())
        };
        let ready = eventually(self.limit(), ready).await;
        ready.with_context(|| format!("nodes are not initialized: {}", self.log()))?;
        self.running = Some(RunningProgram {
            config: config.clone(),
            flags: more.to_vec(),
            ccm,
        });
        Ok(())
    }

    /// The number of parts of load balancers by the result of their last pass, from the program's metrics.
    pub(crate) async fn parts(&self) -> Result<BTreeMap<String, u64>> {
        let text = self.metrics().await?;
        let parts = text.lines().filter_map(|line| {
            let (state, count) = line.strip_prefix("ccm_service_parts{state=\"")?.split_once("\"} ")?;
            Some((state.to_owned(), count.parse().ok()?))
        });
        Ok(parts.collect())
    }

    /// Whether the program waits neither for the cloud, which may be busy without a call, nor for one of its own workers. A change
    /// before that would be combined with the work in progress.
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
        let running = self.running.as_ref().context("the program does not run")?;
        Ok(running.ccm.get("/metrics").await?.1)
    }

    pub(crate) async fn stop(&mut self) -> Result<()> {
        if let Some(mut running) = self.running.take() {
            running.ccm.terminate()?;
            running.ccm.wait(self.limit()).await?;
        }
        Ok(())
    }

    pub(crate) fn log(&self) -> String {
        self.stage.log()
    }

    /// Plays a case to its end, and deletes its remaining objects.
    pub(crate) async fn case(&mut self, case: &Case, rules: &Rules) -> Result<Vec<Phase>> {
        self.site.seed(&case.seed).await?;
        self.run_with(&case.config, &case.flags).await?;
        let mut case_state = CaseState::new(S::CLOUD, case)?;
        let mut phases = Vec::new();
        let mut moment = self.site.mark()?;
        let names: Vec<String> = case.services.iter().map(name_of).collect();
        if case.one_by_one {
            for (name, service) in names.iter().zip(&case.services) {
                self.create(&mut case_state, service).await?;
                phases.push(self.phase(&mut case_state, &format!("create {name}"), &moment, rules).await?);
                moment = self.site.mark()?;
            }
        } else {
            for service in &case.services {
                if !case.later.contains(&name_of(service)) {
                    self.create(&mut case_state, service).await?;
                }
            }
            phases.push(self.phase(&mut case_state, "create", &moment, rules).await?);
        }
        for step in &case.steps {
            moment = self.site.mark()?;
            let created = case.services.iter().find(|service| step["create"] == name_of(service));
            if let Some(service) = created {
                self.create(&mut case_state, service).await?;
            }
            self.step(&self.substitute(step).await?, &names).await?;
            phases.push(self.phase(&mut case_state, &text(&step["name"]), &moment, rules).await?);
        }
        moment = self.site.mark()?;
        for name in &names {
            let _may_be_deleted = self.services.delete(name, &DeleteParams::default()).await;
        }
        if !names.is_empty() {
            phases.push(self.phase(&mut case_state, "delete", &moment, rules).await?);
        }
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
        if let Some(pattern) = step["drop"].as_str() {
            self.site.remove(pattern).await?;
        }
        if !step["patch"].is_null() {
            let first = names.first().cloned().unwrap_or_default();
            let name = step["service"].as_str().unwrap_or(&first);
            self.services.patch(name, &merge, &Patch::Merge(&step["patch"])).await?;
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
        // Cases of Azure have the number of the node.
        let at = match step["node"].as_u64() {
            Some(number) => usize::try_from(number)?.checked_sub(1),
            None => RECORDED_NODES.iter().position(|node| step["node"] == *node),
        };
        let node = at.and_then(|at| Some(self.site.nodes().get(at)?.name.clone()));
        let node = node.context("an unknown node")?;
        let patch = Patch::Merge(&step[what]);
        self.nodes.patch(&node, &PatchParams::default(), &patch).await?;
        Ok(())
    }

    /// A value of a case with its variables replaced. `${LB_OF_web}` is the ID of the Service's load balancer.
    async fn substitute(&self, given: &Value) -> Result<Value> {
        let mut written = given.to_string();
        while let Some((before, rest)) = written.split_once("${") {
            let (name, after) = rest.split_once('}').context("an open brace")?;
            let value = match name.strip_prefix("LB_OF_") {
                Some(of) => {
                    let annotations = self.services.get(of).await?.metadata.annotations;
                    let id = annotations
                        .and_then(|all| all.into_iter().find(|(key, _)| key.ends_with("/load-balancer-id")));
                    id.map(|(_, id)| id)
                }
                None => self.site.variable(name),
            };
            let value = value.with_context(|| format!("${{{name}}} has no value"))?;
            written = format!("{before}{value}{after}");
        }
        Ok(serde_json::from_str(&written)?)
    }

    pub(crate) async fn create(&self, case_state: &mut CaseState, service: &Value) -> Result<()> {
        let mut service = self.substitute(service).await?;
        default(&mut service["spec"], "type", json!("LoadBalancer"));
        default(&mut service["spec"], "selector", json!({"app": "x"}));
        let service: Service = serde_json::from_value(service)?;
        let created = self.services.create(&PostParams::default(), &service).await?;
        let uid = created.metadata.uid.unwrap_or_default();
        case_state.uids.insert(created.metadata.name.unwrap_or_default(), uid);
        Ok(())
    }

    /// Waits until the state equals the recording and the program is idle. Otherwise returns the remaining differences.
    async fn phase(
        &self,
        case_state: &mut CaseState,
        name: &str,
        moment: &S::Moment,
        rules: &Rules,
    ) -> Result<Phase> {
        let began = Instant::now();
        let want = case_state.expect(rules.like(&case_state.case, name))?;
        loop {
            self.wait_for_quiet(moment).await?;
            let got = match self.observe(case_state).await {
                Ok(got) => got,
                // An object was deleted while it was read.
                Err(_) if began.elapsed() < self.limit() => continue,
                Err(error) => return Err(error),
            };
            let (rows, used) = rules.unexpected(&case_state.case, name, differences(&want, &got));
            if (rows.is_empty() && self.is_idle().await?) || began.elapsed() > self.limit() {
                let calls = self.calls(moment)?;
                let recorded = want["calls"].as_object().into_iter().flatten();
                let config = self.running.as_ref().map_or(&Value::Null, |running| &running.config);
                let writes = self.site.writes_of_upstream(&got, &self.hosts().await?, config);
                let (upstream_writes, used_writes) = rules.unexpected_writes(&case_state.case, name, writes);
                return Ok(Phase {
                    upstream_writes,
                    used_writes,
                    name: name.to_owned(),
                    rows,
                    used,
                    calls: calls.len(),
                    writes: calls.iter().filter(|call| call.is_write).count(),
                    recorded_calls: recorded.filter_map(|(_, count)| count.as_u64()).sum(),
                });
            }
        }
    }

    /// The UIDs of the nodes, by their names in the recordings.
    pub(crate) async fn uids_of_nodes(&self) -> Result<BTreeMap<&'static str, String>> {
        let mut uids = BTreeMap::new();
        for (recorded, spec) in RECORDED_NODES.iter().zip(self.site.nodes()) {
            let node = self.nodes.get(&spec.name).await?;
            uids.insert(*recorded, node.metadata.uid.unwrap_or_default());
        }
        Ok(uids)
    }

    /// The nodes with the names of the recordings.
    pub(crate) async fn hosts(&self) -> Result<Vec<Host>> {
        let mut hosts = Vec::new();
        for (name, spec) in RECORDED_NODES.iter().zip(self.site.nodes()) {
            let node = self.nodes.get(&spec.name).await?;
            let labels = node.metadata.labels.unwrap_or_default();
            hosts.push(Host {
                name: (*name).to_owned(),
                excluded: labels.contains_key("node.kubernetes.io/exclude-from-external-load-balancers"),
                labels,
            });
        }
        Ok(hosts)
    }

    pub(crate) fn calls(&self, moment: &S::Moment) -> Result<Vec<Call>> {
        self.site.calls_since(moment)
    }

    /// Waits until the program has made no call for a while.
    pub(crate) async fn wait_for_quiet(&self, moment: &S::Moment) -> Result<()> {
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

    /// The present state of cloud and Services, with the names of the recordings.
    pub(crate) async fn observe(&self, case_state: &mut CaseState) -> Result<Value> {
        let (cloud, mut names) = self.site.dump(&case_state.uids).await?;
        let (mut live, mut specs) = (Map::new(), Map::new());
        if S::NAMES_NODES_BY_UID {
            for (recorded, uid) in self.uids_of_nodes().await? {
                case_state.words.insert(uid, format!("<uid:{recorded}>"));
            }
        }
        for (name, uid) in &case_state.uids {
            case_state.words.insert(uid.clone(), format!("<uid:{name}>"));
            let Some(service) = self.services.get_opt(name).await? else {
                continue;
            };
            let service = serde_json::to_value(service)?;
            for port in items(&service["spec"]["ports"]) {
                if port["nodePort"].as_u64().is_some_and(|number| number > 0) {
                    let word = format!("<nodeport:{name}:{}>", port["port"]);
                    case_state.words.insert(port["nodePort"].to_string(), word);
                }
            }
            let health = &service["spec"]["healthCheckNodePort"];
            if health.as_u64().is_some_and(|number| number > 0) {
                case_state.words.insert(health.to_string(), format!("<hcnodeport:{name}>"));
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
            let mut annotations = or(&metadata["annotations"], json!({}));
            if let Some(all) = annotations.as_object_mut() {
                all.remove(FOR_THE_RECORDER);
            }
            live.insert(
                name.clone(),
                json!({
                    "annotations": annotations,
                    "finalizers": or(&metadata["finalizers"], json!([])),
                    "status": or(&service["status"], json!({})),
                }),
            );
        }
        let events = self.events(case_state).await?;
        names.words.clone_from(&case_state.words);
        let normal = Normalizer::new(&names);
        Ok(json!({
            "cloud": normal.value(&cloud),
            "services": normal.value(&Value::Object(live)),
            "specs": normal.value(&Value::Object(specs)),
            "events": normal.value(&events),
        }))
    }

    async fn events(&self, case_state: &CaseState) -> Result<Value> {
        let mut found: BTreeMap<&String, Vec<Value>> = BTreeMap::new();
        let all = self.events.list(&ListParams::default()).await?.items;
        for (name, uid) in &case_state.uids {
            let list = found.entry(name).or_default();
            for event in &all {
                let reason = event.reason.as_deref().unwrap_or_default();
                if event.involved_object.uid.as_ref() != Some(uid) || OF_THE_API_SERVER.contains(&reason) {
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

    /// Deletes Services and their objects while the program does not run.
    pub(crate) async fn clear(&self, names: &[String]) -> Result<()> {
        for name in names {
            self.services.delete(name, &DeleteParams::default()).await?;
        }
        self.tidy(names).await
    }

    /// Restores the state before the case.
    pub(crate) async fn tidy(&self, names: &[String]) -> Result<()> {
        for name in names {
            if let Some(service) = self.services.get_opt(name).await?
                && service.metadata.finalizers.is_some_and(|list| !list.is_empty())
            {
                let patch = json!({"metadata": {"finalizers": null}});
                self.services.patch(name, &PatchParams::default(), &Patch::Merge(patch)).await?;
            }
        }
        self.site.clear().await
    }
}

fn default(object: &mut Value, key: &str, value: Value) {
    if object[key].is_null() {
        object[key] = value;
    }
}
