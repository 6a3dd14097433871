//! The word `plan` and its flags.

use super::*;

fn plan(words: &[&str]) -> PlanRequest {
    match parse_words(words) {
        Ok(Request::Plan(request)) => *request,
        other => panic!("{words:?}: {other:?}"),
    }
}

#[test]
fn the_word_may_stand_anywhere_among_the_flags_of_a_manifest() {
    for words in [
        &["plan", "--cloud-provider=acme"][..],
        &["--cloud-provider", "acme", "--leader-elect=true", "plan"],
    ] {
        let request = plan(words);
        assert_eq!((request.service, request.output), (None, OutputFormat::Text), "{words:?}");
    }
    let words = [
        "plan",
        "--cloud-provider=acme",
        "--service",
        "a/b",
        "-o",
        "json",
        "--context=c",
    ];
    let request = plan(&words);
    assert_eq!(request.config.api_server.context.as_deref(), Some("c"));
    assert_eq!(request.service, Some(("a".to_owned(), "b".to_owned())));
    assert_eq!(request.output, OutputFormat::Json);
}

#[test]
fn its_flags_are_checked_with_all_others() {
    for service in ["web", "a/b/c", "/b", "a/"] {
        let flag = format!("--service={service}");
        assert_eq!(
            errors(&[
                "plan",
                "--cloud-provider=acme",
                &flag,
                "--output=yaml",
                "--master=:"
            ])
            .len(),
            3,
            "{service}"
        );
    }
    assert_eq!(
        errors(&["--cloud-provider=acme", "--service=a/b", "-ojson", "--context=c"]),
        [
            "--output is for the subcommands plan and validate: write cloud-controller-manager plan --output ...",
            "--service is for the subcommand plan: write cloud-controller-manager plan --service ...",
            "--context is for the subcommand plan: write cloud-controller-manager plan --context ...",
        ]
    );
    assert_eq!(errors(&["plan", "plan", "--cloud-provider=acme"]).len(), 1);
}

#[test]
fn a_dry_run_is_a_run() {
    for (flag, expected) in [("--dry-run", true), ("--dry-run=false", false), ("--v=0", false)] {
        match parse_words(&["--cloud-provider=acme", flag]) {
            Ok(Request::Run(config)) => assert_eq!(config.dry_run, expected, "{flag}"),
            other => panic!("{flag}: {other:?}"),
        }
    }
}
