//! A service's configuration files: the words of its command line, kept.
//!
//! *In*: the command line of a service with `-c FILE`, and that file, in TOML; or several, so that what is secret can lie in one
//! of its own. *Out*: the command line with the file's keys as
//! options. *Invariant*: a key is an option's long name and means what the option means, so there is one description of both
//! (`--help`), and one place that refuses a value. What the command line says wins over the files, a later file over an earlier
//! one, key by key; only the tables of NAME=VALUE options are added up, name by name.
//!
//! *Rejected*: a schema of its own for files. Two vocabularies for one thing drift apart, and each needs its own errors.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::fs;

use clap::Command;
use toml::{Table, Value};

use crate::failure::Failure;
use crate::nearest::nearest;

/// Puts what the files of `-c` say into the words of a service; other words stay as they are.
pub(super) fn expand(words: Vec<OsString>, commands: &Command) -> Result<Vec<OsString>, Failure> {
    let command = words.get(1).and_then(|word| commands.find_subcommand(word));
    let Some(command) = command.filter(|command| takes(command, "config").is_some()) else {
        return Ok(words);
    };
    let mut keys = BTreeMap::new();
    for path in named(&words[2..]) {
        add(path, command, &mut keys)?;
    }
    let mut expanded = words[..2].to_vec();
    for (key, (value, file)) in &keys {
        if !said(&words[2..], key) {
            let takes_value = takes(command, key).unwrap_or_default();
            expanded.extend(options(key, value, takes_value, file)?);
        }
    }
    expanded.extend_from_slice(&words[2..]);
    Ok(expanded)
}

/// Puts the keys of a file over those of the files before it; each with the name of the last file that has it.
fn add(
    path: OsString,
    command: &Command,
    keys: &mut BTreeMap<String, (Value, String)>,
) -> Result<(), Failure> {
    let shown = path.to_string_lossy().into_owned();
    let text = fs::read_to_string(&path).map_err(|error| {
        Failure::usage(format!("cannot read {shown}"), error, "-c FILE, as configs/ of the sources has them")
    })?;
    let table: Table = text.parse().map_err(|error: toml::de::Error| {
        Failure::usage(
            format!("{shown} is no TOML"),
            // Not its line: a password may stand there.
            match error.span() {
                Some(at) => {
                    let line = text[..at.start.min(text.len())].lines().count().max(1);
                    format!("{} (line {line})", error.message())
                }
                None => error.message().to_owned(),
            },
            "see toml.io for its rules",
        )
    })?;
    for (key, mut value) in table {
        if takes(command, &key).is_none() || key == "config" {
            return Err(unknown(&key, &shown, command));
        }
        if let (Value::Table(names), Some((Value::Table(before), _))) = (&mut value, keys.remove(&key)) {
            before.into_iter().for_each(|(name, value)| {
                names.entry(name).or_insert(value);
            });
        }
        keys.insert(key, (value, shown.clone()));
    }
    Ok(())
}

/// The files of `-c`, in their order.
fn named(words: &[OsString]) -> Vec<OsString> {
    let (mut words, mut files) = (words.iter(), Vec::new());
    while let Some(word) = words.next() {
        let text = word.to_string_lossy();
        if word == "-c" || word == "--config" {
            files.extend(words.next().cloned());
        } else if let Some(path) = text.strip_prefix("--config=").or_else(|| text.strip_prefix("-c")) {
            files.push(path.into());
        }
    }
    files
}

/// Whether the command line has this option itself.
fn said(words: &[OsString], key: &str) -> bool {
    let option = format!("--{key}");
    words.iter().any(|word| {
        let word = word.to_string_lossy();
        word.strip_prefix(&*option).is_some_and(|rest| rest.is_empty() || rest.starts_with('='))
    })
}

/// Whether the option of this name takes a value; none if there is no such option.
fn takes(command: &Command, key: &str) -> Option<bool> {
    let mut arguments = command.get_arguments();
    arguments.find(|argument| argument.get_long() == Some(key)).map(|found| found.get_action().takes_values())
}

/// The words of one key.
fn options(key: &str, value: &Value, takes_value: bool, file: &str) -> Result<Vec<OsString>, Failure> {
    let refused = |why: String| {
        Err(Failure::usage(format!("bad value of `{key}` in {file}"), why, "see --help for what it takes"))
    };
    let one = |value: &Value| match value {
        Value::String(text) => Some(text.clone()),
        Value::Integer(number) => Some(number.to_string()),
        Value::Float(number) => Some(number.to_string()),
        _ => None,
    };
    let texts: Option<Vec<String>> = match value {
        Value::Boolean(switch) if !takes_value => {
            return Ok(switch.then(|| format!("--{key}").into()).into_iter().collect());
        }
        _ if !takes_value => return refused("it is on or off: true or false".to_owned()),
        Value::Array(values) => values.iter().map(one).collect(),
        // NAME=VALUE options are tables.
        Value::Table(names) => {
            let names: BTreeMap<_, _> = names.iter().collect();
            names.into_iter().map(|(name, value)| Some(format!("{name}={}", one(value)?))).collect()
        }
        value => one(value).map(|text| vec![text]),
    };
    match texts {
        Some(texts) => Ok(texts.into_iter().map(|text| format!("--{key}={text}").into()).collect()),
        None => refused(format!("{} is neither a text nor a number, nor a list of them", value.type_str())),
    }
}

