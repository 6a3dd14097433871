//! Changes of Compute Engine end later than their calls: each call returns an operation, which is read until it has ended.
//!
//! # Expected flow
//!
//! 1. An operation that has ended with the answer of the call is not read at all.
//! 2. A global operation is read by `wait`, which answers when it ends. For zones and regions, Google counts `wait` against a lower
//!    limit, so that these are read by `get`.
//! 3. Where many operations of one scope are open, one `list` reads them all.
//!
//! # Caveats
//!
//! - A failed operation is a success of the SDK. Here, it is the error that the change had.
//! - `wait` may answer before the operation has ended.

use std::{
    collections::HashMap,
    fmt,
    sync::Arc,
    time::{Duration, SystemTime},
};

use ccm_core::{Error, ErrorKind, Freshness, RequestOutcome, Result, client::Cache};
use google_cloud_compute_v1::model::{self, operation::Status};
use parking_lot::Mutex;
use tokio::time::{Instant, sleep};

use super::{Client, Place, last_component, ops::Op};
use crate::error::Refusal;

/// The wait before the first read of an operation, and later ones.
const FIRST_POLL: Duration = Duration::from_millis(500);
const POLL: Duration = Duration::from_secs(2);
/// As many open operations of a scope are read by a listing, if each is awaited by itself.
const LISTED_FROM: usize = 4;
/// The same of the operations of load balancers, whose first reads come at the same time.
const LISTED_TOGETHER: usize = 2;
/// The age of a listing that is read again.
const LISTING_AGE: Duration = Duration::from_secs(1);
/// The operations of a listing, the latest first: so many for each open one, within these limits. Others are read one by one.
const LISTED_PER_OPEN: usize = 10;
const LISTED_LEAST: usize = 50;
const LISTED_MOST: usize = 500;
/// How long the service may hold an answer to `wait` (2 minutes), and some more.
const WAIT_TIMEOUT: Duration = Duration::from_secs(130);
/// The longest that an operation is awaited. It may end later.
const LIMIT: Duration = Duration::from_secs(600);

/// The place of an operation.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Scope {
    Global,
    Region(String),
    Zone(String),
}

impl fmt::Display for Scope {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Global => f.write_str("global"),
            Self::Region(region) => write!(f, "regions/{region}"),
            Self::Zone(zone) => write!(f, "zones/{zone}"),
        }
    }
}

/// A change that Compute Engine accepted.
#[derive(Clone, Debug)]
pub(crate) struct ComputeOperation {
    name: String,
    scope: Scope,
    is_done: bool,
    failure: Option<Refusal>,
}

impl From<model::Operation> for ComputeOperation {
    fn from(operation: model::Operation) -> Self {
        let scope = match (&operation.zone, &operation.region) {
            (Some(zone), _) => Scope::Zone(last_component(zone).to_owned()),
            (None, Some(region)) => Scope::Region(last_component(region).to_owned()),
            (None, None) => Scope::Global,
        };
        let first = operation.error.and_then(|error| error.errors.into_iter().next());
        let status = operation.http_error_status_code.and_then(|status| u16::try_from(status).ok());
        let failure = match (first, status) {
            (None, None) => None,
            (None, Some(_)) => Some(Refusal {
                status,
                message: operation.http_error_message.unwrap_or_default(),
                ..Refusal::default()
            }),
            (Some(error), _) => Some(Refusal {
                status,
                reason: error.code.unwrap_or_default(),
                message: error.message.unwrap_or_default(),
                date: None,
            }),
        };
        Self {
            name: operation.name.unwrap_or_default(),
            scope,
            is_done: operation.status == Some(Status::Done),
            failure,
        }
    }
}

/// The operations of a project that are awaited, and the listings of operations.
#[derive(Debug)]
pub(super) struct OpenOperations {
    open: Mutex<HashMap<ScopeKey, usize>>,
    listings: Cache<ScopeKey, HashMap<String, ComputeOperation>>,
}

/// A project and a place in it.
type ScopeKey = (String, Scope);

impl OpenOperations {
    pub(super) fn new(listings: Cache<ScopeKey, HashMap<String, ComputeOperation>>) -> Self {
        Self {
            open: Mutex::default(),
            listings,
        }
    }

    fn count(&self, key: &ScopeKey) -> usize {
        self.open.lock().get(key).copied().unwrap_or_default()
    }
}

