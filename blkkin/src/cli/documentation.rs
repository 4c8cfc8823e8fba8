//! The command line in the documentation: each command line of a page is valid,
//! `docs/commands.md` is this version's help, and `blkkin help` has every page.
//!
//! *In*: the Markdown files of the project, without the changelog, which has options of former versions.

use std::fs;
use std::path::{Path, PathBuf};

use clap::error::ErrorKind;
use clap::{Command, CommandFactory, Parser};

use super::Cli;
use super::topics::TOPICS;
use crate::error::Status;
use doc_commands::commands;

#[path = "../../../xtask/src/docs/commands.rs"]
mod doc_commands;

const PAGE: &str = "docs/commands.md";
/// Columns of the help texts in the page.
const WIDTH: usize = 100;

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..")
}

/// Passes each file of the project that is in no folder of these names, and in no hidden or build folder.
fn each_file(folder: &Path, without: &[&str], found: &mut impl FnMut(&Path, &str)) {
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        let name = path.file_name().unwrap().to_str().unwrap();
        if !path.is_dir() {
            found(&path, name);
        } else if name != "target" && !name.starts_with('.') && !without.contains(&name) {
            each_file(&path, without, found);
        }
    }
}

#[test]
fn every_command_line_in_the_documentation_is_valid() {
    let mut all = Vec::new();
    each_file(&root(), &[], &mut |path, name| {
        if name.ends_with(".md") && name != "CHANGELOG.md" {
            all.push(path.to_owned());
        }
    });
    let (mut count, mut faults) = (0, Vec::new());
    for page in all {
        let text = fs::read_to_string(&page).unwrap();
        for command in commands(&text, &["blkkin"]) {
            count += 1;
            // A file of options may have the required ones.
            let has_file = command.arguments.iter().any(|word| ["-c", "--config"].contains(&word.as_str()));
            if let [help, topic] = &command.arguments[..]
                && help == "help"
                && topic != "TOPIC"
                && TOPICS.iter().all(|known| known.name != topic)
            {
                faults.push(format!("{}: {}: no such topic", page.display(), command.text));
            }
            let line = ["blkkin".to_owned()].into_iter().chain(command.arguments);
            let Err(error) = Cli::try_parse_from(line) else { continue };
            let is_fine = match error.kind() {
                ErrorKind::DisplayHelp | ErrorKind::DisplayVersion => true,
                ErrorKind::MissingRequiredArgument | ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand => {
                    !command.is_complete || has_file
                }
                _ => false,
            };
            if !is_fine {
                faults.push(format!("{}: {}: {error}", page.display(), command.text));
            }
        }
    }
    assert!(faults.is_empty(), "{} of {count}:\n{}", faults.len(), faults.join("\n"));
    assert!(count > 100, "{count} command lines");
}

/// Returns the page of the command line: the help of each command and of its own commands.
fn page() -> String {
    let meanings = [
        (Status::Success, "success"),
        (Status::Failed, "a requested part failed: a destination, a check, a lost partition"),
        (Status::Usage, "the command line is invalid"),
        (Status::CannotTrace, "`run`: tracing could not start, or the command line is invalid"),
        (Status::NotExecutable, "`run`: the command was found and cannot be executed"),
        (Status::NotFound, "`run`: the command was not found"),
        (Status::Interrupted, "a second Ctrl-C ended blkkin"),
    ];
    let mut text = String::from(
        "# Command line\n\n<!-- Generated: BLESS=1 cargo test -p blkkin documentation -->\n\n\
         Each text is what `--help` prints.\n\
         The options of `agent`, `aggregator` and `exporter` can stand in a TOML file, which `-c FILE` reads.\n\n\
         ## Exit status\n\n\
         `blkkin run` exits with the status of its command, or with 128 and the number of the signal that ended it.\n\n\
         | status | meaning |\n|---|---|\n",
    );
    for (status, meaning) in meanings {
        text += &format!("| {} | {meaning} |\n", status.number());
    }
    let definition = Cli::command();
    for command in definition.get_subcommands().filter(|command| !command.is_hide_set()) {
        add_help(&mut text, "blkkin", command);
    }
    text
}

