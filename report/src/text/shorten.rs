//! Truncation of long texts.

use super::line::{prefix, suffix, width};

/// Cuts a path in the middle: its start shows the file system and its end the file. The end gets
/// two thirds of the columns.
pub fn path(text: &str, columns: usize) -> String {
    if width(text) <= columns {
        return text.to_owned();
    }
    let room = columns.saturating_sub(1);
    let end = suffix(text, room - room / 3);
    let begin = prefix(text, room - width(end));
    format!("{begin}…{end}")
}

/// Cuts any other text at its end.
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
