//! Tokens of one whole declaration as types and blocks.
//!
//! The language looks like C's declarations (TSDL, specification section 7 and its grammar in C). Names are looked up
//! while reading: a declaration can only use what stands before it.

use std::collections::HashMap;
use std::sync::Arc;

use super::lexer::{Token, unescaped};
use super::types::{DEPTH_MAX, Field, Float, Int, Kind, Label, Labels, Order, Path, Type};

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

    fn begins_type_declaration(&self) -> bool {
        matches!(self.peek_word(), Some("typealias" | "typedef" | "struct" | "enum" | "variant"))
    }

    /// `typealias`, `typedef`, or a type that names itself.
    fn type_declaration(&mut self) -> Parsed<()> {
        if self.take_word("typealias") {
            let aliased = self.type_alone()?;
            let aliased = self.subscripts(aliased)?;
            if self.peek() != Some(&Token::Becomes) {
                return self.fail("expected `:=`");
            }
            self.at += 1;
            let name = self.alias_name()?;
            self.scopes.top().aliases.insert(name, aliased);
            return Ok(());
        }
        if self.take_word("typedef") {
            let (base, first) = self.type_and_name()?;
            let Some(first) = first else { return self.fail("expected a name") };
            for (name, of) in self.declarators(base, first)? {
                self.scopes.top().aliases.insert(name.to_string(), of);
            }
            return Ok(());
        }
        match self.peek_word() {
            Some("struct" | "enum" | "variant") => self.type_alone().map(drop),
            _ => self.fail("expected a declaration"),
        }
    }

    /// Words up to something that is none: the name of an alias may have several (`unsigned long`, `void *`).
    fn alias_name(&mut self) -> Parsed<String> {
        let mut words = Vec::new();
        loop {
            if let Some(word) = self.peek_word() {
                words.push(word);
            } else if self.is_mark('*') {
                words.push("*");
            } else {
                break;
            }
            self.at += 1;
        }
        if words.is_empty() {
            return self.fail("expected a name");
        }
        words.retain(|word| *word != "const");
        Ok(words.join(" "))
    }

    fn alias(&self, name: &str) -> Parsed<Arc<Type>> {
        match self.scopes.find(|scope| scope.aliases.get(name)) {
            Some(of) => Ok(of),
            None => self.fail(format!("no type is called `{name}`")),
        }
    }

    /// A type where nothing follows that could be a field's name.
    fn type_alone(&mut self) -> Parsed<Arc<Type>> {
        match self.type_and_name()? {
            (of, None) => Ok(of),
            (_, Some(name)) => self.fail(format!("a type was expected, and `{name}` follows it")),
        }
    }

    /// What follows `:=` in a block.
    fn named_type(&mut self) -> Parsed<Arc<Type>> {
        let of = self.type_alone()?;
        self.subscripts(of)
    }

    /// A type, and the name that follows it, if one does.
    fn type_and_name(&mut self) -> Parsed<(Arc<Type>, Option<&'a str>)> {
        self.take_word("const");
        let of = match self.peek_word() {
            Some("struct") => self.deeper(Self::structure)?,
            Some("variant") => self.deeper(Self::variant)?,
            Some("enum") => self.deeper(Self::enumeration)?,
            Some("integer") => self.integer()?,
            Some("floating_point") => self.float()?,
            Some("string") => self.string()?,
            Some(_) => return self.alias_and_name(),
            None => return self.fail("expected a type"),
        };
        let name = self.peek_word();
        self.at += usize::from(name.is_some());
        Ok((of, name))
    }

    /// `unsigned long x`: the longest run of words that is an alias; one more is the name.
    fn alias_and_name(&mut self) -> Parsed<(Arc<Type>, Option<&'a str>)> {
        let start = self.at;
        let whole = self.alias_name()?;
        let ends_in_word = matches!(self.tokens.get(self.at - 1), Some((Token::Word(_), _)));
        if let Some(of) = self.scopes.find(|scope| scope.aliases.get(&whole)) {
            return Ok((of, None));
        }
        if self.at - start < 2 || !ends_in_word {
            return self.fail(format!("no type is called `{whole}`"));
        }
        let name = match self.tokens[self.at - 1].0 {
            Token::Word(word) => word,
            _ => return self.fail("expected a name"),
        };
        let of = self.alias(whole.trim_end_matches(name).trim_end())?;
        Ok((of, Some(name)))
    }

    /// `a, b[4], c[n]`: what is declared by one type.
    fn declarators(&mut self, base: Arc<Type>, first: &'a str) -> Parsed<Vec<(Arc<str>, Arc<Type>)>> {
        let mut all = vec![(Arc::from(first), self.subscripts(base.clone())?)];
        while self.take_mark(',') {
            let name = self.word()?;
            all.push((Arc::from(name), self.subscripts(base.clone())?));
        }
        Ok(all)
    }

    /// `[4][n]`: the last one is the innermost, as in C.
    fn subscripts(&mut self, base: Arc<Type>) -> Parsed<Arc<Type>> {
        let mut lengths = Vec::new();
        while self.take_mark('[') {
            lengths.push(match self.peek() {
                Some(Token::Word(_)) => Err(self.path()?),
                _ => Ok(self.number()?),
            });
            self.mark(']')?;
        }
        lengths.into_iter().rev().try_fold(base, |element, length| {
            let align = element.align;
            match length {
                Ok(length) => match u64::try_from(length) {
                    Ok(length) => self.made(Type::new(Kind::Array(element, length), align)),
                    Err(_) => self.fail("an array's length is below zero"),
                },
                Err(path) => self.made(Type::new(Kind::Sequence(element, path), align)),
            }
        })
    }

    fn path(&mut self) -> Parsed<Path> {
        Ok(self.dotted()?.split('.').map(Arc::from).collect())
    }

    /// The fields between braces, of a structure or variant.
    fn fields(&mut self) -> Parsed<Vec<Field>> {
        self.scoped(|parser| {
            let mut fields: Vec<Field> = Vec::new();
            while !parser.take_mark('}') {
                if matches!(parser.peek_word(), Some("typealias" | "typedef")) {
                    parser.type_declaration()?;
                } else {
                    match parser.type_and_name()? {
                        (base, Some(first)) => {
                            for (name, of) in parser.declarators(base, first)? {
                                if fields.iter().any(|field| field.name == name) {
                                    return parser.fail(format!("two fields are called `{name}`"));
                                }
                                fields.push(Field { name, of });
                            }
                        }
                        // A type that is only declared here.
                        (_, None) if parser.is_mark(';') => {}
                        (_, None) => return parser.fail("expected a field's name"),
                    }
                }
                parser.mark(';')?;
            }
            Ok(fields)
        })
    }

    /// The name after `struct`, `variant` or `enum`, if there is one.
    fn tag_name(&mut self) -> Option<&'a str> {
        let name = self.peek_word().filter(|word| *word != "align");
        self.at += usize::from(name.is_some());
        name
    }

    fn structure(&mut self) -> Parsed<Arc<Type>> {
        self.at += 1;
        let name = self.tag_name();
        if !self.is_mark('{') {
            let name = name.unwrap_or_default();
            return match self.scopes.find(|scope| scope.structs.get(name)) {
                Some(of) => Ok(of),
                None => self.fail(format!("no structure is called `{name}`")),
            };
        }
        let fields = self.fields()?;
        let mut align = 1;
        if self.take_word("align") {
            self.mark('(')?;
            align = self.small()?;
            self.mark(')')?;
        }
        let of = self.made(Type::structure(fields, align))?;
        if let Some(name) = name {
            self.scopes.top().structs.insert(name.to_owned(), of.clone());
        }
        Ok(of)
    }

    fn variant(&mut self) -> Parsed<Arc<Type>> {
        self.at += 1;
        let name = self.tag_name();
        let tag = if self.take_mark('<') {
            let path = self.path()?;
            self.mark('>')?;
            Some(path)
        } else {
            None
        };
        let options = if self.is_mark('{') {
            self.fields()?
        } else {
            let name = name.unwrap_or_default();
            match self.scopes.find(|scope| scope.variants.get(name)).as_deref() {
                Some(Type { kind: Kind::Variant(_, options), .. }) => options.clone(),
                _ => return self.fail(format!("no variant is called `{name}`")),
            }
        };
        let of = self.made(Type::new(Kind::Variant(tag, options), 1))?;
        if let Some(name) = name {
            self.scopes.top().variants.insert(name.to_owned(), of.clone());
        }
        Ok(of)
    }

    fn enumeration(&mut self) -> Parsed<Arc<Type>> {
        self.at += 1;
        let name = self.tag_name();
        let container = if self.take_mark(':') {
            self.type_alone()?
        } else if self.is_mark('{') {
            self.alias("int")?
        } else {
            let name = name.unwrap_or_default();
            return match self.scopes.find(|scope| scope.enums.get(name)) {
                Some(of) => Ok(of),
                None => self.fail(format!("no enumeration is called `{name}`")),
            };
        };
        let Kind::Int(int) = &container.kind else { return self.fail("an enumeration is of a whole number") };
        let labels = self.labels()?;
        let of = self.made(Type::new(Kind::Enum(int.clone(), Arc::new(labels)), container.align))?;
        if let Some(name) = name {
            self.scopes.top().enums.insert(name.to_owned(), of.clone());
        }
        Ok(of)
    }

    fn labels(&mut self) -> Parsed<Labels> {
        self.mark('{')?;
        let (mut labels, mut next) = (Labels::new(), 0_i128);
        while !self.take_mark('}') {
            let name: Arc<str> = match self.peek() {
                Some(Token::Text(text)) => Arc::from(unescaped(text)),
                Some(Token::Word(word)) => Arc::from(*word),
                _ => return self.fail("expected a label"),
            };
            self.at += 1;
            let (mut low, mut high) = (next, next);
            if self.take_mark('=') {
                low = self.number()?;
                high = low;
                if self.peek() == Some(&Token::Dots) {
                    self.at += 1;
                    high = self.number()?;
                }
            }
            if low > high {
                return self.fail("a range ends before it begins");
            }
            next = high + 1;
            labels.push(Label { name, low, high });
            if !self.take_mark(',') && !self.is_mark('}') {
                return self.fail("expected `,` or `}`");
            }
        }
        Ok(labels)
    }

    fn small(&mut self) -> Parsed<u32> {
        let number = self.number()?;
        match u32::try_from(number) {
            Ok(number) => Ok(number),
            Err(_) => self.fail(format!("{number} is too large")),
        }
    }

    fn integer(&mut self) -> Parsed<Arc<Type>> {
        self.at += 1;
        let attributes = self.block()?;
        let mut int =
            Int { bits: 0, align: 0, signed: false, order: None, base: 10, text: false, clock: None };
        for (key, value) in &attributes {
            match (key.as_str(), value) {
                ("size", Value::Number(bits)) => int.bits = self.narrow(*bits)?,
                ("align", Value::Number(align)) => int.align = self.narrow(*align)?,
                ("signed", value) => int.signed = self.truth(value)?,
                ("byte_order", value) => int.order = self.order(value)?,
                ("base", value) => int.base = self.base(value)?,
                ("encoding", Value::Word(word)) => int.text = word != "none",
                ("encoding", Value::Text(word)) => int.text = word != "none",
                ("map", Value::Word(word)) => int.clock = Some(self.clock(word)?),
                ("size" | "align" | "encoding" | "map", _) => {
                    return self.fail(format!("`{key}` of an integer is not understood"));
                }
                _ => {}
            }
        }
        if !(1..=64).contains(&int.bits) {
            return self.fail(format!("an integer of {} bits: 1 to 64 can be read", int.bits));
        }
        if int.align == 0 {
            int.align = if int.bits.is_multiple_of(8) { 8 } else { 1 };
        }
        self.made(Type::int(int))
    }

    fn float(&mut self) -> Parsed<Arc<Type>> {
        self.at += 1;
        let attributes = self.block()?;
        let (mut exponent, mut mantissa, mut align, mut order) = (0_u32, 0_u32, 0_u32, None);
        for (key, value) in &attributes {
            match (key.as_str(), value) {
                ("exp_dig", Value::Number(digits)) => exponent = self.narrow(*digits)?,
                ("mant_dig", Value::Number(digits)) => mantissa = self.narrow(*digits)?,
                ("align", Value::Number(number)) => align = self.narrow(*number)?,
                ("byte_order", value) => order = self.order(value)?,
                _ => {}
            }
        }
        let bits = match (exponent, mantissa) {
            (8, 24) => 32,
            (11, 53) => 64,
            _ => {
                return self.fail(format!(
                    "a float of {exponent} and {mantissa} digits: 8 and 24, or 11 and 53, can be read"
                ));
            }
        };
        let align = if align == 0 { 8 } else { align };
        self.made(Type::new(Kind::Float(Float { bits, order }), align))
    }

    fn string(&mut self) -> Parsed<Arc<Type>> {
        self.at += 1;
        if self.is_mark('{') {
            self.block()?;
        }
        self.made(Type::new(Kind::Text, 8))
    }

    fn narrow(&self, number: i128) -> Parsed<u32> {
        u32::try_from(number).map_err(|_| (self.at, format!("{number} is out of range")))
    }

    fn truth(&self, value: &Value) -> Parsed<bool> {
        match value {
            Value::Number(number) => Ok(*number != 0),
            Value::Word(word) if ["true", "TRUE"].contains(&word.as_str()) => Ok(true),
            Value::Word(word) if ["false", "FALSE"].contains(&word.as_str()) => Ok(false),
            _ => self.fail("expected true or false"),
        }
    }

    fn order(&self, value: &Value) -> Parsed<Option<Order>> {
        match value {
            Value::Word(word) => match word.as_str() {
                "le" => Ok(Some(Order::Little)),
                "be" | "network" => Ok(Some(Order::Big)),
                "native" => Ok(None),
                _ => self.fail(format!("no byte order is called `{word}`")),
            },
            _ => self.fail("expected a byte order"),
        }
    }

    fn base(&self, value: &Value) -> Parsed<u8> {
        match value {
            Value::Number(base @ (2 | 8 | 10 | 16)) => Ok(*base as u8),
            Value::Word(word) => match word.as_str() {
                "decimal" | "dec" | "d" | "i" | "u" => Ok(10),
                "hexadecimal" | "hex" | "x" | "X" | "p" => Ok(16),
                "octal" | "oct" | "o" => Ok(8),
                "binary" | "b" => Ok(2),
                _ => self.fail(format!("no base is called `{word}`")),
            },
            _ => self.fail("expected a base"),
        }
    }

    /// `clock.NAME.value`
    fn clock(&self, word: &str) -> Parsed<Arc<str>> {
        match word.strip_prefix("clock.").and_then(|rest| rest.strip_suffix(".value")) {
            Some(name) => Ok(Arc::from(name)),
            None => self.fail(format!("`{word}` is no clock's value")),
        }
    }
}
