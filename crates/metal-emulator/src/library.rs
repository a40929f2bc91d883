//! A compiled source: its functions, their parameters and its function constants.

use crate::compiler::Mode;
use crate::error::Error;
use crate::pipeline::Pipeline;
use std::path::PathBuf;

/// A kernel, by its host name.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Function {
    /// The host name, or the function's own if it has none.
    pub name: String,
    /// In the order of declaration.
    pub parameters: Vec<Parameter>,
    /// `max_total_threads_per_threadgroup`, if declared.
    pub max_threads: Option<u32>,
    /// Indices of the function constants that a pipeline must set: those that the function and its
    /// callees mention. Empty if `is_function_constant_defined` is used, which makes all of them
    /// optional.
    pub constants: Vec<u16>,
}

/// A parameter of a kernel.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Parameter {
    /// Its name in the source.
    pub name: String,
    /// Its type in the source, address space included.
    pub type_name: String,
    /// Where its value comes from.
    pub kind: ParameterKind,
    /// Whether the kernel may write through it.
    pub writable: bool,
    /// The function constant that it depends on, if any.
    pub condition: Option<String>,
}

/// Where a parameter's value comes from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ParameterKind {
    /// `[[buffer(n)]]`
    Buffer(u32),
    /// `[[threadgroup(n)]]`
    Threadgroup(u32),
    /// A position, by the name of its attribute.
    Position(&'static str),
}

/// A function constant that a source declares.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ConstantDeclaration {
    /// `[[function_constant(index)]]`
    pub index: u16,
    /// Its name in the source.
    pub name: String,
    /// Its type: `bool`, `uint`, `float`, ...
    pub type_name: String,
    /// Bytes of the type.
    pub size: u32,
}

/// A value for a function constant, as given to `MTLFunctionConstantValues`.
#[derive(Debug, Clone, Copy, PartialEq)]
#[allow(missing_docs)]
pub enum Constant {
    Bool(bool),
    Char(i8),
    UChar(u8),
    Short(i16),
    UShort(u16),
    Int(i32),
    UInt(u32),
    Long(i64),
    ULong(u64),
    Float(f32),
    /// As its 16 bits.
    Half(u16),
}

impl Constant {
    pub(crate) fn bits(self) -> u64 {
        match self {
            Constant::Bool(v) => u64::from(v),
            Constant::Char(v) => u64::from(v as u8),
            Constant::UChar(v) => u64::from(v),
            Constant::Short(v) => u64::from(v as u16),
            Constant::UShort(v) => u64::from(v),
            Constant::Int(v) => u64::from(v as u32),
            Constant::UInt(v) => u64::from(v),
            Constant::Long(v) => v as u64,
            Constant::ULong(v) => v,
            Constant::Float(v) => u64::from(v.to_bits()),
            Constant::Half(v) => u64::from(v),
        }
    }

    fn type_names(self) -> &'static [&'static str] {
        match self {
            Constant::Bool(_) => &["bool"],
            Constant::Char(_) => &["char"],
            Constant::UChar(_) => &["uchar"],
            Constant::Short(_) => &["short"],
            Constant::UShort(_) => &["ushort"],
            Constant::Int(_) => &["int", "int32_t"],
            Constant::UInt(_) => &["uint", "uint32_t"],
            Constant::Long(_) => &["long"],
            Constant::ULong(_) => &["ulong"],
            Constant::Float(_) => &["float"],
            Constant::Half(_) => &["half"],
        }
    }
}

/// A compiled translation unit.
#[derive(Debug, Clone)]
pub struct Library {
    pub(crate) path: PathBuf,
    pub(crate) functions: Vec<Function>,
    pub(crate) constants: Vec<ConstantDeclaration>,
    pub(crate) mode: Mode,
}

impl Library {
    /// Its kernels.
    pub fn functions(&self) -> &[Function] {
        &self.functions
    }

    /// The function constants that its source declares.
    pub fn constants(&self) -> &[ConstantDeclaration] {
        &self.constants
    }

    /// A kernel specialised by function constants, ready to be dispatched.
    ///
    /// # Errors
    ///
    /// [`Error::NoFunction`]; [`Error::Constant`] if a value does not have the declared type, if
    /// the source declares no such constant, or if one that the function mentions is missing; and
    /// the loader's errors.
    pub fn pipeline(&self, function: &str, constants: &[(u16, Constant)]) -> Result<Pipeline, Error> {
        let Some(index) = self.functions.iter().position(|f| f.name == function) else {
            let known = self.functions.iter().map(|f| f.name.clone()).collect();
            return Err(Error::NoFunction { name: function.to_owned(), known });
        };
        for (n, (i, value)) in constants.iter().enumerate() {
            let Some(declared) = self.constants.iter().find(|c| c.index == *i) else {
                return Err(Error::Constant { index: *i, what: "the source does not declare it".to_owned() });
            };
            if !value.type_names().contains(&declared.type_name.as_str()) {
                let what = format!(
                    "'{}' is declared as {}, and {value:?} was given",
                    declared.name, declared.type_name
                );
                return Err(Error::Constant { index: *i, what });
            }
            if constants[..n].iter().any(|(o, _)| o == i) {
                return Err(Error::Constant {
                    index: *i,
                    what: format!("'{}' is given twice", declared.name),
                });
            }
        }
        for needed in &self.functions[index].constants {
            if !constants.iter().any(|(i, _)| i == needed) {
                let name = self.constants.iter().find(|c| c.index == *needed).map_or("", |c| &c.name);
                let what = format!("'{name}' is used by {function} and has no value");
                return Err(Error::Constant { index: *needed, what });
            }
        }
        Pipeline::load(self, index, constants)
    }
}
