//! Counts in the lines that aggregators log when they stop.

/// Returns the first numbers of a stage's line: partitions, then counts in the order of the line. `output` is that of all
/// members, in the order in which they stopped. The counts are of the partitions' states: those of a member that ended
/// first are in the lines of both if another one has taken its partitions over.
pub(crate) fn summary_counts(output: &str, stage: &str, partitions: u64) -> Vec<u64> {
    let begin = format!("{stage}: ");
    let counts = |line: &str| -> Option<Vec<u64>> {
        let (_, counts) = line.split_once(&begin)?;
        let (first, _) = counts.split_once(" partitions, ")?;
        first.parse::<u64>().ok()?;
        Some(counts.split([' ', ';']).filter_map(|word| word.parse().ok()).collect())
    };
    let lines: Vec<Vec<u64>> = output.lines().filter_map(counts).collect();
    let last = lines.last().unwrap_or_else(|| panic!("no line of {stage}: {output}"));
    if last[0] == partitions {
        return last.clone();
    }
    assert_eq!(lines.iter().map(|line| line[0]).sum::<u64>(), partitions, "{stage}: {output}");
    let length = lines.iter().map(Vec::len).min().unwrap();
    (0..length).map(|n| lines.iter().map(|line| line[n]).sum()).collect()
}

#[test]
fn counts_are_of_all_partitions_once() {
    let line = |partitions: u64, count: u64| {
        format!("blkkin: join: {partitions} partitions, {count} events = 1 joined\n")
    };
    let summed = [line(6, 10), line(6, 20)].concat();
    assert_eq!(summary_counts(&summed, "join", 12), [12, 30, 2]);
    let taken_over = [line(6, 10), line(12, 30)].concat();
    assert_eq!(summary_counts(&taken_over, "join", 12), [12, 30, 1]);
}
