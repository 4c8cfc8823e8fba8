//! `--contexts`: whose word is taken for which span of their own they call (docs/contexts.md).
//!
//! Unlike filters, all kinds widen: it is a list of who is believed.

use std::fs;
use std::path::Path;

use blkkin_tracer::{Believed, Reach, Who};

use super::cgroups;
use crate::failure::Failure;
use crate::output::say;

const KINDS: &str =
    "all, off, or who is believed: user=NAME or user=UID, cgroup=CGROUP, exe=PATH; repeatable, any may match";

/// Who is believed, by all that was said.
pub(crate) fn believed(words: &[String]) -> Result<Believed, Failure> {
    match words {
        [] => return Ok(Believed::Everybody),
        [word] if word == "all" => return Ok(Believed::Everybody),
        [word] if word == "off" => return Ok(Believed::Nobody),
        _ => {}
    }
    words.iter().map(|word| who(word)).collect::<Result<_, _>>().map(Believed::These)
}

fn who(word: &str) -> Result<Who, Failure> {
    match word.split_once('=') {
        Some(("user", name)) => user(name).map(Who::User),
        Some(("cgroup", name)) => {
            let hierarchy = cgroups::hierarchy(name)?;
            Ok(Who::Cgroup { id: cgroups::cgroup(name)?, hierarchy })
        }
        Some(("exe", path)) => executable(path),
        _ if word == "all" || word == "off" => Err(Failure::usage(
            format!("--contexts {word} beside another"),
            "it says everything by itself",
            format!("--contexts {word} alone, or the others without it"),
        )),
        _ => Err(Failure::usage(
            format!("bad --contexts `{word}`"),
            "nobody is described so",
            format!("--contexts {KINDS}"),
        )),
    }
}

/// A user's number, or a name of /etc/passwd: what other services know of names is theirs.
fn user(name: &str) -> Result<u32, Failure> {
    if let Ok(number) = name.parse() {
        return Ok(number);
    }
    let users = fs::read_to_string("/etc/passwd").unwrap_or_default();
    number_of(name, &users).ok_or_else(|| {
        let remedy = format!("--contexts user=NUMBER, as `id -u {name}` says it");
        Failure::usage(format!("unknown user `{name}`"), "/etc/passwd has none of this name", remedy)
    })
}

/// `name:password:number:…` (passwd(5)).
fn number_of(name: &str, users: &str) -> Option<u32> {
    users.lines().find_map(|line| {
        let mut fields = line.split(':');
        (fields.next()? == name).then(|| fields.nth(1)?.parse().ok())?
    })
}

fn executable(path: &str) -> Result<Who, Failure> {
    let refused = |why: String| {
        let remedy = "exe=/path/of/a/program that is there, as /proc/PID/exe shows it";
        Err(Failure::usage(format!("bad executable `{path}` for --contexts"), why, remedy))
    };
    match fs::canonicalize(path) {
        _ if !Path::new(path).is_absolute() => refused("it does not begin with /".to_owned()),
        Ok(file) if file.is_file() => Ok(Who::Executable(path.into())),
        Ok(_) => refused("it is no file".to_owned()),
        Err(error) => refused(error.to_string()),
    }
}

/// Says it where contexts are wanted and cannot be found of everybody.
pub(crate) fn say_reach(believed: &Believed) {
    if let (true, Reach::OwnUser { why }) = (believed.anybody(), blkkin_tracer::reach()) {
        say(&only_own(&why));
    }
}

/// What does not work then.
pub(crate) fn only_own(why: &str) -> String {
    format!(
        "contexts of other users' processes are not found, and their calls are below no span of theirs: {why}"
    )
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

    use super::*;

    fn said(words: &[&str]) -> Result<Believed, Failure> {
        believed(&words.iter().map(|word| (*word).to_owned()).collect::<Vec<_>>())
    }

    #[test]
    fn nothing_said_is_everybody() {
        assert_eq!(said(&[]).unwrap(), Believed::Everybody);
        assert_eq!(said(&["all"]).unwrap(), Believed::Everybody);
        assert_eq!(said(&["off"]).unwrap(), Believed::Nobody);
    }

    #[test]
    fn whoever_is_named_is_believed() {
        let these = Believed::These(vec![Who::User(0), Who::User(7), Who::Executable("/bin/sh".into())]);
        assert_eq!(said(&["user=root", "user=7", "exe=/bin/sh"]).unwrap(), these);
        let users = "root:x:0:0:root:/root:/bin/sh\ncut:x\napp:x:1001:1001::/:/bin/false\n";
        assert_eq!((number_of("app", users), number_of("ap", users)), (Some(1001), None));
        assert_eq!(number_of("cut", users), None);
    }

    #[test]
    fn what_means_nobody_is_refused() {
        for (words, what) in [
            (&["on"][..], "bad --contexts `on`"),
            (&["user=no-such-user"], "unknown user `no-such-user`"),
            (&["exe=sh"], "bad executable `sh`"),
            (&["exe=/no/such/program"], "bad executable `/no/such/program`"),
            (&["exe=/"], "bad executable `/`"),
            (&["off", "user=0"], "--contexts off beside another"),
            (&["user=0", "all"], "--contexts all beside another"),
        ] {
            assert!(said(words).unwrap_err().what.contains(what), "{words:?}");
        }
    }
}
