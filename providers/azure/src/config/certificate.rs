//! The certificate of a service principal, from a PEM or a PKCS#12 file.

use std::{fmt, sync::Arc};

use aws_lc_rs::{
    digest,
    rand::SystemRandom,
    signature::{RSA_PKCS1_SHA256, RsaKeyPair},
};
use base64::{
    Engine as _,
    engine::general_purpose::{STANDARD, URL_SAFE_NO_PAD},
};
use ccm_core::{Error, ErrorKind, Result};
use p12_keystore::{KeyStore, Pkcs12ImportPolicy};
use rustls::pki_types::{CertificateDer, PrivateKeyDer, pem::PemObject};
use serde_json::json;

/// A certificate with its private key, which signs login requests.
#[derive(Clone)]
pub(crate) struct Certificate {
    key: Arc<RsaKeyPair>,
    /// The certificates, the own one first.
    chain: Vec<Vec<u8>>,
}

impl PartialEq for Certificate {
    fn eq(&self, other: &Self) -> bool {
        self.chain == other.chain
    }
}

impl fmt::Debug for Certificate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Certificate")
            .field("certificates", &self.chain.len())
            .finish_non_exhaustive()
    }
}

impl Certificate {
    /// Reads certificates and private key from a PEM file, or from a PKCS#12 file with this password.
    ///
    /// # Errors
    /// The text for the user: one of them is missing or cannot be used.
    pub(crate) fn parse(file: &[u8], password: &str) -> Result<Self, String> {
        if CertificateDer::pem_slice_iter(file).next().is_some()
            || PrivateKeyDer::from_pem_slice(file).is_ok()
        {
            Self::parse_pem(file)
        } else {
            Self::parse_pkcs12(file, password)
        }
    }

    fn parse_pem(pem: &[u8]) -> Result<Self, String> {
        let chain: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(pem).collect();
        let chain: Vec<Vec<u8>> =
            chain.map_err(|error| error.to_string())?.iter().map(|der| der.to_vec()).collect();
        if chain.is_empty() {
            return Err("contains no PEM certificate beside the private key".to_owned());
        }
        let key = match PrivateKeyDer::from_pem_slice(pem) {
            Ok(PrivateKeyDer::Pkcs8(der)) => RsaKeyPair::from_pkcs8(der.secret_pkcs8_der()),
            Ok(PrivateKeyDer::Pkcs1(der)) => RsaKeyPair::from_der(der.secret_pkcs1_der()),
            _ => return Err("contains no private key in PEM".to_owned()),
        };
        let key = key.map_err(|_| "the private key is not an RSA key without a password".to_owned())?;
        Ok(Self {
            key: Arc::new(key),
            chain,
        })
    }

    fn parse_pkcs12(file: &[u8], password: &str) -> Result<Self, String> {
        let store =
            KeyStore::from_pkcs12(file, password, Pkcs12ImportPolicy::Strict).map_err(
                |error| match error {
                    p12_keystore::error::Error::MacError(_) => {
                        "the PKCS#12 file has another password; write it to aadClientCertPassword".to_owned()
                    }
                    other => format!("contains no PEM certificate, and is no PKCS#12 file: {other}"),
                },
            )?;
        let Some((_, chain)) = store.private_key_chain() else {
            return Err("the PKCS#12 file contains no private key with its certificate".to_owned());
        };
        let key = RsaKeyPair::from_pkcs8(chain.key().as_der())
            .map_err(|_| "the private key in the PKCS#12 file is not an RSA key".to_owned())?;
        Ok(Self {
            key: Arc::new(key),
            chain: chain.certs().iter().map(|certificate| certificate.as_der().to_vec()).collect(),
        })
    }

