//! Vocabulary check: no word of the glossary's deny list in comments, texts, names and pages, no doc of an item or of
//! a file that opens with a pronoun.
//!
//! *In*: the table "Words that are not used" of `docs/glossary.md`, and the sources, configurations, scripts, schemas
//! and pages that git tracks. *Out*: each place that breaks a rule, and the counts. Literals are texts for people up to
//! the first `#[cfg(test)]` of a file, and not in tests; code in pages is not read.
//!
//! *Invariant*: no place breaks a rule.

use std::path::Path;

use anyhow::{Context, Result, bail};

use super::source::{Kind, tokens};

/// Words that open an item's documentation without a noun or a verb.
const PRONOUNS: &[&str] = &[
    "who",
    "whom",
    "whose",
    "which",
    "what",
    "that",
    "those",
    "these",
    "this",
    "it",
    "its",
    "they",
    "their",
    "them",
    "he",
    "one",
    "ones",
    "such",
    "all",
    "none",
    "nothing",
    "everything",
    "anything",
    "how",
    "where",
    "when",
    "whether",
    "as",
    "why",
    "also",
];

/// Literals that have a denied word for another reason: the name of a user, and the pronouns of this check.
const LITERALS: [&str; 3] = ["\"nobody\"", "\"who\"", "\"whom\""];
/// Pages with texts of earlier versions, and of other programs.
const PAGES_UNREAD: [&str; 3] = ["CHANGELOG.md", "docs/performance/matrix.md", "docs/performance/peers.md"];

const OPENING: &str = "opens with a pronoun: open with a noun phrase or a verb";

/// Number of places that break each rule.
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug)]
pub(super) struct Counts {
    /// Comment lines with a denied word.
    pub(super) comments: usize,
    /// Texts and lines of pages with a denied word.
    pub(super) texts: usize,
    /// Docs of items and files that open with a pronoun.
    pub(super) openings: usize,
    /// Uses of names that have a denied part.
    pub(super) names: usize,
}

/// A denied word or phrase.
struct Denied {
    words: Vec<String>,
    in_comments: bool,
    in_names: bool,
    instead: String,
}

/// Denied words of the glossary.
struct DenyList(Vec<Denied>);

impl DenyList {
    fn parse(glossary: &str) -> Result<DenyList> {
        let (_, table) =
            glossary.split_once("## Words that are not used").context("no table of denied words")?;
        let mut denied = Vec::new();
        for row in table.lines().filter(|line| line.starts_with("| `")) {
            let cells: Vec<&str> = row.trim_matches('|').split('|').map(str::trim).collect();
            let [words, place, instead, why] = cells[..] else { bail!("not four cells: {row}") };
            let (in_comments, in_names) = match place {
                "both" => (true, true),
                "comments" => (true, false),
                "names" => (false, true),
                _ => bail!("`{place}` is neither both, comments nor names: {row}"),
            };
            if why.is_empty() {
                bail!("no reason: {row}");
            }
            for word in words.split(',') {
                let words: Vec<String> =
                    word.trim().trim_matches('`').split(' ').map(str::to_owned).collect();
                if in_names && words.len() > 1 {
                    bail!("a part of a name is one word: {row}");
                }
                denied.push(Denied { words, in_comments, in_names, instead: instead.to_owned() });
            }
        }
        if denied.is_empty() {
            bail!("the table of denied words is empty");
        }
        Ok(DenyList(denied))
    }

    /// Finds the first denied phrase in a line of a comment.
    fn in_comment(&self, line: &str) -> Option<&Denied> {
        let words: Vec<String> = words(line).collect();
        let found = |denied: &&Denied| {
            denied.in_comments && words.windows(denied.words.len()).any(|part| part == denied.words)
        };
        self.0.iter().find(found)
    }

    /// Reports a denied phrase in a line of a comment or text, and returns the number of lines that have one: 0 or 1.
    fn count_in(&self, line: &str, number: usize, report: &mut impl FnMut(usize, String)) -> usize {
        let Some(found) = self.in_comment(line) else { return 0 };
        report(number, format!("`{}`: {}", found.words.join(" "), found.instead));
        1
    }

    /// Finds the first denied part of a name.
    fn in_name(&self, name: &str) -> Option<&Denied> {
        let parts = parts(name);
        self.0.iter().find(|denied| denied.in_names && parts.contains(&denied.words[0]))
    }
}

fn words(text: &str) -> impl Iterator<Item = String> {
    text.split(|c: char| !c.is_alphanumeric()).filter(|word| !word.is_empty()).map(str::to_lowercase)
}

