//! The cloud as seen with one set of credentials, and the switch to another set during reads.
//!
//! Each set of credentials has its own connection, token, catalog and caches, which end with it. So a switch has
//! nothing to invalidate, and no cache or listing mixes two projects. A read during a switch is repeated with the new
//! credentials: no caller gets an older answer after a switch.

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

/// How often a read is repeated before it fails.
const ATTEMPTS: u32 = 5;

/// The cloud as seen with one set of credentials.
#[derive(Debug)]
struct View {
    generation: u64,
    api: Api,
    instances: OpenStackInstances,
    /// The reads of load balancers.
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

/// The current view: the provider's [`Instances`].
#[derive(Debug)]
pub(crate) struct Current {
    generation: Generation,
    view: RwLock<Arc<View>>,
    /// The settings for new views.
    settings: InstanceSettings,
    metrics: ClientMetrics,
}

impl Current {
    /// Creates the first view.
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

    /// Switches to other credentials.
    pub(crate) fn swap(&self, api: Api) {
        let mut view = self.view.write();
        let generation = self.generation.advance();
        *view = Arc::new(View::new(api, generation, &self.settings, &self.metrics));
    }

    /// The count of changes, for the next connection.
    pub(crate) fn generation_handle(&self) -> &Generation {
        &self.generation
    }

    /// The number of the current view.
    pub(crate) fn generation(&self) -> u64 {
        self.generation.current()
    }

    /// The project, the user and the region of the credentials.
    pub(crate) fn scope(&self) -> String {
        self.view().api.scope()
    }

    /// The clients for load balancers.
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
            // The token of the same credentials has another project now, so the caches are dropped.
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
                // Do not wait for the old credentials: their cloud may never answer.
                () = self.generation.beyond(view.generation) => {}
            }
            debug!("The credentials changed during a read, reading again");
        }
        let error =
            Error::new(ErrorKind::Unavailable, "the credentials kept changing while the cloud was read");
        queries.iter().map(|_| Err(error.clone())).collect()
    }

    fn similar_names(&self, name: &str) -> Vec<String> {
        self.view().instances.similar_names(name)
    }
}
