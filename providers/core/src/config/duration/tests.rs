#![allow(clippy::unwrap_used, clippy::expect_used)]

use std::time::Duration;

use proptest::prelude::*;

use super::{DurationError, GoDuration, format, parse};

#[test]
fn reads_what_go_reads() {
    let cases: &[(&str, i64)] = &[
        ("0", 0),
        ("-0", 0),
        ("+0", 0),
        ("0s", 0),
        ("5s", 5_000_000_000),
        ("30s", 30_000_000_000),
        ("1478s", 1_478_000_000_000),
        ("-5s", -5_000_000_000),
        ("+5s", 5_000_000_000),
        ("5.0s", 5_000_000_000),
        ("5.6s", 5_600_000_000),
        ("5.s", 5_000_000_000),
        (".5s", 500_000_000),
        ("1.004s", 1_004_000_000),
        ("1.0040s", 1_004_000_000),
        ("100.00100s", 100_001_000_000),
        ("10ns", 10),
        ("11us", 11_000),
        ("12µs", 12_000),
        ("12\u{3bc}s", 12_000),
        ("13ms", 13_000_000),
        ("14s", 14_000_000_000),
        ("15m", 900_000_000_000),
        ("16h", 57_600_000_000_000),
        ("1m30s", 90_000_000_000),
        ("0.5h", 1_800_000_000_000),
        ("3h30m", 12_600_000_000_000),
        ("10.5s4m", 250_500_000_000),
        ("-2m3.4s", -123_400_000_000),
        ("1h2m3s4ms5us6ns", 3_723_004_005_006),
        ("9007199254740993ns", 9_007_199_254_740_993),
        ("9223372036854775807ns", i64::MAX),
        ("9223372036854775.807us", i64::MAX),
        ("9223372036s854ms775us807ns", i64::MAX),
        ("-9223372036854775808ns", i64::MIN),
        ("-9223372036854775.808us", i64::MIN),
        ("0.100000000000000000000h", 360_000_000_000),
        ("0.830103483285477580700h", 2_988_372_539_827),
    ];
    for (text, nanos) in cases {
        assert_eq!(parse(text), Ok(GoDuration(*nanos)), "{text}");
    }
}

#[test]
fn refuses_what_go_refuses_with_the_same_text() {
    let cases: &[(&str, &str)] = &[
        ("", r#"time: invalid duration """#),
        ("3", r#"time: missing unit in duration "3""#),
        ("-", r#"time: invalid duration "-""#),
        ("s", r#"time: invalid duration "s""#),
        (".", r#"time: invalid duration ".""#),
        ("-.", r#"time: invalid duration "-.""#),
        (".s", r#"time: invalid duration ".s""#),
        ("+.s", r#"time: invalid duration "+.s""#),
        ("1d", r#"time: unknown unit "d" in duration "1d""#),
        ("5 s", r#"time: unknown unit " s" in duration "5 s""#),
        ("5S", r#"time: unknown unit "S" in duration "5S""#),
        (" 5s", r#"time: invalid duration " 5s""#),
        ("1m5", r#"time: missing unit in duration "1m5""#),
        ("--5s", r#"time: invalid duration "--5s""#),
        ("1\u{663}s", "time: unknown unit \"\u{663}s\" in duration \"1\u{663}s\""),
        ("9223372036854775810ns", r#"time: invalid duration "9223372036854775810ns""#),
        ("9223372036854775808ns", r#"time: invalid duration "9223372036854775808ns""#),
        ("-9223372036854775809ns", r#"time: invalid duration "-9223372036854775809ns""#),
        ("9223372036854776us", r#"time: invalid duration "9223372036854776us""#),
        ("3000000h", r#"time: invalid duration "3000000h""#),
        ("99999999999999999999h", r#"time: invalid duration "99999999999999999999h""#),
        ("9223372036854775807ns1ns", r#"time: invalid duration "9223372036854775807ns1ns""#),
    ];
    for (text, message) in cases {
        assert_eq!(parse(text).unwrap_err().to_string(), *message, "{text:?}");
    }
}

#[test]
fn a_bare_number_has_a_correction() {
    assert_eq!(parse("5").unwrap_err().hint(), "write 5s for seconds");
    assert_eq!(parse("1m5").unwrap_err().hint(), "write 1m5s for seconds");
    assert!(parse("5d").unwrap_err().hint().contains("1m30s"));
    assert!(matches!(parse("5"), Err(DurationError::MissingUnit(_))));
}

#[test]
fn prints_as_go_does() {
    let cases: &[(i64, &str)] = &[
        (0, "0s"),
        (1, "1ns"),
        (1_100, "1.1µs"),
        (2_200_000, "2.2ms"),
        (100_000_000, "100ms"),
        (1_500_000_000, "1.5s"),
        (3_300_000_000, "3.3s"),
        (60_000_000_000, "1m0s"),
        (245_000_000_000, "4m5s"),
        (245_001_000_000, "4m5.001s"),
        (300_000_000_000, "5m0s"),
        (3_600_000_000_000, "1h0m0s"),
        (18_367_001_000_000, "5h6m7.001s"),
        (480_000_000_001, "8m0.000000001s"),
        (-1_500_000_000, "-1.5s"),
        (i64::MAX, "2562047h47m16.854775807s"),
        (i64::MIN, "-2562047h47m16.854775808s"),
    ];
    for (nanos, text) in cases {
        assert_eq!(format(GoDuration(*nanos)), *text);
    }
}

#[test]
fn converts_to_and_from_the_standard_duration() {
    assert_eq!(GoDuration::from_secs(5).to_std(), Duration::from_secs(5));
    assert_eq!(GoDuration(-1).to_std(), Duration::ZERO);
    assert_eq!(GoDuration::from(Duration::MAX), GoDuration::MAX);
    assert_eq!(format(Duration::from_millis(1_500)), "1.5s");
}

#[test]
fn serde_reads_the_go_form() {
    assert_eq!(serde_json::from_str::<GoDuration>(r#""1m30s""#).unwrap(), GoDuration::from_secs(90));
    assert!(serde_json::from_str::<GoDuration>(r#""90""#).is_err());
}

proptest! {
    #[test]
    fn every_duration_survives_print_and_read(nanos in any::<i64>()) {
        let duration = GoDuration(nanos);
        prop_assert_eq!(parse(&format(duration)), Ok(duration));
    }

    #[test]
    fn every_standard_duration_in_range_survives(nanos in 0..i64::MAX as u64) {
        let duration = Duration::from_nanos(nanos);
        prop_assert_eq!(parse(&format(duration)).unwrap().to_std(), duration);
    }

    #[test]
    fn no_text_makes_it_panic(text in "[-+.0-9a-zµ ]{0,40}|.{0,20}") {
        if let Ok(duration) = parse(&text) {
            prop_assert_eq!(parse(&format(duration)), Ok(duration));
        }
    }
}
