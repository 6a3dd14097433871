//! The command line, from words to a checked [`Config`].
//!
//! Three steps: `arguments` turns Go's flag dialect into a plain one, clap (the sections in this folder, one file for
//! each section of `--help`) says which flags there are, and `complete` reads the values. Each step collects what is
//! wrong instead of stopping, and the user sees all of it at once. clap holds every value as text for that reason.
//!
//! Flags that are only taken, because manifests carry them, are rows of one table; the rule for what is accepted and
//! what is refused stands there.

mod access;
mod arguments;
mod config;
mod controllers;
mod election;
mod gates;
mod generic;
mod global;
mod logging;
mod migration;
mod misc;
mod plan;
mod routes;
mod selection;
mod services;
mod serving;
mod table;
mod tls;
mod validate;
mod value;
mod webhooks;

use std::{collections::BTreeMap, ffi::OsString, fmt};

use ccm_core::{FlagDef, FlagKind, FlagValues, Provider};
use clap::{Args, CommandFactory, FromArgMatches, Parser, parser::ValueSource};

pub use config::{
    AccessConfig, ApiServerConfig, Certificate, ClientLimit, Config, ControllerLeader, Controllers,
    ElectionConfig, LifecycleConfig, LogFormat, LoggingConfig, MigrationConfig, ModuleVerbosity,
    NamedCertificate, NodeConfig, OrphanConfig, RouteConfig, ServiceConfig, ServingConfig, TlsConfig,
};
pub use plan::{Output, PlanRequest};
pub use validate::ValidateRequest;

pub use crate::validate::Manifests;

use crate::providers;
use arguments::Word;
use selection::Known;
use value::Reader;

/// One thing that is wrong with the command line, in words for the user.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OptionError(String);

impl OptionError {
    fn new(message: impl Into<String>) -> Self {
        Self(message.into())
    }
}

impl fmt::Display for OptionError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for OptionError {}

/// What the command line asks for.
#[derive(Debug)]
pub enum Request {
    /// To run.
    Run(Box<Config>),
    /// To say what would be done.
    Plan(Box<PlanRequest>),
    /// To say what is wrong with config, cloud and manifests.
    Validate(Box<ValidateRequest>),
    /// To print this on standard output and end.
    Print(String),
}

/// All flags as they were given. [`Options::complete`] reads their values.
#[derive(Debug)]
struct Options {
    generic: generic::GenericOptions,
    election: election::ElectionOptions,
    migration: migration::MigrationOptions,
    nodes: controllers::ControllerOptions,
    lifecycle: controllers::LifecycleOptions,
    services: services::ServiceOptions,
    routes: routes::RouteOptions,
    misc: misc::MiscOptions,
    serving: serving::ServingOptions,
    authentication: access::AuthenticationOptions,
    authorization: access::AuthorizationOptions,
    webhooks: webhooks::WebhookOptions,
    plan: plan::PlanOptions,
    validate: validate::ValidateOptions,
    logging: logging::LoggingOptions,
    global: global::GlobalOptions,
    /// Those that stand on the command line.
    given: FlagValues,
    /// Every flag with its value, for the log.
    values: Vec<(String, String)>,
}