    /// The signed assertion of a client (RFC 7523) for the token endpoint `audience`, valid for 10 minutes.
    ///
    /// # Errors
    /// The key cannot sign.
    pub(crate) fn assertion(&self, client: &str, audience: &str, now: i64) -> Result<String> {
        let own = self.chain.first().map(Vec::as_slice).unwrap_or_default();
        let chain: Vec<String> = self.chain.iter().map(|der| STANDARD.encode(der)).collect();
        let header = json!({
            "alg": "RS256",
            "typ": "JWT",
            "x5t": URL_SAFE_NO_PAD.encode(digest::digest(&digest::SHA1_FOR_LEGACY_USE_ONLY, own)),
            "x5t#S256": URL_SAFE_NO_PAD.encode(digest::digest(&digest::SHA256, own)),
            "x5c": chain,
        });
        let claims = json!({
            "aud": audience,
            "iss": client,
            "sub": client,
            "jti": uuid::Uuid::new_v4().to_string(),
            "nbf": now - 60,
            "iat": now,
            "exp": now + 600,
        });
        let content = [&header, &claims].map(|part| URL_SAFE_NO_PAD.encode(part.to_string())).join(".");
        let mut signature = vec![0; self.key.public_modulus_len()];
        let signed =
            self.key.sign(&RSA_PKCS1_SHA256, &SystemRandom::new(), content.as_bytes(), &mut signature);
        signed.map_err(|_| {
            Error::new(ErrorKind::Unexpected, "the private key cannot sign the login request")
        })?;
        Ok(format!("{content}.{}", URL_SAFE_NO_PAD.encode(signature)))
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn a_certificate_signs_the_login() {
        use base64::{Engine as _, engine::general_purpose::URL_SAFE_NO_PAD};
        let key = rcgen::KeyPair::generate_for(&rcgen::PKCS_RSA_SHA256).unwrap();
        let certificate = rcgen::CertificateParams::new(vec!["client".to_owned()])
            .unwrap()
            .self_signed(&key)
            .unwrap();
        let pem = format!("{}{}", certificate.pem(), key.serialize_pem());
        let parsed = Certificate::parse(pem.as_bytes(), "").unwrap();
        let assertion = parsed.assertion("client", "https://login/t/oauth2/v2.0/token", 1000).unwrap();
        let parts: Vec<&str> = assertion.split('.').collect();
        let decoded = |at: usize| URL_SAFE_NO_PAD.decode(parts[at]).unwrap();
        let (header, claims): (serde_json::Value, serde_json::Value) =
            (serde_json::from_slice(&decoded(0)).unwrap(), serde_json::from_slice(&decoded(1)).unwrap());
        assert_eq!((header["alg"].as_str(), header["x5c"].as_array().unwrap().len()), (Some("RS256"), 1));
        assert_eq!(
            (claims["aud"].as_str(), claims["exp"].as_i64()),
            (Some("https://login/t/oauth2/v2.0/token"), Some(1600))
        );
        let public = aws_lc_rs::signature::UnparsedPublicKey::new(
            &aws_lc_rs::signature::RSA_PKCS1_2048_8192_SHA256,
            rcgen::PublicKeyData::der_bytes(&key),
        );
        public.verify(format!("{}.{}", parts[0], parts[1]).as_bytes(), &decoded(2)).unwrap();
        for (pem, part) in [
            ("", "no PEM certificate, and is no PKCS#12 file"),
            (key.serialize_pem().as_str(), "no PEM certificate beside"),
            (certificate.pem().as_str(), "no private key"),
        ] {
            assert!(Certificate::parse(pem.as_bytes(), "").unwrap_err().contains(part));
        }
    }

    /// A certificate and that of its authority, exported by OpenSSL 3: with the algorithms of today, and with those that
    /// Key Vault and older programs use (RC2, 3DES), without a password.
    const FILES: [(&[u8], &str); 2] = [
        (include_bytes!("../../tests/data/client.p12"), "secret"),
        (include_bytes!("../../tests/data/client-legacy.p12"), ""),
    ];

    #[test]
    fn a_pkcs12_file_has_the_certificate_first() {
        for (file, password) in FILES {
            let parsed = Certificate::parse(file, password).unwrap();
            assert_eq!(parsed.chain.len(), 2);
            let public = aws_lc_rs::signature::KeyPair::public_key(&*parsed.key).as_ref();
            let own = &parsed.chain[0];
            assert!(own.windows(public.len()).any(|part| part == public), "its own certificate is the first");
            parsed.assertion("client", "https://login/t/oauth2/v2.0/token", 1000).unwrap();
            let wrong = Certificate::parse(file, "wrong").unwrap_err();
            assert!(wrong.contains("aadClientCertPassword"), "{wrong}");
            let cut = Certificate::parse(&file[..file.len() / 2], password).unwrap_err();
            assert!(cut.contains("no PKCS#12 file"), "{cut}");
        }
    }
}
