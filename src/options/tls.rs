//! Limits on the TLS handshake, under the names of Go's TLS library, which manifests use.

use std::collections::BTreeSet;

use ccm_core::flags::parse_integer;
use rustls::{CipherSuite, NamedGroup, SupportedCipherSuite, crypto::aws_lc_rs};

use super::{flags, value::Reader};
use crate::config::{CertificateFiles, NamedCertificate, TlsConfig};

/// The supported suite of this name. Go's names of the suites of TLS 1.3 lack the version, and the ChaCha20 suites of TLS 1.2
/// have an older name without the hash.
fn supported(name: &str) -> Option<&'static SupportedCipherSuite> {
    let old_name = format!("{name}_SHA256");
    aws_lc_rs::ALL_CIPHER_SUITES.iter().find(|suite| {
        let known = suite.suite().as_str().unwrap_or_default();
        match suite.tls13() {
            Some(_) => known.strip_prefix("TLS13_") == name.strip_prefix("TLS_"),
            None => known == name || (name.ends_with("POLY1305") && known == old_name),
        }
    })
}

/// Weak suites of TLS 1.2 and older that other programs support. The last two lack only forward secrecy.
const WEAK: [&str; 16] = [
    "TLS_ECDHE_ECDSA_WITH_AES_128_CBC_SHA",
    "TLS_ECDHE_ECDSA_WITH_AES_128_CBC_SHA256",
    "TLS_ECDHE_ECDSA_WITH_AES_256_CBC_SHA",
    "TLS_ECDHE_ECDSA_WITH_RC4_128_SHA",
    "TLS_ECDHE_RSA_WITH_3DES_EDE_CBC_SHA",
    "TLS_ECDHE_RSA_WITH_AES_128_CBC_SHA",
    "TLS_ECDHE_RSA_WITH_AES_128_CBC_SHA256",
    "TLS_ECDHE_RSA_WITH_AES_256_CBC_SHA",
    "TLS_ECDHE_RSA_WITH_RC4_128_SHA",
    "TLS_RSA_WITH_3DES_EDE_CBC_SHA",
    "TLS_RSA_WITH_AES_128_CBC_SHA",
    "TLS_RSA_WITH_AES_128_CBC_SHA256",
    "TLS_RSA_WITH_AES_256_CBC_SHA",
    "TLS_RSA_WITH_RC4_128_SHA",
    "TLS_RSA_WITH_AES_128_GCM_SHA256",
    "TLS_RSA_WITH_AES_256_GCM_SHA384",
];

/// Numbers of key exchange methods; `None` for methods that only other programs support.
const EXCHANGES: [(i64, Option<NamedGroup>); 7] = [
    (23, Some(NamedGroup::secp256r1)),
    (24, Some(NamedGroup::secp384r1)),
    (25, None),
    (29, Some(NamedGroup::X25519)),
    (4587, Some(NamedGroup::secp256r1MLKEM768)),
    (4588, Some(NamedGroup::X25519MLKEM768)),
    (4589, None),
];

pub(super) fn tls(reader: &mut Reader) -> TlsConfig {
    TlsConfig {
        only_tls13: only_tls13(reader),
        cipher_suites: suites(reader),
        key_exchange: exchanges(reader),
    }
}

fn only_tls13(reader: &mut Reader) -> bool {
    const FLAG: &str = flags::TLS_MIN_VERSION.def.name;
    match reader.text(flags::TLS_MIN_VERSION).as_str() {
        "" | "VersionTLS12" => {}
        "VersionTLS13" => return true,
        old @ ("VersionTLS10" | "VersionTLS11") => {
            reader.warn(format!("--{FLAG}={old}: TLS 1.2 is the oldest version that this program supports"));
        }
        other => reader
            .refuse(format!("--{FLAG}: unknown tls version {other:?}: write VersionTLS12 or VersionTLS13")),
    }
    false
}

