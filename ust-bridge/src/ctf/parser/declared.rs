//! Declarations of types: aliases, structures, variants, enumerations, arrays and sequences.

use std::sync::Arc;

use super::super::lexer::{Token, unescaped};
use super::super::types::{Field, Kind, Label, Labels, Path, Type};
use super::{Parsed, Parser};

impl<'a> Parser<'_, 'a> {
    pub(super) fn begins_type_declaration(&self) -> bool {
        matches!(self.peek_word(), Some("typealias" | "typedef" | "struct" | "enum" | "variant"))
    }

    /// `typealias`, `typedef`, or a type that names itself.
    pub(super) fn type_declaration(&mut self) -> Parsed<()> {
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
    pub(super) fn named_type(&mut self) -> Parsed<Arc<Type>> {
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
}
