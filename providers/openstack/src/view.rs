//! The cloud through one set of credentials, and the change to another while questions are under way.
//!
//! Everything that was learnt through credentials lives and dies with them: connection, token, catalogue, caches. So a
//! swap has nothing to invalidate, and two projects' answers cannot meet in one cache or one listing. A question that
//! was under way at the swap is asked again through the new credentials: no caller gets, after a swap, what was
//! learnt before it.

use std::sync::Arc;

use ccm_core::{
    Error, ErrorKind, Freshness, InstanceQuery, InstanceState, Instances, Priority, Result, async_trait,
    client::ClientMetrics,
};
use parking_lot::RwLock;
use tracing::debug;

use crate::{
    client::{Api, Generation},
    instances::{self, InstanceSettings, OpenStackInstances},
    load_balancer::reads::Reads,
};

/// How often a question is asked again before its answer is that there is none.
const ATTEMPTS: u32 = 5;

/// The cloud as one set of credentials shows it.
#[derive(Debug)]
struct View {
    generation: u64,
    api: Api,
    instances: OpenStackInstances,
    /// What load balancers are read with.
    reads: Arc<Reads>,
}

impl View {
    fn new(api: Api, generation: u64, settings: &InstanceSettings, metrics: &ClientMetrics) -> Self {
        Self {
            generation,
            instances: instances::finder(&api, settings, metrics),
            reads: Arc::new(Reads::new(api.clone(), metrics)),
            api,
        }
    }
}

/// The view in use: the provider's [`Instances`].
#[derive(Debug)]
pub(crate) struct Current {
    generation: Generation,
    view: RwLock<Arc<View>>,
    /// What each view is made with.
    settings: InstanceSettings,
    metrics: ClientMetrics,
}

impl Current {
    /// With the first credentials.
    pub(crate) fn new(
        api: Api,
        generation: Generation,
        settings: &InstanceSettings,
        metrics: &ClientMetrics,
    ) -> Self {
        let view = View::new(api, generation.current(), settings, metrics);
        Self {
            generation,
            view: RwLock::new(Arc::new(view)),
            settings: settings.clone(),
            metrics: metrics.clone(),
        }
    }

    /// Goes on with other credentials.
    pub(crate) fn swap(&self, api: Api) {
        let mut view = self.view.write();
        let generation = self.generation.advance();
        *view = Arc::new(View::new(api, generation, &self.settings, &self.metrics));
    }

    /// The count of changes, for a connection that is to be the next one.
    pub(crate) fn generation_handle(&self) -> &Generation {
        &self.generation
    }

    /// The number of the view in use.
    pub(crate) fn generation(&self) -> u64 {
        self.generation.current()
    }

    /// Whom the cloud sees in us.
    pub(crate) fn scope(&self) -> String {
        self.view().api.scope()
    }

    /// With what load balancers are read and changed now.
    pub(crate) fn clients(&self) -> (Api, Arc<Reads>) {
        let view = self.view();
        (view.api.clone(), Arc::clone(&view.reads))
    }

    fn view(&self) -> Arc<View> {
        let view = Arc::clone(&self.view.read());
        if view.generation == self.generation.current() {
            return view;
        }
        let mut view = self.view.write();
        let generation = self.generation.current();
        if view.generation != generation {
            // The same credentials, but their token is of another project now: what is cached is another's.
            let api = view.api.clone();
            *view = Arc::new(View::new(api, generation, &self.settings, &self.metrics));
        }
        Arc::clone(&view)
    }
}

#[async_trait]
impl Instances for Current {
    async fn describe(
        &self,
        queries: &[InstanceQuery],
        freshness: Freshness,
        priority: Priority,
    ) -> Vec<Result<InstanceState>> {
        for _ in 0..ATTEMPTS {
            let view = self.view();
            tokio::select! {
                biased;
                answers = view.instances.describe(queries, freshness, priority) => {
                    if self.generation.current() == view.generation {
                        return answers;
                    }
                }
                // Not waited for: behind the old credentials may be what will never answer.
                () = self.generation.beyond(view.generation) => {}
            }
            debug!("The credentials changed during a question, asking again");
        }
        let error = Error::new(
            ErrorKind::Unavailable,
            "the credentials changed again and again while the cloud was asked",
        );
        queries.iter().map(|_| Err(error.clone())).collect()
    }
}
