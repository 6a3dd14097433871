//! From characters to a document. Every error ends its line; reading goes on at the next one.

use std::collections::BTreeSet;

use super::{
    Document, GcfgEntry, Name, Position, Section, SyntaxError, Value,
    cursor::{Cursor, is_blank, is_letter, is_name},
};

/// The section of the following keys.
enum Current {
    /// No header was read yet.
    None,
    /// The header is invalid or missing: keys are checked, but belong to no section.
    Broken,
    /// The last section of the document.
    Last,
}

struct Parser {
    cursor: Cursor,
    document: Document,
    errors: Vec<SyntaxError>,
    current: Current,
}

type Parsed<T> = Result<T, SyntaxError>;

/// Reads a file. Returns the parts that could be read, and the errors in the order of the file.
#[must_use]
pub fn parse(text: impl AsRef<[u8]>) -> (Document, Vec<SyntaxError>) {
    let mut parser = Parser {
        cursor: Cursor::new(text.as_ref()),
        document: Document::default(),
        errors: Vec::new(),
        current: Current::None,
    };
    parser.file();
    let illegal = illegal_encoding(&parser.cursor);
    let Parser {
        document, mut errors, ..
    } = parser;
    // Such a character can cause a second error in its line. Only the first one is reported.
    let reported: BTreeSet<usize> = illegal.iter().map(|error| error.position.line).collect();
    errors.retain(|error| !reported.contains(&error.position.line));
    errors.extend(illegal);
    errors.sort_by_key(|error| error.position);
    (document, errors)
}

/// The illegal characters anywhere in the file, even in comments; the first of each line.
fn illegal_encoding(cursor: &Cursor) -> Vec<SyntaxError> {
    let mut errors: Vec<SyntaxError> = Vec::new();
    for located in cursor.all() {
        let (message, hint) = if located.invalid {
            ("illegal UTF-8 encoding", Some("save the file as UTF-8"))
        } else if located.ch == '\0' {
            ("illegal character NUL", None)
        } else {
            continue;
        };
        if errors.last().is_none_or(|last| last.position.line != located.at.line) {
            errors.push(SyntaxError {
                position: located.at,
                message: message.into(),
                hint,
            });
        }
    }
    errors
}

fn error<T>(position: Position, message: &str, hint: Option<&'static str>) -> Parsed<T> {
    Err(SyntaxError {
        position,
        message: message.into(),
        hint,
    })
}

impl Parser {
    fn file(&mut self) {
        while self.cursor.peek().is_some() {
            if let Err(error) = self.line() {
                // What follows a byte-order mark is read, so that its keys are not reported for a missing header.
                if error.position.column > 1 || !self.cursor.eat('\u{feff}') {
                    self.cursor.skip_line();
                }
                self.errors.push(error);
            }
        }
    }

    /// One line, or several when a value is continued.
    fn line(&mut self) -> Parsed<()> {
        self.cursor.skip_blanks();
        match self.cursor.peek() {
            None => Ok(()),
            Some('\n') => {
                self.cursor.bump();
                Ok(())
            }
            Some(';' | '#') => {
                self.cursor.skip_line();
                Ok(())
            }
            Some('[') => {
                self.current = Current::Broken;
                let section = self.header()?;
                self.document.sections.push(section);
                self.current = Current::Last;
                Ok(())
            }
            Some(ch) if is_letter(ch) => self.key(),
            Some(_) => {
                self.legal()?;
                let message = if matches!(self.current, Current::None) {
                    "expected section header"
                } else {
                    "expected section header or variable declaration"
                };
                error(self.cursor.position(), message, None)
            }
        }
    }

    fn header(&mut self) -> Parsed<Section> {
        self.cursor.bump();
        self.cursor.skip_blanks();
        if !self.cursor.peek().is_some_and(is_letter) {
            self.legal()?;
            return error(self.cursor.position(), "expected section name", None);
        }
        let name = self.name();
        self.cursor.skip_blanks();
        let subsection = if self.cursor.peek() == Some('"') {
            Some(self.subsection()?)
        } else {
            None
        };
        self.cursor.skip_blanks();
        if !self.cursor.eat(']') {
            self.legal()?;
            let message = match subsection {
                Some(_) => "expected right bracket",
                None => "expected subsection name or right bracket",
            };
            return error(self.cursor.position(), message, None);
        }
        self.cursor.skip_blanks();
        if !self.cursor.at_line_end() {
            self.legal()?;
            let hint = "write what follows the header on a line of its own";
            return error(self.cursor.position(), "expected EOL, EOF, or comment", Some(hint));
        }
        self.cursor.skip_line();
        Ok(Section {
            name,
            subsection,
            entries: Vec::new(),
        })
    }

