//! Rewrites preprocessed Metal source to C++ that clang compiles with the headers in `cpp/`.
//!
//! Most of Metal is C++ that headers can express. The rest is rewritten here, in place, so that
//! line numbers do not change and diagnostics point into the `.metal` file:
//!
//! - function constants, which have no initialiser (`constants`);
//! - kernels: the attributes of parameters, host names, explicit instantiations (`kernels`);
//! - `threadgroup` variables, whose storage all lanes share (`threadgroup`);
//! - literals: `1.0h` is a half, and `1.0` a float.
//!
//! Anything else is rejected with its location, rather than passed on unchanged.

mod constants;
mod entries;
mod kernels;
mod members;
mod spaces;
mod threadgroup;
mod token;
mod types;
mod uses;

pub(crate) use kernels::position;

use crate::error::Refusal;
use crate::library::{ConstantDeclaration, Function};
use std::collections::HashMap;
use std::ops::Range;
use token::{Kind, Tokens};

/// A rewritten source.
#[derive(Debug)]
pub(crate) struct Rewritten {
    /// C++ with line markers.
    pub text: String,
    /// The entry points, in the order of the library's table.
    pub functions: Vec<Function>,
    /// Declared function constants.
    pub constants: Vec<ConstantDeclaration>,
}

/// Attributes that the emulator ignores.
const HARMLESS: &[&str] =
    &["maybe_unused", "nodiscard", "fallthrough", "likely", "unlikely", "noreturn", "deprecated", "unroll"];

/// Types of a vector's components.
const VECTORS: &[&str] =
    &["float", "half", "int", "uint", "short", "ushort", "char", "uchar", "long", "ulong", "bool", "bfloat"];

/// Names of unsupported types and functions, with the feature that they belong to.
const UNSUPPORTED: &[(&str, &str)] = &[
    ("double", "Metal has no double"),
    ("asm", "inline assembly"),
    ("__asm__", "inline assembly"),
    ("new", "allocation"),
    ("delete", "allocation"),
    ("throw", "exceptions"),
    ("try", "exceptions"),
    ("virtual", "virtual functions"),
    ("thread_local", "thread-local variables"),
    ("sampler", "textures"),
    ("texture_buffer", "textures"),
    ("imageblock", "image blocks"),
    ("threadgroup_imageblock", "image blocks"),
    ("ray_data", "ray tracing"),
    ("object_data", "mesh shaders"),
    ("visible_function_table", "function tables"),
    ("intersection_function_table", "function tables"),
    ("instance_acceleration_structure", "ray tracing"),
    ("primitive_acceleration_structure", "ray tracing"),
    ("cooperative_tensor", "tensor operations"),
    ("tensor_handle", "tensor operations"),
];

/// Scalar types, and the stems of vector types.
const POINTED_TO: &[&str] = &[
    "bool", "char", "uchar", "short", "ushort", "int", "uint", "long", "ulong", "float", "half", "bfloat",
    "int8_t", "uint8_t", "int16_t", "uint16_t", "int32_t", "uint32_t", "int64_t", "uint64_t",
];

/// Purpose of a rewrite.
#[derive(Clone, Copy)]
pub(crate) struct What<'a> {
    /// True for the check of address spaces.
    pub strict: bool,
    /// Host name of the only function to rewrite; `None` for all.
    pub only: Option<&'a str>,
    /// True to keep pragmas about unrolling. They affect which loads remain, and so counts of bytes
    /// and of registers. Without them code is smaller and compiles in two thirds of the time.
    pub unroll: bool,
}

impl What<'_> {
    /// All functions, for a run.
    pub const RUN: What<'static> = What { strict: false, only: None, unroll: false };
    /// All functions, for the check of address spaces.
    pub const STRICT: What<'static> = What { strict: true, only: None, unroll: true };
}

