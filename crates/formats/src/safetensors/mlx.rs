//! MLX's quantised weights. config.json has `"quantization": {"group_size": 64, "bits": 4}`, and a
//! matrix `X.weight` `[n_out, n_in]` is stored as three tensors:
//!
//! | tensor | type | shape |
//! |---|---|---|
//! | `X.weight` | U32 | `[n_out, n_in * bits / 32]`, the integers as one stream of bits a row |
//! | `X.scales` | BF16, F16 or F32 | `[n_out, n_in / group_size]` |
//! | `X.biases` | as the scales | `[n_out, n_in / group_size]` |
//!
//! This module joins them to one [`Tensor`] named `X.weight` with [`BlockType::Affine`]. The three
//! may be in different files of a set. Stacks of matrices (experts) have one more dimension in
//! front.
//!
//! Modules may differ: `"quantization": {…, "model.layers.0.mlp.gate": {"group_size": 64, "bits":
//! 8}, "lm_head": false}`. See <https://github.com/ml-explore/mlx-lm> and `mlx.core.quantize`.

use std::collections::HashMap;
use std::path::Path;

use serde_json::Value as Json;

use super::header::{Item, Packed};
use weights::{Affine, BlockType, Error, LeftOut, Planes, Result, ScaleType, Tensor};

/// The quantisation of a module.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Scheme {
    bits: usize,
    group: usize,
}

/// The quantisation in config.json.
#[derive(Debug)]
pub(super) struct Quantization {
    default: Scheme,
    /// Modules that differ; `None` for a module of floats.
    modules: HashMap<String, Option<Scheme>>,
}

impl Quantization {
    /// Reads MLX's `quantization` object of config.json (`quantization_config` in some), if there
    /// is one.
    pub fn from_config(config: &Json, path: &Path) -> Result<Option<Quantization>> {
        // Objects of other tools have the same name, and a `quant_method`.
        let named = |key| config.get(key).filter(|q| q.is_object() && q.get("quant_method").is_none());
        let Some((key, object)) = ["quantization", "quantization_config"]
            .into_iter()
            .find_map(|key| Some((key, named(key)?.as_object()?)))
        else {
            return Ok(None);
        };
        let default = Scheme::read(object, key, path)?;
        let mut modules = HashMap::new();
        for (name, value) in object {
            let scheme = match value {
                Json::Bool(false) => None,
                Json::Bool(true) => Some(default),
                Json::Object(own) => Some(Scheme::read(own, &format!("{key}.{name}"), path)?),
                _ => continue,
            };
            modules.insert(name.clone(), scheme);
        }
        Ok(Some(Quantization { default, modules }))
    }

    fn scheme(&self, module: &str) -> Option<Scheme> {
        self.modules.get(module).copied().unwrap_or(Some(self.default))
    }
}

impl Scheme {
    fn read(object: &serde_json::Map<String, Json>, at: &str, path: &Path) -> Result<Scheme> {
        if let Some(mode) = object.get("mode").filter(|mode| mode.as_str() != Some("affine")) {
            return Err(Error::unsupported(path, format_args!("key \"{at}.mode\""), mode, "\"affine\""));
        }
        // Missing keys have MLX's defaults.
        let number = |key: &str, default: usize, known: &[usize]| match object.get(key) {
            None => Ok(default),
            Some(value) => {
                value.as_u64().and_then(|n| known.iter().copied().find(|&k| k as u64 == n)).ok_or_else(|| {
                    Error::unsupported(
                        path,
                        format_args!("key \"{at}.{key}\""),
                        value,
                        format_args!("{known:?}"),
                    )
                })
            }
        };
        Ok(Scheme {
            bits: number("bits", 4, &Affine::BITS)?,
            group: number("group_size", 64, &Affine::GROUPS)?,
        })
    }
}

/// Joins the parts of quantised matrices; other tensors stay unchanged. `dir` names the folder in
/// errors.
pub(super) fn assemble(
    items: Vec<Item>,
    quantization: &Quantization,
    dir: &Path,
) -> Result<(Vec<Tensor>, Vec<LeftOut>)> {
    // Slots keep the file's order; a joined part leaves an empty one.
    let mut slots: Vec<Option<Tensor>> = Vec::with_capacity(items.len());
    let (mut packed, mut left_out) = (Vec::new(), Vec::new());
    let mut by_name = HashMap::new();
    for item in items {
        match item {
            Item::Float(tensor) => {
                by_name.insert(tensor.name.clone(), slots.len());
                slots.push(Some(tensor));
            }
            Item::Packed(part) => {
                packed.push((slots.len(), part));
                slots.push(None);
            }
            Item::LeftOut(tensor) => left_out.push(tensor),
        }
    }
    for (slot, part) in packed {
        // U32 tensors with other names are not weights.
        let Some(module) = part.name.strip_suffix(".weight") else {
            left_out.push(LeftOut::of_type(part.name, "U32"));
            continue;
        };
        let module = module.to_owned();
        let mut plane = |suffix: &str| {
            by_name.get(&format!("{module}.{suffix}")).and_then(|&slot: &usize| slots[slot].take())
        };
        let planes = [plane("scales"), plane("biases")];
        slots[slot] = Some(matrix(part, quantization.scheme(&module), planes, dir)?);
    }
    Ok((slots.into_iter().flatten().collect(), left_out))
}

