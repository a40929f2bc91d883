//! Targets for files of models, LoRA adapters and vision towers.

use std::io::Cursor;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;

use formats::base::{BaseWriter, SecretKey};
use model::{Adapter, ModelSpec};
use weights::{Access, Array, Checkpoint, Map, Tensor, Value};

/// Upper limit of values decoded from a tensor, and of bytes written for all tensors. Tensors may
/// share bytes, so a small file may describe large ones.
const MAX_VALUES: usize = 1 << 16;
const MAX_WRITTEN: usize = 1 << 20;

/// A temporary folder of this process, in memory if the system has a file system there.
pub(crate) fn folder() -> PathBuf {
    let memory = PathBuf::from("/dev/shm");
    let parent = if memory.is_dir() { memory } else { std::env::temp_dir() };
    tempfile::tempdir_in(parent).expect("a folder").keep()
}

/// Reads a fixture of the repository.
pub(crate) fn fixture(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../fixtures").join(name)
}

/// Checks the promises that every reader makes about its tensors.
fn check(tensors: &[Tensor]) {
    for tensor in tensors {
        assert_eq!(tensor.data.len(), tensor.n_rows() * tensor.row_bytes());
        assert!(tensor.planes.fit(tensor.block, tensor.n_rows(), tensor.n_cols()), "{}", tensor.name);
        if tensor.n_rows() * tensor.n_cols() <= MAX_VALUES {
            assert_eq!(tensor.to_f32().len(), tensor.n_rows() * tensor.n_cols());
        }
    }
}

fn plan(checkpoint: &Checkpoint) {
    if let Ok(spec) = ModelSpec::from_checkpoint(checkpoint)
        && let Ok(plan) = spec.plan(checkpoint)
    {
        let _ = plan.check();
    }
}

/// A GGUF file of any bytes, then its hyperparameters and its tokenizer.
pub(crate) fn gguf(data: &[u8]) {
    let Ok(checkpoint) = formats::gguf::parse(Map::from_slice(data), Path::new("fuzz.gguf")) else { return };
    check(&checkpoint.tensors);
    plan(&checkpoint);
    if let Ok(tokenizer) = text::Tokenizer::from_gguf(&checkpoint.metadata) {
        let _ = tokenizer.encode_with_bos("Hello, wörld! 12345", text::Specials::Parse);
    }
}

/// A safetensors file of any bytes.
pub(crate) fn safetensors(data: &[u8]) {
    let mut tensors = Vec::new();
    let path = Path::new("fuzz.safetensors");
    if formats::safetensors::parse_file(Map::from_slice(data), path, &mut tensors).is_ok() {
        check(&tensors);
    }
}

/// A `.base` file of any bytes. A file that is read and written again reads the same.
pub(crate) fn base(data: &[u8]) {
    let Ok(file) = formats::base::parse(Map::from_slice(data), Path::new("fuzz.base")) else { return };
    let checkpoint = file.checkpoint();
    check(&checkpoint.tensors);
    let _ = file.verify_checksums();
    let _ = file.verify_signature(&SecretKey::from_bytes(&[7; 32]).public());
    if checkpoint.tensors.iter().map(|t| t.n_bytes()).sum::<usize>() > MAX_WRITTEN {
        return;
    }
    // Numbers that came from JSON can be written as JSON.
    let mut writer = BaseWriter::new("fuzz", checkpoint.naming);
    writer.page(6);
    writer.metadata(&checkpoint.metadata).expect("metadata of a .base file");
    for tensor in &checkpoint.tensors {
        writer.tensor(&tensor.name, &tensor.shape, tensor.block).expect("a tensor of a .base file");
    }
    let mut body = writer.begin(Cursor::new(Vec::new())).expect("a header");
    for tensor in &checkpoint.tensors {
        body.tensor_data(&tensor.data, tensor.planes.as_slices()).expect("a tensor's bytes");
    }
    let bytes = body.finish().expect("a whole file").into_inner();
    let again =
        formats::base::parse(Map::from_slice(&bytes), Path::new("again.base")).expect("what was written");
    assert_eq!(again.verify_checksums().expect("checksums"), checkpoint.tensors.len());
    same(checkpoint, again.checkpoint());
}

