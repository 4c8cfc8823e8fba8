//! Dependencies between services, as Zipkin derives them from spans: the rule of its in-memory
//! store (zipkin2.internal.DependencyLinker), as far as it concerns blkkin's spans.
//!
//! A server span counts as a call by the service of its nearest ancestor that has a kind, or else
//! by its remote service. A client span counts as a call to its remote service only if it has no
//! child; otherwise its child shows the server. A span without a kind counts as no call. A span
//! whose parent is absent (its record was lost) is treated as a child of its trace's root, if that
//! is present (zipkin2.internal.SpanNode).

use std::collections::{BTreeMap, HashMap, HashSet};

use serde_json::Value;

/// Calls by (client service, server service).
pub(crate) type Dependencies = BTreeMap<(String, String), u64>;

/// Counts the dependencies of whole traces in Zipkin's JSON.
pub(crate) fn of(spans: &[Value]) -> Dependencies {
    let key = |span: &Value, id: &str| (span["traceId"].to_string(), span[id].to_string());
    let by_id: HashMap<_, &Value> = spans.iter().map(|span| (key(span, "id"), span)).collect();
    let roots = spans.iter().filter(|span| span["parentId"].is_null());
    let roots: HashMap<String, &Value> = roots.map(|span| (span["traceId"].to_string(), span)).collect();
    let parent = |span: &Value| match span["parentId"].is_null() {
        true => None,
        false => {
            by_id.get(&key(span, "parentId")).or_else(|| roots.get(&span["traceId"].to_string())).copied()
        }
    };
    let parents: HashSet<_> = spans.iter().filter_map(parent).map(|span| key(span, "id")).collect();
    let client = |span: &Value| {
        let mut client = parent(span);
        while let Some(span) = client.filter(|span| span["kind"].is_null()) {
            client = parent(span);
        }
        client.map(|span| service(span, "localEndpoint"))
    };
    let mut dependencies = Dependencies::new();
    for span in spans {
        let (local, remote) = (service(span, "localEndpoint"), service(span, "remoteEndpoint"));
        let dependency = match span["kind"].as_str() {
            Some("SERVER") => Some((client(span).unwrap_or(remote), local)),
            Some("CLIENT") if !parents.contains(&key(span, "id")) => Some((local, remote)),
            _ => None,
        };
        if let Some((caller, callee)) =
            dependency.filter(|(caller, callee)| !caller.is_empty() && !callee.is_empty())
        {
            *dependencies.entry((caller.to_owned(), callee.to_owned())).or_default() += 1;
        }
    }
    dependencies
}

fn service<'a>(span: &'a Value, side: &str) -> &'a str {
    span[side]["serviceName"].as_str().unwrap_or_default()
}
