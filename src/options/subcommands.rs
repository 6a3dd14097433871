//! Reads the flags of the sections "Plan" and "Validate": those of the subcommands.

use std::path::PathBuf;

use super::{arguments::Subcommand, flags, value::Reader};
use crate::config::{Config, OutputFormat};
use crate::validate::Manifests;

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

/// The sources of manifests, and whether warnings count as errors.
pub(super) fn manifests(subcommand: Option<Subcommand>, reader: &mut Reader) -> (Vec<Manifests>, bool) {
    let strict = reader.boolean(flags::STRICT);
    let names = reader.all(flags::SERVICES);
    if subcommand != Some(Subcommand::Validate) {
        for (flag, given) in [("services", !names.is_empty()), ("strict", strict)] {
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
    (manifests, strict)
}
