//! Annotations of Services: a provider's table of them, and the reader of their values.
//!
//! A provider declares its annotations once, with [`annotations!`]. The table is the users' reference, the list against
//! which misspelled names are compared, and the text that `validate` shows beside a wrong value.
//! [`AnnotationReader`] reads the values of one Service and collects everything that is wrong with them.

use std::{collections::BTreeMap, fmt, ops::RangeInclusive, str::FromStr};

use super::{Field, ServiceEvent, ServiceFinding, ServiceId, Severity};
use crate::{Error, ErrorKind, Labels, config::suggest, flags::parse_bool};

/// Declares the annotations of a provider: a constant for each, with its name, the values that it takes and, as its doc
/// comment, its meaning for users. `TABLE` is the [`AnnotationTable`] of all.
///
/// ```
/// mod annotations {
///     ccm_core::load_balancer::annotations! {
///         prefixes: ["acme.example/"];
///         reference: "docs/reference/acme.md";
///         /// The load balancer has no public address.
///         INTERNAL = "acme.example/internal", "bool, default false";
///     }
/// }
///
/// assert_eq!(annotations::INTERNAL, "acme.example/internal");
/// assert!(annotations::TABLE.markdown().contains("has no public address"));
/// ```
#[macro_export]
macro_rules! annotations {
    (
        prefixes: [$($prefix:literal),+];
        reference: $reference:literal;
        $($(#[doc = $about:literal])+ $name:ident = $text:literal, $values:literal;)+
    ) => {
        $($(#[doc = $about])+ pub(crate) const $name: &str = $text;)+

        /// All annotations.
        pub(crate) const TABLE: $crate::load_balancer::AnnotationTable = $crate::load_balancer::AnnotationTable {
            prefixes: &[$($prefix),+],
            reference: $reference,
            entries: &[$($crate::load_balancer::AnnotationDoc {
                name: $name,
                values: $values,
                about: concat!($($about),+),
            }),+],
        };
    };
}

/// The documentation of one annotation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AnnotationDoc {
    /// Its name.
    pub name: &'static str,
    /// The values that it takes, and the default: `bool, default false`.
    pub values: &'static str,
    /// Its meaning for users.
    pub about: &'static str,
}

/// The annotations of a provider; created by [`annotations!`].
#[derive(Clone, Copy, Debug)]
pub struct AnnotationTable {
    /// The prefixes of the provider's annotations. An annotation with such a prefix that is not in the table is a mistake.
    pub prefixes: &'static [&'static str],
    /// The page that documents the table for users.
    pub reference: &'static str,
    /// The annotations.
    pub entries: &'static [AnnotationDoc],
}

impl AnnotationTable {
    /// The users' reference: a Markdown table.
    #[must_use]
    pub fn markdown(&self) -> String {
        let mut lines = vec!["| Annotation | Value | Effect |\n|---|---|---|\n".to_owned()];
        for AnnotationDoc { name, values, about } in self.entries {
            lines.push(format!("| `{name}` | {values} | {} |\n", about.trim()));
        }
        lines.concat()
    }

    /// A provider's reference for users: the text by hand, its annotations after an introduction to all of them, and the `keys`
    /// of its config file.
    #[must_use]
    pub fn reference(&self, by_hand: &str, introduction: &str, keys: &str) -> String {
        let annotations = format!("{introduction}\n\n{}", self.markdown());
        format!(
            "{by_hand}\n# Annotations of Services\n\n{}\n# Keys of the config file\n\n{keys}",
            annotations.trim_start()
        )
    }

    /// The values and the meaning of an annotation, to show beside a wrong value. Empty for other fields.
    fn takes(&self, field: &Field) -> String {
        match self.entries.iter().find(|entry| *field == Field::annotation(entry.name)) {
            Some(entry) => format!("takes: {}. {}", entry.values, entry.about.trim()),
            None => String::new(),
        }
    }

    /// The finding about a field that is refused.
    #[must_use]
    pub fn invalid(&self, invalid: &InvalidField) -> ServiceFinding {
        ServiceFinding {
            severity: Severity::Error,
            fix: self.takes(&invalid.field),
            message: invalid.bare().to_owned(),
            field: invalid.field.clone(),
        }
    }

    /// The finding about a value that is ignored.
    #[must_use]
    pub fn ignored(&self, ignored: &IgnoredValue) -> ServiceFinding {
        let field = Field::annotation(ignored.key);
        ServiceFinding {
            severity: Severity::Warning,
            fix: self.takes(&field),
            message: ignored.problem.clone(),
            field,
        }
    }

    /// All findings about a Service: refused fields, ignored values, and annotations that are not in the table.
    #[must_use]
    pub fn findings(
        &self,
        annotations: &Labels,
        invalid: &[InvalidField],
        ignored: &[IgnoredValue],
    ) -> Vec<ServiceFinding> {
        let mut findings = Vec::new();
        findings.extend(invalid.iter().map(|invalid| self.invalid(invalid)));
        findings.extend(ignored.iter().map(|ignored| self.ignored(ignored)));
        findings.extend(self.unknown(annotations));
        findings
    }

    /// The findings about annotations that have a prefix of the provider's and are not in the table.
    #[must_use]
    pub fn unknown(&self, annotations: &Labels) -> Vec<ServiceFinding> {
        // All names are alike up to the slash.
        let by_end: BTreeMap<&str, &str> = self
            .entries
            .iter()
            .filter_map(|entry| Some((entry.name.rsplit_once('/')?.1, entry.name)))
            .collect();
        let mut findings = Vec::new();
        for (key, _) in annotations.iter() {
            let has_prefix = self.prefixes.iter().any(|prefix| key.starts_with(prefix));
            if !has_prefix || self.entries.iter().any(|entry| entry.name == key) {
                continue;
            }
            let end = key.rsplit_once('/').map_or(key, |(_, end)| end);
            let near = suggest::nearest(end, by_end.keys().copied()).and_then(|end| by_end.get(end));
            findings.push(ServiceFinding {
                severity: Severity::Warning,
                field: Field::annotation(key),
                message: "no such annotation, it has no effect".to_owned(),
                fix: match near {
                    Some(near) => format!("did you mean {near}?"),
                    None => format!("{} lists all annotations", self.reference),
                },
            });
        }
        findings
    }
}

/// An annotation whose value is ignored, in whole or in part.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct IgnoredValue {
    /// The annotation.
    pub key: &'static str,
    /// The problem, and the value that is used instead.
    pub problem: String,
}

impl IgnoredValue {
    /// A Warning about all ignored values; `None` without any.
    #[must_use]
    pub fn event(all: &[Self], service: &ServiceId) -> Option<ServiceEvent> {
        let texts: Vec<_> = all.iter().map(ToString::to_string).collect();
        let reason = "LoadBalancerAnnotationIgnored";
        (!texts.is_empty()).then(|| ServiceEvent::warning(service, reason, texts.join("; ")))
    }
}

impl fmt::Display for IgnoredValue {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.key, self.problem)
    }
}

