//! The diagnosis as a table: one line if a check passes, else with reason and remedy below.

use blkkin_report::{Colour, Style};
use blkkin_tracer::attach::attach_probe::ProbeAttempts;
use blkkin_tracer::{AttachKind, ProbeReport, ProbeStatus};

use super::Diagnosis;
use super::check::{Check, CheckStatus};
use super::{kinds, virtual_machines};

/// Columns before the text of a check or probe.
const INDENT: usize = 29;
/// Columns before the note on a probe's attach kinds.
const KINDS_INDENT: usize = 52;
/// Minimum text width for wrapping.
const TEXT_MIN: usize = 30;

pub(super) fn verdict_label(verdict: ProbeStatus) -> &'static str {
    match verdict {
        ProbeStatus::Works => "works",
        ProbeStatus::Missing => "missing",
        ProbeStatus::Refused => "refused",
        ProbeStatus::Unknown => "unknown",
    }
}

pub(super) fn render(diagnosis: &Diagnosis, style: &Style) -> String {
    let mut page = Page { text: String::new(), style };
    page.heading("This machine");
    diagnosis.checks.iter().for_each(|check| page.check(check));
    if !diagnosis.machines.is_empty() {
        page.heading("Virtual machines of QEMU");
    }
    for machine in &diagnosis.machines {
        let (head, images) = virtual_machines::lines(machine);
        page.paragraph(2, &head);
        images.iter().for_each(|image| page.paragraph(4, image));
    }
    page.heading("Probes");
    // A common obstacle is printed once.
    let obstacle = diagnosis.probes.obstacle.as_ref();
    if let Some((reason, remedy)) = obstacle {
        page.entry("", "none was tried", Severity::Fail, reason, remedy);
    }
    diagnosis.probes.probes.iter().for_each(|verdict| page.probe(verdict, obstacle));
    if !diagnosis.probes.faults.is_empty() {
        page.heading("Probes of page faults");
        diagnosis.probes.faults.iter().for_each(|verdict| page.probe(verdict, obstacle));
    }
    if !diagnosis.probes.nbd.is_empty() {
        page.heading("Probes for --nbd only");
        diagnosis.probes.nbd.iter().for_each(|verdict| page.probe(verdict, obstacle));
    }
    if !diagnosis.probes.sleeps.is_empty() {
        page.heading("Probe for --sleeps only");
        diagnosis.probes.sleeps.iter().for_each(|verdict| page.probe(verdict, obstacle));
    }
    if !diagnosis.probes.attempts.is_empty() {
        page.heading("Kinds of probes (--attach)");
        page.kinds(&diagnosis.probes.attempts);
    }
    page.heading("Cost");
    diagnosis.remarks.iter().for_each(|remark| page.paragraph(2, remark));
    page.heading(if diagnosis.works() {
        "Everything that blkkin needs works."
    } else {
        "blkkin cannot trace here."
    });
    page.text.trim_start().to_owned()
}

#[derive(Clone, Copy)]
enum Severity {
    Ok,
    Warn,
    Fail,
}

struct Page<'a> {
    text: String,
    style: &'a Style,
}

impl Page<'_> {
    fn heading(&mut self, title: &str) {
        let title = self.colored("1", title);
        self.text.push_str(&format!("\n{title}\n"));
    }

    fn check(&mut self, check: &Check) {
        let severity = match check.status {
            CheckStatus::Ok => Severity::Ok,
            CheckStatus::Partial | CheckStatus::Unknown => Severity::Warn,
            CheckStatus::Fails => Severity::Fail,
        };
        self.entry(check.status.label(), check.name, severity, &check.found, &check.remedy);
    }

    fn probe(&mut self, verdict: &ProbeReport, obstacle: Option<&(String, String)>) {
        let severity = match verdict.status {
            ProbeStatus::Works => Severity::Ok,
            ProbeStatus::Unknown => Severity::Warn,
            ProbeStatus::Missing | ProbeStatus::Refused => Severity::Fail,
        };
        let kind = verdict.kind.map(|kind| format!(" ({kind})")).unwrap_or_default();
        let probe = verdict.probe;
        let is_obstacle = obstacle.is_some_and(|(reason, _)| *reason == verdict.reason);
        let reason = if is_obstacle || verdict.reason.is_empty() { "" } else { &verdict.reason };
        let separator = if reason.is_empty() { "" } else { ": " };
        let text = format!("{}, {}{kind}: {}{separator}{reason}", probe.layer, verdict.at, probe.observes);
        let remedy = if is_obstacle { "" } else { &verdict.remedy };
        self.entry(verdict_label(verdict.status), probe.name, severity, &text, remedy);
    }

    /// Prints a line for each probe and a column for each attach kind; a reason common to a kind
    /// appears once.
    fn kinds(&mut self, tries: &[ProbeAttempts]) {
        let names = AttachKind::ALL.map(|kind| format!("{:<8}", kind.name())).concat();
        self.text.push_str(&format!("  {:<18}{names}\n", ""));
        for one in tries {
            let results = one.attempts.iter().map(|one| {
                self.colored(kinds::color(one.result), &format!("{:<8}", kinds::label(one.result)))
            });
            let results = results.collect::<String>();
            let lines = self.wrap(KINDS_INDENT, &kinds::note(one));
            let mut lines = lines.iter().map(String::as_str);
            let first = lines.next().unwrap_or_default();
            self.text.push_str(format!("  {:<18}{results}{first}", one.probe.name).trim_end());
            self.text.push('\n');
            for line in lines {
                self.text.push_str(&format!("{:KINDS_INDENT$}{line}\n", ""));
            }
        }
        for refusal in kinds::refusals(tries) {
            self.paragraph(2, &refusal);
        }
    }

    fn entry(&mut self, status: &str, name: &str, severity: Severity, text: &str, remedy: &str) {
        let color = match severity {
            Severity::Ok => "32",
            Severity::Warn => "33",
            Severity::Fail => "31",
        };
        let status = self.colored(color, &format!("{status:<8}"));
        let mut lines = self.wrap(INDENT, text);
        if !remedy.is_empty() {
            lines.extend(self.wrap(INDENT, &format!("try: {remedy}")));
        }
        let (first, rest) = lines.split_first().map_or(("", &[][..]), |(first, rest)| (first.as_str(), rest));
        self.text.push_str(format!("  {status} {name:<17} {first}").trim_end());
        self.text.push('\n');
        for line in rest {
            self.text.push_str(&format!("{:INDENT$}{line}\n", ""));
        }
    }

    fn paragraph(&mut self, indent: usize, text: &str) {
        for line in self.wrap(indent, text) {
            self.text.push_str(&format!("{:indent$}{line}\n", ""));
        }
    }

    fn wrap(&self, indent: usize, text: &str) -> Vec<String> {
        let room = self.style.columns().saturating_sub(indent + 1).max(TEXT_MIN);
        let mut lines: Vec<String> = Vec::new();
        for word in text.split_whitespace() {
            match lines.last_mut() {
                Some(line) if line.chars().count() + 1 + word.chars().count() <= room => {
                    line.push(' ');
                    line.push_str(word);
                }
                _ => lines.push(word.to_owned()),
            }
        }
        lines
    }

    fn colored(&self, code: &str, text: &str) -> String {
        match self.style.colour {
            Colour::Ansi => format!("\x1b[{code}m{text}\x1b[0m"),
            Colour::Never => text.to_owned(),
        }
    }
}