/// One section of `--help`: its name, and what adds the flags to it that are not in the [`table`].
type Section = (&'static str, fn(clap::Command) -> clap::Command);

const SECTIONS: &[Section] = &[
    ("Plan", plan::PlanOptions::augment_args),
    ("Validate", validate::ValidateOptions::augment_args),
    ("Generic", generic::GenericOptions::augment_args),
    ("Leader election", election::ElectionOptions::augment_args),
    ("Leader migration", migration::MigrationOptions::augment_args),
    ("Nodes", controllers::ControllerOptions::augment_args),
    ("Node lifecycle", controllers::LifecycleOptions::augment_args),
    ("Services", services::ServiceOptions::augment_args),
    ("Routes", routes::RouteOptions::augment_args),
    ("Misc", misc::MiscOptions::augment_args),
    ("Debugging", |command| command),
    ("Secure serving", serving::ServingOptions::augment_args),
    ("Authentication", access::AuthenticationOptions::augment_args),
    ("Authorization", access::AuthorizationOptions::augment_args),
    ("Webhooks", webhooks::WebhookOptions::augment_args),
    ("Logs", logging::LoggingOptions::augment_args),
    ("Global", global::GlobalOptions::augment_args),
];

/// Connects a Kubernetes cluster to its cloud.
#[derive(Parser, Debug)]
#[command(
    name = "cloud-controller-manager",
    about = "Connects a Kubernetes cluster to its cloud: gives new nodes their cloud addresses, provider ID, zone, region \
             and type, and keeps them up to date; gives Services of type LoadBalancer their load balancers.",
    override_usage = "cloud-controller-manager --cloud-provider <NAME> [--cloud-config <FILE>] [FLAGS]\n       \
                      cloud-controller-manager plan [--service <NAMESPACE/NAME>] [-o text|json] [FLAGS]\n       \
                      cloud-controller-manager validate [--services <FILE>|-] [--strict] [-o text|json] [FLAGS]",
    after_help = AFTER_HELP,
    // Our own forms of these, as Go has them.
    disable_version_flag = true,
    disable_help_flag = true,
    args_override_self = true,
    max_term_width = 100
)]
struct CommandLine {}

/// No line is longer than 98 characters, or clap would break it on an ordinary terminal.
const AFTER_HELP: &str = "\
Writing flags:
  `_` may stand for `-` in a flag's name. A boolean takes its value after `=`: --x, --x=true,
  --x=false. A duration is a number with a unit (ms, s, m, h), or several: 90s, 1m30s. A LIST is
  separated by commas and may be given in several flags. If any other flag is given twice, the last
  one counts, except where it may be repeated. All mistakes are reported together, with exit code 1.

Flags of other cloud-controller-managers that are only accepted here:
  Not there yet    a value that asks for it is refused, one that switches it off is accepted
  No effect (yet)  accepted; a value that asks for something gets a warning in the log
  Deprecated       accepted with a warning in the log

Where this program differs from other cloud-controller-managers on purpose:
  --kube-api-qps                 no limit unless given: the API server's own flow control decides
  --concurrent-node-syncs        32 instead of 1: the cloud is asked for many nodes at once
  --concurrent-service-syncs     8 instead of 1
  --route-reconciliation-period  unset instead of 10s: routes follow changes of nodes
  --leader-elect                 the lease is released at the end, so that the next one starts at once
  node lifecycle                 a node is not deleted after one answer: see --node-deletion-grace,
                                 --node-deletion-confirm and --node-deletion-share
  --authentication-kubeconfig    without it and outside of a pod, the API server is asked with what
                                 --kubeconfig says, not left alone; so for --authorization-kubeconfig

Seeing what it would do:
  The word plan, with the flags of the program as it is to run, prints what it would do now, and
  ends. --dry-run runs on and logs it whenever it changes. Both read, and write nothing: not to the
  cloud, not to the cluster, no Events. They take no part in leader election, so that they may run
  beside any leader, and need no right but to get, list and watch nodes and Services (and to get
  the namespace kube-system). Exit codes of plan: 0 nothing to do, 2 something to do, 3 only
  differences that would be left as they are, 1 any error.

Seeing whether it would work, without a cluster:
  The word validate, with --cloud-provider and --cloud-config, reads the config, lets itself in,
  and looks whether the credentials may read what they have to, whether what the config names is
  there, and how much of quotas is left. With --services it also looks at the annotations and
  fields of Services of type LoadBalancer, in manifests before they are applied. Everything that is
  wrong is said with file, line and what would be right. It writes nothing, so that rights to write
  are not tried. Exit codes of validate: 0 nothing is wrong, or only warnings, 2 errors (with
  --strict also warnings), 1 something could not be found out, or any other error.