fn unknown(key: &str, file: &str, command: &Command) -> Failure {
    let names: Vec<&str> = command.get_arguments().filter_map(clap::Arg::get_long).collect();
    let meant = nearest(key, names.iter().copied());
    let remedy = match meant {
        Some(meant) => format!("`{meant}` is the nearest that there is"),
        None => format!("blkkin {} --help: each long option is a key", command.get_name()),
    };
    Failure::usage(format!("unknown key `{key}` in {file}"), "no option of this name exists", remedy)
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::{Arg, ArgAction};

    fn commands() -> Command {
        let option = |name: &'static str| Arg::new(name).long(name);
        let agent = Command::new("agent")
            .args(["config", "brokers", "comm", "set", "partitions"].map(option))
            .arg(option("errors-only").action(ArgAction::SetTrue));
        Command::new("blkkin").subcommand(agent).subcommand(Command::new("run").arg(option("comm")))
    }

    fn expanded(file: &str, line: &str) -> Result<String, Failure> {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("agent.toml");
        fs::write(&path, file).unwrap();
        let line = line.replace("FILE", path.to_str().unwrap());
        let words = line.split(' ').map(OsString::from).collect();
        let words = expand(words, &commands())?;
        let words: Vec<_> = words.iter().map(|word| word.to_string_lossy()).collect();
        Ok(words.join(" ").replace(path.to_str().unwrap(), "FILE"))
    }

    #[test]
    fn keys_become_options_and_the_command_line_wins() {
        let file = "brokers = 'a:9092'\ncomm = ['fio', 'dd']\npartitions = 3\nerrors-only = true\n\
            [set]\n'security.protocol' = 'SSL'";
        assert_eq!(
            expanded(file, "blkkin agent -c FILE --partitions=4").unwrap(),
            "blkkin agent --brokers=a:9092 --comm=fio --comm=dd --errors-only --set=security.protocol=SSL \
             -c FILE --partitions=4"
        );
        assert_eq!(
            expanded("errors-only = false", "blkkin agent --config=FILE").unwrap(),
            "blkkin agent --config=FILE"
        );
    }

    #[test]
    fn a_later_file_wins_and_settings_add_up() {
        let folder = tempfile::tempdir().unwrap();
        let file = |name: &str, text: &str| {
            let path = folder.path().join(name);
            fs::write(&path, text).unwrap();
            path.into_os_string()
        };
        let one =
            file("one", "partitions = 3\nbrokers = 'a:9092'\n[set]\n'linger.ms' = 1\n'sasl.username' = 'x'");
        let two = file("two", "partitions = 4\n[set]\n'sasl.username' = 'y'\n'sasl.password' = 'z'");
        let words = ["blkkin", "agent", "-c"].map(OsString::from).into_iter();
        let words = words.chain([one, "-c".into(), two]).collect::<Vec<_>>();
        let expanded = expand(words, &commands()).unwrap();
        let words: Vec<_> = expanded.iter().map(|word| word.to_string_lossy()).collect();
        let meant = [
            "blkkin",
            "agent",
            "--brokers=a:9092",
            "--partitions=4",
            "--set=linger.ms=1",
            "--set=sasl.password=z",
            "--set=sasl.username=y",
        ];
        assert_eq!(words[..meant.len()], meant);
    }

    #[test]
    fn other_commands_have_no_file() {
        assert_eq!(expanded("comm = 'x'", "blkkin run -c FILE").unwrap(), "blkkin run -c FILE");
        assert_eq!(expanded("", "blkkin agent --brokers x").unwrap(), "blkkin agent --brokers x");
    }

    #[test]
    fn what_makes_no_sense_is_named() {
        let refused = |file: &str| expanded(file, "blkkin agent -c FILE").unwrap_err();
        let unknown = refused("broker = 'a:9092'");
        assert!(
            unknown.what.contains("unknown key `broker`") && unknown.remedy.contains("`brokers`"),
            "{unknown}"
        );
        assert!(refused("config = 'other'").what.contains("unknown key `config`"));
        assert!(refused("errors-only = 'yes'").why.contains("true or false"));
        assert!(refused("brokers = 1979-05-27").why.contains("datetime"));
        assert!(refused("brokers = ").what.contains("is no TOML"));
        let password = refused("brokers = 'a:1'\n[set]\n'sasl.password' = hunter2\n");
        assert!(password.why.contains("(line 3)") && !password.to_string().contains("hunter2"), "{password}");
        assert!(
            expanded("", "blkkin agent -c nowhere.toml")
                .unwrap_err()
                .what
                .contains("cannot read nowhere.toml")
        );
    }
}
