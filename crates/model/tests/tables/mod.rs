//! Checks README.md's tables of what runs. Every family is loaded from every format and runs a step
//! on every device; for speech, it encodes a window and runs each of its plans. Every storage type
//! is multiplied on every device. `INGLE_WRITE_TABLES=1 cargo test -p ingle-model --test main
//! tables` rewrites the tables.
//!
//! A cell means that a model loads and gives finite numbers. The fixtures, with the results of
//! other programs, test that the numbers are right.
#![allow(clippy::unwrap_used)]

mod files;
mod tiny;
mod types;

use crate::common;
use crate::common::base_rt;
use crate::common::speech;
use std::cell::RefCell;
use std::collections::HashSet;
use std::fmt::Write;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};

use crate::common::Runner;
use crate::common::speech::Speech;
use device::{Device, Numerics, Plan};
use device_cpu::{CpuDevice, Options};
use device_reference::Reference;
use model::{ArchDescriptor, FAMILIES, ModelSpec};
use weights::{Access, BlockType, Checkpoint, Naming};

/// Every device, in README.md's order. One thread each: workers that wait for each other are slow
/// on a busy machine, and these models are small.
fn devices() -> Vec<Arc<dyn Device>> {
    let cpu = CpuDevice::new(Options { isa: None, threads: Some(1) }).unwrap();
    let mut devices: Vec<Arc<dyn Device>> = vec![Arc::new(cpu), Arc::new(Reference::new(1))];
    devices.extend(metal());
    devices
}

/// Metal's shaders in the emulator, with compiled code kept between runs. `None` where the emulator
/// does not exist, and in runs without more cases. There the fixtures run every family on it, and
/// the device's own tests every type.
#[cfg(all(target_os = "linux", target_arch = "x86_64"))]
fn metal() -> Option<Arc<dyn Device>> {
    use device_metal::MetalDevice;
    use device_metal::gpu::emulated::{EmulatedGpu, Options};
    use std::sync::OnceLock;
    static DEVICE: OnceLock<Arc<dyn Device>> = OnceLock::new();
    if device_testing::cases(1) == 1 && !is_writing() {
        return None;
    }
    let new = || -> Arc<dyn Device> {
        let options = Options::new(concat!(env!("CARGO_TARGET_TMPDIR"), "/shaders"));
        Arc::new(MetalDevice::new(EmulatedGpu::new(&options).unwrap()))
    };
    Some(DEVICE.get_or_init(new).clone())
}

#[cfg(not(all(target_os = "linux", target_arch = "x86_64")))]
fn metal() -> Option<Arc<dyn Device>> {
    None
}

/// True if the tables are written instead of compared.
fn is_writing() -> bool {
    std::env::var_os("INGLE_WRITE_TABLES").is_some()
}

/// README.md's name of a device; the emulator stands for Metal.
fn title(device: &dyn Device) -> &'static str {
    match device.name() {
        "metal-emulated" => METAL,
        name => name,
    }
}

/// Metal's device.
const METAL: &str = "metal";

/// Runs a prompt of three tokens and one more token, and checks that the numbers are finite.
fn runs(device: &dyn Device, checkpoint: &Checkpoint) -> Result<(), String> {
    let renamed = model::from_base(checkpoint).map_err(|e| e.to_string())?;
    let checkpoint = renamed.as_ref().unwrap_or(checkpoint);
    let spec = ModelSpec::from_checkpoint(checkpoint).map_err(|e| e.to_string())?;
    if spec.encoder.is_some() {
        return hears(device, checkpoint, &spec);
    }
    let plan = spec.plan(checkpoint).map_err(|e| e.to_string())?;
    let key = (title(device) == METAL).then(|| all_but_numbers(&plan));
    if key.as_ref().is_some_and(|key| RAN.with(|ran| ran.borrow().contains(key))) {
        return Ok(());
    }
    let mut runner = Runner::try_on(device, &plan, Numerics::Fast).map_err(|e| e.to_string())?;
    for tokens in [&[1, 7, 3][..], &[2]] {
        let (rows, _) = runner.step(tokens);
        assert_eq!(rows.len(), tokens.len());
        if !rows.concat().iter().all(|v| v.is_finite()) {
            return Err("numbers that are not finite".to_owned());
        }
    }
    RAN.with(|ran| ran.borrow_mut().extend(key));
    Ok(())
}

