//! The tagging controller: the tags of `--tags` on the instances of all nodes.
//!
//! A node whose instance has the tags bears a label with their checksum, so that a restart writes nothing. Instances are tagged
//! and untagged up to 1000 at a time. Tags that somebody changed by hand are repaired once an hour. Source:
//! `pkg/controllers/tagging` of the Go cloud controller.

use std::{
    collections::{BTreeMap, HashMap, HashSet},
    fmt::{self, Write as _},
    sync::Arc,
    time::Duration,
};

use ccm_core::{
    BuildContext, Error, ErrorKind, FlagDef, FlagKind, FlagValues, Priority, Result,
    client::{Bucket, Quota},
    controllers::{
        Backoff, ControllerContext, ControllerDef, ControllerMetrics, Informer, Needs, NodeObject,
        NotStarted, WorkQueue, informer::Change,
    },
};
use futures_util::{StreamExt, future::join_all, stream};
use k8s_openapi::api::core::v1::Node;
use kube::{
    Api as KubeApi,
    api::{Patch, PatchParams},
};
use prometheus_client::metrics::{counter::Counter, family::Family, histogram::Histogram};
use serde_json::json;
use tokio::time::{Instant, sleep_until, timeout};
use tracing::{debug, info, warn};

use crate::{
    Aws,
    client::{
        Client,
        ec2::{FILTER_VALUES, TAGGED_RESOURCES},
    },
    cluster::Tags,
    instances::{
        named_ids,
        provider_id::{self, ProviderId, is_well_formed},
    },
};

/// The label with the checksum of the tags.
const LABEL: &str = "k8s.io/cloud-provider-aws";
/// EC2 may not show a new instance everywhere yet: so long an unknown one is tried again.
const YOUNG: Duration = Duration::from_secs(300);
/// Tries of one node.
const ATTEMPTS: u32 = 10;
/// Changes that come closer to each other are handled together.
const IDLE: Duration = Duration::from_millis(100);
/// Pause between two comparisons of all tags.
const RESYNC: Duration = Duration::from_secs(3600);
/// Waits between tries.
const BACKOFF: Backoff = Backoff {
    first: Duration::from_secs(1),
    longest: Duration::from_secs(1000),
};

const TAGS: FlagDef = FlagDef {
    name: "tags",
    kind: FlagKind::List,
    default: "",
    help: "Tags for the tagging controller, as key=value; may be repeated",
};
const RESOURCES: FlagDef = FlagDef {
    name: "resources",
    kind: FlagKind::Array("RESOURCE"),
    default: "",
    help: "What the tagging controller tags; only instance",
};
const RATE: FlagDef = FlagDef {
    name: "tagging-controller-rate-limit",
    kind: FlagKind::Float,
    default: "0",
    help: "Nodes per second that the tagging controller handles. 0 is no limit, as is a burst limit of 0",
};
const BURST: FlagDef = FlagDef {
    name: "tagging-controller-burst-limit",
    kind: FlagKind::Number(0),
    default: "0",
    help: "Nodes that the tagging controller handles at once after a quiet time. 0 is no limit, as is a rate limit of 0",
};
const SYNCS: FlagDef = FlagDef {
    name: "tagging-controller-concurrent-node-syncs",
    kind: FlagKind::Number(1),
    default: "1",
    help: "How many nodes the tagging controller labels at the same time",
};
const BATCHING: FlagDef = FlagDef {
    name: "tagging-controller-enable-batching",
    kind: FlagKind::Bool,
    default: "false",
    help: "Without effect: instances are always tagged together, up to 1000 with one request",
};

/// The flags of this controller, and `--allow-untagged-cloud`.
pub(crate) const FLAGS: &[FlagDef] = &[
    crate::ALLOW_UNTAGGED,
    TAGS,
    RESOURCES,
    RATE,
    BURST,
    SYNCS,
    BATCHING,
];

/// The name of the controller.
const NAME: &str = "tagging-controller";

/// The controller.
pub(crate) const DEF: ControllerDef = ControllerDef {
    name: NAME,
    aliases: &["tagging"],
    migration_name: None,
    client_name: NAME,
    default_on: false,
    needs: |setup| match Settings::of(&setup.flags) {
        Ok(_) => Ok(Needs::default()),
        Err(_) => Err(NotStarted::NotConfigured("--tags and --resources are required")),
    },
    start: |context| {
        let aws = context.setup.cloud_as::<Aws>()?;
        let settings = Settings::of(&context.setup.flags)
            .map_err(|problems| Error::new(ErrorKind::InvalidConfig, problems.join("\n")))?;
        Ok(Box::pin(Tagger::new(&aws, settings, context).run()))
    },
};

