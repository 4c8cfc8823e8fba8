//! A page of the documentation as a test: its command lines, and what their output must contain.
//!
//! *In*: the Markdown of the page. *Out*: a shell script of all command lines in order, and the judgement of its output.
//! A block of commands is followed by comments, which a reader does not see: `<!-- expect: WORDS … WORDS -->` asks for
//! a line of output that contains these words in this order.
//!
//! *Invariant*: each block with `blkkin` or `jq` has an expectation, and each command of the others succeeds.

use std::fs;
use std::path::Path;

use crate::support::disk::detach;

/// A block of commands and what it must print.
pub(crate) struct Block {
    pub(crate) commands: Vec<String>,
    expectations: Vec<String>,
}

/// The blocks of a page.
pub(crate) struct Guide {
    name: String,
    pub(crate) blocks: Vec<Block>,
}

/// Programs whose output a page explains.
const EXPLAINED: [&str; 2] = ["blkkin ", "jq "];

/// Text that the script prints if a command without an explanation fails.
const FAILED: &str = "== a command failed";

impl Guide {
    /// Reads `docs/NAME.md`.
    pub(crate) fn read(name: &str) -> Guide {
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs").join(format!("{name}.md"));
        let guide = Guide::parse(name, &fs::read_to_string(path).unwrap());
        for block in &guide.blocks {
            let explained = block.commands.iter().any(|line| is_explained(line));
            assert!(
                !explained || !block.expectations.is_empty(),
                "{name}: nothing is expected of {:?}",
                block.commands
            );
        }
        guide
    }

    fn parse(name: &str, text: &str) -> Guide {
        let mut blocks: Vec<Block> = Vec::new();
        let mut in_commands = false;
        for line in text.lines() {
            if line == "```console" {
                in_commands = true;
                blocks.push(Block { commands: Vec::new(), expectations: Vec::new() });
            } else if line.starts_with("```") {
                in_commands = false;
            }
            let Some(block) = blocks.last_mut() else { continue };
            let command = line.strip_prefix("# ").or_else(|| line.strip_prefix("$ ")).filter(|_| in_commands);
            let expectation = line.strip_prefix("<!-- expect: ").and_then(|rest| rest.strip_suffix(" -->"));
            let continues = |last: &&mut String| in_commands && last.ends_with('\\');
            if let Some(last) = block.commands.last_mut().filter(continues) {
                last.push('\n');
                last.push_str(line);
            } else {
                block.commands.extend(command.map(str::to_owned));
            }
            block.expectations.extend(expectation.map(str::to_owned));
        }
        Guide { name: name.to_owned(), blocks }
    }

    /// Builds the script; the output of each block begins with a mark.
    pub(crate) fn script(&self) -> String {
        let checked = |line: &String| match is_explained(line) {
            true => format!("{line}\n"),
            false => format!("{line}\n[ $? = 0 ] || echo '{FAILED}'\n"),
        };
        let lines = |block: &Block| block.commands.iter().map(checked).collect::<String>();
        let block = |(number, block): (usize, &Block)| format!("echo '{}'\n{}", mark(number), lines(block));
        self.blocks.iter().enumerate().map(block).collect()
    }

    /// Asserts that each block printed what the page explains.
    pub(crate) fn assert_output(&self, output: &str) {
        assert!(!output.contains(FAILED), "docs/{}.md: {output}", self.name);
        let mut missing = Vec::new();
        for (number, block) in self.blocks.iter().enumerate() {
            let part = output.split_once(&format!("{}\n", mark(number))).map_or("", |(_, rest)| rest);
            let part = part.split_once(&mark(number + 1)).map_or(part, |(part, _)| part);
            for expectation in &block.expectations {
                if !part.lines().any(|line| contains_in_order(line, expectation)) {
                    missing
                        .push(format!("{:?} prints no line with `{expectation}`:\n{part}", block.commands));
                }
            }
        }
        assert!(missing.is_empty(), "docs/{}.md: {}", self.name, missing.join("\n"));
    }
}

/// Checks whether a page explains what a command line prints. Its status is that of the traced command.
fn is_explained(line: &str) -> bool {
    EXPLAINED.iter().any(|program| line.contains(program))
}

fn mark(number: usize) -> String {
    format!("== block {number}")
}

fn contains_in_order(line: &str, words: &str) -> bool {
    let mut rest = line;
    words.split('…').map(str::trim).all(|word| match rest.split_once(word) {
        Some((_, behind)) => {
            rest = behind;
            true
        }
        None => false,
    })
}

/// Detaches the loop devices of an image file and removes it, however the page ended.
pub(crate) struct Image(pub(crate) &'static str);

impl Drop for Image {
    fn drop(&mut self) {
        detach(Path::new(self.0));
        let _ = fs::remove_file(self.0);
    }
}

#[test]
fn a_page_is_read_and_judged() {
    let page = "# A\n```console\n# jq one \\\n  more\n# two\nprinted\n```\n<!-- expect: a … c -->\n\n```text\n# no\n```\n```console\n$ three\n```\n";
    let guide = Guide::parse("a", page);
    let judged = "[ $? = 0 ] || echo '== a command failed'\n";
    let expected =
        format!("echo '== block 0'\njq one \\\n  more\ntwo\n{judged}echo '== block 1'\nthree\n{judged}");
    assert_eq!(guide.script(), expected);
    assert!(
        std::panic::catch_unwind(|| Guide::parse("a", page).assert_output(&format!("a c\n{FAILED}\n")))
            .is_err()
    );
    guide.assert_output("== block 0\nx a b c\n== block 1\n");
    let judge =
        |output: &'static str| std::panic::catch_unwind(|| Guide::parse("a", page).assert_output(output));
    assert!(judge("== block 0\nc b a\n== block 1\n").is_err());
    assert!(judge("== block 0\n== block 1\na c\n").is_err(), "of another block");
}