thread_local! {
    /// Plans that ran on the emulated device, which takes most of the time. Plans that differ only
    /// in weight values run there once. The other devices run every plan.
    static RAN: RefCell<HashSet<String>> = RefCell::default();
}

/// A plan without the values and names of its weights.
fn all_but_numbers(plan: &Plan) -> String {
    let Plan { values, weights, nodes, kv, output, argmax, output_kind, kept } = plan;
    let weights: Vec<_> = weights.iter().map(|w| (&w.shape, w.block, w.parts.len())).collect();
    format!("{values:?} {weights:?} {nodes:?} {kv:?} {output:?} {argmax:?} {output_kind:?} {kept:?}")
}

/// Runs a model with an encoder: a window of sound, and the fixture's tokens.
fn hears(device: &dyn Device, checkpoint: &Checkpoint, spec: &ModelSpec) -> Result<(), String> {
    let plans = spec.speech_plans(checkpoint, &[(0, 0), (1, 3)]).map_err(|e| e.to_string())?;
    let mut run = Speech::try_new(device, &plans, Numerics::Fast).map_err(|e| e.to_string())?;
    let sound = speech::expected();
    let mut rows = run.encode(&sound.input, &sound.encoder_positions);
    for tokens in sound.tokens.chunks(sound.tokens.len() - 1) {
        rows.extend(run.decode(tokens).0);
    }
    let (logits, kept) = run.align(&sound.tokens);
    rows.extend(logits.into_iter().chain(kept.into_iter().flatten()));
    match rows.concat().iter().all(|v| v.is_finite()) {
        true => Ok(()),
        false => Err("numbers that are not finite".to_owned()),
    }
}

/// The devices that run all of these checkpoints; a dash if none does.
fn cell(what: &str, checkpoints: &[Checkpoint]) -> String {
    let runs_all = |device: &dyn Device| {
        checkpoints.iter().all(|checkpoint| {
            // A panic is a defect wherever it occurs. It is reported with the checkpoint and the
            // device.
            let result = catch_unwind(AssertUnwindSafe(|| runs(device, checkpoint)))
                .unwrap_or_else(|_| panic!("{what} on {}: a panic", device.name()));
            if let Err(reason) = &result {
                println!("{what} on {}: {reason}", device.name());
            }
            result.is_ok()
        })
    };
    let names: Vec<&str> =
        devices().iter().filter(|d| runs_all(d.as_ref())).map(|d| title(d.as_ref())).collect();
    match names.as_slice() {
        _ if checkpoints.is_empty() => "–".to_owned(),
        [] => "–".to_owned(),
        names => names.join(", "),
    }
}