fn same(a: &Checkpoint, b: &Checkpoint) {
    use formats::base::HEADER_PREFIX;
    use weights::keys::{FILES_PREFIX, TOKENIZER_KEY};

    assert_eq!(a.naming, b.naming);
    assert_eq!(a.tensors.len(), b.tensors.len());
    for (a, b) in a.tensors.iter().zip(&b.tensors) {
        assert_eq!((&a.name, &a.shape, a.block, &a.data[..]), (&b.name, &b.shape, b.block, &b.data[..]));
        assert_eq!(a.planes.as_slices().scales, b.planes.as_slices().scales);
        assert_eq!(a.planes.as_slices().biases, b.planes.as_slices().biases);
    }
    let given =
        |key: &str| key.starts_with(HEADER_PREFIX) || key.starts_with(FILES_PREFIX) || key == TOKENIZER_KEY;
    for (key, value) in a.metadata.iter().filter(|(key, _)| !given(key)) {
        assert_eq!(shown(value), b.metadata.get(key).map(shown).unwrap_or_default(), "{key:?}");
    }
}

/// A value as text, without the places of its strings in the file.
fn shown(value: &Value) -> String {
    if let Value::Array(list @ Array::Str { .. }) = value {
        format!("{:?}", (0..list.len()).map(|i| list.str_bytes(i)).collect::<Vec<_>>())
    } else {
        format!("{value:?}")
    }
}

/// Splits an input into two files: the first one ends at the first zero byte.
fn two_files<'a>(folder: &Path, names: [&str; 2], data: &'a [u8]) -> Option<&'a [u8]> {
    let at = data.iter().position(|b| *b == 0)?;
    std::fs::write(folder.join(names[0]), &data[..at]).expect("a file");
    std::fs::write(folder.join(names[1]), &data[at + 1..]).expect("a file");
    Some(&data[..at])
}

/// A folder with config.json and model.safetensors of any bytes, as MLX writes them. The
/// `quantization` object of config.json says how tensors are combined.
pub(crate) fn mlx(data: &[u8]) {
    static FOLDER: OnceLock<PathBuf> = OnceLock::new();
    let folder = FOLDER.get_or_init(folder);
    if two_files(folder, ["config.json", "model.safetensors"], data).is_none() {
        return;
    }
    if let Ok(checkpoint) = formats::open(folder, Access::Read) {
        check(&checkpoint.tensors);
        plan(&checkpoint);
    }
}

/// CTranslate2's model.bin of any bytes.
pub(crate) fn ctranslate2(data: &[u8]) {
    if let Ok(model) = formats::ctranslate2::parse(Map::from_slice(data), Path::new("model.bin")) {
        check(&model.tensors);
    }
}

/// whisper.cpp's ggml file of any bytes.
pub(crate) fn whisper_cpp(data: &[u8]) {
    if let Ok(checkpoint) = formats::whisper_cpp::parse(Map::from_slice(data), Path::new("ggml.bin")) {
        check(&checkpoint.tensors);
        plan(&checkpoint);
    }
}

/// A LoRA adapter of any bytes for a valid model: a GGUF file, or PEFT's two files.
pub(crate) fn lora(data: &[u8]) {
    static BASE: OnceLock<(Checkpoint, ModelSpec)> = OnceLock::new();
    static FOLDER: OnceLock<PathBuf> = OnceLock::new();
    let (base, spec) = BASE.get_or_init(|| {
        let base = formats::open(&fixture("models/llama"), Access::Read).expect("the fixture");
        let spec = ModelSpec::from_checkpoint(&base).expect("the fixture's numbers");
        (base, spec)
    });
    let checkpoint = if data.starts_with(b"GGUF") {
        formats::gguf::parse(Map::from_slice(data), Path::new("fuzz.gguf"))
    } else {
        let folder = FOLDER.get_or_init(folder);
        if two_files(folder, ["adapter_config.json", "adapter_model.safetensors"], data).is_none() {
            return;
        }
        formats::open_adapter(folder, Access::Read)
    };
    let Ok(checkpoint) = checkpoint else { return };
    check(&checkpoint.tensors);
    let adapter = Adapter { name: "fuzz".to_owned(), checkpoint, factor: 1.0 };
    if let Ok(plan) = spec.adapted_plan(base, 64, &[adapter]) {
        plan.check().expect("a plan that was built is right");
    }
}

/// A vision tower of any bytes with a valid text model.
pub(crate) fn mmproj(data: &[u8]) {
    static TEXT: OnceLock<Checkpoint> = OnceLock::new();
    let text =
        TEXT.get_or_init(|| formats::open(&fixture("models/gemma4_vl"), Access::Read).expect("the fixture"));
    let Ok(tower) = formats::gguf::parse(Map::from_slice(data), Path::new("fuzz.gguf")) else { return };
    let Ok(whole) = model::with_mmproj(text.clone(), &tower) else { return };
    if let Ok(spec) = ModelSpec::from_checkpoint(&whole) {
        let _ = spec.vision_plans(&whole);
        let _ = spec.given_plan(&whole, 64);
    }
}
