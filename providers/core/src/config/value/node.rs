//! From a YAML or JSON value to a value of any type: a serde deserializer.
//!
//! | Type | Accepted |
//! |---|---|
//! | string | any scalar, as it is written |
//! | bool, int, uint, duration | the texts of [`super`], quoted or not, and the forms of YAML 1.1 |
//! | list | a list |
//! | map, struct | a map; a struct's keys by [`KeyCase`] |
//! | enum | the names of its variants |
//!
//! `null` is no value: a key with it keeps its default. If a key occurs twice, the last occurrence counts.

use std::{borrow::Cow, cell::RefCell, collections::BTreeSet};

use serde::de::{
    DeserializeOwned, DeserializeSeed, Deserializer, IntoDeserializer, MapAccess, SeqAccess, Visitor,
};

use super::{Choice, ValueError, check_duration, duration, number, parse_bool};
use crate::config::{
    gcfg::Position,
    section::unknown_key,
    suggest,
    yaml::{KeyCase, MappingEntry, Node, Value},
};

/// The most errors that are reported of one value. Each costs another read of the value.
const MAX_ERRORS: usize = 20;

/// The result of reading a value.
#[derive(Debug)]
pub struct ReadNode<T> {
    /// The value; `None` with errors.
    pub value: Option<T>,
    /// All errors with their positions. They may repeat the value.
    pub errors: Vec<(Position, ValueError)>,
    /// The unknown keys.
    pub unknown: Vec<UnknownKey>,
}

/// A key that its struct does not have.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UnknownKey {
    pub(in crate::config) key: String,
    /// Where the key begins.
    pub at: Position,
    /// The nearest known key.
    pub(in crate::config) near: Option<&'static str>,
}

impl UnknownKey {
    /// The warning about it.
    #[must_use]
    pub fn message(&self) -> String {
        unknown_key(self.near)
    }
}

/// Reads a value without the values at `left_out`. A wrong entry of a list or map is left out of the next try, so that all errors
/// are found.
pub(in crate::config) fn read<T: DeserializeOwned>(
    node: &Node,
    case: KeyCase,
    left_out: BTreeSet<Position>,
) -> ReadNode<T> {
    let context = Context {
        case,
        left_out: RefCell::new(left_out),
        unknown: RefCell::default(),
    };
    let mut errors: Vec<(Position, ValueError)> = Vec::new();
    loop {
        context.unknown.borrow_mut().clear();
        let deserializer = NodeDeserializer {
            node,
            context: &context,
        };
        let value = match T::deserialize(deserializer) {
            Ok(value) if errors.is_empty() => Some(value),
            Ok(_) => None,
            Err(error) => {
                let at = error.nested.as_ref().map(|(_, at)| *at);
                let again = errors.len() + 1 < MAX_ERRORS
                    && at.is_some_and(|at| context.left_out.borrow_mut().insert(at));
                errors.push((at.unwrap_or(node.at), error));
                if again {
                    continue;
                }
                None
            }
        };
        return ReadNode {
            value,
            errors,
            unknown: context.unknown.into_inner(),
        };
    }
}

impl ValueError {
    /// The path to the wrong value, as it follows the key in messages: `[1].name`; empty if it is the value of the key.
    #[must_use]
    pub fn path(&self) -> &str {
        self.nested.as_ref().map_or("", |(path, _)| path)
    }

    /// The same error with the path from the surrounding list or map.
    fn inside(mut self, segment: &str, at: Position) -> Self {
        let (path, at) = self.nested.take().unwrap_or((String::new(), at));
        self.nested = Some((format!("{segment}{path}"), at));
        self
    }
}

struct Context {
    case: KeyCase,
    /// Values that are not read: those of the caller, and those with known errors.
    left_out: RefCell<BTreeSet<Position>>,
    unknown: RefCell<Vec<UnknownKey>>,
}

#[derive(Clone, Copy)]
struct NodeDeserializer<'a> {
    node: &'a Node,
    context: &'a Context,
}

impl<'a> NodeDeserializer<'a> {
    fn wrong_kind(&self, needed: &str) -> ValueError {
        ValueError::new(format!("{} instead of {needed}", self.node.value.kind()))
    }

    fn text(&self) -> Result<&'a str, ValueError> {
        match &self.node.value {
            Value::Null => Ok(""),
            _ => self.node.scalar().ok_or_else(|| self.wrong_kind("a text")),
        }
    }

    /// The text of a number, in decimal digits if YAML parsed it: it may be octal.
    fn number(&self) -> Result<Cow<'a, str>, ValueError> {
        match &self.node.value {
            Value::Number(number, _) if !number.is_f64() => Ok(number.to_string().into()),
            _ => {
                let text = self.node.scalar().ok_or_else(|| self.wrong_kind("a number"))?;
                Ok(text.into())
            }
        }
    }

    fn integer<T: number::Integer>(&self, go: &str) -> Result<T, ValueError> {
        number::integer(Ok(&self.number()?), go)
    }

    fn float(&self) -> Result<f64, ValueError> {
        number::float(Ok(&self.number()?))
    }

    /// The entries without null values and those that are left out.
    fn entries(&self) -> Result<impl Iterator<Item = &'a MappingEntry>, ValueError> {
        let entries: &[MappingEntry] = match &self.node.value {
            Value::Map(entries) => entries,
            Value::Null => &[],
            _ => return Err(self.wrong_kind("a map").hint("write keys with values")),
        };
        let left_out = self.context.left_out.borrow().clone();
        Ok(entries
            .iter()
            .filter(move |entry| entry.node.value != Value::Null && !left_out.contains(&entry.node.at)))
    }
}