Examples:
  In a pod of the cluster:
    cloud-controller-manager --cloud-provider=openstack --cloud-config=/etc/config/cloud.conf
  From outside of it, with more to read:
    cloud-controller-manager --cloud-provider=openstack --kubeconfig=admin.conf -v=4
  What would it do in the place of the program that runs now:
    cloud-controller-manager plan --cloud-provider=openstack --cloud-config=cloud.conf \\
      --kubeconfig=admin.conf
  Is this config right, and are these manifests:
    cloud-controller-manager validate --cloud-provider=openstack --cloud-config=cloud.conf \\
      --services=services.yaml
    helm template shop | cloud-controller-manager validate --cloud-provider=openstack \\
      --cloud-config=cloud.conf --services=-
  Which keys may stand in the config file:
    cloud-controller-manager --cloud-provider=openstack --help-cloud-config
";

/// The definition of all flags of a binary with these providers.
#[must_use]
pub fn command(providers: &[&'static Provider]) -> clap::Command {
    let mut command = SECTIONS
        .iter()
        .fold(CommandLine::command(), |command, (section, augment)| {
            table::add(augment(command), section)
        });
    for flag in providers.iter().flat_map(|provider| provider.flags) {
        let is_known = |known: &clap::Arg| known.get_id() == flag.name;
        // Several providers may have a flag, and the framework accepts some.
        if !command.get_arguments().any(is_known) {
            let section = format!("Provider {}", defining(flag.name, providers).join(", "));
            command = command.arg(table::arg(flag, section, flag.help.to_owned()));
        }
    }
    command
        .mut_arg("controllers", |arg| {
            let names = selection::names(providers);
            let help = arg.get_help().map(ToString::to_string).unwrap_or_default();
            arg.help(format!("{help}. Names: {names}"))
        })
        .mut_args(|arg| match arg.get_value_names() {
            Some([name]) if name == FlagKind::Bool.value_name() => arg
                .num_args(0..=1)
                .require_equals(true)
                .default_missing_value("true"),
            _ => arg,
        })
}

/// A flag of this provider that the framework has already. One that it only accepts may be defined again.
pub(crate) fn taken_flag(provider: &Provider) -> Option<&'static str> {
    let framework = command(&[]);
    let taken = |name: &str| framework.get_arguments().any(|arg| arg.get_long() == Some(name));
    let mut names = provider.flags.iter().map(|flag| flag.name);
    names.find(|name| taken(name) && !table::accepts(name))
}

