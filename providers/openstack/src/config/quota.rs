//! From `[Quota]` to the quotas of the services.

use ccm_core::{client::Quota, config::Problems};

use super::keys;

/// What a service gets of which the file says nothing.
pub(super) const DEFAULT: Quota = Quota {
    rate: 20.0,
    burst: 50,
    max_in_flight: 8,
};
/// More requests than this per second, at once or in flight are hardly meant.
const MOST: u32 = 100_000;

/// How much may be asked of each service.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Quotas {
    /// Of Keystone.
    pub(crate) identity: Quota,
    /// Of Nova.
    pub(crate) compute: Quota,
    /// Of Neutron.
    pub(crate) network: Quota,
    /// Of Octavia.
    pub(crate) load_balancer: Quota,
}

impl Quotas {
    /// Reads and checks the section.
    pub(super) fn of(section: &keys::Quota, problems: &mut Problems) -> Self {
        let mut quota = |keys: [&str; 3], rate: f64, burst: u32, max_in_flight: u32| {
            let [rate_key, burst_key, in_flight_key] = keys;
            if rate <= 0.0 || rate > f64::from(MOST) {
                let what = format!(
                    "must be more than 0 and at most {MOST}; without it {}",
                    DEFAULT.rate
                );
                problems.error(("Quota", rate_key), what);
            }
            for (key, value, default) in [
                (burst_key, burst, DEFAULT.burst),
                (in_flight_key, max_in_flight, DEFAULT.max_in_flight),
            ] {
                if value == 0 || value > MOST {
                    let what = format!("must be between 1 and {MOST}; without it {default}");
                    problems.error(("Quota", key), what);
                }
            }
            Quota {
                rate,
                burst,
                max_in_flight,
            }
        };
        Self {
            identity: quota(
                [
                    "identity-requests-per-second",
                    "identity-burst",
                    "identity-in-flight",
                ],
                section.identity_requests_per_second,
                section.identity_burst,
                section.identity_in_flight,
            ),
            compute: quota(
                [
                    "compute-requests-per-second",
                    "compute-burst",
                    "compute-in-flight",
                ],
                section.compute_requests_per_second,
                section.compute_burst,
                section.compute_in_flight,
            ),
            network: quota(
                [
                    "network-requests-per-second",
                    "network-burst",
                    "network-in-flight",
                ],
                section.network_requests_per_second,
                section.network_burst,
                section.network_in_flight,
            ),
            load_balancer: quota(
                [
                    "load-balancer-requests-per-second",
                    "load-balancer-burst",
                    "load-balancer-in-flight",
                ],
                section.load_balancer_requests_per_second,
                section.load_balancer_burst,
                section.load_balancer_in_flight,
            ),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::tests::{errors, global, good};

    #[test]
    fn the_default_is_that_of_the_client_kit() {
        assert_eq!(DEFAULT, Quota::default());
    }

    #[test]
    fn quotas_have_their_keys_defaults_and_limits() {
        let quotas = good(&global("token = t")).quotas;
        assert_eq!(
            (quotas.identity, quotas.compute, quotas.network),
            Default::default()
        );
        let text = global("token = t")
            + "[Quota]\ncompute-requests-per-second = 2.5\nnetwork-burst = 7\nidentity-in-flight = 1\n";
        let quotas = good(&text).quotas;
        assert!((quotas.compute.rate - 2.5).abs() < 1e-9);
        assert_eq!((quotas.compute.burst, quotas.network.burst), (50, 7));
        assert_eq!(quotas.identity.max_in_flight, 1);

        let text = global("token = t")
            + "[Quota]\ncompute-requests-per-second = 0\ncompute-burst = 0\nnetwork-requests-per-second = -1\n\
               network-in-flight = 1.5\nidentity-requests-per-second = inf\nidentity-in-flight = 100001\n";
        let errors = errors(&text);
        assert_eq!(errors.len(), 6, "{errors:#?}");
        for (error, part) in errors.iter().zip([
            "5:31: [Quota] compute-requests-per-second: must be more than 0 and at most 100000; without it 20",
            "6:17: [Quota] compute-burst: must be between 1 and 100000; without it 50",
            "network-requests-per-second: must be more than 0",
            "network-in-flight",
            "identity-requests-per-second",
            "identity-in-flight: must be between 1 and 100000; without it 8",
        ]) {
            assert!(error.contains(part), "{part} is not in {error}");
        }
    }
}