/// Counts an operation while it is awaited.
#[derive(Debug)]
struct OpenGuard {
    operations: Arc<OpenOperations>,
    key: ScopeKey,
}

impl OpenGuard {
    fn new(operations: &Arc<OpenOperations>, key: ScopeKey) -> Self {
        *operations.open.lock().entry(key.clone()).or_default() += 1;
        let operations = Arc::clone(operations);
        Self { operations, key }
    }
}

impl Drop for OpenGuard {
    fn drop(&mut self) {
        let mut open = self.operations.open.lock();
        if let Some(count) = open.get_mut(&self.key) {
            *count -= 1;
            if *count == 0 {
                open.remove(&self.key);
            }
        }
    }
}

/// The error of an operation that ended with a failure. Its change was not carried out, whatever the reason: with the same request ID, it
/// would have the same operation again.
fn failed(failure: Refusal, operation: String) -> Error {
    let error = failure.into_error().with_outcome(RequestOutcome::NotDone);
    error.with_context("operation", operation)
}

/// How an operation ended.
#[derive(Debug)]
pub(crate) enum EndedOperation {
    NotYet,
    Done,
    Failed(Error),
}

/// An operation whose end is asked for from time to time.
#[derive(Debug)]
pub(crate) struct AwaitedOperation {
    name: String,
    /// Listings that began earlier do not have it.
    since: Instant,
    guard: OpenGuard,
}

impl ComputeOperation {
    /// The operation, unless it has failed already.
    ///
    /// # Errors
    ///
    /// The error with which it ended.
    pub(super) fn accepted(self) -> Result<Self> {
        match self.failure {
            Some(failure) => Err(failed(failure, self.name)),
            None => Ok(self),
        }
    }

    /// Whether it has ended.
    pub(crate) fn is_done(&self) -> bool {
        self.is_done
    }
}

impl Client {
    /// The operation of this project, for [`Self::has_ended`].
    pub(crate) fn awaited(&self, project: &str, operation: ComputeOperation) -> AwaitedOperation {
        let key = (project.to_owned(), operation.scope);
        AwaitedOperation {
            name: operation.name,
            since: Instant::now(),
            guard: OpenGuard::new(&self.api.shared.operations, key),
        }
    }

    /// Whether an operation has ended. Reads it once; where many are open, one listing reads them all.
    ///
    /// # Errors
    ///
    /// The error with which the operation ended, or that of the read.
    pub(crate) async fn has_ended(&self, awaited: &AwaitedOperation) -> Result<EndedOperation> {
        let AwaitedOperation { name, since, guard } = awaited;
        let operations = &guard.operations;
        let listed = if operations.count(&guard.key) >= LISTED_TOGETHER {
            self.listed_operation(guard, name, *since).await?
        } else {
            None
        };
        let operation = match listed {
            Some(operation) => operation,
            None => self.get_operation(&guard.key.0, &guard.key.1, name).await?,
        };
        Ok(match (operation.is_done, operation.failure) {
            (false, _) => EndedOperation::NotYet,
            (true, None) => EndedOperation::Done,
            (true, Some(failure)) => EndedOperation::Failed(failed(failure, name.clone())),
        })
    }

    /// Waits until an operation of this project has ended.
    ///
    /// # Errors
    ///
    /// The error with which the operation ended. `Timeout` if it takes too long: it may still succeed.
    pub(crate) async fn finish(&self, project: &str, operation: ComputeOperation) -> Result<()> {
        let key = (project.to_owned(), operation.scope.clone());
        let guard = OpenGuard::new(&self.api.shared.operations, key);
        let (name, began) = (operation.name.clone(), Instant::now());
        let mut last = operation;
        while !last.is_done {
            let elapsed = began.elapsed();
            if elapsed > LIMIT {
                let text = format!("operation {name} in {} has not ended after {LIMIT:?}", guard.key.1);
                return Err(Error::new(ErrorKind::Timeout, text).with_outcome(RequestOutcome::Unknown));
            }
            last = self.poll(&guard, &name, began).await?;
        }
        match last.failure {
            None => Ok(()),
            Some(failure) => Err(failed(failure, name)),
        }
    }

