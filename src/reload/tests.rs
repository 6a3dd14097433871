#![allow(clippy::unwrap_used, clippy::expect_used)]

use std::{
    fs,
    os::unix::fs::symlink,
    path::Path,
    sync::atomic::{AtomicU64, Ordering},
};

use ccm_core::{Result, async_trait, controllers::events};
use ccm_testbed::observe::eventually;
use k8s_openapi::api::core::v1::Event;
use parking_lot::Mutex;
use tower::service_fn;

use super::*;
use crate::events::COMPONENT;

/// Nothing here takes this long unless it is broken.
const LIMIT: Duration = Duration::from_secs(30);

/// A cloud whose file is one word: `wrong` cannot be read, `refused` is not accepted, `restart` needs one, `more <path>`
/// names another file, everything else is a password.
#[derive(Debug)]
struct WordCloud {
    file: PathBuf,
    more: Mutex<Option<PathBuf>>,
    word: Mutex<String>,
    reloads: AtomicU64,
}

#[async_trait]
impl Cloud for WordCloud {
    fn name(&self) -> &'static str {
        "word"
    }

    fn scope(&self) -> String {
        "the dictionary".to_owned()
    }

    fn watched_files(&self) -> Vec<PathBuf> {
        [Some(self.file.clone()), self.more.lock().clone()].into_iter().flatten().collect()
    }

    async fn reload(&self) -> Result<Reload> {
        self.reloads.fetch_add(1, Ordering::SeqCst);
        let word = fs::read_to_string(&self.file)
            .map_err(|error| Error::new(ErrorKind::InvalidConfig, error.to_string()))?;
        let (kind, path) = word.split_once(' ').unwrap_or((&word, ""));
        *self.more.lock() = (kind == "more").then(|| PathBuf::from(path));
        match kind {
            "wrong" => return Err(Error::new(ErrorKind::InvalidConfig, "line 1: no word")),
            "refused" => return Err(Error::new(ErrorKind::Unauthenticated, "who are you")),
            _ => {}
        }
        let word = match self.more.lock().as_ref() {
            Some(more) => fs::read_to_string(more).unwrap_or_default(),
            None => word,
        };
        let keys = |changed: bool, key: &str| if changed { vec![key.to_owned()] } else { Vec::new() };
        let restart_needed = keys(word == "restart", "[Word] region");
        let applied = keys(*self.word.lock() != word && word != "restart", "[Word] password");
        if !applied.is_empty() {
            *self.word.lock() = word;
        }
        Ok(Reload {
            applied,
            restart_needed,
        })
    }
}

/// A mounted Secret as the kubelet keeps it.
struct Secret {
    folder: tempfile::TempDir,
    version: AtomicU64,
}

impl Secret {
    fn mounted(word: &str) -> Self {
        let secret = Self {
            folder: tempfile::tempdir().unwrap(),
            version: AtomicU64::new(0),
        };
        secret.update(word);
        symlink("..data/word", secret.path().join("word")).unwrap();
        secret
    }

    fn path(&self) -> &Path {
        self.folder.path()
    }

    /// A new directory, a link to it that takes the place of the old link, and the old directory is removed.
    fn update(&self, word: &str) {
        let version = self.version.fetch_add(1, Ordering::SeqCst);
        let name = format!("..2030_01_01.{version}");
        fs::create_dir(self.path().join(&name)).unwrap();
        fs::write(self.path().join(&name).join("word"), word).unwrap();
        symlink(&name, self.path().join("..data_tmp")).unwrap();
        fs::rename(self.path().join("..data_tmp"), self.path().join("..data")).unwrap();
        if let Some(old) = version.checked_sub(1) {
            fs::remove_dir_all(self.path().join(format!("..2030_01_01.{old}"))).unwrap();
        }
    }
}

struct Scene {
    cloud: Arc<WordCloud>,
    events: Arc<Mutex<Vec<Event>>>,
    metrics: Registry,
    stop: CancellationToken,
    work: Option<tokio::task::JoinHandle<()>>,
}

