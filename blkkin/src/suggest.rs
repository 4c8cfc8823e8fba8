//! Suggestions for misspelled names.

/// Maximum edit distance of a suggestion, as a divisor of the name's length. A more distant name is
/// another word, not a typing error.
const DISTANCE_PER_LENGTH: usize = 2;

/// Returns the candidate that begins with `name` (`pread`: `pread64`), else the nearest by edit
/// distance, if it is near enough.
pub(crate) fn suggest<'a>(name: &str, candidates: impl IntoIterator<Item = &'a str>) -> Option<&'a str> {
    let distance_max = (name.len() / DISTANCE_PER_LENGTH).max(1);
    candidates
        .into_iter()
        .map(|candidate| {
            (!candidate.starts_with(name), strsim::damerau_levenshtein(name, candidate), candidate)
        })
        .filter(|(other, distance, _)| !other || *distance <= distance_max)
        .min_by_key(|(other, distance, _)| (*other, *distance))
        .map(|(_, _, candidate)| candidate)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn suggests_prefixes_and_typos_but_not_other_words() {
        let names = ["read", "pread64", "write", "pwrite64", "fsync", "fdatasync"];
        assert_eq!(suggest("raed", names), Some("read"));
        assert_eq!(suggest("pread", names), Some("pread64"));
        assert_eq!(suggest("fdata", names), Some("fdatasync"));
        assert_eq!(suggest("fsnyc", names), Some("fsync"));
        assert_eq!(suggest("connect", names), None);
        assert_eq!(suggest("", []), None);
    }
}
