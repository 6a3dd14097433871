//! Finds the kind of value that a type deserializes from, for the generated reference.
//!
//! The type is deserialized from a deserializer without input, which returns the requested kind as the error.

use std::fmt;

use serde::de::{self, DeserializeOwned, DeserializeSeed, Deserializer, SeqAccess, Visitor};

use super::{duration, value::one_of};

/// The kind of value of a key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum ValueKind {
    Bool,
    Int,
    Uint,
    Float,
    Text,
    /// A text of the form that the type describes.
    TextOf(String),
    Duration,
    ListOf(Box<ValueKind>),
    OneOf(&'static [&'static str]),
    /// A map of any keys to values of one type.
    Map,
    /// A map with these keys.
    Struct(&'static [&'static str]),
}

impl ValueKind {
    /// The kind of value of a key of this type.
    pub(super) fn of<T: DeserializeOwned>() -> Self {
        match T::deserialize(Probe) {
            Err(Answer(kind)) => kind,
            // It needs no input, so any text is valid.
            Ok(_) => Self::Text,
        }
    }
}

impl fmt::Display for ValueKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Bool => f.write_str("bool"),
            Self::Int => f.write_str("int"),
            Self::Uint => f.write_str("uint"),
            Self::Float => f.write_str("number"),
            Self::Text => f.write_str("string"),
            Self::TextOf(form) => write!(f, "string: {form}"),
            Self::Duration => f.write_str("duration"),
            Self::Map => f.write_str("map"),
            Self::Struct(keys) => write!(f, "map with `{}`", keys.join("`, `")),
            Self::ListOf(element) => write!(f, "list of {element}"),
            Self::OneOf(variants) => {
                let quoted: Vec<String> = variants.iter().map(|variant| format!("`{variant}`")).collect();
                let quoted: Vec<&str> = quoted.iter().map(String::as_str).collect();
                f.write_str(&one_of(&quoted))
            }
        }
    }
}

#[derive(Debug)]
struct Answer(ValueKind);

impl fmt::Display for Answer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl std::error::Error for Answer {}

impl de::Error for Answer {
    fn custom<T: fmt::Display>(_: T) -> Self {
        Self(ValueKind::Text)
    }
}

struct Probe;

macro_rules! answers {
    ($($method:ident $kind:ident;)*) => {$(
        fn $method<V: Visitor<'de>>(self, _: V) -> Result<V::Value, Answer> {
            Err(Answer(ValueKind::$kind))
        }
    )*};
}

/// The form that the type expects, without the article.
fn text_kind<'de, V: Visitor<'de>>(visitor: &V) -> ValueKind {
    struct Expecting<'a, V>(&'a V);

    impl<'de, V: Visitor<'de>> fmt::Display for Expecting<'_, V> {
        fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            self.0.expecting(f)
        }
    }

    let expecting = Expecting(visitor).to_string();
    let form = expecting
        .strip_prefix("an ")
        .or_else(|| expecting.strip_prefix("a "))
        .unwrap_or(&expecting);
    if form == "string" {
        ValueKind::Text
    } else {
        ValueKind::TextOf(form.to_owned())
    }
}

impl<'de> Deserializer<'de> for Probe {
    type Error = Answer;

    answers! {
        deserialize_bool Bool;
        deserialize_i8 Int;
        deserialize_i16 Int;
        deserialize_i32 Int;
        deserialize_i64 Int;
        deserialize_u8 Uint;
        deserialize_u16 Uint;
        deserialize_u32 Uint;
        deserialize_u64 Uint;
        deserialize_f32 Float;
        deserialize_f64 Float;
    }

    fn deserialize_any<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Answer> {
        Err(Answer(text_kind(&visitor)))
    }

    fn deserialize_option<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Answer> {
        visitor.visit_some(self)
    }

    fn deserialize_newtype_struct<V: Visitor<'de>>(
        self,
        name: &'static str,
        visitor: V,
    ) -> Result<V::Value, Answer> {
        if name == duration::NEWTYPE {
            Err(Answer(ValueKind::Duration))
        } else {
            visitor.visit_newtype_struct(self)
        }
    }

    fn deserialize_seq<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Answer> {
        let element = match visitor.visit_seq(self) {
            Err(Answer(kind)) => kind,
            Ok(_) => ValueKind::Text,
        };
        Err(Answer(ValueKind::ListOf(Box::new(element))))
    }

    fn deserialize_enum<V: Visitor<'de>>(
        self,
        _: &'static str,
        variants: &'static [&'static str],
        _: V,
    ) -> Result<V::Value, Answer> {
        Err(Answer(ValueKind::OneOf(variants)))
    }

    fn deserialize_map<V: Visitor<'de>>(self, _: V) -> Result<V::Value, Answer> {
        Err(Answer(ValueKind::Map))
    }

    fn deserialize_struct<V: Visitor<'de>>(
        self,
        _: &'static str,
        keys: &'static [&'static str],
        _: V,
    ) -> Result<V::Value, Answer> {
        Err(Answer(ValueKind::Struct(keys)))
    }

    serde::forward_to_deserialize_any! {
        i128 u128 char str string bytes byte_buf unit unit_struct tuple tuple_struct identifier ignored_any
    }
}

/// Probes the first element of a list.
impl<'de> SeqAccess<'de> for Probe {
    type Error = Answer;

    fn next_element_seed<S: DeserializeSeed<'de>>(&mut self, seed: S) -> Result<Option<S::Value>, Answer> {
        seed.deserialize(Probe).map(Some)
    }
}
