//! The address space `threadgroup`: pointers are kept, variables become references to storage that
//! lanes share.

use super::{Kind, Refusal, Rewriter};

impl Rewriter<'_> {
    /// Rewrites the word `threadgroup`, outside attributes.
    pub(super) fn threadgroup(&mut self, i: usize) -> Result<usize, Refusal> {
        let mut at = i + 1;
        // The type, and the name if this declares a variable.
        while at < self.t.list.len() {
            match self.t.word(at) {
                "::" => at += 1,
                "<" => at = self.t.closing(at)? + 1,
                "alignas" | "decltype" | "__attribute__" if self.t.word(at + 1) == "(" => {
                    at = self.t.closing(at + 1)? + 1
                }
                _ if self.t.list[at].kind == Kind::Word => at += 1,
                _ => break,
            }
        }
        match (self.t.word(at), self.t.word(at + 1)) {
            ("*" | "&", _) | ("(", "*" | "&") => Ok(i + 1),
            // The elements of a tensor: `tensor<threadgroup half, ...>`.
            ("," | ">", _) if i > 0 && self.t.word(i - 1) == "<" => Ok(i + 1),
            ("[" | ";" | "," | "=", _) if self.in_block() && at >= i + 3 => self.variable(i, at),
            _ => {
                let what = format!(
                    "'{}' is not recognised; a threadgroup variable is declared as 'threadgroup TYPE NAME[...];' in a kernel's body, \
                     anything else must be a pointer or reference",
                    self.t.phrase(i, at + 1)
                );
                Err(self.refuse(i, what))
            }
        }
    }

    /// The kernel that contains the body, with its own template parameters as arguments.
    fn kernel_address(&self) -> String {
        let Some(kernel) = self.kernels.last() else { return String::new() };
        match kernel.template_parameters.is_empty() {
            true => kernel.name.clone(),
            false => format!("{}<{}>", kernel.name, kernel.template_parameters.join(", ")),
        }
    }

    fn in_block(&self) -> bool {
        self.open.last().is_some_and(|&o| self.t.word(o) == "{")
    }

    /// `threadgroup TYPE NAME[N][M], ...;` where `at` is the token after the first name.
    fn variable(&mut self, i: usize, mut at: usize) -> Result<usize, Refusal> {
        let first = at - 1;
        let mut begin = i;
        while begin > 0 && matches!(self.t.word(begin - 1), "const" | "volatile" | "static") {
            begin -= 1;
        }
        if begin > 0
            && !matches!(self.t.word(begin - 1), ";" | "{" | "}" | ")" | ":")
            && self.t.list[begin - 1].kind != Kind::Directive
        {
            return Err(self.refuse(i, format!("a threadgroup variable after '{}'", self.t.word(begin - 1))));
        }
        if begin < i {
            return Err(self.refuse(begin, format!("'{}' before a threadgroup variable", self.t.word(begin))));
        }
        if self.body.is_none() {
            return Err(
                self.refuse(i, "a threadgroup variable outside of a kernel's body; helpers take a pointer")
            );
        }
        let type_name = self.t.phrase(i + 1, first);
        let mut text = String::new();
        let mut name = first;
        loop {
            if self.t.list[name].kind != Kind::Word {
                return Err(self.refuse(
                    name,
                    format!("'{}' in the declaration of a threadgroup variable", self.t.word(name)),
                ));
            }
            let dimensions = at;
            while self.t.word(at) == "[" && !self.attribute_at(at) {
                at = self.t.closing(at)? + 1;
            }
            let (n, d) = (self.t.word(name), self.t.phrase(dimensions, at));
            if !self.strict {
                let kernel = self.kernel_address();
                text.push_str(&format!(
                    "MSL_DECLARE(msl_memory_of_{n}_{i}, (&{kernel}), sizeof({type_name} {d}), \"{n}\") "
                ));
            }
            text.push_str(&format!(
                "threadgroup {type_name} (&{n}){d} = *(threadgroup {type_name} (*){d}) MSL_THREADGROUP(sizeof({type_name} {d}), \"{n}\"); "
            ));
            // Apple's compiler takes zeros, and memory is as undefined as without.
            if self.t.word(at) == "=" && self.t.word(at + 1) == "{" {
                let close = self.t.closing(at + 1)?;
                if (at + 2..close).all(|k| matches!(self.t.word(k), "0" | "0.0" | "0.0f")) {
                    at = close + 1;
                }
            }
            match self.t.word(at) {
                ";" => break,
                "," => {
                    name = at + 1;
                    at += 2;
                }
                "=" => {
                    return Err(self.refuse(
                        at,
                        format!("threadgroup variable '{n}' has an initialiser, which Metal does not allow"),
                    ));
                }
                other => {
                    return Err(self
                        .refuse(at, format!("'{other}' in the declaration of threadgroup variable '{n}'")));
                }
            }
        }
        self.replace(i, at + 1, text.trim_end());
        Ok(at + 1)
    }
}