impl<'de> Deserializer<'de> for NodeDeserializer<'_> {
    type Error = ValueError;

    fn deserialize_any<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, ValueError> {
        match &self.node.value {
            Value::Null => visitor.visit_unit(),
            Value::Bool(value, _) => visitor.visit_bool(*value),
            Value::Number(number, text) => match (number.as_u64(), number.as_i64(), number.as_f64()) {
                (Some(number), ..) => visitor.visit_u64(number),
                (_, Some(number), _) => visitor.visit_i64(number),
                (.., Some(number)) => visitor.visit_f64(number),
                _ => visitor.visit_str(text),
            },
            Value::Text(text) => visitor.visit_str(text),
            Value::List(_) => self.deserialize_seq(visitor),
            Value::Map(_) => self.deserialize_map(visitor),
        }
    }

    fn deserialize_bool<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, ValueError> {
        match &self.node.value {
            Value::Bool(value, _) => visitor.visit_bool(*value),
            Value::Null | Value::List(_) | Value::Map(_) => Err(self.wrong_kind("true or false")),
            Value::Number(_, text) | Value::Text(text) => visitor.visit_bool(parse_bool(text)?),
        }
    }

    numbers!();

    fn deserialize_str<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, ValueError> {
        visitor.visit_str(self.text()?)
    }

    fn deserialize_string<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, ValueError> {
        self.deserialize_str(visitor)
    }

    fn deserialize_option<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, ValueError> {
        match self.node.value {
            Value::Null => visitor.visit_none(),
            _ => visitor.visit_some(self),
        }
    }

    fn deserialize_newtype_struct<V: Visitor<'de>>(
        self,
        name: &'static str,
        visitor: V,
    ) -> Result<V::Value, ValueError> {
        if name == duration::NEWTYPE {
            check_duration(self.text())?;
        }
        visitor.visit_newtype_struct(self)
    }

    fn deserialize_seq<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, ValueError> {
        let items: &[Node] = match &self.node.value {
            Value::List(items) => items,
            Value::Null => &[],
            _ => return Err(self.wrong_kind("a list").hint("write [first, second]")),
        };
        visitor.visit_seq(Items {
            items: items.iter().enumerate(),
            context: self.context,
        })
    }

    fn deserialize_map<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, ValueError> {
        let entries = self.entries()?.map(|entry| (entry.key.as_str(), entry)).collect();
        visitor.visit_map(Fields::new(entries, self.context))
    }

    fn deserialize_struct<V: Visitor<'de>>(
        self,
        _: &'static str,
        fields: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, ValueError> {
        let case = self.context.case;
        let mut known: Vec<(&str, &MappingEntry)> = Vec::new();
        for entry in self.entries()? {
            let Some(field) = fields.iter().find(|field| case.same(field, &entry.key)) else {
                self.context.unknown.borrow_mut().push(UnknownKey {
                    key: entry.key.clone(),
                    at: entry.at,
                    near: suggest::nearest(&entry.key, fields.iter().copied()),
                });
                continue;
            };
            known.retain(|(name, _)| name != field);
            known.push((field, entry));
        }
        visitor.visit_map(Fields::new(known, self.context))
    }

    fn deserialize_enum<V: Visitor<'de>>(
        self,
        _: &'static str,
        _: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, ValueError> {
        visitor.visit_enum(Choice(self.text()?))
    }

    serde::forward_to_deserialize_any! {
        i128 u128 char bytes byte_buf unit unit_struct tuple tuple_struct identifier ignored_any
    }
}

/// The items of a list one by one, without those that are left out.
struct Items<'a> {
    items: std::iter::Enumerate<std::slice::Iter<'a, Node>>,
    context: &'a Context,
}

impl<'de> SeqAccess<'de> for Items<'_> {
    type Error = ValueError;

    fn next_element_seed<S: DeserializeSeed<'de>>(
        &mut self,
        seed: S,
    ) -> Result<Option<S::Value>, ValueError> {
        let context = self.context;
        let next = self.items.find(|(_, node)| !context.left_out.borrow().contains(&node.at));
        let Some((number, node)) = next else {
            return Ok(None);
        };
        seed.deserialize(NodeDeserializer { node, context })
            .map(Some)
            .map_err(|error| error.inside(&format!("[{number}]"), node.at))
    }
}

/// The entries of a map one by one.
struct Fields<'a> {
    entries: std::vec::IntoIter<(&'a str, &'a MappingEntry)>,
    /// The entry whose value comes next.
    current: Option<&'a MappingEntry>,
    context: &'a Context,
}

impl<'a> Fields<'a> {
    fn new(entries: Vec<(&'a str, &'a MappingEntry)>, context: &'a Context) -> Self {
        Self {
            entries: entries.into_iter(),
            current: None,
            context,
        }
    }
}

impl<'de> MapAccess<'de> for Fields<'_> {
    type Error = ValueError;

    fn next_key_seed<K: DeserializeSeed<'de>>(&mut self, seed: K) -> Result<Option<K::Value>, ValueError> {
        let Some((name, entry)) = self.entries.next() else {
            return Ok(None);
        };
        self.current = Some(entry);
        let key = seed.deserialize(name.into_deserializer());
        key.map(Some)
            .map_err(|error: ValueError| error.inside(&format!(".{name}"), entry.node.at))
    }

    fn next_value_seed<S: DeserializeSeed<'de>>(&mut self, seed: S) -> Result<S::Value, ValueError> {
        let Some(MappingEntry { key, node, .. }) = self.current else {
            return Err(ValueError::new("a value without a key"));
        };
        let context = self.context;
        seed.deserialize(NodeDeserializer { node, context })
            .map_err(|error| error.inside(&format!(".{key}"), node.at))
    }
}
