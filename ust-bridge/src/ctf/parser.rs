//! Tokens of one whole declaration as types and blocks.
//!
//! The language looks like C's declarations (TSDL, specification section 7 and its grammar in C). Names are looked up
//! while reading: a declaration can only use what stands before it.

use std::collections::HashMap;
use std::sync::Arc;

use super::lexer::{Token, unescaped};
use super::types::{DEPTH_MAX, Type};

mod declared;
mod numbers;

/// What a declaration at the top of the metadata is.
#[derive(Debug)]
pub enum Declaration {
    /// A type got a name, which is known from now on.
    Type,
    /// `trace { … }`, `clock { … }` and the like: the keyword and what stands in it.
    Block(String, Block),
}

/// What stands in a block, in order.
pub type Block = Vec<(String, Value)>;

/// What a key is set to.
#[derive(Clone, Debug)]
pub enum Value {
    /// A word, or several with dots between.
    Word(String),
    /// A number.
    Number(i128),
    /// A text between quotes.
    Text(String),
    /// A type (`:=`).
    Type(Arc<Type>),
}

/// Names of types by kind of name, for one pair of braces.
#[derive(Default, Debug)]
struct Scope {
    aliases: HashMap<String, Arc<Type>>,
    structs: HashMap<String, Arc<Type>>,
    enums: HashMap<String, Arc<Type>>,
    variants: HashMap<String, Arc<Type>>,
}

/// The names that are known, innermost scope last.
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

    /// Back to the outermost scope, after a declaration that failed in between.
    pub(crate) fn unwind(&mut self) {
        self.0.truncate(1);
    }
}

/// Why the text says nothing: where (the token's number) and what.
pub type Fault = (usize, String);
type Parsed<T> = Result<T, Fault>;

/// Reads the tokens of one declaration, its `;` included.
pub struct Parser<'t, 'a> {
    tokens: &'t [(Token<'a>, usize)],
    at: usize,
    scopes: &'t mut Scopes,
    /// Braces and types that are open here; as deep as the stack of this parser goes.
    open: u32,
}

impl<'t, 'a> Parser<'t, 'a> {
    /// Over `tokens`, with the names of `scopes`.
    pub fn new(tokens: &'t [(Token<'a>, usize)], scopes: &'t mut Scopes) -> Self {
        Self { tokens, at: 0, scopes, open: 0 }
    }

    /// The whole declaration.
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
        self.mark(';')?;
        Ok(parsed)
    }

    fn fail<T>(&self, what: impl Into<String>) -> Parsed<T> {
        Err((self.at, what.into()))
    }

    fn made(&self, made: Result<Arc<Type>, String>) -> Parsed<Arc<Type>> {
        made.map_err(|what| (self.at, what))
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

    fn is_mark(&self, mark: char) -> bool {
        self.peek() == Some(&Token::Mark(mark))
    }

    fn take_mark(&mut self, mark: char) -> bool {
        let there = self.is_mark(mark);
        self.at += usize::from(there);
        there
    }

    fn mark(&mut self, mark: char) -> Parsed<()> {
        if self.take_mark(mark) { Ok(()) } else { self.fail(format!("expected `{mark}`")) }
    }

    fn take_word(&mut self, word: &str) -> bool {
        let there = self.peek_word() == Some(word);
        self.at += usize::from(there);
        there
    }

    fn word(&mut self) -> Parsed<&'a str> {
        let Some(word) = self.peek_word() else { return self.fail("expected a name") };
        self.at += 1;
        Ok(word)
    }

    fn number(&mut self) -> Parsed<i128> {
        let negative = self.take_mark('-');
        if !negative {
            self.take_mark('+');
        }
        let Some(&Token::Number(number)) = self.peek() else { return self.fail("expected a number") };
        self.at += 1;
        Ok(if negative { -i128::from(number) } else { i128::from(number) })
    }

    fn deeper<T>(&mut self, inside: impl FnOnce(&mut Self) -> Parsed<T>) -> Parsed<T> {
        if self.open >= 2 * DEPTH_MAX {
            return self.fail(format!("nests deeper than {}", 2 * DEPTH_MAX));
        }
        self.open += 1;
        let parsed = inside(self);
        self.open -= 1;
        parsed
    }

    /// `{ … }` with names of its own.
    fn scoped<T>(&mut self, inside: impl FnOnce(&mut Self) -> Parsed<T>) -> Parsed<T> {
        self.mark('{')?;
        self.scopes.0.push(Scope::default());
        let parsed = self.deeper(inside);
        self.scopes.0.pop();
        parsed
    }

    fn block(&mut self) -> Parsed<Block> {
        self.scoped(|parser| {
            let mut entries = Block::new();
            while !parser.take_mark('}') {
                if parser.begins_type_declaration() {
                    parser.type_declaration()?;
                } else {
                    let key = parser.dotted()?;
                    let value = if parser.peek() == Some(&Token::Becomes) {
                        parser.at += 1;
                        Value::Type(parser.named_type()?)
                    } else {
                        parser.mark('=')?;
                        parser.value()?
                    };
                    entries.push((key, value));
                }
                parser.mark(';')?;
            }
            Ok(entries)
        })
    }

    fn dotted(&mut self) -> Parsed<String> {
        let mut key = self.word()?.to_owned();
        while self.take_mark('.') {
            key.push('.');
            key.push_str(self.word()?);
        }
        Ok(key)
    }

    fn value(&mut self) -> Parsed<Value> {
        match self.peek() {
            Some(Token::Text(text)) => {
                let text = unescaped(text);
                self.at += 1;
                Ok(Value::Text(text))
            }
            Some(Token::Word(_)) => Ok(Value::Word(self.dotted()?)),
            _ => Ok(Value::Number(self.number()?)),
        }
    }
}
