//! The command line of the binary: output and exit codes.

use std::process::{Command, Output};

use cloud_controller_manager::providers;

use crate::binaries;

fn run(args: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_cloud-controller-manager"))
        .args(args)
        // A Pod has these variables.
        .env_remove("KUBERNETES_SERVICE_HOST")
        .env_remove("KUBERNETES_SERVICE_PORT")
        .output()
        .unwrap()
}

fn stdout(output: &Output) -> String {
    String::from_utf8(output.stdout.clone()).unwrap()
}

fn stderr(output: &Output) -> String {
    String::from_utf8(output.stderr.clone()).unwrap()
}

#[test]
fn help_is_grouped_and_goes_to_standard_output() {
    let output = run(&["--help"]);
    assert!(output.status.success());
    assert_eq!(stderr(&output), "");
    let help = stdout(&output);
    let page = include_str!("../../docs/reference/flags.md");
    assert!(
        without_providers(page).contains(without_providers(&help).trim_end()),
        "`cargo xtask docs` writes docs/reference/flags.md:\n{help}"
    );
    assert_eq!(stdout(&run(&["help"])), help);
}

#[test]
fn short_help_and_that_of_a_subcommand_have_their_own_flags() {
    let page = |words: &[&str]| {
        let output = run(words);
        assert!(output.status.success());
        stdout(&output)
    };
    let short = page(&["-h"]);
    assert!(short.lines().count() < 80, "{short}");
    let plan = page(&["plan", "--help"]);
    assert_eq!(page(&["help", "plan"]), plan);
    assert_eq!(page(&["plan", "-h"]), plan);
    let validate = page(&["validate", "--help"]);
    for (text, flags, others) in [
        (&short, ["--cloud-provider", "--dry-run"], ["--strict[=", "--bind-address"]),
        (&plan, ["--service <", "--kubeconfig"], ["--offline", "--bind-address"]),
        (&validate, ["--services <", "--offline"], ["--service <", "--bind-address"]),
    ] {
        assert!(flags.iter().all(|flag| text.contains(flag)), "{text}");
        assert!(!others.iter().any(|flag| text.contains(flag)), "{text}");
        assert!(text.contains("cloud-controller-manager --help"), "{text}");
    }
}

#[test]
fn an_unknown_subcommand_is_the_only_error() {
    let output = run(&["status"]);
    assert_eq!(output.status.code(), Some(1));
    let errors = stderr(&output);
    assert!(
        errors.contains("got [\"status\"]; the subcommands are plan, validate and help\n"),
        "{errors}"
    );
    assert_eq!(errors.matches("error: ").count(), 1, "{errors}");
}

/// The help without the controllers and flags of providers, which depend on the build.
fn without_providers(help: &str) -> String {
    let controllers = regex::Regex::new(r"(?s); with\s+--cloud-provider=.*?\n\n").unwrap();
    let flags = regex::Regex::new(r"(?s)Provider [a-z]+:\n.*?\n(Writing flags:)").unwrap();
    let help = controllers.replace_all(help, "\n\n");
    flags.replace(&help, "$1").into_owned()
}

#[test]
fn all_mistakes_are_reported_with_exit_code_one() {
    let output = run(&[
        "--kube_api_qps=fast",
        "--cloud-confg=x",
        "--secure-port=99999",
        "word",
    ]);
    assert_eq!(output.status.code(), Some(1));
    assert_eq!(stdout(&output), "");
    let errors = stderr(&output);
    for text in [
        "error: unknown flag --cloud-confg; did you mean --cloud-config?\n",
        "error: \"cloud-controller-manager\" does not take any arguments, got [\"word\"]; \
         the subcommands are plan, validate and help\n",
        "error: --kube-api-qps: invalid value \"fast\": write a number such as 20 or 0.5\n",
        "error: --secure-port 99999 must be between 0 and 65535, inclusive. 0 for turning off secure port\n",
        "Run with --help for all flags.\n",
    ] {
        assert!(errors.contains(text), "{text:?} not in:\n{errors}");
    }
}

#[test]
fn version_is_printed() {
    let output = run(&["--version"]);
    assert!(output.status.success());
    assert_eq!(stdout(&output), format!("cloud-controller-manager v{}\n", env!("CARGO_PKG_VERSION")));
}

#[test]
fn an_unknown_provider_lists_the_compiled_providers_or_the_build_feature() {
    let output = run(&["--cloud-provider=no-such-cloud"]);
    assert_eq!(output.status.code(), Some(1));
    let errors = stderr(&output);
    match providers::enabled().first() {
        Some(provider) => {
            assert!(errors.contains("there is no cloud provider \"no-such-cloud\""), "{errors}");
            assert!(errors.contains(&format!("compiled in: {provider}")), "{errors}");
        }
        None => assert!(errors.contains("built without any cloud provider"), "{errors}"),
    }
}

#[test]
fn flags_without_effect_are_logged_once_at_start() {
    let output = binaries::example("out_of_tree")
        .args([
            "--cloud-provider=acme",
            "--allow-untagged-cloud",
            "--concurrent-node-lifecycle-syncs=4",
            "--controllers=cloud-node",
            "--kubeconfig=/does/not/exist",
        ])
        .output()
        .unwrap();
    let log = stderr(&output);
    let warnings: Vec<_> = log.lines().filter(|line| line.contains(" WARN ")).collect();
    assert_eq!(warnings.len(), 2, "{log}");
    assert!(warnings[0].contains("deprecated: --allow-untagged-cloud: "), "{log}");
    assert!(warnings[1].contains("--concurrent-node-lifecycle-syncs=4 has no effect: "), "{log}");
}

#[test]
fn vmodule_raises_the_log_level_of_one_module() {
    let debug_lines = |more: &[&str]| {
        let output = binaries::example("out_of_tree")
            .args(["--cloud-provider=acme", "--kubeconfig=/does/not/exist"])
            .args(more)
            .output()
            .unwrap();
        stderr(&output)
            .lines()
            .filter(|line| line.contains("DEBUG") && line.contains("cloud_controller_manager::process"))
            .count()
    };
    assert_eq!(debug_lines(&[]), 0);
    assert!(debug_lines(&["--vmodule=process=4"]) > 0);
    assert_eq!(debug_lines(&["-v=4", "--vmodule=process=0"]), 0);
}
