//! USDT events of PostgreSQL as a distribution built it, with `blkkin run --probes` and `blkkin
//! agent --probes`: each query is the parent of its own reads, down to the disk.
//!
//! *Input*: a real server in which one query per round reads each of many tables. The server gives
//! the file of each table and the query's text names the table, so the query of each read is known
//! independently. The server (pg_stat_statements) and pgbench give the number of queries.

use std::collections::{BTreeSet, HashMap, HashSet};
use std::fs;
use std::io::Write;
use std::os::fd::AsRawFd;
use std::path::Path;
use std::process::Stdio;
use std::time::Duration;

use blkkin_wire::daemon_span::AnnotationValue;
use blkkin_wire::event::LayerEvent;
use serde_json::Value;

use crate::common;
use crate::common::Run;
use crate::support::agent_recording;
use crate::support::live::eventually;
use crate::support::metrics::{address, documented_families, families, get, is_usdt_family, value};
use crate::support::nbd::spans;
use crate::support::postgres::Cluster;
use crate::support::service::Service;
use crate::support::tools::{capture, tool};
use crate::support::{needs, or_skip};

const MAPPING: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../configs/mappings/postgresql.toml");
const DISK: u64 = 512 << 20;
const TABLES: usize = 40;
const ROUNDS: usize = 5;
const CLIENTS: usize = 2;
/// Transactions of each pgbench client.
const TRANSACTIONS: usize = 100;
/// So few buffers that each query reads its table again. No parallel queries, because their workers
/// have no end event.
const OPTIONS: &str = "-c listen_addresses= -c shared_buffers=128kB -c autovacuum=off -c shared_preload_libraries=pg_stat_statements \
                       -c max_parallel_workers_per_gather=0 -c pg_stat_statements.track_utility=off -c synchronize_seqscans=off";

impl Cluster {
    /// Writes a mapping of its probes that puts the text of each query into its span.
    fn probes(&self) -> String {
        let text = fs::read_to_string(MAPPING).unwrap();
        let program = format!("program = {:?}", self.bin.join("postgres"));
        let text = text.replace("program = \"/usr/lib/postgresql/15/bin/postgres\"", &program);
        let keys = ["text", "annotate", "traceparent"].map(|word| format!("\n{word} = "));
        let text = keys.iter().fold(text, |text, word| text.replace(&word.replace('\n', "\n# "), word));
        assert!(text.contains(&program) && keys.iter().all(|word| text.contains(word)), "{text}");
        let probes = self.disk.file("probes.toml");
        fs::write(&probes, text).unwrap();
        probes.display().to_string()
    }

    /// Traces such a script.
    fn trace(&self, work: &str) -> Run {
        let (probes, json) = (self.probes(), format!("--json={}", self.disk.file("report.json").display()));
        let to = format!("zipkin={}", self.disk.file("spans.json").display());
        let args = [
            "run",
            "--full",
            "--probes",
            &probes,
            &json,
            "--syscall",
            "pread64",
            "--syscall",
            "pwrite64",
            "--to",
            &to,
        ];
        common::run(&[&args[..], &["--", "sh", "-c", &self.script(OPTIONS, work)]].concat())
    }

    /// Fills the tables, and returns the name of each table by its file.
    fn fill(&self) -> HashMap<String, String> {
        fs::write(self.path("tables.sql"), tables()).unwrap();
        let paths = "select string_agg(relname || '=' || pg_relation_filepath(oid), ' ') from pg_class where relname ~ '^t[0-9]+$'";
        let fill = format!("$PSQL -f tables.sql; $PSQL -Atc \"{paths}\" >paths");
        capture(tool("sh").args(["-c", &self.script(OPTIONS, &fill)])).unwrap();
        let paths = fs::read_to_string(self.path("paths")).unwrap();
        let pairs = paths.split_whitespace().map(|pair| pair.split_once('=').unwrap());
        let files: HashMap<_, _> = pairs.map(|(table, file)| (file.to_owned(), table.to_owned())).collect();
        assert_eq!(files.len(), TABLES);
        files
    }

    fn spans(&self) -> Vec<Value> {
        spans(self.disk.file("spans.json").parent().unwrap())
    }

