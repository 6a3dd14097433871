//! Reads the flags of the sections "Plan" and "Validate": those of the subcommands.

use std::path::PathBuf;

use super::{arguments::Subcommand, flags, value::Reader};
use crate::config::{Config, OutputFormat};
use crate::validate::{CloudAccess, Manifests};

/// A request for a plan.
#[derive(Clone, Debug)]
pub struct PlanRequest {
    /// The values of the other flags.
    pub config: Config,
    /// Namespace and name of the only Service in the plan.
    pub service: Option<(String, String)>,
    /// The format of the plan.
    pub output: OutputFormat,
}

/// A request for a validation.
#[derive(Clone, Debug)]
pub struct ValidateRequest {
    /// The values of the other flags.
    pub config: Config,
    /// The sources of manifests of Services.
    pub manifests: Vec<Manifests>,
    /// Whether warnings count as errors.
    pub strict: bool,
    /// Whether requests are sent to the cloud.
    pub cloud: CloudAccess,
    /// The format of the report.
    pub output: OutputFormat,
}

/// The only Service in the plan.
pub(super) fn service(subcommand: Option<Subcommand>, reader: &mut Reader) -> Option<(String, String)> {
    let text = reader.non_empty(flags::SERVICE)?;
    if subcommand != Some(Subcommand::Plan) {
        reader.refuse(
            "--service is for the subcommand plan: write cloud-controller-manager plan --service ...",
        );
        return None;
    }
    match text.split_once('/') {
        Some((namespace, name)) if !namespace.is_empty() && !name.is_empty() && !name.contains('/') => {
            Some((namespace.to_owned(), name.to_owned()))
        }
        _ => {
            reader.invalid(flags::SERVICE, &text, "write namespace/name, such as default/web");
            None
        }
    }
}

/// The context of the kubeconfig.
pub(super) fn context(subcommand: Option<Subcommand>, reader: &mut Reader) -> Option<String> {
    let context = reader.non_empty(flags::CONTEXT)?;
    if subcommand != Some(Subcommand::Plan) {
        reader.refuse(
            "--context is for the subcommand plan: write cloud-controller-manager plan --context ...",
        );
    }
    Some(context)
}

/// The format of the output.
pub(super) fn output(subcommand: Option<Subcommand>, reader: &mut Reader) -> OutputFormat {
    if subcommand.is_some() || reader.text(flags::OUTPUT) == "text" {
        return reader.format(flags::OUTPUT);
    }
    reader.refuse(
        "--output is for the subcommands plan and validate: write cloud-controller-manager plan --output ...",
    );
    OutputFormat::Text
}

/// What `validate` is asked for, next to the config.
pub(super) struct Validation {
    pub(super) manifests: Vec<Manifests>,
    pub(super) strict: bool,
    pub(super) cloud: CloudAccess,
}

/// The sources of manifests, whether warnings count as errors, and whether the cloud is asked.
pub(super) fn validation(subcommand: Option<Subcommand>, reader: &mut Reader) -> Validation {
    let strict = reader.boolean(flags::STRICT);
    let offline = reader.boolean(flags::OFFLINE);
    let names = reader.all(flags::SERVICES);
    if subcommand != Some(Subcommand::Validate) {
        for (flag, given) in [
            ("services", !names.is_empty()),
            ("strict", strict),
            ("offline", offline),
        ] {
            if given {
                reader.refuse(format!(
                    "--{flag} is for the subcommand validate: write cloud-controller-manager validate --{flag} ..."
                ));
            }
        }
    }
    let mut manifests = Vec::new();
    for name in names {
        let source = match name.as_str() {
            "" => {
                let why = "write the name of a file, or - for standard input";
                reader.invalid(flags::SERVICES, &name, why);
                continue;
            }
            "-" => Manifests::Stdin,
            path => Manifests::File(PathBuf::from(path)),
        };
        // Standard input can be read only once, and a file that is read twice would report everything twice.
        if !manifests.contains(&source) {
            manifests.push(source);
        }
    }
    Validation {
        manifests,
        strict,
        cloud: if offline {
            CloudAccess::Offline
        } else {
            CloudAccess::Online
        },
    }
}
