//! What a client says in an option ("Option types").
//!
//! *In*: an option's data, whole. *Out*: its fields, or nothing where they do not fill it exactly. *Invariant*: every length
//! in it is compared with what is there.

use super::u32_at;

/// `NBD_OPT_INFO` and `NBD_OPT_GO`: for which export, and what is asked of it besides.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Info<'a> {
    pub(super) name: &'a [u8],
    pub(super) asked: Vec<u16>,
}

/// `NBD_OPT_LIST_META_CONTEXT` and `NBD_OPT_SET_META_CONTEXT`: for which export, which contexts.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Contexts<'a> {
    pub(super) name: &'a [u8],
    pub(super) queries: Vec<&'a [u8]>,
}

impl<'a> Info<'a> {
    pub(super) fn decode(data: &'a [u8]) -> Option<Self> {
        let mut rest = data;
        let name = string(&mut rest)?;
        let count = u16::from_be_bytes(*rest.first_chunk()?);
        let (asked, odd) = rest[2..].as_chunks();
        let exact = odd.is_empty() && asked.len() == usize::from(count);
        exact.then(|| Self { name, asked: asked.iter().map(|number| u16::from_be_bytes(*number)).collect() })
    }
}

impl<'a> Contexts<'a> {
    pub(super) fn decode(data: &'a [u8]) -> Option<Self> {
        let mut rest = data;
        let name = string(&mut rest)?;
        let count = number(&mut rest)?;
        // One has a length at least: so many as are said need not be there.
        let mut queries = Vec::with_capacity(rest.len().min(4 * count as usize) / 4);
        for _ in 0..count {
            queries.push(string(&mut rest)?);
        }
        rest.is_empty().then_some(Self { name, queries })
    }
}

fn number(rest: &mut &[u8]) -> Option<u32> {
    let number = rest.get(..4).map(|bytes| u32_at(bytes, 0))?;
    *rest = &rest[4..];
    Some(number)
}

fn string<'a>(rest: &mut &'a [u8]) -> Option<&'a [u8]> {
    let length = number(rest)? as usize;
    let (string, after) = rest.split_at_checked(length)?;
    *rest = after;
    Some(string)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn string_of(text: &[u8]) -> Vec<u8> {
        [&(text.len() as u32).to_be_bytes(), text].concat()
    }

    proptest! {
        #[test]
        fn fields_are_read_back_and_no_other_length_is_taken(
            name in prop::collection::vec(any::<u8>(), 0..40),
            asked in prop::collection::vec(any::<u16>(), 0..5),
            queries in prop::collection::vec(prop::collection::vec(any::<u8>(), 0..20), 0..5),
            cut in any::<prop::sample::Index>(),
        ) {
            let mut info = string_of(&name);
            info.extend((asked.len() as u16).to_be_bytes());
            info.extend(asked.iter().flat_map(|number| number.to_be_bytes()));
            let mut contexts = string_of(&name);
            contexts.extend((queries.len() as u32).to_be_bytes());
            contexts.extend(queries.iter().flat_map(|query| string_of(query)));
            prop_assert_eq!(Info::decode(&info[..cut.index(info.len())]), None);
            prop_assert_eq!(Contexts::decode(&contexts[..cut.index(contexts.len())]), None);
            let longer = [&info, &contexts].map(|data| [&data[..], b"x"].concat());
            prop_assert_eq!(Info::decode(&longer[0]), None);
            prop_assert_eq!(Contexts::decode(&longer[1]), None);
            prop_assert_eq!(Info::decode(&info), Some(Info { name: &name, asked }));
            let queries: Vec<&[u8]> = queries.iter().map(Vec::as_slice).collect();
            prop_assert_eq!(Contexts::decode(&contexts), Some(Contexts { name: &name, queries }));
        }

        #[test]
        fn any_bytes_are_an_option_or_none(data in prop::collection::vec(any::<u8>(), 0..200), small in 0..8_u32) {
            // Lengths that fit are rare among random ones.
            let likely = [&small.to_be_bytes()[..], &data].concat();
            for data in [&data, &likely] {
                let _ = Info::decode(data);
                let _ = Contexts::decode(data);
            }
        }
    }
}
