//! The ID of the cluster in the names of load balancers: the ConfigMap `kube-system/ingress-uid`, shared with the GCE ingress controller.

use ccm_core::cluster_id::ClusterIdSource;

/// The ConfigMap. The key `provider-uid` wins.
pub(crate) const SOURCE: ClusterIdSource = ClusterIdSource {
    namespace: "kube-system",
    name: "ingress-uid",
    keys: &["provider-uid", "uid"],
    problem,
    generate,
};

/// The longest ID with which the longest name, `k8s-<ID>-internal-tcp-nmv1-<16 digits>`, has at most 63 characters.
const LONGEST: usize = 63 - "k8s--internal-tcp-nmv1-".len() - 16;

/// Why a text cannot be part of a name, if it cannot.
fn problem(id: &str) -> Option<String> {
    let is_part_of_name = id.chars().all(|c| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-');
    if id.is_empty() {
        Some("which is empty".to_owned())
    } else if !is_part_of_name {
        Some("which has other characters than lowercase letters, digits and dashes".to_owned())
    } else if id.len() > LONGEST {
        Some(format!("which has more than {LONGEST} characters"))
    } else {
        None
    }
}

/// Eight random bytes as 16 hexadecimal digits.
fn generate() -> String {
    format!("{:016x}", rand::random::<u64>())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_id_is_part_of_a_name() {
        for good in [
            "bc06fa2b4ca96c2d",
            "my-cluster",
            &generate(),
            &"a".repeat(LONGEST),
        ] {
            assert_eq!(problem(good), None, "{good}");
        }
        for wrong in ["", "A", "a b", "a\n", &"a".repeat(LONGEST + 1)] {
            assert!(problem(wrong).is_some(), "{wrong:?}");
        }
        assert_eq!(generate().len(), 16);
    }
}
