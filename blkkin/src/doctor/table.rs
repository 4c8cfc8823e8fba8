//! The diagnosis for a person: what is fine in a line, what is not with its reason and remedy below.

use blkkin_report::{Colour, Style};
use blkkin_tracer::tries::Tries;
use blkkin_tracer::{AttachKind, ProbeVerdict, Verdict};

use super::Diagnosis;
use super::check::{Check, Standing};
use super::kinds;

/// Columns before the text of a check or probe.
const INDENT: usize = 29;
/// Columns before the remark on a probe's kinds.
const KINDS_INDENT: usize = 52;
/// Narrower than this words are not wrapped any more.
const TEXT_MIN: usize = 30;

pub(super) fn word(verdict: Verdict) -> &'static str {
    match verdict {
        Verdict::Works => "works",
        Verdict::Missing => "missing",
        Verdict::Refused => "refused",
        Verdict::Unknown => "unknown",
    }
}

pub(super) fn render(diagnosis: &Diagnosis, style: &Style) -> String {
    let mut page = Page { text: String::new(), style };
    page.heading("This machine");
    diagnosis.checks.iter().for_each(|check| page.check(check));
    page.heading("Probes");
    // What stands in the way of all of them is said once.
    let obstacle = diagnosis.probes.obstacle.as_ref();
    if let Some((reason, remedy)) = obstacle {
        page.entry("", "none was tried", Mood::Bad, reason, remedy);
    }
    diagnosis.probes.probes.iter().for_each(|verdict| page.probe(verdict, obstacle));
    if !diagnosis.probes.nbd.is_empty() {
        page.heading("Probes that --nbd adds, and nothing else needs");
        diagnosis.probes.nbd.iter().for_each(|verdict| page.probe(verdict, obstacle));
    }
    if !diagnosis.probes.tries.is_empty() {
        page.heading("Kinds of probes (--attach)");
        page.kinds(&diagnosis.probes.tries);
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
enum Mood {
    Good,
    Doubtful,
    Bad,
}

struct Page<'a> {
    text: String,
    style: &'a Style,
}

impl Page<'_> {
    fn heading(&mut self, words: &str) {
        let words = self.ink("1", words);
        self.text.push_str(&format!("\n{words}\n"));
    }

    fn check(&mut self, check: &Check) {
        let mood = match check.standing {
            Standing::Fine => Mood::Good,
            Standing::Partly | Standing::Unknown => Mood::Doubtful,
            Standing::Fails => Mood::Bad,
        };
        self.entry(check.standing.word(), check.name, mood, &check.found, &check.remedy);
    }

    fn probe(&mut self, verdict: &ProbeVerdict, obstacle: Option<&(String, String)>) {
        let mood = match verdict.verdict {
            Verdict::Works => Mood::Good,
            Verdict::Unknown => Mood::Doubtful,
            Verdict::Missing | Verdict::Refused => Mood::Bad,
        };
        let kind = verdict.kind.map(|kind| format!(" ({kind})")).unwrap_or_default();
        let probe = verdict.probe;
        let told = obstacle.is_some_and(|(reason, _)| *reason == verdict.reason);
        let reason = if told || verdict.reason.is_empty() { "" } else { &verdict.reason };
        let separator = if reason.is_empty() { "" } else { ": " };
        let text = format!("{}, {}{kind}: {}{separator}{reason}", probe.layer, verdict.at, probe.shows);
        let remedy = if told { "" } else { &verdict.remedy };
        self.entry(word(verdict.verdict), probe.name, mood, &text, remedy);
    }

    /// A line a probe, a column a kind; what the kernel says to all of a kind is said once.
    fn kinds(&mut self, tries: &[Tries]) {
        let names = AttachKind::ALL.map(|kind| format!("{:<8}", kind.name())).concat();
        self.text.push_str(&format!("  {:<18}{names}\n", ""));
        for one in tries {
            let words = one
                .tries
                .iter()
                .map(|one| self.ink(kinds::ink(one.tried), &format!("{:<8}", kinds::word(one.tried))));
            let words = words.collect::<String>();
            let lines = self.wrap(KINDS_INDENT, &kinds::remark(one));
            let mut lines = lines.iter().map(String::as_str);
            let first = lines.next().unwrap_or_default();
            self.text.push_str(format!("  {:<18}{words}{first}", one.probe.name).trim_end());
            self.text.push('\n');
            for line in lines {
                self.text.push_str(&format!("{:KINDS_INDENT$}{line}\n", ""));
            }
        }
        for refusal in kinds::refusals(tries) {
            self.paragraph(2, &refusal);
        }
    }

    fn entry(&mut self, standing: &str, name: &str, mood: Mood, text: &str, remedy: &str) {
        let color = match mood {
            Mood::Good => "32",
            Mood::Doubtful => "33",
            Mood::Bad => "31",
        };
        let standing = self.ink(color, &format!("{standing:<8}"));
        let mut lines = self.wrap(INDENT, text);
        if !remedy.is_empty() {
            lines.extend(self.wrap(INDENT, &format!("try: {remedy}")));
        }
        let (first, rest) = lines.split_first().map_or(("", &[][..]), |(first, rest)| (first.as_str(), rest));
        self.text.push_str(format!("  {standing} {name:<17} {first}").trim_end());
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

    fn ink(&self, code: &str, words: &str) -> String {
        match self.style.colour {
            Colour::Ansi => format!("\x1b[{code}m{words}\x1b[0m"),
            Colour::Never => words.to_owned(),
        }
    }
}
