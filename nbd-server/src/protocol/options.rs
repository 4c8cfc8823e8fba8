//! Data of the client's options ("Option types").
//!
//! *In*: the complete data of one option. *Out*: its fields, or none if they do not fill the data
//! exactly. *Invariant*: every length in the data is compared with the bytes that are present.

use super::u32_at;

/// Data of `NBD_OPT_INFO` and `NBD_OPT_GO`: the export and the requested information types.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct InfoRequest<'a> {
    pub(super) name: &'a [u8],
    pub(super) types: Vec<u16>,
}

/// Data of `NBD_OPT_LIST_META_CONTEXT` and `NBD_OPT_SET_META_CONTEXT`: the export and the queries
/// for metadata contexts.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct MetaContexts<'a> {
    pub(super) name: &'a [u8],
    pub(super) queries: Vec<&'a [u8]>,
}

impl<'a> InfoRequest<'a> {
    pub(super) fn decode(data: &'a [u8]) -> Option<Self> {
        let mut rest = data;
        let name = read_string(&mut rest)?;
        let count = u16::from_be_bytes(*rest.first_chunk()?);
        let (types, odd) = rest[2..].as_chunks();
        let exact = odd.is_empty() && types.len() == usize::from(count);
        exact.then(|| Self { name, types: types.iter().map(|number| u16::from_be_bytes(*number)).collect() })
    }
}

impl<'a> MetaContexts<'a> {
    pub(super) fn decode(data: &'a [u8]) -> Option<Self> {
        let mut rest = data;
        let name = read_string(&mut rest)?;
        let count = read_u32(&mut rest)?;
        // A query takes 4 bytes or more, so the data limits the capacity and not the count.
        let mut queries = Vec::with_capacity(rest.len().min(4 * count as usize) / 4);
        for _ in 0..count {
            queries.push(read_string(&mut rest)?);
        }
        rest.is_empty().then_some(Self { name, queries })
    }
}

fn read_u32(rest: &mut &[u8]) -> Option<u32> {
    let number = rest.get(..4).map(|bytes| u32_at(bytes, 0))?;
    *rest = &rest[4..];
    Some(number)
}

fn read_string<'a>(rest: &mut &'a [u8]) -> Option<&'a [u8]> {
    let length = read_u32(rest)? as usize;
    let (string, after) = rest.split_at_checked(length)?;
    *rest = after;
    Some(string)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn encode_string(text: &[u8]) -> Vec<u8> {
        [&(text.len() as u32).to_be_bytes(), text].concat()
    }

    proptest! {
        #[test]
        fn fields_round_trip_and_other_lengths_are_refused(
            name in prop::collection::vec(any::<u8>(), 0..40),
            types in prop::collection::vec(any::<u16>(), 0..5),
            queries in prop::collection::vec(prop::collection::vec(any::<u8>(), 0..20), 0..5),
            cut in any::<prop::sample::Index>(),
        ) {
            let mut info = encode_string(&name);
            info.extend((types.len() as u16).to_be_bytes());
            info.extend(types.iter().flat_map(|number| number.to_be_bytes()));
            let mut contexts = encode_string(&name);
            contexts.extend((queries.len() as u32).to_be_bytes());
            contexts.extend(queries.iter().flat_map(|query| encode_string(query)));
            prop_assert_eq!(InfoRequest::decode(&info[..cut.index(info.len())]), None);
            prop_assert_eq!(MetaContexts::decode(&contexts[..cut.index(contexts.len())]), None);
            let longer = [&info, &contexts].map(|data| [&data[..], b"x"].concat());
            prop_assert_eq!(InfoRequest::decode(&longer[0]), None);
            prop_assert_eq!(MetaContexts::decode(&longer[1]), None);
            prop_assert_eq!(InfoRequest::decode(&info), Some(InfoRequest { name: &name, types }));
            let queries: Vec<&[u8]> = queries.iter().map(Vec::as_slice).collect();
            prop_assert_eq!(MetaContexts::decode(&contexts), Some(MetaContexts { name: &name, queries }));
        }

        #[test]
        fn any_bytes_decode_to_an_option_or_none(data in prop::collection::vec(any::<u8>(), 0..200), small in 0..8_u32) {
            // Random lengths seldom fit the data: `likely` begins with a small one.
            let likely = [&small.to_be_bytes()[..], &data].concat();
            for data in [&data, &likely] {
                let _ = InfoRequest::decode(data);
                let _ = MetaContexts::decode(data);
            }
        }
    }
}