/// A field or annotation because of which a Service is refused.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct InvalidField {
    /// The field.
    pub field: Field,
    /// The problem. The text names the field.
    pub message: String,
}

impl InvalidField {
    /// An annotation with this problem, which does not name it.
    #[must_use]
    pub fn annotation(key: &str, problem: impl fmt::Display) -> Self {
        Self {
            field: Field::annotation(key),
            message: format!("{key}: {problem}"),
        }
    }

    /// A field of the `spec` with this problem, which does not name it.
    #[must_use]
    pub fn spec(field: &'static str, problem: impl fmt::Display) -> Self {
        Self {
            field: Field::Spec(field),
            message: format!("spec.{field}: {problem}"),
        }
    }

    /// The message without the name of the field at its beginning.
    fn bare(&self) -> &str {
        let message = self.message.as_str();
        message
            .strip_prefix("annotation ")
            .unwrap_or(message)
            .strip_prefix(&self.field.to_string())
            .and_then(|rest| rest.strip_prefix(": "))
            .unwrap_or(message)
    }

    /// One error about all invalid fields.
    #[must_use]
    pub fn error(all: &[Self]) -> Error {
        let messages: Vec<_> = all.iter().map(|invalid| invalid.message.as_str()).collect();
        Error::new(ErrorKind::InvalidSpec, format!("annotations: {}", messages.join("; ")))
    }
}

