//! From `[LoadBalancer]` and its classes to what load balancers are made by.

use std::{collections::BTreeMap, time::Duration};

use ccm_core::{Environment, config::Problems};

use super::keys::{CloudConf, LoadBalancer, LoadBalancerClass};
use crate::load_balancer::protocols::METHODS;

/// Octavia providers that are known to work with this.
const PROVIDERS: [&str; 5] = ["amphora", "octavia", "ovn", "f5", "amphorav2"];
/// Waits of the Go cloud controller for a load balancer, each a fifth longer than the last, the first of one second.
const STEPS: u32 = 23;
/// More steps than this would be weeks.
const STEPS_MAX: u32 = 64;

/// By what load balancers are made.
#[derive(Clone, Debug)]
pub(crate) struct LoadBalancing {
    /// `[LoadBalancer]`.
    pub(crate) conf: LoadBalancer,
    /// `[LoadBalancerClass "..."]` by name.
    pub(crate) classes: BTreeMap<String, LoadBalancerClass>,
    /// How long a change of a load balancer may take.
    pub(crate) patience: Duration,
}

impl LoadBalancing {
    /// Reads and checks the sections.
    pub(super) fn of(conf: &CloudConf, env: &Environment, problems: &mut Problems) -> Self {
        let section = &conf.load_balancer;
        let mut complain = |key: &str, error: bool, what: String| {
            if error {
                problems.error(("LoadBalancer", key), what);
            } else {
                problems.warn(("LoadBalancer", key), what);
            }
        };
        let version = section.lb_version.as_str();
        if !matches!(version, "" | "v2") {
            complain(
                "lb-version",
                true,
                format!("{version:?} is not supported; write v2 or nothing"),
            );
        }
        let provider = section.lb_provider.as_str();
        if !PROVIDERS.contains(&provider) {
            let known = PROVIDERS.join(", ");
            complain(
                "lb-provider",
                false,
                format!("{provider:?} is not one of the known providers: {known}"),
            );
        }
        let method = section.lb_method.as_str();
        if !METHODS.contains(&method) {
            let what = format!(
                "{method:?} is unknown to Octavia; write one of {}",
                METHODS.join(", ")
            );
            complain("lb-method", false, what);
        } else if provider == "ovn" && method != "SOURCE_IP_PORT" {
            let what =
                "the provider ovn takes only SOURCE_IP_PORT; write lb-method = SOURCE_IP_PORT".to_owned();
            complain("lb-method", false, what);
        }
        let store = section.container_store.as_str();
        if !matches!(store, "barbican" | "external") {
            let what = format!("{store:?} is neither barbican nor external; TLS containers are not checked");
            complain("container-store", false, what);
        }
        if section.max_shared_lb < 1 {
            let what = "less than 1: no load balancer can be used by a second Service".to_owned();
            complain("max-shared-lb", false, what);
        }
        for (key, value) in [
            ("monitor-delay", section.monitor_delay),
            ("monitor-timeout", section.monitor_timeout),
        ] {
            if value.to_std() < Duration::from_secs(1) {
                let what = "less than a second; Octavia takes whole seconds from 1, write 5s".to_owned();
                complain(key, section.create_monitor, what);
            }
        }
        let steps = env.var("OCCM_WAIT_LB_ACTIVE_STEPS");
        let steps = steps
            .map_or(Some(STEPS), |text| text.parse().ok())
            .unwrap_or_else(|| {
                tracing::warn!(
                    "OCCM_WAIT_LB_ACTIVE_STEPS is no whole number from 0, it is taken for {STEPS}"
                );
                STEPS
            });
        Self {
            conf: section.clone(),
            classes: conf.load_balancer_class.clone(),
            patience: patience(steps),
        }
    }
}

/// How long so many steps take: the first look is at once.
fn patience(steps: u32) -> Duration {
    let sleeps = i32::try_from(steps.min(STEPS_MAX).saturating_sub(1)).unwrap_or(0);
    Duration::from_secs_f64((1.2_f64.powi(sleeps) - 1.0) / 0.2)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn patience_is_that_of_the_go_cloud_controller() {
        assert_eq!(patience(STEPS).as_secs(), 271);
        assert_eq!(patience(24).as_secs(), 326);
        assert_eq!((patience(0), patience(1)), (Duration::ZERO, Duration::ZERO));
        assert!(patience(u32::MAX) < Duration::from_secs(7 * 86400));
    }
}
