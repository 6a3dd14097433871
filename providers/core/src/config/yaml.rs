//! YAML and JSON as values with positions. JSON is YAML, too.
//!
//! Plain scalars have the same meaning as in `kubectl`, which reads YAML 1.1: `yes`, `no`, `on` and `off` are booleans. A
//! syntax error affects only its own document.
//!
//! [`parse_yaml`](super::parse_yaml) reads a config file, [`Node::deserialize`] any type that serde knows; a reader with
//! rules of its own takes the [`Node`]s.

#[cfg(test)]
mod tests;

use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    fmt,
    rc::Rc,
};

use granit_parser::{Event, Options, Parser, ScalarStyle, ScanError, Span, StrInput, Tag};
use serde::de::DeserializeOwned;
use serde_json::{Map, Number, Value as Json};

use super::{
    gcfg::{Position, SyntaxError, fold},
    value::{self, ReadNode},
};

/// The most bytes of all values of a file: nested aliases can expand to any size.
const MAX_BYTES: usize = 128 << 20;
/// The deepest nesting of an anchored value with its aliases expanded: that of the parser, which does not count aliases.
const MAX_DEPTH: usize = 255;

/// A value and where it begins. It may be a secret, so `Debug` does not show it.
#[derive(Clone, PartialEq)]
pub struct Node {
    /// Where it begins.
    pub at: Position,
    /// The value.
    pub value: Value,
}

impl fmt::Debug for Node {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Node").field("at", &self.at).finish_non_exhaustive()
    }
}

/// A value without its position.
#[derive(Clone, PartialEq)]
pub enum Value {
    /// `null`, `~`, or nothing at all.
    Null,
    /// A boolean, with the text in the file.
    Bool(bool, String),
    /// A number, with the text in the file.
    Number(Number, String),
    /// A quoted scalar, or a plain one that is nothing else.
    Text(String),
    /// A sequence.
    List(Vec<Node>),
    /// A mapping in the order of the file; a key may occur twice.
    Map(Vec<MappingEntry>),
}

/// A key with its value.
#[derive(Clone, Debug, PartialEq)]
pub struct MappingEntry {
    /// The key.
    pub key: String,
    /// Where the key begins.
    pub at: Position,
    /// The value.
    pub node: Node,
}

/// How keys are compared.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum KeyCase {
    /// Keys are case-sensitive, as in the Kubernetes API.
    #[default]
    Sensitive,
    /// Keys are case-insensitive, as when Go decodes JSON.
    Insensitive,
}

impl KeyCase {
    /// Whether two keys are the same.
    #[must_use]
    pub fn same(self, a: &str, b: &str) -> bool {
        a == b || (self == Self::Insensitive && super::gcfg::same(a, b))
    }

    /// The form in which keys are compared.
    fn normal(self, key: &str) -> String {
        match self {
            Self::Sensitive => key.to_owned(),
            Self::Insensitive => fold(key).collect(),
        }
    }
}

/// A key that occurs twice in one mapping.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Duplicate<'a> {
    /// The later occurrence.
    pub entry: &'a MappingEntry,
    /// Where the key occurs first.
    pub first: Position,
}

impl Value {
    /// The kind of value, as messages name it.
    #[must_use]
    pub fn kind(&self) -> &'static str {
        match self {
            Self::Null => "nothing",
            Self::Bool(..) => "a boolean",
            Self::Number(..) => "a number",
            Self::Text(_) => "a text",
            Self::List(_) => "a list",
            Self::Map(_) => "a map",
        }
    }
}

impl Node {
    /// The text of an environment variable. The items of a list are separated by commas. Positions only distinguish the items.
    pub(super) fn of_variable(text: &str, is_list: bool) -> Self {
        let value = if is_list {
            let items = (1..).zip(text.split(',')).map(|(column, item)| Self {
                at: Position { line: 0, column },
                value: Value::Text(item.trim().to_owned()),
            });
            Value::List(items.collect())
        } else {
            Value::Text(text.to_owned())
        };
        Self {
            at: Position { line: 0, column: 0 },
            value,
        }
    }

    /// Whether it is nothing or an empty text.
    pub(super) fn is_empty(&self) -> bool {
        match &self.value {
            Value::Null => true,
            Value::Text(text) => text.is_empty(),
            _ => false,
        }
    }

    /// The entries, if it is a mapping.
    #[must_use]
    pub fn entries(&self) -> &[MappingEntry] {
        match &self.value {
            Value::Map(entries) => entries,
            _ => &[],
        }
    }