    /// Drops the cluster's pages from the page cache.
    fn drop_page_cache(&self) {
        fn each(folder: &Path) {
            for entry in fs::read_dir(folder).unwrap().map(Result::unwrap) {
                if entry.file_type().unwrap().is_dir() {
                    each(&entry.path());
                } else if let Ok(file) = fs::File::open(entry.path()) {
                    file.sync_all().unwrap();
                    // SAFETY: no memory is passed.
                    unsafe { libc::posix_fadvise(file.as_raw_fd(), 0, 0, libc::POSIX_FADV_DONTNEED) };
                }
            }
        }
        each(&self.data());
    }
}

/// Returns the comment of a query on this table. Every second one has the traceparent of an
/// application's span, with the table's number in it.
fn comment(table: usize) -> String {
    match table % CLIENTS {
        0 => String::new(),
        _ => format!(" /*traceparent='00-{:032x}-{:016x}-01'*/", 1_000 + table, 2_000 + table),
    }
}

/// Builds tables of 16 rows with one 8 KiB page each: 128 KiB per table.
fn tables() -> String {
    let one = |n: usize| {
        format!(
            "create table t{n} (id int, v text); alter table t{n} alter v set storage plain; \
             insert into t{n} select g, repeat('x', 5000) from generate_series(1, 16) g; vacuum t{n};\n"
        )
    };
    let all: String = (0..TABLES).map(one).collect();
    format!("create extension pg_stat_statements;\n{all}checkpoint;\n")
}

fn tag<'s>(span: &'s Value, key: &str) -> &'s str {
    span["tags"][key].as_str().unwrap_or_default()
}

#[test]
fn each_read_of_a_table_is_a_child_of_its_query() {
    needs!("psql", "losetup", "mkfs.ext4", "setpriv");
    let cluster = or_skip!(Cluster::make(DISK));
    let files = cluster.fill();
    // Each client reads every second table, and sends a failing query after each, which has an end
    // event too.
    for client in 0..CLIENTS {
        let tables = (0..TABLES).filter(|table| table % CLIENTS == client);
        let round: String = tables
            .map(|table| format!("select count(*) from t{table}{};\nselect wrong{table};\n", comment(table)))
            .collect();
        fs::write(cluster.path(&format!("{client}.sql")), round.repeat(ROUNDS)).unwrap();
    }
    cluster.drop_page_cache();
    let counted =
        "select sum(calls) from pg_stat_statements where query ~ '^select count\\(\\*\\) from t[0-9]'";
    let clients: String = (0..CLIENTS)
        .map(|client| format!("$PSQL -At -f {client}.sql >{client}.out 2>{client}.err & P{client}=$!; "))
        .collect();
    let waits: String = (0..CLIENTS).map(|client| format!("wait $P{client}; ")).collect();
    let reset = "$PSQL -Atc 'select pg_stat_statements_reset()' >reset; ";
    let run =
        cluster.trace(&format!("{reset}{clients}{waits}$PSQL -Atc \"{counted}\" >counted")).expect_code(0);
    let queries = TABLES * ROUNDS;
    assert_eq!(fs::read_to_string(cluster.path("counted")).unwrap().trim(), queries.to_string());
    let spans = cluster.spans();
    let queries_by_id: HashMap<&str, &Value> = spans
        .iter()
        .filter(|span| span["name"] == "query")
        .map(|span| (span["id"].as_str().unwrap(), span))
        .collect();
    let begins =
        |with: &str| queries_by_id.values().filter(|one| tag(one, "db.query.text").starts_with(with)).count();
    assert_eq!(begins("select count(*) from t"), queries, "the server's count: {}", run.stderr);
    assert_eq!(begins("select wrong"), queries, "{}", run.stderr);
    let is_select = |one: &&Value| tag(one, "db.query.text").starts_with("select");
    let with_error: Vec<_> =
        queries_by_id.values().filter(|one| is_select(one) && one["tags"]["error"].is_string()).collect();
    assert!(with_error.is_empty(), "{with_error:?}");

    let by_id: HashMap<&str, &Value> =
        spans.iter().map(|span| (span["id"].as_str().unwrap(), span)).collect();
    let parent_of = |span: &Value| span["parentId"].as_str().and_then(|id| by_id.get(id).copied());
    let (mut reads, mut from_disk, mut without_query, mut in_applications) = (0, HashSet::new(), 0, 0);
    for call in spans.iter().filter(|span| span["name"] == "pread64" || span["name"] == "pwrite64") {
        let query = parent_of(call).filter(|span| span["name"] == "query");
        let Some(query) = query else {
            without_query += 1;
            continue;
        };
        // No background process (checkpointer, WAL writer) has a query as parent.
        assert_eq!(tag(call, "process.pid"), tag(query, "process.pid"), "{call} as a child of {query}");
        assert_eq!(call["traceId"], query["traceId"]);
    }
    for call in spans.iter().filter(|span| span["name"] == "pread64") {
        let file = files.iter().find(|(file, _)| tag(call, "file.path").ends_with(&format!("/{file}")));
        let Some((_, table)) = file else { continue };
        let query = parent_of(call).unwrap_or_else(|| panic!("no parent: {call}"));
        let number: usize = table[1..].parse().unwrap();
        let comment = comment(number);
        let text = format!("select count(*) from {table}{comment};");
        assert_eq!(tag(query, "db.query.text"), text, "{call} as a child of {query}");
        if comment.is_empty() {
            assert!(query["parentId"].is_null(), "{query}");
        } else {
            let [trace, parent] = ["traceId", "parentId"].map(|key| query[key].as_str().unwrap());
            assert!(comment.contains(&format!("-{trace:0>32}-{parent}-")), "{query}");
            in_applications += 1;
        }
        reads += 1;
    }
    for request in spans.iter().filter(|span| span["name"] == "request read") {
        let path: Vec<&Value> = std::iter::successors(Some(request), |span| parent_of(span)).collect();
        let (Some(call), Some(query)) = (path.get(path.len().saturating_sub(2)), path.last()) else {
            continue;
        };
        if query["name"] == "query" && tag(query, "db.query.text").starts_with("select count") {
            assert_eq!(query["traceId"], request["traceId"]);
            from_disk
                .extend(files.iter().find(|(file, _)| tag(call, "file.path").ends_with(&format!("/{file}"))));
        }
    }
    println!(
        "{queries} queries, {reads} reads of their tables, {in_applications} of them in an application's trace; {} tables read from the disk in their query's trace; \
         {without_query} calls without a query",
        from_disk.len()
    );
    // All 16 pages each time, because there are only 16 buffers.
    assert!(reads >= queries * 8, "{reads}: {}", run.stderr);
    assert!(in_applications >= reads / CLIENTS / 2, "{in_applications} of {reads}");
    assert_eq!(from_disk.len(), TABLES, "the first read of each table is from the disk");
    assert!(without_query > 0, "checkpointer and WAL writer have written");
    assert!(!run.stderr.contains("lost because the rings"), "{}", run.stderr);
}