/// Rewrites `text`, the output of `clang -E`.
pub(crate) fn rewrite<'a>(
    text: &'a str,
    What { strict, only, unroll }: What<'a>,
) -> Result<Rewritten, Refusal> {
    let tokens = Tokens::scan(text)?;
    let repeated = if strict { HashMap::new() } else { spaces::repeated(&tokens) };
    let mut r = Rewriter {
        types: types::Types::of(&tokens),
        uses: uses::Uses::of(&tokens),
        t: tokens,
        strict,
        only,
        unroll,
        edits: Vec::new(),
        open: Vec::new(),
        braced: Vec::new(),
        kernels: Vec::new(),
        instances: Vec::new(),
        constants: Vec::new(),
        pending: kernels::Pending::default(),
        body: None,
        repeated,
    };
    let mut i = 0;
    while i < r.t.list.len() {
        i = r.step(i)?;
    }
    r.finish()
}

/// The walk over the tokens.
struct Rewriter<'a> {
    types: types::Types<'a>,
    t: Tokens<'a>,
    uses: uses::Uses<'a>,
    strict: bool,
    /// Same as [`What::only`].
    only: Option<&'a str>,
    /// Same as [`What::unroll`].
    unroll: bool,
    /// Replacements of byte ranges, disjoint and in order.
    edits: Vec<(usize, usize, String)>,
    /// Currently open brackets: indices of their tokens.
    open: Vec<usize>,
    /// Brackets that became calls ([`Rewriter::braced_vector`]).
    braced: Vec<usize>,
    kernels: Vec<kernels::Kernel>,
    instances: Vec<kernels::Instance>,
    constants: Vec<ConstantDeclaration>,
    /// Attributes and the word `kernel` whose function has not been seen yet.
    pending: kernels::Pending,
    /// The token that closes the body of the current kernel.
    body: Option<usize>,
    /// Definitions that repeat another for a second address space ([`spaces::repeated`]).
    repeated: HashMap<usize, usize>,
}

