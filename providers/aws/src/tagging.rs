//! The tagging controller: the tags of `--tags` on the instances of all nodes.
//!
//! A node whose instance has the tags has a label with their checksum, so that a restart writes nothing. Instances are tagged
//! and untagged up to 1000 at a time. Tags that were changed by hand are repaired once an hour. Source:
//! `pkg/controllers/tagging` of upstream.

use std::{collections::HashMap, time::Duration};

use ccm_core::{
    Error, ErrorKind, FlagValues, Priority, Result,
    client::{Bucket, Quota, provider_metrics},
    config::{KeyPath, Locations, Problems},
    controllers::{
        Backoff, ControllerContext, ControllerDef, ControllerNames, Needs, NodeObject, NotStarted, WorkQueue,
        informer::StoreChange,
    },
    flags::parse_list,
};
use futures_util::{StreamExt, stream};
use k8s_openapi::api::core::v1::Node;
use kube::api::{Api as KubeApi, Patch, PatchParams};
use prometheus_client::metrics::{counter::Counter, family::Family, histogram::Histogram};
use serde_json::json;
use tokio::time::{Instant, sleep_until};
use tracing::{debug, info, warn};

use crate::{
    Aws, BURST, RATE, RESOURCES, SYNCS, TAGS,
    client::Client,
    client::ec2::TAGGED_RESOURCES,
    instances::provider_id::{self, is_well_formed},
    instances::{OF_IDS, isolate_refused},
    site::Tags,
};

/// The label with the checksum of the tags.
const LABEL: &str = "k8s.io/cloud-provider-aws";
/// The age of a node until which an instance that EC2 does not find is retried.
const NEW_NODE: Duration = Duration::from_secs(300);
/// Attempts for one node.
const ATTEMPTS: u32 = 10;
/// Changes within this interval are handled together.
const IDLE: Duration = Duration::from_millis(100);
/// Pause between two comparisons of all tags.
const RESYNC: Duration = Duration::from_secs(3600);
/// The backoff between attempts.
const BACKOFF: Backoff = Backoff::seconds(1, 1000);

/// The name of the controller.
const NAME: &str = "tagging-controller";

/// The controller.
pub(crate) const DEF: ControllerDef = ControllerDef {
    names: ControllerNames {
        name: NAME,
        aliases: &["tagging"],
        migration_name: None,
        client_name: NAME,
    },
    default_on: false,
    needs: |setup| match TaggingSettings::of(&setup.flags) {
        Ok(_) => Ok(Needs::default()),
        Err(_) => Err(NotStarted::NotConfigured("--tags and --resources are required")),
    },
    start: |context| {
        let aws = context.setup.cloud_as::<Aws>()?;
        let settings = TaggingSettings::of(&context.setup.flags)?;
        Ok(Box::pin(Tagger::new(&aws, settings, context).run()))
    },
};

/// Checks the flags, if the controller is enabled. Otherwise they have no effect.
pub(crate) fn check(flags: &FlagValues, problems: &mut Problems) {
    let enabled = flags.given("controllers").unwrap_or_default();
    let mut names = enabled.iter().flat_map(|list| list.split(','));
    if names.any(|name| DEF.names.is_called(name.trim())) {
        TaggingSettings::read(flags, problems);
    }
}

/// The values of the flags.
#[derive(Clone, Debug, PartialEq)]
struct TaggingSettings {
    tags: Tags,
    /// The rate limit of nodes, if there is one.
    limit: Option<Quota>,
    syncs: usize,
}

impl TaggingSettings {
    fn of(flags: &FlagValues) -> Result<Self> {
        let mut problems = Problems::new("flags", Locations::default());
        let settings = Self::read(flags, &mut problems);
        problems.finish()?;
        Ok(settings)
    }

    fn read(flags: &FlagValues, problems: &mut Problems) -> Self {
        let (tags, wrong) = parse_tags(&flags.list(&TAGS));
        let key = KeyPath::key("--tags");
        problems.require(wrong.is_empty(), key, wrong.join("; "));
        let what = "the tagging controller needs at least one; write --tags=key=value";
        problems.require(!tags.is_empty(), key, what);
        let (key, resources) = (KeyPath::key("--resources"), flags.list(&RESOURCES));
        let others: Vec<_> = resources
            .iter()
            .filter(|resource| *resource != "instance")
            .map(|other| format!("{other:?}"))
            .collect();
        let what = format!("{} cannot be tagged; write instance", others.join(", "));
        problems.require(others.is_empty(), key, what);
        let what = "the tagging controller needs one; write --resources=instance";
        problems.require(!resources.is_empty(), key, what);
        let limit = Quota {
            rate: flags.float(&RATE),
            burst: u32::try_from(flags.number(&BURST)).unwrap_or(0),
            max_in_flight: u32::MAX,
        };
        let is_limited = limit.rate > 0.0 && limit.burst > 0;
        Self {
            tags,
            limit: if is_limited { Some(limit) } else { None },
            syncs: usize::try_from(flags.number(&SYNCS)).unwrap_or(1),
        }
    }
}