#[test]
fn a_query_in_several_messages_is_one_span() {
    needs!("psql", "losetup", "mkfs.ext4", "setpriv");
    let cluster = or_skip!(Cluster::make(DISK));
    fs::write(cluster.path("one.sql"), "select count(*) from pg_class where relpages > :client_id;\n")
        .unwrap();
    let (bin, socket) = (cluster.bin.display(), cluster.disk.mount_point().display().to_string());
    let bench = format!(
        "$U {bin}/pgbench -h {socket} -n -M extended -c {CLIENTS} -t {TRANSACTIONS} -f one.sql postgres >bench"
    );
    let run = cluster.trace(&bench).expect_code(0);
    let output = fs::read_to_string(cluster.path("bench")).unwrap();
    let transactions = CLIENTS * TRANSACTIONS;
    assert!(output.contains(&format!("actually processed: {transactions}/{transactions}\n")), "{output}");
    let spans = cluster.spans();
    let queries = spans.iter().filter(|span| {
        span["name"] == "query" && tag(span, "db.query.text").starts_with("select count(*) from pg_class")
    });
    assert_eq!(queries.count(), transactions, "{}", run.stderr);
    // The JSON report has the same numbers.
    let report: Value = serde_json::from_slice(&fs::read(cluster.disk.file("report.json")).unwrap()).unwrap();
    let output = &report["usdt"];
    let number = |name: &str| output[name].as_u64().unwrap();
    assert!(number("spans") >= transactions as u64 && number("events") >= 2 * number("spans"), "{output}");
    assert_eq!([number("events_lost"), number("events_discarded")], [0, 0], "{output}");
    let slowest = report["slowest_operations"].as_array().unwrap();
    assert!(slowest.len() == 5 && slowest.iter().all(|tree| tree["operation"] == "query"), "{slowest:?}");
    assert!(run.stderr.contains("the 5 slowest operations"), "{}", run.stderr);
}

/// Queries by span id, and reads with the span id of their parent.
type Recorded = (HashMap<u64, String>, Vec<(Option<u64>, String)>);

