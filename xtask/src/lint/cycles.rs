//! Module cycles: two sibling modules of one crate may not use each other, directly or through
//! others.
//!
//! *In*: the sources of each crate. *Out*: each cycle of siblings, with one use for each edge.
//!
//! *Invariant*: at every level the modules of a crate form a directed acyclic graph, so a reader
//! can take them in order. A child may use its parent's items, and a parent its children's: that is
//! one module in several files. Test modules are omitted.
//!
//! *Rejected*: `cargo-modules`, which builds each crate once more to read the same paths.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use anyhow::{Context, Result, bail};

use super::source::{Kind, Token, tokens};

type ModulePath = Vec<String>;

/// A module of a crate and the paths that its file names.
struct Module {
    path: ModulePath,
    file: String,
    /// Absolute paths in the crate, with their lines.
    uses: Vec<(ModulePath, usize)>,
}

/// Uses between siblings: from, to, and where.
type Edges = BTreeMap<String, BTreeMap<String, String>>;

/// Looks for cycles in each crate whose sources are in `files`.
pub(super) fn check(root: &Path, files: &[String]) -> Result<()> {
    let mut crates: BTreeMap<&str, Vec<Module>> = BTreeMap::new();
    for file in files {
        let Some((name, module)) = file.split_once("/src/").filter(|_| file.ends_with(".rs")) else {
            continue;
        };
        let Some(path) = module_path(module) else { continue };
        let text = std::fs::read_to_string(root.join(file)).with_context(|| format!("cannot read {file}"))?;
        let uses = uses(&path, &tokens(&text));
        crates.entry(name).or_default().push(Module { path, file: file.clone(), uses });
    }
    let mut found = Vec::new();
    for (name, modules) in &crates {
        for (parent, edges) in siblings(modules) {
            for circle in circles(&edges) {
                let key = format!(
                    "{name}:{}{}",
                    parent.iter().map(|part| format!("{part}::")).collect::<String>(),
                    circle[0]
                );
                println!("  {key}: {}", circle.join(", "));
                let members: BTreeSet<&String> = circle.iter().collect();
                for (from, to) in edges.iter().filter(|(from, _)| members.contains(from)) {
                    for (to, place) in to.iter().filter(|(to, _)| members.contains(to)) {
                        println!("    {from} uses {to}: {place}");
                    }
                }
                found.push(key);
            }
        }
    }
    if !found.is_empty() {
        bail!("modules use each other in a circle: {}", found.join(", "));
    }
    Ok(())
}

/// Returns the module path of a file: `a::b` for `a/b.rs` and `a/b/mod.rs`; none for a test module
/// or a separate binary.
fn module_path(file: &str) -> Option<ModulePath> {
    let file = file.strip_suffix(".rs")?;
    let mut path: ModulePath = file.split('/').map(str::to_owned).collect();
    if path[0] == "bin" || path.iter().any(|part| part == "tests" || part.ends_with("_tests")) {
        return None;
    }
    if matches!(path.last()?.as_str(), "mod" | "lib" | "main") {
        path.pop();
    }
    Some(path)
}

