//! Kernels: their attributes and parameters, host names, explicit instantiations, and the table of
//! entry points.

use super::{Attribute, Kind, Refusal, Rewriter};
use crate::library::{Function, Parameter, ParameterKind};
use std::collections::HashMap;
use std::ops::Range;

/// Attributes of position parameters: name, and the expression of the value at run time.
pub(super) const POSITIONS: &[(&str, &str)] = &[
    ("thread_position_in_grid", "c->thread_position_in_grid"),
    ("thread_position_in_threadgroup", "c->thread_position_in_threadgroup"),
    ("thread_index_in_threadgroup", "c->thread_index_in_threadgroup"),
    ("thread_index_in_simdgroup", "c->thread_index_in_simdgroup"),
    ("simdgroup_index_in_threadgroup", "c->simdgroup_index_in_threadgroup"),
    ("thread_index_in_quadgroup", "c->thread_index_in_quadgroup"),
    ("quadgroup_index_in_threadgroup", "c->quadgroup_index_in_threadgroup"),
    ("threadgroup_position_in_grid", "c->group->threadgroup_position_in_grid"),
    ("threads_per_threadgroup", "c->group->threads_per_threadgroup"),
    ("dispatch_threads_per_threadgroup", "c->group->threads_per_threadgroup"),
    ("threadgroups_per_grid", "c->group->threadgroups_per_grid"),
    ("threads_per_grid", "c->group->threads_per_grid"),
    ("simdgroups_per_threadgroup", "c->group->simdgroups_per_threadgroup"),
    ("dispatch_simdgroups_per_threadgroup", "c->group->simdgroups_per_threadgroup"),
    ("quadgroups_per_threadgroup", "c->group->quadgroups_per_threadgroup"),
    ("threads_per_simdgroup", "c->group->threads_per_simdgroup"),
    ("thread_execution_width", "c->group->threads_per_simdgroup"),
];

/// Position attributes with as many components as the grid has dimensions.
const OF_GRID: &[&str] = &[
    "thread_position_in_grid",
    "thread_position_in_threadgroup",
    "threadgroup_position_in_grid",
    "threads_per_threadgroup",
    "dispatch_threads_per_threadgroup",
    "threadgroups_per_grid",
    "threads_per_grid",
];

/// The name of a position attribute.
pub(crate) fn position(name: &str) -> Option<&'static str> {
    POSITIONS.iter().find(|(n, _)| *n == name).map(|(n, _)| *n)
}

/// Metal's limit on indices in each of the two tables.
const MAX_INDEX: u32 = 31;

/// Attributes seen before the function that they belong to.
#[derive(Default)]
pub(super) struct Pending {
    /// True after the word `kernel`.
    pub kernel: bool,
    host_name: Option<String>,
    /// Tokens of the expression of the most threads.
    max_threads: Option<Range<usize>>,
    /// Their first token.
    first: Option<usize>,
}

impl Pending {
    /// Returns true if an attribute was read whose function has not been read yet.
    pub fn is_waiting(&self) -> bool {
        self.first.is_some()
    }
}

/// A function marked `kernel`.
pub(super) struct Kernel {
    pub(super) name: String,
    /// Names of its template's parameters.
    pub(super) template_parameters: Vec<String>,
    /// Number of them that have a default.
    n_defaults: usize,
    pub(super) parameters: Vec<Parameter>,
    max_threads: Option<Range<usize>>,
    templated: bool,
    token: usize,
}

/// A kernel under a host name: `template_arguments` as in the source, `<` and `>` included.
pub(super) struct Instance {
    pub(super) host_name: String,
    pub(super) kernel: String,
    pub(super) template_arguments: String,
    /// Tokens of `template_arguments`.
    arguments: Range<usize>,
    token: usize,
}

impl Kernel {
    /// Returns true if its template takes `n` arguments.
    fn fits(&self, n: usize) -> bool {
        let most = self.template_parameters.len();
        (most - self.n_defaults..=most).contains(&n)
    }
}

