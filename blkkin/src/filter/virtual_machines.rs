//! `--vm`: the QEMU processes of a virtual machine, by name or UUID.

use std::path::Path;

use blkkin_qemu::Machine;
use blkkin_wire::ids::Pid;

use crate::error::CliError;
use crate::suggest::suggest;

/// Returns an error if no virtual machine of this host has this name or UUID, or several have it.
pub(super) fn require(value: &str) -> Result<(), CliError> {
    let machines = blkkin_qemu::machines(Path::new("/")).map_err(|error| {
        let problem = format!("cannot look up the virtual machine `{value}`");
        CliError::usage(problem, format!("/proc: {error}"), "mount /proc, or --tree PID")
    })?;
    find(&machines, value).map(drop)
}

/// Returns whether a virtual machine has this name or UUID.
pub(crate) fn is_named(machine: &Machine, value: &str) -> bool {
    machine.name.as_deref() == Some(value)
        || machine.uuid.as_ref().is_some_and(|uuid| uuid.eq_ignore_ascii_case(value))
}

fn find(machines: &[Machine], value: &str) -> Result<Pid, CliError> {
    let named = machines.iter().filter(|machine| is_named(machine, value));
    let found = named.map(|machine| machine.pid).collect::<Vec<_>>();
    match found[..] {
        [pid] => Ok(Pid(pid)),
        [] => {
            let nearest = suggest(value, machines.iter().filter_map(|machine| machine.name.as_deref()));
            let remedy = nearest.map_or_else(
                || "a name or UUID that `blkkin doctor` lists".to_owned(),
                |name| format!("--vm '{name}'"),
            );
            Err(CliError::usage(
                format!("no virtual machine `{value}` for --vm"),
                match machines.len() {
                    0 => "QEMU runs none on this machine".to_owned(),
                    number => format!("{number} run on this machine, none with this name or UUID"),
                },
                remedy,
            ))
        }
        _ => Err(CliError::usage(
            format!("several virtual machines `{value}` for --vm"),
            format!("these processes have the name: {found:?}"),
            "--vm UUID, or --tree PID",
        )),
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

    use super::*;

    fn machine(pid: u32, name: &str, uuid: Option<&str>) -> Machine {
        let (name, uuid) = (Some(name.to_owned()), uuid.map(str::to_owned));
        Machine { pid, name, uuid }
    }

    #[test]
    fn a_name_or_uuid_leads_to_one_process() {
        let machines =
            [machine(1, "web", Some("AB-1")), machine(2, "db", None), machine(3, "db", Some("ab-3"))];
        assert_eq!(find(&machines, "web").unwrap(), Pid(1));
        assert_eq!(find(&machines, "ab-1").unwrap(), Pid(1));
        assert_eq!(find(&machines, "AB-3").unwrap(), Pid(3));
        assert_eq!(find(&machines, "wbe").unwrap_err().remedy, "--vm 'web'");
        assert!(find(&machines, "db").unwrap_err().remedy.contains("--tree"));
        assert!(find(&[], "").unwrap_err().remedy.contains("doctor"));
    }
}
