#![allow(clippy::unwrap_used, clippy::expect_used)]

use proptest::prelude::*;

use super::{Document, Position, parse};

/// The document's keys as `section/subsection/key=value`; `!` stands for a key without a value.
fn flat(document: &Document) -> Vec<String> {
    let mut lines = Vec::new();
    for section in &document.sections {
        let sub = section.subsection.as_ref().map_or("-", |name| name.text.as_str());
        if section.entries.is_empty() {
            lines.push(format!("{}/{sub}", section.name.text));
        }
        for entry in &section.entries {
            let value = entry.value.as_ref().map_or("!".to_owned(), |value| format!("={}", value.text));
            lines.push(format!("{}/{sub}/{}{value}", section.name.text, entry.key.text));
        }
    }
    lines
}

fn ok(text: &str) -> Vec<String> {
    let (document, errors) = parse(text);
    assert!(errors.is_empty(), "{text:?}: {errors:?}");
    flat(&document)
}

fn errors(text: impl AsRef<[u8]>) -> Vec<String> {
    parse(text)
        .1
        .iter()
        .map(|error| format!("{}: {}", error.position, error.message))
        .collect()
}

/// The value of the one key `k` of a section.
fn value(text: &str) -> String {
    let (document, errors) = parse(format!("[s]\nk ={text}"));
    assert!(errors.is_empty(), "{text:?}: {errors:?}");
    document.sections[0].entries[0].value.as_ref().unwrap().text.clone()
}

#[test]
fn a_byte_order_mark_is_an_error() {
    let (document, errors) = parse("\u{feff}[Global]\nkey = 1\n");
    let text = errors[0].to_string();
    assert_eq!((document.sections.len(), errors.len()), (1, 1), "{errors:?}");
    assert!(text.starts_with("1:1: illegal character U+FEFF; "), "{text}");
    assert!(text.contains("byte-order mark"), "{text}");
}

#[test]
fn bytes_that_are_no_utf8_and_nul_are_errors_even_in_comments() {
    assert_eq!(
        errors(b"[s]\nk = a\xffb\n; \xfe\xfd\nok = 1"),
        ["2:6: illegal UTF-8 encoding", "3:3: illegal UTF-8 encoding"]
    );
    assert_eq!(errors("[s]\nk = a\0b\0"), ["2:6: illegal character NUL"]);
    assert_eq!(errors("[s]\n\0"), ["2:1: illegal character NUL"]);
}

#[test]
fn carriage_returns_are_white_space_and_leave_no_trace_in_values() {
    assert_eq!(ok("[s]\r\nk = v\r\nl\r\n"), ["s/-/k=v", "s/-/l!"]);
    assert_eq!(value("a\rb"), "ab");
    assert_eq!(value("\"a\rb\r\""), "ab");
    assert_eq!(value("a\\\r\nb"), "ab");
}

#[test]
fn section_names_are_letters_then_letters_digits_and_hyphens() {
    assert_eq!(ok("[a]"), ["a/-"]);
    assert_eq!(ok("[a-1]"), ["a-1/-"]);
    assert_eq!(ok("[Grüße2]"), ["Grüße2/-"]);
    assert_eq!(ok(" [ a\t] ; x"), ["a/-"]);
    assert_eq!(errors("[1a]"), ["1:2: illegal character U+0031 '1'"]);
    assert_eq!(errors("[-a]"), ["1:2: illegal character U+002D '-'"]);
    assert_eq!(errors("[a_b]"), ["1:3: illegal character U+005F '_'"]);
    assert_eq!(errors("[a.b]"), ["1:3: illegal character U+002E '.'"]);
    assert_eq!(errors("[]"), ["1:2: expected section name"]);
    assert_eq!(errors("[\"a\"]"), ["1:2: expected section name"]);
    assert_eq!(errors("[a"), ["1:3: expected subsection name or right bracket"]);
    assert_eq!(errors("[a b]"), ["1:4: expected subsection name or right bracket"]);
    assert_eq!(errors("[a \"b\" c]"), ["1:8: expected right bracket"]);
}

#[test]
fn after_a_header_only_a_comment_may_follow() {
    assert_eq!(ok("[a] # x\n[b];y\n[c]"), ["a/-", "b/-", "c/-"]);
    assert_eq!(errors("[a] k = v"), ["1:5: expected EOL, EOF, or comment"]);
    assert_eq!(errors("[a][b]"), ["1:4: expected EOL, EOF, or comment"]);
}

