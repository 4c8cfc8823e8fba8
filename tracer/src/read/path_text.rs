//! Text of a file's path, from the components that the kernel side recorded.
//!
//! *In*: components, leaf first, each with a NUL behind it. *Out*: a path as text.
//!
//! *Invariant*: two names never have the same text. A name is any bytes but NUL and `/`; text is
//! UTF-8. Each byte that is not part of valid UTF-8 becomes `\xNN`, with its value in lower-case
//! hexadecimal digits, at least `\x80`. A backslash becomes `\x5c` where the text behind it would
//! read as such an escape. Other backslashes stay: systemd's unit names (`dev-disk\x2dby`) are not
//! changed.
//!
//! *Rejected*: U+FFFD for such bytes, by which different names become one.

/// Prefix of a path, before its first component.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum PathStart {
    /// The root of the host.
    Root,
    /// The root of a file system that was unmounted.
    Unmounted,
    /// Directories that are not recorded.
    Unknown,
    /// No prefix: a pipe, socket or anonymous inode has only a name.
    NameOnly,
}

/// Returns the path of these components.
pub(super) fn path(leaf_first: &[u8], start: PathStart) -> String {
    let mut text = String::with_capacity(leaf_first.len() + 16);
    text.push_str(match start {
        PathStart::Root => "/",
        PathStart::Unmounted => "(unmounted)/",
        PathStart::Unknown => "…/",
        PathStart::NameOnly => "",
    });
    let begin = text.len();
    for component in leaf_first.rsplit(|byte| *byte == 0).filter(|component| !component.is_empty()) {
        // The root dentry's name is `/` itself, where it is the whole path.
        if component == b"/" && start != PathStart::NameOnly {
            continue;
        }
        if text.len() > begin {
            text.push('/');
        }
        push_escaped(&mut text, component);
    }
    text
}

/// Appends a component, escaped.
fn push_escaped(text: &mut String, component: &[u8]) {
    for chunk in component.utf8_chunks() {
        let mut rest = chunk.valid();
        while let Some(at) = rest.find('\\') {
            text.push_str(&rest[..at]);
            text.push_str(if reads_as_escape(&rest.as_bytes()[at + 1..]) { "\\x5c" } else { "\\" });
            rest = &rest[at + 1..];
        }
        text.push_str(rest);
        for byte in chunk.invalid() {
            text.push_str("\\x");
            for digit in [byte >> 4, byte & 0xf] {
                text.push(char::from_digit(digit.into(), 16).unwrap_or_default());
            }
        }
    }
}

/// Returns whether a backslash before this text would make it an escape: of a byte that is not
/// ASCII, or of the backslash.
fn reads_as_escape(behind: &[u8]) -> bool {
    matches!(behind, [b'x', b'8' | b'9' | b'a'..=b'f', b'0'..=b'9' | b'a'..=b'f', ..] | [b'x', b'5', b'c', ..])
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn path_is_assembled_from_leaf_first_components() {
        assert_eq!(path(b"c\0b\0a\0", PathStart::Root), "/a/b/c");
        assert_eq!(path(b"c\0b\0", PathStart::Unknown), "…/b/c");
        assert_eq!(path(b"c\0b\0", PathStart::Unmounted), "(unmounted)/b/c");
        assert_eq!(path(b"/\0", PathStart::Root), "/");
        assert_eq!(path(b"\0", PathStart::Root), "/");
        assert_eq!(path(b"[eventpoll]\0", PathStart::NameOnly), "[eventpoll]");
    }

    #[test]
    fn bytes_that_are_not_utf8_are_escaped() {
        let text = |name: &[u8]| path(&[name, b"\0"].concat(), PathStart::Root);
        assert_eq!(text(b"caf\xe9"), r"/caf\xe9");
        assert_eq!(text(br"caf\xe9"), r"/caf\x5cxe9");
        assert_eq!(text(br"caf\x5cxe9"), r"/caf\x5cx5cxe9");
        assert_eq!(text(br"dev-disk\x2dby"), r"/dev-disk\x2dby");
        assert_eq!(text("käse\u{fffd}".as_bytes()), "/käse\u{fffd}");
    }

    /// Reads an escaped component.
    fn unescape(text: &str) -> Vec<u8> {
        let (mut bytes, mut rest) = (Vec::new(), text.as_bytes());
        while let Some((&first, behind)) = rest.split_first() {
            if first == b'\\' && reads_as_escape(behind) {
                bytes.push(u8::from_str_radix(std::str::from_utf8(&behind[1..3]).unwrap(), 16).unwrap());
                rest = &behind[3..];
            } else {
                bytes.push(first);
                rest = behind;
            }
        }
        bytes
    }

    proptest! {
        #[test]
        fn every_name_can_be_read_back(
            name in proptest::collection::vec(prop_oneof![Just(b'\\'), Just(b'x'), Just(b'5'), Just(b'c'), 1u8..=255], 1..12)
        ) {
            prop_assume!(!name.contains(&b'/'));
            let text = path(&[&name[..], b"\0"].concat(), PathStart::NameOnly);
            prop_assert_eq!(unescape(&text), name);
        }
    }
}
