//! From the texts of one key to a value: a serde deserializer.
//!
//! A key may occur more than once. A list takes every occurrence; any other type takes the last one, but the others must
//! have the right type, too. The types and their texts are those of the Go library:
//!
//! | Type | Accepted |
//! |---|---|
//! | string | any text |
//! | bool | `true yes on 1`, `false no off 0`, case-insensitive; a key without `=` is true |
//! | int, uint | decimal (leading zeros are ignored), or hexadecimal after `0x` |
//! | duration | Go form, see [`super::duration`] |
//! | list | the key repeated; a key without `=` empties the list so far. The reader of a section leaves empty values out |
//! | enum | the names of its variants |

/// The numbers of a deserializer, from its methods `integer` and `float`.
macro_rules! numbers {
    () => {
        numbers! {
            deserialize_i8 visit_i8 i8 "int8";
            deserialize_i16 visit_i16 i16 "int16";
            deserialize_i32 visit_i32 i32 "int32";
            deserialize_i64 visit_i64 i64 "int";
            deserialize_u8 visit_u8 u8 "uint8";
            deserialize_u16 visit_u16 u16 "uint16";
            deserialize_u32 visit_u32 u32 "uint32";
            deserialize_u64 visit_u64 u64 "uint";
        }

        fn deserialize_f32<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Self::Error> {
            visitor.visit_f64(self.float()?)
        }

        fn deserialize_f64<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Self::Error> {
            visitor.visit_f64(self.float()?)
        }
    };
    ($($method:ident $visit:ident $type:ident $go:literal;)*) => {$(
        fn $method<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Self::Error> {
            visitor.$visit(self.integer::<$type>($go)?)
        }
    )*};
}

mod node;
mod number;
#[cfg(test)]
mod tests;

use std::{cell::Cell, fmt};

use serde::de::{
    self, DeserializeOwned, Deserializer, EnumAccess, IntoDeserializer, SeqAccess, VariantAccess, Visitor,
};

pub(super) use self::node::read as read_node;
pub use self::node::{ReadNode, UnknownKey};
use super::{
    duration,
    gcfg::{GcfgEntry, Position},
    suggest,
};

/// How many wrong elements of one list are reported. Each costs another read of the whole list.
const MAX_LIST_ERRORS: usize = 20;

/// An error of a value, and its correction.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ValueError {
    message: String,
    hint: Option<String>,
    /// The occurrence of the key, if it is not the current one.
    occurrence: Option<usize>,
    /// The path to the value in a nested value, and its position: `[1].name`.
    nested: Option<(String, Position)>,
}

impl ValueError {
    fn new(message: impl Into<String>) -> Self {
        Self {
            message: message.into(),
            hint: None,
            occurrence: None,
            nested: None,
        }
    }

    fn hint(self, hint: impl Into<String>) -> Self {
        Self {
            hint: Some(hint.into()),
            ..self
        }
    }

    fn blank() -> Self {
        Self::new("blank value not supported for type")
    }

    /// The error.
    #[must_use]
    pub fn message(&self) -> &str {
        &self.message
    }

    /// The correction.
    #[must_use]
    pub fn correction(&self) -> Option<&str> {
        self.hint.as_deref()
    }
}

impl fmt::Display for ValueError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)?;
        self.hint.as_ref().map_or(Ok(()), |hint| write!(f, "; {hint}"))
    }
}

impl std::error::Error for ValueError {}

impl de::Error for ValueError {
    fn custom<T: fmt::Display>(message: T) -> Self {
        Self::new(message.to_string())
    }

    fn missing_field(field: &'static str) -> Self {
        Self::new(format!("key {field:?} is missing"))
    }

    fn unknown_variant(variant: &str, expected: &'static [&'static str]) -> Self {
        let error = Self::new(format!("unknown value {variant:?}"));
        let choice = one_of(expected);
        match suggest::nearest(variant, expected.iter().copied()) {
            Some(near) => error.hint(format!("did you mean {near}? Known are {choice}")),
            None => error.hint(format!("write {choice}")),
        }
    }
}

