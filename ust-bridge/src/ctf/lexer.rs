//! Metadata's text as tokens.
//!
//! Metadata of a live trace arrives in pieces that end anywhere, so "the text ends here" is told apart from "this is no
//! token": the first waits for more, the second never gets better.

/// A token, borrowed from the text.
#[derive(Clone, PartialEq, Debug)]
pub enum Token<'a> {
    /// A name or keyword.
    Word(&'a str),
    /// A number, without its sign.
    Number(u64),
    /// What stands between quotes, without escapes undone.
    Text(&'a str),
    /// `:=`
    Becomes,
    /// `...`
    Dots,
    /// Any other single character of the language.
    Mark(char),
}

/// Why there is no token.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum LexError {
    /// The text ends within a token or comment, or before one.
    End,
    /// This is none.
    Bad(String),
}

/// Tokens of `text` from `at` on, each with where it begins.
pub struct Lexer<'a> {
    text: &'a str,
    at: usize,
}

impl<'a> Lexer<'a> {
    /// From byte `at` on.
    pub fn new(text: &'a str, at: usize) -> Self {
        Self { text, at }
    }

    /// Where the next token is looked for.
    pub fn at(&self) -> usize {
        self.at
    }

    /// Goes to the next token; true if there is one, false if only space and whole comments are left.
    pub fn skip_space(&mut self) -> Result<bool, LexError> {
        loop {
            let rest = &self.text[self.at..];
            let space = rest.len() - rest.trim_start().len();
            self.at += space;
            let rest = &rest[space..];
            if rest.starts_with("/*") {
                let end = rest.find("*/").ok_or(LexError::End)?;
                self.at += end + 2;
            } else if rest.starts_with("//") {
                let end = rest.find('\n').ok_or(LexError::End)?;
                self.at += end + 1;
            } else if rest == "/" {
                return Err(LexError::End);
            } else {
                return Ok(!rest.is_empty());
            }
        }
    }

    /// The next token and where it begins.
    pub fn token(&mut self) -> Result<(Token<'a>, usize), LexError> {
        if !self.skip_space()? {
            return Err(LexError::End);
        }
        let (start, rest) = (self.at, &self.text[self.at..]);
        let first = rest.bytes().next().ok_or(LexError::End)?;
        let (token, length) = match first {
            b'a'..=b'z' | b'A'..=b'Z' | b'_' => {
                let length = word_length(rest)?;
                (Token::Word(&rest[..length]), length)
            }
            b'0'..=b'9' => {
                let length = word_length(rest)?;
                (Token::Number(number(&rest[..length])?), length)
            }
            b'"' => quoted(rest)?,
            b'\'' => character(rest)?,
            b':' if rest.starts_with(":=") => (Token::Becomes, 2),
            b'.' if rest.starts_with("...") => (Token::Dots, 3),
            // What may yet become `:=` or `...`.
            b':' | b'.' if rest.len() < 3 && rest.bytes().all(|byte| byte == first) => {
                return Err(LexError::End);
            }
            b'{' | b'}' | b'[' | b']' | b'(' | b')' | b'<' | b'>' | b';' | b'=' | b',' | b':' | b'.'
            | b'*' | b'-' | b'+' => (Token::Mark(char::from(first)), 1),
            _ => {
                let odd = rest.chars().next().unwrap_or_default();
                return Err(LexError::Bad(format!("unexpected character {odd:?}")));
            }
        };
        self.at = start + length;
        Ok((token, start))
    }
}

/// A word ends where another character begins; at the end of the text it may go on in the next piece.
fn word_length(rest: &str) -> Result<usize, LexError> {
    rest.bytes().position(|byte| !(byte.is_ascii_alphanumeric() || byte == b'_')).ok_or(LexError::End)
}

fn number(word: &str) -> Result<u64, LexError> {
    let digits = word.trim_end_matches(['u', 'U', 'l', 'L']);
    let lower = digits.to_ascii_lowercase();
    let parsed = if let Some(hex) = lower.strip_prefix("0x") {
        u64::from_str_radix(hex, 16)
    } else if let Some(binary) = lower.strip_prefix("0b") {
        u64::from_str_radix(binary, 2)
    } else if lower.len() > 1 && lower.starts_with('0') {
        u64::from_str_radix(&lower[1..], 8)
    } else {
        lower.parse()
    };
    parsed.map_err(|_| LexError::Bad(format!("{word:?} is no number of 64 bits")))
}

fn quoted(rest: &str) -> Result<(Token<'_>, usize), LexError> {
    let bytes = rest.as_bytes();
    let mut at = 1;
    while at < bytes.len() {
        match bytes[at] {
            b'"' => return Ok((Token::Text(&rest[1..at]), at + 1)),
            b'\\' => at += 2,
            _ => at += 1,
        }
    }
    Err(LexError::End)
}

/// A character as in C: its number.
fn character(rest: &str) -> Result<(Token<'_>, usize), LexError> {
    let bytes = rest.as_bytes();
    match (bytes.get(1), bytes.get(2)) {
        (None, _) | (_, None) => Err(LexError::End),
        (Some(&byte), Some(b'\'')) if byte.is_ascii() => Ok((Token::Number(u64::from(byte)), 3)),
        _ => Err(LexError::Bad("a character of more than one byte".to_owned())),
    }
}

/// Text between quotes with its escapes undone; what is no known escape stays as it is.
pub fn unescaped(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    let mut chars = text.chars();
    while let Some(c) = chars.next() {
        match c {
            '\\' => match chars.next() {
                Some('n') => out.push('\n'),
                Some('t') => out.push('\t'),
                Some('r') => out.push('\r'),
                Some('0') => out.push('\0'),
                Some(other) => out.push(other),
                None => out.push('\\'),
            },
            other => out.push(other),
        }
    }
    out
}
