//! Durations of a task's steps, measured as they run and listed at the end.

use std::time::{Duration, Instant};

/// Steps of one task, in the order in which they ran.
#[derive(Default)]
pub(crate) struct Timings {
    steps: Vec<(String, Duration)>,
}

impl Timings {
    /// Runs `step` and records its duration, even if it fails.
    pub(crate) fn time<T>(&mut self, name: &str, step: impl FnOnce() -> T) -> T {
        let start = Instant::now();
        let result = step();
        self.steps.push((name.to_owned(), start.elapsed()));
        result
    }

    /// Formats `set-up 0.1 s, build 12.0 s, …; 12.1 s in all`.
    pub(crate) fn summary(&self) -> String {
        let total: Duration = self.steps.iter().map(|(_, time)| *time).sum();
        let each: Vec<String> =
            self.steps.iter().map(|(name, time)| format!("{name} {}", seconds(*time))).collect();
        format!("{}; {} in all", each.join(", "), seconds(total))
    }
}

/// Formats a duration in seconds.
pub(crate) fn seconds(time: Duration) -> String {
    format!("{:.1} s", time.as_secs_f64())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn summary_lists_steps_in_order_and_their_sum() {
        let steps = vec![
            ("set-up".to_owned(), Duration::from_millis(1500)),
            ("build".to_owned(), Duration::from_secs(2)),
        ];
        assert_eq!(Timings { steps }.summary(), "set-up 1.5 s, build 2.0 s; 3.5 s in all");
    }
}
