//! Reads model.bin. The file is untrusted.

use std::collections::{HashMap, HashSet};
use std::fmt;
use std::path::Path;
use std::sync::Arc;

use super::BINARY_VERSION;
use crate::cursor::Cursor;
use weights::{Array, BlockType, Bytes, Error, Map, Planes, Result, Tensor, Value, codec};

/// The content of model.bin.
#[derive(Clone, Debug)]
pub struct Model {
    /// The name of the specification, `WhisperSpec`.
    pub spec: String,
    /// The specification's revision.
    pub revision: u32,
    /// Variables without dimensions, and lists of integers.
    pub settings: Vec<(String, Value)>,
    /// The weights and their aliases; an alias has the variable's bytes and another name.
    pub tensors: Vec<Tensor>,
}

/// The type of a variable.
#[derive(Clone, Copy, PartialEq, Eq)]
enum DType {
    F32,
    I8,
    I16,
    I32,
    F16,
    BF16,
}

impl DType {
    fn from_id(id: u8) -> Option<DType> {
        use DType::*;
        [F32, I8, I16, I32, F16, BF16].get(usize::from(id)).copied()
    }

    fn bytes(self) -> usize {
        match self {
            DType::I8 => 1,
            DType::I16 | DType::F16 | DType::BF16 => 2,
            DType::F32 | DType::I32 => 4,
        }
    }

    /// The float type with this id, if it is one.
    fn float(self) -> Option<BlockType> {
        match self {
            DType::F32 => Some(BlockType::F32),
            DType::F16 => Some(BlockType::F16),
            DType::BF16 => Some(BlockType::BF16),
            DType::I8 | DType::I16 | DType::I32 => None,
        }
    }
}

struct Variable {
    name: String,
    shape: Vec<usize>,
    dtype: DType,
    /// The variable's bytes, whose number fits the shape and type.
    data: Bytes,
}

/// Parses the bytes of model.bin; `path` only names the file in errors.
///
/// # Errors
/// Bytes that break the format, or a matrix of integers without scales.
pub fn parse(map: Arc<Map>, path: &Path) -> Result<Model> {
    let mut cursor = Cursor::new(&map, path);
    let version = cursor.u32(format_args!("binary version"))?;
    if version != BINARY_VERSION {
        return Err(Error::unsupported(
            path,
            "binary version",
            version,
            format_args!("version {BINARY_VERSION}; convert the model again"),
        ));
    }
    let spec = cursor.nul_string(format_args!("specification"))?.to_owned();
    let revision = cursor.u32(format_args!("revision"))?;

    // The smallest variable has an empty name, no dimensions, a type and a size.
    let n_variables = cursor.u32(format_args!("number of variables"))?;
    let n_variables =
        cursor.room_for(n_variables.into(), 3 + 1 + 1 + 4, format_args!("number of variables"))?;
    let mut variables = Vec::new();
    let mut index = HashMap::new();
    for i in 0..n_variables {
        let variable = read_variable(&mut cursor, i)?;
        if index.insert(variable.name.clone(), i).is_some() {
            return Err(twice(&cursor, &variable.name));
        }
        variables.push(variable);
    }
    let n_aliases = cursor.u32(format_args!("number of aliases"))?;
    let n_aliases = cursor.room_for(n_aliases.into(), 3 + 3, format_args!("number of aliases"))?;
    let mut aliases = Vec::new();
    let mut alias_names = HashSet::new();
    for i in 0..n_aliases {
        let alias = cursor.nul_string(format_args!("alias {i}"))?.to_owned();
        let target = cursor.nul_string(format_args!("target of alias {alias:?}"))?;
        if index.contains_key(&alias) || !alias_names.insert(alias.clone()) {
            return Err(twice(&cursor, &alias));
        }
        let Some(&target) = index.get(target) else {
            return Err(cursor.error(
                format_args!("alias {alias:?}"),
                format_args!("the target {target:?}"),
                "the name of a variable",
            ));
        };
        aliases.push((alias, target));
    }
    if cursor.remaining() > 0 {
        return Err(cursor.error(
            format_args!("end"),
            format_args!("{} more bytes", cursor.remaining()),
            "none after the aliases",
        ));
    }

    let mut aliases_of: HashMap<usize, Vec<String>> = HashMap::new();
    for (alias, target) in aliases {
        aliases_of.entry(target).or_default().push(alias);
    }
    let mut model = Model { spec, revision, settings: Vec::new(), tensors: Vec::new() };
    for (i, variable) in variables.iter().enumerate() {
        let aliases = aliases_of.remove(&i).unwrap_or_default();
        match meaning(variable, &variables, &index, path)? {
            // Aliases are for tied weights, which share bytes. A list would be copied for each
            // alias.
            Meaning::Setting(Value::Array(_)) if !aliases.is_empty() => {
                return Err(Error::unsupported(
                    path,
                    format_args!("alias {:?}", aliases.first().map_or("", String::as_str)),
                    format_args!("the target {:?}, a list of integers", variable.name),
                    "aliases of weights",
                ));
            }
            Meaning::Setting(value) => {
                model.settings.extend(aliases.into_iter().map(|alias| (alias, value.clone())));
                model.settings.push((variable.name.clone(), value));
            }
            Meaning::Weight(tensor) => {
                model.tensors.extend(aliases.into_iter().map(|name| Tensor { name, ..tensor.clone() }));
                model.tensors.push(tensor);
            }
            Meaning::Nothing => {}
        }
    }
    Ok(model)
}

