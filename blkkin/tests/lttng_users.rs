//! LTTng sessions of blkkin on a machine with other users.
//!
//! *Input*: `blkkin run --ust` as root, with the real LTTng, in a network namespace where no other
//! program listens. The traced command also runs programs of the user [`OTHER`]. *Independent
//! observation*: the ports that the kernel reports as listening, and what that user receives from
//! them.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::Command;

use serde_json::Value;

use crate::common;
use crate::common::Run;
use crate::support;
use crate::support::lttng_namespace::LttngNamespace;
use crate::support::nbd::{server, spans};
use crate::support::{needs, or_skip};

/// User id of the other user.
const OTHER: u32 = 65534;

/// Requests of fio.
const REQUESTS: usize = 100;

/// Returns a folder with a disk, in which each user can write.
fn home() -> tempfile::TempDir {
    let home = tempfile::tempdir_in("/dev/shm").unwrap();
    let disk = home.path().join("disk");
    fs::write(&disk, vec![0xb1; 1 << 20]).unwrap();
    for (path, mode) in [(home.path(), 0o777), (&disk, 0o666)] {
        fs::set_permissions(path, fs::Permissions::from_mode(mode)).unwrap();
    }
    home
}

/// Returns a script that starts the daemon, runs `meanwhile`, and then reads from the daemon.
fn serve(server: &str, meanwhile: &str) -> String {
    format!(
        "BLKKIN_UST_ROOTS=0 {server} $H/disk --unix $H/socket > $H/uri & P=$!; \
         until [ -s $H/uri ]; do sleep 0.02; done; {meanwhile} \
         fio --name=t --ioengine=nbd --uri=\"$(head -n 1 $H/uri)\" --rw=randread --bs=4k --size=1m \
         --number_ios={REQUESTS} > $H/fio.out; kill $P; wait $P"
    )
}

/// Returns the number of daemon spans of read requests.
fn reads(home: &Path) -> usize {
    spans(home).iter().filter(|span| span["name"] == "nbd read").count()
}

/// Runs `blkkin run --ust` around a script, in its own network; `$H` is the folder, `$OTHER` runs a
/// command as the other user.
fn run(home: &Path, script: &str) -> Run {
    let to = format!("zipkin={}/spans.json", home.display());
    let args = ["run", "--ust", "--syscall", "pread64", "--to", &to, "--", "bash", "-c", script];
    let blkkin = common::blkkin(&args);
    let namespace = LttngNamespace::new().unwrap();
    let mut own_network = namespace.command("unshare");
    own_network.args(["--net", "sh", "-c", "ip link set lo up && exec \"$@\"", "sh"]);
    own_network.arg(blkkin.get_program()).args(blkkin.get_args());
    let as_other = format!("setpriv --reuid {OTHER} --regid {OTHER} --clear-groups");
    own_network.env("H", home).env("OTHER", as_other).env("COLUMNS", "80");
    Run::from(own_network.output().unwrap())
}

