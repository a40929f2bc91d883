//! A compiled source: its functions, their parameters and its function constants.

use crate::options::Mode;
use std::path::PathBuf;

/// A kernel, by its host name.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Function {
    /// The host name, or the function's own if it has none.
    pub name: String,
    /// Parameters, in the order of declaration.
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
    /// Source of its value.
    pub kind: ParameterKind,
    /// True if the kernel may write through it.
    pub writable: bool,
    /// The function constant that it depends on, if any.
    pub condition: Option<String>,
}

impl Parameter {
    /// Returns true if it points to constant memory.
    pub(crate) fn is_constant(&self) -> bool {
        self.type_name.split(|c: char| !c.is_alphanumeric() && c != '_').any(|word| word == "constant")
    }
}

/// Source of a parameter's value.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ParameterKind {
    /// `[[buffer(n)]]`
    Buffer(u32),
    /// `[[threadgroup(n)]]`
    Threadgroup(u32),
    /// A position attribute, by name.
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

/// A value for a function constant, as in `MTLFunctionConstantValues`.
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
    /// The 16 bits of a half.
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

    pub(crate) fn type_names(self) -> &'static [&'static str] {
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
}
