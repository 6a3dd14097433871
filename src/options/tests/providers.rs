//! Flags and controllers of providers.

use ccm_core::controllers::{ControllerDef, ControllerNames, Needs};

use ccm_core::FlagKind;

use super::*;

const fn flag(name: &'static str, kind: FlagKind, default: &'static str) -> FlagDef {
    FlagDef {
        name,
        kind,
        default,
        help: "For a test",
    }
}

const fn controller(name: &'static str, alias: &'static [&'static str], default_on: bool) -> ControllerDef {
    ControllerDef {
        names: ControllerNames {
            name,
            aliases: alias,
            migration_name: None,
            client_name: name,
        },
        default_on,
        needs: |_| Ok(Needs::default()),
        start: |_| Ok(Box::pin(async {})),
    }
}

const NUMBER: FlagDef = flag("eta-number", FlagKind::Number(1), "4");
const SHARED: FlagDef = flag("mask-size", FlagKind::Number(1), "24");
/// The framework accepts it.
const ACCEPTED: FlagDef = flag("allocate-node-cidrs", FlagKind::Bool, "false");

const ETA: Provider = Provider {
    name: "eta",
    flags: &[NUMBER, SHARED, ACCEPTED],
    controllers: &[
        controller("eta-controller", &["eta"], true),
        controller("tagging-controller", &["tagging"], false),
    ],
    ..ACME
};
const ZETA: Provider = Provider {
    name: "zeta",
    flags: &[SHARED],
    controllers: &[controller("zeta-controller", &[], true)],
    class_controller: Some(ControllerNames {
        name: "zeta-service-lb-controller",
        aliases: &["zeta-service"],
        migration_name: None,
        client_name: "service-controller",
    }),
    ..ACME
};

fn read(provider: &str, words: &[&str]) -> Result<Config, Vec<String>> {
    let first = format!("--cloud-provider={provider}");
    let words = [&[first.as_str()], words].concat();
    match parse(words.iter().map(OsString::from), &[&ACME, &ETA, &ZETA]) {
        Ok(Request::Run(config)) => Ok(*config),
        Ok(other) => panic!("{words:?}: {other:?}"),
        Err(errors) => Err(errors.iter().map(ToString::to_string).collect()),
    }
}

#[test]
fn values_of_the_chosen_providers_flags_arrive() {
    let config = read("eta", &["--eta_number", "7", "--allocate-node-cidrs"]).unwrap();
    assert_eq!(config.flags.number(&NUMBER), 7);
    assert_eq!(config.flags.number(&SHARED), 24);
    assert!(config.flags.boolean(&ACCEPTED));
    assert!(config.warnings.is_empty(), "it has an effect: {:?}", config.warnings);
    let shown = |config: &Config, flag: &str| config.values.iter().any(|(name, _)| name == flag);
    assert!(shown(&config, "eta-number") && shown(&config, "mask-size"));
    let config = read("acme", &["--allocate-node-cidrs"]).unwrap();
    assert_eq!(config.warnings.len(), 1, "it has none: {:?}", config.warnings);
    assert!(!shown(&config, "eta-number") && shown(&config, "allocate-node-cidrs"));
}

#[test]
fn flags_of_other_providers_are_errors_that_name_them() {
    let errors = |provider: &str, words: &[&str]| read(provider, words).unwrap_err();
    assert_eq!(
        errors("zeta", &["--eta-number=1", "--mask-size=0"]),
        [
            "--mask-size: invalid value \"0\": it must be between 1 and 2147483647",
            "--eta-number: this is a flag of the cloud provider eta, but --cloud-provider is \"zeta\"",
        ]
    );
    assert_eq!(
        errors("acme", &["--mask-size=1"]),
        ["--mask-size: this is a flag of the cloud provider eta, zeta, but --cloud-provider is \"acme\""]
    );
    assert_eq!(errors("", &["--mask-size=1"]).len(), 1, "nothing is known of it");
}

#[test]
fn help_groups_flags_by_provider_and_names_controllers() {
    let help = help::text(command(&[&ACME, &ETA, &ZETA]), None, arguments::HelpForm::Full);
    for text in [
        "\nProvider eta:\n      --eta-number <NUMBER>",
        "\nProvider eta, zeta:\n      --mask-size <NUMBER>",
    ] {
        assert!(help.contains(text), "{text}: {help}");
    }
    let words = help.split_whitespace().collect::<Vec<_>>().join(" ");
    let names = "route; with --cloud-provider=eta also eta, tagging; with --cloud-provider=zeta also zeta-controller, zeta-service; \
                 * does not include tagging";
    assert!(words.contains(names), "{help}");
}

#[test]
fn controllers_of_the_chosen_provider_are_switched_off_only_by_name() {
    let enabled = |words: &[&str], name: &str| read("eta", words).unwrap().controllers.is_enabled(name);
    for (words, eta, tagging) in [
        (&[][..], true, false),
        (&["--controllers=*,tagging"], true, true),
        (&["--controllers=*,-eta"], false, false),
        (&["--controllers=tagging-controller"], true, true),
    ] {
        assert_eq!(enabled(words, "eta-controller"), eta, "{words:?}");
        assert_eq!(enabled(words, "tagging-controller"), tagging, "{words:?}");
        assert_eq!(
            enabled(words, "cloud-node-controller"),
            words.first().is_none_or(|word| word.contains('*'))
        );
    }
    assert_eq!(
        read("zeta", &["--controllers=*,-eta"]).unwrap_err(),
        ["--controllers: \"eta\" is a controller of the cloud provider eta, which is not chosen"]
    );
}

#[test]
fn a_provider_may_not_define_a_flag_of_the_framework() {
    const FREE: &[FlagDef] = &[flag("acme-x", FlagKind::Text, ""), ACCEPTED];
    const TAKEN: &[FlagDef] = &[flag("cluster-name", FlagKind::Text, "")];
    let check = |flags| {
        let build = |_| -> ccm_core::BuildFuture {
            Box::pin(async { Err(ccm_core::Error::new(ccm_core::ErrorKind::Unsupported, "no")) })
        };
        let provider = Provider {
            flags,
            ..Provider::new("acme", "for a test", build)
        };
        without_taken_flags(vec![Box::leak(Box::new(provider))]).map(drop)
    };
    assert_eq!(check(FREE), Ok(()));
    let error = check(TAKEN).unwrap_err();
    assert!(error.contains("acme") && error.contains("\"cluster-name\""), "{error}");
}

#[test]
fn the_controller_for_services_with_a_class_is_the_service_controller() {
    let service = "service-lb-controller";
    for (list, runs) in [
        ("zeta-service-lb-controller", true),
        ("zeta-service", true),
        ("-service-lb-controller,zeta-service-lb-controller", true),
        ("zeta-service-lb-controller,-service", true),
        ("*,zeta-service-lb-controller", true),
        ("*,-zeta-service-lb-controller", true),
        ("*,-service,-zeta-service,zeta-service", false),
        ("-zeta-service-lb-controller", false),
    ] {
        let config = read("zeta", &[&format!("--controllers={list}")]).unwrap();
        assert_eq!(config.controllers.is_enabled(service), runs, "{list}");
    }
    let config = read("zeta", &["--controllers=zeta-service"]).unwrap();
    assert!(!config.controllers.is_enabled("cloud-node-controller"), "as with any list");
    assert_eq!(
        read("eta", &["--controllers=zeta-service"]).unwrap_err(),
        ["--controllers: \"zeta-service\" is a controller of the cloud provider zeta, which is not chosen"]
    );
    let errors = read("zeta", &["--controllers=zeta-servise"]).unwrap_err();
    assert!(errors[0].contains("did you mean \"zeta-service\"?"), "{errors:?}");
}