/// The tags in the values of `--tags`, and what is wrong with the others. As in upstream's flag library, the value of a single
/// pair may contain commas.
fn parse_tags(given: &[String]) -> (Tags, Vec<String>) {
    let (mut tags, mut wrong) = (Tags::new(), Vec::new());
    for given in given {
        let pairs = match given.matches('=').count() {
            1 => Ok(vec![given.trim_matches('"').to_owned()]),
            _ => parse_list(given),
        };
        wrong.extend(pairs.as_ref().err().map(|reason| format!("{given:?}: {reason}")));
        for pair in pairs.unwrap_or_default() {
            match pair.split_once('=') {
                Some((key, value)) if !key.is_empty() => {
                    tags.insert(key.to_owned(), value.to_owned());
                }
                _ => wrong.push(format!("{pair:?} is not a tag; write key=value")),
            }
        }
    }
    (tags, wrong)
}

/// The checksum of tags that upstream writes into the label.
fn checksum(tags: &Tags) -> String {
    let sorted: Vec<String> = tags.iter().map(|(key, value)| format!("{key}={value}")).collect();
    format!("{:x}", md5::compute(sorted.join(",")))
}

provider_metrics! {
    /// Metrics under upstream's names.
    struct TaggingMetrics {
        // By `error_type`. Upstream has the instance as a label, too, which grows without bounds.
        errors: Family<[(&'static str, &'static str); 1], Counter>,
            "cloudprovider_aws_tagging_controller_work_item_errors" => "Nodes whose instance could not be tagged.";
        delay: Histogram = Histogram::new([1.0, 4.0, 16.0, 64.0, 256.0, 1024.0]),
            "tagging_controller_inital_node_tagging_delay_seconds" =>
            "Time from the creation of a node to the first tags of its instance.";
    }
}

struct Tagger {
    api: Client,
    /// Instances whose tags may have to be written.
    queue: WorkQueue<String>,
    bucket: Option<Bucket>,
    checksum: String,
    settings: TaggingSettings,
    metrics: TaggingMetrics,
    context: ControllerContext,
    /// The nodes of instances: these get the tags, all others lose them.
    instances: HashMap<String, String>,
}

impl Tagger {
    fn new(aws: &Aws, settings: TaggingSettings, context: ControllerContext) -> Self {
        Self {
            api: aws.nodes.api.fenced_by(&context.fence).at(Priority::Background),
            queue: WorkQueue::new(BACKOFF, "Tags", context.metrics.queues()),
            bucket: settings.limit.map(Bucket::new),
            checksum: checksum(&settings.tags),
            metrics: TaggingMetrics::publish(NAME, &context.cloud_metrics),
            settings,
            context,
            instances: HashMap::new(),
        }
    }

    async fn run(mut self) {
        let shutdown = self.context.shutdown.clone();
        let mut changes = self.context.nodes.subscribe();
        tokio::select! {
            () = self.context.nodes.synced() => {}
            () = shutdown.cancelled() => return,
        }
        let tags = self.settings.tags.len();
        info!(controller = NAME, tags, "Controller started");
        let mut resync = Instant::now() + RESYNC;
        let (mut batch, mut due) = (Vec::new(), Instant::now());
        let mut is_allowed = self.bucket.is_none();
        loop {
            // Running calls end before the process does.
            tokio::select! {
                biased;
                () = shutdown.cancelled() => return,
                Some(change) = changes.recv() => self.changed(change),
                () = self.allowed(), if !is_allowed => is_allowed = true,
                id = self.queue.next(), if is_allowed && batch.len() < TAGGED_RESOURCES => {
                    batch.push(id);
                    is_allowed = self.bucket.is_none();
                    due = Instant::now() + IDLE;
                }
                () = sleep_until(due), if !batch.is_empty() => self.handle(std::mem::take(&mut batch)).await,
                () = sleep_until(resync) => {
                    self.compare().await;
                    resync = Instant::now() + RESYNC;
                }
            }
        }
    }

    /// Waits until the rate limit allows one more instance.
    async fn allowed(&self) {
        if let Some(bucket) = &self.bucket {
            let mut permit = bucket.acquire(Priority::User).await;
            permit.begin();
            permit.accepted();
        }
    }

