//! A look at what the engine sees, for the laws of the test kit.

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

/// What the engine sees of a part.
pub struct PartInspection<M: PartModel> {
    /// Who has to do with it, and how each stands with it.
    pub members: Vec<Member<M>>,
    /// How it should be.
    pub desired: M::Desired,
    /// How it is.
    pub observed: M::Observed,
    /// The way from there.
    pub plan: Plan<M::Change>,
}

impl<M: PartModel, C: PartCloud<M>> Engine<M, C> {
    /// What a pass would begin with. `None` if nobody has to do with the part, or if nothing may be done now.
    ///
    /// # Errors
    /// If something can not be read.
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