/// Checks the flags, if the controller is enabled or any of them is given.
///
/// # Errors
///
/// Everything that is wrong with them.
pub(crate) fn check(context: &BuildContext) -> Result<()> {
    let flags = &context.flags;
    let enabled = flags.given("controllers").unwrap_or_default();
    let is_enabled = enabled
        .iter()
        .flat_map(|list| list.split(','))
        .any(|name| DEF.is_called(name.trim()));
    let is_given = |flag: &&FlagDef| flags.given(flag.name).is_some();
    if !is_enabled && ![&TAGS, &RESOURCES].iter().any(is_given) {
        return Ok(());
    }
    Settings::of(flags)
        .map(drop)
        .map_err(|problems| Error::new(ErrorKind::InvalidConfig, problems.join("\n")))
}

/// What the flags say.
#[derive(Clone, Debug, PartialEq)]
struct Settings {
    tags: Tags,
    /// Nodes per second and at once, if they are limited.
    limit: Option<(f64, u32)>,
    syncs: usize,
}

impl Settings {
    fn of(flags: &FlagValues) -> Result<Self, Vec<String>> {
        let mut problems = Vec::new();
        let mut tags = Tags::new();
        for item in flags.list(&TAGS) {
            match item.split_once('=') {
                Some((key, value)) if !key.trim().is_empty() => {
                    tags.insert(key.trim().to_owned(), value.trim().to_owned());
                }
                _ => problems.push(format!("--tags: {item:?} is not a tag; write key=value")),
            }
        }
        if tags.is_empty() && problems.is_empty() {
            problems
                .push("--tags: the tagging controller needs at least one; write --tags=key=value".to_owned());
        }
        let resources = flags.list(&RESOURCES);
        for resource in resources.iter().filter(|resource| *resource != "instance") {
            problems.push(format!(
                "--resources: {resource:?} cannot be tagged; write instance"
            ));
        }
        if resources.is_empty() {
            problems
                .push("--resources: the tagging controller needs one; write --resources=instance".to_owned());
        }
        if !problems.is_empty() {
            return Err(problems);
        }
        let (rate, burst) = (
            flags.float(&RATE),
            u32::try_from(flags.number(&BURST)).unwrap_or(0),
        );
        Ok(Self {
            tags,
            limit: (rate > 0.0 && burst > 0).then_some((rate, burst)),
            syncs: usize::try_from(flags.number(&SYNCS)).unwrap_or(1),
        })
    }
}

/// The checksum of tags that upstream writes into the label.
fn checksum(tags: &Tags) -> String {
    let sorted: Vec<String> = tags.iter().map(|(key, value)| format!("{key}={value}")).collect();
    let digest = md5::compute(sorted.join(","));
    digest.iter().fold(String::new(), |mut text, byte| {
        // A string takes everything.
        let _ = write!(text, "{byte:02x}");
        text
    })
}

/// What is to be done for a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Action {
    Add,
    Delete,
}

/// A node in the queue.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Item {
    node: String,
    instance: String,
    action: Action,
}

impl fmt::Display for Item {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?} {} of node {}", self.action, self.instance, self.node)
    }
}

/// Metrics under upstream's names.
struct Metrics {
    /// By `error_type`. Upstream has the instance as a label, too, which grows without bounds.
    errors: Family<[(&'static str, &'static str); 1], Counter>,
    delay: Histogram,
}

impl Metrics {
    fn register(metrics: &ControllerMetrics) -> Self {
        let errors = Family::default();
        let delay = Histogram::new([1.0, 4.0, 16.0, 64.0, 256.0, 1024.0]);
        metrics.with(|registry| {
            registry.register(
                "cloudprovider_aws_tagging_controller_work_item_errors",
                "Nodes whose instance could not be tagged",
                errors.clone(),
            );
            registry.register(
                "tagging_controller_inital_node_tagging_delay_seconds",
                "Time from the creation of a node to the first tags of its instance",
                delay.clone(),
            );
        });
        Self { errors, delay }
    }
}

struct Tagger {
    api: Client,
    nodes: Arc<Informer<NodeObject>>,
    client: KubeApi<Node>,
    queue: WorkQueue<Item>,
    bucket: Option<Bucket>,
    checksum: String,
    settings: Settings,
    metrics: Metrics,
    context: ControllerContext,
    /// The instances of nodes, for when the nodes are gone.
    instances: HashMap<String, String>,
}

