//! Types become plans: names that a variant or sequence refers to are resolved here, once.
//!
//! A name is looked for among the fields before it, from the innermost braces outwards, then in the scopes before its
//! own (specification section 7.3.2); with a scope's name before it, there.

use std::sync::Arc;

use super::plan::{Info, IntNode, Node, Plan, Role, What};
use super::types::{Field, Int, Kind, Labels, Order, Path, Type, shown};

/// Nodes that one plan may have; LTTng's largest event has some 30.
const NODES_MAX: usize = 8192;

/// The dynamic scopes, in the order in which they are read.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Root {
    PacketHeader,
    PacketContext,
    EventHeader,
    StreamContext,
    EventContext,
    Fields,
}

const ROOTS: [(&str, Root); 6] = [
    ("trace.packet.header", Root::PacketHeader),
    ("stream.packet.context", Root::PacketContext),
    ("stream.event.header", Root::EventHeader),
    ("stream.event.context", Root::StreamContext),
    ("event.context", Root::EventContext),
    ("event.fields", Root::Fields),
];

/// What was compiled under a name.
#[derive(Clone, Debug)]
enum Seen {
    Number { register: u16, signed: bool, labels: Option<Arc<Labels>> },
    Inner(Names),
    Other,
}

type Names = Vec<(Arc<str>, Seen)>;

/// What is known when the next scope is compiled.
#[derive(Clone, Debug)]
pub(crate) struct Resolver {
    order: Order,
    /// Numbers mapped to this clock set the time; the first that is met decides.
    pub(crate) clock: Option<Arc<str>>,
    roots: [Option<Names>; 6],
    registers: u16,
}

impl Resolver {
    pub(crate) fn new(order: Order) -> Self {
        Self { order, clock: None, roots: Default::default(), registers: 0 }
    }

    /// Compiles the structure of one scope.
    pub(crate) fn plan(&mut self, root: Root, of: &Type) -> Result<Plan, String> {
        let Kind::Struct(fields) = &of.kind else { return Err(format!("{root:?} is no structure")) };
        let mut scope = Compiler { resolver: self, root, frames: Vec::new(), infos: Vec::new(), nodes: 0 };
        let (fields, names) = scope.fields(fields)?;
        let infos = scope.infos;
        self.roots[root as usize] = Some(names);
        Ok(Plan { align: of.align, fields, infos, registers: usize::from(self.registers) })
    }
}

struct Compiler<'r> {
    resolver: &'r mut Resolver,
    root: Root,
    frames: Vec<Names>,
    infos: Vec<Info>,
    nodes: usize,
}

