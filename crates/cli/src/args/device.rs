//! Flags about the device, memory and the sizes that depend on them.

use std::path::PathBuf;

use clap::builder::{PossibleValuesParser, TypedValueParser};
use clap::{Args, ValueEnum};
use device::KvType;
use engine::MemoryCap;
use ingle::device::{DeviceKind, DeviceOptions, Isa};
use ingle::{Access, LoadOptions};

use super::numbers::{self, Limit, limit, parse_bytes};

/// The device, and how the model file is loaded.
#[derive(Args, Clone, Debug)]
#[command(next_help_heading = "Device and memory")]
pub struct DeviceArgs {
    /// Compute on this device
    #[arg(long, value_enum, ignore_case = true, default_value_t = DeviceName::Auto)]
    pub device: DeviceName,

    /// Compute on these GPUs, by their indices in nvidia-smi
    ///
    /// Several GPUs share every layer; their number must divide the model's heads [default: 0].
    /// With --device reference, that number of interpreters runs, for tests.
    #[arg(long, value_name = "INDEX,...", value_delimiter = ',')]
    pub gpus: Vec<usize>,

    /// Threads that compute on the CPU
    ///
    /// [default, or -1: the number of processors that this process may use]
    #[arg(short, long, value_name = "N", default_value = "-1", hide_default_value = true, value_parser = limit)]
    pub threads: Limit,

    /// Use this instruction set instead of the processor's best
    #[arg(long, value_parser = isa_parser())]
    pub isa: Option<Isa>,

    /// Map the model file, or copy it into memory
    #[arg(long, value_enum, default_value_t = WeightsName::Mapped)]
    pub weights: WeightsName,

    /// Order of commands on a Mac's GPU
    ///
    /// Try fenced or serial if concurrent hangs.
    #[arg(long, value_enum, default_value_t = MetalEncoder::Concurrent)]
    pub metal_encoder: MetalEncoder,
}

/// The device, and the sizes that depend on it.
#[derive(Args, Clone, Debug)]
#[command(next_help_heading = "Device and memory")]
pub struct LoadArgs {
    #[command(flatten)]
    pub device: DeviceArgs,

    /// The image encoder (mmproj file) of a GGUF model
    ///
    /// [default: the file in the model's folder whose name begins with mmproj]
    #[arg(long, value_name = "FILE")]
    pub mmproj: Option<PathBuf>,

    /// Run the last N layers on the GPU and the rest on the CPU
    ///
    /// The GPU also runs the output head. [default, or -1: all layers, or those that fit in the
    /// GPU's memory]
    #[arg(long, visible_alias = "n-gpu-layers", value_name = "N", conflicts_with = "gpus", default_value = "-1",
        hide_default_value = true, value_parser = limit)]
    pub gpu_layers: Limit,

    /// Keep the experts of the first N layers on the CPU
    ///
    /// If N is larger than the number of layers, the experts of all layers stay on the CPU.
    /// [default: 0, or the least number with which the rest fits in the GPU's memory]
    #[arg(long, visible_alias = "n-cpu-moe", value_name = "N", conflicts_with = "gpus")]
    pub cpu_moe_layers: Option<usize>,

    /// Context length in tokens
    ///
    /// [default, or 0: the model's own, or the longest that fits in memory]
    #[arg(short, long, aliases = ["ctx-size", "num-ctx"], value_name = "TOKENS", default_value = "0", hide_default_value = true,
        value_parser = numbers::context)]
    pub ctx: Limit,

    /// The type of cached keys and values
    ///
    /// [default: i16 on cpu, f16 on cuda and metal, f32 on reference]
    #[arg(long, value_enum, ignore_case = true)]
    pub kv_type: Option<KvTypeName>,

    /// Limit the memory of this process
    ///
    /// The limit is for all models together: bytes (8GiB), a share of the machine's memory (50%),
    /// or max. With max it is all free memory, checked again while the program runs.
    #[arg(long, value_name = "BYTES|PERCENT|max", default_value = "max", value_parser = parse_memory)]
    pub memory: MemoryCap,

    /// Limit the memory of cached keys and values
    ///
    /// The limit is for all sequences and cached prompts together: bytes (512M, 4G), or auto: what
    /// --memory allows.
    #[arg(long, value_name = "BYTES|auto", default_value = "auto", value_parser = parse_budget)]
    pub kv_budget: KvBudget,

    /// Prefill at most N tokens in a step
    ///
    /// [default: depends on the device, mostly 512]
    #[arg(long, value_name = "N")]
    pub chunk: Option<usize>,

    /// Fix the order of all sums
    ///
    /// Neither batching nor --chunk then changes an answer.
    #[arg(long)]
    pub deterministic: bool,
}

/// `--weights`
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum WeightsName {
    /// The system reads and drops pages of the file as needed
    Mapped,
    /// The file is read into memory, so that it may change afterwards
    Copied,
}