impl Rewriter<'_> {
    /// An attribute list outside a parameter list.
    pub(super) fn attribute(&mut self, i: usize) -> Result<usize, Refusal> {
        let (list, next) = self.attributes(i)?;
        let mut remove = false;
        for a in &list {
            match a.name.as_str() {
                "host_name" => self.pending.host_name = Some(self.string(a)?),
                "max_total_threads_per_threadgroup" => self.pending.max_threads = Some(a.arguments.clone()),
                "kernel" => self.pending.kernel = true,
                // Helper functions may repeat the attributes of the kernel's parameters, without
                // effect.
                name if self.in_parameters()
                    && (position(name).is_some() || matches!(name, "buffer" | "threadgroup")) =>
                {
                    self.replace(i, next, "");
                    return Ok(next);
                }
                name if super::HARMLESS.contains(&name)
                    || name.starts_with("clang::")
                    || name.starts_with("gnu::") =>
                {
                    continue;
                }
                name => {
                    return Err(self.refuse(a.token, format!("attribute '{name}' is not supported here")));
                }
            }
            remove = true;
        }
        if remove {
            self.pending.first.get_or_insert(i);
            self.replace(i, next, "");
        }
        Ok(next)
    }

    /// Returns true between the brackets of a function's parameters.
    fn in_parameters(&self) -> bool {
        self.open.last().is_some_and(|open| self.t.word(*open) == "(")
    }

    fn string(&self, a: &Attribute) -> Result<String, Refusal> {
        let mut text = String::new();
        for i in a.arguments.clone() {
            let word = self.t.word(i);
            if self.t.list[i].kind != Kind::Quote || word.contains('\\') {
                return Err(self
                    .refuse(a.token, format!("'{word}': expected a plain string literal in '{}'", a.name)));
            }
            text.push_str(word.trim_matches('"'));
        }
        if text.is_empty() {
            return Err(self.refuse(a.token, "an empty host name"));
        }
        Ok(text)
    }

    /// The word `kernel`.
    pub(super) fn kernel_word(&mut self, i: usize) -> Result<usize, Refusal> {
        self.pending.kernel = true;
        self.pending.first.get_or_insert(i);
        self.replace(i, i + 1, "");
        Ok(i + 1)
    }

    /// `void NAME(parameters) {` of a kernel, at `void`. Processing continues at the body.
    pub(super) fn kernel(&mut self, i: usize) -> Result<usize, Refusal> {
        let pending = std::mem::take(&mut self.pending);
        if self.t.list.get(i + 1).is_none_or(|t| t.kind != Kind::Word) || self.t.word(i + 2) != "(" {
            return Err(self.refuse(i, "expected 'kernel void NAME('"));
        }
        let name = self.t.word(i + 1).to_owned();
        let close = self.t.closing(i + 2)?;
        let parameters = self.parameters(i + 3, close)?;
        let first = pending.first.unwrap_or(i);
        let templated = first > 0 && self.t.word(first - 1) == ">";
        match self.t.word(close + 1) {
            "{" => {}
            ";" => return Ok(close + 1),
            other => {
                return Err(self.refuse(close, format!("'{other}' after the parameters of kernel '{name}'")));
            }
        }
        self.same_widths(&parameters, i)?;
        // Templates of one name may differ in their numbers of parameters.
        if self.kernels.iter().any(|k| k.name == name && !(templated && k.templated)) {
            return Err(self.refuse(i, format!("a second kernel of the name '{name}'")));
        }
        if templated && pending.host_name.is_some() {
            return Err(self.refuse(
                i,
                format!(
                    "a host name for kernel template '{name}'; expected host names at its instantiations"
                ),
            ));
        }
        let host_name = pending.host_name.unwrap_or_else(|| name.clone());
        if !templated && self.is_wanted(&host_name) {
            self.instances.push(Instance {
                host_name,
                kernel: name.clone(),
                template_arguments: String::new(),
                arguments: i..i,
                token: i,
            });
        }
        let (template_parameters, n_defaults) =
            if templated { self.template_parameters(first - 1)? } else { (vec![], 0) };
        let n = template_parameters.len();
        if self.kernels.iter().any(|k| k.name == name && k.fits(n)) {
            return Err(self.refuse(i, format!("a second kernel of the name '{name}'")));
        }
        let max_threads = pending.max_threads;
        self.kernels.push(Kernel {
            name,
            template_parameters,
            n_defaults,
            parameters,
            max_threads,
            templated,
            token: i,
        });
        self.body = Some(self.t.closing(close + 1)?);
        Ok(close + 1)
    }

    /// Checks that all positions and sizes of a grid have the same number of dimensions, as Metal
    /// requires.
    fn same_widths(&self, parameters: &[Parameter], i: usize) -> Result<(), Refusal> {
        let width = |p: &Parameter| match p.type_name.trim().chars().last() {
            Some(digit @ '2'..='4') => digit as u32 - '0' as u32,
            _ => 1,
        };
        let of_grid = parameters
            .iter()
            .filter(|p| matches!(p.kind, ParameterKind::Position(name) if OF_GRID.contains(&name)));
        let of_grid: Vec<&Parameter> = of_grid.collect();
        match of_grid.iter().find(|p| width(p) != width(of_grid[0])) {
            None => Ok(()),
            Some(other) => Err(self.refuse(
                i,
                format!(
                    "'{} {}' and '{} {}': positions and sizes of a grid have one width in a kernel",
                    of_grid[0].type_name, of_grid[0].name, other.type_name, other.name
                ),
            )),
        }
    }

    /// Names of the parameters of a template whose list ends at `close`, and the number of
    /// defaults.
    fn template_parameters(&self, close: usize) -> Result<(Vec<String>, usize), Refusal> {
        let open = self.opening(close, 0)?;
        let (mut names, mut at, mut name, mut n_defaults) = (Vec::new(), open + 1, String::new(), 0);
        let mut is_default = false;
        while at <= close {
            match self.t.word(at) {
                "," | ">" => {
                    names.push(std::mem::take(&mut name));
                    is_default = false;
                }
                "=" => (is_default, n_defaults) = (true, n_defaults + 1),
                // A pointer to a function has its name in the first brackets.
                "(" if !is_default => {
                    if self.t.word(at + 1) == "*" {
                        name = self.t.word(at + 2).to_owned();
                        is_default = true;
                    }
                    at = self.t.closing(at)?;
                }
                "(" | "<" => at = self.t.closing(at)?,
                word if !is_default && self.t.list[at].kind == Kind::Word => name = word.to_owned(),
                _ => {}
            }
            at += 1;
        }
        Ok((names, n_defaults))
    }

    /// The kernel of an instance: the one of its name that has as many template parameters.
    pub(super) fn kernel_of(&self, instance: &Instance) -> Option<&Kernel> {
        let n = self.template_arguments(instance).len();
        let mut of_name = self.kernels.iter().filter(|k| k.name == instance.kernel);
        let first = of_name.clone().next();
        of_name.find(|k| k.fits(n)).or(first)
    }

    /// Tokens of each template argument of an instance.
    fn template_arguments(&self, instance: &Instance) -> Vec<Range<usize>> {
        let (mut found, mut start) = (Vec::new(), instance.arguments.start + 1);
        let mut at = start;
        while at <= instance.arguments.end && !instance.arguments.is_empty() {
            match self.t.word(at) {
                // A bracket without its partner is refused elsewhere.
                "(" | "[" | "<" => at = self.t.closing(at).unwrap_or(at),
                "," | ">" => {
                    found.push(start..at);
                    start = at + 1;
                }
                _ => {}
            }
            at += 1;
        }
        found
    }

    /// The parameters in tokens `from..to`.
    fn parameters(&mut self, from: usize, to: usize) -> Result<Vec<Parameter>, Refusal> {
        let (mut list, mut next_buffer) = (Vec::new(), 0);
        let (mut start, mut at) = (from, from);
        while at <= to {
            if at < to && matches!(self.t.word(at), "(" | "[" | "<") {
                at = self.t.closing(at)? + 1;
                continue;
            }
            if at == to || self.t.word(at) == "," {
                if start < at {
                    let p = self.parameter(start, at, &mut next_buffer)?;
                    list.push(p);
                } else if at < to || !list.is_empty() {
                    return Err(self.refuse(at, "an empty parameter"));
                }
                start = at + 1;
            }
            at += 1;
        }
        Ok(list)
    }

    fn parameter(&mut self, from: usize, to: usize, next_buffer: &mut u32) -> Result<Parameter, Refusal> {
        let attribute = (from..to).find(|&i| self.attribute_at(i));
        let mut name_at = attribute.unwrap_or(to).saturating_sub(1);
        // An array is a pointer to its elements.
        let is_array = self.t.word(name_at) == "]";
        if is_array {
            name_at = self.opening(name_at, from)?.saturating_sub(1);
        }
        if name_at <= from || self.t.list[name_at].kind != Kind::Word {
            let text = self.t.phrase(from, to);
            return Err(self.refuse(from, format!("parameter '{text}': expected 'TYPE NAME [[attribute]]'")));
        }
        let has = |word: &str| (from..name_at).any(|i| self.t.word(i) == word);
        let (name, type_name) = (self.t.word(name_at).to_owned(), self.t.phrase(from, name_at));
        let indirect = is_array || has("*") || has("&");
        let in_threadgroup = has("threadgroup");
        let writable = has("device") && !has("const");
        let in_device = has("device") || has("constant");
        // Memory that other processors see at once: here all memory is.
        if let Some(at) = (from..name_at).find(|&i| self.t.word(i) == "coherent" && self.t.word(i + 1) == "(")
        {
            self.replace(at, self.t.closing(at + 1)? + 1, "");
        }
        let (mut kind, mut condition) = (None, None);
        if let Some(at) = attribute {
            let (attributes, next) = self.attributes(at)?;
            if next != to {
                return Err(self.refuse(
                    next,
                    format!("'{}' after the attribute of parameter '{name}'", self.t.word(next)),
                ));
            }
            for a in attributes {
                let found = match a.name.as_str() {
                    "buffer" => ParameterKind::Buffer(self.index(&a)?),
                    "threadgroup" => ParameterKind::Threadgroup(self.index(&a)?),
                    "function_constant" => {
                        let constant = self.t.phrase(a.arguments.start, a.arguments.end);
                        if a.arguments.len() != 1 || self.t.list[a.arguments.start].kind != Kind::Word {
                            return Err(self.refuse(
                                a.token,
                                format!("'{constant}': expected the name of a function constant"),
                            ));
                        }
                        condition = Some(constant);
                        continue;
                    }
                    other => match POSITIONS.iter().find(|(n, _)| *n == other) {
                        Some((n, _)) => ParameterKind::Position(n),
                        None => {
                            return Err(self.refuse(
                                a.token,
                                format!("attribute '{other}' of parameter '{name}' is not supported"),
                            ));
                        }
                    },
                };
                if kind.replace(found).is_some() {
                    return Err(
                        self.refuse(a.token, format!("parameter '{name}' has two binding attributes"))
                    );
                }
            }
            self.replace(at, to, "");
        }
        let kind = match kind {
            Some(kind) => kind,
            // In Metal, too, a buffer without an index gets the next one.
            None if indirect && in_device => ParameterKind::Buffer(*next_buffer),
            None => {
                return Err(
                    self.refuse(from, format!("parameter '{type_name} {name}' has no binding attribute"))
                );
            }
        };
        let fits = match kind {
            ParameterKind::Buffer(_) => indirect && in_device && !in_threadgroup,
            ParameterKind::Threadgroup(_) => indirect && in_threadgroup && !in_device,
            ParameterKind::Position(_) => !indirect,
        };
        if !fits {
            let what = format!(
                "parameter '{type_name} {name}': buffers are pointers or references to 'device' or 'constant', threadgroup arguments \
                 to 'threadgroup', positions are values"
            );
            return Err(self.refuse(from, what));
        }
        if let ParameterKind::Buffer(index) = kind {
            *next_buffer = index + 1;
        }
        Ok(Parameter { name, type_name, kind, writable, condition })
    }

    fn index(&self, a: &Attribute) -> Result<u32, Refusal> {
        let index = self.integer(a.arguments.clone())?;
        if index >= MAX_INDEX {
            return Err(
                self.refuse(a.token, format!("index {index} of '{}', past {}", a.name, MAX_INDEX - 1))
            );
        }
        Ok(index)
    }

    /// `template [[host_name("x")]] kernel TYPE NAME<arguments>(parameters);` at the word
    /// `template`.
    pub(super) fn instantiation(&mut self, i: usize) -> Result<usize, Refusal> {
        let mut semicolon = i;
        while self.t.word(semicolon) != ";" {
            semicolon = match self.t.word(semicolon) {
                "" | "{" | "}" => return Err(self.refuse(i, "an explicit instantiation without its ';'")),
                "(" | "[" => self.t.closing(semicolon)? + 1,
                _ => semicolon + 1,
            };
        }
        let mut at = i + 1;
        while self.attribute_at(at) {
            at = self.attribute(at)?;
        }
        if self.t.word(at) == "kernel" {
            at = self.kernel_word(at)?;
        }
        let pending = std::mem::take(&mut self.pending);
        let Some(host_name) = pending.host_name else {
            return Err(self.refuse(i, "an explicit instantiation of a kernel without host_name"));
        };
        // From the end: the parameters, then the template's arguments, then the name.
        let mut end = semicolon - 1;
        if self.t.word(end) == ")" {
            end = self.opening(end, at)?.wrapping_sub(1);
        }
        if self.t.word(end) != ">" {
            return Err(self.refuse(
                i,
                format!("instantiation '{host_name}' has no template arguments; expected 'NAME<...>'"),
            ));
        }
        let less = self.opening(end, at)?;
        let kernel = self.t.word(less - 1).to_owned();
        if !self.is_wanted(&host_name) {
            // Includes earlier replacements within the range.
            let start = self.t.list[i].start;
            self.edits.retain(|edit| edit.0 < start);
            self.replace(i, semicolon, "");
            return Ok(semicolon);
        }
        let template_arguments = self.t.phrase(less, end + 1);
        let mut inner = end + 1;
        while inner < semicolon {
            if self.attribute_at(inner) {
                let (_, next) = self.attributes(inner)?;
                self.replace(inner, next, "");
                inner = next;
            } else {
                inner += 1;
            }
        }
        self.instances.push(Instance {
            host_name,
            kernel,
            template_arguments,
            arguments: less..end,
            token: i,
        });
        Ok(semicolon)
    }

    /// Returns true if this function is to be compiled.
    fn is_wanted(&self, host_name: &str) -> bool {
        self.only.is_none_or(|only| only == host_name)
    }

    /// The opening bracket that matches the one at `close`, not before `from`.
    fn opening(&self, close: usize, from: usize) -> Result<usize, Refusal> {
        let mut depth = 0;
        let mut i = close;
        let angle = self.t.word(close) == ">";
        loop {
            match self.t.word(i) {
                ")" | "]" if angle && i != close => i = self.opening(i, from)?,
                ")" if !angle => depth += 1,
                "(" if !angle => depth -= 1,
                ">" if angle => depth += 1,
                "<" if angle => depth -= 1,
                "]" if i == close => depth += 1,
                "[" if self.t.word(close) == "]" => depth -= 1,
                _ => {}
            }
            if depth == 0 {
                return Ok(i);
            }
            if i <= from {
                return Err(
                    self.refuse(close, format!("'{}' without an opening bracket", self.t.word(close)))
                );
            }
            i -= 1;
        }
    }

    /// The public table of functions, in the order of the instances.
    pub(super) fn functions(&self) -> Result<Vec<Function>, Refusal> {
        let mut out: Vec<Function> = Vec::new();
        for (n, instance) in self.instances.iter().enumerate() {
            let Some(kernel) = self.kernel_of(instance) else {
                return Err(
                    self.refuse(instance.token, format!("no kernel '{}' is defined", instance.kernel))
                );
            };
            if self.instances[..n].iter().any(|o| o.host_name == instance.host_name) {
                return Err(
                    self.refuse(instance.token, format!("host name '{}' is given twice", instance.host_name))
                );
            }
            for (k, p) in kernel.parameters.iter().enumerate() {
                let twice = kernel.parameters[..k].iter().any(|o| {
                    o.kind == p.kind
                        && !matches!(p.kind, ParameterKind::Position(_))
                        && (o.condition.is_none() || p.condition.is_none())
                });
                if twice {
                    return Err(self.refuse(
                        kernel.token,
                        format!("two parameters of '{}' have the index of '{}'", kernel.name, p.name),
                    ));
                }
                if let Some(c) = &p.condition
                    && !self.constants.iter().any(|d| d.name == *c)
                {
                    return Err(self.refuse(
                        kernel.token,
                        format!("'{c}', which parameter '{}' depends on, is not a function constant", p.name),
                    ));
                }
            }
            let words = instance.arguments.clone().map(|i| self.t.word(i));
            let reached = self.uses.reached(words.chain([kernel.name.as_str()]));
            let optional = reached.contains("is_function_constant_defined");
            let needed = self.constants.iter().filter(|c| reached.contains(c.name.as_str()) && !optional);
            let mut constants: Vec<u16> = needed.map(|c| c.index).collect();
            constants.sort_unstable();
            out.push(Function {
                name: instance.host_name.clone(),
                parameters: kernel.parameters.clone(),
                max_threads: self.max_threads(kernel, instance)?,
                constants,
            });
        }
        if let Some(only) = self.only
            && out.is_empty()
        {
            return Err(self.refuse(0, format!("there is no kernel of the host name '{only}'")));
        }
        // A header may have templates for other sources.
        let is_own = |k: &Kernel| self.t.list[k.token].file <= 1;
        let bare =
            |k: &&Kernel| k.templated && is_own(k) && !self.instances.iter().any(|i| i.kernel == k.name);
        if let Some(k) = self.kernels.iter().find(bare)
            && self.only.is_none()
        {
            return Err(self.refuse(
                k.token,
                format!("kernel template '{}' has no instantiation with a host name", k.name),
            ));
        }
        Ok(out)
    }

    /// The most threads of a threadgroup of an instance, whose template arguments the expression
    /// may name.
    fn max_threads(&self, kernel: &Kernel, instance: &Instance) -> Result<Option<u32>, Refusal> {
        let Some(expression) = kernel.max_threads.clone() else { return Ok(None) };
        let names = kernel.template_parameters.iter().map(String::as_str);
        let arguments: HashMap<_, _> = names.zip(self.template_arguments(instance)).collect();
        self.integer_with(expression, &arguments).map(Some)
    }
}
