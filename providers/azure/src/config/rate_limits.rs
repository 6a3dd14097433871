//! The rate limits of azure.json. The Go cloud-controller-manager reads them without effect.

use std::collections::BTreeMap;

use ccm_core::{
    client::Quota,
    config::{KeyPath, Problems},
};

use super::keys::{CloudConf, RateLimit};

/// The limit of a rate that is enabled and not given, in requests a second.
const DEFAULT_QPS: f64 = 1.0;
/// The number of requests at once that is enabled and not given.
const DEFAULT_BUCKET: u32 = 5;
/// The end of the keys of clients.
const KEY_END: &str = "RateLimit";

/// The limit of one client.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct ClientLimit {
    pub(crate) reads: Quota,
    pub(crate) writes: Quota,
}

/// The configured limits, by the key of their client.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct RateLimits(BTreeMap<&'static str, ClientLimit>);

impl RateLimits {
    /// The limit of the client with this key; `None`: only those of Azure apply.
    pub(crate) fn of(&self, key: &str) -> Option<ClientLimit> {
        self.0.get(key).copied()
    }
}

/// The limit of each client: its own key, its entry below `entries`, else the general one.
pub(super) fn resolve(conf: &CloudConf, problems: &mut Problems) -> RateLimits {
    let general = RateLimit {
        enabled: conf.rate_limit,
        qps: conf.rate_limit_qps,
        bucket: conf.rate_limit_bucket,
        qps_write: conf.rate_limit_qps_write,
        bucket_write: conf.rate_limit_bucket_write,
    };
    check("cloudProviderRateLimitQPS", &general, problems);
    let clients = clients(conf);
    for (name, entry) in &conf.rate_limit_entries {
        check("entries", entry, problems);
        if !clients.iter().any(|(key, _)| is_key(name, key)) {
            problems
                .warn(KeyPath::key("entries"), format!("{name:?} is not a client of this program; ignored"));
        }
    }
    let mut limits = RateLimits::default();
    for (key, own) in clients {
        if let Some(own) = own {
            check(key, own, problems);
        }
        let entry = conf.rate_limit_entries.iter().find(|(name, _)| is_key(name, key));
        let limit = match own.or(entry.map(|(_, entry)| entry)) {
            Some(limit) => merged(limit, &general),
            None => general.clone(),
        };
        if limit.enabled == Some(true) {
            let client_limit = ClientLimit {
                reads: quota(limit.qps, limit.bucket),
                writes: quota(limit.qps_write, limit.bucket_write),
            };
            limits.0.insert(key, client_limit);
        }
    }
    limits
}

/// The clients of this program.
fn clients(conf: &CloudConf) -> [(&'static str, Option<&RateLimit>); 9] {
    [
        ("interfaceRateLimit", conf.interface_rate_limit.as_ref()),
        ("loadBalancerRateLimit", conf.load_balancer_rate_limit.as_ref()),
        ("privateLinkServiceRateLimit", conf.private_link_rate_limit.as_ref()),
        ("publicIPAddressRateLimit", conf.public_ip_rate_limit.as_ref()),
        ("routeTableRateLimit", conf.route_table_rate_limit.as_ref()),
        ("securityGroupRateLimit", conf.security_group_rate_limit.as_ref()),
        ("subnetsRateLimit", conf.subnets_rate_limit.as_ref()),
        ("virtualMachineRateLimit", conf.virtual_machine_rate_limit.as_ref()),
        ("virtualMachineScaleSetRateLimit", conf.scale_set_rate_limit.as_ref()),
    ]
}

/// Whether an entry is that of a key, with or without its end.
fn is_key(entry: &str, key: &str) -> bool {
    let name = key.strip_suffix(KEY_END).unwrap_or(key);
    entry.eq_ignore_ascii_case(key) || entry.eq_ignore_ascii_case(name)
}

/// A limit of zero means that it is not given: it would admit nothing.
fn quota(qps: Option<f64>, bucket: Option<u32>) -> Quota {
    Quota {
        rate: qps.filter(|qps| *qps > 0.0).unwrap_or(DEFAULT_QPS),
        burst: bucket.filter(|bucket| *bucket > 0).unwrap_or(DEFAULT_BUCKET),
        max_in_flight: u32::MAX,
    }
}

fn merged(limit: &RateLimit, general: &RateLimit) -> RateLimit {
    RateLimit {
        enabled: limit.enabled.or(general.enabled),
        qps: limit.qps.or(general.qps),
        bucket: limit.bucket.or(general.bucket),
        qps_write: limit.qps_write.or(general.qps_write),
        bucket_write: limit.bucket_write.or(general.bucket_write),
    }
}

fn check(key: &'static str, limit: &RateLimit, problems: &mut Problems) {
    for qps in [limit.qps, limit.qps_write].into_iter().flatten() {
        problems.require(qps >= 0.0 && qps.is_finite(), KeyPath::key(key), "a rate must not be negative");
    }
}
