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
pub use services::{Services, Turn};
pub use site::Site;

use crate::sweep::Scenario;
use crate::test_cloud::{OpenStackCloud, TestCloud};

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

    /// The scenario with this many nodes on a simulated OpenStack. None if the program cannot do it.
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

    /// The scenario with this many nodes on this cloud. None if the program or the cloud cannot do it.
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
        // One node more than those that are served at a time.
        let services = |turn| Box::new(Services::new(Arc::clone(&site), nodes + 1, turn)) as _;
        Ok(match self {
            Self::Join => Some(Box::new(Join::new(site, nodes))),
            Self::Leave if Leave::is_possible(&site) => Some(Box::new(Leave::new(site, nodes * 10, nodes))),
            Self::Serve => Some(services(Turn::Serve)),
            Self::Reshape => Some(services(Turn::Reshape)),
            Self::Release => Some(services(Turn::Release)),
            Self::Routes => {
                let routes = Routes::new(site, nodes).await?;
                routes.map(|routes| Box::new(routes) as _)
            }
            Self::Leave | Self::Readdress => None,
        })
    }
}
