//! Inspection of a part, for the laws of the test kit.

use std::sync::Arc;

use tokio::{sync::Mutex as AsyncMutex, time::Instant};

use super::{
    engine::Engine,
    model::{Member, PartCloud, PartModel, Plan},
    pass::{DryRun, PartRead, Pass},
    record::PartRecord,
};
use crate::{
    Result,
    load_balancer::{PartKey, Request},
};

/// The engine's view of a part.
pub struct PartInspection<M: PartModel> {
    /// Its members.
    pub members: Vec<Member<M>>,
    /// Its desired state.
    pub desired: M::Desired,
    /// Its observed state.
    pub observed: M::Observed,
    /// The plan between them.
    pub plan: Plan<M::Change>,
}

impl<M: PartModel, C: PartCloud<M>> Engine<M, C> {
    /// The state in which a pass would begin. `None` if the part has no members, or if it waits.
    ///
    /// # Errors
    /// If a read fails.
    pub async fn inspect(&self, part: &PartKey, request: &Request) -> Result<Option<PartInspection<M>>> {
        let dry_run = DryRun::<M>::default();
        let key = self.current(part)?;
        let record = Arc::new(AsyncMutex::new(PartRecord::default()))
            .lock_owned()
            .await;
        let mut pass = Pass::new(self, request, self.memory(), Some(&dry_run), key, record);
        let Some(inputs) = pass.gather().await? else {
            return Ok(None);
        };
        match pass.read_and_plan(&inputs, None, false, Instant::now()).await? {
            PartRead::Wait(_) => Ok(None),
            PartRead::Ready(planned) => Ok(Some(PartInspection {
                members: pass.members,
                desired: planned.desired,
                observed: planned.observed,
                plan: planned.plan,
            })),
        }
    }
}
