//! Selects the subnets of the external network for floating IPs: `floating-subnet` and `floating-subnet-tags`.
//!
//! | Name | Selects subnets whose name |
//! |---|---|
//! | `pub-*` | matches: `*` any characters but `/`, `?` any one, `[a-c]` one of these, `{a,b}` one of these texts |
//! | `~pub-[0-9]+` | equals the first match of the regular expression in it |
//! | `!pub-*`, `!~pub` | does not match |
//!
//! | Tags | Selects subnets with |
//! |---|---|
//! | `a,b` | any of these tags |
//! | `&a,b` | all of them |
//! | `!a,b` | none of them |
//! | `!&a,b` | not all of them |

use ccm_core::{Error, ErrorKind, Result};
use regex::Regex;

use super::responses::Subnet;

/// Selects subnets by their names and tags.
#[derive(Clone, Debug)]
pub(crate) struct SubnetFilter {
    name: Option<NamePattern>,
    tags: TagExpression,
}

#[derive(Clone, Debug)]
struct NamePattern {
    negated: bool,
    pattern: Regex,
}

/// Selects subnets by their tags.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct TagExpression {
    negated: bool,
    all: bool,
    tags: Vec<String>,
}

impl SubnetFilter {
    /// Parses the two keys; each of them may be empty.
    ///
    /// # Errors
    /// If the pattern of the name is invalid.
    pub(crate) fn parse(name: &str, tags: &str) -> Result<Self> {
        let pattern = if name.is_empty() {
            None
        } else {
            let parsed = NamePattern::parse(name).map_err(|why| {
                Error::new(
                    ErrorKind::InvalidSpec,
                    format!("{name:?} is not a pattern for names of subnets: {why}"),
                )
            })?;
            Some(parsed)
        };
        Ok(Self {
            name: pattern,
            tags: TagExpression::parse(tags),
        })
    }

    /// Whether the subnet is selected.
    pub(crate) fn takes(&self, subnet: &Subnet) -> bool {
        self.name.as_ref().is_none_or(|name| name.takes(&subnet.name)) && self.tags.takes(&subnet.tags)
    }
}

impl NamePattern {
    fn parse(text: &str) -> Result<Self, String> {
        let (negated, text) = strip(text, '!');
        let expression = match text.strip_prefix('~') {
            Some(expression) => expression.to_owned(),
            None => glob(text)?,
        };
        let pattern = Regex::new(&expression).map_err(|error| {
            // The error has several lines; the last one is the reason.
            let text = error.to_string();
            text.lines().last().unwrap_or_default().trim().to_owned()
        })?;
        Ok(Self { negated, pattern })
    }

    /// The first match must be the whole name: `a|ab` does not select `ab`.
    fn takes(&self, name: &str) -> bool {
        let found = self.pattern.find(name).map_or("", |found| found.as_str());
        (found == name && self.pattern.is_match(name)) != self.negated
    }
}

/// Whether the text begins with a sign, and the text after it.
fn strip(text: &str, sign: char) -> (bool, &str) {
    text.strip_prefix(sign).map_or((false, text), |rest| (true, rest))
}

/// Translates a glob into a regular expression for the whole name.
fn glob(text: &str) -> Result<String, String> {
    let mut expression = String::from("^(?s:");
    let mut open = 0_u32;
    let mut chars = text.chars();
    while let Some(c) = chars.next() {
        match c {
            '*' => expression.push_str("[^/]*"),
            '?' => expression.push('.'),
            '[' => expression.push_str(&class(&mut chars)?),
            '{' => {
                open += 1;
                expression.push_str("(?:");
            }
            '}' if open > 0 => {
                open -= 1;
                expression.push(')');
            }
            ',' if open > 0 => expression.push('|'),
            other => expression.push_str(&regex::escape(other.encode_utf8(&mut [0; 4]))),
        }
    }
    if open > 0 {
        return Err("a { is not closed".to_owned());
    }
    expression.push_str(")$");
    Ok(expression)
}

/// Translates the class after a `[`, up to its `]`.
fn class(chars: &mut std::str::Chars<'_>) -> Result<String, String> {
    let mut class = String::from("[");
    let mut inside = String::new();
    for c in chars.by_ref() {
        match c {
            ']' if !inside.is_empty() => {
                class.push_str(&inside);
                class.push(']');
                return Ok(class);
            }
            '!' | '^' if inside.is_empty() && class.len() == 1 => class.push('^'),
            '-' => inside.push('-'),
            other => inside.push_str(&regex::escape(other.encode_utf8(&mut [0; 4]))),
        }
    }
    Err("a [ is not closed".to_owned())
}

