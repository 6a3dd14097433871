//! Flags of the section "Plan".

use clap::Args;

use super::{
    config::Config,
    value::{Reader, non_empty},
};

#[derive(Args, Clone, Debug)]
#[command(next_help_heading = "Plan")]
pub(super) struct PlanOptions {
    /// Run on and log what would be done, at the start and whenever it changes, in place of doing it. Nothing is written,
    /// and no lease is taken, whatever --leader-elect says: it may run beside the program whose place it is to take. It
    /// serves health and metrics (ccm_dry_run_*); on the same machine give it a --secure-port of its own.
    #[arg(
        long,
        value_name = "BOOL",
        num_args = 0..=1,
        require_equals = true,
        default_value = "false",
        hide_default_value = true,
        default_missing_value = "true"
    )]
    dry_run: String,

    /// With plan: only this Service, as namespace/name, and no nodes.
    #[arg(
        long,
        value_name = "NAMESPACE/NAME",
        default_value = "",
        hide_default_value = true
    )]
    service: String,

    /// With plan: text, for people, or json, for programs (docs/reference/plan.md). It goes to standard output, and the log
    /// to standard error.
    #[arg(short, long, value_name = "FORM", default_value = "text")]
    output: String,
}

/// In which form a plan is printed.
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

    /// What is to be planned, if that is `wanted`.
    pub(super) fn request(
        &self,
        wanted: bool,
        reader: &mut Reader,
    ) -> Option<(Option<(String, String)>, Output)> {
        if !wanted {
            for (flag, given) in [
                ("service", !self.service.is_empty()),
                ("output", self.output != "text"),
            ] {
                if given {
                    reader.refuse(format!(
                        "--{flag} is for the word plan: write cloud-controller-manager plan --{flag} ..."
                    ));
                }
            }
            return None;
        }
        let service = non_empty(&self.service).and_then(|text| {
            let parts: Vec<_> = text.split('/').collect();
            if let [namespace, name] = parts.as_slice()
                && !namespace.is_empty()
                && !name.is_empty()
            {
                return Some(((*namespace).to_owned(), (*name).to_owned()));
            }
            reader.invalid("service", text, "write namespace/name, such as default/web");
            None
        });
        let output = match self.output.as_str() {
            "text" => Output::Text,
            "json" => Output::Json,
            other => {
                reader.invalid("output", other, "write text or json");
                Output::Text
            }
        };
        Some((service, output))
    }
}
