use super::*;

fn client(port: i32, source: &str, balancer: &str) -> Rule {
    let description = format!("{RULE_PREFIX}client={balancer}");
    Rule::new("tcp", (port, port), source, &description)
}

/// Asserts what the rules are after the plan, and the number of its steps.
fn assert_applied(desired: &DesiredRules, old: &[Rule], expected: &[&str], steps: usize) {
    let group = Object {
        id: "sg-1".to_owned(),
        ..Object::new(ObjectKind::NodeGroup, "sg-1").entries(RULES, old.iter().cloned().map(SetEntry::Rule))
    };
    let mut observed = ObservedPart {
        objects: [group].into_iter().collect(),
        ..ObservedPart::default()
    };
    let plan = desired.plan(&observed);
    for step in &plan.steps {
        observed.objects.fold(&step.change, None);
    }
    assert_eq!(desired.plan(&observed).steps, [], "the plan has an end");
    let rules = observed.objects.all.iter().flat_map(|group| group.set(RULES));
    let rules = rules.filter_map(SetEntry::rule).map(|rule| {
        let end = rule.description.rsplit('/').next().unwrap_or_default();
        let (from, to) = (rule.from, rule.to);
        format!("{} {from}-{to} {} {end}", rule.protocol, rule.source)
    });
    let mut rules: Vec<_> = rules.collect();
    rules.sort();
    assert_eq!((rules, plan.steps.len()), (expected.iter().map(ToString::to_string).collect(), steps));
}

fn names(names: &[&str]) -> BTreeSet<String> {
    names.iter().map(|name| (*name).to_owned()).collect()
}

fn required(rules: &[Rule]) -> BTreeMap<String, Vec<Rule>> {
    [("sg-1".to_owned(), rules.to_vec())].into()
}

const ALL: &str = "0.0.0.0/0";

#[test]
fn a_rule_stays_while_one_load_balancer_needs_it_and_then_names_the_next() {
    let (a, b) = (client(10256, ALL, "a"), client(10256, ALL, "b"));
    let old = [a.clone(), Rule::mtu(ALL, MTU)];
    let both = DesiredRules {
        required: required(&[b.clone(), a.clone()]),
        managed: names(&["a", "b"]),
        ..DesiredRules::default()
    };
    let mtu = "icmp 3-4 0.0.0.0/0 mtu";
    assert_applied(&both, &old, &[mtu, "tcp 10256-10256 0.0.0.0/0 client=a"], 0);
    let left = DesiredRules {
        required: required(&[b]),
        ..both
    };
    assert_applied(&left, &old, &[mtu, "tcp 10256-10256 0.0.0.0/0 client=b"], 1);
    let none = DesiredRules {
        required: BTreeMap::new(),
        ..left
    };
    assert_applied(&none, &old, &[], 1);
}

#[test]
fn rules_of_others_stay_and_count() {
    let ssh = Rule::new("tcp", (22, 22), ALL, "ssh");
    let http = Rule::new("tcp", (30080, 30080), ALL, "by hand");
    let other = client(31000, "10.0.0.0/8", "x");
    let mtu = ["10.0.0.0/8", "192.168.0.0/16"].map(|source| Rule::mtu(source, MTU));
    let old = [&[ssh, http, other], &mtu[..]].concat();
    let desired = DesiredRules {
        required: required(&[client(30080, ALL, "a")]),
        managed: names(&["a"]),
        ..DesiredRules::default()
    };
    let expected = [
        "icmp 3-4 10.0.0.0/8 mtu",
        "tcp 22-22 0.0.0.0/0 ssh",
        "tcp 30080-30080 0.0.0.0/0 by hand",
        "tcp 31000-31000 10.0.0.0/8 client=x",
    ];
    assert_applied(&desired, &old, &expected, 1);
}

#[test]
fn rules_of_a_load_balancer_that_is_not_managed_stay() {
    let old = [client(1, ALL, "a"), client(2, ALL, "b"), Rule::mtu(ALL, MTU)];
    let desired = DesiredRules {
        managed: names(&["b"]),
        ..DesiredRules::default()
    };
    let expected = ["icmp 3-4 0.0.0.0/0 mtu", "tcp 1-1 0.0.0.0/0 client=a"];
    assert_applied(&desired, &old, &expected, 1);
}

#[test]
fn rules_of_a_frozen_load_balancer_follow_its_nodes() {
    let source = Rule::new("-1", (-1, -1), "sg-elb", "");
    let rules = [
        client(1, ALL, "a"),
        client(2, ALL, "b"),
        Rule::mtu(ALL, MTU),
        source,
    ];
    let group = |id: &str| Object::new(ObjectKind::NodeGroup, id);
    let old = group("sg-1").entries(RULES, rules.map(SetEntry::Rule));
    let observed = ObservedPart {
        objects: [old, group("sg-2")].into_iter().collect(),
        ..ObservedPart::default()
    };
    let frozen = |kind, rule: &str| {
        let balancer = Object::new(kind, "a").with(fields::SECURITY_GROUPS, vec!["sg-elb"]);
        let desired = DesiredRules {
            frozen: vec![(balancer, names(&["sg-2"]))],
            ..DesiredRules::default()
        };
        let plan = desired.plan(&observed);
        let text = format!("{:?}", plan.steps);
        assert!(plan.steps.len() == 1 && text.contains(rule), "{text}");
    };
    frozen(ObjectKind::Balancer, "client=a");
    frozen(ObjectKind::Classic, "sg-elb");
}

#[test]
fn rules_from_the_groups_of_classic_load_balancers_are_removed_with_them() {
    let from = |source| Rule::new("-1", (-1, -1), source, "");
    // The last one is the nodes' own group, which a Service may name, too.
    let old = [from("sg-mine"), from("sg-peer"), from("sg-1")];
    let desired = DesiredRules {
        managed_sources: names(&["sg-mine", "sg-1"]),
        ..DesiredRules::default()
    };
    let expected = ["-1 -1--1 sg-1 ", "-1 -1--1 sg-peer "];
    assert_applied(&desired, &old, &expected, 1);
}

#[test]
fn the_security_group_of_a_node_is_the_first_one_with_the_clusters_tag() {
    type SendOutcome<'a> = Result<(&'a str, &'a [&'a str]), &'a str>;
    let key = "kubernetes.io/cluster/c";
    let untagged = "none of its security groups sg-1, sg-2 has the tag kubernetes.io/cluster/c";
    let cases: [(&[&str], &[&str], SendOutcome<'_>); 5] = [
        (&["sg-1"], &["sg-1"], Ok(("sg-1", &[]))),
        (&["sg-3", "sg-2", "sg-1"], &["sg-2", "sg-3"], Ok(("sg-2", &["sg-3"]))),
        (&["sg-1"], &[], Ok(("sg-1", &[]))),
        (&["sg-1", "sg-2"], &[], Err(untagged)),
        (&[], &[], Err("it has no security group")),
    ];
    for (groups, tagged, expected) in cases {
        let groups = groups.iter().map(|id| (*id).to_owned()).collect();
        let chosen = NodeGroup::choose(groups, |id| tagged.contains(&id.as_str()), key);
        match (&chosen, expected) {
            (Ok(chosen), Ok((id, others))) => {
                let found = (chosen.id.as_str(), chosen.others.join(" "));
                assert_eq!(found, (id, others.join(" ")));
            }
            (Err(why), Err(text)) => assert!(why.starts_with(text), "{why}"),
            _ => panic!("{chosen:?} is not {expected:?}"),
        }
    }
}
