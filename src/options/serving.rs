//! Flags of the section "Secure serving".

use std::{net::IpAddr, path::PathBuf};

use clap::Args;

use super::{
    config::{Certificate, ServingConfig},
    value::{Reader, non_empty},
};

#[derive(Args, Clone, Debug)]
#[command(next_help_heading = "Secure serving")]
pub(super) struct ServingOptions {
    /// The port of the HTTPS server with /healthz, /livez, /readyz and /metrics. 0 for no server at all.
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
}

impl ServingOptions {
    pub(super) fn complete(&self, reader: &mut Reader) -> Option<ServingConfig> {
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
        })
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
