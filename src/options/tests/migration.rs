//! Leader migration: the content of files, and its effect.

use std::fs;

use super::*;

const V1: &str = "apiVersion: controllermanager.config.k8s.io/v1\nkind: LeaderMigrationConfiguration\n";

/// The command line with a file of this text; the folder has to be kept.
fn with_file(text: &str) -> (tempfile::TempDir, String) {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("migration.yaml");
    fs::write(&file, text).unwrap();
    let word = format!("--leader-migration-config={}", file.display());
    (folder, word)
}

fn read(text: &str) -> Config {
    let (_folder, file) = with_file(text);
    config(&["--enable-leader-migration", &file])
}

/// Without the flag and the folder in front.
fn problems(text: &str) -> Vec<String> {
    let (folder, file) = with_file(text);
    let words = ["--cloud-provider=acme", "--enable-leader-migration", &file];
    let before = format!("--leader-migration-config: {}/migration.yaml", folder.path().display());
    errors(&words)
        .iter()
        .map(|error| error.strip_prefix(&before).unwrap_or(error).to_owned())
        .collect()
}

fn leases(config: &Config) -> (Option<&str>, Vec<&str>, Vec<(&str, &str)>) {
    let migration = config.election.as_ref().unwrap().migration.as_ref();
    let elsewhere = config.controllers.elsewhere.iter();
    (
        migration.map(|migration| migration.lease.as_str()),
        config.controllers.migrated.iter().copied().collect(),
        elsewhere.map(|(name, component)| (*name, component.as_str())).collect(),
    )
}

const THREE: [&str; 3] = [
    "cloud-node-lifecycle-controller",
    "node-route-controller",
    "service-lb-controller",
];

#[test]
fn without_a_file_three_controllers_run_under_the_lease_that_other_managers_know() {
    let config = config(&["--enable-leader-migration"]);
    assert_eq!(config.warnings, [""; 0]);
    assert_eq!(leases(&config), (Some("cloud-provider-extraction-migration"), THREE.into(), vec![]));
}

#[test]
fn files_of_other_managers_are_read_as_they_are() {
    for (version, lock) in [
        ("v1", ""),
        ("v1beta1", "resourceLock: leases\n"),
        ("v1alpha1", "resourceLock: leases\n"),
        ("v1alpha1", ""),
    ] {
        let config = read(&format!(
            "kind: LeaderMigrationConfiguration\napiVersion: controllermanager.config.k8s.io/{version}\n\
             leaderName: migration\n{lock}controllerLeaders:\n  - name: route-controller\n    component: '*'\n  \
             - name: service-controller\n    component: cloud-controller-manager\n  \
             - name: cloud-node-lifecycle-controller\n    component: \"*\"\n"
        ));
        assert_eq!(config.warnings, [""; 0], "{version}");
        assert_eq!(leases(&config), (Some("migration"), THREE.into(), vec![]), "{version}");
    }
    let json = r#"{"apiVersion": "controllermanager.config.k8s.io/v1", "kind": "LeaderMigrationConfiguration",
        "leaderName": "m", "controllerLeaders": [{"name": "service", "component": "*"}]}"#;
    assert_eq!(leases(&read(json)), (Some("m"), vec!["service-lb-controller"], vec![]));
}

#[test]
fn a_controller_may_have_each_of_its_names() {
    for (names, controller) in [
        (&["service-lb-controller", "service", "service-controller"][..], "service-lb-controller"),
        (&["node-route-controller", "route", "route-controller"], "node-route-controller"),
        (&["cloud-node-controller", "cloud-node"], "cloud-node-controller"),
        (
            &["cloud-node-lifecycle-controller", "cloud-node-lifecycle"],
            "cloud-node-lifecycle-controller",
        ),
    ] {
        for name in names {
            let config =
                read(&format!("{V1}leaderName: m\ncontrollerLeaders: [{{name: {name}, component: '*'}}]"));
            assert_eq!(leases(&config).1, [controller], "{name}");
            assert!(config.controllers.is_enabled(controller));
        }
        // By all of them at once, for managers that know only one each.
        let leaders: Vec<_> = names.iter().map(|name| format!("{{name: {name}, component: '*'}}")).collect();
        let config = read(&format!("{V1}leaderName: m\ncontrollerLeaders: [{}]", leaders.join(", ")));
        assert_eq!(leases(&config).1, [controller]);
    }
}

#[test]
fn what_another_component_runs_is_not_run_here() {
    let config = read(&format!(
        "{V1}leaderName: m\ncontrollerLeaders:\n- name: service\n  component: kube-controller-manager\n\
         - name: route\n  component: cloud-controller-manager\n"
    ));
    assert_eq!(
        leases(&config),
        (
            Some("m"),
            vec!["node-route-controller"],
            vec![("service-lb-controller", "kube-controller-manager")]
        )
    );
    let enabled = |name| config.controllers.is_enabled(name);
    assert!(
        !enabled("service-lb-controller")
            && enabled("node-route-controller")
            && enabled("cloud-node-controller")
    );
}

#[test]
fn what_is_switched_off_needs_no_lease() {
    let config = config(&["--enable-leader-migration", "--controllers=*,-service,-route"]);
    assert_eq!(leases(&config).1, ["cloud-node-lifecycle-controller"]);
}