impl Compiler<'_> {
    fn fields(&mut self, fields: &[Field]) -> Result<(Vec<Node>, Names), String> {
        self.frames.push(Names::new());
        let mut nodes = Vec::with_capacity(fields.len());
        for field in fields {
            let (node, seen) = self.node(&field.name, &field.of)?;
            nodes.push(node);
            if let Some(frame) = self.frames.last_mut() {
                frame.push((field.name.clone(), seen));
            }
        }
        Ok((nodes, self.frames.pop().unwrap_or_default()))
    }

    fn info(&mut self, name: &str, what: What) -> Result<u32, String> {
        self.nodes += 1;
        if self.nodes > NODES_MAX {
            return Err(format!("a scope has more than {NODES_MAX} fields"));
        }
        self.infos.push(Info { name: Arc::from(shown(name)), what });
        Ok(self.infos.len() as u32 - 1)
    }

    fn node(&mut self, name: &Arc<str>, of: &Type) -> Result<(Node, Seen), String> {
        let align = of.align;
        Ok(match &of.kind {
            Kind::Int(int) => {
                let what = What::Int { signed: int.signed, base: int.base, bits: int.bits };
                self.number(name, int, align, what, None)?
            }
            Kind::Enum(int, labels) => {
                let labels = labels.clone();
                let (signed, base, bits) = (int.signed, int.base, int.bits);
                let what = What::Enum { signed, base, bits, labels: labels.clone() };
                self.number(name, int, align, what, Some(labels))?
            }
            Kind::Float(float) => {
                let info = self.info(name, What::Float(float.bits))?;
                let order = float.order.unwrap_or(self.resolver.order);
                (Node::Float { info, bits: float.bits, align, order }, Seen::Other)
            }
            Kind::Text => (Node::Text { info: self.info(name, What::Text)? }, Seen::Other),
            Kind::Struct(fields) => {
                let info = self.info(name, What::Struct)?;
                let (fields, names) = self.fields(fields)?;
                (Node::Struct { info, align, fields }, Seen::Inner(names))
            }
            Kind::Variant(tag, options) => (self.variant(name, tag.as_ref(), options)?, Seen::Other),
            Kind::Array(element, length) if element.is_text_byte() => {
                (Node::TextArray { info: self.info(name, What::Text)?, length: *length }, Seen::Other)
            }
            Kind::Array(element, length) => {
                let info = self.info(name, What::Array)?;
                let element = Box::new(self.node(&Arc::from(""), element)?.0);
                (Node::Array { info, align, length: *length, element }, Seen::Other)
            }
            Kind::Sequence(element, length) => {
                let (register, signed, _) = self.resolve(length)?;
                if signed {
                    return Err(format!("the length of `{name}` can be below zero"));
                }
                if element.is_text_byte() {
                    let info = self.info(name, What::Text)?;
                    return Ok((Node::TextSequence { info, register }, Seen::Other));
                }
                let info = self.info(name, What::Sequence)?;
                let element = Box::new(self.node(&Arc::from(""), element)?.0);
                (Node::Sequence { info, align, register, element }, Seen::Other)
            }
        })
    }

    fn number(
        &mut self,
        name: &Arc<str>,
        int: &Int,
        align: u32,
        what: What,
        labels: Option<Arc<Labels>>,
    ) -> Result<(Node, Seen), String> {
        let info = self.info(name, what)?;
        let register = self.resolver.registers;
        self.resolver.registers = register.checked_add(1).ok_or("a stream has more than 65535 numbers")?;
        let order = int.order.unwrap_or(self.resolver.order);
        let role = self.role(name, int);
        let node = IntNode { info, bits: int.bits, align, signed: int.signed, order, register, role };
        Ok((Node::Int(node), Seen::Number { register, signed: int.signed, labels }))
    }

    fn role(&mut self, name: &str, int: &Int) -> Role {
        // The end of a packet is in no event's past.
        if matches!(self.root, Root::PacketContext | Root::EventHeader)
            && let Some(clock) = &int.clock
            && name != "timestamp_end"
            && *self.resolver.clock.get_or_insert_with(|| clock.clone()) == *clock
        {
            return Role::Clock;
        }
        match (self.root, name) {
            (Root::EventHeader, "id") => Role::EventId,
            _ => Role::None,
        }
    }

    fn variant(&mut self, name: &str, tag: Option<&Path>, options: &[Field]) -> Result<Node, String> {
        let tag = tag.ok_or_else(|| format!("the variant `{name}` has no tag"))?;
        let (register, signed, labels) = self.resolve(tag)?;
        let labels = labels.ok_or_else(|| format!("the tag of `{name}` is no enumeration"))?;
        let info = self.info(name, What::Variant)?;
        let option_of = |label: &str| {
            let by_name = |field: &Field| *field.name == *label || shown(&field.name) == label;
            options.iter().position(by_name)
        };
        let ranges = labels
            .iter()
            .filter_map(|label| Some((label.low, label.high, option_of(&label.name)?)))
            .collect();
        let options: Result<Vec<Node>, String> =
            options.iter().map(|option| Ok(self.node(&option.name, &option.of)?.0)).collect();
        Ok(Node::Variant { info, register, signed, ranges, options: options? })
    }

    fn resolve(&self, path: &Path) -> Result<(u16, bool, Option<Arc<Labels>>), String> {
        let found = self.find(path);
        match found {
            Some(Seen::Number { register, signed, labels }) => Ok((*register, *signed, labels.clone())),
            Some(_) => Err(format!("`{}` is no whole number", path.join("."))),
            None => Err(format!("no field `{}` stands before its use", path.join("."))),
        }
    }

    fn find(&self, path: &[Arc<str>]) -> Option<&Seen> {
        let whole = path.join(".");
        for (prefix, root) in ROOTS {
            if let Some(rest) = whole.strip_prefix(prefix).and_then(|rest| rest.strip_prefix('.')) {
                let skip = path.len() - rest.split('.').count();
                let names = if root == self.root {
                    self.frames.first()
                } else {
                    self.resolver.roots[root as usize].as_ref()
                };
                return inside(names?, &path[skip..]);
            }
        }
        let earlier = self.resolver.roots[..self.root as usize].iter().rev().flatten();
        self.frames.iter().rev().chain(earlier).find_map(|names| inside(names, path))
    }
}

fn inside<'n>(names: &'n Names, path: &[Arc<str>]) -> Option<&'n Seen> {
    let (first, rest) = path.split_first()?;
    let seen = names.iter().rev().find(|(name, _)| name == first).map(|(_, seen)| seen)?;
    match (rest.is_empty(), seen) {
        (true, seen) => Some(seen),
        (false, Seen::Inner(names)) => inside(names, rest),
        (false, _) => None,
    }
}