/// Reads an agent's recording: the text of each query by its span id, and the path of each read
/// with the span id of its query.
fn recorded(folder: &Path) -> Recorded {
    let (mut queries, mut files, mut reads) = (HashMap::new(), HashMap::new(), Vec::new());
    for batch in agent_recording::batches(folder) {
        for event in batch.events {
            match event {
                LayerEvent::DaemonSpan(query) => {
                    let text = query.annotations.iter().find_map(|note| match &note.value {
                        AnnotationValue::Text(text) if &*note.key == "db.query.text" => {
                            Some(text.to_string())
                        }
                        _ => None,
                    });
                    assert_eq!(queries.insert(query.span.0, text.unwrap_or_default()), None, "recorded once");
                }
                LayerEvent::File(file) => drop(files.insert(file.file, file.path.to_string())),
                LayerEvent::Syscall(call) => {
                    let file = call.file.map(|open| open.file);
                    reads.push((call.context.map(|context| context.span.0), file));
                }
                _ => {}
            }
        }
    }
    // A file's name may follow the first call on it.
    let path = |file| files.get(&file).cloned().unwrap_or_default();
    let reads = reads.into_iter().map(|(parent_of, file)| (parent_of, file.map(path).unwrap_or_default()));
    (queries, reads.collect())
}

/// The server starts and stops while the agent runs.
#[test]
fn an_agent_reads_the_queries_of_a_server_and_has_metrics_of_them() {
    needs!("psql", "losetup", "mkfs.ext4", "setpriv");
    let cluster = or_skip!(Cluster::make(DISK));
    let files = cluster.fill();
    let queries: String = (0..TABLES).map(|n| format!("select count(*) from t{n};\n")).collect();
    fs::write(cluster.path("queries.sql"), queries.repeat(ROUNDS)).unwrap();

    let home = tempfile::tempdir().unwrap();
    let (recording, probes) = (home.path().join("recording"), cluster.probes());
    // Only this server's tree: other servers may run at the same time.
    let script = format!("read go; {}", cluster.script(OPTIONS, "$PSQL -At -f queries.sql >counts"));
    let mut shell = tool("sh");
    let mut shell = shell.args(["-c", &script]).stdin(Stdio::piped()).spawn().unwrap();
    let (tree, to) = (shell.id().to_string(), recording.to_str().unwrap());
    let args = ["agent", "--probes", &probes, "--record", to, "--tree", &tree, "--syscall", "pread64"];
    let args = [&args[..], &["--metrics", "127.0.0.1:0"]].concat();
    let agent = Service::start(home.path(), "agent", &args);
    agent.wait_for_output("tracing; events go to", Duration::from_secs(60));
    assert!(agent.output().contains("each event costs about"), "{}", agent.output());
    writeln!(shell.stdin.take().unwrap(), "go").unwrap();
    assert!(shell.wait().unwrap().success());
    let metrics = || get(address(&agent.output()), "/metrics");
    let metric = |name: &str| value(&metrics(), &format!("blkkin_usdt_{name}"));
    let queries = (TABLES * ROUNDS) as f64;
    assert!(eventually(|| metric("spans_total") >= queries), "{}", metrics());
    assert!(
        metric("events_total") >= 2.0 * queries && metric("calls_correlated_total") >= queries,
        "{}",
        metrics()
    );
    let usdt_families =
        |all: BTreeSet<String>| all.into_iter().filter(|name| is_usdt_family(name)).collect::<Vec<_>>();
    let shown = usdt_families(families(&metrics()));
    assert_eq!(
        (shown.len(), &shown),
        (5, &usdt_families(documented_families())),
        "the table in docs/operating.md"
    );
    let log = agent.finish_without_error();
    assert!(log.contains("usdt: ") && !log.contains("events were lost"), "{log}");

    let (queries, reads) = recorded(&recording);
    let counts = queries.values().filter(|text| text.starts_with("select count(*) from t")).count();
    assert_eq!(counts, TABLES * ROUNDS, "{log}");
    let mut children = 0;
    for (parent_of, path) in reads {
        let file = files.iter().find(|(file, _)| path.ends_with(&format!("/{file}")));
        let Some((_, table)) = file else { continue };
        let query =
            parent_of.and_then(|span| queries.get(&span)).unwrap_or_else(|| panic!("no parent: {path}"));
        assert_eq!(*query, format!("select count(*) from {table};"), "{path}");
        children += 1;
    }
    println!("{counts} queries, {children} reads of their tables, each with its query as parent");
    assert!(children >= counts * 8, "{children}: {log}");
}
