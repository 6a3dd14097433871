//! Reads the flags of the section "Leader election".

use std::time::Duration;

use super::{flags, value::Reader};
use crate::config::ElectionConfig;

/// A try comes up to this factor later than the retry period, so that replicas do not send requests at the same moment.
const JITTER_FACTOR: f64 = 1.2;

/// `None` if there is no election; the other flags are then only read.
pub(super) fn election(reader: &mut Reader) -> Option<ElectionConfig> {
    let before = reader.errors.len();
    // An invalid value counts as the default, so that the other flags are checked, too.
    let on = reader.boolean(flags::LEADER_ELECT) || reader.errors.len() != before;
    let before = reader.errors.len();
    let lease = reader.duration(flags::LEADER_ELECT_LEASE_DURATION);
    let renew = reader.duration(flags::LEADER_ELECT_RENEW_DEADLINE);
    let retry = reader.duration(flags::LEADER_ELECT_RETRY_PERIOD);
    if !on {
        return None;
    }
    if reader.errors.len() == before {
        check_timing(lease, renew, retry, reader);
    }
    let lock = reader.text(flags::LEADER_ELECT_RESOURCE_LOCK);
    if lock != "leases" {
        reader
            .refuse(format!("--leader-elect-resource-lock {lock:?}: resourceLock value must be \"leases\""));
    }
    let mut name = |flag, dots| {
        let name = reader.text(flag);
        if !is_object_name(&name, dots) {
            let why = "write the name of an object: lower-case letters, digits and -, such as kube-system";
            reader.invalid(flag, &name, why);
        }
        name
    };
    Some(ElectionConfig {
        lease_duration: lease,
        renew_deadline: renew,
        retry_period: retry,
        name: name(flags::LEADER_ELECT_RESOURCE_NAME, true),
        namespace: name(flags::LEADER_ELECT_RESOURCE_NAMESPACE, false),
        migration: None,
    })
}

fn check_timing(lease: Duration, renew: Duration, retry: Duration, reader: &mut Reader) {
    let before = reader.errors.len();
    for (flag, what, value) in [
        ("lease-duration", "leaseDuration", lease),
        ("renew-deadline", "renewDeadline", renew),
        ("retry-period", "retryPeriod", retry),
    ] {
        if value.is_zero() {
            reader.refuse(format!("--leader-elect-{flag}: {what} must be greater than zero"));
        }
    }
    if reader.errors.len() != before {
        return;
    }
    if lease < Duration::from_secs(1) {
        reader.refuse(format!(
            "--leader-elect-lease-duration {lease:?}: it must be at least 1s, a Lease has whole seconds"
        ));
    }
    if lease <= renew {
        reader.refuse(format!(
            "--leader-elect-lease-duration {lease:?}: leaseDuration must be greater than renewDeadline \
             (--leader-elect-renew-deadline {renew:?})"
        ));
    }
    if renew <= retry.mul_f64(JITTER_FACTOR) {
        reader.refuse(format!(
            "--leader-elect-renew-deadline {renew:?}: renewDeadline must be greater than retryPeriod*JitterFactor \
             (--leader-elect-retry-period {retry:?} times {JITTER_FACTOR})"
        ));
    }
}

/// Whether the API server accepts the name; a namespace has no dots and at most 63 characters.
pub(super) fn is_object_name(name: &str, dots: bool) -> bool {
    let is_part = |part: &str| {
        !part.is_empty()
            && part.bytes().all(|b| matches!(b, b'a'..=b'z' | b'0'..=b'9' | b'-'))
            && part.trim_matches('-') == part
    };
    if dots {
        name.len() <= 253 && name.split('.').all(is_part)
    } else {
        name.len() <= 63 && is_part(name)
    }
}
