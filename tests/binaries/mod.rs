//! The binaries that the tests start.

use std::{path::Path, process::Command};

// A test that needs none of the crates still links them.
use cloud_controller_manager as _;

/// The example with a provider of its own, which needs no cloud.
pub(crate) fn out_of_tree() -> Command {
    // Cargo puts examples into a folder beside the program.
    let example =
        Path::new(env!("CARGO_BIN_EXE_cloud-controller-manager")).with_file_name("examples/out_of_tree");
    assert!(
        example.exists(),
        "{} is missing: run `cargo build --example out_of_tree`",
        example.display()
    );
    let mut command = Command::new(example);
    // A Pod has these variables.
    command.env_remove("KUBERNETES_SERVICE_HOST").env_remove("KUBERNETES_SERVICE_PORT");
    command
}