/// `--device`
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum DeviceName {
    /// The first of cuda, metal and cpu that runs the model and passes a check of its arithmetic
    Auto,
    /// The processor
    Cpu,
    /// The reference interpreter: plain f32, slow
    Reference,
    /// An NVIDIA GPU: the first, or those of --gpus
    Cuda,
    /// The GPU of a Mac with Apple Silicon
    Metal,
    /// The Metal shaders in an emulator on Linux; for tests, very slow, needs clang
    MetalEmulated,
}

/// `--metal-encoder`
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum MetalEncoder {
    /// Dispatches run concurrently, with barriers; Metal orders command buffers
    Concurrent,
    /// Like concurrent, with a fence between command buffers
    Fenced,
    /// One dispatch runs after the other
    Serial,
}

impl From<DeviceName> for DeviceKind {
    fn from(name: DeviceName) -> DeviceKind {
        match name {
            DeviceName::Auto => DeviceKind::Auto,
            DeviceName::Cpu => DeviceKind::Cpu,
            DeviceName::Reference => DeviceKind::Reference,
            DeviceName::Cuda => DeviceKind::Cuda,
            DeviceName::Metal => DeviceKind::Metal,
            DeviceName::MetalEmulated => DeviceKind::MetalEmulated,
        }
    }
}

impl From<MetalEncoder> for ingle::device::MetalEncoder {
    fn from(encoder: MetalEncoder) -> ingle::device::MetalEncoder {
        match encoder {
            MetalEncoder::Concurrent => ingle::device::MetalEncoder::Concurrent,
            MetalEncoder::Fenced => ingle::device::MetalEncoder::Fenced,
            MetalEncoder::Serial => ingle::device::MetalEncoder::Serial,
        }
    }
}

impl From<KvTypeName> for KvType {
    fn from(name: KvTypeName) -> KvType {
        match name {
            KvTypeName::F32 => KvType::F32,
            KvTypeName::F16 => KvType::F16,
            KvTypeName::I16 => KvType::I16,
            KvTypeName::I8 => KvType::I8,
            KvTypeName::Q8_0 => KvType::Q8_0,
            KvTypeName::Fp8 => KvType::Fp8,
        }
    }
}

impl DeviceArgs {
    /// The options of the device.
    pub fn options(&self) -> DeviceOptions {
        let mut options = DeviceOptions::default();
        options.kind = self.device.into();
        options.gpus.clone_from(&self.gpus);
        options.threads = self.threads;
        options.isa = self.isa;
        options.metal_encoder = self.metal_encoder.into();
        options
    }

    /// Access to weight files: mapped or read.
    pub fn access(&self) -> Access {
        match self.weights {
            WeightsName::Mapped => Access::Map,
            WeightsName::Copied => Access::Read,
        }
    }
}

impl LoadArgs {
    /// The options of these flags; all others have their defaults.
    pub fn options(&self) -> LoadOptions {
        let mut options = LoadOptions::default();
        options.device = self.device.options();
        options.access = self.device.access();
        options.mmproj.clone_from(&self.mmproj);
        options.gpu_layers = self.gpu_layers;
        options.cpu_moe_layers = self.cpu_moe_layers;
        options.n_ctx = self.ctx;
        options.kv_type = self.kv_type.map(KvType::from);
        options.kv_budget = match self.kv_budget {
            KvBudget::Auto => None,
            KvBudget::Bytes(bytes) => Some(bytes),
        };
        options.chunk = self.chunk;
        options.deterministic = self.deterministic;
        options.memory = self.memory;
        options
    }
}

/// `--isa`: the device's own names.
fn isa_parser() -> impl TypedValueParser<Value = Isa> {
    PossibleValuesParser::new(Isa::ALL.map(Isa::name))
        .try_map(|name| Isa::from_name(&name).ok_or("not an instruction set"))
}

/// `--kv-type`
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum, serde::Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum KvTypeName {
    F32,
    F16,
    I16,
    I8,
    #[value(name = "q8_0")]
    Q8_0,
    /// E4M3 with a scale for each vector
    Fp8,
}

/// `--kv-budget`
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum KvBudget {
    Auto,
    Bytes(u64),
}

/// Parses `auto`, or a number of bytes with its unit.
fn parse_budget(text: &str) -> Result<KvBudget, String> {
    if text == "auto" {
        return Ok(KvBudget::Auto);
    }
    let expected = "expected auto or a number of bytes such as 1073741824, 1024M or 1G";
    parse_bytes(text).map(KvBudget::Bytes).ok_or_else(|| expected.to_owned())
}

/// Parses `max`, a share of the memory in percent, or a number of bytes.
fn parse_memory(text: &str) -> Result<MemoryCap, String> {
    let percent = |text: &str| text.parse::<f64>().ok().filter(|part| *part > 0.0 && *part <= 100.0);
    let cap = match text.strip_suffix('%') {
        _ if text == "max" => Some(MemoryCap::Max),
        Some(part) => percent(part).map(|part| MemoryCap::Share(part / 100.0)),
        None => parse_bytes(text).map(MemoryCap::Bytes),
    };
    cap.ok_or_else(|| {
        "expected max, a share of the memory such as 50%, or bytes such as 8GiB or 512M".to_owned()
    })
}
