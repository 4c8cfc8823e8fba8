//! What the agent can say of itself at any moment.
//!
//! *In*: the accounts that each batch brings, and what the producer and the bus count. *Out*: figures and health. *Invariant*:
//! fired = recorded + dropped holds in what is shown, up to what lies in the rings (at most 20 ms of records); accepted =
//! delivered + failed + waiting.

use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Duration;

use blkkin_bus::Counts;
use blkkin_bus::kafka::{Deliveries, EVENTS};
use blkkin_bus::spool::SpoolCounts;
use blkkin_tracer::nbd::Asking;
use blkkin_wire::batch::{Account, Accounts};
use blkkin_wire::killed::Killed;

use super::figures;
use crate::daemons::Shown;
use crate::probes;
use crate::service::{Family, Figures, Kind, Pulse, Search, Trouble};

/// Shared by the thread that sends and who asks.
#[derive(Debug)]
pub(crate) struct Books {
    latest: Mutex<Latest>,
    /// A beat for each batch that comes, and while one waits for the cluster.
    pub(crate) pulse: Pulse,
    silence_max: Duration,
    /// What is heard of daemons, if anybody listens.
    daemons: Option<Shown>,
    /// What is heard at probes, likewise.
    probes: Option<probes::Shown>,
    /// For the cluster, if there is to be one, and its topic.
    search: OnceLock<Search>,
    /// What NBD clients asked, if anybody asks for that.
    asking: Option<Asking>,
}

#[derive(Clone, Debug, Default)]
struct Latest {
    accounts: Accounts,
    deliveries: Deliveries,
    bus: Counts,
    /// None where there is no spool; and how often its disk failed.
    spool: Option<SpoolCounts>,
    spool_failures: u64,
    killed: Vec<Killed>,
    /// Of the cluster, while it is away.
    away: Option<Trouble>,
}

impl Books {
    /// Empty ones. Without a batch for `silence_max` the agent is not well.
    pub(crate) fn new(
        silence_max: Duration,
        (daemons, probes): (Option<Shown>, Option<probes::Shown>),
        asking: Option<Asking>,
    ) -> Books {
        let (latest, search) = Default::default();
        Books { latest, pulse: Pulse::new(), silence_max, daemons, probes, search, asking }
    }

    /// A batch came.
    pub(crate) fn note(&self, accounts: &Accounts, bus: Counts) {
        self.pulse.beat();
        let mut latest = self.latest();
        (latest.accounts, latest.bus) = (accounts.clone(), bus);
    }

    /// What became of events so far.
    pub(crate) fn sent(&self, deliveries: Deliveries) {
        self.latest().deliveries = deliveries;
    }

    /// What is in the spool.
    pub(crate) fn spooled(&self, counts: SpoolCounts) {
        self.latest().spool = Some(counts);
    }

    /// The spool's disk did not do what it was asked.
    pub(crate) fn spool_failed(&self) {
        self.latest().spool_failures += 1;
    }

    /// The cluster takes nothing, or does again.
    pub(crate) fn away(&self, away: Option<Trouble>) {
        self.latest().away = away;
    }

    /// A cluster is looked for.
    pub(crate) fn searched(&self, search: Search) {
        // There is one.
        let _ = self.search.set(search);
    }

    /// The cluster or its topic was not found yet.
    pub(crate) fn is_searching(&self) -> bool {
        self.search.get().and_then(Search::remark).is_some()
    }

    /// Who was killed before.
    pub(crate) fn inherit(&self, killed: Vec<Killed>) {
        self.latest().killed = killed;
    }

