//! Configuration files of a service: its command-line options in TOML.
//!
//! *In*: the command line of a service with `-c FILE`, and that file. Several files are allowed, so
//! that secrets can be in one of their own. *Out*: the command line with the file's keys as
//! options. *Invariant*: a key is an option's long name and has the option's meaning, so one
//! description (`--help`) and one validation serve both. The command line overrides the files, and
//! a later file overrides an earlier one, key by key. Only tables of NAME=VALUE options are merged,
//! name by name.
//!
//! *Rejected*: a separate schema for files. Two vocabularies for one configuration drift apart, and
//! each needs its own errors.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::fs;

use clap::{Arg, Command};
use toml::{Table, Value};

use crate::error::CliError;
use crate::suggest::suggest;

/// Inserts the options of the `-c` files into the command line of a service; other commands stay
/// unchanged.
pub(super) fn expand(args: Vec<OsString>, commands: &Command) -> Result<Vec<OsString>, CliError> {
    let command = args.get(1).and_then(|name| commands.find_subcommand(name));
    let Some(command) = command.filter(|command| option(command, "config").is_some()) else {
        return Ok(args);
    };
    let mut keys = BTreeMap::new();
    for path in config_paths(&args[2..]) {
        merge_file(path, command, &mut keys)?;
    }
    let mut expanded = args[..2].to_vec();
    for (key, (value, file)) in &keys {
        let Some(option) = option(command, key) else { continue };
        if !is_on_command_line(&args[2..], option) {
            let takes_value = option.get_action().takes_values();
            expanded.extend(to_args(key, value, takes_value, file)?);
        }
    }
    expanded.extend_from_slice(&args[2..]);
    Ok(expanded)
}

/// Merges a file's keys over those of earlier files; each key remembers its last file.
fn merge_file(
    path: OsString,
    command: &Command,
    keys: &mut BTreeMap<String, (Value, String)>,
) -> Result<(), CliError> {
    let displayed = path.to_string_lossy().into_owned();
    let text = fs::read_to_string(&path).map_err(|error| {
        CliError::usage(
            format!("cannot read {displayed}"),
            error,
            "-c FILE, such as those in configs/ of the sources",
        )
    })?;
    let table: Table = text.parse().map_err(|error: toml::de::Error| {
        CliError::usage(
            format!("{displayed} is not valid TOML"),
            // The line's text may contain a password.
            match error.span() {
                Some(at) => {
                    let line = text[..at.start.min(text.len())].lines().count().max(1);
                    format!("{} (line {line})", error.message())
                }
                None => error.message().to_owned(),
            },
            "see toml.io for the syntax",
        )
    })?;
    for (key, mut value) in table {
        let known = option(command, &key).and_then(Arg::get_long).filter(|key| *key != "config");
        let Some(known) = known.map(str::to_owned) else {
            return Err(unknown_key(&key, &displayed, command));
        };
        if let (Value::Table(names), Some((Value::Table(before), _))) = (&mut value, keys.remove(&known)) {
            before.into_iter().for_each(|(name, value)| {
                names.entry(name).or_insert(value);
            });
        }
        keys.insert(known, (value, displayed.clone()));
    }
    Ok(())
}

/// Returns the files of `-c`, in order.
fn config_paths(args: &[OsString]) -> Vec<OsString> {
    let (mut args, mut files) = (args.iter(), Vec::new());
    while let Some(arg) = args.next() {
        let text = arg.to_string_lossy();
        if arg == "-c" || arg == "--config" {
            files.extend(args.next().cloned());
        } else if let Some(path) = text.strip_prefix("--config=").or_else(|| text.strip_prefix("-c")) {
            files.push(path.into());
        }
    }
    files
}

/// Returns whether the command line itself sets this option.
fn is_on_command_line(args: &[OsString], option: &Arg) -> bool {
    let names: Vec<String> = names(option).map(|name| format!("--{name}")).collect();
    args.iter().any(|arg| {
        let arg = arg.to_string_lossy();
        let matches = |rest: &str| rest.is_empty() || rest.starts_with('=');
        names.iter().any(|name| arg.strip_prefix(&**name).is_some_and(matches))
    })
}

/// Returns the option of this long name or alias.
fn option<'a>(command: &'a Command, key: &str) -> Option<&'a Arg> {
    command.get_arguments().find(|option| names(option).any(|name| name == key))
}

/// Returns the long name of an option and its aliases.
fn names(option: &Arg) -> impl Iterator<Item = &str> {
    option.get_long().into_iter().chain(option.get_all_aliases().unwrap_or_default())
}

