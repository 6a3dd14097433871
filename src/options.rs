//! The command line, from words to a checked [`Config`].
//!
//! `flags` declares every flag, and clap renders the help. Two steps read the flags: `arguments` finds the values of each
//! flag in Go's flag dialect, and `complete` parses the values, section by section. Each step collects all problems
//! instead of stopping, so that the user sees them at once.

mod arguments;
mod controller_settings;
mod controllers;
mod election;
mod flags;
mod gates;
mod generic;
mod global;
mod help;
mod logging;
mod migration;
mod serving;
mod subcommands;
mod tls;
mod value;

use std::{collections::BTreeMap, ffi::OsString};

use ccm_core::{FlagDef, FlagValues, Provider};
use clap::Arg;

pub use crate::config::{
    AccessConfig, ApiServerConfig, Certificate, CertificateFiles, ClientLimit, Config, ControllerLeader,
    Controllers, ElectionConfig, LifecycleConfig, LoggingConfig, MigrationConfig, ModuleVerbosity,
    NamedCertificate, NodeConfig, OrphanConfig, OutputFormat, RouteConfig, ServiceConfig, ServingConfig,
    TlsConfig,
};
pub use subcommands::{PlanRequest, ValidateRequest};

pub use crate::validate::{CloudAccess, Manifests};

use crate::providers;
use arguments::{Arguments, Subcommand};
use controllers::Known;
use value::Reader;

/// A problem of the command line, for the user.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct OptionError(String);

impl OptionError {
    fn new(message: impl Into<String>) -> Self {
        Self(message.into())
    }
}

/// The request of the command line.
#[derive(Debug)]
pub enum Request {
    /// Run.
    Run(Box<Config>),
    /// Print what a run would do.
    Plan(Box<PlanRequest>),
    /// Print the problems of config, cloud and manifests.
    Validate(Box<ValidateRequest>),
    /// Print this text on standard output and end.
    Print(String),
}

