//! Flags of the section "Secure serving".

use std::{net::IpAddr, path::PathBuf};

use clap::Args;

use super::{
    config::{AccessConfig, Certificate, ServingConfig},
    tls,
    value::{Reader, non_empty},
};

/// HTTP/2 requests at once on one connection, unless a number is given.
const MAX_STREAMS: u32 = 32;

#[derive(Args, Clone, Debug)]
#[command(next_help_heading = "Secure serving")]
pub(super) struct ServingOptions {
    /// The port of the HTTPS server with /healthz, /livez, /readyz, /metrics and /statusz. 0 for no server at
    /// all.
    #[arg(long, value_name = "PORT", default_value = "10258")]
    secure_port: String,

    /// The IP address of the HTTPS server. 0.0.0.0 and :: stand for all interfaces and for IPv4 and IPv6 alike.
    #[arg(long, value_name = "IP", default_value = "0.0.0.0")]
    bind_address: String,

    /// The file with the HTTPS server's certificate (PEM; intermediate certificates after it). Read again when it changes.
    /// Without it a self-signed certificate is made.
    #[arg(long, value_name = "FILE", default_value = "", hide_default_value = true)]
    tls_cert_file: String,

    /// The file with the private key of --tls-cert-file (PEM).
    #[arg(long, value_name = "FILE", default_value = "", hide_default_value = true)]
    tls_private_key_file: String,

    /// The folder where the self-signed certificate is kept, as cloud-controller-manager.crt and .key, and used again after
    /// a restart. Without it the certificate lives in memory. No effect with --tls-cert-file.
    #[arg(long, value_name = "FOLDER", default_value = "", hide_default_value = true)]
    cert_dir: String,

    /// A further certificate and its key, and after a colon the names that it is for, separated by commas, *. in front for
    /// all names one level below; without names those in the certificate. Clients that ask for such a name get it. Read
    /// again when it changes. May be repeated.
    #[arg(
        long,
        value_name = "CERT,KEY[:NAMES]",
        default_value = "",
        hide_default_value = true,
        action = clap::ArgAction::Append
    )]
    tls_sni_cert_key: Vec<String>,

    /// The oldest version of TLS that is spoken: VersionTLS12 or VersionTLS13. Unless given, TLS 1.2. Older ones are not
    /// spoken; they are accepted here with a warning.
    #[arg(long, value_name = "VERSION", default_value = "", hide_default_value = true)]
    tls_min_version: String,

    /// The cipher suites for TLS 1.2, by their usual names; those of TLS 1.3 are always offered. Unless given, all that are
    /// safe. Weak ones are left out with a warning.
    #[arg(long, value_name = "LIST", default_value = "", hide_default_value = true, action = clap::ArgAction::Append)]
    tls_cipher_suites: Vec<String>,

    /// The key exchange methods, by number: 23 (P-256), 24 (P-384), 29 (X25519), 4587 and 4588 (with ML-KEM). Unless given,
    /// the usual ones.
    #[arg(long, value_name = "NUMBERS", default_value = "", hide_default_value = true, action = clap::ArgAction::Append)]
    tls_curve_preferences: Vec<String>,

    /// Speak HTTP/1.1 only.
    #[arg(long, value_name = "BOOL", default_value = "false")]
    disable_http2_serving: String,

    /// How many HTTP/2 requests may run at once on one connection; 0 for 32.
    #[arg(long, value_name = "NUMBER", default_value = "0")]
    http2_max_streams_per_connection: String,

    /// Let other processes listen on the same port, too; each gets a part of the connections (SO_REUSEPORT).
    #[arg(long, value_name = "BOOL", default_value = "false")]
    permit_port_sharing: String,

    /// Listen on a port that old connections are still bound to (SO_REUSEADDR). That is always so: a restart would have to
    /// wait otherwise.
    #[arg(long, value_name = "BOOL", default_value = "false")]
    permit_address_sharing: String,
}

impl ServingOptions {
    /// `None` if there is no server; its other flags are checked all the same.
    pub(super) fn complete(&self, access: AccessConfig, reader: &mut Reader) -> Option<ServingConfig> {
        let named_certificates = tls::named_certificates(&self.tls_sni_cert_key, reader);
        let tls = tls::complete(
            &self.tls_min_version,
            &self.tls_cipher_suites,
            &self.tls_curve_preferences,
            reader,
        );
        let http2_max_streams = self.http2_max_streams(reader);
        let share_port = reader.boolean("permit-port-sharing", &self.permit_port_sharing);
        reader.boolean("permit-address-sharing", &self.permit_address_sharing);
        let bind_address = reader.address("bind-address", &self.bind_address);
        let certificate = self.certificate(reader);
        let port = reader.integer("secure-port", &self.secure_port).and_then(|number| {
            let port = u16::try_from(number).ok();
            if port.is_none() {
                reader.refuse(format!(
                    "--secure-port {number} must be between 0 and 65535, inclusive. 0 for turning off secure port"
                ));
            }
            port
        });
        let port = port.filter(|port| *port != 0)?;
        Some(ServingConfig {
            bind_address: bind_address.unwrap_or(IpAddr::from([127, 0, 0, 1])),
            port,
            certificate,
            named_certificates,
            tls,
            http2_max_streams,
            share_port,
            access,
        })
    }

    fn http2_max_streams(&self, reader: &mut Reader) -> Option<u32> {
        const FLAG: &str = "http2-max-streams-per-connection";
        let disabled = reader.boolean("disable-http2-serving", &self.disable_http2_serving);
        let text = &self.http2_max_streams_per_connection;
        let number = reader.integer(FLAG, text)?;
        match u32::try_from(number) {
            Ok(_) if disabled => None,
            Ok(0) => Some(MAX_STREAMS),
            Ok(streams) => Some(streams),
            Err(_) => {
                reader.invalid(FLAG, text, format!("it must be between 0 and {}", u32::MAX));
                None
            }
        }
    }

    fn certificate(&self, reader: &mut Reader) -> Certificate {
        match (
            non_empty(&self.tls_cert_file),
            non_empty(&self.tls_private_key_file),
        ) {
            (Some(certificate), Some(key)) => Certificate::Files {
                certificate: certificate.into(),
                key: key.into(),
            },
            (None, None) => match non_empty(&self.cert_dir) {
                Some(folder) => Certificate::Directory(PathBuf::from(folder)),
                None => Certificate::InMemory,
            },
            (certificate, _) => {
                let (given, missing) = match certificate {
                    Some(_) => ("--tls-cert-file", "--tls-private-key-file"),
                    None => ("--tls-private-key-file", "--tls-cert-file"),
                };
                reader.refuse(format!("{given} is given without {missing}; they go together"));
                Certificate::InMemory
            }
        }
    }
}
