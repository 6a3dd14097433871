//! The cloud of demo and benchmarks: simulated, emulated or real.

use std::{collections::BTreeMap, time::Duration};

use crate::openstack_real::{Mark, OpenStack as Real};
use crate::test_cloud::{self, Machine, ServiceShape, TestCloud};
use anyhow::{Context, Result};
use ccm_sim::openstack::{Config, OpenStack as Simulated, ServerSpec};
use ipnet::IpNet;
use parking_lot::Mutex;

/// The cloud behind the cluster.
pub enum Cloud {
    /// `ccm-sim` in this process.
    Simulated(Simulated),
    /// A real OpenStack, with the position in its access logs from which calls count.
    Real(Real, Mark),
    /// A test cloud, with its machines by node name.
    Test(Box<dyn TestCloud>, Mutex<BTreeMap<String, Machine>>),
}

impl Cloud {
    /// A simulated OpenStack with this latency for every call.
    pub async fn simulated(latency: Duration) -> Result<Self> {
        let cloud = Simulated::start(Config::default()).await?;
        cloud.set_latency(latency);
        Ok(Self::Simulated(cloud))
    }

    /// A simulated OpenStack with networks in 127.0.0.0/8, where its load balancers can be served, and with realistic delays of
    /// their changes.
    pub async fn on_loopback(latency: Duration, private: IpNet, public: IpNet) -> Result<Self> {
        let mut config = Config {
            private_subnet: private,
            public_subnet: public,
            ..Config::default()
        };
        let ways = &mut config.settings.load_balancing;
        ways.create_time = Duration::from_secs(3);
        ways.update_time = Duration::from_millis(500);
        ways.delete_time = Duration::from_secs(1);
        let cloud = Simulated::start(config).await?;
        cloud.set_latency(latency);
        Ok(Self::Simulated(cloud))
    }

    /// A real OpenStack with this many servers.
    pub async fn real(servers: u32) -> Result<Self> {
        let cloud = Real::start(servers).await?;
        let mark = cloud.mark()?;
        Ok(Self::Real(cloud, mark))
    }

    /// The test cloud of this provider, with this latency for every call, and with the sizes and times of the real cloud.
    pub async fn test(provider: &str, latency: Duration) -> Result<Self> {
        let cloud = test_cloud::start(provider).await?;
        let cloud = cloud.with_context(|| format!("no test cloud for {provider}"))?;
        cloud.set_latency(latency);
        cloud.imitate_real_size().await?;
        Ok(Self::Test(cloud, Mutex::default()))
    }

    /// The value of `--cloud-provider`.
    #[must_use]
    pub fn provider(&self) -> &'static str {
        match self {
            Self::Simulated(_) | Self::Real(..) => "openstack",
            Self::Test(cloud, _) => cloud.provider(),
        }
    }

    /// Environment variables of the program.
    #[must_use]
    pub fn environment(&self) -> Vec<(String, String)> {
        match self {
            Self::Simulated(_) | Self::Real(..) => Vec::new(),
            Self::Test(cloud, _) => cloud.environment(),
        }
    }

    /// Number of calls for one node, if a program reads nodes one by one.
    #[must_use]
    pub fn calls_one_by_one(&self) -> usize {
        match self {
            // Server, flavor, ports, version document.
            Self::Simulated(_) | Self::Real(..) => 4,
            Self::Test(..) => 1,
        }
    }

    /// The annotations and features of Services for this cloud.
    #[must_use]
    pub fn service(&self) -> ServiceShape {
        match self {
            Self::Simulated(_) | Self::Real(..) => test_cloud::openstack_service(),
            Self::Test(cloud, _) => cloud.service(),
        }
    }

    /// The kind of cloud and its URL.
    #[must_use]
    pub fn describe(&self) -> String {
        match self {
            Self::Simulated(cloud) => format!("simulated OpenStack at {}", cloud.auth_url()),
            Self::Real(cloud, _) => format!("real OpenStack at {}", cloud.auth_url()),
            Self::Test(cloud, _) => format!("{} for tests", cloud.provider()),
        }
    }

    /// Creates servers for nodes in several zones and with several flavors.
    pub async fn servers(&self, count: usize) -> Result<Vec<String>> {
        match self {
            Self::Simulated(cloud) => {
                let mut names = Vec::with_capacity(count);
                for i in 1..=count {
                    let name = format!("node-{i:04}");
                    cloud.create_server(&ServerSpec {
                        availability_zone: Some(format!("az-{}", i % 3 + 1)),
                        ..ServerSpec::named(&name)
                    })?;
                    names.push(name);
                }
                Ok(names)
            }
            Self::Real(cloud, _) => {
                let mut names: Vec<_> = cloud
                    .list_servers()
                    .await?
                    .into_iter()
                    .map(|server| server.name)
                    .filter(|name| name.starts_with("node-"))
                    .collect();
                names.sort();
                names.truncate(count);
                Ok(names)
            }
            Self::Test(cloud, machines) => {
                let mut names = Vec::with_capacity(count);
                for at in 1..=count {
                    let machine = cloud.create_machine(&format!("node-{at:04}")).await?;
                    names.push(machine.node.clone());
                    machines.lock().insert(machine.node.clone(), machine);
                }
                Ok(names)
            }
        }
    }

    /// Deletes the server of a removed node. Servers of a real cloud are kept for its next user.
    pub async fn delete_server(&self, node: &str, id: &str) -> Result<()> {
        match self {
            Self::Simulated(cloud) => Ok(cloud.delete_server(id)?),
            Self::Real(..) => Ok(()),
            Self::Test(cloud, machines) => {
                let machine = machines.lock().remove(node);
                cloud
                    .delete_machine(&machine.with_context(|| format!("no machine for node {node}"))?)
                    .await
            }
        }
    }

    /// The program's config file for this cloud.
    pub fn config(&self) -> Result<String> {
        match self {
            Self::Simulated(cloud) => Ok(cloud.cloud_conf()),
            Self::Test(cloud, _) => Ok(cloud.config()),
            Self::Real(cloud, _) => {
                let path = cloud.cloud_conf();
                std::fs::read_to_string(&path).with_context(|| format!("could not read {}", path.display()))
            }
        }
    }

    /// The calls of the program so far, by operation.
    pub fn calls(&self) -> Result<BTreeMap<String, u64>> {
        match self {
            Self::Simulated(cloud) => Ok(cloud.call_counts()),
            Self::Test(cloud, _) => Ok(cloud.calls()),
            Self::Real(cloud, mark) => {
                let mut counts = BTreeMap::new();
                for call in cloud.calls_since(mark)? {
                    if call.user_agent.starts_with("cloud-controller-manager") {
                        *counts.entry(format!("{} {}", call.method, call.service)).or_default() += 1;
                    }
                }
                Ok(counts)
            }
        }
    }
}