fn suites(reader: &mut Reader) -> Option<Vec<CipherSuite>> {
    const FLAG: &str = flags::TLS_CIPHER_SUITES.def.name;
    let names = reader.list(flags::TLS_CIPHER_SUITES);
    if names.is_empty() {
        return None;
    }
    let mut suites = Vec::new();
    let mut weak = Vec::new();
    for name in names {
        match supported(&name) {
            // The suites of TLS 1.3 are always offered, as elsewhere.
            Some(suite) => suites.extend(suite.tls13().is_none().then(|| suite.suite())),
            None if WEAK.contains(&name.as_str()) => weak.push(name),
            None => reader.refuse(format!("--{FLAG}: Cipher suite {name} not supported or doesn't exist")),
        }
    }
    if !weak.is_empty() {
        let rest = match suites.as_slice() {
            [] => ", so that only TLS 1.3 is left",
            _ => "",
        };
        let weak = weak.join(", ");
        reader.warn(format!("--{FLAG}: left out because they are weak: {weak}{rest}"));
    }
    Some(suites)
}

fn exchanges(reader: &mut Reader) -> Option<Vec<NamedGroup>> {
    const FLAG: &str = flags::TLS_CURVE_PREFERENCES.def.name;
    let items = reader.list(flags::TLS_CURVE_PREFERENCES);
    if items.is_empty() {
        return None;
    }
    let before = reader.errors.len();
    let mut groups = Vec::new();
    let mut left_out = Vec::new();
    let mut seen = BTreeSet::new();
    for item in items {
        let number = match parse_integer(&item) {
            Ok(number) => number,
            Err(reason) => {
                reader.invalid(flags::TLS_CURVE_PREFERENCES, &item, reason);
                continue;
            }
        };
        match EXCHANGES.iter().find(|(known, _)| *known == number) {
            _ if !seen.insert(number) => {
                reader.refuse(format!("--{FLAG}: duplicate curve preference {number}"));
            }
            Some((_, Some(group))) => groups.push(*group),
            Some((_, None)) => left_out.push(item),
            None => reader.refuse(format!(
                "--{FLAG}: curve preference {number} is not supported: write some of 23 (P-256), 24 (P-384), 29 (X25519), \
                 4587 and 4588 (with ML-KEM)"
            )),
        }
    }
    if reader.errors.len() > before {
        return None;
    }
    if groups.is_empty() {
        reader.refuse(format!(
            "--{FLAG}: none of these is supported; add one of 23 (P-256), 24 (P-384), 29 (X25519)"
        ));
        return None;
    }
    if !left_out.is_empty() {
        let left_out = left_out.join(", ");
        reader.warn(format!("--{FLAG}: left out because they are not supported: {left_out}"));
    }
    Some(groups)
}

/// The values of `--tls-sni-cert-key`: two files, separated by a comma, and names after a colon.
pub(super) fn named_certificates(reader: &mut Reader) -> Vec<NamedCertificate> {
    const FLAG: flags::Flag = flags::TLS_SNI_CERT_KEY;
    let mut named = Vec::new();
    for value in reader.all(FLAG).iter().filter(|value| !value.is_empty()) {
        let (files, names) = match value.split_once(':') {
            Some((files, names)) => (files, Some(names)),
            None => (value.as_str(), None),
        };
        let names: Vec<_> = names
            .into_iter()
            .flat_map(|names| names.split(','))
            .map(|name| name.trim().to_ascii_lowercase())
            .collect();
        if names.iter().any(String::is_empty) {
            reader.invalid(FLAG, value, "empty names list is not allowed");
            continue;
        }
        let mut files = files.split(',').map(str::trim);
        match (files.next(), files.next(), files.next()) {
            (Some(certificate), Some(key), None) if !certificate.is_empty() && !key.is_empty() => {
                let (certificate, key) = (certificate.into(), key.into());
                let files = CertificateFiles { certificate, key };
                named.push(NamedCertificate { files, names });
            }
            _ => reader.invalid(FLAG, value, "expected comma separated certificate and key file paths"),
        }
    }
    named
}

