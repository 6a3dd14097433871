//! The features and behavior of the services, which can be changed while they run.

use std::collections::BTreeMap;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::clock::millis;

/// The features and behavior of the services.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Settings {
    /// Minor number of Nova's newest microversion; 1: only version 2.1.
    pub max_microversion: u32,
    /// The most servers or flavors on a page.
    pub max_limit: usize,
    /// Extensions of Neutron that are switched off, by alias.
    pub missing_extensions: Vec<String>,
    /// The quota of each kind of object in a project; unlimited if missing. Neutron's names are `floatingip`,
    /// `security_group`, `security_group_rule`, `port`, and `router_route` for one router. Octavia's are
    /// `load_balancer`, `listener`, `pool`, `member`, `health_monitor`.
    pub resource_quotas: BTreeMap<String, u64>,
    /// Octavia.
    pub load_balancing: LoadBalancing,
    /// Whether Barbican exists.
    pub key_manager: bool,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            max_microversion: 104,
            max_limit: 1000,
            missing_extensions: Vec::new(),
            resource_quotas: BTreeMap::from([("router_route".to_owned(), 30)]),
            load_balancing: LoadBalancing::default(),
            key_manager: true,
        }
    }
}

/// The settings of Octavia.
///
/// A change with a duration of zero has taken effect at the next request, but its own answer shows `PENDING_...`. A
/// small cloud needs about 7 seconds for a load balancer and one for a change of it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct LoadBalancing {
    /// Whether Octavia exists.
    pub enabled: bool,
    /// Minor number of the newest version of its API. Attributes of later versions are unknown.
    pub max_minor: u32,
    /// Providers; `amphora`, its alias `octavia`, and `ovn` are known.
    pub providers: Vec<String>,
    /// The provider of a load balancer that names none.
    pub default_provider: String,
    /// The duration of a load balancer's creation.
    #[serde(with = "millis", rename = "create_ms")]
    pub create_time: Duration,
    /// The duration of a change of a load balancer or an object below it.
    #[serde(with = "millis", rename = "update_ms")]
    pub update_time: Duration,
    /// The duration of a load balancer's deletion.
    #[serde(with = "millis", rename = "delete_ms")]
    pub delete_time: Duration,
    /// Whether an empty list of tags changes nothing, as in Train and Ussuri.
    pub ignores_empty_tags: bool,
    /// Whether load balancers report their operation. Without it they stay `OFFLINE`.
    pub heartbeats: bool,
    /// The most objects on a page.
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
            ignores_empty_tags: false,
            heartbeats: true,
            max_limit: 1000,
        }
    }
}
