//! From a checkpoint under Hugging Face's names to the same model under GGUF's, as llama.cpp's converter writes it.
//!
//! Names of tensors and keys come from the tables that loading uses ([`crate::names`]), read in the other direction; the
//! numbers come from the [`ModelSpec`], so that what config.json leaves out is written too. What differs between the two
//! conventions is descriptor data: rows of queries and keys are reordered where GGUF rotates neighbours, norms get the 1
//! that some authors store them less. Experts become one tensor, tied heads are left out, vectors and routers are F32.
//!
//! The result is read back before it is given out: a number for which the format has no place is an error, never lost.
//! llama.cpp itself ignores a few keys that are read here: the window of Mistral and Phi-3, `attention.scale` outside of
//! Granite, `expert_weights_norm` of Qwen.

mod metadata;
mod recipe;
mod rows;
mod verify;

use formats::{BlockType, Checkpoint, Metadata, Naming, Tensor, Value};

use crate::descriptor::ArchDescriptor;
use crate::error::{Error, Result, naming_word};
use crate::families::FAMILIES;
use crate::spec::ModelSpec;

use recipe::Recipe;

/// The version of the block types, the only one in use.
const QUANTIZATION_VERSION: i128 = 2;

/// A checkpoint under GGUF's names, whose tensors are made one at a time: stacked experts are copies, and those of all
/// layers at once would take the model's size in memory.
#[derive(Debug)]
pub struct GgufExport {
    /// All keys but `general.file_type`, which depends on the types that are written: [`file_type`].
    pub metadata: Metadata,
    /// Tensors of the source that the model does not use, and that are left out: other parts of a multimodal model, heads
    /// of its training, a head that is the embedding.
    pub unused_tensors: Vec<String>,
    /// What else the format has no place for, in words.
    pub notes: Vec<String>,
    recipes: Vec<Recipe>,
}

impl GgufExport {
    /// Number of tensors.
    pub fn n_tensors(&self) -> usize {
        self.recipes.len()
    }

    /// Name, shape (outermost first) and type of tensor `i`; `None` past the last. Affine types that GGUF has no twin of
    /// stay what they are, for the writer to convert or to refuse.
    pub fn declaration(&self, i: usize) -> Option<(&str, &[usize], BlockType)> {
        self.recipes.get(i).map(|r| (r.name.as_str(), r.shape.as_slice(), r.block()))
    }

    /// Make tensor `i`: a view of the source where its bytes are the same.
    ///
    /// # Errors
    /// There are not as many, or the source's bytes do not fit its shape.
    pub fn tensor(&self, i: usize) -> Result<Tensor> {
        let recipe = self.recipes.get(i).ok_or_else(|| Error::Export {
            what: "tensor".to_owned(),
            found: format!("number {i}"),
            expected: format!("below {}", self.recipes.len()),
        })?;
        rows::make(recipe)
    }

    /// All of it at once.
    ///
    /// # Errors
    /// As [`Self::tensor`].
    pub fn checkpoint(&self) -> Result<Checkpoint> {
        let tensors = (0..self.n_tensors()).map(|i| self.tensor(i)).collect::<Result<Vec<_>>>()?;
        let mut metadata = self.metadata.clone();
        let sizes = tensors.iter().map(|t| (t.block, t.n_rows() * t.n_cols()));
        if let Some(file_type) = file_type(sizes) {
            metadata.insert("general.file_type".to_owned(), Value::Int(file_type));
        }
        let file_bytes = tensors.iter().map(|t| t.n_bytes() as u64).sum();
        Ok(Checkpoint { naming: Naming::Gguf, metadata, tensors, format: "GGUF".to_owned(), file_bytes })
    }
}

/// A checkpoint under Hugging Face's names, which `spec` was read from, under GGUF's.
///
/// `name` becomes `general.name`. `tokenizer` holds the keys `tokenizer.…`, as the text crate makes them for
/// [`ModelSpec::n_vocab`] tokens; without them the file says that it carries no vocabulary.
///
/// # Errors
/// The checkpoint has other names, GGUF has no name for the family or one of its tensors, or a number has no place there.
pub fn to_gguf(
    checkpoint: &Checkpoint,
    spec: &ModelSpec,
    name: &str,
    tokenizer: Option<&Metadata>,
) -> Result<GgufExport> {
    if checkpoint.naming != Naming::HuggingFace || spec.naming != Naming::HuggingFace {
        return Err(Error::Export {
            what: "names".to_owned(),
            found: naming_word(checkpoint.naming).to_owned(),
            expected: "those of a Hugging Face checkpoint".to_owned(),
        });
    }
    let (architecture, target) = target(spec.family)?;
    let mut notes = Vec::new();
    let mut metadata = metadata::general(architecture, name);
    metadata::numbers(checkpoint, spec, target, architecture, &mut metadata, &mut notes)?;
    let mut recipes = recipe::of_all(checkpoint, spec, target)?;
    recipes.extend(recipe::of_rope(spec));
    metadata::vocabulary(tokenizer, &recipes, &mut metadata);
    metadata.insert("general.quantization_version".to_owned(), Value::Int(QUANTIZATION_VERSION));
    verify::same_model(spec, target, architecture, &metadata, &recipes)?;
    Ok(GgufExport { metadata, unused_tensors: spec.unused_tensors.clone(), notes, recipes })
}

/// The name of the architecture, and the family that answers to it.
fn target(family: &'static ArchDescriptor) -> Result<(&'static str, &'static ArchDescriptor)> {
    let name = family.gguf_as.or(family.gguf.first().copied());
    let target = name.and_then(|name| Some((name, FAMILIES.iter().find(|f| f.gguf.contains(&name))?)));
    target.ok_or_else(|| Error::Export {
        what: "family".to_owned(),
        found: family.title.to_owned(),
        expected: "one that GGUF has a name for".to_owned(),
    })
}

/// `general.file_type` of a file with tensors of these types and numbers of values: the number of the type that most values
/// have. `None` where the format has none for it.
pub fn file_type(tensors: impl Iterator<Item = (BlockType, usize)>) -> Option<i128> {
    let mut sums: Vec<(BlockType, usize)> = Vec::new();
    for (block, n_values) in tensors {
        match sums.iter_mut().find(|(known, _)| *known == block) {
            Some((_, sum)) => *sum = sum.saturating_add(n_values),
            None => sums.push((block, n_values)),
        }
    }
    use BlockType::*;
    Some(match sums.into_iter().max_by_key(|(_, sum)| *sum)?.0 {
        F32 => 0,
        F16 => 1,
        Q4_0 => 2,
        Q4_1 => 3,
        Q8_0 => 7,
        Q5_0 => 8,
        Q5_1 => 9,
        Q2_K => 10,
        // Of the mixtures, the medium ones, which are the usual.
        Q3_K => 12,
        Q4_K => 15,
        Q5_K => 17,
        Q6_K => 18,
        IQ2_XXS => 19,
        IQ2_XS => 20,
        IQ3_XXS => 23,
        IQ1_S => 24,
        IQ4_NL => 25,
        IQ3_S => 26,
        IQ2_S => 28,
        IQ4_XS => 30,
        IQ1_M => 31,
        BF16 => 32,
        TQ1_0 => 36,
        TQ2_0 => 37,
        MXFP4 => 38,
        NVFP4 => 39,
        Q1_0 => 40,
        Affine(_) | I8_ROWS | I16_ROWS => return None,
    })
}