impl TagExpression {
    fn parse(text: &str) -> Self {
        let (negated, text) = strip(text, '!');
        let (all, text) = strip(text, '&');
        let tags = text
            .split(|c: char| c == ',' || c.is_whitespace())
            .filter(|tag| !tag.is_empty())
            .map(str::to_owned)
            .collect();
        Self { negated, all, tags }
    }

    fn takes(&self, have: &[String]) -> bool {
        if self.tags.is_empty() {
            return true;
        }
        let mut required = self.tags.iter().map(|tag| have.contains(tag));
        let found = if self.all {
            required.all(|has| has)
        } else {
            required.any(|has| has)
        };
        found != self.negated
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    fn takes(name: &str, tags: &str, subnet: (&str, &[&str])) -> bool {
        let (subnet, have) = subnet;
        SubnetFilter::parse(name, tags).unwrap().takes(&Subnet {
            name: subnet.into(),
            tags: have.iter().map(|tag| (*tag).to_owned()).collect(),
            ..Subnet::default()
        })
    }

    #[test]
    fn names_are_globs_for_the_whole_name() {
        for (pattern, name, fits) in [
            ("", "anything", true),
            ("*", "anything", true),
            ("*", "a/b", false),
            ("pub-*", "pub-1", true),
            ("pub-*", "my-pub-1", false),
            ("pub-?", "pub-1", true),
            ("pub-?", "pub-12", false),
            ("pub-?", "pub-ü", true),
            ("pub[0-2]", "pub1", true),
            ("pub[!0-2]", "pub1", false),
            ("pub[!0-2]", "pub7", true),
            ("{red,blue}-net", "blue-net", true),
            ("{red,blue*}-net", "blue2-net", true),
            ("{red,blue}-net", "green-net", false),
            ("a.b", "a.b", true),
            ("a.b", "axb", false),
            ("a,b", "a,b", true),
            ("a+(b)", "a+(b)", true),
            ("!pub-*", "pub-1", false),
            ("!pub-*", "other", true),
        ] {
            assert_eq!(takes(pattern, "", (name, &[])), fits, "{pattern:?} for {name:?}");
        }
    }

    #[test]
    fn a_regular_expression_must_match_the_whole_name_first() {
        for (pattern, name, fits) in [
            ("~pub-[0-9]+", "pub-42", true),
            ("~pub", "pub-42", false),
            ("~.*", "", true),
            ("~a|ab", "a", true),
            // The first match is shorter than the name.
            ("~a|ab", "ab", false),
            ("~ab|a", "ab", true),
            ("!~pub-[0-9]+", "pub-42", false),
            ("!~pub-[0-9]+", "pub-x", true),
        ] {
            assert_eq!(takes(pattern, "", (name, &[])), fits, "{pattern:?} for {name:?}");
        }
    }

    #[test]
    fn tags_are_any_all_none_or_not_all() {
        for (expression, have, fits) in [
            ("", &[][..], true),
            ("a,b", &["b"], true),
            ("a b", &["b"], true),
            ("a,b", &["c"], false),
            ("&a,b", &["a", "b", "c"], true),
            ("&a, b", &["a"], false),
            ("!a,b", &["c"], true),
            ("!a,b", &["a"], false),
            ("!&a,b", &["a"], true),
            ("!&a,b", &["a", "b"], false),
            ("!a", &["a"], false),
            ("!&a", &["a"], false),
        ] {
            assert_eq!(takes("", expression, ("x", have)), fits, "{expression:?} for {have:?}");
        }
        assert!(takes("pub*", "&dmz", ("pub1", &["dmz"])));
        assert!(!takes("pub*", "&dmz", ("pub1", &[])) && !takes("pub*", "&dmz", ("x", &["dmz"])));
    }

    #[test]
    fn invalid_patterns_are_refused() {
        for pattern in ["~(", "pub[1", "{a,b", "pub[]", "!~["] {
            let error = SubnetFilter::parse(pattern, "").unwrap_err();
            assert_eq!(error.kind(), ErrorKind::InvalidSpec);
            assert!(error.to_string().contains(&format!("{pattern:?}")), "{error}");
            assert!(!error.to_string().contains('\n'));
        }
    }
}
