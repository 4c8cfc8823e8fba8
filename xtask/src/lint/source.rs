//! Comments, names and paths of a source file, by the compiler's own lexer.
//!
//! *In*: the text of a Rust, C or C++ file. *Out*: its tokens with their lines, without white
//! space and other literals than texts.
//!
//! *Rejected*: `syn`, which drops comments that are not documentation.

use ra_ap_rustc_lexer::{DocStyle, FrontmatterAllowed, LiteralKind, TokenKind, tokenize};

/// A token that a check looks at.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Token<'a> {
    pub(super) kind: Kind,
    pub(super) text: &'a str,
    /// Counted from 1.
    pub(super) line: usize,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Kind {
    Comment,
    /// `///` or `/** */`: the documentation of the item that follows.
    ItemDoc,
    Name,
    /// Literal of a text, with its quotes.
    Text,
    Punctuation,
}

/// Returns the tokens of `text`, in order.
pub(super) fn tokens(text: &str) -> Vec<Token<'_>> {
    let mut found = Vec::new();
    let (mut at, mut line) = (0, 1);
    for token in tokenize(text, FrontmatterAllowed::No) {
        let end = at + token.len as usize;
        let part = &text[at..end];
        let kind = match token.kind {
            TokenKind::LineComment { doc_style } | TokenKind::BlockComment { doc_style, .. } => {
                Some(if doc_style == Some(DocStyle::Outer) { Kind::ItemDoc } else { Kind::Comment })
            }
            TokenKind::Ident | TokenKind::RawIdent => Some(Kind::Name),
            TokenKind::Literal { kind: LiteralKind::Str { .. } | LiteralKind::RawStr { .. }, .. } => {
                Some(Kind::Text)
            }
            TokenKind::Whitespace | TokenKind::Literal { .. } => None,
            _ => Some(Kind::Punctuation),
        };
        if let Some(kind) = kind {
            found.push(Token { kind, text: part, line });
        }
        line += part.matches('\n').count();
        at = end;
    }
    found
}

#[cfg(test)]
mod tests {
    use super::{Kind, tokens};

    #[test]
    fn literals_are_no_comments_and_no_names() {
        let text = "/// Doc.\nlet a = \"// who\"; // why\n/* two\nlines */ b::c";
        let found: Vec<_> = tokens(text).iter().map(|token| (token.kind, token.text, token.line)).collect();
        let names =
            |kind: Kind| found.iter().filter(move |token| token.0 == kind).map(|token| (token.1, token.2));
        assert_eq!(names(Kind::Text).collect::<Vec<_>>(), [("\"// who\"", 2)]);
        assert_eq!(names(Kind::ItemDoc).collect::<Vec<_>>(), [("/// Doc.", 1)]);
        assert_eq!(names(Kind::Comment).collect::<Vec<_>>(), [("// why", 2), ("/* two\nlines */", 3)]);
        assert_eq!(names(Kind::Name).collect::<Vec<_>>(), [("let", 2), ("a", 2), ("b", 4), ("c", 4)]);
    }
}