/// `a`, `a or b`, `a, b or c`.
pub(super) fn one_of(names: &[&str]) -> String {
    match names {
        [] => "nothing".to_owned(),
        [only] => (*only).to_owned(),
        [first @ .., last] => format!("{} or {last}", first.join(", ")),
    }
}

/// The result of reading the occurrences of a key.
#[derive(Debug)]
pub(super) struct Read<T> {
    /// The value, if there is no error.
    pub(super) value: Option<T>,
    /// The errors, each with the number of the occurrence.
    pub(super) errors: Vec<(usize, ValueError)>,
}

/// Reads a key from its occurrences, in the order of the file.
pub(super) fn read<T: DeserializeOwned>(entries: &[&GcfgEntry]) -> Read<T> {
    let is_list = Cell::new(false);
    let mut active: Vec<(usize, &GcfgEntry)> = entries.iter().copied().enumerate().collect();
    let mut errors = Vec::new();
    let mut value = None;
    while let Some(&(last, _)) = active.last() {
        match T::deserialize(KeyDeserializer {
            entries: &active,
            is_list: &is_list,
        }) {
            Ok(read) => {
                value = Some(read);
                break;
            }
            Err(error) => {
                let wrong = error.occurrence.unwrap_or(last);
                errors.push((wrong, error));
                if !is_list.get() || errors.len() >= MAX_LIST_ERRORS {
                    break;
                }
                active.retain(|(number, _)| *number != wrong);
            }
        }
    }
    if !is_list.get() {
        for (number, entry) in entries.iter().enumerate().take(entries.len().saturating_sub(1)) {
            let alone = [(number, *entry)];
            if let Err(error) = T::deserialize(KeyDeserializer {
                entries: &alone,
                is_list: &is_list,
            }) {
                errors.push((number, error));
            }
        }
    }
    if !errors.is_empty() {
        value = None;
    }
    Read { value, errors }
}

/// The occurrences of a key as serde sees them.
#[derive(Clone, Copy)]
struct KeyDeserializer<'a> {
    /// The entries with their numbers. Empty only for a list.
    entries: &'a [(usize, &'a GcfgEntry)],
    /// Set when the type turns out to be a list.
    is_list: &'a Cell<bool>,
}

impl<'a> KeyDeserializer<'a> {
    /// The text of the last occurrence; an error if it has no value.
    fn text(&self) -> Result<&'a str, ValueError> {
        let value = self.entries.last().and_then(|(_, entry)| entry.value.as_ref());
        value.map(|value| value.text.as_str()).ok_or_else(ValueError::blank)
    }

    fn bool(&self) -> Result<bool, ValueError> {
        self.text().map_or(Ok(true), parse_bool)
    }

    fn integer<T: number::Integer>(&self, go: &str) -> Result<T, ValueError> {
        number::integer(self.text(), go)
    }

    fn float(&self) -> Result<f64, ValueError> {
        number::float(self.text())
    }

    fn string(&self) -> Result<&'a str, ValueError> {
        self.text().map_err(|error| error.hint("write key = value"))
    }
}

fn parse_bool(text: &str) -> Result<bool, ValueError> {
    match text.to_lowercase().as_str() {
        "true" | "yes" | "on" | "1" => Ok(true),
        "false" | "no" | "off" | "0" => Ok(false),
        _ => {
            let error = ValueError::new(format!("failed to parse bool `{text}`"));
            Err(error.hint("write true, yes, on or 1, or else false, no, off or 0"))
        }
    }
}

/// Checks a duration before its type does, for the hint.
fn check_duration(text: Result<&str, ValueError>) -> Result<(), ValueError> {
    let text = text.map_err(|error| error.hint("write a duration such as 90s or 1m30s"))?;
    match duration::parse(text) {
        Ok(_) => Ok(()),
        Err(error) => Err(ValueError::new(error.to_string()).hint(error.hint())),
    }
}

