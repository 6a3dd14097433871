//! YAML as values that know where they stand. JSON is YAML, too.
//!
//! Scalars without quotes mean what they mean to `kubectl`, which reads YAML 1.1: `yes`, `no`, `on` and `off` are booleans.
//! What can not be read spoils its own document alone.

use std::collections::HashMap;

use ccm_core::config::Position;
use granit_parser::{Event, Options, Parser, ScalarStyle, ScanError, Span, StrInput, Tag};
use serde_json::{Map, Number, Value as Json};

/// More values than this are no manifests: aliases of aliases write out to any number of them.
const MAX_NODES: usize = 1_000_000;

/// A value and where it begins.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Node {
    pub(super) at: Position,
    pub(super) value: Value,
}

/// A value.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Value {
    Null,
    /// With the text that it stands for.
    Bool(bool, String),
    /// With the text that it stands for.
    Number(Number, String),
    Text(String),
    List(Vec<Node>),
    /// In the order of the file; a key may stand twice.
    Map(Vec<Entry>),
}

/// A key with its value.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Entry {
    pub(super) key: String,
    /// Where the key stands.
    pub(super) at: Position,
    pub(super) node: Node,
}

/// Why a document can not be read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Broken {
    pub(super) at: Position,
    pub(super) message: String,
}

impl Value {
    /// What people call it.
    pub(super) fn kind(&self) -> &'static str {
        match self {
            Self::Null => "nothing",
            Self::Bool(..) => "a boolean",
            Self::Number(..) => "a number",
            Self::Text(_) => "a text",
            Self::List(_) => "a list",
            Self::Map(_) => "a mapping",
        }
    }
}

impl Node {
    /// The entries, if it is a mapping.
    pub(super) fn entries(&self) -> &[Entry] {
        match &self.value {
            Value::Map(entries) => entries,
            _ => &[],
        }
    }

    /// What stands under a key. Of a key that stands twice the last one counts.
    pub(super) fn entry(&self, key: &str) -> Option<&Entry> {
        self.entries().iter().rev().find(|entry| entry.key == key)
    }

    /// The value under a key.
    pub(super) fn get(&self, key: &str) -> Option<&Self> {
        self.entry(key).map(|entry| &entry.node)
    }

    /// The text under a key.
    pub(super) fn text(&self, key: &str) -> Option<&str> {
        match &self.get(key)?.value {
            Value::Text(text) => Some(text),
            _ => None,
        }
    }

    /// Where the last key of a path stands, or the last of them that is there.
    pub(super) fn locate(&self, path: &[&str]) -> Position {
        let (mut at, mut node) = (self.at, self);
        for key in path {
            let Some(entry) = node.entry(key) else { break };
            (at, node) = (entry.at, &entry.node);
        }
        at
    }

    /// The same without places.
    pub(super) fn to_json(&self) -> Json {
        match &self.value {
            Value::Null => Json::Null,
            Value::Bool(value, _) => Json::Bool(*value),
            Value::Number(number, _) => Json::Number(number.clone()),
            Value::Text(text) => Json::String(text.clone()),
            Value::List(items) => items.iter().map(Self::to_json).collect(),
            Value::Map(entries) => {
                let pairs = entries
                    .iter()
                    .map(|entry| (entry.key.clone(), entry.node.to_json()));
                Json::Object(pairs.collect::<Map<_, _>>())
            }
        }
    }
}

/// All documents of a file; empty ones are left out.
pub(super) fn documents(text: &str) -> Vec<Result<Node, Broken>> {
    let mut options = Options::default();
    options.set_emit_comments(false);
    let mut reader = Reader {
        parser: Parser::new_from_str_with_options(text, options),
        anchors: HashMap::new(),
        left: MAX_NODES,
    };
    let mut documents = Vec::new();
    loop {
        match reader.document() {
            Ok(Some(node)) if node.value == Value::Null => {}
            Ok(Some(node)) => documents.push(Ok(node)),
            Ok(None) => return documents,
            Err(broken) => {
                documents.push(Err(broken));
                match reader.parser.proceed_next_document() {
                    Ok(true) => {}
                    Ok(false) => return documents,
                    Err(error) => {
                        documents.push(Err(wrong(&error)));
                        return documents;
                    }
                }
            }
        }
    }
}

struct Reader<'a> {
    parser: Parser<'a, StrInput<'a>>,
    /// With how many values there are in each.
    anchors: HashMap<usize, (Node, usize)>,
    /// How many more values there may be.
    left: usize,
}

