//! Flags of the section "Plan".

use clap::Args;

use super::{
    arguments::Word,
    config::Config,
    value::{Reader, non_empty},
};

#[derive(Args, Clone, Debug)]
#[command(next_help_heading = "Plan")]
pub(super) struct PlanOptions {
    /// Run on and log what would be done, at the start and whenever it changes, in place of doing it. Nothing is written,
    /// and no lease is taken, whatever --leader-elect says: it may run beside the program whose place it is to take. It
    /// serves health and metrics (ccm_dry_run_*); on the same machine give it a --secure-port of its own.
    #[arg(long, value_name = "BOOL", default_value = "false", hide_default_value = true)]
    dry_run: String,

    /// With plan: only this Service, as namespace/name, and no nodes.
    #[arg(
        long,
        value_name = "NAMESPACE/NAME",
        default_value = "",
        hide_default_value = true
    )]
    service: String,

    /// With plan and validate: text, for people, or json, for programs (docs/reference/plan.md, docs/reference/validate.md).
    /// It goes to standard output, and the log to standard error.
    #[arg(short, long, value_name = "FORM", default_value = "text")]
    output: String,
}

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

impl PlanOptions {
    pub(super) fn dry_run(&self, reader: &mut Reader) -> bool {
        reader.boolean("dry-run", &self.dry_run)
    }

    /// The only Service that is to be planned.
    pub(super) fn service(&self, word: Option<Word>, reader: &mut Reader) -> Option<(String, String)> {
        let text = non_empty(&self.service)?;
        if word != Some(Word::Plan) {
            reader
                .refuse("--service is for the word plan: write cloud-controller-manager plan --service ...");
            return None;
        }
        let parts: Vec<_> = text.split('/').collect();
        if let [namespace, name] = parts.as_slice()
            && !namespace.is_empty()
            && !name.is_empty()
        {
            return Some(((*namespace).to_owned(), (*name).to_owned()));
        }
        reader.invalid("service", text, "write namespace/name, such as default/web");
        None
    }

    /// In which form to print.
    pub(super) fn output(&self, word: Option<Word>, reader: &mut Reader) -> Output {
        if word.is_none() && self.output != "text" {
            reader.refuse(
                "--output is for the words plan and validate: write cloud-controller-manager plan --output ...",
            );
            return Output::Text;
        }
        match self.output.as_str() {
            "text" => Output::Text,
            "json" => Output::Json,
            other => {
                reader.invalid("output", other, "write text or json");
                Output::Text
            }
        }
    }
}