/// Splits a name into lower-case parts: `JoinStats` and `JOIN_STATS` give `join` and `stats`.
fn parts(name: &str) -> Vec<String> {
    let mut parts = Vec::new();
    for word in name.split('_') {
        let mut part = String::new();
        let letters: Vec<char> = word.chars().collect();
        for (at, letter) in letters.iter().enumerate() {
            let starts = letter.is_uppercase()
                && (at > 0 && !letters[at - 1].is_uppercase()
                    || letters.get(at + 1).is_some_and(|next| next.is_lowercase()));
            if starts && !part.is_empty() {
                parts.push(std::mem::take(&mut part));
            }
            part.extend(letter.to_lowercase());
        }
        if !part.is_empty() {
            parts.push(part);
        }
    }
    parts
}

/// Returns the text of one line of a comment, without its marks.
fn content(line: &str) -> &str {
    line.trim_start().trim_start_matches(['/', '*', '!']).trim()
}

fn opens_with_pronoun(line: &str) -> bool {
    let line = content(line);
    let first = words(line).next().unwrap_or_default();
    line.to_lowercase().starts_with("the same ")
        || line.starts_with(char::is_alphabetic) && PRONOUNS.contains(&first.as_str())
}

/// Lines that the shares are of.
#[derive(Default)]
struct Totals {
    comments: usize,
    texts: usize,
    docs: usize,
}

/// Looks at one source file, and reports each place to `report`. `has_texts` is false for a test.
fn look(
    denied: &DenyList,
    (text, has_texts): (&str, bool),
    totals: &mut Totals,
    mut report: impl FnMut(usize, String),
) -> Counts {
    let mut counts = Counts::default();
    let tests_begin = text.find("#[cfg(test)]").map(|at| text[..at].matches('\n').count() + 1);
    // The line of the item doc before, since a doc of several lines is as many tokens.
    let mut doc_before = 0;
    let mut has_module_doc = false;
    for token in tokens(text) {
        match token.kind {
            Kind::Comment | Kind::ItemDoc => {
                for (nth, line) in token.text.lines().enumerate() {
                    totals.comments += 1;
                    counts.comments += denied.count_in(line, token.line + nth, &mut report);
                }
                let opens_module =
                    token.text.starts_with("//!") && !std::mem::replace(&mut has_module_doc, true);
                if opens_module && opens_with_pronoun(token.text) {
                    counts.openings += 1;
                    report(token.line, OPENING.to_owned());
                }
                if token.kind == Kind::ItemDoc {
                    if doc_before + 1 != token.line {
                        totals.docs += 1;
                        if opens_with_pronoun(token.text) {
                            counts.openings += 1;
                            report(token.line, OPENING.to_owned());
                        }
                    }
                    doc_before = token.line + token.text.lines().count() - 1;
                }
            }
            Kind::Name => {
                if let Some(found) = denied.in_name(token.text) {
                    counts.names += 1;
                    report(token.line, format!("name `{}`: {}", token.text, found.instead));
                }
            }
            Kind::Text => {
                if !has_texts
                    || tests_begin.is_some_and(|begin| token.line > begin)
                    || LITERALS.contains(&token.text)
                {
                    continue;
                }
                totals.texts += 1;
                counts.texts += denied.count_in(token.text, token.line, &mut report);
            }
            Kind::Punctuation => {}
        }
    }
    counts
}

/// Looks at the prose of a page.
fn look_at_page(
    denied: &DenyList,
    text: &str,
    totals: &mut Totals,
    mut report: impl FnMut(usize, String),
) -> Counts {
    let mut counts = Counts::default();
    let mut is_code = false;
    let prose = text.split("## Words that are not used").next().unwrap_or_default();
    for (nth, line) in prose.lines().enumerate() {
        if line.trim_start().starts_with("```") {
            is_code = !is_code;
        }
        if is_code {
            continue;
        }
        totals.texts += 1;
        // Every second part is between backticks.
        let prose: String = line.split('`').step_by(2).collect::<Vec<_>>().join(" ` ");
        counts.texts += denied.count_in(&prose, nth + 1, &mut report);
    }
    counts
}

/// Looks at the comments of a file without names: a line from `#`, or from `//`, that begins it or follows a space.
fn look_at_comments(
    denied: &DenyList,
    text: &str,
    totals: &mut Totals,
    mut report: impl FnMut(usize, String),
) -> Counts {
    let mut counts = Counts::default();
    for (nth, line) in text.lines().enumerate() {
        let begins = ["#", "//"].iter().filter_map(|mark| {
            let begins =
                |(at, _): &(usize, &str)| line[..*at].chars().next_back().is_none_or(char::is_whitespace);
            line.match_indices(mark).find(begins).map(|(at, _)| at)
        });
        let Some(at) = begins.min() else { continue };
        totals.comments += 1;
        counts.comments += denied.count_in(&line[at..], nth + 1, &mut report);
    }
    counts
}

/// Files to look at.
pub(super) struct Files {
    pub(super) sources: Vec<String>,
    /// Configurations, scripts and schemas.
    pub(super) others: Vec<String>,
    pub(super) pages: Vec<String>,
}

