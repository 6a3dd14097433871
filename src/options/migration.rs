//! Flags of the section "Leader migration".

mod file;

use std::fs;

use clap::Args;

use super::{
    config::{ControllerLeader, Controllers, ElectionConfig, MigrationConfig},
    selection::Known,
    value::{Reader, non_empty},
};
use crate::controllers::FRAMEWORK;

/// What this program is in the file of a leader migration.
const COMPONENT: &str = "cloud-controller-manager";
/// Any component that takes part.
const ANY: &str = "*";
/// The Lease of a leader migration without a file.
const DEFAULT_LEASE: &str = "cloud-provider-extraction-migration";
#[derive(Args, Clone, Debug)]
#[command(next_help_heading = "Leader migration")]
pub(super) struct MigrationOptions {
    /// Hand controllers over from one kind of controller manager to another, such as kube-controller-manager, so that each is
    /// run by one of them at any time: they run under a second Lease that all of these managers contend for. The others run
    /// under the first one, as ever. Needs --leader-elect.
    #[arg(long, value_name = "BOOL", default_value = "false")]
    enable_leader_migration: String,

    /// With --enable-leader-migration: the file that says which controllers, by which component each is run, and what the
    /// second Lease is called (a LeaderMigrationConfiguration of controllermanager.config.k8s.io/v1, v1beta1 or v1alpha1).
    /// Without it: service, route and cloud-node-lifecycle, any, and cloud-provider-extraction-migration.
    #[arg(long, value_name = "FILE", default_value = "", hide_default_value = true)]
    leader_migration_config: String,
}

impl MigrationOptions {
    /// Adds the migration, if there is one, to what it concerns.
    pub(super) fn complete(
        &self,
        election: Option<&mut ElectionConfig>,
        controllers: &mut Controllers,
        known: &Known,
        reader: &mut Reader,
    ) {
        let file = non_empty(&self.leader_migration_config);
        if !reader.boolean("enable-leader-migration", &self.enable_leader_migration) {
            if file.is_some() {
                reader.warn("--leader-migration-config has no effect without --enable-leader-migration");
            }
            return;
        }
        let Some(election) = election else {
            reader.refuse(
                "--enable-leader-migration has no effect without leader election, and controllers might run twice; leave \
                 --leader-elect=false out, or --enable-leader-migration",
            );
            return;
        };
        let Some(migration) = read(file, known, reader) else {
            return;
        };
        if migration.lease == election.name {
            reader.refuse(format!(
                "--enable-leader-migration: leaderName {:?} is also --leader-elect-resource-name; there must be two Leases",
                migration.lease
            ));
        }
        for leader in &migration.leaders {
            let Some(name) = known.migrated(&leader.name) else {
                continue;
            };
            if !is_ours(&leader.component) {
                controllers.elsewhere.insert(name, leader.component.clone());
            } else if controllers.is_enabled(name) {
                controllers.migrated.insert(name);
            }
        }
        election.migration = Some(migration);
    }
}

/// Whether this program runs what this component runs.
fn is_ours(component: &str) -> bool {
    component == COMPONENT || component == ANY
}

/// `None` with errors.
fn read(file: Option<&str>, known: &Known, reader: &mut Reader) -> Option<MigrationConfig> {
    let Some(file) = file else {
        // In the order of upstream's `DefaultLeaderMigrationConfiguration`.
        let names = FRAMEWORK.iter().rev().filter_map(|def| def.migration_name);
        let leaders = names.map(|name| ControllerLeader {
            name: name.to_owned(),
            component: ANY.to_owned(),
        });
        return Some(MigrationConfig {
            lease: DEFAULT_LEASE.to_owned(),
            leaders: leaders.collect(),
        });
    };
    match fs::read_to_string(file) {
        Ok(text) => file::read(file, &text, known, reader),
        Err(error) => {
            reader.refuse(format!("--leader-migration-config: can not read {file}: {error}"));
            None
        }
    }
}
