//! The properties of the fuzz targets, on every seed and on random changes of the seeds.
#![allow(clippy::unwrap_used, clippy::expect_used)]

use std::{fs, path::Path};

use proptest::prelude::*;

#[path = "../../../fuzz/src/properties.rs"]
mod properties;
#[path = "../../../fuzz/src/splices.rs"]
mod splices;

use splices::{apply, splices};

fn seeds(target: &str) -> Vec<Vec<u8>> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fuzz/seeds").join(target);
    let mut paths: Vec<_> = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()).collect();
    paths.sort();
    assert!(paths.len() > 10, "the seeds of {target} exist");
    paths.iter().map(|path| fs::read(path).unwrap()).collect()
}

#[test]
fn config_file_properties_hold_on_every_seed() {
    for seed in seeds("gcfg") {
        properties::gcfg(&seed);
    }
}

#[test]
fn duration_properties_hold_on_every_seed() {
    for seed in seeds("duration") {
        properties::duration(&seed);
    }
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(512) })]

    #[test]
    fn config_file_properties_hold_on_changed_seeds((first, splices) in splices()) {
        properties::gcfg(&apply(&seeds("gcfg"), &first, &splices));
    }

    #[test]
    fn duration_properties_hold_on_changed_seeds((first, splices) in splices()) {
        properties::duration(&apply(&seeds("duration"), &first, &splices));
    }

    #[test]
    fn all_properties_hold_on_random_bytes(bytes in prop::collection::vec(any::<u8>(), 0..300)) {
        properties::gcfg(&bytes);
        properties::duration(&bytes);
    }
}
