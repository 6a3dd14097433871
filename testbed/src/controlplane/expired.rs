//! Creates expired tokens.

use std::{path::Path, time::SystemTime};

use anyhow::{Context as _, Result};
use aws_lc_rs::{
    rand::SystemRandom,
    signature::{ECDSA_P256_SHA256_FIXED_SIGNING, EcdsaKeyPair},
};
use base64::{Engine as _, prelude::BASE64_URL_SAFE_NO_PAD as BASE64};
use rustls::pki_types::{PrivateSec1KeyDer, pem::PemObject as _};
use serde_json::{Map, Value};

const HOUR: u64 = 3600;

/// The token with an expiration time one hour ago, signed with this key (P-256, PEM).
pub(super) fn token(key: &Path, token: &str) -> Result<String> {
    let mut parts = token.split('.');
    let (head, claims) = parts.next().zip(parts.next()).context("not a token")?;
    let mut claims: Map<String, Value> = serde_json::from_slice(&BASE64.decode(claims)?)?;
    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH)?.as_secs();
    for (claim, hours) in [("iat", 2), ("nbf", 2), ("exp", 1)] {
        claims.insert(claim.to_owned(), (now - hours * HOUR).into());
    }
    let signed = format!("{head}.{}", BASE64.encode(serde_json::to_vec(&claims)?));
    let key = PrivateSec1KeyDer::from_pem_file(key).context("cannot read the cluster's key")?;
    let key = EcdsaKeyPair::from_private_key_der(&ECDSA_P256_SHA256_FIXED_SIGNING, key.secret_sec1_der())
        .context("not a key of the curve P-256")?;
    let signature = key.sign(&SystemRandom::new(), signed.as_bytes()).context("cannot sign")?;
    Ok(format!("{signed}.{}", BASE64.encode(signature)))
}