/// Looks at files below `root`, and prints every place that breaks a rule.
pub(super) fn check(root: &Path, files: &Files) -> Result<()> {
    let read =
        |file: &str| std::fs::read_to_string(root.join(file)).with_context(|| format!("cannot read {file}"));
    let denied = DenyList::parse(&read("docs/glossary.md")?)?;
    let (mut sum, mut totals) = (Counts::default(), Totals::default());
    let mut add = |found: Counts| {
        sum.comments += found.comments;
        sum.texts += found.texts;
        sum.openings += found.openings;
        sum.names += found.names;
    };
    let report = |file: &str, line, what| println!("  {file}:{line}: {what}");
    for file in &files.sources {
        let is_test = ["/tests/", "/tests.rs", "_tests.rs"].iter().any(|part| file.contains(part));
        let text = read(file)?;
        add(look(&denied, (&text, !is_test), &mut totals, |line, what| report(file, line, what)));
    }
    for file in &files.others {
        add(look_at_comments(&denied, &read(file)?, &mut totals, |line, what| report(file, line, what)));
    }
    for file in files.pages.iter().filter(|file| !PAGES_UNREAD.contains(&&***file)) {
        add(look_at_page(&denied, &read(file)?, &mut totals, |line, what| report(file, line, what)));
    }
    let summary = format!(
        "{} of {} comment lines and {} of {} texts and lines of pages have a denied word, {} of {} item docs open with a pronoun, \
         {} uses of names have a denied part",
        sum.comments, totals.comments, sum.texts, totals.texts, sum.openings, totals.docs, sum.names,
    );
    if sum != Counts::default() {
        bail!("{summary}");
    }
    println!("  {summary}");
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::{Counts, DenyList, Totals, look, look_at_comments, look_at_page, opens_with_pronoun, parts};

    const TABLE: &str = "## Words that are not used\n| words | in | instead | why |\n|---|---|---|---|\n\
        | `who` | both | the actor | unnamed |\n\
        | `lies in` | comments | is in | a picture |\n| `books` | names | stats | one word |\n";

    fn counts(text: &str) -> Counts {
        look(&DenyList::parse(TABLE).expect("a table"), (text, true), &mut Totals::default(), |_, _| ())
    }

    #[test]
    fn each_rule_is_counted() {
        let text = "//! Whole words: whoever is none.\n/// What runs.\n/// Who it is, that lies\n/// in.\nstruct JoinBooks;\n\
            // It lies in a ring.\nfn who_is() { \"who runs\"; \"nobody\" }\n#[cfg(test)]\nmod tests { \"who\" }";
        assert_eq!(counts(text), Counts { comments: 2, texts: 1, openings: 1, names: 2 });
        assert_eq!(counts("//! What runs.\n//! What else.").openings, 1);
    }

    #[test]
    fn comments_of_other_files_are_read() {
        let text = "# Who asks.\nkey = \"who\" # it lies in\nurl = \"http://who\"\nwho() // who\n#!/bin/who";
        let mut lines = Vec::new();
        let denied = DenyList::parse(TABLE).expect("a table");
        let found = look_at_comments(&denied, text, &mut Totals::default(), |line, _| lines.push(line));
        assert_eq!((found.comments, lines), (4, vec![1, 2, 4, 5]));
    }

    #[test]
    fn prose_of_pages_is_read_without_code() {
        let text = "Who asks.\n`who` and `lies in`\n```\nwho\n```\nIt lies in `a`.\n\n## Words that are not used\nwho\n";
        let mut lines = Vec::new();
        let denied = DenyList::parse(TABLE).expect("a table");
        let found = look_at_page(&denied, text, &mut Totals::default(), |line, _| lines.push(line));
        assert_eq!((found.texts, lines), (2, vec![1, 6]));
    }

    #[test]
    fn a_table_without_reasons_is_refused() {
        assert!(DenyList::parse("no table").is_err());
        assert!(DenyList::parse(&TABLE.replace("| unnamed |", "| |")).is_err());
        assert!(DenyList::parse(&TABLE.replace("| both |", "| anywhere |")).is_err());
        assert!(DenyList::parse(&TABLE.replace("| comments |", "| both |")).is_err());
    }

    #[test]
    fn names_are_split_at_capitals_and_underlines() {
        assert_eq!(parts("NbdBooks"), ["nbd", "books"]);
        assert_eq!(parts("NBDBooks"), ["nbd", "books"]);
        assert_eq!(parts("NBD_BOOKS_v2"), ["nbd", "books", "v2"]);
    }

    #[test]
    fn openings_are_nouns_or_verbs() {
        assert!(opens_with_pronoun("/// The same for writes."));
        assert!(opens_with_pronoun("/// Its length."));
        assert!(!opens_with_pronoun("/// `who` of the wire."));
        assert!(!opens_with_pronoun("/// Itself is a word."));
    }
}
