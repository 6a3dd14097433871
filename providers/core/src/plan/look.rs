//! A look at what the engine sees, for the laws of the test kit.

use std::sync::Arc;

use tokio::{sync::Mutex as AsyncMutex, time::Instant};

use super::{
    engine::Engine,
    model::{Member, PartCloud, PartModel, Plan},
    pass::{Imagined, Look, Pass, Slot},
};
use crate::{
    Result,
    load_balancer::{PartKey, Request},
};

/// What the engine sees of a part.
pub struct Seen<M: PartModel> {
    /// Who has to do with it, and how each stands with it.
    pub members: Vec<Member<M>>,
    /// How it should be.
    pub desired: M::Desired,
    /// How it is.
    pub observed: M::Observed,
    /// The way from there.
    pub plan: Plan<M::Step>,
}

impl<M: PartModel, C: PartCloud<M>> Engine<M, C> {
    /// What a pass would begin with. `None` if nobody has to do with the part, or if nothing may be done now.
    ///
    /// # Errors
    /// If something can not be read.
    pub async fn look(&self, part: &PartKey, request: &Request) -> Result<Option<Seen<M>>> {
        let imagined = Imagined::<M>::default();
        let key = self.current(part)?;
        let slot = Arc::new(AsyncMutex::new(Slot::default())).lock_owned().await;
        let mut pass = Pass::new(self, request, self.memory(), Some(&imagined), key, slot);
        let Some(inputs) = pass.gather().await? else {
            return Ok(None);
        };
        match pass.look(&inputs, None, false, Instant::now()).await? {
            Look::Wait(_) => Ok(None),
            Look::Ready(sight) => Ok(Some(Seen {
                members: pass.members,
                desired: sight.desired,
                observed: sight.observed,
                plan: sight.plan,
            })),
        }
    }
}
