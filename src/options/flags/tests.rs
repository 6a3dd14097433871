#![allow(clippy::unwrap_used, clippy::expect_used)]

use super::*;

#[test]
fn help_has_the_status_of_every_flag() {
    let command = crate::options::command(&[]);
    for row in ALL.iter().filter(|flag| flag.is_accepted_only()) {
        let arg = command
            .get_arguments()
            .find(|arg| arg.get_long() == Some(row.def.name))
            .unwrap_or_else(|| panic!("--{}: its section {:?} is not shown", row.def.name, row.section));
        let help = arg.get_help().unwrap().to_string();
        let words = [
            "Not implemented: ",
            "No effect: ",
            "No effect yet: ",
            "Deprecated: ",
        ];
        assert!(words.iter().any(|word| help.contains(word)), "{help}");
        // Sentences end where clap would end them.
        assert!(!help.ends_with('.') && !row.def.help.ends_with(".."), "{help}");
    }
}

#[test]
fn every_default_is_well_formed_and_recognised() {
    for row in ALL.iter().filter(|row| row.is_accepted_only() && !row.def.default.is_empty()) {
        let values = [row.def.default.to_owned()];
        assert_eq!(row.def.check(&values), Ok(()));
        assert!(row.def.is_default(&values), "--{}", row.def.name);
    }
}

#[test]
fn a_default_may_be_written_in_another_way() {
    let row = |name: &str| ALL.iter().find(|row| row.def.name == name).unwrap();
    for (name, values, expected) in [
        ("min-resync-period", &["12h0m0s"][..], true),
        ("min-resync-period", &["720m"], true),
        ("min-resync-period", &["11h"], false),
        ("profiling", &["false", "T"], true),
        ("concurrent-node-lifecycle-syncs", &["01"], true),
        ("webhook-tls-cipher-suites", &["\"\""], false),
        ("webhook-tls-cipher-suites", &["a", "x"], false),
    ] {
        let values: Vec<_> = values.iter().map(ToString::to_string).collect();
        assert_eq!(row(name).def.is_default(&values), expected, "{name} {values:?}");
    }
}
