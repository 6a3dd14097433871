//! Scenarios of nodes and Services on a simulated OpenStack, for crash sweeps and storms.

mod join;
mod leave;
mod readdress;
mod routes;
mod services;
mod site;

use std::path::Path;
use std::sync::Arc;

use anyhow::Result;
use clap::ValueEnum;

pub use join::Join;
pub use leave::Leave;
pub use readdress::Readdress;
pub use routes::Routes;
pub use services::{Services, Turn};
pub use site::Site;

use crate::sweep::Scenario;

/// The scenarios by name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Kind {
    /// Nodes join.
    Join,
    /// Servers are deleted and their nodes go.
    Leave,
    /// Servers get other addresses.
    Readdress,
    /// Routes come, move and go.
    Routes,
    /// A Service gets its load balancer.
    Serve,
    /// A Service's ports, annotations and nodes change.
    Reshape,
    /// A Service and its load balancer go.
    Release,
}

impl Kind {
    /// All of them.
    pub const ALL: [Self; 7] = [
        Self::Join,
        Self::Leave,
        Self::Readdress,
        Self::Routes,
        Self::Serve,
        Self::Reshape,
        Self::Release,
    ];

    /// The scenario with this many nodes, on a site of its own. None if the program cannot do it.
    ///
    /// # Errors
    /// When the site cannot be set up.
    pub async fn set(self, program: &Path, nodes: usize) -> Result<Option<Box<dyn Scenario>>> {
        let site = Arc::new(Site::set(program).await?);
        Ok(match self {
            Self::Join => Some(Box::new(Join::new(site, nodes))),
            Self::Readdress => Some(Box::new(Readdress::new(site, nodes))),
            Self::Routes => Some(Box::new(Routes::new(site, nodes).await?)),
            Self::Leave if Leave::is_possible(&site) => Some(Box::new(Leave::new(site, nodes * 10, nodes))),
            Self::Leave => None,
            // One more than those that are served at a time.
            Self::Serve => Some(Box::new(Services::new(site, nodes + 1, Turn::Serve))),
            Self::Reshape => Some(Box::new(Services::new(site, nodes + 1, Turn::Reshape))),
            Self::Release => Some(Box::new(Services::new(site, nodes + 1, Turn::Release))),
        })
    }
}
