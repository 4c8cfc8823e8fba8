//! Compiler from types to plans.
//!
//! *In*: the type of a scope. *Out*: its [`Plan`], in which the names that a variant or sequence
//! refers to are resolved.
//!
//! *Invariant*: a name is searched among the preceding fields, from the innermost braces outwards,
//! then in the preceding scopes (specification section 7.3.2). A name with a scope's prefix is
//! searched in that scope only.

use std::sync::Arc;

use super::plan::{FieldInfo, FieldType, IntNode, Node, Plan, Role};
use super::types::{ByteOrder, Field, Int, Labels, Path, Type, TypeKind, display_name};

/// Maximum number of nodes of a plan. LTTng's largest event has some 30.
const NODES_MAX: usize = 8192;

/// Dynamic scopes, in decoding order.
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

/// Result of compiling a named field.
#[derive(Clone, Debug)]
enum Resolved {
    Number { register: u16, signed: bool, labels: Option<Arc<Labels>> },
    Inner(Names),
    Other,
}

type Names = Vec<(Arc<str>, Resolved)>;

/// State between the compilation of two scopes.
#[derive(Clone, Debug)]
pub(crate) struct Resolver {
    order: ByteOrder,
    /// Clock of the timestamps: the first clock that an integer is mapped to.
    pub(crate) clock: Option<Arc<str>>,
    roots: [Option<Names>; 6],
    registers: u16,
}

impl Resolver {
    pub(crate) fn new(order: ByteOrder) -> Self {
        Self { order, clock: None, roots: Default::default(), registers: 0 }
    }

    /// Compiles the structure of one scope.
    pub(crate) fn plan(&mut self, root: Root, of: &Type) -> Result<Plan, String> {
        let TypeKind::Struct(fields) = &of.kind else { return Err(format!("{root:?} is not a structure")) };
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
    infos: Vec<FieldInfo>,
    nodes: usize,
}

impl Compiler<'_> {
    fn fields(&mut self, fields: &[Field]) -> Result<(Vec<Node>, Names), String> {
        self.frames.push(Names::new());
        let mut nodes = Vec::with_capacity(fields.len());
        for field in fields {
            let (node, resolved) = self.node(&field.name, &field.of)?;
            nodes.push(node);
            if let Some(frame) = self.frames.last_mut() {
                frame.push((field.name.clone(), resolved));
            }
        }
        Ok((nodes, self.frames.pop().unwrap_or_default()))
    }

    fn info(&mut self, name: &str, field_type: FieldType) -> Result<u32, String> {
        self.nodes += 1;
        if self.nodes > NODES_MAX {
            return Err(format!("a scope has more than {NODES_MAX} fields"));
        }
        self.infos.push(FieldInfo { name: Arc::from(display_name(name)), field_type });
        Ok(self.infos.len() as u32 - 1)
    }

    fn node(&mut self, name: &Arc<str>, of: &Type) -> Result<(Node, Resolved), String> {
        let align = of.align;
        Ok(match &of.kind {
            TypeKind::Int(int) => {
                let field_type = FieldType::Int { signed: int.signed, base: int.base, bits: int.bits };
                self.number(name, int, align, field_type, None)?
            }
            TypeKind::Enum(int, labels) => {
                let labels = labels.clone();
                let (signed, base, bits) = (int.signed, int.base, int.bits);
                let field_type = FieldType::Enum { signed, base, bits, labels: labels.clone() };
                self.number(name, int, align, field_type, Some(labels))?
            }
            TypeKind::Float(float) => {
                let info = self.info(name, FieldType::Float(float.bits))?;
                let order = float.order.unwrap_or(self.resolver.order);
                (Node::Float { info, bits: float.bits, align, order }, Resolved::Other)
            }
            TypeKind::Text => (Node::Text { info: self.info(name, FieldType::Text)? }, Resolved::Other),
            TypeKind::Struct(fields) => {
                let info = self.info(name, FieldType::Struct)?;
                let (fields, names) = self.fields(fields)?;
                (Node::Struct { info, align, fields }, Resolved::Inner(names))
            }
            TypeKind::Variant(tag, options) => (self.variant(name, tag.as_ref(), options)?, Resolved::Other),
            TypeKind::Array(element, length) if element.is_text_byte() => (
                Node::TextArray { info: self.info(name, FieldType::Text)?, length: *length },
                Resolved::Other,
            ),
            TypeKind::Array(element, length) => {
                let info = self.info(name, FieldType::Array)?;
                let element = Box::new(self.node(&Arc::from(""), element)?.0);
                (Node::Array { info, align, length: *length, element }, Resolved::Other)
            }
            TypeKind::Sequence(element, length) => {
                let (register, signed, _) = self.resolve(length)?;
                if signed {
                    return Err(format!("the length of `{name}` can be negative"));
                }
                if element.is_text_byte() {
                    let info = self.info(name, FieldType::Text)?;
                    return Ok((Node::TextSequence { info, register }, Resolved::Other));
                }
                let info = self.info(name, FieldType::Sequence)?;
                let element = Box::new(self.node(&Arc::from(""), element)?.0);
                (Node::Sequence { info, align, register, element }, Resolved::Other)
            }
        })
    }

    fn number(
        &mut self,
        name: &Arc<str>,
        int: &Int,
        align: u32,
        field_type: FieldType,
        labels: Option<Arc<Labels>>,
    ) -> Result<(Node, Resolved), String> {
        let info = self.info(name, field_type)?;
        let register = self.resolver.registers;
        self.resolver.registers = register.checked_add(1).ok_or("a stream has more than 65535 numbers")?;
        let order = int.order.unwrap_or(self.resolver.order);
        let role = self.role(name, int);
        let node = IntNode { info, bits: int.bits, align, signed: int.signed, order, register, role };
        Ok((Node::Int(node), Resolved::Number { register, signed: int.signed, labels }))
    }

    fn role(&mut self, name: &str, int: &Int) -> Role {
        // A packet's end is later than its events, so it must not advance the clock.
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
        let labels = labels.ok_or_else(|| format!("the tag of `{name}` is not an enumeration"))?;
        let info = self.info(name, FieldType::Variant)?;
        let option_of = |label: &str| {
            let by_name = |field: &Field| *field.name == *label || display_name(&field.name) == label;
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
            Some(Resolved::Number { register, signed, labels }) => Ok((*register, *signed, labels.clone())),
            Some(_) => Err(format!("`{}` is not an integer", path.join("."))),
            None => Err(format!("no field `{}` is declared before its use", path.join("."))),
        }
    }

    fn find(&self, path: &[Arc<str>]) -> Option<&Resolved> {
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

fn inside<'n>(names: &'n Names, path: &[Arc<str>]) -> Option<&'n Resolved> {
    let (first, rest) = path.split_first()?;
    let resolved = names.iter().rev().find(|(name, _)| name == first).map(|(_, resolved)| resolved)?;
    match (rest.is_empty(), resolved) {
        (true, resolved) => Some(resolved),
        (false, Resolved::Inner(names)) => inside(names, rest),
        (false, _) => None,
    }
}
