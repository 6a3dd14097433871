//! Reads the flags of the section "Leader migration".

mod file;

use std::fs;

use super::{controllers::Known, flags, value::Reader};
use crate::config::{ControllerLeader, Controllers, ElectionConfig, MigrationConfig};
use crate::controllers::FRAMEWORK;

/// The name of this program in the file of a leader migration.
const COMPONENT: &str = "cloud-controller-manager";
/// Any component that takes part.
const ANY: &str = "*";
/// The Lease of a leader migration without a file.
const DEFAULT_LEASE: &str = "cloud-provider-extraction-migration";

/// Adds the migration, if there is one, to the election and to the controllers.
pub(super) fn migration(
    election: Option<&mut ElectionConfig>,
    controllers: &mut Controllers,
    known: &Known,
    reader: &mut Reader,
) {
    let file = reader.non_empty(flags::LEADER_MIGRATION_CONFIG);
    if !reader.boolean(flags::ENABLE_LEADER_MIGRATION) {
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
    let Some(migration) = read(file.as_deref(), known, reader) else {
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

/// Whether this program runs the controllers of this component.
fn is_ours(component: &str) -> bool {
    component == COMPONENT || component == ANY
}

/// `None` with errors.
fn read(file: Option<&str>, known: &Known, reader: &mut Reader) -> Option<MigrationConfig> {
    let Some(file) = file else {
        // In the order of upstream's `DefaultLeaderMigrationConfiguration`.
        let names = FRAMEWORK.iter().rev().filter_map(|controller| controller.names.migration_name);
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
            reader.refuse(format!("--leader-migration-config: cannot read {file}: {error}"));
            None
        }
    }
}
