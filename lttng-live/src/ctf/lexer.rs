//! Lexer of the metadata's text.
//!
//! *In*: text from a given offset. *Out*: tokens with their offsets. *Invariant*: an incomplete
//! token differs from an invalid one. Metadata of a live trace arrives in fragments that end
//! anywhere. An incomplete token waits for more text, an invalid one is an error.

/// Token, borrowed from the text.
#[derive(Clone, PartialEq, Debug)]
pub enum Token<'a> {
    /// Name or keyword.
    Word(&'a str),
    /// Number without its sign.
    Number(u64),
    /// Content of a quoted text, with its escapes.
    Text(&'a str),
    /// `:=`
    Assign,
    /// `...`
    Ellipsis,
    /// Any other single character of the language.
    Punctuation(char),
}

/// Reason why there is no token.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum LexError {
    /// The text ends before or within a token or comment.
    Incomplete,
    /// The text is not a token.
    Invalid(String),
}

/// Iterator over the tokens of a text.
pub struct Lexer<'a> {
    text: &'a str,
    at: usize,
}

impl<'a> Lexer<'a> {
    /// Starts at byte `at`.
    pub fn new(text: &'a str, at: usize) -> Self {
        Self { text, at }
    }

    /// Returns the offset of the next token.
    pub fn at(&self) -> usize {
        self.at
    }

    /// Skips white space and comments; returns false at the end of the text.
    pub fn skip_space(&mut self) -> Result<bool, LexError> {
        loop {
            let rest = &self.text[self.at..];
            let space = rest.len() - rest.trim_start().len();
            self.at += space;
            let rest = &rest[space..];
            if rest.starts_with("/*") {
                let end = rest.find("*/").ok_or(LexError::Incomplete)?;
                self.at += end + 2;
            } else if rest.starts_with("//") {
                let end = rest.find('\n').ok_or(LexError::Incomplete)?;
                self.at += end + 1;
            } else if rest == "/" {
                return Err(LexError::Incomplete);
            } else {
                return Ok(!rest.is_empty());
            }
        }
    }

    /// Returns the next token and its offset.
    pub fn token(&mut self) -> Result<(Token<'a>, usize), LexError> {
        if !self.skip_space()? {
            return Err(LexError::Incomplete);
        }
        let (start, rest) = (self.at, &self.text[self.at..]);
        let first = rest.bytes().next().ok_or(LexError::Incomplete)?;
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
            b':' if rest.starts_with(":=") => (Token::Assign, 2),
            b'.' if rest.starts_with("...") => (Token::Ellipsis, 3),
            // May be the begin of `:=` or `...`.
            b':' | b'.' if rest.len() < 3 && rest.bytes().all(|byte| byte == first) => {
                return Err(LexError::Incomplete);
            }
            b'{' | b'}' | b'[' | b']' | b'(' | b')' | b'<' | b'>' | b';' | b'=' | b',' | b':' | b'.'
            | b'*' | b'-' | b'+' => (Token::Punctuation(char::from(first)), 1),
            _ => {
                let unexpected = rest.chars().next().unwrap_or_default();
                return Err(LexError::Invalid(format!("unexpected character {unexpected:?}")));
            }
        };
        self.at = start + length;
        Ok((token, start))
    }
}

/// Returns the length of a word. At the end of the text the word may continue in the next fragment.
fn word_length(rest: &str) -> Result<usize, LexError> {
    rest.bytes().position(|byte| !(byte.is_ascii_alphanumeric() || byte == b'_')).ok_or(LexError::Incomplete)
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
    parsed.map_err(|_| LexError::Invalid(format!("{word:?} is not a number of 64 bits")))
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
    Err(LexError::Incomplete)
}

/// Reads a character constant as in C, as a number.
fn character(rest: &str) -> Result<(Token<'_>, usize), LexError> {
    let bytes = rest.as_bytes();
    match (bytes.get(1), bytes.get(2)) {
        (None, _) | (_, None) => Err(LexError::Incomplete),
        (Some(&byte), Some(b'\'')) if byte.is_ascii() => Ok((Token::Number(u64::from(byte)), 3)),
        _ => Err(LexError::Invalid("a character constant has more than one byte".to_owned())),
    }
}

/// Replaces the escapes of a quoted text. Unknown escapes lose only their backslash.
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
