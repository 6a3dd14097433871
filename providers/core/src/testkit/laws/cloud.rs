//! A cloud in memory that applies changes with the model's own fold.

use std::{
    collections::{HashMap, HashSet},
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use async_trait::async_trait;
use parking_lot::Mutex;
use tokio::sync::Notify;

use super::{CloudBehavior, Lawful, different, foreign};
use crate::{
    Error, ErrorKind, Outcome as WriteOutcome, Priority, Result, Retry,
    load_balancer::{ClusterView, ReadOptions},
    plan::{
        Change as _, GatheredInputs, Member, Membership, Outcome, PartCloud, PartModel, ScopeCheck, Wait,
    },
};

/// The failure of one write.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// The process is killed before the write is sent.
    KilledBefore,
    /// The process is killed when the write was carried out and before its reply arrives.
    KilledAfterCommit,
    /// The process is killed right after the reply.
    KilledAfterReply,
    /// No answer arrived; the write was carried out.
    NoAnswerDone,
    /// No answer arrived; the write was not carried out.
    NoAnswerNotDone,
    /// The cloud failed and did nothing.
    Unavailable,
    /// The object is busy.
    Busy,
    /// The object has changed.
    Stale,
    /// The cloud accepts the write, works on it, and fails.
    AcceptedThenFailed,
    /// The process is killed when the write was carried out, and all changes that the cloud has not finished fail.
    KilledThenFailed,
}

impl Fault {
    /// A process can be killed at three moments of every write.
    const KILLS: [Self; 3] = [
        Self::KilledBefore,
        Self::KilledAfterCommit,
        Self::KilledAfterReply,
    ];
    const ERRORS: [Self; 5] = [
        Self::NoAnswerDone,
        Self::NoAnswerNotDone,
        Self::Unavailable,
        Self::Busy,
        Self::Stale,
    ];

    /// The faults of write number `at` in the tests: every kill, and one of the errors.
    pub(super) fn for_write(at: usize) -> impl Iterator<Item = Self> {
        let error = Self::ERRORS.into_iter().cycle().nth(at % Self::ERRORS.len());
        Self::KILLS.into_iter().chain(error)
    }

    /// The faults while an object is being built: the process is killed, or the cloud fails.
    pub(super) const WHILE_BUILDING: [Self; 3] = [
        Self::KilledAfterCommit,
        Self::KilledThenFailed,
        Self::AcceptedThenFailed,
    ];
}

/// The next id in all clouds, so that a cloud that continues with the objects of another one does not repeat its ids.
static SERIAL: AtomicU64 = AtomicU64::new(1);

/// A cloud in memory. It has objects, counts writes, and can fail.
pub struct MemoryCloud<L: Lawful> {
    model: L,
    state: Mutex<State<L>>,
    pub(super) killed: Notify,
}

struct State<L: Lawful> {
    truth: L::Truth,
    directory: Option<Arc<L::Directory>>,
    /// The foreign objects after the last write, unless something else changed the contents since then.
    foreign: Option<Vec<String>>,
    behavior: CloudBehavior,
    fault: Option<(usize, Fault)>,
    /// The number of writes, refused ones included.
    attempts: usize,
    /// The same of each part: with one count, writes of another part could make every write of a part a refused one.
    part_attempts: HashMap<L::Key, usize>,
    /// Sentences of the writes that were carried out.
    done: Vec<String>,
    /// The accepted changes by their sentences: the part, and the number of remaining polls.
    polls: HashMap<String, (L::Key, u8)>,
    /// Accepted changes that will fail.
    failing: HashSet<String>,
    /// The last members of each part: leftovers are found by their names.
    members: HashMap<L::Key, Vec<Member<L>>>,
    /// The cluster of the last request.
    cluster: ClusterView,
    dead: bool,
    foreign_change: Option<String>,
    destroyed: Option<String>,
    scope_check: ScopeCheck,
    names_ids: bool,
}

impl<L: Lawful> State<L> {
    /// The contents, for a change that is no write of the process.
    fn truth_mut(&mut self) -> &mut L::Truth {
        (self.directory, self.foreign) = (None, None);
        &mut self.truth
    }
}

/// The ids of created objects.
#[derive(Clone, Copy, Debug)]
pub struct Ids {
    serial: u64,
    is_by_name: bool,
}

impl Ids {
    /// A unique id. Objects that were built before the laws began have the id `kind-name`, so that Services can have it in
    /// their annotations.
    #[must_use]
    pub fn id(&self, kind: &str, name: &str) -> String {
        if self.is_by_name {
            format!("{kind}-{name}")
        } else {
            format!("{kind}-{}", self.serial)
        }
    }

    /// A unique number.
    #[must_use]
    pub fn number(&self) -> u64 {
        self.serial
    }

    /// A unique address.
    #[must_use]
    pub fn address(&self) -> String {
        let serial = self.serial;
        format!("10.{}.{}.{}", 100 + serial / 62_500 % 100, serial / 250 % 250, serial % 250)
    }
}

