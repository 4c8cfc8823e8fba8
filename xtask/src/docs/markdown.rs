//! Links, anchors and inline code of Markdown.
//!
//! *In*: the text of a page. *Out*: its links, with the place of each target in the text, and the anchors of its headings.

use std::collections::{HashMap, HashSet};
use std::ops::Range;

use pulldown_cmark::{Event, Options, Parser, Tag, TagEnd};

/// A link or an image to a place that is not on another host.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Link {
    /// Target as it is written: `other.md#anchor`.
    pub(crate) target: String,
    /// The target's bytes in the text.
    pub(crate) place: Range<usize>,
}

/// Finds the links and images that are no URLs.
pub(crate) fn links(markdown: &str) -> Vec<Link> {
    let mut found = Vec::new();
    for (event, range) in Parser::new_ext(markdown, Options::ENABLE_TABLES).into_offset_iter() {
        let (Event::Start(Tag::Link { dest_url, .. }) | Event::Start(Tag::Image { dest_url, .. })) = event
        else {
            continue;
        };
        if dest_url.contains("://") || dest_url.starts_with("mailto:") {
            continue;
        }
        // The text of a link is in front of its target, and may contain it. A target that is defined elsewhere has no place
        // here, so it is not rewritten.
        let start = markdown[range.clone()].rfind(&*dest_url).map_or(range.end, |at| range.start + at);
        let end = (start + dest_url.len()).min(range.end);
        found.push(Link { target: dest_url.to_string(), place: start..end });
    }
    found
}

/// Returns the texts between backticks, without blocks.
pub(crate) fn code(markdown: &str) -> Vec<String> {
    let events = Parser::new_ext(markdown, Options::ENABLE_TABLES);
    events
        .filter_map(|event| if let Event::Code(text) = event { Some(text.to_string()) } else { None })
        .collect()
}

/// Returns the anchors of a page's headings, as GitHub and mdBook form them.
pub(crate) fn anchors(markdown: &str) -> HashSet<String> {
    let mut titles = Vec::new();
    let mut title: Option<String> = None;
    for event in Parser::new_ext(markdown, Options::ENABLE_TABLES) {
        match event {
            Event::Start(Tag::Heading { .. }) => title = Some(String::new()),
            Event::End(TagEnd::Heading(_)) => titles.extend(title.take()),
            Event::Text(text) | Event::Code(text) => {
                if let Some(title) = &mut title {
                    title.push_str(&text);
                }
            }
            _ => {}
        }
    }
    let mut used = HashMap::<String, usize>::new();
    let mut anchor = |title: &String| {
        let name: String = title.to_lowercase().chars().filter_map(anchor_char).collect();
        let count = used.entry(name.clone()).or_default();
        *count += 1;
        if *count == 1 { name } else { format!("{name}-{}", *count - 1) }
    };
    titles.iter().map(&mut anchor).collect()
}

fn anchor_char(character: char) -> Option<char> {
    match character {
        ' ' => Some('-'),
        kept if kept.is_alphanumeric() || kept == '-' || kept == '_' => Some(kept),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn links_are_found_with_their_places() {
        let text = "[a.md](a.md#b), ![p](x/p.png) and [far](https://x/y.md), `[c](c.md)`\n\n| t |\n|---|\n| [d](d.md) |\n";
        let found = links(text);
        let targets: Vec<&str> = found.iter().map(|link| &*link.target).collect();
        assert_eq!(targets, ["a.md#b", "x/p.png", "d.md"]);
        assert!(found.iter().all(|link| text[link.place.clone()] == link.target));
        assert_eq!(found[0].place.start, 7);
    }

    #[test]
    fn anchors_are_those_of_the_headings() {
        let expected = ["whose-thread-an-event-may-name", "--to-zipkin-otlp", "again", "again-1"];
        let text = "# Whose thread an event may name?\n## `--to`: Zipkin, OTLP\n## Again\n## Again\n";
        assert_eq!(anchors(text), expected.map(str::to_owned).into());
    }
}
