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
use futures_util::FutureExt;
use parking_lot::Mutex;
use tokio::sync::Notify;

use super::{
    AcceptedChange, CloudBehavior, Lawful,
    concurrent::Dice,
    different, foreign,
    operations::{Operation, OperationEnd, Operations, RequestAnswer},
};
use crate::{
    Error, ErrorKind, Priority, RequestOutcome, Result, Retry,
    load_balancer::{ClusterView, Effect, ReadOptions},
    plan::{
        CloudChange as _, GatheredInputs, Member, Membership, PartCloud, PartModel, ScopeCheck, SendOptions,
        SendOutcome, Wait,
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

/// Random pauses of calls.
#[derive(Debug)]
pub(super) struct Pace(Dice);

impl Pace {
    pub(super) fn new(dice: Dice) -> Self {
        Self(dice)
    }
}

/// How long a change is refused whose objects are not ready.
const NOT_READY: Duration = Duration::from_secs(1);
/// The first id of a cloud that counts alone.
const OWN_SERIALS: u64 = 1000;

/// A cloud in memory. It has objects, counts writes, and can fail.
pub struct MemoryCloud<L: Lawful> {
    model: L,
    state: Mutex<LawCloudState<L>>,
    pub(super) killed: Notify,
    pace: Mutex<Option<Pace>>,
}

/// The error with which the cloud refuses a change.
type Refuses<L> = dyn Fn(&<L as PartModel>::Change) -> Option<Error> + Send + Sync;

/// The changes that the cloud refuses.
struct RefusedChanges<L: Lawful> {
    refuses: Box<Refuses<L>>,
    /// The cloud accepts them, and their operations fail.
    is_late: bool,
}

struct LawCloudState<L: Lawful> {
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
    /// The same of a cloud in which a change [occupies objects](AcceptedChange::OccupiesObjects).
    operations: Operations<L>,
    /// Accepted changes that will fail.
    failing: HashSet<String>,
    /// The last members of each part: leftovers are found by their names.
    members: HashMap<L::Key, Vec<Member<L>>>,
    /// The cluster of the last request.
    cluster: ClusterView,
    dead: bool,
    foreign_change: Option<String>,
    destroyed: Option<String>,
    /// The first change that was sent before one that it needs had ended.
    too_early: Option<String>,
    scope_check: ScopeCheck,
    refused_changes: Option<RefusedChanges<L>>,
    /// The number of writes of each part, refused ones included.
    writes: HashMap<L::Key, usize>,
    names_ids: bool,
    /// The next id in this cloud alone, so that a history has the same ids in every run.
    own_serial: Option<u64>,
}

impl<L: Lawful> LawCloudState<L> {
    /// The contents, for a change that is no write of the process.
    fn truth_mut(&mut self) -> &mut L::Truth {
        (self.directory, self.foreign) = (None, None);
        &mut self.truth
    }

    /// The error with which this change is refused.
    fn refusal(&self, change: &L::Change) -> Option<Error> {
        self.refused_changes.as_ref().and_then(|refused| (refused.refuses)(change))
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
            state: Mutex::new(LawCloudState {
                truth,
                directory: None,
                foreign: None,
                behavior,
                fault: None,
                attempts: 0,
                part_attempts: HashMap::new(),
                done: Vec::new(),
                polls: HashMap::new(),
                operations: Operations::default(),
                failing: HashSet::new(),
                members: HashMap::new(),
                cluster: ClusterView::default(),
                dead: false,
                foreign_change: None,
                destroyed: None,
                too_early: None,
                scope_check: ScopeCheck::Verified,
                refused_changes: None,
                writes: HashMap::new(),
                names_ids: false,
                own_serial: None,
            }),
            killed: Notify::new(),
            pace: Mutex::new(None),
        }
    }

    /// Calls take random times from now on, and ids are the same in every run.
    pub(super) fn set_pace(&self, pace: Pace) {
        self.state.lock().own_serial = Some(OWN_SERIALS);
        *self.pace.lock() = Some(pace);
    }

    /// A random pause, in which other tasks run.
    async fn pause(&self) {
        let (yields, milliseconds) = match &mut *self.pace.lock() {
            Some(Pace(dice)) => {
                let yields = dice.below(4);
                let is_slow = dice.below(4) == 0;
                (yields, if is_slow { dice.below(30) } else { 0 })
            }
            None => return,
        };
        for _ in 0..yields {
            tokio::task::yield_now().await;
        }
        if milliseconds > 0 {
            tokio::time::sleep(Duration::from_millis(milliseconds as u64)).await;
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

    /// The first change that was sent before one that it needs had ended, if any. Changes that a process sent which was killed
    /// do not count.
    #[must_use]
    pub fn too_early(&self) -> Option<String> {
        self.state.lock().too_early.clone()
    }

    /// The first deletion although members stay, if any.
    pub(super) fn destroyed(&self) -> Option<String> {
        self.state.lock().destroyed.clone()
    }

    /// Sets the result of checks of the credentials' scope.
    pub fn set_scope_check(&self, scope_check: ScopeCheck) {
        self.state.lock().scope_check = scope_check;
    }

    /// Refuses changes from now on, at once or when their operations end.
    pub fn refuse(
        &self,
        is_late: bool,
        refuses: impl Fn(&L::Change) -> Option<Error> + Send + Sync + 'static,
    ) {
        self.state.lock().refused_changes = Some(RefusedChanges {
            refuses: Box::new(refuses),
            is_late,
        });
    }

    /// Refuses no change any more.
    pub fn accept(&self) {
        self.state.lock().refused_changes = None;
    }

    /// The number of writes since the last call of parts that have several members now, refused ones included.
    pub fn take_shared_writes(&self) -> usize {
        let mut state = self.state.lock();
        let writes = std::mem::take(&mut state.writes);
        let is_shared = |key: &L::Key| state.members.get(key).is_some_and(|members| members.len() > 1);
        writes.into_iter().filter(|(key, _)| is_shared(key)).map(|(_, writes)| writes).sum()
    }

    /// Derives [`Ids`] from names from now on.
    pub(super) fn name_ids(&self) {
        self.state.lock().names_ids = true;
    }

    /// Starts a new process.
    pub(super) fn revive(&self) {
        // Several calls may have noticed the kill.
        self.killed.notified().now_or_never();
        let mut state = self.state.lock();
        let state = &mut *state;
        state.dead = false;
        state.fault = None;
        for (sentence, (key, _)) in std::mem::take(&mut state.polls) {
            if state.failing.remove(&sentence) {
                self.model.fail(state.truth_mut(), &key);
            }
        }
        for operation in state.operations.restart() {
            self.end(state, &operation);
        }
    }

    /// The operation has ended: a create was visible before, any other change is carried out now. If it failed, a created object
    /// is removed.
    fn end(&self, state: &mut LawCloudState<L>, operation: &Operation<L>) {
        let (key, change) = (&operation.key, &operation.change);
        match (operation.effect, operation.fails) {
            (Effect::Create, true) => self.model.undo_create(state.truth_mut(), key, change),
            (Effect::Create, false) | (_, true) => {}
            (_, false) => self.apply(state, key, change, &operation.reply),
        }
    }

    /// Never returns if the process is dead.
    async fn live(&self) {
        self.pause().await;
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
        self.check_members(&mut state, key, change);
        let reply = self.reply(&mut state, change, seen);
        self.apply(&mut state, key, change, &reply);
        reply
    }

    /// Records a change that deletes what members use that stay.
    fn check_members(&self, state: &mut LawCloudState<L>, key: &L::Key, change: &L::Change) {
        let members = state.members.get(key).map(Vec::as_slice).unwrap_or_default();
        let view = self.model.view(&state.truth, key, members, &state.cluster);
        let mut staying = members.iter().filter(|member| member.membership != Membership::Leaving);
        if staying.any(|member| self.model.destroys(change, &view, &member.service)) {
            let sentence = change.describe().sentence;
            state
                .destroyed
                .get_or_insert_with(|| format!("{key}: `{sentence}` was sent although members stay"));
        }
    }

    /// The reply to a change.
    fn reply(&self, state: &mut LawCloudState<L>, change: &L::Change, seen: &L::Observed) -> L::Reply {
        let serial = match &mut state.own_serial {
            Some(serial) => {
                *serial += 1;
                *serial
            }
            None => SERIAL.fetch_add(1, Ordering::Relaxed),
        };
        let ids = Ids {
            serial,
            is_by_name: state.names_ids,
        };
        self.model.reply(change, seen, &ids)
    }

    /// Carries out a change.
    fn apply(&self, state: &mut LawCloudState<L>, key: &L::Key, change: &L::Change, reply: &L::Reply) {
        let sentence = change.describe().sentence;
        let before = state.foreign.take();
        let before = before.unwrap_or_else(|| foreign(&self.model, &state.truth));
        // The cloud changes its own contents, not those that the engine observed.
        let members = state.members.get(key).map(Vec::as_slice).unwrap_or_default();
        let mut view = self.model.view(&state.truth, key, members, &state.cluster);
        self.model.fold(key, change, Some(reply), &mut view);
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
    }

    /// Begins an operation that carries out the change. If another operation occupies its objects, the change is refused.
    fn begin_operation(
        &self,
        key: &L::Key,
        change: &L::Change,
        seen: &L::Observed,
        options: &SendOptions,
        end: OperationEnd,
    ) -> Result<SendOutcome<L::Reply, String>> {
        let mut state = self.state.lock();
        let state = &mut *state;
        let description = change.describe();
        let members = state.members.get(key).map(Vec::as_slice).unwrap_or_default();
        let view = self.model.view(&state.truth, key, members, &state.cluster);
        let conflict = state.operations.conflict(key, &description);
        let refusal = self.model.refuses(change, &view);
        if conflict.is_some() || refusal.is_some() {
            let is_known = conflict.as_ref().is_none_or(|conflict| conflict.is_known);
            let why = conflict.map(|conflict| conflict.sentence).or(refusal).unwrap_or_default();
            if is_known {
                let text = format!("{key}: `{}` was sent too early: {why}", description.sentence);
                state.too_early.get_or_insert(text);
            }
            for operation in state.operations.wait_for(key, &description) {
                self.end(state, &operation);
            }
            return Err(conflict_error(Retry::Fixed(NOT_READY)));
        }
        self.check_members(state, key, change);
        let reply = self.reply(state, change, seen);
        if description.effect == Effect::Create {
            self.apply(state, key, change, &reply);
        }
        let polls = state.behavior.polls;
        let ticket = state.operations.begin(Operation {
            key: key.clone(),
            change: change.clone(),
            reply: reply.clone(),
            effect: description.effect,
            description,
            left: polls,
            fails: end == OperationEnd::Fails,
            is_known: end != OperationEnd::Unknown || options.request_id.is_some(),
            request_id: options.request_id.clone(),
        });
        let wait = WAIT;
        Ok(SendOutcome::Accepted { reply, ticket, wait })
    }

    /// The answer to a change that was sent before with this id.
    fn answer_again(&self, options: &SendOptions) -> Option<Result<SendOutcome<L::Reply, String>>> {
        let state = self.state.lock();
        let answer = match state.operations.request(options.request_id.as_ref()?)? {
            RequestAnswer::InProgress { ticket, reply } => Ok(SendOutcome::Accepted {
                reply,
                ticket,
                wait: WAIT,
            }),
            RequestAnswer::Ended(reply) => Ok(SendOutcome::Done(reply)),
            RequestAnswer::Failed => Err(Error::new(ErrorKind::Unexpected, "the operation failed")),
        };
        Some(answer)
    }

    /// Sends a change to a cloud in which changes occupy objects.
    async fn send_operation(
        &self,
        key: &L::Key,
        change: &L::Change,
        seen: &L::Observed,
        options: &SendOptions,
    ) -> Result<SendOutcome<L::Reply, String>> {
        if let Some(answer) = self.answer_again(options) {
            return answer;
        }
        let fault = self.next_fault(key);
        let is_refused = self.state.lock().refusal(change).is_some();
        let end = match fault {
            _ if is_refused => OperationEnd::Fails,
            Some(Fault::AcceptedThenFailed) => OperationEnd::Fails,
            Some(Fault::NoAnswerDone) => OperationEnd::Unknown,
            _ => OperationEnd::Succeeds,
        };
        match fault {
            Some(Fault::KilledBefore) => {
                self.die();
                self.live().await;
            }
            Some(Fault::NoAnswerNotDone) => return Err(no_answer()),
            Some(Fault::Unavailable) => return Err(Error::new(ErrorKind::Unavailable, "out of order")),
            Some(Fault::Busy) => return Err(conflict_error(Retry::Fixed(Duration::ZERO))),
            Some(Fault::Stale) => return Err(conflict_error(Retry::Never)),
            _ => {}
        }
        let accepted = self.begin_operation(key, change, seen, options, end);
        match fault {
            Some(Fault::KilledAfterCommit) => {
                self.die();
                self.live().await;
            }
            Some(Fault::KilledThenFailed) => {
                self.state.lock().operations.fail_all();
                self.die();
                self.live().await;
            }
            Some(Fault::KilledAfterReply) => self.die(),
            Some(Fault::NoAnswerDone) => return Err(no_answer()),
            _ => {}
        }
        accepted
    }

    /// Polls an operation.
    fn poll_operation(&self, key: &L::Key, ticket: &str) -> Result<Option<Duration>> {
        let mut state = self.state.lock();
        let state = &mut *state;
        let Some(ended) = state.operations.poll(ticket) else {
            let text = format!("{key}: {ticket} is not in progress");
            return Err(Error::new(ErrorKind::Unexpected, text));
        };
        let Some(operation) = ended else {
            return Ok(Some(WAIT.poll));
        };
        self.end(state, &operation);
        if operation.fails {
            if let Some(error) = state.refusal(&operation.change) {
                return Err(error);
            }
            return Err(Error::new(ErrorKind::Unexpected, format!("{ticket} failed")));
        }
        Ok(None)
    }

    fn occupies_objects(&self) -> bool {
        self.model.accepted_change() == AcceptedChange::OccupiesObjects
            && self.state.lock().behavior.polls > 0
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
    Error::new(ErrorKind::Timeout, "no answer").with_outcome(RequestOutcome::Unknown)
}

fn conflict_error(retry: Retry) -> Error {
    Error::new(ErrorKind::Conflict, "not now").with_retry(retry)
}

const WAIT: Wait = Wait {
    poll: Duration::ZERO,
    deadline: Duration::from_secs(3600),
};

#[async_trait]
impl<L: Lawful> PartCloud<L> for MemoryCloud<L> {
    /// The sentence, or the number of the operation and the sentence.
    type Ticket = String;

    async fn directory(&self, _: ReadOptions) -> Result<Arc<<L as PartModel>::Directory>> {
        self.live().await;
        let directory = {
            let mut state = self.state.lock();
            let state = &mut *state;
            let directory =
                state.directory.get_or_insert_with(|| Arc::new(self.model.directory(&state.truth)));
            Arc::clone(directory)
        };
        // The answer may be old when it arrives.
        self.pause().await;
        Ok(directory)
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
        let observed = {
            let state = self.state.lock();
            self.model.view(&state.truth, key, members, &state.cluster)
        };
        self.pause().await;
        Ok(observed)
    }

    async fn send(
        &self,
        key: &L::Key,
        change: &L::Change,
        observed: &L::Observed,
        options: &SendOptions,
    ) -> Result<SendOutcome<L::Reply, String>> {
        self.live().await;
        {
            let mut state = self.state.lock();
            *state.writes.entry(key.clone()).or_default() += 1;
            let is_late = state.refused_changes.as_ref().is_some_and(|refused| refused.is_late);
            if let Some(error) = state.refusal(change).filter(|_| !is_late) {
                return Err(error);
            }
        }
        if self.occupies_objects() {
            return self.send_operation(key, change, observed, options).await;
        }
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
            Some(Fault::Busy) => return Err(conflict_error(Retry::Fixed(Duration::ZERO))),
            Some(Fault::Stale) => return Err(conflict_error(Retry::Never)),
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
            return Ok(SendOutcome::Done(reply));
        }
        let ticket = description.sentence;
        state.polls.insert(ticket.clone(), (key.clone(), polls));
        if fault == Some(Fault::AcceptedThenFailed) {
            state.failing.insert(ticket.clone());
        }
        let wait = WAIT;
        Ok(SendOutcome::Accepted { reply, ticket, wait })
    }

    fn takes_request_ids(&self) -> bool {
        self.occupies_objects()
    }

    async fn poll(&self, key: &L::Key, ticket: &String, _: Priority) -> Result<Option<Duration>> {
        self.live().await;
        if self.occupies_objects() {
            return self.poll_operation(key, ticket);
        }
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
