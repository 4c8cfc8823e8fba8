//! Declarations of types: aliases, structures, variants, enumerations, arrays and sequences.

use std::sync::Arc;

use super::super::lexer::{Token, unescaped};
use super::super::types::{Field, Label, Labels, Path, Type, TypeKind};
use super::{Parsed, Parser};

impl<'a> Parser<'_, 'a> {
    pub(super) fn begins_type_declaration(&self) -> bool {
        matches!(self.peek_word(), Some("typealias" | "typedef" | "struct" | "enum" | "variant"))
    }

    /// Parses `typealias`, `typedef`, or a named compound type.
    pub(super) fn type_declaration(&mut self) -> Parsed<()> {
        if self.take_word("typealias") {
            let aliased = self.type_alone()?;
            let aliased = self.subscripts(aliased)?;
            if self.peek() != Some(&Token::Assign) {
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

    /// Parses the words of an alias's name, of which there may be several (`unsigned long`, `void
    /// *`).
    fn alias_name(&mut self) -> Parsed<String> {
        let mut words = Vec::new();
        loop {
            if let Some(word) = self.peek_word() {
                words.push(word);
            } else if self.is_punctuation('*') {
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
            None => self.fail(format!("unknown type `{name}`")),
        }
    }

    /// Parses a type without a field name after it.
    fn type_alone(&mut self) -> Parsed<Arc<Type>> {
        match self.type_and_name()? {
            (of, None) => Ok(of),
            (_, Some(name)) => self.fail(format!("unexpected `{name}` after a type")),
        }
    }

    /// Parses the type after `:=` in a block.
    pub(super) fn named_type(&mut self) -> Parsed<Arc<Type>> {
        let of = self.type_alone()?;
        self.subscripts(of)
    }

    /// Parses a type, and the name after it if there is one.
    fn type_and_name(&mut self) -> Parsed<(Arc<Type>, Option<&'a str>)> {
        self.take_word("const");
        let of = match self.peek_word() {
            Some("struct") => self.nested(Self::structure)?,
            Some("variant") => self.nested(Self::variant)?,
            Some("enum") => self.nested(Self::enumeration)?,
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

    /// Parses `unsigned long x`: the longest sequence of words that is an alias, then the name.
    fn alias_and_name(&mut self) -> Parsed<(Arc<Type>, Option<&'a str>)> {
        let start = self.at;
        let whole = self.alias_name()?;
        let ends_in_word = matches!(self.tokens.get(self.at - 1), Some((Token::Word(_), _)));
        if let Some(of) = self.scopes.find(|scope| scope.aliases.get(&whole)) {
            return Ok((of, None));
        }
        if self.at - start < 2 || !ends_in_word {
            return self.fail(format!("unknown type `{whole}`"));
        }
        let name = match self.tokens[self.at - 1].0 {
            Token::Word(word) => word,
            _ => return self.fail("expected a name"),
        };
        let of = self.alias(whole.trim_end_matches(name).trim_end())?;
        Ok((of, Some(name)))
    }

    /// Parses `a, b[4], c[n]`: the declarators of one base type.
    fn declarators(&mut self, base: Arc<Type>, first: &'a str) -> Parsed<Vec<(Arc<str>, Arc<Type>)>> {
        let mut all = vec![(Arc::from(first), self.subscripts(base.clone())?)];
        while self.take_punctuation(',') {
            let name = self.word()?;
            all.push((Arc::from(name), self.subscripts(base.clone())?));
        }
        Ok(all)
    }

    /// Parses `[4][n]`. The last subscript is the innermost, as in C.
    fn subscripts(&mut self, base: Arc<Type>) -> Parsed<Arc<Type>> {
        let mut lengths = Vec::new();
        while self.take_punctuation('[') {
            lengths.push(match self.peek() {
                Some(Token::Word(_)) => Err(self.path()?),
                _ => Ok(self.number()?),
            });
            self.expect_punctuation(']')?;
        }
        lengths.into_iter().rev().try_fold(base, |element, length| {
            let align = element.align;
            match length {
                Ok(length) => match u64::try_from(length) {
                    Ok(length) => self.type_or_error(Type::new(TypeKind::Array(element, length), align)),
                    Err(_) => self.fail("an array's length is negative"),
                },
                Err(path) => self.type_or_error(Type::new(TypeKind::Sequence(element, path), align)),
            }
        })
    }

    fn path(&mut self) -> Parsed<Path> {
        Ok(self.dotted()?.split('.').map(Arc::from).collect())
    }

    /// Parses the fields of a structure or variant.
    fn fields(&mut self) -> Parsed<Vec<Field>> {
        self.scoped(|parser| {
            let mut fields: Vec<Field> = Vec::new();
            while !parser.take_punctuation('}') {
                if matches!(parser.peek_word(), Some("typealias" | "typedef")) {
                    parser.type_declaration()?;
                } else {
                    match parser.type_and_name()? {
                        (base, Some(first)) => {
                            for (name, of) in parser.declarators(base, first)? {
                                if fields.iter().any(|field| field.name == name) {
                                    return parser.fail(format!("duplicate field `{name}`"));
                                }
                                fields.push(Field { name, of });
                            }
                        }
                        // A declaration of a type without a field.
                        (_, None) if parser.is_punctuation(';') => {}
                        (_, None) => return parser.fail("expected a field's name"),
                    }
                }
                parser.expect_punctuation(';')?;
            }
            Ok(fields)
        })
    }

    /// Parses the optional name after `struct`, `variant` or `enum`.
    fn tag_name(&mut self) -> Option<&'a str> {
        let name = self.peek_word().filter(|word| *word != "align");
        self.at += usize::from(name.is_some());
        name
    }

    fn structure(&mut self) -> Parsed<Arc<Type>> {
        self.at += 1;
        let name = self.tag_name();
        if !self.is_punctuation('{') {
            let name = name.unwrap_or_default();
            return match self.scopes.find(|scope| scope.structs.get(name)) {
                Some(of) => Ok(of),
                None => self.fail(format!("unknown structure `{name}`")),
            };
        }
        let fields = self.fields()?;
        let mut align = 1;
        if self.take_word("align") {
            self.expect_punctuation('(')?;
            align = self.u32_number()?;
            self.expect_punctuation(')')?;
        }
        let of = self.type_or_error(Type::structure(fields, align))?;
        if let Some(name) = name {
            self.scopes.top().structs.insert(name.to_owned(), of.clone());
        }
        Ok(of)
    }

    fn variant(&mut self) -> Parsed<Arc<Type>> {
        self.at += 1;
        let name = self.tag_name();
        let tag = if self.take_punctuation('<') {
            let path = self.path()?;
            self.expect_punctuation('>')?;
            Some(path)
        } else {
            None
        };
        let options = if self.is_punctuation('{') {
            self.fields()?
        } else {
            let name = name.unwrap_or_default();
            match self.scopes.find(|scope| scope.variants.get(name)).as_deref() {
                Some(Type { kind: TypeKind::Variant(_, options), .. }) => options.clone(),
                _ => return self.fail(format!("unknown variant `{name}`")),
            }
        };
        let of = self.type_or_error(Type::new(TypeKind::Variant(tag, options), 1))?;
        if let Some(name) = name {
            self.scopes.top().variants.insert(name.to_owned(), of.clone());
        }
        Ok(of)
    }

    fn enumeration(&mut self) -> Parsed<Arc<Type>> {
        self.at += 1;
        let name = self.tag_name();
        let container = if self.take_punctuation(':') {
            self.type_alone()?
        } else if self.is_punctuation('{') {
            self.alias("int")?
        } else {
            let name = name.unwrap_or_default();
            return match self.scopes.find(|scope| scope.enums.get(name)) {
                Some(of) => Ok(of),
                None => self.fail(format!("unknown enumeration `{name}`")),
            };
        };
        let TypeKind::Int(int) = &container.kind else {
            return self.fail("an enumeration's type must be an integer");
        };
        let labels = self.labels()?;
        let of =
            self.type_or_error(Type::new(TypeKind::Enum(int.clone(), Arc::new(labels)), container.align))?;
        if let Some(name) = name {
            self.scopes.top().enums.insert(name.to_owned(), of.clone());
        }
        Ok(of)
    }

    fn labels(&mut self) -> Parsed<Labels> {
        self.expect_punctuation('{')?;
        let (mut labels, mut next) = (Labels::new(), 0_i128);
        while !self.take_punctuation('}') {
            let name: Arc<str> = match self.peek() {
                Some(Token::Text(text)) => Arc::from(unescaped(text)),
                Some(Token::Word(word)) => Arc::from(*word),
                _ => return self.fail("expected a label"),
            };
            self.at += 1;
            let (mut low, mut high) = (next, next);
            if self.take_punctuation('=') {
                low = self.number()?;
                high = low;
                if self.peek() == Some(&Token::Ellipsis) {
                    self.at += 1;
                    high = self.number()?;
                }
            }
            if low > high {
                return self.fail("the end of a range precedes its begin");
            }
            next = high + 1;
            labels.push(Label { name, low, high });
            if !self.take_punctuation(',') && !self.is_punctuation('}') {
                return self.fail("expected `,` or `}`");
            }
        }
        Ok(labels)
    }

    fn u32_number(&mut self) -> Parsed<u32> {
        let number = self.number()?;
        match u32::try_from(number) {
            Ok(number) => Ok(number),
            Err(_) => self.fail(format!("{number} is too large")),
        }
    }
}
