//! Command lines in Markdown.
//!
//! *In*: the text of a page. *Out*: each command line of one program, split into words as a shell does.
//! Tests of `blkkin` and of `xtask` parse them by the definitions of both command lines.
//!
//! A command line is a line of a fenced block: behind a prompt (`$ `, `# `), or without one where the block's language is
//! `sh` or `bash`, or where the line begins with `cargo xtask`, which no output does. Code inside a sentence or a table's cell
//! is one if it begins with the program; it may be incomplete.
//! *Not*: lines with `[`, `…` or `...`, which describe a form.

use pulldown_cmark::{CodeBlockKind, Event, Options, Parser, Tag, TagEnd};

/// A command line of a page.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct DocCommand {
    /// The line as it is written.
    pub(crate) text: String,
    /// Words behind the program's name.
    pub(crate) arguments: Vec<String>,
    /// True if it is a line of a block. Code inside a sentence may lack required arguments.
    pub(crate) is_complete: bool,
}

/// Finds the command lines of a program, `["blkkin"]` or `["cargo", "xtask"]`.
pub(crate) fn commands(markdown: &str, program: &[&str]) -> Vec<DocCommand> {
    let mut found = Vec::new();
    let mut language = None;
    for event in Parser::new_ext(markdown, Options::ENABLE_TABLES) {
        match event {
            Event::Start(Tag::CodeBlock(CodeBlockKind::Fenced(name))) => language = Some(name.to_string()),
            Event::End(TagEnd::CodeBlock) => language = None,
            Event::Text(text) => {
                if let Some(language) = &language {
                    found.extend(block(&text, language, program));
                }
            }
            Event::Code(text) => found.extend(command(&text, program, false)),
            _ => {}
        }
    }
    found
}

/// Finds the command lines of a fenced block.
fn block(text: &str, language: &str, program: &[&str]) -> Vec<DocCommand> {
    let joined = text.replace("\\\n", " ");
    let is_script = ["sh", "bash"].contains(&language);
    let line = |line: &str| {
        let typed = line.strip_prefix("$ ").or_else(|| line.strip_prefix("# "));
        let bare = is_script || line.starts_with("cargo xtask");
        command(typed.or(bare.then_some(line))?, program, true)
    };
    joined.lines().filter_map(line).collect()
}

fn command(line: &str, program: &[&str], is_complete: bool) -> Option<DocCommand> {
    if ["[", "…", "..."].iter().any(|form| line.contains(form)) {
        return None;
    }
    let words = shlex::split(line)?;
    let is_setting =
        |word: &&String| *word == "sudo" || word.split_once('=').is_some_and(|(name, _)| is_name(name));
    let start = words.iter().take_while(is_setting).count();
    let (found, rest) = words[start..].split_at_checked(program.len())?;
    let is_end =
        |word: &&String| ["|", ">", ">>", "<", "&&", "||", ";", "&", "2>", "2>&1"].contains(&word.as_str());
    let arguments = rest.iter().take_while(|word| !is_end(word)).cloned().collect();
    let is_program = found.iter().zip(program).all(|(word, name)| word.rsplit('/').next() == Some(*name));
    is_program.then(|| DocCommand { text: line.trim().to_owned(), arguments, is_complete })
}

/// Checks whether a word can be the name of an environment variable.
fn is_name(word: &str) -> bool {
    !word.is_empty()
        && word.bytes().all(|byte| byte.is_ascii_uppercase() || byte.is_ascii_digit() || byte == b'_')
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn command_lines_are_found_and_split() {
        let page = "Use `blkkin run` or `cargo test`.\n\n```console\n$ sudo NAME=1 blkkin trace \\\n  --for '3 s' | head # why\nblkkin output\n# blkkin doctor\n```\n\n```\ncargo xtask demo  # traces\nblkkin printed this\n$ blkkin run [WHAT] -- CMD\n```\n\n```sh\n/usr/bin/blkkin doctor > file\n```\n\n| a | b |\n|---|---|\n| `blkkin agent -c FILE` | c |\n";
        let words = |program: &[&str]| -> Vec<(String, bool)> {
            let all = commands(page, program).into_iter();
            all.map(|command| (command.arguments.join("|"), command.is_complete)).collect()
        };
        let expected = [
            ("run", false),
            ("trace|--for|3 s", true),
            ("doctor", true),
            ("doctor", true),
            ("agent|-c|FILE", false),
        ];
        assert_eq!(words(&["blkkin"]), expected.map(|(words, complete)| (words.to_owned(), complete)));
        assert_eq!(words(&["cargo", "xtask"]), [("demo".to_owned(), true)]);
    }
}
