//! Names of objects in the cloud.

use super::ServiceId;

/// The text, cut after `max` bytes, or after somewhat fewer so that no character is cut.
#[must_use]
pub fn truncated(mut text: String, max: usize) -> String {
    text.truncate(text.floor_char_boundary(max));
    text
}

/// The name that the Kubernetes library of cloud providers gives the load balancer of a Service: `a` and its UID without
/// dashes, 32 characters in all (`DefaultLoadBalancerName`).
#[must_use]
pub fn default_name(service: &ServiceId) -> String {
    truncated(format!("a{}", service.uid.replace('-', "")), 32)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_text_is_cut_between_characters() {
        for (text, max, expected) in [
            ("abc", 3, "abc"),
            ("abcd", 3, "abc"),
            ("aüb", 2, "a"),
            ("ü", 1, ""),
        ] {
            assert_eq!(truncated(text.to_owned(), max), expected);
        }
    }
}
