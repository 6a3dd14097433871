//! A toy cloud with scripted answers, and an engine on it.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use ccm_core::{
    Error, ErrorKind, Freshness, Priority, Result, Retry, async_trait,
    load_balancer::{
        ClusterSnapshot, ClusterView, LoadBalancers, PartKey, PartReport, ReadOptions, Request, ServiceView,
    },
    plan::{
        CloudChange as _, Engine, GatheredInputs, Member, PartCloud, PlanMetrics, ScopeCheck, SendOptions,
        SendOutcome, Wait,
    },
    testkit::laws::{CloudBehavior, MemoryCloud},
};
use parking_lot::Mutex;
use tokio::sync::Notify;

use crate::{
    toy::{Directory, Key, Observed, Toy, ToyChange, ToyReply},
    toy_cases::{Truth, nodes, world},
};

/// A cloud with scripted answers, and otherwise those of a cloud in memory.
pub struct Scripted {
    pub memory: MemoryCloud<Toy>,
    pub script: Mutex<Script>,
}

#[derive(Default)]
pub struct Script {
    /// Answers to the next writes whose sentence has this prefix. A write is carried out if the answer is `Accepted`.
    pub sends: Vec<(&'static str, Answer)>,
    pub polls: Vec<Result<bool>>,
    /// Whether an observation had to be fresh.
    pub observed: Vec<(String, bool)>,
    pub polled: usize,
    pub refused: BTreeMap<String, Error>,
    /// No directory can be read.
    pub directory_fails: Option<Error>,
    /// The next directory is read, and returned only after this notification.
    pub slow_directory: Option<Arc<Notify>>,
}

pub enum Answer {
    Wait(Wait),
    Busy(Duration),
    Stale,
    Fail(Error),
    /// The write is carried out and never answered.
    Hang,
}

fn conflict(retry: Retry) -> Error {
    Error::new(ErrorKind::Conflict, "not now").with_retry(retry)
}

impl Scripted {
    /// The cloud in memory carries all changes out at once.
    async fn done(
        &self,
        key: &Key,
        change: &ToyChange,
        seen: &Observed,
        options: &SendOptions,
    ) -> Result<ToyReply> {
        match self.memory.send(key, change, seen, options).await? {
            SendOutcome::Done(reply) => Ok(reply),
            SendOutcome::Accepted { .. } => unreachable!("its behavior has no polls"),
        }
    }
}

#[async_trait]
impl PartCloud<Toy> for Scripted {
    type Ticket = ();

    async fn directory(&self, read: ReadOptions) -> Result<Arc<Directory>> {
        if let Some(error) = &self.script.lock().directory_fails {
            return Err(error.clone());
        }
        let read = self.memory.directory(read).await;
        let slow = self.script.lock().slow_directory.take();
        if let Some(notify) = slow {
            notify.notified().await;
        }
        read
    }

    async fn inputs(
        &self,
        key: &Key,
        members: &[Member<Toy>],
        cluster: &ClusterView,
        read: ReadOptions,
    ) -> Result<GatheredInputs<()>> {
        let mut gathered = self.memory.inputs(key, members, cluster, read).await?;
        let refused = &self.script.lock().refused;
        for member in members {
            if let Some(error) = refused.get(&*member.service.id.name) {
                gathered.refused.push((member.service.id.clone(), error.clone()));
            }
        }
        Ok(gathered)
    }

    async fn observe(&self, key: &Key, members: &[Member<Toy>], read: ReadOptions) -> Result<Observed> {
        let fresh = matches!(read.freshness, Freshness::After(_));
        self.script.lock().observed.push((key.to_string(), fresh));
        self.memory.observe(key, members, read).await
    }

    async fn send(
        &self,
        key: &Key,
        change: &ToyChange,
        seen: &Observed,
        options: &SendOptions,
    ) -> Result<SendOutcome<ToyReply, ()>> {
        let answer = {
            let sends = &mut self.script.lock().sends;
            let at = sends.iter().position(|(begin, _)| change.describe().sentence.starts_with(begin));
            at.map(|at| sends.remove(at).1)
        };
        match answer {
            Some(Answer::Busy(after)) => Err(conflict(Retry::Fixed(after))),
            Some(Answer::Stale) => Err(conflict(Retry::Never)),
            Some(Answer::Fail(error)) => Err(error),
            Some(Answer::Hang) => {
                self.memory.send(key, change, seen, options).await?;
                std::future::pending().await
            }
            Some(Answer::Wait(wait)) => Ok(SendOutcome::Accepted {
                reply: self.done(key, change, seen, options).await?,
                ticket: (),
                wait,
            }),
            None => self.done(key, change, seen, options).await.map(SendOutcome::Done),
        }
    }

    async fn poll(&self, _: &Key, (): &(), _: Priority) -> Result<Option<Duration>> {
        let mut script = self.script.lock();
        script.polled += 1;
        let done = script.polls.remove(0)?;
        Ok((!done).then_some(WAIT.poll))
    }

    async fn verify_scope(&self, cluster: &ClusterView, read: ReadOptions) -> Result<ScopeCheck> {
        self.memory.verify_scope(cluster, read).await
    }
}

pub const WAIT: Wait = Wait {
    poll: Duration::from_secs(5),
    deadline: Duration::from_secs(60),
};

pub struct Stage {
    pub engine: Engine<Toy, Scripted>,
    pub cloud: Arc<Scripted>,
    pub world: Arc<ClusterSnapshot>,
}

pub fn stage(truth: Truth, services: Vec<ServiceView>) -> Stage {
    let cloud = Arc::new(Scripted {
        memory: MemoryCloud::new(Toy::default(), truth, CloudBehavior::default()),
        script: Mutex::default(),
    });
    Stage {
        engine: Engine::new(Toy::default(), Arc::clone(&cloud), PlanMetrics::default()),
        cloud,
        world: Arc::new(world(services, nodes([("n0", true)]))),
    }
}

impl Stage {
    pub fn request(&self) -> Request {
        Request::new(
            Arc::clone(&self.world),
            ReadOptions {
                freshness: Freshness::AtMost(Duration::from_secs(60)),
                priority: Priority::User,
            },
        )
    }

    pub async fn run(&self, part: &str) -> PartReport {
        self.engine.run(&PartKey::new(part), &self.request()).await
    }

    pub fn answer(&self, begin: &'static str, answer: Answer) {
        self.cloud.script.lock().sends.push((begin, answer));
    }
}