/// The definition of all flags of a binary with these providers.
#[must_use]
pub fn command(providers: &[&'static Provider]) -> clap::Command {
    let mut command =
        help::page(help::ABOUT, help::USAGE, help::AFTER_HELP).args(flags::ALL.iter().map(flags::Flag::arg));
    for flag in providers.iter().flat_map(|provider| provider.flags) {
        // Several providers may have a flag, and the framework accepts some.
        if !command.get_arguments().any(|known| known.get_id() == flag.name) {
            let section = format!("Provider {}", defining(flag.name, providers).join(", "));
            command = command.arg(flags::arg(flag, section, flag.help.to_owned()));
        }
    }
    command.mut_arg(flags::CONTROLLERS.def.name, |arg| {
        let names = controllers::names(providers);
        let help = arg.get_help().map(ToString::to_string).unwrap_or_default();
        arg.help(format!("{help}. Names: {names}"))
    })
}

/// The providers, if none of them defines a flag that the framework has already. A flag that is only accepted may be
/// defined again.
///
/// # Errors
/// The flag that is taken.
pub fn without_taken_flags(providers: Vec<&'static Provider>) -> Result<Vec<&'static Provider>, String> {
    for provider in &providers {
        for flag in provider.flags {
            let is_known = flags::ALL.iter().any(|known| known.def.name == flag.name);
            if is_known && !flags::accepts(flag.name) {
                return Err(format!(
                    "the cloud provider {} defines {:?}, which belongs to the framework; choose another name",
                    provider.name, flag.name
                ));
            }
        }
    }
    Ok(providers)
}

/// The names of the providers that define this flag.
fn defining(flag: &str, providers: &[&'static Provider]) -> Vec<&'static str> {
    let defining = providers.iter().filter(|provider| provider.flags.iter().any(|known| known.name == flag));
    defining.map(|provider| provider.name).collect()
}

/// The providers that define this flag, unless the chosen one or the framework has it, too.
fn foreign(flag: &FlagDef, chosen: &Provider, providers: &[&'static Provider]) -> Option<String> {
    let defining = defining(flag.name, providers);
    (!defining.contains(&chosen.name) && !flags::accepts(flag.name)).then(|| defining.join(", "))
}

/// Reads the command line, the program's name left out, for a binary with these providers.
///
/// # Errors
/// All problems of it.
pub fn parse(
    words: impl IntoIterator<Item = OsString>,
    providers: &[&'static Provider],
) -> Result<Request, Vec<OptionError>> {
    parse_with(words, providers, None, |_| Vec::new())
}

/// As [`parse`]. `implied`: the provider without `--cloud-provider`. `more`: further problems, which are reported together with
/// those of the command line.
pub(crate) fn parse_with(
    words: impl IntoIterator<Item = OsString>,
    providers: &[&'static Provider],
    implied: Option<&str>,
    more: impl FnOnce(&Config) -> Vec<String>,
) -> Result<Request, Vec<OptionError>> {
    let mut command = command(providers);
    let Arguments {
        given,
        help_requested,
        subcommand,
        has_unknown_words,
        mut errors,
    } = arguments::read(&command, words);
    if let Some(form) = help_requested {
        return Ok(Request::Print(help::text(command, subcommand, form)));
    }
    if has_unknown_words && given.is_empty() {
        // Not a run: missing flags are no problem of a wrong subcommand.
        return Err(errors);
    }
    // Gives its default to each flag.
    command.build();
    let mut values: BTreeMap<_, _> = command.get_arguments().filter_map(default).collect();
    values.extend(given.clone());
    let shown = values
        .iter()
        .map(|(flag, values)| (flag.clone(), without_credentials(&values.join(","))))
        .collect();
    let mut reader = Reader::new(values);
    if errors.is_empty()
        && let Some(answer) = global::answer(&reader, providers)
    {
        return answer.map(Request::Print).map_err(|error| vec![error]);
    }
    let output = subcommands::output(subcommand, &mut reader);
    let service = subcommands::service(subcommand, &mut reader);
    let context = subcommands::context(subcommand, &mut reader);
    let validation = subcommands::validation(subcommand, &mut reader);
    let config = complete(given.into_iter().collect(), shown, implied, providers, &mut reader);
    errors.append(&mut reader.errors);
    let mut config = match config {
        Some(config) if errors.is_empty() => config,
        config => {
            // After a wrong subcommand, problems of the files that a run needs would mislead.
            if !has_unknown_words && let Some(config) = &config {
                errors.extend(more(config).into_iter().map(OptionError));
            }
            return Err(errors);
        }
    };
    config.api_server.context = context;
    Ok(match subcommand {
        None => Request::Run(Box::new(config)),
        Some(Subcommand::Plan) => Request::Plan(Box::new(PlanRequest {
            config,
            service,
            output,
        })),
        Some(Subcommand::Validate) => Request::Validate(Box::new(ValidateRequest {
            config,
            manifests: validation.manifests,
            strict: validation.strict,
            cloud: validation.cloud,
            output,
        })),
    })
}

/// The name of a flag and its default, if it has one.
fn default(flag: &Arg) -> Option<(String, Vec<String>)> {
    let values: Vec<_> = flag
        .get_default_values()
        .iter()
        .map(|value| value.to_string_lossy().into_owned())
        .collect();
    (!values.is_empty()).then(|| (flag.get_id().to_string(), values))
}

/// A value without credentials: a URL may contain a user and a password, and `--master` needs no scheme.
fn without_credentials(value: &str) -> String {
    let scheme = value.find("://").map_or(0, |at| at + 3);
    let (scheme, rest) = value.split_at_checked(scheme).unwrap_or_default();
    let authority = rest.split(['/', '?', '#']).next().unwrap_or_default();
    match authority.rsplit_once('@') {
        Some((user, _)) if !scheme.is_empty() || user.contains(':') => {
            format!("{scheme}{}", rest.replacen(user, "***", 1))
        }
        _ => value.to_owned(),
    }
}

/// Reads and checks all values. `None` with errors.
fn complete(
    given: FlagValues,
    mut values: Vec<(String, String)>,
    implied: Option<&str>,
    providers: &[&'static Provider],
    reader: &mut Reader,
) -> Option<Config> {
    let version = global::version(reader);
    let name = reader.non_empty(flags::CLOUD_PROVIDER);
    let provider = providers::find(name.as_deref().or(implied).unwrap_or_default(), providers);
    match &provider {
        Ok(chosen) => check_provided(chosen, &given, &mut values, providers, reader),
        Err(message) => reader.refuse(message),
    }
    // All flags are read, whatever problems the others have.
    let chosen = provider.as_ref().ok().copied();
    flags::check_accepted(&given, chosen, reader);
    gates::check(reader);
    generic::check_content_type(reader);
    let user_agent = generic::user_agent(&version, reader);
    let known = Known::new(chosen, providers);
    let mut controllers = known.select(reader);
    let mut election = election::election(reader);
    migration::migration(election.as_mut(), &mut controllers, &known, reader);
    let limit = generic::client_limit(reader);
    Some(Config {
        user_agent,
        service_accounts: reader.boolean(flags::USE_SERVICE_ACCOUNT_CREDENTIALS),
        api_server: generic::api_server(limit, reader),
        node: controller_settings::node(reader),
        lifecycle: controller_settings::lifecycle(reader),
        service: controller_settings::service(reader),
        route: controller_settings::route(reader),
        serving: serving::serving(chosen.is_some_and(|chosen| chosen.client_ca_is_optional), reader),
        logging: logging::logging(reader),
        dry_run: reader.boolean(flags::DRY_RUN),
        shutdown_drain: reader.duration(flags::SHUTDOWN_DRAIN),
        cloud_config: reader.path(flags::CLOUD_CONFIG),
        cluster_name: reader.text(flags::CLUSTER_NAME),
        provider: provider.ok()?,
        flags: given,
        controllers,
        election,
        version,
        values,
        warnings: std::mem::take(&mut reader.warnings),
    })
}

/// Checks the values of the chosen provider's flags, and that there are none of other providers.
fn check_provided(
    chosen: &Provider,
    given: &FlagValues,
    values: &mut Vec<(String, String)>,
    providers: &[&'static Provider],
    reader: &mut Reader,
) {
    for flag in chosen.flags {
        if let Some(Err(message)) = given.given(flag.name).map(|values| flag.check(values)) {
            reader.refuse(message);
        }
    }
    let flags = providers.iter().flat_map(|provider| provider.flags);
    let foreign = flags.filter_map(|flag| Some((flag.name, foreign(flag, chosen, providers)?)));
    for (name, defining) in foreign.collect::<BTreeMap<_, _>>() {
        values.retain(|(shown, _)| shown != name);
        if given.given(name).is_some() {
            reader.refuse(format!(
                "--{name}: this is a flag of the cloud provider {defining}, but --cloud-provider is {:?}",
                chosen.name
            ));
        }
    }
}

#[cfg(test)]
mod tests;
