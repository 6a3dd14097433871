//! Reads the flags of the sections "Secure serving", "Authentication", "Authorization" and "Webhooks".

use std::net::{IpAddr, SocketAddr};

use super::{flags, tls, value::Reader};
use crate::config::{AccessConfig, Certificate, CertificateFiles, ServingConfig};

/// HTTP/2 requests at once on one connection, unless a number is given.
const MAX_STREAMS: u32 = 32;

/// `None` if there is no server. All flags are checked in any case. `optional_ca`: see
/// [`Provider`](ccm_core::Provider::client_ca_is_optional).
pub(super) fn serving(optional_ca: bool, reader: &mut Reader) -> Option<ServingConfig> {
    let mut config = ServingConfig {
        access: access(optional_ca, reader),
        named_certificates: tls::named_certificates(reader),
        tls: tls::tls(reader),
        http2_max_streams: http2_max_streams(reader),
        share_port: reader.boolean(flags::PERMIT_PORT_SHARING),
        address: SocketAddr::new(
            reader.address(flags::BIND_ADDRESS).unwrap_or(IpAddr::from([127, 0, 0, 1])),
            0,
        ),
        certificate: certificate(reader),
    };
    let must = "must be between 0 and 65535, inclusive. 0 for turning off secure port";
    let port = reader.number(flags::SECURE_PORT, must).filter(|port| *port != 0);
    check_webhooks(port, reader);
    config.address.set_port(port?);
    Some(config)
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
            let why = format!("it must be between 0 and {}", u32::MAX);
            reader.invalid(FLAG, &number.to_string(), why);
            None
        }
    }
}

fn certificate(reader: &mut Reader) -> Certificate {
    let certificate = reader.path(flags::TLS_CERT_FILE);
    match (certificate, reader.path(flags::TLS_PRIVATE_KEY_FILE)) {
        (Some(certificate), Some(key)) => {
            return Certificate::Files(CertificateFiles { certificate, key });
        }
        (Some(_), None) => {
            reader.refuse("--tls-cert-file is given without --tls-private-key-file; give both");
        }
        (None, Some(_)) => {
            reader.refuse("--tls-private-key-file is given without --tls-cert-file; give both");
        }
        (None, None) => {}
    }
    let folder = reader.path(flags::CERT_DIR);
    folder.map_or(Certificate::InMemory, Certificate::Directory)
}

/// Authentication and authorization of clients.
fn access(optional_ca: bool, reader: &mut Reader) -> AccessConfig {
    AccessConfig {
        authentication_kubeconfig: reader.path(flags::AUTHENTICATION_KUBECONFIG),
        token_ttl: reader.duration(flags::AUTHENTICATION_TOKEN_WEBHOOK_CACHE_TTL),
        skip_lookup: reader.boolean(flags::AUTHENTICATION_SKIP_LOOKUP),
        tolerate_lookup_failure: reader.boolean(flags::AUTHENTICATION_TOLERATE_LOOKUP_FAILURE) || optional_ca,
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
            "*" => reader.refuse("--webhooks=*: not implemented: there are no webhooks; leave it out"),
            name => reader.refuse(format!("--webhooks: {name:?} is not in the list of known webhooks")),
        }
    }
    let must = "must be between 0 and 65535, inclusive. A value of 0 disables the webhook endpoint entirely.";
    let port = reader.number::<u16>(flags::WEBHOOK_SECURE_PORT, must);
    if port.is_some() && port == secure_port {
        reader.refuse("--webhook-secure-port cannot be the same value as --secure-port");
    }
}
