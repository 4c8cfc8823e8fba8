//! `blkkin help TOPIC`: the pages of the documentation, inside the binary.
//!
//! *In*: the name of a topic. *Out*: the page as plain text on standard output, without links and pictures. The name of a
//! command prints that command's help, before its page if it has one. *Invariant*: each page of `docs/` is a topic (`cli/documentation.rs` tests it), except
//! decisions, tables of figures and the command line, which `--help` prints.

use std::io::Write;
use std::process::ExitCode;

use clap::{Args, Command};

use crate::error::{CliError, Status};
use crate::suggest::suggest;

/// A page of the documentation.
pub(super) struct Topic {
    /// Name of its file.
    pub(super) name: &'static str,
    text: &'static str,
}

macro_rules! topics {
    ($($name:literal),+ $(,)?) => {
        &[$(Topic { name: $name, text: include_str!(concat!("../../../docs/", $name, ".md")) }),+]
    };
}

/// Pages in the order of the book.
pub(super) const TOPICS: &[Topic] = topics![
    "introduction",
    "install",
    "first-trace",
    "tutorial",
    "concepts",
    "traces",
    "glossary",
    "demo",
    "top",
    "postgresql",
    "noisy-neighbour",
    "contexts-in-your-program",
    "daemons",
    "migrate-from-blkin",
    "nbd",
    "containers",
    "stacked-devices",
    "virtual-machines",
    "fleet",
    "deployment",
    "agent",
    "flight-recorder",
    "exporter",
    "kafka",
    "sampling",
    "sizing",
    "operating",
    "guarantees",
    "upgrade",
    "json",
    "spans",
    "mappings",
    "contexts",
    "kernels",
    "limits",
    "security",
    "troubleshooting",
    "cost",
    "performance",
    "trust",
    "evidence",
    "fuzzing",
];

#[derive(Debug, Args)]
#[command(after_help = "Without a topic it lists them.")]
pub(crate) struct HelpArgs {
    /// Topic, or a command
    topic: Option<String>,
}

/// Prints a page, a command's help, or the list of topics.
pub(crate) fn help(args: &HelpArgs, mut definition: Command) -> Result<ExitCode, CliError> {
    let text = match args.topic.as_deref() {
        None => list(),
        // `agent` and `exporter` are both. The options come first: a page is also a file.
        Some(name) => {
            let names: Vec<String> =
                definition.get_subcommands().map(|one| one.get_name().to_owned()).collect();
            let options = definition.find_subcommand_mut(name).map(|command| {
                command.clone().bin_name(format!("blkkin {name}")).render_long_help().to_string()
            });
            let page = TOPICS.iter().find(|topic| topic.name == name).map(|topic| plain(topic.text));
            if options.is_none() && page.is_none() {
                return Err(unknown(name, &names));
            }
            options.into_iter().chain(page).collect::<Vec<_>>().join("\n")
        }
    };
    // A closed stdout has no reader.
    let _ = std::io::stdout().write_all(text.as_bytes());
    Ok(Status::Success.code())
}

fn unknown(name: &str, commands: &[String]) -> CliError {
    let remedy =
        suggest(name, TOPICS.iter().map(|topic| topic.name).chain(commands.iter().map(String::as_str)))
            .map_or_else(
                || "blkkin help, which lists them".to_owned(),
                |nearest| format!("blkkin help {nearest}"),
            );
    CliError::usage(format!("unknown topic `{name}`"), "it is no page and no command", remedy)
}

fn list() -> String {
    let width = TOPICS.iter().map(|topic| topic.name.len()).max().unwrap_or(0);
    let line = |topic: &Topic| format!("  {:width$}  {}\n", topic.name, topic.title());
    let topics: String = TOPICS.iter().map(line).collect();
    format!("blkkin help TOPIC prints a page, blkkin help COMMAND the options of a command.\n\n{topics}")
}

impl Topic {
    fn title(&self) -> &str {
        self.text.lines().next().unwrap_or_default().trim_start_matches('#').trim()
    }
}

/// Removes pictures, comments and the targets of links from a page.
fn plain(page: &str) -> String {
    let mut text = String::with_capacity(page.len());
    let mut in_block = false;
    for line in page.lines() {
        let is_fence = line.trim_start().starts_with("```");
        in_block ^= is_fence;
        if is_fence || !in_block && (line.starts_with("![") || line.starts_with("<!--")) {
            continue;
        }
        if in_block {
            text.push_str("    ");
            text.push_str(line);
        } else {
            without_targets(line, &mut text);
        }
        text.push('\n');
    }
    text
}

/// Appends a line with the text of each link in its place.
fn without_targets(line: &str, text: &mut String) {
    let mut rest = line;
    while let Some((before, behind)) = rest.split_once("](") {
        let Some((target, after)) = behind.split_once(')') else { break };
        let (prose, name) = before.rsplit_once('[').unwrap_or(("", before));
        text.push_str(prose);
        text.push_str(name);
        if target.contains("://") {
            text.push_str(" (");
            text.push_str(target);
            text.push(')');
        }
        rest = after;
    }
    text.push_str(rest);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_page_is_plain_text() {
        let page = "# A\n![p](p.png)\nSee [b](b.md#c), [web](https://x/) and d[0].\n<!-- no -->\n```console\n$ e [f](g)\n```\n";
        assert_eq!(plain(page), "# A\nSee b, web (https://x/) and d[0].\n    $ e [f](g)\n");
    }

    #[test]
    fn the_list_has_each_topic_and_fits_a_terminal() {
        let list = list();
        assert!(TOPICS.iter().all(|topic| list.contains(&format!("  {} ", topic.name))), "{list}");
        assert!(list.lines().all(|line| line.len() <= 80), "{list}");
        assert!(list.contains("  limits "), "{list}");
    }
}