impl<'de> Deserializer<'de> for KeyDeserializer<'_> {
    type Error = ValueError;

    fn deserialize_any<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Self::Error> {
        visitor.visit_str(self.string()?)
    }

    fn deserialize_bool<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Self::Error> {
        visitor.visit_bool(self.bool()?)
    }

    numbers!();

    fn deserialize_option<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Self::Error> {
        visitor.visit_some(self)
    }

    fn deserialize_newtype_struct<V: Visitor<'de>>(
        self,
        name: &'static str,
        visitor: V,
    ) -> Result<V::Value, Self::Error> {
        if name == duration::NEWTYPE {
            check_duration(self.text())?;
        }
        visitor.visit_newtype_struct(self)
    }

    fn deserialize_seq<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Self::Error> {
        self.is_list.set(true);
        // An occurrence without a value empties the list.
        let reset = self.entries.iter().rposition(|(_, entry)| entry.value.is_none()).map_or(0, |at| at + 1);
        let elements = self.entries.get(reset..).unwrap_or_default();
        visitor.visit_seq(Elements {
            entries: elements,
            next: 0,
            is_list: self.is_list,
        })
    }

    fn deserialize_enum<V: Visitor<'de>>(
        self,
        _: &'static str,
        variants: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, Self::Error> {
        let text = self.text().map_err(|error| error.hint(format!("write {}", one_of(variants))))?;
        visitor.visit_enum(Choice(text))
    }

    serde::forward_to_deserialize_any! {
        i128 u128 char str string bytes byte_buf unit unit_struct tuple tuple_struct map struct identifier ignored_any
    }
}

/// The occurrences of a list one by one.
struct Elements<'a> {
    entries: &'a [(usize, &'a GcfgEntry)],
    next: usize,
    is_list: &'a Cell<bool>,
}

impl<'de> SeqAccess<'de> for Elements<'_> {
    type Error = ValueError;

    fn next_element_seed<S: de::DeserializeSeed<'de>>(
        &mut self,
        seed: S,
    ) -> Result<Option<S::Value>, ValueError> {
        let Some(element @ &(number, _)) = self.entries.get(self.next) else {
            return Ok(None);
        };
        self.next += 1;
        let alone = KeyDeserializer {
            entries: std::slice::from_ref(element),
            is_list: self.is_list,
        };
        seed.deserialize(alone).map(Some).map_err(|error| ValueError {
            occurrence: error.occurrence.or(Some(number)),
            ..error
        })
    }

    fn size_hint(&self) -> Option<usize> {
        Some(self.entries.len().saturating_sub(self.next))
    }
}

/// The variant of an enum without data.
struct Choice<'a>(&'a str);

impl<'de> EnumAccess<'de> for Choice<'_> {
    type Error = ValueError;
    type Variant = UnitOnly;

    fn variant_seed<S: de::DeserializeSeed<'de>>(self, seed: S) -> Result<(S::Value, UnitOnly), ValueError> {
        Ok((seed.deserialize(self.0.into_deserializer())?, UnitOnly))
    }
}

struct UnitOnly;

/// The error of a variant with data: the dialect has no notation for it.
fn has_data() -> ValueError {
    ValueError::new("a choice with data cannot be written in this file")
}

impl<'de> VariantAccess<'de> for UnitOnly {
    type Error = ValueError;

    fn unit_variant(self) -> Result<(), ValueError> {
        Ok(())
    }

    fn newtype_variant_seed<S: de::DeserializeSeed<'de>>(self, _: S) -> Result<S::Value, ValueError> {
        Err(has_data())
    }

    fn tuple_variant<V: Visitor<'de>>(self, _: usize, _: V) -> Result<V::Value, ValueError> {
        Err(has_data())
    }

    fn struct_variant<V: Visitor<'de>>(
        self,
        _: &'static [&'static str],
        _: V,
    ) -> Result<V::Value, ValueError> {
        Err(has_data())
    }
}