/// A format in the table of families.
struct Column {
    title: &'static str,
    /// The checkpoints of a family in this format, read through files; empty if the format does not
    /// have the family.
    checkpoints: fn(&'static ArchDescriptor) -> Vec<Checkpoint>,
}

const COLUMNS: [Column; 7] = [
    Column { title: "safetensors", checkpoints: hugging_face },
    Column { title: "MLX", checkpoints: mlx },
    Column { title: "GGUF", checkpoints: gguf },
    Column { title: "`.base` of Ingle", checkpoints: base_of_ingle },
    Column { title: "`.base` of BaseRT", checkpoints: base_of_base_rt },
    Column { title: "CTranslate2", checkpoints: ctranslate2 },
    Column { title: "whisper.cpp", checkpoints: whisper_cpp },
];

/// The fixtures of a family: folders with its name, or with its name and a word, that no longer
/// family name fits.
fn fixtures(family: &ArchDescriptor) -> Vec<PathBuf> {
    let is_ours = |name: &str| {
        let begins = |family: &&ArchDescriptor| {
            let rest = name.strip_prefix(family.name);
            rest.is_some_and(|rest| rest.is_empty() || rest.starts_with('_'))
        };
        FAMILIES.iter().filter(begins).max_by_key(|f| f.name.len()).is_some_and(|f| f.name == family.name)
    };
    let entries = std::fs::read_dir(common::folder("")).unwrap().map(|e| e.unwrap());
    let mut found: Vec<PathBuf> = entries
        .filter(|e| e.path().join("config.json").is_file() && is_ours(e.file_name().to_str().unwrap()))
        .map(|e| e.path())
        .collect();
    found.sort();
    found
}

fn opened(write: impl FnOnce(&Path) -> PathBuf) -> Checkpoint {
    let folder = tempfile::tempdir().unwrap();
    formats::open(&write(folder.path()), Access::Read).unwrap()
}

/// The family's fixtures; a tiny checkpoint if there is none.
fn hugging_face(family: &'static ArchDescriptor) -> Vec<Checkpoint> {
    let fixtures: Vec<Checkpoint> =
        fixtures(family).iter().map(|path| formats::open(path, Access::Map).unwrap()).collect();
    if !fixtures.is_empty() {
        return fixtures;
    }
    let tiny = tiny::checkpoint(family, Naming::HuggingFace);
    tiny.iter().map(|tiny| opened(|folder| files::safetensors(tiny, folder))).collect()
}

/// Matrices of 4 bits under MLX's names.
fn mlx(family: &'static ArchDescriptor) -> Vec<Checkpoint> {
    let tiny = tiny::checkpoint(family, Naming::HuggingFace);
    tiny.iter().map(|tiny| opened(|folder| files::mlx(tiny, folder))).collect()
}

fn gguf(family: &'static ArchDescriptor) -> Vec<Checkpoint> {
    let tiny = tiny::checkpoint(family, Naming::Gguf);
    tiny.iter().map(|tiny| opened(|folder| files::gguf(tiny, folder))).collect()
}

/// The converter's output from every other format that has this family.
fn base_of_ingle(family: &'static ArchDescriptor) -> Vec<Checkpoint> {
    let sources =
        [hugging_face, mlx, gguf, ctranslate2, whisper_cpp].into_iter().flat_map(|made| made(family));
    // Separate blocks and scales are not converted yet.
    let sources = sources.filter(|source| source.tensors.iter().all(|t| !t.name.ends_with("_blocks")));
    sources.map(|source| opened(|folder| files::converted(&source, folder))).collect()
}

/// BaseRT's own names, with matrices unchanged and in 4 bits.
fn base_of_base_rt(family: &'static ArchDescriptor) -> Vec<Checkpoint> {
    let changes = [|tensor| tensor, |tensor| files::quantised(&tensor)];
    let files =
        base_rt::RECIPES.iter().flat_map(|recipe| changes.map(|change| base_rt::file(recipe, change)));
    let of_family = |file: &Checkpoint| {
        let renamed = model::from_base(file).unwrap().unwrap();
        ModelSpec::from_checkpoint(&renamed).is_ok_and(|spec| spec.family.name == family.name)
    };
    files.filter(of_family).collect()
}

/// A speech model's folder in F32 and in F16.
fn ctranslate2(family: &'static ArchDescriptor) -> Vec<Checkpoint> {
    if family.ctranslate2.is_empty() {
        return vec![];
    }
    let words: Vec<String> = (0..tiny::N_VOCAB).map(|i| format!("word{i}")).collect();
    let made = |source: &Checkpoint| {
        [false, true].map(|float16| {
            let folder = tempfile::tempdir().unwrap();
            speech::as_ctranslate2(source, folder.path(), float16, &words)
        })
    };
    hugging_face(family).iter().flat_map(made).collect()
}

/// A speech model's file with matrices of each of these types.
fn whisper_cpp(family: &'static ArchDescriptor) -> Vec<Checkpoint> {
    if !family.whisper_cpp {
        return vec![];
    }
    let made = |source: &Checkpoint| {
        [BlockType::F32, BlockType::F16, BlockType::Q8_0].map(|block| {
            let folder = tempfile::tempdir().unwrap();
            speech::as_whisper_cpp(source, folder.path(), block)
        })
    };
    hugging_face(family).iter().flat_map(made).collect()
}

/// A list of devices, and the formats that run on all of them.
type FormatsByDevices = Vec<(String, Vec<&'static str>)>;

/// Families with the same formats and devices share a row; formats with other devices have rows of
/// their own.
fn table_of_families() -> String {
    let mut kinds: Vec<(Vec<&str>, FormatsByDevices)> = Vec::new();
    for family in FAMILIES {
        let mut by_devices = FormatsByDevices::new();
        for column in &COLUMNS {
            let devices =
                cell(&format!("{} from {}", family.title, column.title), &(column.checkpoints)(family));
            match by_devices.iter_mut().find(|(other, _)| *other == devices) {
                _ if devices == "–" => {}
                Some((_, formats)) => formats.push(column.title),
                None => by_devices.push((devices, vec![column.title])),
            }
        }
        match kinds.iter_mut().find(|(_, other)| *other == by_devices) {
            Some((families, _)) => families.push(family.title),
            None => kinds.push((vec![family.title], by_devices)),
        }
    }
    let rows = kinds.into_iter().flat_map(|(families, by_devices)| {
        let families = families.join(", ");
        by_devices
            .into_iter()
            .map(move |(devices, formats)| (families.clone(), vec![formats.join(", "), devices]))
    });
    markdown("Families", &["from files of", "on"], rows.collect())
}

/// A Markdown table without empty columns.
fn markdown(first: &str, titles: &[&str], rows: Vec<(String, Vec<String>)>) -> String {
    let kept: Vec<usize> =
        (0..titles.len()).filter(|&c| rows.iter().any(|(_, cells)| cells[c] != "–")).collect();
    let mut out = format!("| {first} |");
    kept.iter().for_each(|&c| _ = write!(out, " {} |", titles[c]));
    out.push_str("\n|---|");
    kept.iter().for_each(|_| out.push_str("---|"));
    out.push('\n');
    for (title, cells) in rows {
        _ = write!(out, "| {title} |");
        kept.iter().for_each(|&c| _ = write!(out, " {} |", cells[c]));
        out.push('\n');
    }
    out
}

/// Compares the text between two marks of README.md, or writes it there.
fn compare(mark: &str, table: &str) {
    // Both tests may write the file.
    static README: Mutex<()> = Mutex::new(());
    let _one_at_a_time = README.lock();
    let path = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../README.md");
    let text = std::fs::read_to_string(&path).unwrap();
    let (begin, end) = (format!("<!-- {mark}:begin -->\n"), format!("<!-- {mark}:end -->"));
    let (before, rest) = text.split_once(&begin).unwrap_or_else(|| panic!("README.md has no {begin}"));
    let (found, after) = rest.split_once(&end).unwrap_or_else(|| panic!("README.md has no {end}"));
    // Metal's cells are unknown where the emulator does not run.
    let found = if metal().is_some() { found.to_owned() } else { found.replace(&format!(", {METAL}"), "") };
    if is_writing() {
        assert!(metal().is_some(), "the tables are written on Linux, where Metal's shaders can be executed");
        std::fs::write(&path, format!("{before}{begin}{table}{end}{after}")).unwrap();
        return;
    }
    assert!(
        found == table,
        "README.md's table \"{mark}\" says\n{found}\nand what runs is\n{table}\nIf that is as it should be: \
         INGLE_WRITE_TABLES=1 cargo test -p ingle-model --test main tables"
    );
}

#[test]
fn families_by_formats() {
    compare("families", &table_of_families());
}

#[test]
fn types_by_devices() {
    compare("types", &types::table());
}
