//! Provider IDs: `openstack:///<server>` and `openstack://<region>/<server>`.

use ccm_core::{Error, ErrorKind, Result};

/// The scheme, which is also the provider's name.
pub(crate) const SCHEME: &str = "openstack";

/// A parsed provider ID.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ProviderId<'a> {
    /// A server of this cloud, perhaps in another region of it.
    Server {
        /// Empty if the ID does not name one.
        region: &'a str,
        /// The server's id.
        id: &'a str,
    },
    /// A machine of another cloud.
    Foreign,
}

/// Parses a provider ID. One without a scheme (`/<server>`, `<region>/<server>`) counts as ours, since old kubelets
/// wrote such IDs.
///
/// # Errors
///
/// If the ID has our scheme or none, and another form.
pub(crate) fn parse(text: &str) -> Result<ProviderId<'_>> {
    let rest = match text.split_once("://") {
        Some((SCHEME, rest)) => rest,
        Some(_) => return Ok(ProviderId::Foreign),
        None => text,
    };
    match rest.split_once('/') {
        // The ID becomes part of a URL's path. Nova's own IDs are UUIDs. Characters that could change the meaning of
        // the path are refused, not escaped.
        Some((region, id))
            if !id.is_empty() && id.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'-' || b == b'_') =>
        {
            Ok(ProviderId::Server { region, id })
        }
        _ => Err(Error::new(
            ErrorKind::InvalidSpec,
            format!("ProviderID {text:?} didn't match expected format \"openstack://region/InstanceID\""),
        )),
    }
}

/// Writes the provider ID of a server; `region` is empty unless IDs are to name it.
pub(crate) fn render(region: &str, id: &str) -> String {
    format!("{SCHEME}://{region}/{id}")
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::expect_used)]
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn reads_both_forms_with_and_without_a_scheme() {
        for (text, region, id) in [
            ("openstack:///7b9cf879", "", "7b9cf879"),
            ("openstack://RegionOne/7b9cf879", "RegionOne", "7b9cf879"),
            ("/7b9cf879", "", "7b9cf879"),
            ("RegionOne/7b9cf879", "RegionOne", "7b9cf879"),
        ] {
            assert_eq!(parse(text).unwrap(), ProviderId::Server { region, id }, "{text}");
        }
    }

    #[test]
    fn ids_of_other_clouds_are_ignored() {
        for text in [
            "other-provider:///7b9cf879",
            "aws:///eu-west-1a/i-0123",
            "kind://docker/kind/node",
        ] {
            assert_eq!(parse(text).unwrap(), ProviderId::Foreign, "{text}");
        }
    }

    #[test]
    fn refuses_everything_else_and_names_it() {
        for text in [
            "openstack://7b9cf879",
            "7b9cf879",
            "openstack://RegionOne-7b9cf879",
            "openstack:///",
            "openstack:///a/b",
            "openstack:///..",
            "openstack:///a?b=c",
            "",
        ] {
            let error = parse(text).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::InvalidSpec, "{text}");
            assert!(error.to_string().contains(&format!("{text:?}")), "{error}");
        }
    }

    proptest! {
        #[test]
        fn rendered_ids_are_parsed_again(region in "[A-Za-z0-9_.-]{0,12}", id in "[a-f0-9-]{1,36}") {
            let text = render(&region, &id);
            prop_assert_eq!(parse(&text).unwrap(), ProviderId::Server { region: &region, id: &id });
        }

        #[test]
        fn never_panics(text in ".*") {
            let _ = parse(&text);
        }
    }
}
