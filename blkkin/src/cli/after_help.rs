//! Texts behind the options of each command's help.
//!
//! *Invariant*: lines of examples have at most 80 columns, so that none is wrapped (`blkkin/tests/cli.rs`).

pub(super) const RUN: &str = "\
Exit status: CMD's own (128+n when signal n killed it); 125 when tracing could not start, 126 when CMD cannot \
be executed, 127 when it was not found.

Examples:
  Where the time of a program goes, layer by layer:
      blkkin run -- ./my-test
  Also what the kernel writes later:
      blkkin run --await-writeback 40s -- cp -r a b
  Each request in Zipkin:
      blkkin run --to zipkin=http://localhost:9411 -- ./my-test
  The figures for a script:
      blkkin run --no-report --json=report.json -- ./my-test";
pub(super) const TRACE: &str = "\
The first Ctrl-C ends the trace and shows the report, the second exits at once.

Examples:
  What this machine does to its disks:
      blkkin trace --for 30s
  Which requests make this disk slow:
      blkkin trace --device nvme0n1 --slower-than 10ms --for 1m
  Why commits are slow:
      blkkin trace --comm postgres --syscall fsync,fdatasync
  Which programs use these files:
      blkkin trace --path '/srv/db/*'
  What a virtual machine does to the host's disks:
      blkkin trace --vm web1
  Why its guest's requests are slow:
      blkkin trace --vm web1 --guests /run/blkkin/guests";
pub(super) const TOP: &str = "\
No request is recorded: the kernel side counts each one by program, cgroup, disk and operation. Ctrl-C or q ends it.

Examples:
  Which programs use the disks now:
      blkkin top
  One disk, by operation:
      blkkin top --device nvme0n1 --by operation
  A minute for a script:
      blkkin top --json --count 6 --interval 10s";
pub(super) const AGENT: &str = "\
The topic is blkkin.events; wire/blkkin.proto is the schema of its records. The cluster need not be reachable \
yet.

Examples:
  This machine, with the options in a file:
      blkkin agent -c /etc/blkkin/agent.toml
  This machine and its guests:
      blkkin agent --brokers kafka1:9092 --guests /run/blkkin/guests
  In a guest without a network:
      blkkin agent --port
  Into files, which --replay sends later:
      blkkin agent --record /var/lib/events
  Only the 30 s before an fsync of more than 100 ms:
      blkkin agent --brokers kafka1:9092 --flight-recorder 30s --dump-on 'fsync>100ms'";
pub(super) const REPORT: &str = "\
It needs neither root nor a cluster.

Examples:
  A summary, and the ten slowest operations as waterfalls:
      blkkin report /var/lib/dumps --slowest 10
  Spans of slow operations into Zipkin:
      blkkin report /var/lib/dumps --slower-than 100ms --to zipkin=http://localhost:9411";
pub(super) const DUMP: &str = "\
The agent sends the events of the last seconds to its target: Kafka, a folder or its host. It needs \
--flight-recorder.

Examples:
  The agent of this machine:
      blkkin dump
  An agent with a token, at another address:
      blkkin dump 10.0.0.7:9899 --token /etc/blkkin/metrics-token";
pub(super) const CTL: &str = "\
The agent needs --ctl. A change takes effect at once, for what begins from then on, and needs no restart. The \
agent's log and `blkkin ctl` name the user that asked for it.

With --brokers the agents need --ctl-topic. The cluster has the change when the command returns, and each agent that \
is connected applies it within a second.

Examples:
  What the agent of this machine records:
      blkkin ctl
  Each operation for ten minutes, then as before:
      blkkin ctl --sample 1/1 --for 10m
  Only slow and failed operations, and a sample:
      blkkin ctl --sample 1/1024 --keep 'fsync>50ms,10ms,failed'
  No operation, during a benchmark:
      blkkin ctl off --for 1h
  One operation in 64 on all nodes with agents that follow blkkin.control; each on one of them, for ten minutes:
      blkkin ctl --brokers kafka1:9092 --sample 1/64
      blkkin ctl --brokers kafka1:9092 --nodes db-7 --sample 1/1 --for 10m";
pub(super) const EXPORTER: &str = "\
The topic is blkkin.traces. Each destination has its own consumer group, so an unreachable one does not delay \
others; unacknowledged spans stay in the topic. Refused spans go to the topic blkkin.dead.

Examples:
  Into Zipkin, until SIGTERM:
      blkkin exporter --brokers kafka1:9092 --to zipkin=http://zipkin:9411
  By OTLP with TLS:
      blkkin exporter --brokers kafka1:9092 --to otlp=grpcs://tempo:4317
  The last hour again:
      blkkin exporter replay --from -1h --brokers kafka1:9092 \\
          --to zipkin=http://zipkin:9411";
pub(super) const AGGREGATOR: &str = "\
Reads blkkin.events, writes blkkin.spans and, from these, blkkin.traces; links requests between nodes through \
blkkin.links; keeps its state in blkkin.state. Any number of aggregators share the work; each may be killed at any time.

Examples:
  Every trace:
      blkkin aggregator --brokers kafka1:9092
  A hundredth of them, and each slow or failed one:
      blkkin aggregator --brokers kafka1:9092 --sample 1/100 \\
          --slower-than 50ms --errors";