    /// The entry of a key. If the key occurs twice, the last entry counts.
    #[must_use]
    pub fn entry(&self, key: &str) -> Option<&MappingEntry> {
        self.entries().iter().rev().find(|entry| entry.key == key)
    }

    /// The value of a key.
    #[must_use]
    pub fn get(&self, key: &str) -> Option<&Self> {
        self.entry(key).map(|entry| &entry.node)
    }

    /// The text of a key; `None` if its value is of another kind.
    #[must_use]
    pub fn text(&self, key: &str) -> Option<&str> {
        match &self.get(key)?.value {
            Value::Text(text) => Some(text),
            _ => None,
        }
    }

    /// The text of a scalar in the file; `None` for null, a list or a map.
    #[must_use]
    pub fn scalar(&self) -> Option<&str> {
        match &self.value {
            Value::Bool(_, text) | Value::Number(_, text) | Value::Text(text) => Some(text),
            Value::Null | Value::List(_) | Value::Map(_) => None,
        }
    }

    /// Where the last key of a path is, or the last one of them that exists.
    #[must_use]
    pub fn locate(&self, path: &[&str]) -> Position {
        let (mut at, mut node) = (self.at, self);
        for key in path {
            let Some(entry) = node.entry(key) else { break };
            (at, node) = (entry.at, &entry.node);
        }
        at
    }

    /// All keys that occur twice in a mapping, at any depth, in the order of the file.
    #[must_use]
    pub fn duplicates(&self, case: KeyCase) -> Vec<Duplicate<'_>> {
        let mut found = Vec::new();
        self.add_duplicates(case, &mut found);
        found
    }

    fn add_duplicates<'a>(&'a self, case: KeyCase, found: &mut Vec<Duplicate<'a>>) {
        let mut seen: BTreeMap<String, Position> = BTreeMap::new();
        for entry in self.entries() {
            let first = *seen.entry(case.normal(&entry.key)).or_insert(entry.at);
            if first != entry.at {
                found.push(Duplicate { entry, first });
            }
            entry.node.add_duplicates(case, found);
        }
        if let Value::List(items) = &self.value {
            for item in items {
                item.add_duplicates(case, found);
            }
        }
    }

    /// Deserializes the value. Keys are case-sensitive, and a key without a value is a missing key.
    #[must_use]
    pub fn deserialize<T: DeserializeOwned>(&self) -> ReadNode<T> {
        value::read_node(self, KeyCase::Sensitive, BTreeSet::new())
    }

    /// The depth of nesting, and about how many bytes it takes in memory.
    fn size(&self) -> (usize, usize) {
        let mut depth = 0;
        let mut bytes = size_of::<MappingEntry>() + self.scalar().map_or(0, str::len);
        if let Value::List(items) = &self.value {
            for item in items {
                let (item_depth, item_bytes) = item.size();
                depth = depth.max(item_depth + 1);
                bytes += item_bytes;
            }
        }
        for entry in self.entries() {
            let (entry_depth, entry_bytes) = entry.node.size();
            depth = depth.max(entry_depth + 1);
            bytes += entry.key.len() + entry_bytes;
        }
        (depth, bytes)
    }

    /// The same value without positions.
    #[must_use]
    pub fn to_json(&self) -> Json {
        match &self.value {
            Value::Null => Json::Null,
            Value::Bool(value, _) => Json::Bool(*value),
            Value::Number(number, _) => Json::Number(number.clone()),
            Value::Text(text) => Json::String(text.clone()),
            Value::List(items) => items.iter().map(Self::to_json).collect(),
            Value::Map(entries) => {
                let pairs = entries.iter().map(|entry| (entry.key.clone(), entry.node.to_json()));
                Json::Object(pairs.collect::<Map<_, _>>())
            }
        }
    }
}

/// The text of a file.
///
/// # Errors
/// The file is not UTF-8.
pub fn utf8(content: &[u8]) -> Result<&str, SyntaxError> {
    std::str::from_utf8(content).map_err(|error| {
        let valid = content.get(..error.valid_up_to()).unwrap_or_default();
        let line = valid.iter().filter(|byte| **byte == b'\n').count() + 1;
        SyntaxError {
            hint: Some("store the file as UTF-8"),
            ..syntax_error(Position { line, column: 1 }, "not UTF-8")
        }
    })
}