/// Paths that begin with `crate`, `self` or `super`, absolute, groups of `use` taken apart.
fn uses(module: &[String], tokens: &[Token<'_>]) -> Vec<(ModulePath, usize)> {
    let code: Vec<&Token<'_>> =
        tokens.iter().filter(|token| matches!(token.kind, Kind::Name | Kind::Punctuation)).collect();
    // Unit tests stand at the end of a file, and may use anything.
    let tests = code
        .windows(3)
        .position(|part| matches!(part, [a, b, c] if a.text == "cfg" && b.text == "(" && c.text == "test"));
    let code = &code[..tests.unwrap_or(code.len())];
    let mut found = Vec::new();
    let mut at = 0;
    while at < code.len() {
        let begins = at == 0 || code[at - 1].text != ":";
        let base = match code[at].text {
            "crate" => Some(Vec::new()),
            "self" => Some(module.to_vec()),
            "super" => Some(parent(module)),
            _ => None,
        };
        at += 1;
        if let (true, Some(base)) = (begins, base) {
            at = follow(code, at, base, &mut found);
        }
    }
    found
}

fn parent(module: &[String]) -> ModulePath {
    module[..module.len().saturating_sub(1)].to_vec()
}

/// Reads what follows a path's first part, `path`, and gives the place behind it.
fn follow(
    code: &[&Token<'_>],
    mut at: usize,
    mut path: ModulePath,
    found: &mut Vec<(ModulePath, usize)>,
) -> usize {
    let text = |at: usize| code.get(at).map_or("", |token| token.text);
    let mut line = code.get(at).map_or(0, |token| token.line);
    while text(at) == ":" && text(at + 1) == ":" {
        at += 2;
        match text(at) {
            "super" => {
                path.pop();
                at += 1;
            }
            "{" => {
                at += 1;
                while at < code.len() && text(at) != "}" {
                    if text(at) == "," {
                        at += 1;
                        continue;
                    }
                    let mut inner = path.clone();
                    if text(at) != "self" {
                        inner.push(text(at).to_owned());
                    }
                    at = follow(code, at + 1, inner, found).max(at + 1);
                }
                return at + 1;
            }
            name if code.get(at).is_some_and(|token| token.kind == Kind::Name) => {
                line = code[at].line;
                path.push(name.to_owned());
                at += 1;
            }
            _ => break,
        }
    }
    found.push((path, line));
    at
}

/// Edges between siblings, by their parent.
fn siblings(modules: &[Module]) -> BTreeMap<ModulePath, Edges> {
    let known: BTreeSet<&[String]> = modules.iter().map(|module| module.path.as_slice()).collect();
    let mut all: BTreeMap<ModulePath, Edges> = BTreeMap::new();
    for module in modules {
        for (target, line) in &module.uses {
            let shared = module.path.iter().zip(target).take_while(|(a, b)| a == b).count();
            if shared >= module.path.len() || shared >= target.len() || !known.contains(&target[..=shared]) {
                continue;
            }
            let (from, to) = (module.path[shared].clone(), target[shared].clone());
            let place = format!("{}:{line}", module.file);
            all.entry(target[..shared].to_vec())
                .or_default()
                .entry(from)
                .or_default()
                .entry(to)
                .or_insert(place);
        }
    }
    all
}

/// Sets of two and more that reach each other.
fn circles(edges: &Edges) -> Vec<Vec<String>> {
    let reached = |from: &String| {
        let mut seen = BTreeSet::new();
        let mut next = vec![from];
        while let Some(at) = next.pop() {
            next.extend(
                edges.get(at).into_iter().flat_map(|to| to.keys()).filter(|to| seen.insert((*to).clone())),
            );
        }
        seen
    };
    let reach: BTreeMap<&String, BTreeSet<String>> = edges.keys().map(|from| (from, reached(from))).collect();
    let mut done = BTreeSet::new();
    let mut found = Vec::new();
    for (from, to) in &reach {
        if !to.contains(*from) || done.contains(*from) {
            continue;
        }
        let circle: Vec<String> = to
            .iter()
            .filter(|member| reach.get(member).is_some_and(|back| back.contains(*from)))
            .cloned()
            .collect();
        done.extend(circle.iter().cloned());
        found.push(circle);
    }
    found
}

#[cfg(test)]
mod tests {
    use super::{Module, circles, module_path, siblings, uses};
    use crate::lint::source::tokens;

    fn module(file: &str, text: &str) -> Module {
        let path = module_path(file).expect("a module of the crate");
        let uses = uses(&path, &tokens(text));
        Module { path, file: file.to_owned(), uses }
    }

    fn found(files: &[(&str, &str)]) -> Vec<Vec<String>> {
        let modules: Vec<Module> = files.iter().map(|(file, text)| module(file, text)).collect();
        siblings(&modules).values().flat_map(circles).collect()
    }

    #[test]
    fn siblings_in_a_circle_are_found_through_others() {
        let files = [
            ("main.rs", "mod a; mod b; mod c;"),
            ("a.rs", "use crate::{x::Y, b::{self, B}};"),
            ("b/mod.rs", "fn f() -> super::c::C {}"),
            ("c.rs", "mod d;"),
            ("c/d.rs", "use super::super::a::A;"),
        ];
        assert_eq!(found(&files), [["a", "b", "c"]]);
    }

    #[test]
    fn parents_children_and_tests_are_no_circle() {
        let files = [
            ("lib.rs", "mod a; mod b; pub struct Root;"),
            ("a.rs", "mod c; use self::c::C; use crate::Root;"),
            ("a/c.rs", "use super::A; use crate::b::B;"),
            ("b.rs", "fn f() {}\n#[cfg(test)]\nmod tests { use crate::a::A; }"),
        ];
        assert!(found(&files).is_empty());
    }

    #[test]
    fn siblings_below_the_first_level_count_too() {
        let files = [("x/a.rs", "use super::b::B;"), ("x/b.rs", "use crate::x::a::A;"), ("x.rs", "")];
        assert_eq!(found(&files), [["a", "b"]]);
    }
}