    /// Remembers the instance of a node and enqueues it.
    fn changed(&mut self, change: StoreChange) {
        match change {
            StoreChange::Applied(name) => {
                let Some(node) = self.context.nodes.get(&name) else {
                    return;
                };
                let Some(id) = instance_of(&node) else { return };
                let known = self.instances.insert(id.clone(), name);
                if self.has_label(&node) {
                    return;
                }
                if known.is_some() {
                    self.queue.add_unless_waiting(id);
                } else {
                    // It may wait for another attempt to remove its tags.
                    self.queue.add(id);
                }
            }
            StoreChange::Deleted(name) => {
                for (id, _) in self.instances.extract_if(|_, node| *node == name) {
                    self.queue.add(id);
                }
            }
            // Perhaps the API server lost the node.
            StoreChange::Vanished(_) => {}
        }
    }

    fn has_label(&self, node: &NodeObject) -> bool {
        node.view.labels.get(LABEL) == Some(&self.checksum)
    }

    /// Tags the instances of nodes without the label and writes the label; untags all others.
    async fn handle(&self, batch: Vec<String>) {
        let (mut nodes, mut untagged) = (HashMap::new(), Vec::new());
        for id in batch {
            let Some(name) = self.instances.get(&id) else {
                untagged.push(id);
                continue;
            };
            match self.context.nodes.get(name).filter(|node| !self.has_label(node)) {
                Some(node) => {
                    nodes.insert(id, node);
                }
                None => self.queue.done(&id),
            }
        }
        for (id, result) in self.write(untagged, false).await {
            self.finish(&id, "", result.or_else(|error| give_up(error, false)));
        }
        let tagged = self.write(nodes.keys().cloned().collect(), true).await;
        let labels = tagged.into_iter().filter_map(|(id, tagged)| {
            let node = nodes.get(&id)?;
            // EC2 may not show a new instance everywhere yet.
            let is_new = node.age_seconds().is_some_and(|age| age < NEW_NODE.as_secs_f64());
            Some(async move {
                let result = match tagged {
                    Ok(()) => self.label(node).await,
                    Err(error) => give_up(error, is_new),
                };
                self.finish(&id, &node.view.name, result);
            })
        });
        stream::iter(labels).buffer_unordered(self.settings.syncs).collect::<()>().await;
    }

    /// Tags or untags instances with as few requests as possible.
    async fn write(&self, ids: Vec<String>, add: bool) -> HashMap<String, Result<()>> {
        let (api, tags) = (&self.api, &self.settings.tags);
        // An instance may have too many tags, or tags that the policy does not allow to change.
        let of_tags = [ErrorKind::QuotaExceeded, ErrorKind::PermissionDenied];
        let kinds = [OF_IDS, of_tags].concat();
        isolate_refused(&kinds, ids, |ids: Vec<String>| async move {
            if add {
                api.create_tags(&ids, tags).await?;
            } else {
                api.delete_tags(&ids, tags).await?;
            }
            Ok(vec![(); ids.len()])
        })
        .await
    }

    /// Writes the label.
    async fn label(&self, node: &NodeObject) -> Result<()> {
        if !node.view.labels.contains_key(LABEL)
            && let Some(age) = node.age_seconds()
        {
            self.metrics.delay.observe(age);
        }
        let patch = Patch::Merge(json!({
            "metadata": {"uid": node.view.uid, "labels": {LABEL: self.checksum}},
        }));
        let nodes: KubeApi<Node> = KubeApi::all(self.context.client.clone());
        match nodes.patch(&node.view.name, &PatchParams::default(), &patch).await {
            Ok(_) => Ok(()),
            // Deleted, or another node of this name.
            Err(kube::Error::Api(status)) if matches!(status.code, 404 | 409) => Ok(()),
            Err(error) => {
                Err(Error::new(ErrorKind::Unavailable, "could not label the node").with_source(error))
            }
        }
    }

    fn finish(&self, id: &String, node: &str, result: Result<()>) {
        let Err(error) = result else {
            debug!(node, instance_id = id, "Tags are up to date");
            self.queue.done(id);
            return;
        };
        let count = |kind| self.metrics.errors.get_or_create(&[("error_type", kind)]).inc();
        count("total_errors");
        let error = error.report();
        if self.queue.failures(id) + 1 < ATTEMPTS {
            debug!(node, instance_id = id, error, "Will try again to change tags");
            self.queue.done_with_backoff(id);
        } else {
            count("errors_after_retries_exhausted");
            warn!(node, instance_id = id, error, "Could not change tags");
            self.queue.done(id);
        }
    }