    fn subsection(&mut self) -> Parsed<Name> {
        let start = self.cursor.position();
        self.cursor.bump();
        let mut text = String::new();
        loop {
            let at = self.cursor.position();
            match self.cursor.peek() {
                None | Some('\n') => return error(start, "string not terminated", None),
                Some('"') => break,
                Some('\\') => {
                    self.cursor.bump();
                    match self.cursor.peek() {
                        Some(ch @ ('\\' | '"')) => text.push(ch),
                        _ => {
                            let hint = r#"in a subsection's name only \\ and \" are known"#;
                            return error(at, "unknown escape sequence", Some(hint));
                        }
                    }
                }
                Some(ch) => text.push(ch),
            }
            self.cursor.bump();
        }
        self.cursor.bump();
        if text.is_empty() {
            return error(start, "empty subsection name", None);
        }
        Ok(Name {
            text,
            start,
            end: self.cursor.position(),
        })
    }

    fn key(&mut self) -> Parsed<()> {
        if matches!(self.current, Current::None) {
            // Reported once, however many keys there are.
            self.current = Current::Broken;
            let position = self.cursor.position();
            self.errors.push(SyntaxError {
                position,
                message: "expected section header".into(),
                hint: Some("a key must follow a header such as [Global]"),
            });
        }
        let key = self.name();
        self.cursor.skip_blanks();
        let value = if self.cursor.at_line_end() {
            self.cursor.skip_line();
            None
        } else if self.cursor.eat('=') {
            Some(self.value()?)
        } else {
            self.legal()?;
            return error(self.cursor.position(), "expected '='", None);
        };
        if let (Current::Last, Some(section)) = (&self.current, self.document.sections.last_mut()) {
            section.entries.push(GcfgEntry { key, value });
        }
        Ok(())
    }

    fn value(&mut self) -> Parsed<Value> {
        let after_equals = self.cursor.position();
        self.cursor.skip_blanks();
        let start = self.cursor.position();
        let mut end = start;
        // Whether a comment may begin here without being meant as a part of the value.
        let mut separated = start != after_equals;
        let mut is_cut = false;
        let mut text = String::new();
        // The length of `text` without white space at the end.
        let mut trimmed = 0;
        let mut quote: Option<Position> = None;
        loop {
            let at = self.cursor.position();
            let blank = match (self.cursor.peek(), quote) {
                (None | Some('\n'), Some(opened)) => {
                    return error(
                        opened,
                        "string not terminated",
                        Some("the closing double quote is missing"),
                    );
                }
                (None | Some('\n'), None) => break,
                (Some(';' | '#'), None) => {
                    is_cut = !separated;
                    break;
                }
                (Some('"'), _) => {
                    quote = if quote.is_none() { Some(at) } else { None };
                    false
                }
                (Some('\\'), Some(_)) => {
                    self.cursor.bump();
                    match self.cursor.peek() {
                        Some(ch @ ('\\' | '"')) => text.push(ch),
                        Some('n') => text.push('\n'),
                        Some('t') => text.push('\t'),
                        _ => {
                            let hint = r#"in quotes \\, \", \n and \t are known; write a backslash as \\"#;
                            return error(at, "unknown escape sequence", Some(hint));
                        }
                    }
                    false
                }
                (Some('\\'), None) => {
                    self.cursor.bump();
                    self.cursor.eat('\r');
                    match self.cursor.peek() {
                        Some('"') => text.push('"'),
                        Some('\n') => (),
                        _ => {
                            let hint = r"write the value in double quotes and its backslashes as \\";
                            let message = r"unquoted '\' must be followed by new line or double quote";
                            return error(at, message, Some(hint));
                        }
                    }
                    false
                }
                // Dropped everywhere, in quotes too.
                (Some('\r'), quote) => quote.is_none(),
                (Some(ch), quote) => {
                    text.push(ch);
                    quote.is_none() && is_blank(ch)
                }
            };
            separated = blank || self.cursor.peek() == Some('"');
            self.cursor.bump();
            if !blank {
                trimmed = text.len();
                end = self.cursor.position();
            }
        }
        text.truncate(trimmed);
        self.cursor.skip_line();
        Ok(Value {
            text,
            start,
            end,
            is_cut,
        })
    }

    fn name(&mut self) -> Name {
        let start = self.cursor.position();
        let mut text = String::new();
        while let Some(ch) = self.cursor.peek().filter(|ch| is_name(*ch)) {
            text.push(ch);
            self.cursor.bump();
        }
        Name {
            text,
            start,
            end: self.cursor.position(),
        }
    }

    /// An error if the next character is illegal outside values.
    fn legal(&self) -> Parsed<()> {
        let Some(ch) = self.cursor.peek() else {
            return Ok(());
        };
        if is_letter(ch) || is_blank(ch) || matches!(ch, '\n' | '"' | '[' | ']' | '=' | ';' | '#') {
            return Ok(());
        }
        let hint = match ch {
            '\u{feff}' => Some("save the file as UTF-8 without a byte-order mark"),
            '_' => Some("names are written with '-', not '_'"),
            '.' => Some(r#"a subsection is written [name "subsection"]"#),
            ':' => Some("write key = value"),
            _ => None,
        };
        let code = u32::from(ch);
        // `Debug` escapes characters that cannot be printed; others are shown as they are.
        let shown = if ch.escape_debug().count() == 1 || ch == '\'' || ch == '\\' {
            format!(" '{ch}'")
        } else {
            String::new()
        };
        error(self.cursor.position(), &format!("illegal character U+{code:04X}{shown}"), hint)
    }
}
