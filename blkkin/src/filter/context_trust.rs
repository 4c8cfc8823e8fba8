//! `--contexts`: trusted publishers of thread contexts (docs/contexts.md).
//!
//! Unlike filters, selectors of all kinds widen the set of trusted processes.

use std::fs;
use std::path::Path;

use blkkin_tracer::{ContextPolicy, ProcessMatcher, PtraceAccess};
use tracing::info;

use super::cgroups;
use crate::error::CliError;

const SELECTORS: &str = "all, off, or trusted publishers: user=NAME or user=UID, cgroup=CGROUP, exe=PATH; repeatable, any may match";

/// Parses the selectors into a policy.
pub(crate) fn context_policy(selectors: &[String]) -> Result<ContextPolicy, CliError> {
    match selectors {
        [] => return Ok(ContextPolicy::All),
        [selector] if selector == "all" => return Ok(ContextPolicy::All),
        [selector] if selector == "off" => return Ok(ContextPolicy::None),
        _ => {}
    }
    selectors
        .iter()
        .map(|selector| process_matcher(selector))
        .collect::<Result<_, _>>()
        .map(ContextPolicy::Only)
}

fn process_matcher(selector: &str) -> Result<ProcessMatcher, CliError> {
    match selector.split_once('=') {
        Some(("user", name)) => user(name).map(ProcessMatcher::User),
        Some(("cgroup", name)) => {
            let hierarchy = cgroups::hierarchy(name)?;
            Ok(ProcessMatcher::Cgroup { id: cgroups::cgroup(name)?, hierarchy })
        }
        Some(("exe", path)) => executable(path),
        _ if selector == "all" || selector == "off" => Err(CliError::usage(
            format!("--contexts {selector} combined with another"),
            "all and off exclude other selectors",
            format!("--contexts {selector} alone, or the others without it"),
        )),
        _ => Err(CliError::usage(
            format!("bad --contexts `{selector}`"),
            "expected user=, cgroup= or exe=",
            format!("--contexts {SELECTORS}"),
        )),
    }
}

/// Resolves a user id, or a name in /etc/passwd; other name services are not queried.
fn user(name: &str) -> Result<u32, CliError> {
    if let Ok(number) = name.parse() {
        return Ok(number);
    }
    let users = fs::read_to_string("/etc/passwd").unwrap_or_default();
    number_of(name, &users).ok_or_else(|| {
        let remedy = format!("--contexts user=NUMBER, as `id -u {name}` prints it");
        CliError::usage(format!("unknown user `{name}`"), "not in /etc/passwd", remedy)
    })
}

/// Finds the user id of a name: `name:password:number:…` (passwd(5)).
fn number_of(name: &str, users: &str) -> Option<u32> {
    users.lines().find_map(|line| {
        let mut fields = line.split(':');
        (fields.next()? == name).then(|| fields.nth(1)?.parse().ok())?
    })
}

fn executable(path: &str) -> Result<ProcessMatcher, CliError> {
    let refused = |why: String| {
        let remedy = "exe=/path/of/an/existing/program, as /proc/PID/exe shows it";
        Err(CliError::usage(format!("bad executable `{path}` for --contexts"), why, remedy))
    };
    match fs::canonicalize(path) {
        _ if !Path::new(path).is_absolute() => refused("it does not begin with /".to_owned()),
        Ok(file) if file.is_file() => Ok(ProcessMatcher::Executable(path.into())),
        Ok(_) => refused("it is not a file".to_owned()),
        Err(error) => refused(error.to_string()),
    }
}

/// Warns if contexts are enabled and cannot be read in all processes.
pub(crate) fn warn_if_limited(policy: &ContextPolicy) {
    if let (true, PtraceAccess::OwnUser { reason: why }) =
        (policy.is_enabled(), blkkin_tracer::ptrace_access())
    {
        info!("{}", own_user_only(&why));
    }
}

/// Returns the warning.
pub(crate) fn own_user_only(why: &str) -> String {
    format!(
        "thread contexts of other users' processes cannot be read, and their system calls have no parent span: {why}"
    )
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

    use super::*;

    fn policy(selectors: &[&str]) -> Result<ContextPolicy, CliError> {
        context_policy(&selectors.iter().map(|selector| (*selector).to_owned()).collect::<Vec<_>>())
    }

    #[test]
    fn default_policy_trusts_all_processes() {
        assert_eq!(policy(&[]).unwrap(), ContextPolicy::All);
        assert_eq!(policy(&["all"]).unwrap(), ContextPolicy::All);
        assert_eq!(policy(&["off"]).unwrap(), ContextPolicy::None);
    }

    #[test]
    fn selectors_are_parsed() {
        let policies = ContextPolicy::Only(vec![
            ProcessMatcher::User(0),
            ProcessMatcher::User(7),
            ProcessMatcher::Executable("/bin/sh".into()),
        ]);
        assert_eq!(policy(&["user=root", "user=7", "exe=/bin/sh"]).unwrap(), policies);
        let users = "root:x:0:0:root:/root:/bin/sh\ncut:x\napp:x:1001:1001::/:/bin/false\n";
        assert_eq!((number_of("app", users), number_of("ap", users)), (Some(1001), None));
        assert_eq!(number_of("cut", users), None);
    }

    #[test]
    fn invalid_selectors_are_refused() {
        for (selectors, what) in [
            (&["on"][..], "bad --contexts `on`"),
            (&["user=no-such-user"], "unknown user `no-such-user`"),
            (&["exe=sh"], "bad executable `sh`"),
            (&["exe=/no/such/program"], "bad executable `/no/such/program`"),
            (&["exe=/"], "bad executable `/`"),
            (&["off", "user=0"], "--contexts off combined with another"),
            (&["user=0", "all"], "--contexts all combined with another"),
        ] {
            assert!(policy(selectors).unwrap_err().what.contains(what), "{selectors:?}");
        }
    }
}
