use super::*;

annotations! {
    prefixes: ["acme.example/"];
    reference: "docs/reference/acme.md";
    /// No public address.
    INTERNAL = "acme.example/internal", "bool, default false";
    /// Whether the address is kept.
    KEEP = "acme.example/keep-address", "bool, default false";
    /// Whether members are checked.
    CHECK = "acme.example/health-check", "bool, default true";
    /// The most connections at once.
    LIMIT = "acme.example/connection-limit", "number, default -1";
    /// How long a client may be silent.
    TIMEOUT = "acme.example/timeout", "milliseconds, default 50000";
    /// The network.
    NETWORK = "acme.example/network", "text";
    /// The mode.
    MODE = "acme.example/mode", "fast or slow, default slow";
}

fn labels(pairs: &[(&str, &str)]) -> Labels {
    pairs.iter().map(|(key, value)| (*key, *value)).collect()
}

fn mode(text: &str) -> Option<&'static str> {
    ["fast", "slow"].into_iter().find(|mode| *mode == text)
}

#[test]
fn absent_valid_invalid_and_empty_values() {
    let labels = labels(&[
        (INTERNAL, "true"),
        (KEEP, "yes"),
        (LIMIT, "100"),
        (TIMEOUT, "many"),
        (NETWORK, ""),
        (MODE, "v3"),
    ]);
    let mut reader = AnnotationReader::new(&labels);
    assert!(reader.flag(INTERNAL, false));
    assert!(!reader.flag(KEEP, false));
    assert!(reader.flag(CHECK, true), "absent");
    assert_eq!(reader.number(LIMIT, -1, -1..=i64::MAX), 100);
    assert_eq!(reader.number(TIMEOUT, 50_000, 0..=60_000), 50_000);
    assert_eq!(reader.text(NETWORK, "net"), "", "replaces the config's");
    assert_eq!(reader.text("acme.example/x", "sub"), "sub");
    assert_eq!(reader.parsed(MODE, "slow", "slow", mode), "slow");
    let (ignored, invalid) = reader.finish();
    assert_eq!(invalid, []);
    let ignored: Vec<_> = ignored.iter().map(ToString::to_string).collect();
    assert_eq!(
        ignored,
        [
            "acme.example/keep-address: \"yes\" is not valid, false is used",
            "acme.example/timeout: \"many\" is not valid, 50000 is used",
            "acme.example/mode: \"v3\" is not valid, slow is used",
        ]
    );
    for empty in [CHECK, TIMEOUT] {
        let labels = [(empty, "")].into_iter().collect();
        let mut reader = AnnotationReader::new(&labels);
        reader.flag(CHECK, true);
        assert_eq!(reader.number(TIMEOUT, 50_000, 0..=60_000), 50_000);
        assert_eq!(reader.finish().0.len(), 1, "an empty {empty} has no meaning");
    }
}

#[test]
fn all_refused_fields_are_named_in_one_error() {
    let labels = labels(&[(LIMIT, "11"), (TIMEOUT, "-1")]);
    let mut reader = AnnotationReader::new(&labels);
    assert_eq!(reader.number(LIMIT, 1, 1..=10), 1);
    reader.number(TIMEOUT, 50_000, 0..=60_000);
    // A default out of the range is the config's own problem.
    assert_eq!(reader.number("acme.example/x", 11, 1..=10), 11);
    reader.refuse_field(InvalidField {
        field: Field::Whole,
        message: "x and y cannot be used together".to_owned(),
    });
    let invalid = reader.finish().1;
    let error = InvalidField::error(&invalid);
    assert_eq!(error.kind(), ErrorKind::InvalidSpec);
    assert_eq!(
        error.to_string(),
        "annotations: acme.example/connection-limit: 11 is not between 1 and 10; acme.example/timeout: -1 is not \
         between 0 and 60000; x and y cannot be used together"
    );
    let finding = invalid.first().map(|invalid| TABLE.invalid(invalid));
    let finding = finding.map(|finding| (finding.message, finding.fix));
    let fix = "takes: number, default -1. The most connections at once.";
    assert_eq!(finding, Some(("11 is not between 1 and 10".to_owned(), fix.to_owned())));
}

