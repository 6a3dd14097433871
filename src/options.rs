//! The command line, from words to a checked [`Config`].
//!
//! Three steps: `arguments` turns Go's flag dialect into a plain one, clap (the sections in this folder, one file for
//! each section of `--help`) says which flags there are, and `complete` reads the values. Each step collects what is
//! wrong instead of stopping, and the user sees all of it at once. clap holds every value as text for that reason.

mod arguments;
mod config;
mod controllers;
mod generic;
mod global;
mod logging;
mod misc;
mod serving;
mod value;

use std::{ffi::OsString, fmt, time::Duration};

use ccm_core::Provider;
use clap::{Args, CommandFactory, FromArgMatches, Parser};

pub use config::{
    ApiServerConfig, Certificate, ClientLimit, Config, Controllers, ElectionConfig, LifecycleConfig,
    LogFormat, LoggingConfig, NodeConfig, ServingConfig,
};

use crate::providers;
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
    /// To print this on standard output and end.
    Print(String),
}

/// All flags as they were given. [`Options::complete`] reads their values.
#[derive(Args, Clone, Debug)]
pub struct Options {
    #[command(flatten)]
    generic: generic::GenericOptions,
    #[command(flatten)]
    controllers: controllers::ControllerOptions,
    #[command(flatten)]
    misc: misc::MiscOptions,
    #[command(flatten)]
    serving: serving::ServingOptions,
    #[command(flatten)]
    logging: logging::LoggingOptions,
    #[command(flatten)]
    global: global::GlobalOptions,
    /// Every flag with its value, for the log.
    #[arg(skip)]
    values: Vec<(String, String)>,
}

/// Connects a Kubernetes cluster to its cloud.
#[derive(Parser, Debug)]
#[command(
    name = "cloud-controller-manager",
    about = "Connects a Kubernetes cluster to its cloud: gives new nodes their cloud addresses, provider ID, zone, region \
             and type, and keeps them up to date.",
    override_usage = "cloud-controller-manager --cloud-provider <NAME> [--cloud-config <FILE>] [FLAGS]",
    after_help = AFTER_HELP,
    // Our own forms of these, as Go has them.
    disable_version_flag = true,
    disable_help_flag = true,
    args_override_self = true,
    max_term_width = 100
)]
struct CommandLine {
    #[command(flatten)]
    options: Options,
}

/// No line is longer than 98 characters, or clap would break it on an ordinary terminal.
const AFTER_HELP: &str = "\
Writing flags:
  `_` may stand for `-` in a flag's name. A boolean takes its value after `=`: --x, --x=true,
  --x=false. A duration is a number with a unit (ms, s, m, h), or several: 90s, 1m30s. If a flag is
  given twice, the last one counts, except where it may be repeated. All mistakes are reported
  together, with exit code 1.

Where this program differs from other cloud-controller-managers on purpose:
  --kube-api-qps           no limit unless given: the API server's own flow control decides
  --concurrent-node-syncs  32 instead of 1: the cloud is asked for many nodes at once

Examples:
  In a pod of the cluster:
    cloud-controller-manager --cloud-provider=openstack --cloud-config=/etc/config/cloud.conf
  From outside of it, with more to read:
    cloud-controller-manager --cloud-provider=openstack --kubeconfig=admin.conf -v=4
  Which keys may stand in the config file:
    cloud-controller-manager --cloud-provider=openstack --help-cloud-config
";

/// The definition of all flags.
#[must_use]
pub fn command() -> clap::Command {
    CommandLine::command()
}

/// Reads the command line, the program's name left out, for a binary with these providers.
///
/// # Errors
/// Everything that is wrong with it.
pub fn parse(
    words: impl IntoIterator<Item = OsString>,
    providers: &[&'static Provider],
) -> Result<Request, Vec<OptionError>> {
    let arguments = arguments::normalise(&command(), words);
    if arguments.help {
        return Ok(Request::Print(help()));
    }
    let mut errors = arguments.errors;
    let program = command().get_name().to_owned();
    // What is left are known flags with values, so that clap has nothing more to complain about.
    let words = std::iter::once(program).chain(arguments.flags);
    let options = command().try_get_matches_from(words).and_then(|matches| {
        let mut options = Options::from_arg_matches(&matches)?;
        options.values = given_values(&matches);
        Ok(options)
    });
    let options = match options {
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
    match options.complete(providers) {
        Ok(config) if errors.is_empty() => Ok(Request::Run(Box::new(config))),
        Ok(_) => Err(errors),
        Err(more) => {
            errors.extend(more);
            Err(errors)
        }
    }
}

fn help() -> String {
    // clap leaves blanks at the ends of some lines.
    command()
        .render_long_help()
        .to_string()
        .lines()
        .map(|line| format!("{}\n", line.trim_end()))
        .collect()
}

fn given_values(matches: &clap::ArgMatches) -> Vec<(String, String)> {
    let mut values: Vec<(String, String)> = command()
        .get_arguments()
        .filter_map(|arg| {
            let words: Vec<_> = matches
                .get_raw(arg.get_id().as_str())?
                .map(|word| word.to_string_lossy())
                .collect();
            Some((arg.get_long()?.to_owned(), words.join(",")))
        })
        .collect();
    values.sort();
    values
}

impl Options {
    /// Reads and checks all values for a binary with these providers.
    ///
    /// # Errors
    /// Everything that is wrong with them.
    pub fn complete(self, providers: &[&'static Provider]) -> Result<Config, Vec<OptionError>> {
        let mut reader = Reader::default();
        let version = self.global.version(&mut reader);
        let provider = match self.generic.cloud_provider.as_str() {
            _ if providers.is_empty() => Err(providers::none_compiled_in()),
            "" => Err("--cloud-provider cannot be empty".to_owned()),
            name => providers::find(name, providers),
        };
        if let Err(message) = &provider {
            reader.refuse(message);
        }
        // Read all of them, whatever is wrong with the others.
        let user_agent = self.generic.user_agent(&version, &mut reader);
        let limit = self.generic.client_limit(&mut reader);
        let api_server = self.misc.api_server(limit, &mut reader);
        let node = self.controllers.complete(&self.misc, &mut reader);
        let serving = self.serving.complete(&mut reader);
        let logging = self.logging.complete(&mut reader);
        let shutdown_drain = self.misc.shutdown_drain(&mut reader);
        match provider {
            Ok(provider) if reader.errors.is_empty() => Ok(Config {
                provider,
                cloud_config: self.generic.cloud_config(),
                cluster_name: self.generic.cluster_name,
                user_agent,
                api_server,
                controllers: Controllers::default(),
                node,
                lifecycle: LifecycleConfig {
                    monitor_period: Duration::from_secs(5),
                    deletion_grace: Duration::from_secs(120),
                    deletion_confirm: Duration::from_secs(10),
                    deletion_share: 0.25,
                },
                election: Some(ElectionConfig {
                    lease_duration: Duration::from_secs(15),
                    renew_deadline: Duration::from_secs(10),
                    retry_period: Duration::from_secs(2),
                    name: "cloud-controller-manager".to_owned(),
                    namespace: "kube-system".to_owned(),
                }),
                serving,
                logging,
                shutdown_drain,
                version,
                values: self.values,
            }),
            _ => Err(reader.errors),
        }
    }
}

#[cfg(test)]
mod tests;