    /// Compares the tags of all instances whose nodes have the label, and repairs them.
    async fn compare(&self) {
        let nodes = self.context.nodes.list();
        let ids: Vec<String> = nodes
            .iter()
            .filter(|node| self.has_label(node))
            .filter_map(|node| instance_of(node))
            .collect();
        let found = match self.api.instances_among(&ids).await {
            Ok(found) => found,
            Err(error) => {
                debug!(error = error.report(), "Could not compare the tags of instances");
                return;
            }
        };
        let tags = &self.settings.tags;
        let repair: Vec<String> = found
            .into_iter()
            .filter(|instance| {
                let lacks_a_tag = tags.iter().any(|(key, value)| instance.tags.get(key) != Some(value));
                instance.state != "terminated" && lacks_a_tag
            })
            .map(|instance| instance.id)
            .collect();
        for chunk in repair.chunks(TAGGED_RESOURCES) {
            info!(instances = chunk.len(), "Repairing tags that were changed");
            for (id, result) in self.write(chunk.to_vec(), true).await {
                if let Err(error) = result {
                    debug!(instance_id = id, error = error.report(), "Could not repair tags");
                }
            }
        }
    }
}

/// The instance of a node, if it has one that can be tagged.
fn instance_of(node: &NodeObject) -> Option<String> {
    provider_id::instance_of(&node.view).filter(|id| is_well_formed(id))
}

/// Ignores the error if the instance does not exist, unless its node is new.
fn give_up(error: Error, is_new: bool) -> Result<()> {
    let code = crate::error::code(&error).unwrap_or_default();
    match error.kind() {
        ErrorKind::NotFound if !is_new => Ok(()),
        ErrorKind::InvalidSpec if code.starts_with("InvalidID") => Ok(()),
        _ => Err(error),
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use crate::site::tests::tags;

    #[test]
    fn checksums_are_those_of_the_go_cloud_controller() {
        let one = checksum(&tags(&[("key1", "value1")]));
        assert_eq!(one, "9767c4972ba72e87ab553bad2afde741");
        let two = checksum(&tags(&[("b", "2"), ("a", "1")]));
        assert_eq!(two, "9dc867b7f2bf1e40160f90e46628512e");
    }

    fn flags(given: &[(&str, &[&str])]) -> FlagValues {
        let texts = |values: &[&str]| values.iter().map(ToString::to_string).collect::<Vec<_>>();
        let flags = given.iter().map(|(name, values)| ((*name).to_owned(), texts(values)));
        flags.collect()
    }

    fn settings(given: &[(&str, &[&str])]) -> Result<TaggingSettings> {
        TaggingSettings::of(&flags(given))
    }

    #[test]
    fn flags_are_checked_only_if_the_controller_is_enabled() {
        for (controllers, is_checked) in [("*", false), ("*,-tagging", false), ("*,tagging", true)] {
            let mut problems = Problems::new("flags", Locations::default());
            let given = flags(&[("controllers", &[controllers]), ("tags", &["team"])]);
            check(&given, &mut problems);
            assert_eq!(problems.has_errors(), is_checked, "{controllers}");
        }
    }

    #[test]
    fn flags_are_read_and_all_problems_are_reported() {
        let read = settings(&[
            ("tags", &["team=web,cost=1,\"on=a,b\"", "owners= alice,bob", "\"empty=\""]),
            ("resources", &["instance"]),
            ("tagging-controller-rate-limit", &["2.5"]),
            ("tagging-controller-burst-limit", &["7"]),
        ]);
        let read_tags = [
            ("team", "web"),
            ("cost", "1"),
            ("on", "a,b"),
            ("owners", " alice,bob"),
            ("empty", ""),
        ];
        let expected = TaggingSettings {
            tags: tags(&read_tags),
            limit: Some(Quota {
                rate: 2.5,
                burst: 7,
                max_in_flight: u32::MAX,
            }),
            syncs: 1,
        };
        assert_eq!(read.unwrap(), expected);
        assert_eq!(settings(&[]).unwrap_err().message().lines().count(), 2);
        for tags in ["team", "=web", "a=1,\"b=2", "a=1,b=2,c"] {
            let both = settings(&[("tags", &[tags]), ("resources", &["volume"])]).unwrap_err();
            let (tags, resources) = both.message().split_once('\n').unwrap();
            let problems = tags.starts_with("flags: --tags: \"") && resources.contains("\"volume\"");
            assert!(problems, "{both}");
        }
        let all = settings(&[("tags", &["a=1,b,c=2", "d"])]).unwrap_err();
        assert!(all.message().contains("\"b\"") && all.message().contains("\"d\""), "{all}");
    }

    #[test]
    fn a_missing_instance_is_retried_only_while_its_node_is_new() {
        let gives_up = |error: &Error, is_new| give_up(error.clone(), is_new).is_ok();
        let missing = Error::new(ErrorKind::NotFound, "missing");
        assert!(gives_up(&missing, false) && !gives_up(&missing, true));
        let malformed = Error::new(ErrorKind::InvalidSpec, "odd").with_context("code", "InvalidID");
        assert!(gives_up(&malformed, true));
        assert!(!gives_up(&Error::new(ErrorKind::Unavailable, "down"), false));
    }
}
