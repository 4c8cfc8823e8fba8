//! Values of settings, as the agent resolves its options.

use blkkin_tracer::capture::CaptureSettings;

use super::protocol::RecordingSettings;
use crate::cli::FilterArgs;
use crate::error::CliError;
use crate::filter::{keep, sampling};

/// Most rules that a client may set.
pub(super) const RULES_MAX: usize = 64;

/// Resolves settings, and writes them in their usual form. `filter` has the options of the agent's start, which some
/// rules contradict.
pub(crate) fn resolve(
    settings: &mut RecordingSettings,
    filter: &FilterArgs,
    disks: keep::Disks,
) -> Result<CaptureSettings, CliError> {
    let sample = sampling::ratio(&settings.sample)?;
    if settings.keep.len() > RULES_MAX {
        return Err(CliError::usage(
            format!("{} rules for --keep", settings.keep.len()),
            format!("blkkin ctl takes at most {RULES_MAX}"),
            "groups: read, write, sync",
        ));
    }
    let keep = keep::rules(&FilterArgs { keep: settings.keep.clone(), ..filter.clone() }, disks)?;
    let budget = settings.budget.as_deref().map(sampling::budget).transpose()?;
    settings.sample = format!("1/{}", sample.one_in());
    settings.keep.iter_mut().for_each(|rule| *rule = rule.trim().to_owned());
    settings.budget = budget.map(|budget| format!("{}%", budget.share() * 100.0));
    Ok(CaptureSettings { is_paused: !settings.recording, sample, keep, budget })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::filter::keep::Disks::Present;

    #[test]
    fn settings_are_resolved_as_options_are() {
        let filter = FilterArgs::default();
        let settings = |sample: &str, keep: &[&str]| RecordingSettings {
            recording: false,
            sample: sample.into(),
            keep: keep.iter().map(|rule| (*rule).to_owned()).collect(),
            budget: None,
        };
        let mut all =
            RecordingSettings { budget: Some("1.0%".into()), ..settings("1/064", &[" 10ms", "failed"]) };
        let resolved = resolve(&mut all, &filter, Present).unwrap();
        assert_eq!((resolved.is_paused, resolved.sample.one_in(), resolved.keep.len()), (true, 64, 2));
        assert_eq!((&*all.sample, &*all.keep[0], all.budget.as_deref()), ("1/64", "10ms", Some("1%")));
        assert!(
            resolve(&mut settings("1/3", &[]), &filter, Present).unwrap_err().why.contains("power of two")
        );
        let rules = |rules: &[&str]| resolve(&mut settings("1/1", rules), &filter, Present).unwrap_err();
        assert_eq!(rules(&["fsnyc>1ms"]).remedy, "--keep 'fsync>1ms'");
        assert!(rules(&["1ms"; 65]).why.contains("at most 64"));
        let slow = FilterArgs { slower_than: Some("1ms".into()), ..FilterArgs::default() };
        let refused = resolve(&mut settings("1/1", &["1ms"]), &slow, Present).unwrap_err();
        assert!(refused.what.contains("--slower-than"));
    }
}
