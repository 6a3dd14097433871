//! The binaries that the tests start.

use std::{env, process::Command};

// A test that needs none of the crates still links them.
use cloud_controller_manager as _;

/// The example with a provider of its own, which needs no cloud.
pub(crate) fn out_of_tree() -> Command {
    // Cargo puts the tests into `deps/` and the examples, built along with them, beside it.
    let test = env::current_exe().expect("the test knows where it is");
    let profile = test.ancestors().nth(2).expect("tests are built two levels down");
    let example = profile.join("examples").join("out_of_tree");
    assert!(
        example.exists(),
        "{} is missing: run `cargo build --example out_of_tree`",
        example.display()
    );
    let mut command = Command::new(example);
    // A Pod has these variables.
    command
        .env_remove("KUBERNETES_SERVICE_HOST")
        .env_remove("KUBERNETES_SERVICE_PORT");
    command
}