impl Tagger {
    fn new(aws: &Aws, settings: Settings, context: ControllerContext) -> Self {
        let bucket = settings.limit.map(|(rate, burst)| {
            Bucket::new(Quota {
                rate,
                burst,
                max_in_flight: u32::MAX,
            })
        });
        Self {
            api: aws.nodes.api.fenced_by(&context.fence).at(Priority::Background),
            nodes: Arc::clone(&context.nodes),
            client: KubeApi::all(context.client.clone()),
            queue: WorkQueue::new(BACKOFF, "Tags", context.metrics.queues()),
            bucket,
            checksum: checksum(&settings.tags),
            metrics: Metrics::register(&context.metrics),
            settings,
            context,
            instances: HashMap::new(),
        }
    }

    async fn run(mut self) {
        let shutdown = self.context.shutdown.clone();
        let mut changes = self.nodes.subscribe();
        tokio::select! {
            () = self.nodes.synced() => {}
            () = shutdown.cancelled() => return,
        }
        info!(
            controller = NAME,
            tags = self.settings.tags.len(),
            "Controller started"
        );
        let mut resync = Instant::now() + RESYNC;
        loop {
            tokio::select! {
                () = shutdown.cancelled() => return,
                Some(change) = changes.recv() => self.changed(change),
                first = self.queue.next() => {
                    // What is under way ends before the process does.
                    let batch = self.batch(first, &mut changes).await;
                    self.handle(batch).await;
                }
                () = sleep_until(resync) => {
                    self.compare().await;
                    resync = Instant::now() + RESYNC;
                }
            }
        }
    }

    /// Remembers the instance of a node and asks for what is to be done.
    fn changed(&mut self, change: Change) {
        match change {
            Change::Applied(name) => {
                let Some(node) = self.nodes.get(&name) else { return };
                let Some(instance) = instance_of(&node) else {
                    return;
                };
                self.instances.insert(name.clone(), instance.clone());
                if node.view.labels.get(LABEL) != Some(self.checksum.as_str()) {
                    self.queue.add_unless_waiting(Item {
                        node: name,
                        instance,
                        action: Action::Add,
                    });
                }
            }
            Change::Deleted(name) => {
                if let Some(instance) = self.instances.remove(&name) {
                    self.queue.add(Item {
                        node: name,
                        instance,
                        action: Action::Delete,
                    });
                }
            }
            // Perhaps the API server lost the node.
            Change::Vanished(_) => {}
        }
    }

    /// The nodes that are due now, as many as one request takes.
    async fn batch(
        &mut self,
        first: Item,
        changes: &mut tokio::sync::mpsc::UnboundedReceiver<Change>,
    ) -> Vec<Item> {
        let mut batch = vec![first];
        while batch.len() < TAGGED_RESOURCES {
            tokio::select! {
                biased;
                Some(change) = changes.recv() => self.changed(change),
                next = timeout(IDLE, self.queue.next()) => match next {
                    Ok(item) => batch.push(item),
                    Err(_) => break,
                }
            }
        }
        if let Some(bucket) = &self.bucket {
            for _ in &batch {
                let mut permit = bucket.acquire(Priority::Background).await;
                permit.begin();
                permit.accepted();
            }
        }
        batch
    }

    async fn handle(&self, batch: Vec<Item>) {
        let (adds, deletes): (Vec<Item>, Vec<Item>) =
            batch.into_iter().partition(|item| item.action == Action::Add);
        // A node that is gone or has its label needs nothing.
        let (adds, done): (Vec<Item>, Vec<Item>) = adds.into_iter().partition(|item| {
            let node = self.nodes.get(&item.node);
            node.is_some_and(|node| node.view.labels.get(LABEL) != Some(self.checksum.as_str()))
        });
        done.iter().for_each(|item| self.queue.done(item));
        // An instance that is a node again keeps its tags.
        let alive: HashSet<&String> = self.instances.values().collect();
        let (kept, deletes): (Vec<Item>, Vec<Item>) = deletes
            .into_iter()
            .partition(|item| alive.contains(&item.instance));
        kept.iter().for_each(|item| self.queue.done(item));
        let ids = |items: &[Item]| items.iter().map(|item| item.instance.clone()).collect();
        let deleted = self.write(Action::Delete, ids(&deletes)).await;
        let added = self.write(Action::Add, ids(&adds)).await;
        for item in deletes {
            let result = deleted.get(&item.instance).cloned().unwrap_or(Ok(()));
            self.finish(&item, ignore_gone(result));
        }
        let labels = adds.into_iter().map(|item| {
            let tagged = added.get(&item.instance).cloned().unwrap_or(Ok(()));
            async move {
                let result = match tagged {
                    Ok(()) => self.label(&item.node).await,
                    Err(error) if gives_up(&error, self.is_young(&item.node)) => Ok(()),
                    Err(error) => Err(error),
                };
                (item, result)
            }
        });
        let labels: Vec<_> = stream::iter(labels)
            .buffer_unordered(self.settings.syncs)
            .collect()
            .await;
        for (item, result) in labels {
            self.finish(&item, result);
        }
    }

