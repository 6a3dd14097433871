//! Reads the flags of the sections "Secure serving", "Authentication", "Authorization" and "Webhooks".

use std::net::IpAddr;

use super::{flags, tls, value::Reader};
use crate::config::{AccessConfig, Certificate, CertificateFiles, ServingConfig};

/// HTTP/2 requests at once on one connection, unless a number is given.
const MAX_STREAMS: u32 = 32;

/// `None` if there is no server; its other flags are checked all the same.
pub(super) fn serving(reader: &mut Reader) -> Option<ServingConfig> {
    let access = access(reader);
    let named_certificates = tls::named_certificates(reader);
    let tls = tls::tls(reader);
    let http2_max_streams = http2_max_streams(reader);
    let share_port = reader.boolean(flags::PERMIT_PORT_SHARING);
    reader.boolean(flags::PERMIT_ADDRESS_SHARING);
    let bind_address = reader.address(flags::BIND_ADDRESS);
    let certificate = certificate(reader);
    let must = "must be between 0 and 65535, inclusive. 0 for turning off secure port";
    let port = reader.number(flags::SECURE_PORT, must).filter(|port| *port != 0);
    check_webhooks(port, reader);
    Some(ServingConfig {
        bind_address: bind_address.unwrap_or(IpAddr::from([127, 0, 0, 1])),
        port: port?,
        certificate,
        named_certificates,
        tls,
        http2_max_streams,
        share_port,
        access,
    })
}

fn http2_max_streams(reader: &mut Reader) -> Option<u32> {
    const FLAG: flags::Flag = flags::HTTP2_MAX_STREAMS_PER_CONNECTION;
    let disabled = reader.boolean(flags::DISABLE_HTTP2_SERVING);
    let number = reader.integer(FLAG)?;
    match u32::try_from(number) {
        Ok(_) if disabled => None,
        Ok(0) => Some(MAX_STREAMS),
        Ok(streams) => Some(streams),
        Err(_) => {
            let text = reader.text(FLAG);
            reader.invalid(FLAG, &text, format!("it must be between 0 and {}", u32::MAX));
            None
        }
    }
}

fn certificate(reader: &mut Reader) -> Certificate {
    let (given, missing) = match (
        reader.path(flags::TLS_CERT_FILE),
        reader.path(flags::TLS_PRIVATE_KEY_FILE),
    ) {
        (Some(certificate), Some(key)) => {
            return Certificate::Files(CertificateFiles { certificate, key });
        }
        (None, None) => {
            let folder = reader.path(flags::CERT_DIR);
            return folder.map_or(Certificate::InMemory, Certificate::Directory);
        }
        (Some(_), None) => ("--tls-cert-file", "--tls-private-key-file"),
        (None, Some(_)) => ("--tls-private-key-file", "--tls-cert-file"),
    };
    reader.refuse(format!("{given} is given without {missing}; they go together"));
    Certificate::InMemory
}

/// Who a client is, and what it may see.
fn access(reader: &mut Reader) -> AccessConfig {
    AccessConfig {
        authentication_kubeconfig: reader.path(flags::AUTHENTICATION_KUBECONFIG),
        token_ttl: reader.duration(flags::AUTHENTICATION_TOKEN_WEBHOOK_CACHE_TTL),
        skip_lookup: reader.boolean(flags::AUTHENTICATION_SKIP_LOOKUP),
        tolerate_lookup_failure: reader.boolean(flags::AUTHENTICATION_TOLERATE_LOOKUP_FAILURE),
        client_authorities: reader.path(flags::CLIENT_CA_FILE),
        authorization_kubeconfig: reader.path(flags::AUTHORIZATION_KUBECONFIG),
        allowed_ttl: reader.duration(flags::AUTHORIZATION_WEBHOOK_CACHE_AUTHORIZED_TTL),
        denied_ttl: reader.duration(flags::AUTHORIZATION_WEBHOOK_CACHE_UNAUTHORIZED_TTL),
        open_paths: reader.list(flags::AUTHORIZATION_ALWAYS_ALLOW_PATHS),
    }
}

/// There are no webhooks yet.
fn check_webhooks(secure_port: Option<u16>, reader: &mut Reader) {
    for item in reader.list(flags::WEBHOOKS) {
        match item.strip_prefix('-').unwrap_or(&item) {
            "*" => reader.refuse("--webhooks=*: not there yet: there are no webhooks; leave it out"),
            name => reader.refuse(format!(
                "--webhooks: {name:?} is not in the list of known webhooks"
            )),
        }
    }
    let must = "must be between 0 and 65535, inclusive. A value of 0 disables the webhook endpoint entirely.";
    let port = reader.number::<u16>(flags::WEBHOOK_SECURE_PORT, must);
    if port.is_some() && port == secure_port {
        reader.refuse("--webhook-secure-port cannot be the same value as --secure-port");
    }
}