/// The names of the providers that define this flag.
fn defining(flag: &str, providers: &[&'static Provider]) -> Vec<&'static str> {
    let defines = |provider: &&&Provider| provider.flags.iter().any(|known| known.name == flag);
    providers
        .iter()
        .filter(defines)
        .map(|provider| provider.name)
        .collect()
}

/// The providers that define this flag, unless the chosen one or the framework has it, too.
fn foreign(flag: &FlagDef, chosen: &Provider, providers: &[&'static Provider]) -> Option<String> {
    let defining = defining(flag.name, providers);
    (!defining.contains(&chosen.name) && !table::accepts(flag.name)).then(|| defining.join(", "))
}

/// Reads the command line, the program's name left out, for a binary with these providers.
///
/// # Errors
/// Everything that is wrong with it.
pub fn parse(
    words: impl IntoIterator<Item = OsString>,
    providers: &[&'static Provider],
) -> Result<Request, Vec<OptionError>> {
    parse_with(words, providers, None)
}

/// As [`parse`]. `implied`: the provider without `--cloud-provider`.
pub(crate) fn parse_with(
    words: impl IntoIterator<Item = OsString>,
    providers: &[&'static Provider],
    implied: Option<&str>,
) -> Result<Request, Vec<OptionError>> {
    let command = command(providers);
    let arguments = arguments::normalise(&command, words);
    if arguments.help {
        return Ok(Request::Print(help(command)));
    }
    let mut errors = arguments.errors;
    let program = command.get_name().to_owned();
    // What is left are known flags with values, so that clap has nothing more to complain about.
    let words = std::iter::once(program).chain(arguments.flags);
    let options = command
        .clone()
        .try_get_matches_from(words)
        .and_then(|matches| Options::read(&command, &matches));
    let mut options = match options {
        Ok(options) => options,
        Err(error) => {
            errors.push(OptionError::new(error.to_string().trim_end()));
            return Err(errors);
        }
    };
    if errors.is_empty()
        && let Some(answer) = options.global.answer(&options.generic.cloud_provider, providers)
    {
        return answer.map(Request::Print).map_err(|error| vec![error]);
    }
    if let (true, Some(implied)) = (options.generic.cloud_provider.is_empty(), implied) {
        options.generic.cloud_provider = implied.to_owned();
    }
    let word = arguments.word;
    let mut reader = Reader::default();
    let output = options.plan.output(word, &mut reader);
    let service = options.plan.service(word, &mut reader);
    let (manifests, strict) = options.validate.wanted(word, &mut reader);
    errors.extend(reader.errors);
    match options.complete(providers) {
        Ok(config) if errors.is_empty() => Ok(match word {
            None => Request::Run(Box::new(config)),
            Some(Word::Plan) => Request::Plan(Box::new(PlanRequest {
                config,
                service,
                output,
            })),
            Some(Word::Validate) => Request::Validate(Box::new(ValidateRequest {
                config,
                manifests,
                strict,
                output,
            })),
        }),
        Ok(_) => Err(errors),
        Err(more) => {
            errors.extend(more);
            Err(errors)
        }
    }
}

fn help(mut command: clap::Command) -> String {
    // clap leaves blanks at the ends of some lines.
    command
        .render_long_help()
        .to_string()
        .lines()
        .map(|line| format!("{}\n", line.trim_end()))
        .collect()
}

/// Every flag that has a value, with all its values; only those that were given, or the defaults, too.
fn values<'a>(
    command: &'a clap::Command,
    matches: &'a clap::ArgMatches,
    only_given: bool,
) -> impl Iterator<Item = (String, Vec<String>)> + 'a {
    command.get_arguments().filter_map(move |arg| {
        let id = arg.get_id().as_str();
        if only_given && matches.value_source(id) != Some(ValueSource::CommandLine) {
            return None;
        }
        let words = matches
            .get_raw(id)?
            .map(|word| word.to_string_lossy().into_owned());
        Some((arg.get_long()?.to_owned(), words.collect()))
    })
}

/// A value as it may be shown: a URL may hold a user and a password.
fn without_credentials(value: &str) -> String {
    let Some((scheme, rest)) = value.split_once("://") else {
        return value.to_owned();
    };
    let authority = rest.split(['/', '?', '#']).next().unwrap_or_default();
    match authority.rsplit_once('@') {
        Some((credentials, _)) => format!(
            "{scheme}://***{}",
            rest.strip_prefix(credentials).unwrap_or_default()
        ),
        None => value.to_owned(),
    }
}

impl Options {
    fn read(command: &clap::Command, matches: &clap::ArgMatches) -> Result<Self, clap::Error> {
        let mut shown: Vec<_> = values(command, matches, false)
            .map(|(flag, values)| (flag, without_credentials(&values.join(","))))
            .collect();
        shown.sort();
        Ok(Self {
            generic: FromArgMatches::from_arg_matches(matches)?,
            election: FromArgMatches::from_arg_matches(matches)?,
            migration: FromArgMatches::from_arg_matches(matches)?,
            nodes: FromArgMatches::from_arg_matches(matches)?,
            lifecycle: FromArgMatches::from_arg_matches(matches)?,
            services: FromArgMatches::from_arg_matches(matches)?,
            routes: FromArgMatches::from_arg_matches(matches)?,
            misc: FromArgMatches::from_arg_matches(matches)?,
            serving: FromArgMatches::from_arg_matches(matches)?,
            authentication: FromArgMatches::from_arg_matches(matches)?,
            authorization: FromArgMatches::from_arg_matches(matches)?,
            webhooks: FromArgMatches::from_arg_matches(matches)?,
            plan: FromArgMatches::from_arg_matches(matches)?,
            validate: FromArgMatches::from_arg_matches(matches)?,
            logging: FromArgMatches::from_arg_matches(matches)?,
            global: FromArgMatches::from_arg_matches(matches)?,
            given: values(command, matches, true).collect(),
            values: shown,
        })
    }

    /// Reads and checks all values for a binary with these providers.
    fn complete(mut self, providers: &[&'static Provider]) -> Result<Config, Vec<OptionError>> {
        let mut reader = Reader::default();
        let version = self.global.version(&mut reader);
        let provider = match self.generic.cloud_provider.as_str() {
            _ if providers.is_empty() => Err(providers::none_compiled_in()),
            "" => Err("--cloud-provider cannot be empty".to_owned()),
            name => providers::find(name, providers),
        };
        match &provider {
            Ok(chosen) => self.check_provided(chosen, providers, &mut reader),
            Err(message) => reader.refuse(message),
        }
        // Read all of them, whatever is wrong with the others.
        let chosen = provider.as_ref().ok().copied();
        table::judge(&self.given, chosen, &mut reader);
        let known = Known::new(chosen, providers);
        self.generic.check_gates(&mut reader);
        self.generic.check_content_type(&mut reader);
        let user_agent = self.generic.user_agent(&version, &mut reader);
        let mut controllers = self.generic.controllers(&known, &mut reader);
        let mut election = self.election.complete(&mut reader);
        self.migration
            .complete(election.as_mut(), &mut controllers, &known, &mut reader);
        let limit = self.generic.client_limit(&mut reader);
        let service_accounts = self.generic.service_accounts(&mut reader);
        let api_server = self.misc.api_server(limit, &mut reader);
        let node = self.nodes.complete(&self.misc, &mut reader);
        let lifecycle = self.lifecycle.complete(&mut reader);
        let service = self.services.complete(&mut reader);
        let route = self.routes.complete(&mut reader);
        let mut access = self.authentication.complete(&mut reader);
        self.authorization.complete(&mut access, &mut reader);
        let serving = self.serving.complete(access, &mut reader);
        self.webhooks.check(serving.as_ref(), &mut reader);
        let logging = self.logging.complete(&mut reader);
        let dry_run = self.plan.dry_run(&mut reader);
        let shutdown_drain = self.misc.shutdown_drain(&mut reader);
        match provider {
            Ok(provider) if reader.errors.is_empty() => Ok(Config {
                provider,
                flags: self.given,
                cloud_config: self.generic.cloud_config(),
                cluster_name: self.generic.cluster_name,
                user_agent,
                api_server,
                service_accounts,
                controllers,
                node,
                lifecycle,
                service,
                route,
                election,
                serving,
                logging,
                dry_run,
                shutdown_drain,
                version,
                values: self.values,
                warnings: reader.warnings,
            }),
            _ => Err(reader.errors),
        }
    }

    /// Checks the values of the chosen provider's flags, and that there are none of other providers.
    fn check_provided(&mut self, chosen: &Provider, providers: &[&'static Provider], reader: &mut Reader) {
        for flag in chosen.flags {
            if let Some(Err(message)) = self.given.given(flag.name).map(|values| flag.check(values)) {
                reader.refuse(message);
            }
        }
        let flags = providers.iter().flat_map(|provider| provider.flags);
        let foreign = flags.filter_map(|flag| Some((flag.name, foreign(flag, chosen, providers)?)));
        for (name, defining) in foreign.collect::<BTreeMap<_, _>>() {
            self.values.retain(|(shown, _)| shown != name);
            if self.given.given(name).is_some() {
                reader.refuse(format!(
                    "--{name}: this is a flag of the cloud provider {defining}, but --cloud-provider is {:?}",
                    chosen.name
                ));
            }
        }
    }
}

#[cfg(test)]
mod tests;