    /// Reads an operation once.
    async fn poll(&self, guard: &OpenGuard, name: &str, since: Instant) -> Result<ComputeOperation> {
        let (operations, (project, scope)) = (&guard.operations, &guard.key);
        if operations.count(&guard.key) < LISTED_FROM && *scope == Scope::Global {
            return self.wait_global(project, name).await;
        }
        let pause = if since.elapsed() < FIRST_POLL {
            FIRST_POLL
        } else {
            POLL
        };
        sleep(pause).await;
        if operations.count(&guard.key) >= LISTED_FROM
            && let Some(operation) = self.listed_operation(guard, name, since).await?
        {
            return Ok(operation);
        }
        self.get_operation(project, scope, name).await
    }

    /// An operation in a listing that those who wait for others share; `None`: it is not among the latest ones.
    async fn listed_operation(
        &self,
        guard: &OpenGuard,
        name: &str,
        since: Instant,
    ) -> Result<Option<ComputeOperation>> {
        let OpenGuard { operations, key } = guard;
        let most = (LISTED_PER_OPEN * operations.count(key)).clamp(LISTED_LEAST, LISTED_MOST);
        let (client, scope) = (self.clone(), key.clone());
        let oldest = Instant::now().checked_sub(LISTING_AGE);
        let freshness = Freshness::After(oldest.map_or(since, |oldest| oldest.max(since)));
        let listed = operations.listings.get(key.clone(), freshness, self.priority, || async move {
            client.list_operations(&scope.0, &scope.1, most).await
        });
        Ok(listed.await?.get(name).cloned())
    }

    async fn wait_global(&self, project: &str, name: &str) -> Result<ComputeOperation> {
        let began = SystemTime::now();
        let waited = self.call_for(Op::OperationWait, Place::Global, Some(WAIT_TIMEOUT), |sdk| {
            let request = sdk.global_operations.wait().set_project(project).set_operation(name);
            sdk.prepared(request).send()
        });
        let operation = ComputeOperation::from(waited.await?);
        // An answer that came early and at once must not become a busy loop.
        if !operation.is_done && began.elapsed().is_ok_and(|took| took < FIRST_POLL) {
            sleep(FIRST_POLL).await;
        }
        Ok(operation)
    }

    async fn get_operation(&self, project: &str, scope: &Scope, name: &str) -> Result<ComputeOperation> {
        let operation = match scope {
            Scope::Global => {
                self.call(Op::OperationGet, Place::Global, |sdk| {
                    let request = sdk.global_operations.get().set_project(project).set_operation(name);
                    sdk.prepared(request).send()
                })
                .await?
            }
            Scope::Region(region) => {
                self.call(Op::OperationGet, Place::Region(region), |sdk| {
                    let request = sdk.region_operations.get().set_project(project).set_region(region);
                    sdk.prepared(request.set_operation(name)).send()
                })
                .await?
            }
            Scope::Zone(zone) => {
                self.call(Op::OperationGet, Place::Zone(zone), |sdk| {
                    let request = sdk.zone_operations.get().set_project(project).set_zone(zone);
                    sdk.prepared(request.set_operation(name)).send()
                })
                .await?
            }
        };
        Ok(operation.into())
    }

    /// The latest operations of a scope by name.
    async fn list_operations(
        &self,
        project: &str,
        scope: &Scope,
        most: usize,
    ) -> Result<HashMap<String, ComputeOperation>> {
        const LATEST_FIRST: &str = "creationTimestamp desc";
        let most = u32::try_from(most).unwrap_or(u32::MAX);
        let list = match scope {
            Scope::Global => {
                self.call(Op::OperationList, Place::Global, |sdk| {
                    let request = sdk.global_operations.list().set_project(project);
                    sdk.prepared(request.set_max_results(most).set_order_by(LATEST_FIRST)).send()
                })
                .await?
            }
            Scope::Region(region) => {
                self.call(Op::OperationList, Place::Region(region), |sdk| {
                    let request = sdk.region_operations.list().set_project(project).set_region(region);
                    sdk.prepared(request.set_max_results(most).set_order_by(LATEST_FIRST)).send()
                })
                .await?
            }
            Scope::Zone(zone) => {
                self.call(Op::OperationList, Place::Zone(zone), |sdk| {
                    let request = sdk.zone_operations.list().set_project(project).set_zone(zone);
                    sdk.prepared(request.set_max_results(most).set_order_by(LATEST_FIRST)).send()
                })
                .await?
            }
        };
        let operations = list.items.into_iter().map(ComputeOperation::from);
        Ok(operations.map(|operation| (operation.name.clone(), operation)).collect())
    }
}