    /// Tags or untags instances with as few requests as possible: those that do not exist are left out of the next one.
    async fn write(&self, action: Action, mut ids: Vec<String>) -> BTreeMap<String, Result<()>> {
        ids.sort_unstable();
        ids.dedup();
        let mut results = BTreeMap::new();
        while !ids.is_empty() {
            let written = self.send(action, &ids).await;
            let Err(error) = written else {
                results.extend(ids.drain(..).map(|id| (id, Ok(()))));
                break;
            };
            let named: HashSet<&str> = named_ids(error.message()).into_iter().collect();
            let (gone, rest): (Vec<String>, Vec<String>) =
                ids.iter().cloned().partition(|id| named.contains(id.as_str()));
            let is_one_bad = matches!(error.kind(), ErrorKind::NotFound | ErrorKind::InvalidSpec);
            if is_one_bad && !gone.is_empty() {
                results.extend(gone.into_iter().map(|id| (id, Err(error.clone()))));
                ids = rest;
            } else if is_one_bad && ids.len() > 1 {
                // The message does not say which.
                let alone = ids
                    .drain(..)
                    .map(|id| async move { (id.clone(), self.send(action, &[id]).await) });
                results.extend(join_all(alone).await);
            } else {
                results.extend(ids.drain(..).map(|id| (id, Err(error.clone()))));
            }
        }
        results
    }

    async fn send(&self, action: Action, ids: &[String]) -> Result<()> {
        let tags = &self.settings.tags;
        match action {
            Action::Add => self.api.create_tags(ids, tags).await,
            Action::Delete => self.api.delete_tags(ids, tags).await,
        }
    }

    fn is_young(&self, node: &str) -> bool {
        let age = self.nodes.get(node).and_then(|node| node.age_seconds());
        age.is_some_and(|age| age < YOUNG.as_secs_f64())
    }

    /// Writes the label.
    async fn label(&self, name: &str) -> Result<()> {
        let Some(node) = self.nodes.get(name) else {
            return Ok(());
        };
        if !node.view.labels.contains_key(LABEL)
            && let Some(age) = node.age_seconds()
        {
            self.metrics.delay.observe(age);
        }
        let patch = json!({"metadata": {"uid": node.view.uid, "labels": {LABEL: self.checksum}}});
        match self
            .client
            .patch(name, &PatchParams::default(), &Patch::Merge(patch))
            .await
        {
            Ok(_) => Ok(()),
            // Gone, or another node of this name.
            Err(kube::Error::Api(status)) if matches!(status.code, 404 | 409) => Ok(()),
            Err(error) => {
                Err(Error::new(ErrorKind::Unavailable, "could not label the node").with_source(error))
            }
        }
    }

    fn finish(&self, item: &Item, result: Result<()>) {
        let Err(error) = result else {
            debug!(node = item.node, instance_id = item.instance, action = ?item.action, "Tags are up to date");
            self.queue.done(item);
            return;
        };
        let count = |kind| self.metrics.errors.get_or_create(&[("error_type", kind)]).inc();
        count("total_errors");
        let report = error.report();
        if self.queue.failures(item) + 1 < ATTEMPTS {
            debug!(
                node = item.node,
                instance_id = item.instance,
                error = report,
                "Will try again to change tags"
            );
            self.queue.done_with_backoff(item);
        } else {
            count("errors_after_retries_exhausted");
            warn!(
                node = item.node,
                instance_id = item.instance,
                error = report,
                "Could not change tags"
            );
            self.queue.done(item);
        }
    }