impl Scene {
    async fn watching(file: PathBuf) -> Self {
        let cloud = Arc::new(WordCloud {
            word: Mutex::new(fs::read_to_string(&file).unwrap()),
            file,
            more: Mutex::default(),
            reloads: AtomicU64::new(0),
        });
        let events = Arc::new(Mutex::new(Vec::new()));
        let mut metrics = Registry::default();
        let writer = events::Writer::new(client(&events), &events::EventMetrics::register(&mut metrics));
        let object = ObjectReference {
            name: Some("self".to_owned()),
            ..ObjectReference::default()
        };
        let reloader = Reloader::new(cloud.clone(), writer.recorder(COMPONENT), object, &mut metrics);
        let stop = CancellationToken::new();
        let watch = reloader.run(stop.clone());
        let work = tokio::spawn(async move {
            tokio::join!(watch, writer.run());
        });
        let scene = Self {
            cloud,
            events,
            metrics,
            stop,
            work: Some(work),
        };
        // The check at the start.
        scene.reloads(1).await;
        scene
    }

    async fn until(&self, what: &str, check: impl Fn() -> bool) {
        let found = eventually(LIMIT, async || check().then_some(())).await;
        assert!(found.is_some(), "not in time: {what}; events: {:?}", self.reasons());
    }

    async fn reloads(&self, count: u64) {
        let check = || self.cloud.reloads.load(Ordering::SeqCst) >= count;
        self.until(&format!("{count} reloads"), check).await;
    }

    async fn word(&self, word: &str) {
        self.until(&format!("the word {word}"), || *self.cloud.word.lock() == word).await;
    }

    /// The reasons of the events, in order. A check may come between two changes.
    async fn reported(&self, reasons: &[&str]) {
        let check = || {
            let mut reported = self.reasons();
            reported.dedup();
            reported == reasons
        };
        self.until(&format!("events {reasons:?}"), check).await;
    }

    fn reasons(&self) -> Vec<String> {
        let events = self.events.lock();
        events.iter().filter_map(|event| event.reason.clone()).collect()
    }

    fn metric(&self, line: &str) -> bool {
        let mut text = String::new();
        prometheus_client::encoding::text::encode(&mut text, &self.metrics).unwrap();
        text.lines().any(|found| found == line)
    }

    async fn end(mut self) {
        self.stop.cancel();
        tokio::time::timeout(LIMIT, self.work.take().unwrap()).await.unwrap().unwrap();
    }
}

/// An API server that keeps the events it is sent.
fn client(events: &Arc<Mutex<Vec<Event>>>) -> kube::Client {
    let events = Arc::clone(events);
    let service = service_fn(move |request: http::Request<kube::client::Body>| {
        let events = Arc::clone(&events);
        async move {
            let body = request.into_body().collect_bytes().await.unwrap();
            events.lock().push(serde_json::from_slice(&body).unwrap());
            let body = kube::client::Body::from(body.to_vec());
            Ok::<_, std::convert::Infallible>(http::Response::new(body))
        }
    });
    kube::Client::new(service, "default")
}

#[tokio::test(start_paused = true)]
async fn a_mounted_secret_is_applied_at_every_change() {
    let secret = Secret::mounted("one");
    let scene = Scene::watching(secret.path().join("word")).await;
    for word in ["two", "three", "four"] {
        secret.update(word);
        scene.word(word).await;
    }
    scene.until("three events", || scene.reasons() == [RELOADED; 3]).await;
    {
        let events = scene.events.lock();
        let message = events[0].message.as_deref().unwrap();
        assert_eq!(message, "Applied [Word] password; using the dictionary");
        assert_eq!(events[0].type_.as_deref(), Some("Normal"));
        assert_eq!(events[0].involved_object.name.as_deref(), Some("self"));
    }
    assert!(scene.metric("ccm_config_reloads_total{result=\"applied\"} 3"));
    scene.end().await;
}

#[tokio::test(start_paused = true)]
async fn a_file_may_be_replaced_rewritten_or_come_back() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("word");
    fs::write(&file, "one").unwrap();
    let scene = Scene::watching(file.clone()).await;
    fs::write(&file, "two").unwrap();
    scene.word("two").await;
    fs::write(folder.path().join("new"), "three").unwrap();
    fs::rename(folder.path().join("new"), &file).unwrap();
    scene.word("three").await;
    fs::remove_file(&file).unwrap();
    scene
        .until("the loss", || scene.reasons().contains(&"CloudConfigInvalid".to_owned()))
        .await;
    fs::write(&file, "four").unwrap();
    scene.word("four").await;
    scene.end().await;
}

