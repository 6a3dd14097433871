//! The word `validate` and its flags.

use super::*;

fn validate(words: &[&str]) -> ValidateRequest {
    match parse_words(words) {
        Ok(Request::Validate(request)) => *request,
        other => panic!("{words:?}: {other:?}"),
    }
}

#[test]
fn manifests_come_from_files_and_standard_input() {
    let bare = validate(&["validate", "--cloud-provider=acme"]);
    assert_eq!((bare.manifests, bare.strict, bare.output), (Vec::new(), false, OutputFormat::Text));
    let file = |name: &str| Manifests::File(name.into());
    let words = [
        "--cloud-provider=acme",
        "--services=a,b.yaml",
        "--services",
        "-",
        "--strict",
        "validate",
        "--services=-",
        "-ojson",
    ];
    let request = validate(&words);
    assert_eq!(request.manifests, [file("a,b.yaml"), Manifests::Stdin]);
    assert!(request.strict);
    assert_eq!(request.cloud, CloudAccess::Online);
    let offline = validate(&["validate", "--cloud-provider=acme", "--offline"]);
    assert_eq!(offline.cloud, CloudAccess::Offline);
    assert_eq!(request.output, OutputFormat::Json);
    assert_eq!(
        errors(&["validate", "--cloud-provider=acme", "--services="]),
        ["--services: invalid value \"\": write the name of a file, or - for standard input"]
    );
}

#[test]
fn its_flags_are_for_it_alone_and_there_is_one_word() {
    assert_eq!(
        errors(&[
            "plan",
            "--cloud-provider=acme",
            "--services=a.yaml",
            "--strict",
            "--offline"
        ]),
        [
            "--services is for the subcommand validate: write cloud-controller-manager validate --services ...",
            "--strict is for the subcommand validate: write cloud-controller-manager validate --strict ...",
            "--offline is for the subcommand validate: write cloud-controller-manager validate --offline ...",
        ]
    );
    assert_eq!(
        errors(&["validate", "--cloud-provider=acme", "--service=a/b"]),
        ["--service is for the subcommand plan: write cloud-controller-manager plan --service ..."]
    );
    assert_eq!(
        errors(&["validate", "plan", "--cloud-provider=acme"]),
        ["\"cloud-controller-manager\" does not take any arguments, got [\"plan\"]"]
    );
}