fn twice(cursor: &Cursor, name: &str) -> Error {
    cursor.error(format_args!("variable {name:?}"), "the name a second time", "every name once")
}

fn read_variable(cursor: &mut Cursor, i: usize) -> Result<Variable> {
    let name = cursor.nul_string(format_args!("name of variable {i}"))?.to_owned();
    let at = format_args!("variable {name:?}");
    let [rank] = cursor.array(at)?;
    let mut shape = Vec::with_capacity(usize::from(rank));
    for _ in 0..rank {
        shape.push(cursor.u32(at)? as usize);
    }
    let [id] = cursor.array(at)?;
    let dtype = DType::from_id(id)
        .ok_or_else(|| cursor.error(at, format_args!("type {id}"), "a type from 0 to 5"))?;
    let n_bytes = cursor.u32(at)? as usize;
    let needed = shape.iter().try_fold(dtype.bytes(), |n, &dim| n.checked_mul(dim));
    if needed != Some(n_bytes) {
        return Err(cursor.error(
            at,
            format_args!("{n_bytes} bytes for the shape {shape:?}"),
            needed.map_or("an addressable number".to_owned(), |n| n.to_string()),
        ));
    }
    let start = cursor.at;
    cursor.take(n_bytes, at)?;
    let data = cursor.bytes(start..cursor.at, at)?;
    Ok(Variable { name, shape, dtype, data })
}

/// The use of a variable.
enum Meaning {
    Setting(Value),
    Weight(Tensor),
    /// Scales that belong to another variable, or no values.
    Nothing,
}