    fn latest(&self) -> MutexGuard<'_, Latest> {
        self.latest.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Figures for Books {
    fn families(&self) -> Vec<Family> {
        let Latest { accounts, deliveries, bus, spool, spool_failures, killed, .. } = self.latest().clone();
        let kinds = |of: fn(&Account) -> u64| {
            let Accounts { calls, bios, requests, commits, names, .. } = &accounts;
            let kinds = [calls, bios, requests, commits, names].map(of);
            ["call", "bio", "request", "commit", "name"].into_iter().zip(kinds)
        };
        let lost = [
            ("end missed", accounts.ends_missed),
            ("table full", accounts.untracked),
            ("task not followed", accounts.tasks_missed),
            ("program skipped", accounts.recursion_misses),
            ("malformed", accounts.malformed),
            ("bios beyond the walk", accounts.walk_overflow),
            ("flushed beyond the walk", accounts.flush_overflow),
        ];
        let counter = |name, help, value: u64| Family::one(Kind::Counter, name, help, value as f64);
        let gauge = |name, help, value: u64| Family::one(Kind::Gauge, name, help, value as f64);
        let mut families = vec![
            Family::by("kind", "records_fired", "Records that were due in the kernel", kinds(|a| a.fired)),
            Family::by(
                "kind",
                "records_read",
                "Records that were read from the rings",
                kinds(|a| a.recorded),
            ),
            Family::by("kind", "records_dropped", "Records that had no room in a ring", kinds(|a| a.dropped)),
            Family::by("why", "parts_lost", "Parts of requests that no record says", lost),
            gauge("bus_events", "Events between the rings and the sender", bus.waiting().events),
            counter("agent_events_accepted", "Events handed to the producer", deliveries.accepted),
            counter("agent_events_delivered", "Events that the cluster has", deliveries.delivered),
            counter("agent_events_failed", "Events that the cluster refused", deliveries.failed),
            gauge("agent_events_waiting", "Events on their way to the cluster", deliveries.waiting()),
            counter(
                "agent_bytes_delivered",
                "Bytes that the cluster has, before compression",
                deliveries.bytes,
            ),
            Family::one(
                Kind::Counter,
                "agent_waited_seconds",
                "Time for which the cluster took nothing, so that the agent waited",
                deliveries.waited_ns as f64 / 1e9,
            ),
        ];
        families.extend(spool.map(|counts| figures::of_spool(&counts, spool_failures)).into_iter().flatten());
        families.extend(figures::of_contexts(&accounts));
        families.extend(figures::of_resources(&accounts));
        families.extend(figures::of_killed(&killed));
        families.extend(self.daemons.iter().flat_map(Shown::families));
        families.extend(self.probes.iter().flat_map(probes::Shown::families));
        families.extend(self.asking.iter().flat_map(|asking| figures::of_asking(&asking.books())));
        families
    }

    fn ill(&self) -> Option<String> {
        let silence = self.pulse.silence();
        (silence > self.silence_max)
            .then(|| format!("nothing was read from the rings for {} s", silence.as_secs()))
    }

    fn remarks(&self) -> Vec<String> {
        // What hinders the search is nearer to what has to be mended: a topic that may not be made, and not that nothing arrives.
        let searching = self.search.get().and_then(Search::remark);
        let away = || self.latest().away.as_ref().map(|away| format!("{EVENTS} is away {away}"));
        searching.or_else(away).into_iter().collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::service::{Labels, Sample};

    #[test]
    fn what_is_shown_is_what_was_noted() {
        let books = Books::new(Duration::from_secs(30), (None, None), None);
        let calls = Account { fired: 7, recorded: 4, dropped: 3 };
        let accounts = Accounts { calls, untracked: 2, ..Accounts::default() };
        let deliveries = Deliveries { accepted: 9, delivered: 5, failed: 1, ..Deliveries::default() };
        books.note(&accounts, Counts::default());
        books.sent(deliveries);
        let families = books.families();
        let values = |name: &str| -> Vec<f64> {
            let family = families.iter().find(|family| family.name == name).unwrap();
            let value = |(_, sample): &(Labels, Sample)| match sample {
                Sample::Number(value) => *value,
                Sample::Times(_) => panic!("{family:?}"),
            };
            family.samples.iter().map(value).collect()
        };
        let calls = ["records_fired", "records_read", "records_dropped"].map(|name| values(name)[0]);
        assert_eq!(calls, [7.0, 4.0, 3.0]);
        assert_eq!((values("agent_events_waiting"), values("parts_lost")[1]), (vec![3.0], 2.0));
        let contexts =
            Accounts { contexts_publishing: 3, contexts_unread: 5, contexts_denied: 7, ..accounts.clone() };
        let contexts = Accounts { resources_publishing: 9, resources_malformed: 11, ..contexts };
        books.note(&contexts, Counts::default());
        let families = books.families();
        let sum = |name: &str| -> f64 {
            let family = families.iter().find(|family| family.name == name).unwrap();
            let number = |(_, sample): &(Labels, Sample)| match sample {
                Sample::Number(value) => *value,
                Sample::Times(_) => panic!("{family:?}"),
            };
            family.samples.iter().map(number).sum()
        };
        let shown = ["contexts_processes", "contexts_calls", "contexts_processes_skipped"].map(sum);
        assert_eq!(shown, [3.0, 5.0, 7.0]);
        assert_eq!(["resources_processes", "resources_failed"].map(sum), [9.0, 11.0]);
        let lost: f64 = ["records_dropped", "parts_lost"].iter().flat_map(|name| values(name)).sum();
        assert_eq!(lost, accounts.lost() as f64, "all that counts as lost has a name");
    }

    #[test]
    fn a_cluster_that_is_away_is_told_of_until_it_is_there() {
        let books = Books::new(Duration::from_secs(30), (None, None), None);
        assert!(books.remarks().is_empty());
        books.away(Some(Trouble::new("why".to_owned())));
        let remarks = books.remarks();
        assert!(
            remarks.len() == 1 && remarks[0].starts_with("blkkin.events is away since 20"),
            "{remarks:?}"
        );
        assert!(remarks[0].ends_with(": why") && books.ill().is_none(), "{remarks:?}");
        books.away(None);
        assert!(books.remarks().is_empty());
    }

    #[test]
    fn who_hears_of_no_batch_is_not_well() {
        let books = Books::new(Duration::ZERO, (None, None), None);
        std::thread::sleep(Duration::from_millis(2));
        assert!(books.ill().is_some());
        assert_eq!(Books::new(Duration::from_secs(30), (None, None), None).ill(), None);
    }
}