/// The only document of a file; `None` if the file is empty.
///
/// # Errors
/// The file is neither YAML nor JSON, or it has a second document.
pub fn document(text: &str) -> Result<Option<Node>, SyntaxError> {
    let mut documents = documents(text).into_iter();
    let first = documents.next().transpose()?;
    match documents.next().transpose()? {
        None => Ok(first),
        Some(second) => Err(SyntaxError {
            hint: Some("write only one document"),
            ..syntax_error(second.at, "a second document begins here")
        }),
    }
}

/// All documents of a file; empty ones are left out.
pub fn documents(text: &str) -> Vec<Result<Node, SyntaxError>> {
    let text = text.strip_prefix('\u{feff}').unwrap_or(text);
    let mut options = Options::default();
    options.set_emit_comments(false);
    let mut reader = Reader {
        parser: Parser::new_from_str_with_options(text, options),
        anchors: HashMap::new(),
        left: MAX_BYTES,
    };
    let mut documents = Vec::new();
    loop {
        match reader.document() {
            Ok(Some(node)) if node.value == Value::Null => {}
            Ok(Some(node)) => documents.push(Ok(node)),
            Ok(None) => return documents,
            Err(error) => {
                documents.push(Err(error));
                match reader.parser.proceed_next_document() {
                    Ok(true) => {}
                    Ok(false) => return documents,
                    Err(error) => {
                        documents.push(Err(scan_error(&error)));
                        return documents;
                    }
                }
            }
        }
    }
}

struct Reader<'a> {
    parser: Parser<'a, StrInput<'a>>,
    /// Each anchored value with its size.
    anchors: HashMap<usize, (Rc<Node>, usize)>,
    /// The number of bytes that are still allowed.
    left: usize,
}

impl<'a> Reader<'a> {
    /// The next document; `None` at the end.
    fn document(&mut self) -> Result<Option<Node>, SyntaxError> {
        self.anchors.clear();
        let mut found = None;
        loop {
            let Some(event) = self.parser.next_event() else {
                return Ok(found);
            };
            let (event, span) = event.map_err(|error| scan_error(&error))?;
            match event {
                Event::StreamEnd => return Ok(found),
                Event::DocumentEnd => {
                    // An empty document is a document, too.
                    return Ok(Some(found.unwrap_or_else(|| Node {
                        at: position(&span),
                        value: Value::Null,
                    })));
                }
                event if event.is_node() => found = Some(self.node(event, &span)?),
                _ => {}
            }
        }
    }

    /// The value that begins with this event. The parser limits the depth of nesting.
    fn node(&mut self, event: Event<'a>, span: &Span) -> Result<Node, SyntaxError> {
        let at = position(span);
        self.take(size_of::<MappingEntry>(), at)?;
        let (value, anchor) = match event {
            Event::Alias(id) => {
                let Some((node, size)) = self.anchors.get(&id).cloned() else {
                    // An anchor is known when its value ends.
                    return Err(syntax_error(at, "an alias is inside of its own anchor"));
                };
                self.take(size, at)?;
                let value = node.value.clone();
                return Ok(Node { at, value });
            }
            Event::Scalar(text, style, anchor, tag) => (scalar(&text, style, tag.as_deref()), anchor),
            Event::SequenceStart(_, anchor, _) => (self.list()?, anchor),
            Event::MappingStart(_, anchor, _) => (self.map()?, anchor),
            // `is_node` is true for no other events.
            _ => (Value::Null, 0),
        };
        let node = Node { at, value };
        if anchor > 0 {
            let (depth, size) = node.size();
            if depth > MAX_DEPTH {
                let message = format!("nested deeper than {MAX_DEPTH} with its aliases expanded");
                return Err(syntax_error(at, message));
            }
            self.take(size, at)?;
            self.anchors.insert(anchor, (Rc::new(node.clone()), size));
        }
        Ok(node)
    }

    fn list(&mut self) -> Result<Value, SyntaxError> {
        let mut items = Vec::new();
        while let Some((event, span)) = self.inner(&Event::SequenceEnd)? {
            items.push(self.node(event, &span)?);
        }
        Ok(Value::List(items))
    }

