//! What the services can do and how they behave, as it can be changed while they run.

use std::collections::BTreeMap;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::clock::millis;

/// What the services can do and how they behave.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Settings {
    /// Minor number of Nova's newest microversion: 1 is a cloud that has none but 2.1.
    pub max_microversion: u32,
    /// Most servers or flavors on a page.
    pub max_limit: usize,
    /// Most objects of Neutron on a page; without it Neutron pages only when asked to.
    pub network_max_limit: Option<usize>,
    /// Extensions of Neutron that are switched off, by alias.
    pub missing_extensions: Vec<String>,
    /// Whether a member of a project may choose a floating address, which only administrators may by default.
    pub choose_floating_address: bool,
    /// How many of a kind a project may have; what is not named is unlimited. Neutron's names (`floatingip`,
    /// `security_group`, `security_group_rule`, `port`, and `router_route` for one router) and Octavia's
    /// (`load_balancer`, `listener`, `pool`, `member`, `health_monitor`).
    pub resource_quotas: BTreeMap<String, u64>,
    /// Octavia.
    pub load_balancing: LoadBalancing,
    /// Whether there is a Barbican.
    pub key_manager: bool,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            max_microversion: 104,
            max_limit: 1000,
            network_max_limit: None,
            missing_extensions: Vec::new(),
            choose_floating_address: false,
            resource_quotas: BTreeMap::from([("router_route".to_owned(), 30)]),
            load_balancing: LoadBalancing::default(),
            key_manager: true,
        }
    }
}

/// Octavia's ways.
///
/// A change that takes no time is seen as done by the next request; the answer to the request that asked for it says
/// `PENDING_...` all the same. A small cloud needs some 7 seconds for a load balancer and one for a change to it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct LoadBalancing {
    /// Whether there is an Octavia.
    pub enabled: bool,
    /// Minor number of the newest version of its API. Attributes of later versions are unknown to it.
    pub max_minor: u32,
    /// Providers; `amphora`, its alias `octavia`, and `ovn` are known.
    pub providers: Vec<String>,
    /// The provider of a load balancer that names none.
    pub default_provider: String,
    /// How long a load balancer takes until it is made.
    #[serde(with = "millis", rename = "create_ms")]
    pub create_time: Duration,
    /// How long a change takes, of a load balancer or of anything below it.
    #[serde(with = "millis", rename = "update_ms")]
    pub update_time: Duration,
    /// How long it takes until a load balancer is gone.
    #[serde(with = "millis", rename = "delete_ms")]
    pub delete_time: Duration,
    /// Whether the load balancers report that they are in operation. Without it they stay `OFFLINE`.
    pub heartbeats: bool,
    /// Most objects on a page.
    pub max_limit: usize,
}

impl Default for LoadBalancing {
    fn default() -> Self {
        Self {
            enabled: true,
            max_minor: 30,
            providers: ["amphora", "octavia", "ovn"].map(str::to_owned).to_vec(),
            default_provider: "amphora".to_owned(),
            create_time: Duration::ZERO,
            update_time: Duration::ZERO,
            delete_time: Duration::ZERO,
            heartbeats: true,
            max_limit: 1000,
        }
    }
}
