//! Flags of the section "Validate".

use std::path::PathBuf;

use clap::{ArgAction, Args};

use super::{arguments::Word, config::Config, plan::Output, value::Reader};
use crate::validate::Manifests;

#[derive(Args, Clone, Debug)]
#[command(next_help_heading = "Validate")]
pub(super) struct ValidateOptions {
    /// With validate: a file with manifests, YAML or JSON, of which the Services of type LoadBalancer are looked at; - for
    /// standard input. May be repeated.
    #[arg(long, value_name = "FILE", action = ArgAction::Append)]
    services: Vec<String>,

    /// With validate: warnings count as errors.
    #[arg(long, value_name = "BOOL", default_value = "false", hide_default_value = true)]
    strict: String,
}

/// A question what is wrong.
#[derive(Clone, Debug)]
pub struct ValidateRequest {
    /// What the other flags came to.
    pub config: Config,
    /// Where the manifests of Services are.
    pub manifests: Vec<Manifests>,
    /// Whether warnings count as errors.
    pub strict: bool,
    /// In which form.
    pub output: Output,
}

impl ValidateOptions {
    /// Where the manifests are, and whether warnings count as errors.
    pub(super) fn wanted(&self, word: Option<Word>, reader: &mut Reader) -> (Vec<Manifests>, bool) {
        let strict = reader.boolean("strict", &self.strict);
        if word != Some(Word::Validate) {
            for (flag, given) in [("services", !self.services.is_empty()), ("strict", strict)] {
                if given {
                    reader.refuse(format!(
                        "--{flag} is for the word validate: write cloud-controller-manager validate --{flag} ..."
                    ));
                }
            }
        }
        let mut manifests = Vec::new();
        for name in &self.services {
            let source = match name.as_str() {
                "" => {
                    reader.invalid(
                        "services",
                        name,
                        "write the name of a file, or - for standard input",
                    );
                    continue;
                }
                "-" => Manifests::Stdin,
                path => Manifests::File(PathBuf::from(path)),
            };
            // What was read once is read; and two readings of one file would say everything twice.
            if !manifests.contains(&source) {
                manifests.push(source);
            }
        }
        (manifests, strict)
    }
}
