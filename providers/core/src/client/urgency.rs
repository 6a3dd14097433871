//! Reads that several callers share get the highest priority of these callers, even after they have begun.
//!
//! A [`Cache`](super::Cache) runs each load in a task with an [`Urgency`]. A user who joins a load of background work raises it.
//! Calls of this task that still wait for quota then wait among those of users, and its later calls begin there.

use std::future::pending;

use tokio::sync::watch;

use crate::Priority;

tokio::task_local! {
    static CURRENT: Urgency;
}

/// The priority of a load in progress.
#[derive(Clone, Debug)]
pub(super) struct Urgency(watch::Sender<Priority>);

impl Urgency {
    pub(super) fn new(priority: Priority) -> Self {
        Self(watch::Sender::new(priority))
    }

    /// Another caller of this priority waits for the load.
    pub(super) fn raise(&self, priority: Priority) {
        if priority == Priority::User {
            self.0.send_replace(priority);
        }
    }

    /// The task of the load.
    pub(super) fn scope<F: Future>(self, load: F) -> impl Future<Output = F::Output> {
        CURRENT.scope(self, load)
    }
}

/// The priority of a call that begins now: that of its caller, or of the load to which it belongs if that is higher.
pub(super) fn raised(priority: Priority) -> Priority {
    let load = CURRENT.try_with(|urgency| *urgency.0.borrow());
    load.map_or(priority, |load| load.min(priority))
}

/// Ends once a user waits for the load to which the current task belongs. Outside of loads, it never ends.
pub(super) async fn user_waits() {
    let Ok(mut urgency) = CURRENT.try_with(|urgency| urgency.0.subscribe()) else {
        return pending().await;
    };
    // The scope keeps the sender.
    let _ = urgency.wait_for(|priority| *priority == Priority::User).await;
}
