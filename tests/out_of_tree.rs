//! A binary with a provider of its own has that provider and, built without features, no other.
#![allow(clippy::unwrap_used, clippy::expect_used)]

mod binaries;

#[test]
fn a_binary_with_its_own_provider_lists_exactly_that() {
    let output = binaries::out_of_tree().arg("--list-providers").output().unwrap();
    assert!(output.status.success());
    let text = String::from_utf8(output.stdout).unwrap();
    let names: Vec<_> = text
        .lines()
        .filter_map(|line| line.split_whitespace().next())
        .collect();
    let mut expected: Vec<_> = ccm_core::registry::all()
        .iter()
        .map(|provider| provider.name)
        .collect();
    // Features that were chosen for this build of the workspace add theirs.
    expected.push("acme");
    expected.sort_unstable();
    assert_eq!(names, expected);
    assert!(text.contains("acme") && text.contains("Acme Cloud"), "{text}");
}

#[test]
fn it_has_the_flags_of_every_other() {
    let output = binaries::out_of_tree()
        .args(["--cloud-provider=acne", "--secure-port=x"])
        .output()
        .unwrap();
    assert_eq!(output.status.code(), Some(1));
    let errors = String::from_utf8(output.stderr).unwrap();
    assert!(
        errors.contains("did you mean \"acme\"?") && errors.contains("--secure-port"),
        "{errors}"
    );
}
