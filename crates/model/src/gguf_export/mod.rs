//! Writes a checkpoint with Hugging Face names under GGUF names, as llama.cpp's converter does.
//!
//! Names of tensors and keys come from the tables used for loading ([`crate::names`]). Numbers come
//! from the [`ModelSpec`], so that defaults missing in config.json are written too. Differences
//! between the conventions are descriptor data. Query and key rows are permuted if GGUF rotates
//! neighbouring columns. Norms get the 1 that some checkpoints leave out. Experts become one
//! tensor, tied heads are omitted, and vectors and routers are F32.
//!
//! The result is read back before it is returned, so that a number that the format cannot store is
//! an error. The reader of llama.cpp ignores a few keys that this crate reads: the window of
//! Mistral and Phi-3, `attention.scale` outside of Granite, and `expert_weights_norm` of Qwen.

mod metadata;
mod mmproj;
mod recipe;
mod recurrent;
mod rows;
mod sink;
mod verify;

use weights::{Checkpoint, Declaration, Metadata, Naming, Source, SourceError, Tensor, Value};

use crate::descriptor::ArchDescriptor;
use crate::error::{Error, Result, naming_word};
use crate::families::FAMILIES;
use crate::spec::ModelSpec;

pub use mmproj::to_mmproj;
use recipe::TensorRecipe;

/// The version of the block types; only one is in use.
const QUANTIZATION_VERSION: i128 = 2;

/// A checkpoint under GGUF names. Tensors are made one at a time, because copies of all stacked
/// experts would need the model's size in memory.
#[derive(Debug)]
pub struct GgufExport {
    /// All keys except `general.file_type`, which depends on the types that are written.
    pub metadata: Metadata,
    /// Names of unused tensors, which are not written: other parts of a multimodal model, training
    /// heads, or a head that is the embedding.
    pub unused_tensors: Vec<String>,
    /// Notes for people about other content that the format cannot store.
    pub notes: Vec<String>,
    recipes: Vec<TensorRecipe>,
    /// Description of the source, for people.
    format: String,
}

impl Source for GgufExport {
    fn naming(&self) -> Naming {
        Naming::Gguf
    }

    fn metadata(&self) -> &Metadata {
        &self.metadata
    }

    fn format(&self) -> &str {
        &self.format
    }

    /// Affine types without an equal in GGUF stay unchanged, for the writer to convert or refuse.
    fn declarations(&self) -> Vec<Declaration<'_>> {
        self.recipes
            .iter()
            .map(|recipe| Declaration { name: &recipe.name, shape: &recipe.shape, block: recipe.block() })
            .collect()
    }

    /// Makes a tensor, as a view of the source if the bytes are equal.
    fn tensor(&self, i: usize) -> std::result::Result<Tensor, SourceError> {
        let n_tensors = self.recipes.len();
        let recipe = self.recipes.get(i).ok_or(SourceError::NoTensor { i, n_tensors })?;
        rows::make(recipe).map_err(|error| SourceError::Made(Box::new(error)))
    }
}

/// Exports a checkpoint with Hugging Face names, which `spec` was read from, under GGUF names.
///
/// `name` becomes `general.name`. `tokenizer` has the keys `tokenizer.…`, as the text crate writes
/// them for [`ModelSpec::n_vocab`] tokens. Without it the file states that it has no vocabulary.
///
/// # Errors
/// The checkpoint has other names, GGUF has no name for the family or one of its tensors, or the
/// format cannot store a number.
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
    let mut notes = Vec::new();
    let predicting =
        spec.predicting().and_then(|predicting| match predicting.next_plan(checkpoint, spec.n_ctx_train) {
            Ok(_) => Some(predicting),
            Err(error) => {
                notes.push(format!("the layer that predicts one token more is left out: {error}"));
                None
            }
        });
    let spec = predicting.as_ref().unwrap_or(spec);
    let (architecture, target) = target(spec)?;
    let mut metadata = metadata::general(architecture, name);
    let written = recurrent::as_written(spec);
    if recurrent::multiplies(spec) {
        notes.push("factors of the source are multiplied into its weights, which are F32 then".to_owned());
    }
    metadata::numbers(checkpoint, &written, target, architecture, &mut metadata, &mut notes)?;
    let mut recipes = recipe::of_all(checkpoint, spec, target)?;
    recipes.extend(recipe::of_rope(spec));
    recipes.extend(recipe::of_answers(checkpoint, spec)?);
    metadata::vocabulary(tokenizer, &recipes, &mut metadata);
    metadata.insert("general.quantization_version".to_owned(), Value::Int(QUANTIZATION_VERSION));
    spec.sampling.write(&mut metadata);
    verify::same_model(&written, target, architecture, &metadata, &recipes)?;
    let (unused_tensors, format) = (spec.unused_tensors.clone(), checkpoint.format.clone());
    Ok(GgufExport { metadata, unused_tensors, notes, recipes, format })
}

/// The architecture's name, and the family that a reader selects by it.
fn target(spec: &ModelSpec) -> Result<(&'static str, &'static ArchDescriptor)> {
    let family = spec.family;
    let has_experts = spec.layers.iter().any(|layer| layer.experts.is_some());
    // Some families have another architecture name with experts.
    let named = |name: &&&str| has_experts && name.ends_with("_moe");
    let of_experts = family.gguf.iter().find(named).or(family.gguf.first());
    let name = family.gguf_as.or(of_experts.copied());
    // Some families have another architecture name beside a vision tower.
    let beside =
        spec.vision.as_ref().and_then(|vision| vision.tower.mmproj).map_or(&[][..], |names| names.text);
    let name = beside.iter().find(|(alone, _)| Some(*alone) == name).map(|(_, seeing)| *seeing).or(name);
    let target = name.and_then(|name| Some((name, FAMILIES.iter().find(|f| f.gguf.contains(&name))?)));
    target.ok_or_else(|| Error::Export {
        what: "family".to_owned(),
        found: family.title.to_owned(),
        expected: "one that GGUF has a name for".to_owned(),
    })
}
