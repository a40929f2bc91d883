//! Model families as data: descriptors, checkpoint numbers, tensor names, and the plan builder.
//!
//! How a model is read: [`FAMILIES`] is a table of [`ArchDescriptor`]s, plain data. [`ModelSpec::from_checkpoint`]
//! picks the one whose names include the file's architecture, reads the numbers that the tables in [`names`] point to,
//! and finds every tensor by its [`TensorRole`]. [`ModelSpec::plan`] then writes the forward pass as a flat list of Ops.
//!
//! Nothing here computes, knows a file format, or knows a device. No code outside the tables asks which family it has:
//! it reads a descriptor's fields.
//!
//! # Adding a family
//!
//! One entry in `families.rs`. If its tensors or keys are called differently, a row in `names.rs`. If it does something
//! that no field describes, a field in `descriptor.rs` with its neutral value in [`ArchDescriptor::DENSE`], and the Ops
//! for it in `build/`.
#![deny(missing_docs)]

mod adapters;
mod base_names;
mod build;
mod describe;
mod descriptor;
mod embedding;
mod error;
mod families;
mod gguf_export;
mod keys;
mod missing;
pub mod names;
mod recurrent;
mod requantize;
mod rope;
mod sampling;
mod spec;
mod speech;
mod tensors;
mod vision;

pub use adapters::Adapter;
pub use base_names::from_base;
pub use descriptor::{
    ArchDescriptor, AttentionScale, Convolution, EmbeddingScale, ExpertPlace, NormKind, NormPlaces,
    PerNaming, QkNorm, Recurrent, RecurrentKind, RecurrentPlace, Temperature, WindowPattern,
};
pub use embedding::{Answers, DenseSpec, EmbeddingSpec};
pub use error::{Error, Result};
pub use families::FAMILIES;
pub use gguf_export::{GgufExport, to_gguf, to_mmproj};
pub use missing::Missing;
pub use names::{Key, TensorRole};
pub use recurrent::{Multipliers, RecurrentSpec};
pub use requantize::{PlainMatrices, WeightType};
pub use rope::{RopeScaling, RopeSpec};
pub use sampling::SamplingAdvice;
pub use spec::{ExpertSpec, LatentSpec, LayerSpec, ModelSpec, TemperatureSpec};
pub use speech::{SpeechPlans, SpeechSpec, SpeechTokens};
pub use vision::{
    BothWays, Filter, GivenRows, Grid, ImageMarks, Joining, MmprojNames, Order, PatchPositions, Picture,
    ProjectorStep, Recipe, Sizing, SizingKind, TOWERS, Tile, Turning, VisionDescriptor, VisionPlans,
    VisionSpec, VisionStage, with_mmproj,
};