fn add_help(text: &mut String, parent: &str, command: &Command) {
    let name = format!("{parent} {}", command.get_name());
    let help = command.clone().bin_name(&name).term_width(WIDTH).render_long_help().to_string();
    let lines: Vec<&str> = help.lines().map(str::trim_end).collect();
    *text += &format!("\n## {name}\n\n```text\n{}\n```\n", lines.join("\n").trim_end());
    for child in command.get_subcommands().filter(|child| child.get_name() != "help") {
        add_help(text, &name, child);
    }
}

#[test]
fn the_page_of_the_command_line_is_this_versions_help() {
    let path = root().join(PAGE);
    let expected = page();
    if std::env::var_os("BLESS").is_some() {
        fs::write(&path, &expected).unwrap();
    }
    let found = fs::read_to_string(&path).unwrap_or_default();
    assert_eq!(found, expected, "{PAGE} is of another version: BLESS=1 cargo test -p blkkin documentation");
}

#[test]
fn every_page_is_a_topic() {
    let files = fs::read_dir(root().join("docs"))
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap());
    let mut found: Vec<String> =
        files.filter_map(|name| name.strip_suffix(".md").map(str::to_owned)).collect();
    found.retain(|name| !["SUMMARY", "commands"].contains(&name.as_str()));
    let mut listed: Vec<&str> = TOPICS.iter().map(|topic| topic.name).collect();
    found.sort();
    listed.sort_unstable();
    assert_eq!(listed, found);
}

/// Texts of headings that other programs print, or that blkkin composes of a number or a name and a text.
const COMPOSED: [&str; 17] = [
    "Operation not permitted",
    "Peer authentication failed",
    "role \"root\" does not exist",
    "the kernel module",
    "was loaded after tracing began; its structures are unknown until tracing starts again",
    "responded 404",
    "is this the address of Zipkin?",
    "zipkin=X is neither a",
    "and FILE.partial both hold spans",
    "cannot run lttng",
    "0 storage operations",
    "storage operations, missing",
    "spans were refused: they are in blkkin.dead",
    "cannot reach the Kafka cluster at",
    "authorization failed",
    "cannot be used: no setting of this name exists",
    "cannot be reset: it has members",
];

/// Texts of at least this length are compared; shorter ones occur anywhere.
const TEXT_MIN: usize = 12;

/// Reads the project's sources without tests; lines that a `\` continues are joined.
fn sources() -> String {
    let mut found = String::new();
    each_file(&root(), &["tests", "fuzz"], &mut |path, name| {
        if name.ends_with(".rs") && name != "documentation.rs" {
            let text = fs::read_to_string(path).unwrap();
            let mut parts = text.split("\\\n");
            found.push_str(parts.next().unwrap_or_default());
            parts.for_each(|part| found.push_str(part.trim_start()));
        }
    });
    found
}

/// Splits a text at its placeholders: `…` and words in upper case.
fn fixed_parts(text: &str) -> Vec<String> {
    let is_placeholder = |word: &str| {
        let letters: Vec<char> = word.chars().filter(|letter| letter.is_alphabetic()).collect();
        !letters.is_empty() && letters.iter().all(|letter| letter.is_uppercase())
    };
    let mut parts = vec![String::new()];
    for word in text.split(' ').flat_map(|word| word.split_inclusive('…')) {
        if is_placeholder(word) || word == "…" {
            parts.push(String::new());
            continue;
        }
        let part = parts.last_mut().unwrap();
        *part = format!("{part} {}", word.trim_end_matches('…'));
        if word.ends_with('…') {
            parts.push(String::new());
        }
    }
    parts.iter().map(|part| part.trim_matches([' ', ':', ';', ',', '.', '(', ')']).to_owned()).collect()
}

#[test]
fn each_error_in_troubleshooting_is_one_that_blkkin_prints() {
    let page = fs::read_to_string(root().join("docs/troubleshooting.md")).unwrap();
    let source = sources();
    let headings = page.lines().filter_map(|line| line.strip_prefix("### "));
    let texts = headings
        .flat_map(|heading| heading.split('`').skip(1).step_by(2))
        .filter(|text| !text.starts_with('-'));
    let parts: Vec<String> = texts.flat_map(fixed_parts).filter(|part| part.len() >= TEXT_MIN).collect();
    let gone: Vec<&String> =
        parts.iter().filter(|part| !source.contains(*part) && !COMPOSED.contains(&part.as_str())).collect();
    assert!(gone.is_empty(), "no source has {gone:#?}");
    assert!(parts.len() > 60, "{}", parts.len());
}