#[test]
fn controllers_of_other_managers_get_a_warning() {
    // Names that resemble ours.
    let names = [
        "node-ipam-controller",
        "node-lifecycle-controller",
        "service-cidr-controller",
        "serviceaccount-token-controller",
        "nodeipam",
    ];
    let leaders: Vec<_> = names.iter().map(|name| format!("- name: {name}\n  component: '*'\n")).collect();
    let config = read(&format!("{V1}leaderName: m\ncontrollerLeaders:\n{}", leaders.concat()));
    assert_eq!(config.warnings.len(), names.len(), "{:?}", config.warnings);
    assert!(
        config.warnings[0].ends_with(
            "migration.yaml:5: controllerLeaders[0].name \"node-ipam-controller\": this program has no such controller and \
             takes no part in its migration"
        ),
        "{}",
        config.warnings[0]
    );
    assert!(config.controllers.migrated.is_empty());
    let nothing = read(&format!("{V1}leaderName: m\n"));
    assert!(nothing.warnings[0].contains("no controller is migrated"));
}

#[test]
fn all_problems_are_reported_at_once_with_their_lines() {
    assert_eq!(
        problems(
            "apiVersion: controllermanager.config.k8s.io/v2\nkind: LeaderMigration\nleadername: x\nleaderName: Not A Name\n\
             resourceLock: endpoints\nmetadata: {}\ncontrollerLeaders:\n- name: service-lb-controler\n  component: 5\n\
             - component: cloud-controler-manager\n- name: route\n  component: '*'\n\
             - name: node-route-controller\n  component: kube-controller-manager\n- name: cloud-node\n  component:\n- text\n"
        ),
        [
            ":3: leadername: unknown key; did you mean \"leaderName\"?",
            ":6: metadata: unknown key; known keys: apiVersion, kind, leaderName, resourceLock, controllerLeaders",
            ":1: apiVersion \"controllermanager.config.k8s.io/v2\": write one of controllermanager.config.k8s.io/v1, \
             controllermanager.config.k8s.io/v1beta1, controllermanager.config.k8s.io/v1alpha1",
            ":2: kind \"LeaderMigration\": write LeaderMigrationConfiguration",
            ":5: resourceLock \"endpoints\": there is only one kind of lock: write leases",
            ":4: leaderName \"Not A Name\": write a name of a Lease: lower-case letters, digits, - and ., such as \
             cloud-provider-extraction-migration",
            ":9: controllerLeaders[0].component: 5 is not a text; write it in quotes",
            ":10: controllerLeaders[1].name is missing",
            ":13: controllerLeaders[3].name \"node-route-controller\": line 11 assigns the same controller to another \
             component",
            ":16: controllerLeaders[4].component is empty",
            ":17: controllerLeaders[5]: \"text\" does not have a name and a component",
        ]
    );
    assert_eq!(
        problems(&format!(
            "{V1}leaderName: m\nresourceLock: leases\ncontrollerLeaders:\n- name: service-lb-controler\n  component: '*'\n\
             - name: route\n  component: cloud-controler-manager\n"
        )),
        [
            ":4: resourceLock: controllermanager.config.k8s.io/v1 has no such key, the lock is always a Lease; leave it out",
            ":6: controllerLeaders[0].name \"service-lb-controler\": did you mean \"service-lb-controller\"?",
            ":9: controllerLeaders[1].component \"cloud-controler-manager\": did you mean \"cloud-controller-manager\"?",
        ]
    );
}

#[test]
fn other_files_are_refused() {
    for (text, part) in [
        ("", "an empty file is not a LeaderMigrationConfiguration"),
        ("# later\n", "an empty file is not a"),
        ("- a\n", "a list is not a"),
        ("{}", "apiVersion is missing"),
        ("leaderName: [", ":1: neither YAML nor JSON: "),
        ("kind: a\nkind: b\n", ":2: kind: duplicate key"),
        ("kind: a\n---\nkind: b\n", ":3: a second document begins here"),
        ("\u{1}", "neither YAML nor JSON"),
        ("controllerLeaders: {}\n", "a map is not a list"),
        ("controllerLeaders: 3\n", "3 is not a list"),
        ("leaderName:\n", "leaderName is empty"),
    ] {
        let problems = problems(text);
        assert!(problems.iter().any(|problem| problem.contains(part)), "{text:?}: {problems:?}");
    }
    let missing = errors(&[
        "--cloud-provider=acme",
        "--enable-leader-migration",
        "--leader-migration-config=/nowhere/m.yaml",
    ]);
    assert_eq!(missing.len(), 1);
    assert!(
        missing[0].starts_with("--leader-migration-config: cannot read /nowhere/m.yaml: "),
        "{missing:?}"
    );
}

#[test]
fn a_migration_needs_two_leases() {
    let error =
        |words: &[&str]| errors(&[&["--cloud-provider=acme", "--enable-leader-migration"], words].concat());
    let without = error(&["--leader-elect=false"]);
    assert!(without[0].contains("leave --leader-elect=false out"), "{without:?}");
    let one = error(&["--leader-elect-resource-name=cloud-provider-extraction-migration"]);
    assert!(one[0].contains("there must be two Leases"), "{one:?}");
}

#[test]
fn what_takes_part_in_no_migration_is_not_read() {
    let config = config(&["--leader-migration-config=/nowhere"]);
    assert_eq!(leases(&config), (None, vec![], vec![]));
    assert_eq!(config.warnings.len(), 1);
}
