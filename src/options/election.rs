//! Flags of the section "Leader election".

use std::time::Duration;

use clap::Args;

use super::{config::ElectionConfig, value::Reader};

/// A try comes up to this much later than the retry period says, so that replicas do not ask at the same moment.
const JITTER_FACTOR: f64 = 1.2;

#[derive(Args, Clone, Debug)]
#[command(next_help_heading = "Leader election")]
pub(super) struct ElectionOptions {
    /// Elect one leader among all replicas, which alone works; the others wait to take over. Without it, only one replica
    /// may run.
    #[arg(long, value_name = "BOOL", default_value = "true")]
    leader_elect: String,

    /// How long the others wait after the last sign of life of the leader before one of them takes over. A duration of at
    /// least 1s, longer than --leader-elect-renew-deadline.
    #[arg(long, value_name = "DURATION", default_value = "15s")]
    leader_elect_lease_duration: String,

    /// How long the leader tries to renew its lease before it gives up and ends. A duration, longer than
    /// --leader-elect-retry-period times 1.2.
    #[arg(long, value_name = "DURATION", default_value = "10s")]
    leader_elect_renew_deadline: String,

    /// The time between two tries to take or to renew the lease. A duration.
    #[arg(long, value_name = "DURATION", default_value = "2s")]
    leader_elect_retry_period: String,

    /// The kind of object that says who leads. There is only one: leases.
    #[arg(long, value_name = "KIND", default_value = "leases")]
    leader_elect_resource_lock: String,

    /// The name of the Lease.
    #[arg(long, value_name = "NAME", default_value = "cloud-controller-manager")]
    leader_elect_resource_name: String,

    /// The namespace of the Lease.
    #[arg(long, value_name = "NAME", default_value = "kube-system")]
    leader_elect_resource_namespace: String,
}

impl ElectionOptions {
    /// `None` if there is no election; the other flags are then only read.
    pub(super) fn complete(&self, reader: &mut Reader) -> Option<ElectionConfig> {
        let before = reader.errors.len();
        let on = reader.boolean("leader-elect", &self.leader_elect);
        let lease = reader.duration("leader-elect-lease-duration", &self.leader_elect_lease_duration);
        let renew = reader.duration("leader-elect-renew-deadline", &self.leader_elect_renew_deadline);
        let retry = reader.duration("leader-elect-retry-period", &self.leader_elect_retry_period);
        if !on {
            return None;
        }
        if reader.errors.len() == before {
            check_timing(lease, renew, retry, reader);
        }
        if self.leader_elect_resource_lock != "leases" {
            reader.refuse(format!(
                "--leader-elect-resource-lock {:?}: resourceLock value must be \"leases\"",
                self.leader_elect_resource_lock
            ));
        }
        for (flag, name, dots) in [
            ("name", &self.leader_elect_resource_name, true),
            ("namespace", &self.leader_elect_resource_namespace, false),
        ] {
            if !is_object_name(name, dots) {
                reader.invalid(
                    &format!("leader-elect-resource-{flag}"),
                    name,
                    "write a name of an object: lower-case letters, digits and -, such as kube-system",
                );
            }
        }
        Some(ElectionConfig {
            lease_duration: lease,
            renew_deadline: renew,
            retry_period: retry,
            name: self.leader_elect_resource_name.clone(),
            namespace: self.leader_elect_resource_namespace.clone(),
            migration: None,
        })
    }
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
            "--leader-elect-lease-duration {lease:?}: it must be at least 1s, a Lease holds whole seconds"
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

/// What the API server takes for a name; a namespace has no dots and at most 63 characters.
pub(super) fn is_object_name(name: &str, dots: bool) -> bool {
    let part = |part: &str| {
        let edge = |b: Option<&u8>| b.is_some_and(|b| b.is_ascii_lowercase() || b.is_ascii_digit());
        let bytes = part.as_bytes();
        edge(bytes.first())
            && edge(bytes.last())
            && bytes
                .iter()
                .all(|b| b.is_ascii_lowercase() || b.is_ascii_digit() || *b == b'-')
    };
    if dots {
        name.len() <= 253 && name.split('.').all(part)
    } else {
        name.len() <= 63 && part(name)
    }
}
