//! Nodes join.

use std::sync::Arc;

use anyhow::Result;
use async_trait::async_trait;

use super::site::{Site, names};
use crate::binary::Launch;
use crate::nodes::NodeSpec;
use crate::sweep::{Environment, Scenario};

/// Nodes join: half of them exist when the program starts, the others are created while it runs.
#[derive(Debug)]
pub struct Join {
    site: Arc<Site>,
    names: Vec<String>,
}

impl Join {
    /// The scenario with this many nodes.
    #[must_use]
    pub fn new(site: Arc<Site>, nodes: usize) -> Self {
        Self {
            site,
            names: names("join", nodes),
        }
    }

    /// The Nodes of the first or the second half.
    async fn half(&self, first: bool) -> Result<Vec<NodeSpec>> {
        let (one, two) = self.names.split_at(self.names.len() / 2);
        let machines = self.site.machines(if first { one } else { two }).await?;
        Ok(machines.iter().map(|machine| NodeSpec::new(&machine.node)).collect())
    }
}

#[async_trait(?Send)]
impl Scenario for Join {
    fn name(&self) -> String {
        format!("{} nodes join", self.names.len())
    }

    fn launch(&self) -> Launch {
        self.site.launch(&[])
    }

    fn environment(&self) -> &dyn Environment {
        &*self.site
    }

    async fn prepare(&self) -> Result<()> {
        self.site.wipe().await?;
        self.site.machines(&self.names).await?;
        self.site.register(&self.half(true).await?).await
    }

    async fn act(&self) -> Result<()> {
        self.site.register(&self.half(false).await?).await
    }

    async fn missing(&self) -> Result<Option<String>> {
        self.site.settled(&self.names).await
    }

    async fn check(&self) -> Result<()> {
        self.site.check(&self.names, &[]).await
    }
}