/// Connects to each listening port as LTTng's live reader (CONNECT), as its session daemon
/// (RELAYD_VERSION), and as babeltrace2. Prints what is received.
const PROBE: &str = r#"
for port in $(awk 'NR > 1 && $4 == "0A" { split($2, a, ":"); print a[2] }' /proc/net/tcp); do
    port=$((16#$port)); echo "port $port" >> $H/ports
    live='\0\0\0\0\0\0\0\x18\0\0\0\x01\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\x02\0\0\0\x04\0\0\0\x01'
    control='\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\x08\0\0\0\x05\0\0\0\0\0\0\0\x02\0\0\0\x0d'
    for hello in "$live" "$control"; do
        exec 3<>/dev/tcp/127.0.0.1/$port || continue
        printf "$hello" >&3
        answer=$(timeout 2 head -c 8 <&3 | od -An -tx1)
        [ -z "$answer" ] || echo "port $port answers$answer" >> $H/answers
        exec 3>&-
    done
    timeout 5 babeltrace2 -i lttng-live net://127.0.0.1:$port >> $H/sessions 2>/dev/null
done
true
"#;

#[test]
fn another_user_gets_no_answer_of_the_relay() {
    needs!("lttng", "lttng-relayd", "nsenter", "babeltrace2", "fio", "setpriv", "bash", "awk", "od");
    let server = or_skip!(server());
    let home = home();
    fs::write(home.path().join("probe"), PROBE).unwrap();
    let script = serve(&server.display().to_string(), "$OTHER bash $H/probe 2> $H/errors;");
    let run = run(home.path(), &script);
    let file = |name: &str| fs::read_to_string(home.path().join(name)).unwrap_or_default();
    println!("{}{}{}", file("ports"), file("answers"), file("sessions"));
    // The session daemon's own connections are let through.
    assert_eq!(reads(home.path()), REQUESTS, "{}", run.stderr);
    assert!(file("ports").lines().count() >= 2, "nothing listens: {}", file("errors"));
    assert_eq!((file("answers"), file("sessions")), (String::new(), String::new()), "{}", file("errors"));
    let reported = format!("connections of user {OTHER} to the relay were refused");
    assert!(run.stderr.contains(&reported), "{}", run.stderr);
}

/// Runs root's session daemon, and blkkin as the other user with the capabilities of the agent's
/// unit.
const UNPRIVILEGED: &str = r#"
set -e
ip link set lo up
lttng-sessiond --no-kernel --group tracing --background
trap 'kill $(cat /run/lttng/lttng-sessiond.pid)' EXIT
cp $BLKKIN $H/blkkin
caps=-all,+bpf,+perfmon,+syslog,+sys_nice,+sys_ptrace
LTTNG_HOME=$H TMPDIR=$H setpriv --reuid $OTHER --regid $OTHER --groups $(getent group tracing | cut -d: -f3) \
    --inh-caps=$caps --ambient-caps=$caps --bounding-set=$caps --no-new-privs \
    $H/blkkin run --ust --syscall pread64 --to zipkin=$H/spans.json -- bash -c "$SERVE"
"#;

/// The relay then runs in a user namespace, and the session daemon outside of it as another user.
#[test]
fn an_unprivileged_user_receives_events_through_the_session_daemon_of_root() {
    needs!("lttng", "lttng-relayd", "nsenter", "fio", "setpriv", "bash", "getent");
    let server = or_skip!(server());
    if fs::read_to_string("/etc/group").is_ok_and(|groups| !groups.contains("\ntracing:")) {
        support::skip!("the group `tracing` does not exist");
    }
    let home = home();
    fs::copy(server, home.path().join("server")).unwrap();
    let namespace = or_skip!(LttngNamespace::new());
    let mut command = namespace.command("unshare");
    command.args(["--net", "bash", "-c", UNPRIVILEGED]);
    command.env("H", home.path()).env("OTHER", OTHER.to_string()).env("SERVE", serve("$H/server", ""));
    command.env("BLKKIN", common::blkkin(&[]).get_program());
    let run = Run::from(command.output().unwrap()).expect_code(0);
    assert_eq!(reads(home.path()), REQUESTS, "{}", run.stderr);
}

fn compile(source: &str, output: &Path, libraries: &[&str]) {
    let mut gcc = Command::new("gcc");
    gcc.args(["-O2", "-Wall", "-Werror", "-I.", "-o"]).arg(output).arg(source).args(libraries);
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/lttng_users");
    assert!(gcc.current_dir(folder).status().unwrap().success());
}

/// Programs of the other user: one names itself, one names the thread of a process of root that
/// reads meanwhile. The other user also starts both as root of a user namespace of its own, as a
/// container without root does.
const FORGE: &str = r#"
export LTTNG_UST_REGISTER_TIMEOUT=-1
rootless="unshare --user --map-root-user"
$OTHER $rootless true || rootless=
$H/reads $H/disk $H/all & victim=$!
$OTHER $H/spans honest 7001 $H/disk $H/begun1 $H/done &
FORGED=$victim $OTHER $H/spans forger 7002 $H/disk $H/begun2 $H/done &
$OTHER $rootless $H/spans honest 7003 $H/disk $H/begun3 $H/done &
FORGED=$victim $OTHER $rootless $H/spans forger 7004 $H/disk $H/begun4 $H/done &
for n in 1 2 3 4; do until [ -e $H/begun$n ]; do sleep 0.02; done; done
touch $H/all; wait $victim
touch $H/done; wait
echo $victim > $H/victim; echo $rootless > $H/rootless
"#;

fn tag<'a>(span: &'a Value, key: &str) -> &'a str {
    span["tags"][key].as_str().unwrap_or_default()
}

fn parent(span: &Value) -> Option<u64> {
    span["parentId"].as_str().map(|id| u64::from_str_radix(id, 16).unwrap())
}

#[test]
fn a_user_cannot_name_the_thread_of_another_user() {
    needs!("lttng", "lttng-relayd", "nsenter", "gcc", "lttng-gen-tp", "setpriv", "unshare", "bash");
    let home = home();
    compile("spans.c", &home.path().join("spans"), &["-llttng-ust", "-ldl"]);
    compile("reads.c", &home.path().join("reads"), &[]);
    let run = run(home.path(), FORGE).expect_code(0);
    let written = |name: &str| fs::read_to_string(home.path().join(name)).unwrap().trim().to_owned();
    let (victim, disk) = (written("victim"), home.path().join("disk").display().to_string());
    let spans = spans(home.path());
    let calls: Vec<_> = spans
        .iter()
        .filter(|span| span["name"] == "pread64" && tag(span, "file.path") == disk.as_str())
        .collect();
    let of_victim: Vec<_> = calls.iter().filter(|call| tag(call, "process.pid") == victim).collect();
    let below =
        [7001, 7002, 7003, 7004].map(|span| calls.iter().filter(|call| parent(call) == Some(span)).count());
    println!("{} calls of root; below the spans {below:?}; {}", of_victim.len(), written("rootless"));
    assert_eq!(of_victim.len(), 101, "{}", run.stderr);
    assert!(of_victim.iter().all(|call| parent(call).is_none()), "{}", run.stderr);
    assert_eq!(below, [10, 0, 10, 0], "a user names its own threads only: {}", run.stderr);
    let of_service =
        |name: &str| spans.iter().filter(|span| span["localEndpoint"]["serviceName"] == name).count();
    assert_eq!((of_service("honest"), of_service("forger")), (2, 0), "{}", run.stderr);
    let refused = "of their events were refused, because they named threads of other users";
    assert!(run.stderr.contains(refused), "{}", run.stderr);
}