#[test]
fn strict_values_are_refused_if_they_are_of_the_wrong_type() {
    for (text, flag) in [
        ("True", Some(true)),
        ("0", Some(false)),
        ("t", Some(true)),
        ("yes", None),
    ] {
        let labels = labels(&[(KEEP, text)]);
        let mut reader = AnnotationReader::new(&labels);
        assert_eq!(reader.strict_flag(KEEP), flag, "{text}");
        assert_eq!(reader.finish().1.is_empty(), flag.is_some(), "{text}");
    }
    let labels = labels(&[(KEEP, "perhaps"), (LIMIT, "11"), (TIMEOUT, "often"), (MODE, "")]);
    let mut reader = AnnotationReader::new(&labels);
    assert_eq!(reader.strict_flag(KEEP), None);
    assert_eq!(reader.strict_number(LIMIT, 1..=10), None);
    assert_eq!(reader.strict_number(TIMEOUT, 1..=10), None);
    assert_eq!(reader.strict_number(NETWORK, 1..=10), None, "absent");
    let fast = |text: &str| mode(text).ok_or("it is neither fast nor slow");
    assert_eq!(reader.strict(MODE, fast), None);
    assert_eq!(reader.strict_choice(LIMIT, &["11", "12"]), Some("11"));
    assert_eq!(reader.strict_choice(KEEP, &["yes"]), None);
    assert_eq!(reader.strict_choice(TIMEOUT, &["long", "short"]), None);
    let (ignored, invalid) = reader.finish();
    assert_eq!(ignored, []);
    assert_eq!(
        InvalidField::error(&invalid).to_string(),
        "annotations: acme.example/keep-address: \"perhaps\" is neither true nor false; \
         acme.example/connection-limit: 11 is not between 1 and 10; \
         acme.example/timeout: \"often\" is not a whole number; \
         acme.example/mode: it is neither fast nor slow; \
         acme.example/keep-address: \"perhaps\" is not supported, only yes is; \
         acme.example/timeout: \"often\" is not one of long, short"
    );
}

#[test]
fn lists_and_maps_are_trimmed_and_lose_empty_items() {
    let labels = labels(&[
        (MODE, " fast ,, slow "),
        (NETWORK, "a=1, b=,c, =4,a=x=y"),
        (LIMIT, "1,x,3"),
    ]);
    let mut reader = AnnotationReader::new(&labels);
    assert_eq!(reader.list(MODE), Some(vec!["fast", "slow"]));
    assert_eq!(reader.texts(MODE), ["fast", "slow"]);
    assert_eq!(reader.list(KEEP), None);
    assert_eq!(reader.given(KEEP), None);
    let map = reader.map(NETWORK).into_iter().flatten();
    assert_eq!(map.collect::<Vec<_>>(), [("a", "x=y"), ("b", ""), ("c", "")]);
    let number = |item: &str| item.parse::<u8>().map_err(|_| format!("{item:?} is not a number"));
    assert_eq!(reader.strict_list(LIMIT, number), Some(vec![1, 3]));
    let invalid = reader.finish().1;
    assert_eq!(
        invalid.first().map(|invalid| invalid.message.as_str()),
        Some("acme.example/connection-limit: \"x\" is not a number")
    );
}

#[test]
fn a_misspelled_annotation_is_reported_with_the_nearest_name() {
    let labels = labels(&[
        ("acme.example/conection-limit", "1"),
        ("acme.example/zzz", "1"),
        (LIMIT, "1"),
        ("other.example/limit", "1"),
    ]);
    let found = TABLE.unknown(&labels).into_iter().map(|finding| finding.fix);
    assert_eq!(
        found.collect::<Vec<_>>(),
        [
            format!("did you mean {LIMIT}?"),
            "docs/reference/acme.md lists all annotations".to_owned()
        ]
    );
}