    fn map(&mut self) -> Result<Value, SyntaxError> {
        let (mut entries, mut merged) = (Vec::new(), Vec::new());
        while let Some((event, span)) = self.inner(&Event::MappingEnd)? {
            let at = position(&span);
            let Some((key, style)) = event.scalar().map(|(key, style)| (key.to_owned(), style)) else {
                return Err(syntax_error(at, "a key is not a scalar"));
            };
            self.node(event, &span)?;
            let Some((event, span)) = self.inner(&Event::MappingEnd)? else {
                break;
            };
            let node = self.node(event, &span)?;
            if key == "<<" && style == ScalarStyle::Plain {
                match node.value {
                    Value::Map(more) => merged.extend(more),
                    Value::List(maps) => {
                        merged.extend(maps.iter().flat_map(|map| map.entries().iter().cloned()));
                    }
                    _ => {}
                }
            } else {
                entries.push(MappingEntry { key, at, node });
            }
        }
        for more in merged {
            if entries.iter().all(|entry| entry.key != more.key) {
                entries.push(more);
            }
        }
        Ok(Value::Map(entries))
    }

    /// The next event inside of a list or map; `None` at its end.
    fn inner(&mut self, end: &Event<'_>) -> Result<Option<(Event<'a>, Span)>, SyntaxError> {
        loop {
            let Some(event) = self.parser.next_event() else {
                return Ok(None);
            };
            let (event, span) = event.map_err(|error| scan_error(&error))?;
            if event == *end {
                return Ok(None);
            }
            if event.is_node() {
                return Ok(Some((event, span)));
            }
        }
    }

    fn take(&mut self, bytes: usize, at: Position) -> Result<(), SyntaxError> {
        let left = self.left.checked_sub(bytes);
        self.left = left.ok_or_else(|| {
            let mebibytes = MAX_BYTES >> 20;
            let message =
                format!("the file takes more than {mebibytes} MiB in memory, with its aliases expanded");
            syntax_error(at, message)
        })?;
        Ok(())
    }
}

fn position(span: &Span) -> Position {
    Position {
        line: span.start.line(),
        column: span.start.col() + 1,
    }
}

fn syntax_error(position: Position, message: impl Into<String>) -> SyntaxError {
    SyntaxError {
        position,
        message: message.into(),
        hint: None,
    }
}

fn scan_error(error: &ScanError) -> SyntaxError {
    let marker = error.marker();
    let position = Position {
        line: marker.line(),
        column: marker.col() + 1,
    };
    syntax_error(position, error.info())
}

fn scalar(text: &str, style: ScalarStyle, tag: Option<&Tag>) -> Value {
    let is_text = tag.is_some_and(|tag| tag.core_suffix() == Some("str"));
    if style != ScalarStyle::Plain || is_text {
        return Value::Text(text.to_owned());
    }
    match text {
        "" | "~" | "null" | "Null" | "NULL" => return Value::Null,
        "true" | "True" | "TRUE" | "yes" | "Yes" | "YES" | "on" | "On" | "ON" => {
            return Value::Bool(true, text.to_owned());
        }
        "false" | "False" | "FALSE" | "no" | "No" | "NO" | "off" | "Off" | "OFF" => {
            return Value::Bool(false, text.to_owned());
        }
        _ => {}
    }
    match number(text) {
        Some(number) => Value::Number(number, text.to_owned()),
        None => Value::Text(text.to_owned()),
    }
}

/// A number as YAML 1.1 writes it; texts such as `1.2.3` and `10.0.0.0/8` are not numbers.
fn number(text: &str) -> Option<Number> {
    let plain = text.replace('_', "");
    let unsigned = plain.strip_prefix(['-', '+']).unwrap_or(&plain);
    if !unsigned.starts_with(|c: char| c.is_ascii_digit() || c == '.') || text.starts_with('_') {
        return None;
    }
    let radix = |prefix: &str, radix| {
        // A second sign is part of a text.
        let digits = unsigned.strip_prefix(prefix).filter(|digits| !digits.starts_with(['-', '+']))?;
        i64::from_str_radix(digits, radix).ok()
    };
    let other = radix("0x", 16)
        .or_else(|| radix("0o", 8))
        .or_else(|| radix("0b", 2))
        .or_else(|| radix("0", 8));
    if let Some(number) = other {
        return Some(Number::from(if plain.starts_with('-') { -number } else { number }));
    }
    let decimal = plain.strip_prefix('+').unwrap_or(&plain);
    if let Ok(number) = decimal.parse::<i64>() {
        return Some(Number::from(number));
    }
    if let Ok(number) = decimal.parse::<u64>() {
        return Some(Number::from(number));
    }
    let is_float = unsigned.chars().all(|c| c.is_ascii_digit() || matches!(c, '.' | 'e' | 'E' | '-' | '+'));
    is_float.then(|| Number::from_f64(decimal.parse().ok()?)).flatten()
}
