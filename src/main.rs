//! The binary: everything is in the library, so that a binary with other providers is as short as this one.

use std::process::ExitCode;

fn main() -> ExitCode {
    cloud_controller_manager::main()
}
