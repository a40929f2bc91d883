//! Model families as data: descriptors, checkpoint numbers, tensor names, and the plan builder.
//!
//! Reading a model takes three steps. [`FAMILIES`] is a table of [`ArchDescriptor`]s, which are
//! plain data. [`ModelSpec::from_checkpoint`] selects the descriptor that names the file's
//! architecture, reads the numbers listed in [`names`], and finds every tensor by its
//! [`TensorRole`]. [`ModelSpec::plan`] then writes the forward pass as a flat list of Ops.
//!
//! This crate computes nothing and knows no file format and no device. Code outside the tables
//! reads a descriptor's fields and never compares family names.
//!
//! # Adding a family
//!
//! Add one entry to `families.rs`. If its tensors or keys have other names, add rows to `names/`.
//! If no field describes what the family does, add a field to `descriptor.rs`, its neutral value to
//! [`ArchDescriptor::DENSE`], and the Ops for it to `build/`.
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
mod plans;
mod read;
mod recurrent;
mod requantize;
mod rope;
mod sampling;
mod spec;
mod speech;
mod tensors;
mod transpose;
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