    /// Compares the tags of all instances whose nodes have the label, and repairs them.
    async fn compare(&self) {
        let nodes = self.nodes.list();
        let labeled = nodes
            .iter()
            .filter(|node| node.view.labels.get(LABEL) == Some(self.checksum.as_str()));
        let ids: Vec<String> = labeled.filter_map(|node| instance_of(node)).collect();
        for chunk in ids.chunks(FILTER_VALUES) {
            let filter = [("instance-id", chunk.to_vec())];
            let found = match self.api.instances(&filter).await {
                Ok(found) => found,
                Err(error) => {
                    debug!(error = error.report(), "Could not compare the tags of instances");
                    return;
                }
            };
            let lacks = |tags: &Tags| {
                self.settings
                    .tags
                    .iter()
                    .any(|(key, value)| tags.get(key) != Some(value))
            };
            let repair = found
                .into_iter()
                .filter(|one| one.state != "terminated" && lacks(&one.tags));
            let repair: Vec<String> = repair.map(|one| one.id).collect();
            if repair.is_empty() {
                continue;
            }
            info!(instances = repair.len(), "Repairing tags that were changed");
            for (id, result) in self.write(Action::Add, repair).await {
                if let Err(error) = result {
                    debug!(instance_id = id, error = error.report(), "Could not repair tags");
                }
            }
        }
    }
}

/// The instance of a node, if it has one that can be tagged.
fn instance_of(node: &NodeObject) -> Option<String> {
    match provider_id::parse(node.view.provider_id.as_deref()?) {
        Ok(ProviderId::Instance(id)) if is_well_formed(&id) => Some(id),
        _ => None,
    }
}

/// Whether an instance that cannot be tagged is left alone: it does not exist, and its node is not new.
fn gives_up(error: &Error, is_young: bool) -> bool {
    match error.kind() {
        ErrorKind::NotFound => !is_young,
        ErrorKind::InvalidSpec => crate::error::code(error).is_some_and(|code| code.starts_with("InvalidID")),
        _ => false,
    }
}

/// An instance that does not exist has no tags.
fn ignore_gone(result: Result<()>) -> Result<()> {
    match result {
        Err(error) if error.kind() == ErrorKind::NotFound || gives_up(&error, false) => Ok(()),
        result => result,
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    fn tags(tags: &[(&str, &str)]) -> Tags {
        tags.iter()
            .map(|(key, value)| ((*key).into(), (*value).into()))
            .collect()
    }

    #[test]
    fn checksums_are_those_of_the_go_cloud_controller() {
        assert_eq!(
            checksum(&tags(&[("key1", "value1")])),
            "9767c4972ba72e87ab553bad2afde741"
        );
        assert_eq!(
            checksum(&tags(&[("b", "2"), ("a", "1")])),
            "9dc867b7f2bf1e40160f90e46628512e"
        );
    }

    fn settings(given: &[(&str, &[&str])]) -> Result<Settings, Vec<String>> {
        let flags = given.iter().map(|(name, values)| {
            (
                (*name).to_owned(),
                values.iter().map(ToString::to_string).collect::<Vec<_>>(),
            )
        });
        Settings::of(&flags.collect())
    }

    #[test]
    fn flags_are_read_and_everything_wrong_is_said() {
        let read = settings(&[
            ("tags", &["team=web,cost=1", "empty="]),
            ("resources", &["instance"]),
            ("tagging-controller-rate-limit", &["2.5"]),
            ("tagging-controller-burst-limit", &["7"]),
        ]);
        let expected = Settings {
            tags: tags(&[("team", "web"), ("cost", "1"), ("empty", "")]),
            limit: Some((2.5, 7)),
            syncs: 1,
        };
        assert_eq!(read.unwrap(), expected);
        assert_eq!(settings(&[]).unwrap_err().len(), 2);
        let problems = settings(&[("tags", &["team"]), ("resources", &["volume"])]).unwrap_err();
        assert!(
            problems[0].contains("--tags: \"team\"") && problems[1].contains("\"volume\""),
            "{problems:?}"
        );
    }

    #[test]
    fn a_missing_instance_is_tried_again_only_while_its_node_is_new() {
        let gone = Error::new(ErrorKind::NotFound, "gone");
        assert!(gives_up(&gone, false) && !gives_up(&gone, true));
        assert!(ignore_gone(Err(gone)).is_ok());
        let malformed = Error::new(ErrorKind::InvalidSpec, "odd").with_context("code", "InvalidID");
        assert!(gives_up(&malformed, true));
        let down = Error::new(ErrorKind::Unavailable, "down");
        assert!(!gives_up(&down, false) && ignore_gone(Err(down)).is_err());
    }
}
