//! Flags of the section "Webhooks" that say more than that there are none yet.

use clap::Args;

use super::{config::ServingConfig, value::Reader};

#[derive(Args, Clone, Debug)]
#[command(next_help_heading = "Webhooks")]
pub(super) struct WebhookOptions {
    /// Which admission webhooks are served, written as for --controllers. Not there yet: there is none that could be
    /// named.
    #[arg(long, value_name = "LIST", default_value = "", hide_default_value = true, action = clap::ArgAction::Append)]
    webhooks: Vec<String>,

    /// The port of the webhooks' HTTPS server. 0 for no server at all. No effect yet: there are no webhooks.
    #[arg(long, value_name = "PORT", default_value = "10260")]
    webhook_secure_port: String,
}

impl WebhookOptions {
    pub(super) fn check(&self, serving: Option<&ServingConfig>, reader: &mut Reader) {
        for item in reader.list("webhooks", &self.webhooks) {
            match item.strip_prefix('-').unwrap_or(&item) {
                "*" => reader.refuse("--webhooks=*: not there yet: there are no webhooks; leave it out"),
                name => reader.refuse(format!(
                    "--webhooks: {name:?} is not in the list of known webhooks"
                )),
            }
        }
        let Some(port) = reader.integer("webhook-secure-port", &self.webhook_secure_port) else {
            return;
        };
        if !(0..=65535).contains(&port) {
            reader.refuse(format!(
                "--webhook-secure-port {port} must be between 0 and 65535, inclusive. A value of 0 disables the webhook \
                 endpoint entirely."
            ));
        }
        if serving.is_some_and(|serving| i64::from(serving.port) == port) {
            reader.refuse("--webhook-secure-port cannot be the same value as --secure-port");
        }
    }
}