impl Rewriter<'_> {
    /// Processes token `i`; returns the next one to process.
    fn step(&mut self, i: usize) -> Result<usize, Refusal> {
        if let Some(end) = self.repeated.get(&i).copied() {
            self.replace(i, end, "");
            return Ok(end);
        }
        let token = self.t.list[i];
        let word = self.t.word(i);
        match token.kind {
            Kind::Directive => self.directive(i)?,
            Kind::Number => self.number(i)?,
            Kind::Quote => {}
            Kind::Mark => match word {
                "[" if self.attribute_at(i) => return self.attribute(i),
                ";" | "{" if self.pending.is_waiting() => {
                    return Err(self.refuse(i, "a kernel attribute before something that is not a kernel"));
                }
                "(" | "[" | "{" => {
                    self.open.push(i);
                    self.braced_vector(i);
                }
                ")" | "]" | "}" => {
                    if self.open.pop().is_some_and(|open| self.braced.contains(&open)) {
                        self.replace(i, i + 1, ")");
                    }
                    if self.body == Some(i) {
                        self.body = None;
                    }
                }
                _ => {}
            },
            Kind::Word => match word {
                "kernel" => return self.kernel_word(i),
                "void" if self.pending.kernel => return self.kernel(i),
                "template" if self.attribute_at(i + 1) => return self.instantiation(i),
                "template" if self.strict && self.t.word(i + 1) == "<" => self.function_parameters(i + 1)?,
                "device" | "constant" | "threadgroup" | "thread" if self.is_member_space(i) => {
                    return Ok(self.member(i));
                }
                "constant" => {
                    if let Some(next) = self.function_constant(i)? {
                        return Ok(next);
                    }
                    self.constant_table(i);
                }
                "is_function_constant_defined" => return self.constant_defined(i),
                "threadgroup" => return self.threadgroup(i),
                _ => {
                    self.supported(i, word)?;
                    self.has_address_space(i, word)?;
                }
            },
        }
        if self.pending.kernel && token.kind != Kind::Directive {
            return Err(
                self.refuse(i, format!("'{word}' between 'kernel' and 'void'; expected 'kernel void NAME('"))
            );
        }
        Ok(i + 1)
    }

    /// `uint4 v = { a, b }` with fewer numbers than components: the others are 0.
    fn braced_vector(&mut self, i: usize) {
        let is_declared = i >= 3
            && (self.t.word(i), self.t.word(i - 1)) == ("{", "=")
            && self.t.list[i - 2].kind == Kind::Word;
        let Some(close) = self.t.closing(i).ok().filter(|_| is_declared) else { return };
        let name = self.t.word(i - 3);
        let element = name.trim_end_matches(['2', '3', '4']);
        let Some(n) = name[element.len()..].parse::<usize>().ok().filter(|_| VECTORS.contains(&element))
        else {
            return;
        };
        let (mut n_given, mut at) = (1, i + 1);
        while at < close {
            match self.t.word(at) {
                "(" | "[" | "{" => at = self.t.closing(at).unwrap_or(close),
                "," => n_given += 1,
                _ => {}
            }
            at += 1;
        }
        if n_given < n && close > i + 1 {
            self.replace(i, i + 1, &format!("{name}::braced("));
            self.braced.push(i);
        }
    }

    fn refuse(&self, i: usize, what: impl Into<String>) -> Refusal {
        self.t.refuse(&self.t.list[i.min(self.t.list.len() - 1)], what)
    }

    /// Returns true if two brackets at `i` open an attribute.
    fn attribute_at(&self, i: usize) -> bool {
        self.t.word(i) == "["
            && self.t.word(i + 1) == "["
            && self.t.list[i].end == self.t.list[i + 1].start
            && self.t.list.get(i + 2).is_some_and(|t| t.kind == Kind::Word)
    }

    /// Replaces tokens `from..to` by `with`, keeping the line breaks and line markers between them.
    fn replace(&mut self, from: usize, to: usize, with: &str) {
        let (start, end) = (self.t.list[from].start, self.t.list[to - 1].end);
        let mut text = with.to_owned();
        for (n, line) in self.t.text[start..end].split('\n').enumerate() {
            if n > 0 {
                text.push('\n');
                if line.trim_start().starts_with('#') {
                    text.push_str(line);
                }
            }
        }
        self.edits.push((start, end, text));
    }

    /// Template parameters that are pointers to functions become references, the only kind that C++
    /// for OpenCL accepts.
    fn function_parameters(&mut self, open: usize) -> Result<(), Refusal> {
        for i in open..self.t.closing(open)? {
            if self.t.word(i) == "("
                && self.t.word(i + 1) == "*"
                && self.t.word(i + 3) == ")"
                && self.t.word(i + 4) == "("
            {
                self.replace(i + 1, i + 2, "&");
            }
        }
        Ok(())
    }

    /// Pragmas about unrolling or diagnostics do not affect results. Any other is rejected.
    fn directive(&mut self, i: usize) -> Result<(), Refusal> {
        let text = self.t.word(i);
        let mut words = text.trim_start_matches('#').split_whitespace();
        let (first, second) = (words.next(), words.next().unwrap_or_default());
        if first == Some("pragma") && second == "METAL" {
            return self.metal_pragma(i);
        }
        let is_harmless = match first {
            Some("pragma") => {
                second.starts_with("unroll")
                    || second.starts_with("nounroll")
                    || second.starts_with("unused")
                    || matches!(second, "clang" | "GCC" | "once" | "mark")
            }
            Some("ident") | None => true,
            Some(_) => false,
        };
        if !is_harmless {
            return Err(self.refuse(i, format!("'{text}' is not supported")));
        }
        // Loop pragmas mean the same to clang.
        if !self.unroll || !text.contains("clang loop") {
            self.replace(i, i + 1, "");
        }
        Ok(())
    }

    /// `#pragma METAL fp contract(...)` sets clang's mode of contraction, since Apple's compiler
    /// contracts unless told otherwise. The emulator computes as `math_mode(safe)` requires, and
    /// has no other mode. `internals` allows names that begin with `__metal_`.
    fn metal_pragma(&mut self, i: usize) -> Result<(), Refusal> {
        let text = self.t.word(i);
        let (_, rest) = text.split_once("METAL").unwrap_or_default();
        let plain: String = rest.split_whitespace().collect();
        let with = match plain.as_str() {
            "fpcontract(off)" | "fpcontract(on)" | "fpcontract(fast)" if self.strict => String::new(),
            "fpcontract(off)" | "fpcontract(on)" | "fpcontract(fast)" => {
                format!("#pragma clang fp {}", &plain["fp".len()..])
            }
            "fpmath_mode(safe)" | "internals:enable" | "internals:disable" => String::new(),
            _ => {
                let what = format!(
                    "'{text}' is not known to the emulator; expected 'fp contract(off)', 'fp contract(on)', \
                     'fp contract(fast)', 'fp math_mode(safe)' or 'internals : enable'"
                );
                return Err(self.refuse(i, what));
            }
        };
        self.replace(i, i + 1, &with);
        Ok(())
    }

    /// Metal's literals in C++: `h` makes a half, `bf` a bfloat, and a literal without suffix is a
    /// float.
    fn number(&mut self, i: usize) -> Result<(), Refusal> {
        let text = self.t.word(i);
        let lower = text.to_ascii_lowercase();
        let hexadecimal = lower.starts_with("0x");
        let floating = if hexadecimal { lower.contains('p') } else { lower.contains(['.', 'e']) };
        let as_float = |s: &str| if floating { format!("{s}f") } else { format!("{s}.0f") };
        if lower.ends_with('h') {
            self.replace(i, i + 1, &format!("((half) {})", as_float(&text[..text.len() - 1])));
        } else if lower.ends_with("bf") && !hexadecimal {
            self.replace(i, i + 1, &format!("(bfloat({}))", as_float(&text[..text.len() - 2])));
        } else if floating && lower.ends_with('l') {
            return Err(self.refuse(i, format!("'{text}': Metal has no double")));
        } else if floating && !lower.ends_with('f') {
            self.replace(i, i + 1, &format!("{text}f"));
        }
        Ok(())
    }

    /// Checks that a pointer or reference states its address space, as Metal requires: `float *x`
    /// is an error there. Only pointers to scalars, vectors, and types that the source declares are
    /// found.
    fn has_address_space(&self, i: usize, word: &str) -> Result<(), Refusal> {
        let stem = word.trim_end_matches(['2', '3', '4']);
        if !matches!(self.t.word(i + 1), "*" | "&")
            || self.t.word(i + 2) == "&"
            || matches!(self.t.word(i.wrapping_sub(1)), "." | "->")
            || !POINTED_TO.contains(&stem) && !self.types.is_type(word, i)
        {
            return Ok(());
        }
        let mut at = i;
        while at > 0 {
            match self.t.word(at - 1) {
                "const" | "volatile" | "typename" => at -= 1,
                "::" if at > 1 && self.t.list[at - 2].kind == Kind::Word => at -= 2,
                // A type of a template: earlier tokens are not searched.
                "::" | "device" | "constant" | "threadgroup" | "thread" => return Ok(()),
                _ => break,
            }
        }
        let what = format!(
            "a pointer or reference to '{word}' without an address space; expected 'device', 'constant', 'threadgroup' or 'thread'"
        );
        Err(self.refuse(i, what))
    }

    fn supported(&self, i: usize, word: &str) -> Result<(), Refusal> {
        if let Some((_, why)) = UNSUPPORTED.iter().find(|(name, _)| *name == word) {
            return Err(self.refuse(i, format!("'{word}' ({why}) is not executed by the emulator")));
        }
        let is_type = self.t.word(i + 1) == "<";
        if is_type
            && (word.starts_with("texture") || word.starts_with("depth2d") || word.starts_with("depthcube"))
        {
            return Err(self.refuse(i, format!("'{word}' (textures) is not executed by the emulator")));
        }
        let stage = matches!(word, "vertex" | "fragment")
            && self.t.list.get(i + 1).is_some_and(|t| t.kind == Kind::Word);
        if stage && self.open.is_empty() {
            return Err(self.refuse(i, format!("a '{word}' function; only kernels are executed")));
        }
        Ok(())
    }

    /// Attributes of a list, with their arguments as ranges of tokens, and the token after the
    /// list.
    fn attributes(&self, i: usize) -> Result<(Vec<Attribute>, usize), Refusal> {
        let end = self.t.closing(i)?;
        let (mut list, mut at) = (Vec::new(), i + 2);
        while at + 1 < end {
            if self.t.list[at].kind != Kind::Word {
                return Err(self.refuse(at, format!("'{}' in an attribute", self.t.word(at))));
            }
            let mut name = self.t.word(at).to_owned();
            let token = at;
            at += 1;
            while self.t.word(at) == "::" {
                name = format!("{name}::{}", self.t.word(at + 1));
                at += 2;
            }
            let mut arguments = at..at;
            if self.t.word(at) == "(" {
                let close = self.t.closing(at)?;
                arguments = at + 1..close;
                at = close + 1;
            }
            list.push(Attribute { name, token, arguments });
            if self.t.word(at) == "," {
                at += 1;
            }
        }
        Ok((list, end + 1))
    }

    /// The value of an integer constant expression of literals, `+`, `-`, `*` and parentheses.
    fn integer(&self, range: Range<usize>) -> Result<u32, Refusal> {
        self.integer_with(range, &HashMap::new())
    }

    /// As [`Self::integer`], with names whose expressions are known.
    fn integer_with(&self, range: Range<usize>, names: &Names<'_>) -> Result<u32, Refusal> {
        let mut at = range.start;
        let value = self.sum(&mut at, range.end, names);
        match value {
            Some(v) if at == range.end && u32::try_from(v).is_ok() => Ok(v as u32),
            _ => {
                let text = self.t.phrase(range.start, range.end);
                Err(self.refuse(
                    range.start,
                    format!("'{text}' is not an integer that the emulator can evaluate"),
                ))
            }
        }
    }

    fn sum(&self, at: &mut usize, end: usize, names: &Names<'_>) -> Option<i64> {
        let mut value = self.product(at, end, names)?;
        while *at < end && matches!(self.t.word(*at), "+" | "-") {
            let minus = self.t.word(*at) == "-";
            *at += 1;
            let next = self.product(at, end, names)?;
            value = if minus { value.checked_sub(next)? } else { value.checked_add(next)? };
        }
        Some(value)
    }

    fn product(&self, at: &mut usize, end: usize, names: &Names<'_>) -> Option<i64> {
        let mut value = self.factor(at, end, names)?;
        while *at < end && self.t.word(*at) == "*" {
            *at += 1;
            value = value.checked_mul(self.factor(at, end, names)?)?;
        }
        Some(value)
    }

    fn factor(&self, at: &mut usize, end: usize, names: &Names<'_>) -> Option<i64> {
        if *at >= end {
            return None;
        }
        let word = self.t.word(*at);
        *at += 1;
        if word == "(" {
            let value = self.sum(at, end, names)?;
            let closed = *at < end && self.t.word(*at) == ")";
            *at += 1;
            return closed.then_some(value);
        }
        if let Some(known) = names.get(word) {
            let mut from = known.start;
            return self.sum(&mut from, known.end, &HashMap::new()).filter(|_| from == known.end);
        }
        let digits = word.trim_end_matches(['u', 'U', 'l', 'L']);
        match digits.strip_prefix("0x").or_else(|| digits.strip_prefix("0X")) {
            Some(hex) => i64::from_str_radix(hex, 16).ok(),
            None => digits.parse().ok(),
        }
    }

    /// Applies the edits and appends the table of entry points.
    fn finish(mut self) -> Result<Rewritten, Refusal> {
        let functions = self.functions()?;
        let mut text = String::with_capacity(self.t.text.len() + 4096);
        self.edits.sort_by_key(|e| e.0);
        let mut at = 0;
        for (start, end, with) in &self.edits {
            text.push_str(&self.t.text[at..*start]);
            text.push_str(with);
            at = *end;
        }
        text.push_str(&self.t.text[at..]);
        text.push_str(&self.entry_points());
        Ok(Rewritten { text, functions, constants: self.constants })
    }
}

/// Tokens of the expressions that names stand for.
type Names<'a> = HashMap<&'a str, Range<usize>>;

/// One attribute of a list.
struct Attribute {
    name: String,
    token: usize,
    arguments: Range<usize>,
}

/// Text as a C++ string literal.
fn quoted(text: &str) -> String {
    format!("\"{}\"", text.replace('\\', "\\\\").replace('"', "\\\""))
}

#[cfg(test)]
mod tests;