/// Makes a quantised matrix from its integers, scales and biases.
fn matrix(
    part: Packed,
    scheme: Option<Scheme>,
    [scales, biases]: [Option<Tensor>; 2],
    dir: &Path,
) -> Result<Tensor> {
    let at = format!("tensor {:?}", part.name);
    let Some(Scheme { bits, group }) = scheme else {
        let expected = "floats, because config.json has false for this module";
        return Err(Error::malformed(dir, at, "packed integers", expected));
    };
    let present = |plane: Option<Tensor>, suffix: &str| {
        plane.ok_or_else(|| {
            let module = part.name.strip_suffix(".weight").unwrap_or(&part.name);
            let found = format_args!("no float tensor \"{module}.{suffix}\"").to_string();
            Error::malformed(dir, &at, found, "one beside the packed integers")
        })
    };
    let (scales, biases) = (present(scales, "scales")?, present(biases, "biases")?);

    let n_packed = part.shape.last().copied().unwrap_or(1);
    let n_cols = n_packed
        .checked_mul(32)
        .map(|n_bits| n_bits / bits)
        .filter(|n| n.is_multiple_of(group) && n_packed * 32 == n * bits)
        .ok_or_else(|| {
            let expected = format_args!("whole groups of {group} values of {bits} bits").to_string();
            Error::malformed(dir, &at, format_args!("rows of {n_packed} u32"), expected)
        })?;
    let mut shape = part.shape;
    if let Some(last) = shape.last_mut() {
        *last = n_cols / group;
    }
    for plane in [&scales, &biases] {
        if plane.shape != shape || plane.block != scales.block {
            return Err(Error::malformed(
                dir,
                format_args!("tensor {:?}", plane.name),
                format_args!("{} of shape {:?}", plane.block, plane.shape),
                format_args!("{} of shape {shape:?}, for {bits} bits in groups of {group}", scales.block),
            ));
        }
    }
    if let Some(last) = shape.last_mut() {
        *last = n_cols;
    }
    let scale = match scales.block {
        BlockType::F32 => ScaleType::F32,
        BlockType::F16 => ScaleType::F16,
        _ => ScaleType::BF16,
    };
    let Some(affine) = Affine::new(bits, group, scale, false) else {
        unreachable!("the scheme was checked when it was read")
    };
    Ok(Tensor {
        name: part.name,
        shape,
        block: BlockType::Affine(affine),
        data: part.data,
        planes: Planes { scales: Some(scales.data), biases: Some(biases.data) },
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(json: &str) -> Result<Option<Quantization>> {
        Quantization::from_config(&serde_json::from_str(json).unwrap(), Path::new("config.json"))
    }

    #[test]
    fn modules_override_the_default() {
        let q = read(
            r#"{"quantization": {"group_size": 64, "bits": 4, "mode": "affine", "a.b": {"group_size": 32, "bits": 8},
                "c": false, "d": true, "e": {"bits": 6}}}"#,
        )
        .unwrap()
        .unwrap();
        assert_eq!(q.scheme("x"), Some(Scheme { bits: 4, group: 64 }));
        assert_eq!(q.scheme("a.b"), Some(Scheme { bits: 8, group: 32 }));
        assert_eq!(q.scheme("c"), None);
        assert_eq!(q.scheme("d"), Some(Scheme { bits: 4, group: 64 }));
        assert_eq!(q.scheme("e"), Some(Scheme { bits: 6, group: 64 }));
        assert!(read("{}").unwrap().is_none());
        assert!(read(r#"{"quantization_config": {"quant_method": "awq", "bits": 4}}"#).unwrap().is_none());
        assert!(read(r#"{"quantization_config": {"group_size": 64, "bits": 4}}"#).unwrap().is_some());
        for (json, part) in [
            (r#"{"quantization": {"bits": 7}}"#, "quantization.bits"),
            (r#"{"quantization": {"bits": "4"}}"#, "quantization.bits"),
            (r#"{"quantization": {"group_size": -1}}"#, "quantization.group_size"),
            (r#"{"quantization": {"a": {"group_size": 16}}}"#, "quantization.a.group_size"),
            (r#"{"quantization": {"mode": "mxfp4"}}"#, "quantization.mode"),
        ] {
            let message = read(json).unwrap_err().to_string();
            assert!(message.contains(part) && message.contains("config.json"), "{message}");
        }
    }
}
