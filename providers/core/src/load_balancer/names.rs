//! Names of objects in the cloud.

use super::ServiceId;

/// The name of a Service's load balancer that Kubernetes recommends to all clouds: `a` and the UID without dashes, 32
/// characters in all. Upstream: `cloudprovider.DefaultLoadBalancerName`.
#[must_use]
pub fn default_load_balancer_name(service: &ServiceId) -> String {
    truncated(format!("a{}", service.uid.replace('-', "")), 32)
}

/// The text, cut after `max` bytes, or after somewhat fewer so that no character is cut.
#[must_use]
pub fn truncated(mut text: String, max: usize) -> String {
    if text.len() > max {
        let end = (0..=max).rev().find(|at| text.is_char_boundary(*at)).unwrap_or(0);
        text.truncate(end);
    }
    text
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
