//! What somebody meant who wrote a name that does not exist.

/// A name further away than this share of its length is not a slip of the hand but another word.
const DISTANCE_PER_LENGTH: usize = 2;

/// What was meant by `name`: a candidate that begins with it (`pread`: `pread64`), else the one that is fewest
/// edits away, if it is near enough.
pub(crate) fn nearest<'a>(name: &str, candidates: impl IntoIterator<Item = &'a str>) -> Option<&'a str> {
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
    fn finds_slips_and_beginnings_but_not_other_words() {
        let names = ["read", "pread64", "write", "pwrite64", "fsync", "fdatasync"];
        assert_eq!(nearest("raed", names), Some("read"));
        assert_eq!(nearest("pread", names), Some("pread64"));
        assert_eq!(nearest("fdata", names), Some("fdatasync"));
        assert_eq!(nearest("fsnyc", names), Some("fsync"));
        assert_eq!(nearest("connect", names), None);
        assert_eq!(nearest("", []), None);
    }
}
