//! Flags of the section "Services".

use std::num::NonZeroUsize;

use clap::Args;

use super::{
    config::{OrphanConfig, ServiceConfig},
    value::Reader,
};

#[derive(Args, Clone, Debug)]
#[command(next_help_heading = "Services")]
pub(super) struct ServiceOptions {
    /// How many load balancers are worked on at once (elsewhere 1). One that waits for the cloud does not count.
    #[arg(long, value_name = "NUMBER", default_value = "8")]
    concurrent_service_syncs: String,

    /// How often load balancers are compared with the cloud though nothing has changed here, to mend what was changed there.
    /// A duration, varied a little; 0 for never. It costs few requests, and what somebody waits for comes first.
    #[arg(long, value_name = "DURATION", default_value = "1h")]
    service_drift_period: String,

    /// Delete load balancers that carry this cluster's ownership tag and its --cluster-name when their Service has not existed
    /// for an hour. Without this flag they are only reported. More than three are deleted one a minute; a restart and a
    /// listing in which Services vanished begin the hour again. Never set it in a cluster that was cloned or restored from a
    /// snapshot: such a cluster has the ownership tag of the original, whose load balancers it would delete.
    #[arg(long, value_name = "BOOL", default_value = "false")]
    delete_orphaned_load_balancers: String,
}

impl ServiceOptions {
    pub(super) fn complete(&self, reader: &mut Reader) -> ServiceConfig {
        let concurrent_syncs = reader
            .integer("concurrent-service-syncs", &self.concurrent_service_syncs)
            .and_then(|n| {
                let number = usize::try_from(n).ok().and_then(NonZeroUsize::new);
                if number.is_none() {
                    reader.refuse(format!(
                        "--concurrent-service-syncs {n} must be a positive number"
                    ));
                }
                number
            });
        let drift_period = reader.duration("service-drift-period", &self.service_drift_period);
        ServiceConfig {
            concurrent_syncs: concurrent_syncs.unwrap_or(NonZeroUsize::MIN),
            drift_period: Some(drift_period).filter(|period| !period.is_zero()),
            orphans: OrphanConfig {
                delete: reader.boolean(
                    "delete-orphaned-load-balancers",
                    &self.delete_orphaned_load_balancers,
                ),
                ..OrphanConfig::default()
            },
        }
    }
}
