//! Parser of one complete declaration.
//!
//! *In*: the declaration's tokens, and the known type names. *Out*: a type or a block. *Source*:
//! TSDL, specification section 7 and its grammar in appendix C. The language resembles C's
//! declarations.
//!
//! *Invariant*: a declaration can use only names that were declared before it, so names are
//! resolved during parsing.

use std::collections::HashMap;
use std::sync::Arc;

use super::lexer::{Token, unescaped};
use super::types::{DEPTH_MAX, Type};

mod scalar_types;
mod type_declarations;

/// Declaration at the top level of the metadata.
#[derive(Debug)]
pub enum Declaration {
    /// Declaration of a named type.
    Type,
    /// Block such as `trace { … }` or `clock { … }`: its keyword and entries.
    Block(String, Block),
}

/// Entries of a block, in order.
pub type Block = Vec<(String, BlockValue)>;

/// Value of an entry.
#[derive(Clone, Debug)]
pub enum BlockValue {
    /// Word, or several words joined by dots.
    Word(String),
    /// Number.
    Number(i128),
    /// Quoted text.
    Text(String),
    /// Type (`:=`).
    Type(Arc<Type>),
}

/// Names of types in one pair of braces, by kind of name.
#[derive(Default, Debug)]
struct Scope {
    aliases: HashMap<String, Arc<Type>>,
    structs: HashMap<String, Arc<Type>>,
    enums: HashMap<String, Arc<Type>>,
    variants: HashMap<String, Arc<Type>>,
}

/// Known names; the innermost scope is last.
#[derive(Debug)]
pub struct Scopes(Vec<Scope>);

impl Default for Scopes {
    fn default() -> Self {
        Self(vec![Scope::default()])
    }
}

impl Scopes {
    fn find(&self, which: impl Fn(&Scope) -> Option<&Arc<Type>>) -> Option<Arc<Type>> {
        self.0.iter().rev().find_map(which).cloned()
    }

    fn top(&mut self) -> &mut Scope {
        self.0.last_mut().expect("invariant: the outermost scope is never closed")
    }

    /// Returns to the outermost scope after a failed declaration.
    pub(crate) fn unwind(&mut self) {
        self.0.truncate(1);
    }
}

/// Syntax error: the token's index, and a description.
pub type SyntaxError = (usize, String);
type Parsed<T> = Result<T, SyntaxError>;

/// Parser of one declaration, up to and including its `;`.
pub struct Parser<'t, 'a> {
    tokens: &'t [(Token<'a>, usize)],
    at: usize,
    scopes: &'t mut Scopes,
    /// Current nesting of braces and types, which is also the depth of this parser's recursion.
    depth: u32,
}

impl<'t, 'a> Parser<'t, 'a> {
    /// Creates a parser of `tokens` with the names of `scopes`.
    pub fn new(tokens: &'t [(Token<'a>, usize)], scopes: &'t mut Scopes) -> Self {
        Self { tokens, at: 0, scopes, depth: 0 }
    }

    /// Parses the declaration.
    pub fn declaration(mut self) -> Parsed<Declaration> {
        let parsed = match self.peek_word() {
            Some(word @ ("trace" | "env" | "clock" | "stream" | "event" | "callsite")) => {
                self.at += 1;
                Declaration::Block(word.to_owned(), self.block()?)
            }
            _ => {
                self.type_declaration()?;
                Declaration::Type
            }
        };
        self.expect_punctuation(';')?;
        Ok(parsed)
    }

    fn fail<T>(&self, message: impl Into<String>) -> Parsed<T> {
        Err((self.at, message.into()))
    }

    fn type_or_error(&self, made: Result<Arc<Type>, String>) -> Parsed<Arc<Type>> {
        made.map_err(|message| (self.at, message))
    }

    fn peek(&self) -> Option<&Token<'a>> {
        self.tokens.get(self.at).map(|(token, _)| token)
    }

    fn peek_word(&self) -> Option<&'a str> {
        match self.peek() {
            Some(Token::Word(word)) => Some(word),
            _ => None,
        }
    }

    fn is_punctuation(&self, mark: char) -> bool {
        self.peek() == Some(&Token::Punctuation(mark))
    }

    fn take_punctuation(&mut self, mark: char) -> bool {
        let found = self.is_punctuation(mark);
        self.at += usize::from(found);
        found
    }

    fn expect_punctuation(&mut self, mark: char) -> Parsed<()> {
        if self.take_punctuation(mark) { Ok(()) } else { self.fail(format!("expected `{mark}`")) }
    }

    fn take_word(&mut self, word: &str) -> bool {
        let found = self.peek_word() == Some(word);
        self.at += usize::from(found);
        found
    }

    fn word(&mut self) -> Parsed<&'a str> {
        let Some(word) = self.peek_word() else { return self.fail("expected a name") };
        self.at += 1;
        Ok(word)
    }

    fn number(&mut self) -> Parsed<i128> {
        let negative = self.take_punctuation('-');
        if !negative {
            self.take_punctuation('+');
        }
        let Some(&Token::Number(number)) = self.peek() else { return self.fail("expected a number") };
        self.at += 1;
        Ok(if negative { -i128::from(number) } else { i128::from(number) })
    }

    fn nested<T>(&mut self, inside: impl FnOnce(&mut Self) -> Parsed<T>) -> Parsed<T> {
        if self.depth >= 2 * DEPTH_MAX {
            return self.fail(format!("nests deeper than {}", 2 * DEPTH_MAX));
        }
        self.depth += 1;
        let parsed = inside(self);
        self.depth -= 1;
        parsed
    }

    /// Parses `{ … }` with a scope of its own.
    fn scoped<T>(&mut self, inside: impl FnOnce(&mut Self) -> Parsed<T>) -> Parsed<T> {
        self.expect_punctuation('{')?;
        self.scopes.0.push(Scope::default());
        let parsed = self.nested(inside);
        self.scopes.0.pop();
        parsed
    }

    fn block(&mut self) -> Parsed<Block> {
        self.scoped(|parser| {
            let mut entries = Block::new();
            while !parser.take_punctuation('}') {
                if parser.begins_type_declaration() {
                    parser.type_declaration()?;
                } else {
                    let key = parser.dotted()?;
                    let value = if parser.peek() == Some(&Token::Assign) {
                        parser.at += 1;
                        BlockValue::Type(parser.named_type()?)
                    } else {
                        parser.expect_punctuation('=')?;
                        parser.value()?
                    };
                    entries.push((key, value));
                }
                parser.expect_punctuation(';')?;
            }
            Ok(entries)
        })
    }

    fn dotted(&mut self) -> Parsed<String> {
        let mut key = self.word()?.to_owned();
        while self.take_punctuation('.') {
            key.push('.');
            key.push_str(self.word()?);
        }
        Ok(key)
    }

    fn value(&mut self) -> Parsed<BlockValue> {
        match self.peek() {
            Some(Token::Text(text)) => {
                let text = unescaped(text);
                self.at += 1;
                Ok(BlockValue::Text(text))
            }
            Some(Token::Word(_)) => Ok(BlockValue::Word(self.dotted()?)),
            _ => Ok(BlockValue::Number(self.number()?)),
        }
    }
}