impl<L: Lawful> MemoryCloud<L> {
    /// A cloud with these contents.
    #[must_use]
    pub fn new(model: L, truth: L::Truth, behavior: CloudBehavior) -> Self {
        Self {
            model,
            state: Mutex::new(State {
                truth,
                directory: None,
                foreign: None,
                behavior,
                fault: None,
                attempts: 0,
                part_attempts: HashMap::new(),
                done: Vec::new(),
                polls: HashMap::new(),
                failing: HashSet::new(),
                members: HashMap::new(),
                cluster: ClusterView::default(),
                dead: false,
                foreign_change: None,
                destroyed: None,
                scope_check: ScopeCheck::Verified,
                names_ids: false,
            }),
            killed: Notify::new(),
        }
    }

    /// The contents of the cloud.
    pub fn truth(&self) -> L::Truth {
        self.state.lock().truth.clone()
    }

    /// Changes the contents as another client would.
    pub fn edit(&self, edit: impl FnOnce(&mut L::Truth)) {
        edit(self.state.lock().truth_mut());
    }

    /// Lets the write number `at` (from 0, counted from now) fail.
    pub fn fail(&self, at: usize, fault: Fault) {
        let mut state = self.state.lock();
        state.attempts = 0;
        state.fault = Some((at, fault));
    }

    /// The sentences of the writes that were carried out since the last call.
    pub fn take_done(&self) -> Vec<String> {
        std::mem::take(&mut self.state.lock().done)
    }

    /// The first change of a foreign object, if any.
    pub(super) fn foreign_change(&self) -> Option<String> {
        self.state.lock().foreign_change.clone()
    }

    /// The first deletion although members stay, if any.
    pub(super) fn destroyed(&self) -> Option<String> {
        self.state.lock().destroyed.clone()
    }

    /// Sets the result of checks of the credentials' scope.
    pub fn set_scope_check(&self, scope_check: ScopeCheck) {
        self.state.lock().scope_check = scope_check;
    }

    /// Derives [`Ids`] from names from now on.
    pub(super) fn name_ids(&self) {
        self.state.lock().names_ids = true;
    }

    /// Starts a new process.
    pub(super) fn revive(&self) {
        let mut state = self.state.lock();
        let state = &mut *state;
        state.dead = false;
        state.fault = None;
        for (sentence, (key, _)) in std::mem::take(&mut state.polls) {
            if state.failing.remove(&sentence) {
                self.model.fail(state.truth_mut(), &key);
            }
        }
    }

    /// Never returns if the process is dead.
    async fn live(&self) {
        if self.state.lock().dead {
            self.killed.notify_one();
            std::future::pending::<()>().await;
        }
    }

    fn die(&self) {
        self.state.lock().dead = true;
    }

    fn commit(&self, key: &L::Key, change: &L::Change, seen: &L::Observed) -> L::Reply {
        let mut state = self.state.lock();
        let state = &mut *state;
        let sentence = change.describe().sentence;
        let ids = Ids {
            serial: SERIAL.fetch_add(1, Ordering::Relaxed),
            is_by_name: state.names_ids,
        };
        let reply = self.model.reply(change, seen, &ids);
        let before = state.foreign.take();
        let before = before.unwrap_or_else(|| foreign(&self.model, &state.truth));
        // The cloud changes its own contents, not those that the engine observed.
        let members = state.members.get(key).map(Vec::as_slice).unwrap_or_default();
        let mut view = self.model.view(&state.truth, key, members, &state.cluster);
        let mut staying = members.iter().filter(|member| member.membership != Membership::Leaving);
        if staying.any(|member| self.model.destroys(change, &view, &member.service)) {
            state
                .destroyed
                .get_or_insert_with(|| format!("{key}: `{sentence}` was sent although members stay"));
        }
        self.model.fold(key, change, Some(&reply), &mut view);
        self.model.store(&mut state.truth, key, view);
        let after = foreign(&self.model, &state.truth);
        if before != after {
            state.foreign_change.get_or_insert_with(|| {
                let (was, is) = different(&before, &after);
                format!("`{sentence}` changed {was:?} to {is:?}")
            });
        }
        (state.directory, state.foreign) = (None, Some(after));
        state.done.push(sentence);
        reply
    }

    fn next_fault(&self, key: &L::Key) -> Option<Fault> {
        let mut state = self.state.lock();
        let attempt = state.attempts;
        state.attempts += 1;
        if let Some((at, fault)) = state.fault
            && at == attempt
        {
            return Some(fault);
        }
        let attempts = state.part_attempts.entry(key.clone()).or_default();
        let attempt = *attempts;
        *attempts += 1;
        let every = |every: u8| every > 0 && attempt % usize::from(every) == usize::from(every) - 1;
        if every(state.behavior.busy_every) {
            Some(Fault::Busy)
        } else if every(state.behavior.stale_every) {
            Some(Fault::Stale)
        } else {
            None
        }
    }
}

