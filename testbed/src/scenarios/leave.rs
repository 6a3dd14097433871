//! Servers are deleted, and their Nodes must be deleted.

use std::sync::Arc;

use anyhow::Result;
use async_trait::async_trait;
use parking_lot::Mutex;

use super::site::{Site, names};
use crate::binary::Launch;
use crate::nodes::NodeSpec;
use crate::sweep::{Environment, Scenario};

/// Short delays, because the scenario's nodes are new.
const FLAGS: [&str; 3] = [
    "--node-deletion-grace=0s",
    "--node-deletion-confirm=200ms",
    "--node-monitor-period=200ms",
];

/// Some servers are deleted and their Nodes are NotReady. These Nodes must be deleted, and all others kept.
#[derive(Debug)]
pub struct Leave {
    site: Arc<Site>,
    staying: Vec<String>,
    leaving: Vec<String>,
    /// The Nodes of the deleted servers.
    left: Mutex<Vec<String>>,
}

impl Leave {
    /// The scenario with this many nodes, of which this many leave.
    #[must_use]
    pub fn new(site: Arc<Site>, nodes: usize, leaving: usize) -> Self {
        Self {
            site,
            staying: names("stay", nodes.saturating_sub(leaving)),
            leaving: names("leave", leaving),
            left: Mutex::default(),
        }
    }
}

#[async_trait(?Send)]
impl Scenario for Leave {
    fn name(&self) -> String {
        let leaving = self.leaving.len();
        format!("{leaving} of {} nodes leave", leaving + self.staying.len())
    }

    fn launch(&self) -> Launch {
        self.site.launch(&FLAGS)
    }

    fn environment(&self) -> &dyn Environment {
        &*self.site
    }

    async fn prepare(&self) -> Result<()> {
        self.site.settle(&self.staying, &self.launch()).await?;
        // Also deletes the objects of earlier runs.
        let left_behind = std::mem::take(&mut *self.left.lock());
        for node in left_behind {
            let params = kube::api::DeleteParams::default();
            let _deleted = self.site.nodes.delete(&node, &params).await;
        }
        let mut specs = Vec::new();
        for name in &self.leaving {
            let machine = self.site.machine(name).await?;
            self.site.delete_machine(name).await?;
            specs.push(NodeSpec {
                ready: false,
                uninitialized: false,
                provider_id: Some(machine.provider_id),
                ..NodeSpec::new(machine.node)
            });
        }
        *self.left.lock() = specs.iter().map(|spec| spec.name.clone()).collect();
        self.site.register(&specs).await?;
        self.site.wipe_events().await
    }

    async fn missing(&self) -> Result<Option<String>> {
        if let Some(problem) = self.site.settled(&self.staying).await? {
            return Ok(Some(problem));
        }
        let found = self.site.list().await?;
        let left = self.left.lock();
        let left = left.iter().find(|name| found.contains_key(*name));
        Ok(left.map(|name| format!("{name} still exists")))
    }

    async fn check(&self) -> Result<()> {
        let left = self.left.lock().clone();
        self.site.check(&self.staying, &left).await
    }
}
