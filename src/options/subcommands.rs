//! Reads the flags of the sections "Plan" and "Validate": those of the subcommands.

use std::path::PathBuf;

use super::{arguments::Word, flags, value::Reader};
use crate::config::Config;
use crate::validate::Manifests;

/// In which form something is printed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Output {
    /// For people.
    Text,
    /// For programs.
    Json,
}

/// A question what would be done.
#[derive(Clone, Debug)]
pub struct PlanRequest {
    /// What the other flags came to.
    pub config: Config,
    /// Namespace and name of the only Service that is asked about.
    pub service: Option<(String, String)>,
    /// In which form.
    pub output: Output,
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

/// The only Service that is to be planned.
pub(super) fn service(word: Option<Word>, reader: &mut Reader) -> Option<(String, String)> {
    let text = reader.non_empty(flags::SERVICE)?;
    if word != Some(Word::Plan) {
        reader.refuse("--service is for the word plan: write cloud-controller-manager plan --service ...");
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

/// In which form to print.
pub(super) fn output(word: Option<Word>, reader: &mut Reader) -> Output {
    let output = reader.text(flags::OUTPUT);
    match output.as_str() {
        "text" => return Output::Text,
        _ if word.is_none() => reader.refuse(
            "--output is for the words plan and validate: write cloud-controller-manager plan --output ...",
        ),
        "json" => return Output::Json,
        other => reader.invalid(flags::OUTPUT, other, "write text or json"),
    }
    Output::Text
}

/// Where the manifests are, and whether warnings count as errors.
pub(super) fn manifests(word: Option<Word>, reader: &mut Reader) -> (Vec<Manifests>, bool) {
    let strict = reader.boolean(flags::STRICT);
    let names = reader.all(flags::SERVICES);
    if word != Some(Word::Validate) {
        for (flag, given) in [("services", !names.is_empty()), ("strict", strict)] {
            if given {
                reader.refuse(format!(
                    "--{flag} is for the word validate: write cloud-controller-manager validate --{flag} ..."
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
        // What was read once is read; and two readings of one file would say everything twice.
        if !manifests.contains(&source) {
            manifests.push(source);
        }
    }
    (manifests, strict)
}
