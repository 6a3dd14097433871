//! Provider IDs: `aws:///<zone>/<instance>`.

use std::net::Ipv4Addr;

use ccm_core::{Error, ErrorKind, NodeView, Result};

/// The scheme, which is also the provider's name.
pub(crate) const SCHEME: &str = "aws";
/// The prefix of the IDs of Fargate nodes.
const FARGATE: &str = "fargate-";

/// The machine that a provider ID names.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum ProviderId {
    /// An EC2 instance, `i-...`.
    Instance(String),
    /// A Fargate node: the private address of its network interface is in the id.
    Fargate(String),
    /// A machine of another cloud, or an EKS hybrid node.
    Foreign,
}

/// Reads a provider ID. Accepts what upstream accepts: any host, any number of slashes, or a bare id.
///
/// # Errors
///
/// The ID has the scheme `aws` or none, and does not end in the id of an instance.
pub(crate) fn parse(text: &str) -> Result<ProviderId> {
    let rest = match text.split_once("://") {
        Some((SCHEME, rest)) => rest,
        Some(_) => return Ok(ProviderId::Foreign),
        None => text,
    };
    let id = rest.trim_end_matches('/').rsplit('/').next().unwrap_or_default();
    if id.starts_with("i-") {
        Ok(ProviderId::Instance(id.to_owned()))
    } else if id.starts_with(FARGATE) {
        Ok(ProviderId::Fargate(id.to_owned()))
    } else {
        let example = "aws:///us-east-1a/i-0123456789abcdef0";
        let text = format!("provider ID {text:?} does not end in the id of an instance, as in {example}");
        Err(Error::new(ErrorKind::InvalidSpec, text))
    }
}

/// The EC2 instance of a node by its provider ID. `None` for a Fargate node, a machine of another cloud and a wrong ID.
pub(crate) fn instance_of(node: &NodeView) -> Option<String> {
    match parse(node.provider_id.as_deref()?) {
        Ok(ProviderId::Instance(id)) => Some(id),
        _ => None,
    }
}

/// The provider ID of an instance in a zone.
pub(crate) fn render(zone: &str, id: &str) -> String {
    format!("{SCHEME}:///{zone}/{id}")
}

/// Whether this id has the form of EC2: 8 or 17 hex digits. Other ids fail every request that names them.
pub(crate) fn is_well_formed(id: &str) -> bool {
    let digits = id.strip_prefix("i-").unwrap_or_default();
    matches!(digits.len(), 8 | 17) && digits.chars().all(|digit| matches!(digit, '0'..='9' | 'a'..='f'))
}

/// The address in the id of a Fargate node: `fargate-ip-192-0-2-7.internal` or `fargate-192.0.2.7`. `None` if this is not
/// the id of a Fargate node.
pub(crate) fn fargate_address(id: &str) -> Option<String> {
    let endpoint = id.strip_prefix(FARGATE)?;
    Some(address_of_name(endpoint).unwrap_or_else(|| endpoint.to_owned()))
}

/// The address in a name of the form `ip-192-0-2-7.<domain>`.
pub(crate) fn address_of_name(name: &str) -> Option<String> {
    let host = name.strip_prefix("ip-")?.split('.').next()?;
    let address: Ipv4Addr = host.replace('-', ".").parse().ok()?;
    Some(address.to_string())
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn provider_ids_are_read_in_all_forms_of_the_go_cloud_controller() {
        let (by_name, by_address) = ("fargate-ip-192-168-164-88.internal", "fargate-192.168.164.88");
        let fargate = |id: &str| format!("aws:///us-west-2c/1abc-2def/{id}");
        for (text, id) in [
            ("aws:///us-east-1a/i-12345678", "i-12345678"),
            ("aws:////i-12345678", "i-12345678"),
            ("i-12345678", "i-12345678"),
            ("aws:///us-east-1a/i-0123456789abcdef0/", "i-0123456789abcdef0"),
            ("aws://account/us-east-1a/i-12345678", "i-12345678"),
            (&fargate(by_name), by_name),
            (&fargate(by_address), by_address),
            ("eks-hybrid:///us-west-2/cluster/mi-0123", ""),
            ("kwok://node-1", ""),
        ] {
            let expected = match id {
                "" => ProviderId::Foreign,
                id if id.starts_with("i-") => ProviderId::Instance(id.to_owned()),
                id => ProviderId::Fargate(id.to_owned()),
            };
            assert_eq!(parse(text).unwrap(), expected, "{text}");
        }
        for text in [
            "",
            "vol-123456789",
            "aws:///us-east-1a/vol-1",
            "aws:///us-east-1a/i-1/suffix",
        ] {
            assert!(parse(text).is_err(), "{text}");
        }
        assert_eq!(render("us-east-1a", "i-1"), "aws:///us-east-1a/i-1");
    }

    #[test]
    fn ids_have_8_or_17_hex_digits() {
        for (id, valid) in [
            ("i-12345678", true),
            ("i-0123456789abcdef0", true),
            ("i-1234567", false),
            ("i-1234567g", false),
            ("i-0123456789ABCDEF0", false),
            ("i-", false),
            ("x-12345678", false),
        ] {
            assert_eq!(is_well_formed(id), valid, "{id}");
        }
    }

    #[test]
    fn addresses_are_read_from_names() {
        for name in ["fargate-ip-192-168-164-88.internal", "fargate-192.168.164.88"] {
            assert_eq!(fargate_address(name).as_deref(), Some("192.168.164.88"), "{name}");
        }
        assert_eq!(fargate_address("i-12345678"), None);
        for name in ["ip-10-0-0-4.ec2.internal", "ip-10-0-0-4"] {
            assert_eq!(address_of_name(name).as_deref(), Some("10.0.0.4"), "{name}");
        }
        for name in ["ip-10-0-0", "ip-10-0-0-400", "web-10-0-0-4", "ip-"] {
            assert_eq!(address_of_name(name), None, "{name}");
        }
    }
}
