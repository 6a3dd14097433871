//! `--help`: the whole page, the short one of `-h`, and one for each subcommand.

use clap::Command;

use super::{
    arguments::{HelpForm, Subcommand},
    flags::{self, Flag},
};

pub(super) const ABOUT: &str = "Connects a Kubernetes cluster to its cloud: sets addresses, provider ID, zone, region and type of new nodes and \
     keeps them up to date, deletes nodes whose machine does not exist any more, reconciles the load balancers of Services of type \
     LoadBalancer, and sets routes to the Pods of the nodes.";

pub(super) const USAGE: &str = concat!(
    "cloud-controller-manager --cloud-provider <NAME> [--cloud-config <FILE>] [FLAGS]\n       ",
    "cloud-controller-manager plan [--service <NAMESPACE/NAME>] [-o text|json] [FLAGS]\n       ",
    "cloud-controller-manager validate [--services <FILE>|-] [--strict] [--offline] [-o text|json] [FLAGS]"
);

/// No line of it is longer than 98 characters, or clap would break it on an ordinary terminal.
pub(super) const AFTER_HELP: &str = concat!(
    include_str!("help/flags.txt"),
    include_str!("help/plan.txt"),
    include_str!("help/validate.txt"),
    include_str!("help/examples.txt"),
);

const FLAGS: [Flag; 10] = [
    flags::CLOUD_PROVIDER,
    flags::CLOUD_CONFIG,
    flags::KUBECONFIG,
    flags::CLUSTER_NAME,
    flags::CONTROLLERS,
    flags::DRY_RUN,
    flags::VERBOSITY,
    flags::LIST_PROVIDERS,
    flags::HELP_CLOUD_CONFIG,
    flags::VERSION,
];

const PLAN_FLAGS: [Flag; 9] = [
    flags::SERVICE,
    flags::OUTPUT,
    flags::CLOUD_PROVIDER,
    flags::CLOUD_CONFIG,
    flags::KUBECONFIG,
    flags::CONTEXT,
    flags::CLUSTER_NAME,
    flags::CONTROLLERS,
    flags::VERBOSITY,
];

const VALIDATE_FLAGS: [Flag; 8] = [
    flags::SERVICES,
    flags::OFFLINE,
    flags::STRICT,
    flags::OUTPUT,
    flags::CLOUD_PROVIDER,
    flags::CLOUD_CONFIG,
    flags::CLUSTER_NAME,
    flags::VERBOSITY,
];

const PLAN: &str = concat!(
    include_str!("help/plan.txt"),
    "All flags of the program are accepted: cloud-controller-manager --help"
);

const VALIDATE: &str = concat!(
    include_str!("help/validate.txt"),
    "All flags of the program are accepted: cloud-controller-manager --help"
);

const SUBCOMMANDS: &str = "\
Subcommands:
  plan      print the changes that a run would apply (plan --help)
  validate  print the problems of config, cloud and manifests (validate --help)

All flags: cloud-controller-manager --help";

/// A page without flags.
pub(super) fn page(about: &'static str, usage: &'static str, after: &'static str) -> Command {
    Command::new("cloud-controller-manager")
        .about(about)
        .override_usage(usage)
        .after_help(after)
        // Our own forms of these, as Go has them.
        .disable_version_flag(true)
        .disable_help_flag(true)
        .max_term_width(100)
}

/// The page that the user requests. `full` has all flags.
pub(super) fn text(full: Command, subcommand: Option<Subcommand>, form: HelpForm) -> String {
    match (subcommand, form) {
        (Some(Subcommand::Plan), _) => {
            let usage = "cloud-controller-manager plan [--service <NAMESPACE/NAME>] [-o text|json] [FLAGS]";
            let about = "Prints the changes that a run with the same flags would apply, and writes nothing.";
            render(selected(page(about, usage, PLAN), &PLAN_FLAGS))
        }
        (Some(Subcommand::Validate), _) => {
            let usage = "cloud-controller-manager validate [--services <FILE>|-] [--strict] [--offline] [-o text|json] [FLAGS]";
            let about = "Prints the problems of the config, of the cloud behind it, and of manifests, and writes nothing.";
            render(selected(page(about, usage, VALIDATE), &VALIDATE_FLAGS))
        }
        (None, HelpForm::Short) => render(selected(page(ABOUT, USAGE, SUBCOMMANDS), &FLAGS)),
        (None, HelpForm::Full) => render(full),
    }
}

fn selected(page: Command, flags: &[Flag]) -> Command {
    page.args(flags.iter().map(|flag| flag.arg().help_heading("Flags")))
}

fn render(mut page: Command) -> String {
    // clap leaves blanks at the ends of some lines.
    let text = page.render_long_help().to_string();
    text.lines().map(|line| format!("{}\n", line.trim_end())).collect()
}