#[test]
fn names_are_compared_without_case() {
    let (document, _) = parse("[GLOBAL]\nAuth-URL = x");
    assert!(document.sections[0].name.is("global"));
    assert!(document.sections[0].entries[0].key.is("auth-url"));
    assert!(!document.sections[0].entries[0].key.is("authurl"));
}

#[test]
fn subsections_keep_case_and_know_two_escapes() {
    assert_eq!(ok("[x \"Ab c\"]"), ["x/Ab c"]);
    assert_eq!(ok("[x\"a\"]"), ["x/a"]);
    assert_eq!(ok(r#"[x "a\\b\"c"]"#), [r#"x/a\b"c"#]);
    assert_eq!(ok("[x \"a;b#c]\"]"), ["x/a;b#c]"]);
    assert_eq!(errors("[x \"\"]"), ["1:4: empty subsection name"]);
    assert_eq!(errors(r#"[x "a\n"]"#), ["1:6: unknown escape sequence"]);
    assert_eq!(
        errors("[x \"a\n\"]"),
        [
            "1:4: string not terminated",
            "2:1: expected section header or variable declaration"
        ]
    );
    assert_eq!(errors("[x \"a"), ["1:4: string not terminated"]);
}

#[test]
fn keys_have_the_form_of_section_names() {
    assert_eq!(ok("[s]\nauth-url=a\nb2 = c"), ["s/-/auth-url=a", "s/-/b2=c"]);
    let (_, wrong) = parse("[s]\nauth_url = a");
    assert_eq!(
        wrong[0].to_string(),
        "2:5: illegal character U+005F '_'; names are written with '-', not '_'"
    );
    assert_eq!(errors("[s]\n2b = c"), ["2:1: illegal character U+0032 '2'"]);
    assert_eq!(errors("[s]\nk v"), ["2:3: expected '='"]);
    assert_eq!(errors("[s]\nk: v"), ["2:2: illegal character U+003A ':'"]);
    assert_eq!(errors("[s]\n= v"), ["2:1: expected section header or variable declaration"]);
}

#[test]
fn white_space_around_values_is_dropped_unless_quoted() {
    assert_eq!(value(" \t a b \t "), "a b");
    assert_eq!(value("\" a \""), " a ");
    assert_eq!(value("a \"b \" "), "a b ");
    assert_eq!(value("\"a\" "), "a");
    assert_eq!(value("a=b"), "a=b");
    assert_eq!(value("[x]"), "[x]");
}

#[test]
fn comments_begin_anywhere_outside_quotes() {
    assert_eq!(value("ab#cd"), "ab");
    assert_eq!(value("ab ;cd"), "ab");
    assert_eq!(value("#x"), "");
    assert_eq!(ok("; a\n# b\n[s] # c\n  ; d\nk # e\nl ;"), ["s/-/k!", "s/-/l!"]);
}

#[test]
fn quotes_switch_anywhere_and_are_dropped() {
    assert_eq!(value("a\"b;c\"d"), "ab;cd");
    assert_eq!(value("\"\""), "");
    assert_eq!(value("\"a\"\"b\""), "ab");
    assert_eq!(errors("[s]\nk = a\"b"), ["2:6: string not terminated"]);
    assert_eq!(errors("[s]\nk = \"b\nl = 1"), ["2:5: string not terminated"]);
}

#[test]
fn four_escapes_are_known_in_quotes() {
    assert_eq!(value(r#""a\\b\"c\nd\te""#), "a\\b\"c\nd\te");
    assert_eq!(errors("[s]\nk = \"a\\r\""), ["2:7: unknown escape sequence"]);
    assert_eq!(errors("[s]\nk = \"a\\\n"), ["2:7: unknown escape sequence"]);
}

#[test]
fn a_backslash_outside_quotes_precedes_a_quote_or_the_line_end() {
    assert_eq!(value(r#"a\"b"#), "a\"b");
    assert_eq!(value("a\\\nb"), "ab");
    assert_eq!(value("a \\\n  b \\\n c"), "a   b  c");
    assert_eq!(value("a\\\n#b"), "a");
    let message = r"unquoted '\' must be followed by new line or double quote";
    assert_eq!(errors("[s]\nk = C:\\x"), [format!("2:7: {message}")]);
    assert_eq!(errors("[s]\nk = a\\"), [format!("2:6: {message}")]);
    assert_eq!(errors("[s]\nk = a\\\\b"), [format!("2:6: {message}")]);
}

#[test]
fn no_value_is_not_an_empty_value() {
    assert_eq!(ok("[s]\nk\nl=\nm = \"\"\nn = ; x\no"), ["s/-/k!", "s/-/l=", "s/-/m=", "s/-/n=", "s/-/o!"]);
}

#[test]
fn repeated_sections_and_keys_stay_in_order() {
    assert_eq!(ok("[s]\nk=1\n[t]\n[s]\nk=2\nk=3"), ["s/-/k=1", "t/-", "s/-/k=2", "s/-/k=3"]);
}

#[test]
fn keys_before_any_section_are_one_error() {
    assert_eq!(errors("k = v\nl = w\n[s]\nm = x"), ["1:1: expected section header"]);
    assert_eq!(errors("= v"), ["1:1: expected section header"]);
}

#[test]
fn all_syntax_errors_of_a_file_are_reported() {
    let text = "[Global\nauth-url = \"x\n[Load Balancer]\nuse_octavia = true\n[Route]\nrouter-id = a\\b\nok = 1\n@\n";
    let (document, _) = parse(text);
    assert_eq!(
        errors(text),
        [
            "1:8: expected subsection name or right bracket",
            "2:12: string not terminated",
            "3:7: expected subsection name or right bracket",
            "4:4: illegal character U+005F '_'",
            "6:14: unquoted '\\' must be followed by new line or double quote",
            "8:1: illegal character U+0040 '@'",
        ]
    );
    assert_eq!(flat(&document), ["Route/-/ok=1"]);
}

#[test]
fn everything_has_its_place() {
    let (document, _) = parse("\n [s \"x\"]\n\tkey = a\\\n  b  # c\n  ü = \"é\"\n");
    let at = |line, column| Position { line, column };
    let section = &document.sections[0];
    assert_eq!((section.name.start, section.name.end), (at(2, 3), at(2, 4)));
    let sub = section.subsection.as_ref().unwrap();
    assert_eq!((sub.start, sub.end), (at(2, 5), at(2, 8)));
    let entry = &section.entries[0];
    assert_eq!((entry.key.start, entry.key.end), (at(3, 2), at(3, 5)));
    let value = entry.value.as_ref().unwrap();
    assert_eq!((value.start, value.end), (at(3, 8), at(4, 4)));
    // Columns count bytes.
    assert_eq!(section.entries[1].key.end, at(5, 5));
    assert_eq!(section.entries[1].position(), at(5, 8));
}

#[test]
fn debug_shows_no_value() {
    let (document, _) = parse("[s]\npassword = hunter2");
    assert!(!format!("{document:?}").contains("hunter2"));
}

/// Writes a value so that it reads back as it is.
fn quoted(value: &str) -> String {
    let escaped = value.replace('\\', r"\\").replace('"', "\\\"").replace('\n', r"\n").replace('\t', r"\t");
    format!("\"{escaped}\"")
}

proptest! {
    #[test]
    fn quoted_values_survive(text in "[^\r\0]{0,40}") {
        prop_assert_eq!(value(&quoted(&text)), text);
    }

    #[test]
    fn no_bytes_make_it_panic(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
        let (_, errors) = parse(&bytes);
        let mut lines: Vec<usize> = errors.iter().map(|error| error.position.line).collect();
        lines.dedup();
        // At most two errors a line: a key before any section may have one of its own.
        prop_assert!(errors.len() <= 2 * lines.len());
    }

    #[test]
    fn no_tokens_make_it_panic(tokens in prop::collection::vec(
        prop::sample::select(vec![
            "[", "]", "\"", "\\", "\n", "\r", "=", ";", "#", " ", "\t", "a", "key", "Global", "-", "_", "1", "\\n", "é",
            "\u{feff}", "\0",
        ]),
        0..60,
    )) {
        let text = tokens.concat();
        let (document, _) = parse(&text);
        for section in &document.sections {
            for entry in &section.entries {
                prop_assert!(entry.key.start < entry.key.end);
                if let Some(value) = &entry.value {
                    prop_assert!(entry.key.end < value.start && value.start <= value.end);
                }
            }
        }
    }
}
