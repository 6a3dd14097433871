//! The binaries that the tests start.

use std::{path::Path, process::Command};

// A test that needs none of the crates still links them.
use cloud_controller_manager as _;

/// An example with a provider of its own.
pub(crate) fn example(name: &str) -> Command {
    // Cargo puts examples into a folder beside the program.
    let folder = Path::new(env!("CARGO_BIN_EXE_cloud-controller-manager")).with_file_name("examples");
    let example = folder.join(name);
    assert!(example.exists(), "{} is missing: run `cargo build --example {name}`", example.display());
    let mut command = Command::new(example);
    // A Pod has these variables.
    command.env_remove("KUBERNETES_SERVICE_HOST").env_remove("KUBERNETES_SERVICE_PORT");
    command
}