#[tokio::test(start_paused = true)]
async fn a_touch_is_nothing() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("word");
    fs::write(&file, "one").unwrap();
    let scene = Scene::watching(file.clone()).await;
    let replace = |word: &str| {
        fs::write(folder.path().join("neighbour"), word).unwrap();
        fs::rename(folder.path().join("neighbour"), &file).unwrap();
    };
    for word in ["one", "one", "one", "two"] {
        replace(word);
    }
    scene.word("two").await;
    let reloads = scene.cloud.reloads.load(Ordering::SeqCst);
    assert_eq!(reloads, 2, "one at the start, one for the change");
    scene.end().await;
}

#[tokio::test(start_paused = true)]
async fn a_change_that_nothing_tells_of_is_found_by_looking() {
    let (folder, elsewhere) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let file = folder.path().join("word");
    fs::write(&file, "one").unwrap();
    // Written through its other name, as another machine does on a network file system.
    let other = elsewhere.path().join("word");
    fs::hard_link(&file, &other).unwrap();
    let scene = Scene::watching(file).await;
    fs::write(&other, "two").unwrap();
    scene.word("two").await;
    scene.end().await;
}

#[tokio::test(start_paused = true)]
async fn a_problem_is_reported_once_and_so_is_its_end() {
    let secret = Secret::mounted("one");
    let scene = Scene::watching(secret.path().join("word")).await;
    secret.update("wrong");
    scene.reported(&["CloudConfigInvalid"]).await;
    assert!(scene.metric("ccm_config_last_reload_successful 0"));
    {
        let events = scene.events.lock();
        assert_eq!(events[0].type_.as_deref(), Some("Warning"));
        let message = events[0].message.as_deref().unwrap();
        assert!(message.ends_with("cannot be applied: line 1: no word"), "{message}");
    }
    // The same again, as the kubelet may do it.
    secret.update("wrong");
    secret.update("refused");
    let reported = ["CloudConfigInvalid", "CloudConfigRejected"];
    scene.reported(&reported).await;
    secret.update("one");
    scene.reported(&[reported[0], reported[1], RELOADED]).await;
    assert!(scene.metric("ccm_config_last_reload_successful 1"));
    scene.end().await;
}

#[tokio::test(start_paused = true)]
async fn files_that_the_new_config_names_are_watched_from_then_on() {
    let (folder, elsewhere) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let (file, other) = (folder.path().join("word"), elsewhere.path().join("sub/other"));
    fs::write(&file, "one").unwrap();
    let scene = Scene::watching(file.clone()).await;
    fs::write(&file, format!("more {}", other.display())).unwrap();
    scene.word("").await;
    // A directory that was not there before.
    fs::create_dir(elsewhere.path().join("sub")).unwrap();
    fs::write(&other, "two").unwrap();
    scene.word("two").await;
    fs::write(&other, "three").unwrap();
    scene.word("three").await;
    scene.end().await;
}

#[tokio::test(start_paused = true)]
async fn a_refused_config_is_tried_again_with_growing_pauses_and_reported_once() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("word");
    fs::write(&file, "refused").unwrap();
    let began = Instant::now();
    let scene = Scene::watching(file.clone()).await;
    let expected = [10, 30, 70, 150, 310, 610, 910];
    for (number, seconds) in (2..).zip(expected) {
        while scene.cloud.reloads.load(Ordering::SeqCst) < number {
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
        let after = began.elapsed().as_secs_f64();
        // Up to a fifth of a wait is taken off at random.
        let allowed = 0.8 * f64::from(seconds)..f64::from(seconds) + 2.0;
        assert!(allowed.contains(&after), "try {number} after {after} s, not in {allowed:?}");
    }
    assert_eq!(scene.reasons(), ["CloudConfigRejected"]);
    scene.end().await;
}