#[cfg(test)]
mod tests {
    use super::{
        super::flags::{Flag, TLS_CIPHER_SUITES, TLS_CURVE_PREFERENCES, TLS_MIN_VERSION, TLS_SNI_CERT_KEY},
        *,
    };

    fn strings(values: &[&str]) -> Vec<String> {
        values.iter().map(ToString::to_string).collect()
    }

    fn read(min_version: &str, suites: &str, curves: &str) -> (TlsConfig, Vec<String>, Vec<String>) {
        let value = |flag: Flag, value| (flag.def.name.to_owned(), strings(&[value]));
        let mut reader = Reader::new([
            value(TLS_MIN_VERSION, min_version),
            value(TLS_CIPHER_SUITES, suites),
            value(TLS_CURVE_PREFERENCES, curves),
        ]);
        let config = tls(&mut reader);
        let errors = reader.errors.iter().map(ToString::to_string).collect();
        (config, errors, reader.warnings)
    }

    #[test]
    fn nothing_given_is_the_default() {
        let (config, errors, warnings) = read("", "", "");
        assert_eq!(config, TlsConfig::default());
        assert_eq!((errors.len(), warnings.len()), (0, 0));
    }

    #[test]
    fn weak_suites_are_left_out_and_unknown_ones_refused() {
        let list =
            "TLS_AES_128_GCM_SHA256,TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256,TLS_RSA_WITH_AES_128_CBC_SHA";
        let (config, errors, warnings) = read("VersionTLS11", list, "");
        assert_eq!(
            config.cipher_suites.as_deref(),
            Some(&[CipherSuite::TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256][..])
        );
        assert_eq!(errors, [""; 0]);
        assert_eq!(
            warnings,
            [
                "--tls-min-version=VersionTLS11: TLS 1.2 is the oldest version that this program supports",
                "--tls-cipher-suites: left out because they are weak: TLS_RSA_WITH_AES_128_CBC_SHA",
            ]
        );
        let (_, errors, _) = read("TLS1.3", "TLS_NONE", "30,29,29");
        assert_eq!(
            errors[..2],
            [
                "--tls-min-version: unknown tls version \"TLS1.3\": write VersionTLS12 or VersionTLS13",
                "--tls-cipher-suites: Cipher suite TLS_NONE not supported or doesn't exist",
            ]
        );
        assert_eq!(errors.len(), 4, "{errors:?}");
    }

    #[test]
    fn at_least_one_key_exchange_is_left() {
        let (config, errors, warnings) = read("VersionTLS13", "", "25,29");
        assert!(config.only_tls13);
        assert_eq!(config.key_exchange, Some(vec![NamedGroup::X25519]));
        assert_eq!((errors.len(), warnings.len()), (0, 1), "{errors:?} {warnings:?}");
        let (_, errors, _) = read("", "", "25");
        assert!(errors[0].contains("none of these is supported"), "{errors:?}");
    }

    #[test]
    fn a_named_certificate_is_two_files_and_names() {
        let named = |values: &[&str]| {
            let values = (TLS_SNI_CERT_KEY.def.name.to_owned(), strings(values));
            let mut reader = Reader::new([values]);
            (named_certificates(&mut reader), reader.errors.len())
        };
        let (read, errors) = named(&["a.crt,a.key", "b.crt, b.key : *.Example.com, b"]);
        assert_eq!(
            read,
            [
                NamedCertificate {
                    files: CertificateFiles {
                        certificate: "a.crt".into(),
                        key: "a.key".into(),
                    },
                    names: vec![]
                },
                NamedCertificate {
                    files: CertificateFiles {
                        certificate: "b.crt".into(),
                        key: "b.key".into(),
                    },
                    names: strings(&["*.example.com", "b"]),
                },
            ]
        );
        assert_eq!(errors, 0);
        for value in [
            "a.crt",
            "a.crt,a.key,b",
            "a.crt,a.key:",
            "a.crt,a.key:a,,b",
            ",a.key",
        ] {
            assert_eq!(named(&[value]), (Vec::new(), 1), "{value}");
        }
    }
}