fn no_answer() -> Error {
    Error::new(ErrorKind::Timeout, "no answer").with_outcome(WriteOutcome::Unknown)
}

fn conflict(retry: Retry) -> Error {
    Error::new(ErrorKind::Conflict, "not now").with_retry(retry)
}

const WAIT: Wait = Wait {
    poll: Duration::ZERO,
    deadline: Duration::from_secs(3600),
};

#[async_trait]
impl<L: Lawful> PartCloud<L> for MemoryCloud<L> {
    /// The sentence.
    type Ticket = String;

    async fn directory(&self, _: ReadOptions) -> Result<Arc<<L as PartModel>::Directory>> {
        self.live().await;
        let mut state = self.state.lock();
        let state = &mut *state;
        let directory = state.directory.get_or_insert_with(|| Arc::new(self.model.directory(&state.truth)));
        Ok(Arc::clone(directory))
    }

    async fn inputs(
        &self,
        key: &L::Key,
        members: &[Member<L>],
        cluster: &ClusterView,
        _: ReadOptions,
    ) -> Result<GatheredInputs<L::Inputs>> {
        self.live().await;
        // Called in every pass, even in one that continues with an earlier observation.
        let mut state = self.state.lock();
        state.members.insert(key.clone(), members.to_vec());
        state.cluster.clone_from(cluster);
        Ok(self.model.inputs(&state.truth, key, members, cluster).into())
    }

    async fn observe(&self, key: &L::Key, members: &[Member<L>], _: ReadOptions) -> Result<L::Observed> {
        self.live().await;
        let state = self.state.lock();
        Ok(self.model.view(&state.truth, key, members, &state.cluster))
    }

    async fn send(
        &self,
        key: &L::Key,
        change: &L::Change,
        observed: &L::Observed,
        _: Priority,
    ) -> Result<Outcome<L::Reply, String>> {
        self.live().await;
        let fault = self.next_fault(key);
        match fault {
            Some(Fault::KilledBefore) => {
                self.die();
                self.live().await;
            }
            Some(Fault::KilledAfterCommit) => {
                self.commit(key, change, observed);
                self.die();
                self.live().await;
            }
            Some(Fault::KilledThenFailed) => {
                self.commit(key, change, observed);
                {
                    let mut state = self.state.lock();
                    let state = &mut *state;
                    let description = change.describe();
                    if description.needs_idle {
                        state.polls.insert(description.sentence, (key.clone(), 0));
                    }
                    state.failing.extend(state.polls.keys().cloned());
                }
                self.die();
                self.live().await;
            }
            Some(Fault::NoAnswerDone) => {
                self.commit(key, change, observed);
                return Err(no_answer());
            }
            Some(Fault::NoAnswerNotDone) => return Err(no_answer()),
            Some(Fault::Unavailable) => return Err(Error::new(ErrorKind::Unavailable, "out of order")),
            Some(Fault::Busy) => return Err(conflict(Retry::Fixed(Duration::ZERO))),
            Some(Fault::Stale) => return Err(conflict(Retry::Never)),
            Some(Fault::KilledAfterReply | Fault::AcceptedThenFailed) | None => {}
        }
        let reply = self.commit(key, change, observed);
        if fault == Some(Fault::KilledAfterReply) {
            self.die();
        }
        let mut state = self.state.lock();
        let polls = state.behavior.polls;
        let description = change.describe();
        if polls == 0 || !description.needs_idle {
            return Ok(Outcome::Done(reply));
        }
        let ticket = description.sentence;
        state.polls.insert(ticket.clone(), (key.clone(), polls));
        if fault == Some(Fault::AcceptedThenFailed) {
            state.failing.insert(ticket.clone());
        }
        let wait = WAIT;
        Ok(Outcome::Accepted { reply, ticket, wait })
    }

    async fn poll(&self, key: &L::Key, ticket: &String, _: Priority) -> Result<Option<Duration>> {
        self.live().await;
        let mut state = self.state.lock();
        let state = &mut *state;
        let Some((_, left)) = state.polls.get_mut(ticket) else {
            let text = format!("{key}: `{ticket}` is not in progress");
            return Err(Error::new(ErrorKind::Unexpected, text));
        };
        *left = left.saturating_sub(1);
        if *left > 0 {
            return Ok(Some(WAIT.poll));
        }
        state.polls.remove(ticket);
        if state.failing.remove(ticket) {
            self.model.fail(state.truth_mut(), key);
            return Err(Error::new(ErrorKind::Unexpected, format!("`{ticket}` failed")));
        }
        Ok(None)
    }

    async fn verify_scope(&self, _: &ClusterView, _: ReadOptions) -> Result<ScopeCheck> {
        self.live().await;
        Ok(self.state.lock().scope_check.clone())
    }
}