fn meaning(
    variable: &Variable,
    variables: &[Variable],
    index: &HashMap<String, usize>,
    path: &Path,
) -> Result<Meaning> {
    let Variable { name, shape, dtype, data } = variable;
    let find = |name: &str| index.get(name).and_then(|&i| variables.get(i));
    if data.is_empty() {
        return Ok(Meaning::Nothing);
    }
    if let Some(weight) = name.strip_suffix("_scale").and_then(find)
        && weight.dtype.float().is_none()
    {
        return Ok(Meaning::Nothing);
    }
    if let Some(block) = dtype.float() {
        if shape.is_empty() {
            return Ok(Meaning::Setting(Value::Float(
                floats(block, data).first().copied().unwrap_or(0.0).into(),
            )));
        }
        let tensor = Tensor {
            name: name.clone(),
            shape: shape.clone(),
            block,
            data: data.clone(),
            planes: Planes::default(),
        };
        return Ok(Meaning::Weight(tensor));
    }
    if let Some(scale) = find(&format!("{name}_scale")) {
        return scaled(variable, scale, path).map(Meaning::Weight);
    }
    let mut ints = integers(*dtype, data);
    match (shape.len(), ints.first()) {
        (0, Some(&int)) => Ok(Meaning::Setting(Value::Int(int.into()))),
        (1, _) => Ok(Meaning::Setting(Value::Array(Array::Int(std::mem::take(&mut ints))))),
        _ => Err(Error::unsupported(
            path,
            format_args!("variable {name:?}"),
            format_args!("a matrix of integers without {:?}", format!("{name}_scale")),
            "int8 and int16 with scales, float32, float16, bfloat16",
        )),
    }
}

/// A weight of integers with its scales.
fn scaled(variable: &Variable, scale: &Variable, path: &Path) -> Result<Tensor> {
    let Variable { name, shape, dtype, data } = variable;
    let block = match dtype {
        DType::I8 => BlockType::I8_ROWS,
        DType::I16 => BlockType::I16_ROWS,
        _ => {
            return Err(Error::unsupported(
                path,
                format_args!("variable {name:?}"),
                "32-bit integers with scales (AWQ)",
                "int8 and int16 with scales, float32, float16, bfloat16",
            ));
        }
    };
    let n_rows: usize = shape.iter().rev().skip(1).product();
    let Some(scale_type) = scale.dtype.float() else {
        return Err(Error::malformed(path, format_args!("variable {:?}", scale.name), "integers", "floats"));
    };
    let n_scales = scale.data.len() / scale.dtype.bytes();
    let plane = if n_scales == n_rows && scale_type == BlockType::F32 {
        scale.data.clone()
    } else if n_scales > 0
        && n_rows.is_multiple_of(n_scales)
        && (n_scales == n_rows || n_scales == 1 || shape.first() == Some(&n_scales))
    {
        // There is one scale for all, or, for a convolution `[n_out, n_in, width]`, one an output.
        // It is repeated for each row.
        let repeated = floats(scale_type, &scale.data);
        let repeated = repeated.into_iter().flat_map(|v| std::iter::repeat_n(v, n_rows / n_scales));
        Bytes::from_slice(&repeated.flat_map(f32::to_le_bytes).collect::<Vec<u8>>())
    } else {
        return Err(Error::malformed(
            path,
            format_args!("variable {:?}", scale.name),
            format_args!("{n_scales} scales for the shape {shape:?}"),
            "one, one an output, or one a row",
        ));
    };
    Ok(Tensor {
        name: name.clone(),
        shape: shape.clone(),
        block,
        data: data.clone(),
        planes: Planes { scales: Some(plane), biases: None },
    })
}

fn floats(block: BlockType, data: &[u8]) -> Vec<f32> {
    let mut values = vec![0.0; data.len() / block.block_bytes()];
    codec::dequantize_row(block, data, &mut values);
    values
}

fn integers(dtype: DType, data: &[u8]) -> Vec<i64> {
    match dtype {
        DType::I8 => data.iter().map(|&b| i64::from(b as i8)).collect(),
        DType::I16 => data.as_chunks().0.iter().map(|&b| i16::from_le_bytes(b).into()).collect(),
        _ => data.as_chunks().0.iter().map(|&b| i32::from_le_bytes(b).into()).collect(),
    }
}

impl<'a> Cursor<'a> {
    /// A string: a u16 length, that many bytes less one, and a NUL.
    fn nul_string(&mut self, at: fmt::Arguments) -> Result<&'a str> {
        let len = u16::from_le_bytes(self.array(at)?);
        let bytes = self.take(len.into(), at)?;
        match bytes.split_last() {
            Some((0, text)) => self.text(text, at),
            _ => Err(self.error(at, "no NUL at the end", "a NUL")),
        }
    }
}
