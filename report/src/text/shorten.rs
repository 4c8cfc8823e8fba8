//! Texts that are too long, cut where they say least.

use super::line::{prefix, suffix, width};

/// A path cut in the middle: its end names the file and its beginning the file system, what lies between is
/// what a reader misses least. The end gets two thirds.
pub fn path(text: &str, columns: usize) -> String {
    if width(text) <= columns {
        return text.to_owned();
    }
    let room = columns.saturating_sub(1);
    let end = suffix(text, room - room / 3);
    let begin = prefix(text, room - width(end));
    format!("{begin}…{end}")
}

/// Any other text, cut at its end.
pub fn end(text: &str, columns: usize) -> String {
    if width(text) <= columns {
        return text.to_owned();
    }
    format!("{}…", prefix(text, columns.saturating_sub(1)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_path_keeps_both_ends() {
        assert_eq!(path("/mnt/demo/a.db", 20), "/mnt/demo/a.db");
        let long = "/srv/storage/tenants/0001/databases/main/a.db";
        assert_eq!(path(long, 22), "/srv/st…ases/main/a.db");
        for columns in 1..50 {
            assert!(width(&path(long, columns)) <= columns);
            assert!(width(&end(long, columns)) <= columns);
        }
    }

    #[test]
    fn wide_characters_never_overflow() {
        for columns in 1..20 {
            assert!(width(&path("/データ/ベース/ファイル", columns)) <= columns);
        }
    }
}