impl<'a> Reader<'a> {
    /// The next document; `None` at the end.
    fn document(&mut self) -> Result<Option<Node>, Broken> {
        self.anchors.clear();
        let mut found = None;
        loop {
            let Some(event) = self.parser.next_event() else {
                return Ok(found);
            };
            let (event, span) = event.map_err(|error| wrong(&error))?;
            match event {
                Event::StreamEnd => return Ok(found),
                Event::DocumentEnd => {
                    // An empty one is a document, too.
                    let nothing = || Node {
                        at: position(&span),
                        value: Value::Null,
                    };
                    return Ok(Some(found.unwrap_or_else(nothing)));
                }
                event if event.is_node() => found = Some(self.node(event, &span)?),
                _ => {}
            }
        }
    }

    /// The value that begins with this event. Nested no deeper than the parser allows.
    fn node(&mut self, event: Event<'a>, span: &Span) -> Result<Node, Broken> {
        let at = position(span);
        let before = self.left;
        self.take(1, at)?;
        let (value, anchor) = match event {
            Event::Alias(id) => {
                let Some((node, size)) = self.anchors.get(&id).cloned() else {
                    // It is inside of what it stands for.
                    return Err(Broken {
                        at,
                        message: "an alias stands in what it stands for".to_owned(),
                    });
                };
                self.take(size, at)?;
                return Ok(Node { at, ..node });
            }
            Event::Scalar(text, style, anchor, tag) => (scalar(&text, style, tag.as_deref()), anchor),
            Event::SequenceStart(_, anchor, _) => (self.list()?, anchor),
            Event::MappingStart(_, anchor, _) => (self.map()?, anchor),
            // `is_node` knows no others.
            _ => (Value::Null, 0),
        };
        let node = Node { at, value };
        if anchor > 0 {
            self.anchors.insert(anchor, (node.clone(), before - self.left));
        }
        Ok(node)
    }

    fn list(&mut self) -> Result<Value, Broken> {
        let mut items = Vec::new();
        while let Some((event, span)) = self.inner(&Event::SequenceEnd)? {
            items.push(self.node(event, &span)?);
        }
        Ok(Value::List(items))
    }

    fn map(&mut self) -> Result<Value, Broken> {
        let (mut entries, mut merged) = (Vec::new(), Vec::new());
        while let Some((event, span)) = self.inner(&Event::MappingEnd)? {
            let at = position(&span);
            let Some((key, style)) = event.scalar().map(|(key, style)| (key.to_owned(), style)) else {
                return Err(Broken {
                    at,
                    message: "a key is no text".to_owned(),
                });
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
                entries.push(Entry { key, at, node });
            }
        }
        for more in merged {
            if entries.iter().all(|entry| entry.key != more.key) {
                entries.push(more);
            }
        }
        Ok(Value::Map(entries))
    }

    /// The next event inside of something; `None` at its end.
    fn inner(&mut self, end: &Event<'_>) -> Result<Option<(Event<'a>, Span)>, Broken> {
        loop {
            let Some(event) = self.parser.next_event() else {
                return Ok(None);
            };
            let (event, span) = event.map_err(|error| wrong(&error))?;
            if event == *end {
                return Ok(None);
            }
            if event.is_node() {
                return Ok(Some((event, span)));
            }
        }
    }

    fn take(&mut self, nodes: usize, at: Position) -> Result<(), Broken> {
        let left = self.left.checked_sub(nodes);
        self.left = left.ok_or_else(|| Broken {
            at,
            message: format!("the file holds more than {MAX_NODES} values, aliases written out"),
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

fn wrong(error: &ScanError) -> Broken {
    let marker = error.marker();
    Broken {
        at: Position {
            line: marker.line(),
            column: marker.col() + 1,
        },
        message: error.info(),
    }
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

/// A number as YAML 1.1 writes it; texts such as `1.2.3` and `10.0.0.0/8` are none.
fn number(text: &str) -> Option<Number> {
    let plain = text.replace('_', "");
    let unsigned = plain.strip_prefix(['-', '+']).unwrap_or(&plain);
    if !unsigned.starts_with(|c: char| c.is_ascii_digit() || c == '.') || text.starts_with('_') {
        return None;
    }
    let radix = |prefix: &str, radix| {
        let digits = unsigned.strip_prefix(prefix)?;
        i64::from_str_radix(digits, radix).ok()
    };
    let other = radix("0x", 16)
        .or_else(|| radix("0o", 8))
        .or_else(|| radix("0b", 2))
        .or_else(|| radix("0", 8));
    if let Some(number) = other {
        return Some(Number::from(if plain.starts_with('-') {
            -number
        } else {
            number
        }));
    }
    let decimal = plain.strip_prefix('+').unwrap_or(&plain);
    if let Ok(number) = decimal.parse::<i64>() {
        return Some(Number::from(number));
    }
    if let Ok(number) = decimal.parse::<u64>() {
        return Some(Number::from(number));
    }
    let is_float = unsigned
        .chars()
        .all(|c| c.is_ascii_digit() || matches!(c, '.' | 'e' | 'E' | '-' | '+'));
    is_float
        .then(|| Number::from_f64(decimal.parse().ok()?))
        .flatten()
}
