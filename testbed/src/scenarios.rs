//! Scenarios of nodes and Services, for crash sweeps and storms.

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
pub use services::{ServiceChange, Services};
pub use site::Site;

use crate::sweep::Scenario;
use crate::test_cloud::{OpenStackCloud, TestCloud};

/// The scenarios by name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Kind {
    /// Nodes join.
    Join,
    /// Servers are deleted, and their Nodes must be deleted.
    Leave,
    /// The addresses of servers change.
    Readdress,
    /// Routes are created, replaced and deleted.
    Routes,
    /// A Service is created.
    Serve,
    /// A Service's ports, annotations and nodes change.
    Reshape,
    /// A Service is deleted.
    Release,
}

impl Kind {
    /// All scenarios.
    pub const ALL: [Self; 7] = [
        Self::Join,
        Self::Leave,
        Self::Readdress,
        Self::Routes,
        Self::Serve,
        Self::Reshape,
        Self::Release,
    ];

    /// The scenario with this many nodes on a simulated OpenStack.
    ///
    /// # Errors
    /// When the site cannot be set up.
    pub async fn set(self, program: &Path, nodes: usize) -> Result<Option<Box<dyn Scenario>>> {
        let cloud = Arc::new(OpenStackCloud::start().await?);
        match self {
            Self::Readdress => {
                let site = Arc::new(Site::set(program, Arc::clone(&cloud) as _).await?);
                Ok(Some(Box::new(Readdress::new(site, cloud, nodes))))
            }
            _ => self.set_on(program, cloud, nodes).await,
        }
    }

    /// The scenario with this many nodes on this cloud. None if the cloud does not support it.
    ///
    /// # Errors
    /// When the site cannot be set up.
    pub async fn set_on(
        self,
        program: &Path,
        cloud: Arc<dyn TestCloud>,
        nodes: usize,
    ) -> Result<Option<Box<dyn Scenario>>> {
        let site = Arc::new(Site::set(program, cloud).await?);
        // One node is always excluded from the load balancer.
        let services = |turn| Box::new(Services::new(Arc::clone(&site), nodes + 1, turn)) as _;
        Ok(match self {
            Self::Join => Some(Box::new(Join::new(site, nodes))),
            Self::Leave => Some(Box::new(Leave::new(site, nodes * 10, nodes))),
            Self::Serve => Some(services(ServiceChange::Create)),
            Self::Reshape => Some(services(ServiceChange::Update)),
            Self::Release => Some(services(ServiceChange::Delete)),
            Self::Routes => {
                let routes = Routes::new(site, nodes).await?;
                routes.map(|routes| Box::new(routes) as _)
            }
            Self::Readdress => None,
        })
    }
}