/// Converts a key to command-line options.
fn to_args(key: &str, value: &Value, takes_value: bool, file: &str) -> Result<Vec<OsString>, CliError> {
    let refused = |why: String| {
        Err(CliError::usage(format!("bad value of `{key}` in {file}"), why, "see --help for valid values"))
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
        _ if !takes_value => return refused("it is a switch: true or false".to_owned()),
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
        None => refused(format!("{} is not a string, a number or a list of them", value.type_str())),
    }
}

fn unknown_key(key: &str, file: &str, command: &Command) -> CliError {
    let names: Vec<&str> = command.get_arguments().filter_map(Arg::get_long).collect();
    let suggestion = suggest(key, names.iter().copied());
    let remedy = match suggestion {
        Some(name) => format!("`{name}` is the nearest valid key"),
        None => format!("blkkin {} --help: each long option is a key", command.get_name()),
    };
    CliError::usage(format!("unknown key `{key}` in {file}"), "no option of this name exists", remedy)
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::ArgAction;

    fn commands() -> Command {
        let option = |name: &'static str| Arg::new(name).long(name);
        let agent = Command::new("agent")
            .args(["config", "brokers", "comm", "set", "partitions"].map(option))
            .arg(option("wait").alias("patience"))
            .arg(option("errors-only").action(ArgAction::SetTrue));
        Command::new("blkkin").subcommand(agent).subcommand(Command::new("run").arg(option("comm")))
    }

    fn expanded(file: &str, line: &str) -> Result<String, CliError> {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("agent.toml");
        fs::write(&path, file).unwrap();
        let line = line.replace("FILE", path.to_str().unwrap());
        let args = line.split(' ').map(OsString::from).collect();
        let args = expand(args, &commands())?;
        let args: Vec<_> = args.iter().map(|word| word.to_string_lossy()).collect();
        Ok(args.join(" ").replace(path.to_str().unwrap(), "FILE"))
    }

    #[test]
    fn keys_become_options_and_the_command_line_overrides_them() {
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
    fn alias_is_the_same_key_as_its_option() {
        let file = "patience = '1s'";
        assert_eq!(expanded(file, "blkkin agent -c FILE").unwrap(), "blkkin agent --wait=1s -c FILE");
        for line in ["blkkin agent -c FILE --wait=2s", "blkkin agent -c FILE --patience 2s"] {
            assert_eq!(expanded(file, line).unwrap(), line);
        }
    }

    #[test]
    fn later_file_overrides_and_settings_are_merged() {
        let folder = tempfile::tempdir().unwrap();
        let file = |name: &str, text: &str| {
            let path = folder.path().join(name);
            fs::write(&path, text).unwrap();
            path.into_os_string()
        };
        let one =
            file("one", "partitions = 3\nbrokers = 'a:9092'\n[set]\n'linger.ms' = 1\n'sasl.username' = 'x'");
        let two = file("two", "partitions = 4\n[set]\n'sasl.username' = 'y'\n'sasl.password' = 'z'");
        let args = ["blkkin", "agent", "-c"].map(OsString::from).into_iter();
        let args = args.chain([one, "-c".into(), two]).collect::<Vec<_>>();
        let expanded = expand(args, &commands()).unwrap();
        let args: Vec<_> = expanded.iter().map(|word| word.to_string_lossy()).collect();
        let expected = [
            "blkkin",
            "agent",
            "--brokers=a:9092",
            "--partitions=4",
            "--set=linger.ms=1",
            "--set=sasl.password=z",
            "--set=sasl.username=y",
        ];
        assert_eq!(args[..expected.len()], expected);
    }

    #[test]
    fn other_commands_have_no_config_file() {
        assert_eq!(expanded("comm = 'x'", "blkkin run -c FILE").unwrap(), "blkkin run -c FILE");
        assert_eq!(expanded("", "blkkin agent --brokers x").unwrap(), "blkkin agent --brokers x");
    }

    #[test]
    fn invalid_keys_and_values_are_refused() {
        let refused = |file: &str| expanded(file, "blkkin agent -c FILE").unwrap_err();
        let unknown = refused("broker = 'a:9092'");
        assert!(
            unknown.what.contains("unknown key `broker`") && unknown.remedy.contains("`brokers`"),
            "{unknown}"
        );
        assert!(refused("config = 'other'").what.contains("unknown key `config`"));
        assert!(refused("errors-only = 'yes'").why.contains("true or false"));
        assert!(refused("brokers = 1979-05-27").why.contains("datetime"));
        assert!(refused("brokers = ").what.contains("is not valid TOML"));
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
