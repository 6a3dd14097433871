//! The characters of a file one by one, each with its position.

use super::Position;

/// A character and its position.
#[derive(Clone, Copy, Debug)]
pub(super) struct Located {
    pub(super) ch: char,
    pub(super) at: Position,
    /// Set for bytes that are not UTF-8 (`ch` is then the replacement character).
    pub(super) invalid: bool,
}

/// Walks over a file.
#[derive(Debug)]
pub(super) struct Cursor {
    chars: Vec<Located>,
    next: usize,
    end: Position,
}

impl Cursor {
    pub(super) fn new(bytes: &[u8]) -> Self {
        let mut chars = Vec::with_capacity(bytes.len());
        let mut at = Position { line: 1, column: 1 };
        let mut push = |ch: char, width: usize, invalid: bool| {
            chars.push(Located { ch, at, invalid });
            at = if ch == '\n' {
                Position {
                    line: at.line + 1,
                    column: 1,
                }
            } else {
                Position {
                    column: at.column + width,
                    ..at
                }
            };
        };
        for chunk in bytes.utf8_chunks() {
            for ch in chunk.valid().chars() {
                push(ch, ch.len_utf8(), false);
            }
            if !chunk.invalid().is_empty() {
                push(char::REPLACEMENT_CHARACTER, chunk.invalid().len(), true);
            }
        }
        Self {
            chars,
            next: 0,
            end: at,
        }
    }

    /// All characters, including those already read.
    pub(super) fn all(&self) -> &[Located] {
        &self.chars
    }

    /// The next character, without taking it.
    pub(super) fn peek(&self) -> Option<char> {
        self.chars.get(self.next).map(|located| located.ch)
    }

    /// The position of the next character, or of the end of the file.
    pub(super) fn position(&self) -> Position {
        self.chars.get(self.next).map_or(self.end, |located| located.at)
    }

    /// Takes the next character.
    pub(super) fn bump(&mut self) -> Option<char> {
        let ch = self.peek();
        self.next = (self.next + 1).min(self.chars.len());
        ch
    }

    /// Takes the next character if it is `expected`.
    pub(super) fn eat(&mut self, expected: char) -> bool {
        let found = self.peek() == Some(expected);
        if found {
            self.bump();
        }
        found
    }

    /// Skips white space within the line.
    pub(super) fn skip_blanks(&mut self) {
        while self.peek().is_some_and(is_blank) {
            self.bump();
        }
    }

    /// Skips to the next line break, which stays the next character.
    pub(super) fn skip_line(&mut self) {
        while self.peek().is_some_and(|ch| ch != '\n') {
            self.bump();
        }
    }

    /// Whether the rest of the line is empty or a comment. White space must have been skipped.
    pub(super) fn at_line_end(&self) -> bool {
        matches!(self.peek(), None | Some('\n' | ';' | '#'))
    }
}

/// White space within a line.
pub(super) fn is_blank(ch: char) -> bool {
    matches!(ch, ' ' | '\t' | '\r')
}

/// Whether a name may begin with the character.
pub(super) fn is_letter(ch: char) -> bool {
    ch.is_alphabetic()
}

/// Whether a name may contain the character.
pub(super) fn is_name(ch: char) -> bool {
    is_letter(ch) || ch.is_ascii_digit() || ch == '-' || (!ch.is_ascii() && ch.is_numeric())
}