/// Reads the annotations of one Service and collects the problems in them.
///
/// Go cloud-controller-managers differ in the handling of values of a wrong type. [`parsed`](Self::parsed), [`flag`](Self::flag),
/// [`lenient_flag`](Self::lenient_flag) and [`number`](Self::number) ignore and report it, and the default is used. The methods that begin with `strict` refuse the
/// Service. A number out of its range is refused by both.
#[derive(Debug)]
pub struct AnnotationReader<'a> {
    annotations: &'a Labels,
    ignored: Vec<IgnoredValue>,
    invalid: Vec<InvalidField>,
}

impl<'a> AnnotationReader<'a> {
    /// A reader of these annotations.
    #[must_use]
    pub fn new(annotations: &'a Labels) -> Self {
        Self {
            annotations,
            ignored: Vec::new(),
            invalid: Vec::new(),
        }
    }

    /// The unchanged value, even if it is empty; `None` without the annotation.
    #[must_use]
    pub fn get(&self, key: &str) -> Option<&'a str> {
        self.annotations.get(key)
    }

    /// The unchanged value, or the default without the annotation.
    #[must_use]
    pub fn text(&self, key: &str, default: &str) -> String {
        self.get(key).unwrap_or(default).to_owned()
    }

    /// The reader, for an annotation whose empty value is its default.
    pub fn unless_empty(&mut self, key: &str) -> Option<&mut Self> {
        self.given(key).map(|_| self)
    }

    /// The value, if it is not empty.
    #[must_use]
    pub fn given(&self, key: &str) -> Option<String> {
        let text = self.get(key).filter(|text| !text.is_empty());
        text.map(str::to_owned)
    }

    /// A value that `parse` reads. `default` is used without the annotation, and if `parse` returns `None`; `shown` is the
    /// default as the warning names it.
    pub fn parsed<T>(
        &mut self,
        key: &'static str,
        default: T,
        shown: impl fmt::Display,
        parse: impl FnOnce(&str) -> Option<T>,
    ) -> T {
        let Some(text) = self.get(key) else {
            return default;
        };
        parse(text).unwrap_or_else(|| {
            self.warn(key, format!("{text:?} is not valid, {shown} is used"));
            default
        })
    }

    /// `true` or `false`.
    pub fn flag(&mut self, key: &'static str, default: bool) -> bool {
        self.parsed(key, default, default, |text| text.parse().ok())
    }

    /// A boolean in the spellings of Go's `strconv.ParseBool`; anything else is ignored.
    pub fn lenient_flag(&mut self, key: &'static str, default: bool) -> bool {
        self.parsed(key, default, default, |text| parse_bool(text).ok())
    }

    /// A whole number in a range.
    pub fn number<T>(&mut self, key: &'static str, default: T, allowed: RangeInclusive<T>) -> T
    where
        T: FromStr + PartialOrd + fmt::Display + Copy,
    {
        match self.parsed(key, None, default, |text| text.parse().ok().map(Some)) {
            Some(number) if allowed.contains(&number) => number,
            Some(number) => {
                let (least, most) = allowed.into_inner();
                self.refuse(key, format_args!("{number} is not between {least} and {most}"));
                default
            }
            None => default,
        }
    }

    /// A value that `parse` reads; a value that it cannot read is refused with its problem. `None` without the annotation.
    pub fn strict<T, E: fmt::Display>(
        &mut self,
        key: &'static str,
        parse: impl FnOnce(&str) -> Result<T, E>,
    ) -> Option<T> {
        match parse(self.get(key)?) {
            Ok(value) => Some(value),
            Err(problem) => {
                self.refuse(key, problem);
                None
            }
        }
    }

    /// One of these values; anything else is refused.
    pub fn strict_choice(&mut self, key: &'static str, values: &[&'static str]) -> Option<&'static str> {
        self.strict(key, |text| {
            let found = values.iter().copied().find(|value| *value == text);
            found.ok_or_else(|| match values {
                [only] => format!("{text:?} is not supported, only {only} is"),
                several => format!("{text:?} is not one of {}", several.join(", ")),
            })
        })
    }

    /// A boolean in the spellings of Go's `strconv.ParseBool`; anything else is refused.
    pub fn strict_flag(&mut self, key: &'static str) -> Option<bool> {
        self.strict(key, |text| parse_bool(text).map_err(|_| format!("{text:?} is neither true nor false")))
    }

    /// A whole number in a range; anything else is refused.
    pub fn strict_number<T>(&mut self, key: &'static str, allowed: RangeInclusive<T>) -> Option<T>
    where
        T: FromStr + PartialOrd + fmt::Display,
    {
        self.strict(key, |text| match text.parse() {
            Ok(number) if allowed.contains(&number) => Ok(number),
            // One that the type cannot hold is a number, too.
            _ if text.parse::<i128>().is_ok() => {
                Err(format!("{text} is not between {} and {}", allowed.start(), allowed.end()))
            }
            _ => Err(format!("{text:?} is not a whole number")),
        })
    }

    /// A text that is `what`, without surrounding space; anything else is refused. `None` also for an empty value.
    pub fn strict_text(
        &mut self,
        key: &'static str,
        what: &str,
        is_valid: impl Fn(&str) -> bool,
    ) -> Option<String> {
        let text = self.get(key)?.trim();
        if !text.is_empty() && !is_valid(text) {
            self.refuse(key, format_args!("{text:?} is not a valid {what}"));
        }
        Some(text.to_owned()).filter(|text| !text.is_empty())
    }

    /// The items of a list, `a, b`, without surrounding space and without empty ones. `None` without the annotation.
    #[must_use]
    pub fn list(&self, key: &str) -> Option<Vec<&'a str>> {
        let items = self.get(key)?.split(',').map(str::trim);
        Some(items.filter(|item| !item.is_empty()).collect())
    }

    /// The items of a list; empty without the annotation.
    #[must_use]
    pub fn texts(&self, key: &str) -> Vec<String> {
        let items = self.list(key).unwrap_or_default().into_iter();
        items.map(str::to_owned).collect()
    }

    /// The items of a list as `parse` reads them. Every item that it cannot read is refused with its problem, and left out.
    pub fn strict_list<T, E: fmt::Display>(
        &mut self,
        key: &'static str,
        mut parse: impl FnMut(&str) -> Result<T, E>,
    ) -> Option<Vec<T>> {
        let mut values = Vec::new();
        for item in self.list(key)? {
            match parse(item) {
                Ok(value) => values.push(value),
                Err(problem) => self.refuse(key, problem),
            }
        }
        Some(values)
    }

    /// The items of a map, `a=1, b=, c`, by their keys. An item without a value has an empty one, an item without a key is
    /// left out, the last one of a repeated key counts. `None` without the annotation.
    #[must_use]
    pub fn map(&self, key: &str) -> Option<BTreeMap<&'a str, &'a str>> {
        let mut values = BTreeMap::new();
        for item in self.list(key)? {
            let (key, value) = item.split_once('=').unwrap_or((item, ""));
            if !key.is_empty() {
                values.insert(key, value);
            }
        }
        Some(values)
    }

    /// Refuses the Service because of an annotation. `problem` does not name it.
    pub fn refuse(&mut self, key: &str, problem: impl fmt::Display) {
        self.refuse_field(InvalidField::annotation(key, problem));
    }

    /// Refuses the Service because of a field.
    pub fn refuse_field(&mut self, invalid: InvalidField) {
        self.invalid.push(invalid);
    }

    /// Refuses the Service because of fields.
    pub fn refuse_fields(&mut self, invalid: Vec<InvalidField>) {
        self.invalid.extend(invalid);
    }

    /// Refuses the Service because of a field of its spec. `problem` does not name it.
    pub fn refuse_spec(&mut self, name: &'static str, problem: impl fmt::Display) {
        self.refuse_field(InvalidField::spec(name, problem));
    }

    /// Reports an annotation whose value is ignored, in whole or in part.
    pub fn warn(&mut self, key: &'static str, problem: impl Into<String>) {
        self.ignored.push(IgnoredValue {
            key,
            problem: problem.into(),
        });
    }

    /// Reports those of these annotations that the Service has.
    pub fn warn_each(&mut self, keys: &[&'static str], problem: &str) {
        for key in keys {
            if self.annotations.get(key).is_some() {
                self.warn(key, problem);
            }
        }
    }

    /// All ignored values and all refused fields.
    #[must_use]
    pub fn finish(self) -> (Vec<IgnoredValue>, Vec<InvalidField>) {
        (self.ignored, self.invalid)
    }
}

#[cfg(test)]
mod tests;
