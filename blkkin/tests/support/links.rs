//! Who asks whom, as Zipkin finds it out of spans: the rule of its store in memory (zipkin2.internal.DependencyLinker), as far
//! as our spans have to do with it.
//!
//! A server's span is a link from the nearest span above that has a side; without one, from its remote service. A client's is a
//! link to its remote service only where nothing is below it: else what is below says who was asked. A span without a side is
//! none. What hangs below a span that is not there (its record was lost) is hung below the root of its trace, if that is there
//! (zipkin2.internal.SpanNode).

use std::collections::{BTreeMap, HashMap, HashSet};

use serde_json::Value;

/// How often who asked whom.
pub(crate) type Links = BTreeMap<(String, String), u64>;

/// The links of these spans in Zipkin's own JSON, which are whole traces.
pub(crate) fn of(spans: &[Value]) -> Links {
    let key = |span: &Value, id: &str| (span["traceId"].to_string(), span[id].to_string());
    let by_id: HashMap<_, &Value> = spans.iter().map(|span| (key(span, "id"), span)).collect();
    let roots = spans.iter().filter(|span| span["parentId"].is_null());
    let roots: HashMap<String, &Value> = roots.map(|span| (span["traceId"].to_string(), span)).collect();
    let above = |span: &Value| match span["parentId"].is_null() {
        true => None,
        false => {
            by_id.get(&key(span, "parentId")).or_else(|| roots.get(&span["traceId"].to_string())).copied()
        }
    };
    let asked: HashSet<_> = spans.iter().filter_map(above).map(|span| key(span, "id")).collect();
    let asker = |span: &Value| {
        let mut asker = above(span);
        while let Some(span) = asker.filter(|span| span["kind"].is_null()) {
            asker = above(span);
        }
        asker.map(|span| name(span, "localEndpoint"))
    };
    let mut links = Links::new();
    for span in spans {
        let (own, remote) = (name(span, "localEndpoint"), name(span, "remoteEndpoint"));
        let link = match span["kind"].as_str() {
            Some("SERVER") => Some((asker(span).unwrap_or(remote), own)),
            Some("CLIENT") if !asked.contains(&key(span, "id")) => Some((own, remote)),
            _ => None,
        };
        if let Some((one, other)) = link.filter(|(one, other)| !one.is_empty() && !other.is_empty()) {
            *links.entry((one.to_owned(), other.to_owned())).or_default() += 1;
        }
    }
    links
}

fn name<'a>(span: &'a Value, side: &str) -> &'a str {
    span[side]["serviceName"].as_str().unwrap_or_default()
}
