//! Properties of any bytes that are read as a manifest: combined parts of manifests, and random bytes.

use std::collections::BTreeSet;

use ccm_core::check::Field;
use proptest::prelude::*;

use super::manifest;

#[path = "../../fuzz/src/splices.rs"]
mod splices;

/// Manifests with everything that the reader knows, good and bad.
const SEEDS: [&str; 7] = [
    "apiVersion: v1\nkind: Service\nmetadata:\n  name: web\n  namespace: shop\n  annotations:\n    # The class.\n    \
     example.com/class: \"fast\"\n    'example.com/yes': yes\n    example.com/folded: >-\n      two\n      lines\nspec:\n  \
     type: LoadBalancer\n  loadBalancerIP: 203.0.113.7\n  ports:\n    - {name: http, port: 80, targetPort: web}\n",
    "---\napiVersion: v1\nkind: List\nitems:\n- &a {apiVersion: v1, kind: Service, metadata: {name: a}, spec: {type: \
     LoadBalancer, ports: [{port: 1}]}}\n- *a\n- kind: Pod\n  apiVersion: v1\n...\n",
    "{\"apiVersion\": \"v1\", \"kind\": \"Service\", \"metadata\": {\"name\": \"j\\u00e4\", \"annotations\": {\"a\": 1, \
     \"a\": null}}, \"spec\": {\"type\": \"LoadBalancer\", \"loadBalancerSourceRanges\": \"10.0.0.0/8\"}}\n",
    "%YAML 1.1\n--- !!map\n? kind\n: Service\n? [a, b]\n: 0x10\n<<: {apiVersion: v1}\n",
    "a: |2\n   text\n\tb: c\n--- just a text\n--- *nowhere\n--- [1, .inf, -0, 1e999, ~, 2001-01-01]\n",
    "metadata:\n  name: {{ .Release.Name }}\n",
    "\u{feff}kind: Service\r\napiVersion: v1\r\nmetadata: {name: x, namespace: 7}\r\nspec: {type: ClusterIP}\r\n",
];

/// Reads them, and checks the result.
fn check(bytes: &[u8]) {
    let reading = manifest::read("f.yaml", bytes);
    let lines = bytes.iter().filter(|byte| matches!(byte, b'\n' | b'\r')).count() + 1;
    for (_, finding) in &reading.findings {
        let position = finding.place.as_ref().and_then(|place| place.position);
        let line = position.map(|position| position.line);
        assert!(line.is_some_and(|line| (1..=lines).contains(&line)), "{finding:?}");
        for text in [&finding.about, &finding.message, &finding.fix] {
            assert!(!text.contains('\n'), "{finding:?}");
        }
        assert!(!finding.message.is_empty(), "{finding:?}");
    }
    let fields = [
        Field::Whole,
        Field::Annotation("example.com/class".to_owned()),
        Field::Spec("loadBalancerIP"),
    ];
    let mut begins = BTreeSet::new();
    for service in &reading.services {
        let place = |field| service.place(field).position.map(|position| (position.line, position.column));
        let [begin, others @ ..] = fields.each_ref().map(place);
        assert!(begin.is_some_and(|(line, _)| (1..=lines).contains(&line)), "{service:?}");
        assert!(others.iter().all(|at| at.is_some_and(|(line, _)| line <= lines)), "{service:?}");
        begins.insert(begin);
    }
    // An alias is where its anchor is; everything else has a place of its own.
    assert!(begins.len() == reading.services.len() || bytes.contains(&b'*'));
}

#[test]
fn every_seed_holds() {
    for seed in SEEDS {
        check(seed.as_bytes());
    }
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(2048) })]

    #[test]
    fn changed_manifests_hold((first, splices) in splices::splices()) {
        check(&splices::apply(&SEEDS, &first, &splices));
    }

    #[test]
    fn random_bytes_hold(bytes in prop::collection::vec(any::<u8>(), 0..300)) {
        check(&bytes);
    }
}
