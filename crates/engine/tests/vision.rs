//! Tests of models that see: their logits are those of transformers, from the pixels of its image
//! processor and from the picture. They are computed whole, in chunks, token by token, beside other
//! sequences, and from the cache.
#![allow(clippy::unwrap_used)]

use std::sync::Arc;

use device::{Device, KvType};
use ingle_engine::{Engine, LoadOptions, Model, Picture, Prefill, Request};
use model::{Grid, Sizing, Tile};
use serde_json::Value as Json;

use crate::common::pictures::fixtures_with_a_picture;
use crate::common::{fixture, greedy, model, options};

/// Sums of f32 in another order; the answers are rounded to five digits.
const BOUND: f32 = 1e-3;

/// Pixels of the picture differ from those of the image processor by rounding only.
const PICTURE_BOUND: f32 = 2e-3;

fn reference() -> Arc<dyn Device> {
    Arc::new(device_reference::Reference::new(2))
}

fn cpu() -> Arc<dyn Device> {
    Arc::new(device_cpu::CpuDevice::new(device_cpu::Options { threads: Some(2), isa: None }).unwrap())
}

fn expected(name: &str) -> Json {
    serde_json::from_slice(&std::fs::read(fixture(name).join("expected.json")).unwrap()).unwrap()
}

fn tokens(name: &str) -> Vec<u32> {
    serde_json::from_value(expected(name)["input_ids"].clone()).unwrap()
}

/// The numbers of a .npy file of f32, without its header.
fn numpy(name: &str) -> Vec<f32> {
    let file = std::fs::read(fixture(name).join("pixel_values.npy")).unwrap();
    let length = u16::from_le_bytes([file[8], file[9]]) as usize;
    file[10 + length..].chunks_exact(4).map(|b| f32::from_le_bytes([b[0], b[1], b[2], b[3]])).collect()
}

/// The picture as transformers' image processor prepared it.
fn from_pixels(name: &str, model: &Model) -> Arc<Picture> {
    let spec = model.vision().unwrap();
    let pixels = numpy(if name.starts_with("qwen3") { "qwen3_vl" } else { name });
    let tiles: Vec<Tile> = match spec.recipe.sizing {
        Sizing::Pixels { .. } => {
            let grid: Vec<usize> = serde_json::from_value(expected(name)["image_grid_thw"].clone()).unwrap();
            vec![Tile { grid: Grid { rows: grid[1], cols: grid[2] }, pixels }]
        }
        Sizing::Rows { .. } => {
            // Patches row by row of the picture, from 0 to 1; here from -1 to 1, by planes of
            // colours, as the tower reads them.
            let [rows, cols]: [usize; 2] =
                serde_json::from_value(expected(name)["image_grid"].clone()).unwrap();
            let (side, width) = (spec.patch, cols * spec.patch);
            let mut planes = vec![0.0; pixels.len()];
            for (at, value) in pixels.iter().enumerate() {
                let (patch, y, x, colour) =
                    (at / (3 * side * side), at / (3 * side) % side, at / 3 % side, at % 3);
                let (down, right) = (patch / cols * side + y, patch % cols * side + x);
                planes[(colour * rows * side + down) * width + right] = 2.0 * (value - 0.5);
            }
            vec![spec.tile(&planes, rows * side, width).unwrap()]
        }
        Sizing::Exact(..) | Sizing::Tiles { .. } => {
            let side = spec.side.unwrap();
            pixels.chunks_exact(3 * side * side).map(|tile| spec.tile(tile, side, side).unwrap()).collect()
        }
    };
    Arc::new(Picture { hash: vision::hash(&tiles), tiles, layout: None })
}

fn from_file(name: &str, model: &Model) -> Arc<Picture> {
    let file = std::fs::read(fixture(name).join("image.png")).unwrap();
    Arc::new(vision::picture(model.vision().unwrap(), &file).unwrap())
}

fn engine_of(name: &str, device: &Arc<dyn Device>, chunk: usize, n_sequences: usize) -> Engine {
    let options =
        LoadOptions { n_outputs: Some(64), kv_type: Some(KvType::F32), ..options(256, chunk, n_sequences) };
    Engine::new(model(name), device, &options).unwrap()
}

/// Largest difference of the logits from those of transformers.
fn difference(name: &str, engine: &mut Engine, picture: &Arc<Picture>, prefill: Prefill) -> f32 {
    let (expected, tokens) = (expected(name), tokens(name));
    let positions: Vec<usize> = serde_json::from_value(expected["positions"].clone()).unwrap();
    let logits: Vec<Vec<f32>> = serde_json::from_value(expected["logits"].clone()).unwrap();
    let mut worst = 0.0f32;
    let mut n_seen = 0;
    engine
        .evaluate_images(
            &tokens,
            std::slice::from_ref(picture),
            tokens.len(),
            prefill,
            &mut |position, found| {
                for (_, expected) in positions.iter().zip(&logits).filter(|(at, _)| **at == position) {
                    n_seen += 1;
                    found.iter().zip(expected).for_each(|(a, b)| worst = worst.max((a - b).abs()));
                }
                Ok(())
            },
        )
        .unwrap();
    assert_eq!(n_seen, positions.len(), "{name}");
    worst
}

#[test]
fn pictures_become_the_pixels_of_the_reference() {
    for name in &fixtures_with_a_picture() {
        let model = model(name);
        let (file, pixels) = (from_file(name, &model), from_pixels(name, &model));
        assert_eq!(file.tiles.len(), pixels.tiles.len(), "{name}");
        for (a, b) in file.tiles.iter().zip(&pixels.tiles) {
            assert_eq!(a.grid, b.grid, "{name}");
            let worst = a.pixels.iter().zip(&b.pixels).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max);
            assert!(worst < 1e-5 && a.pixels.len() == b.pixels.len(), "{name}: {worst}");
        }
    }
}

#[test]
fn the_interpreter_agrees_with_the_reference() {
    for name in &fixtures_with_a_picture() {
        for chunk in [256, 7] {
            let mut engine = engine_of(name, &reference(), chunk, 1);
            let picture = from_pixels(name, &engine.model().clone());
            let worst = difference(name, &mut engine, &picture, Prefill::Batched);
            assert!(worst < BOUND, "{name}, chunks of {chunk}: {worst}");
        }
    }
}

#[test]
fn the_cpu_agrees_whole_in_chunks_and_token_by_token() {
    for name in &fixtures_with_a_picture() {
        for (chunk, prefill) in [(256, Prefill::Batched), (7, Prefill::Batched), (256, Prefill::PerToken)] {
            let mut engine = engine_of(name, &cpu(), chunk, 1);
            let model = engine.model().clone();
            let worst = difference(name, &mut engine, &from_pixels(name, &model), prefill);
            assert!(worst < BOUND, "{name}, chunks of {chunk}, {prefill:?}: {worst}");
            let worst = difference(name, &mut engine, &from_file(name, &model), prefill);
            assert!(worst < PICTURE_BOUND, "{name} from the picture: {worst}");
        }
    }
}

/// The emulator executes the tower and the text model's image rows.
#[test]
#[cfg(all(target_os = "linux", target_arch = "x86_64"))]
fn metal_agrees_whole_and_in_chunks() {
    let metal = crate::common::emulated_metal().unwrap();
    for name in &fixtures_with_a_picture() {
        for chunk in [256, 7] {
            let mut engine = engine_of(name, &metal, chunk, 1);
            let picture = from_pixels(name, &engine.model().clone());
            let worst = difference(name, &mut engine, &picture, Prefill::Batched);
            assert!(worst < BOUND, "{name}, chunks of {chunk}: {worst}");
        }
    }
}

/// A changed pixel changes the answer, so the tests above do read the picture.
#[test]
fn another_picture_gives_other_logits() {
    for name in &fixtures_with_a_picture() {
        let mut engine = engine_of(name, &cpu(), 256, 1);
        let mut picture = Picture::clone(&from_pixels(name, &engine.model().clone()));
        picture.tiles[0].pixels.iter_mut().for_each(|value| *value = -*value);
        picture.hash = [1, 2];
        let worst = difference(name, &mut engine, &Arc::new(picture), Prefill::Batched);
        assert!(worst > 0.05, "{name}: {worst}");
    }
}

fn request(name: &str, picture: &Arc<Picture>, more: &[u32]) -> Request {
    let mut tokens = tokens(name);
    tokens.extend(more);
    Request { images: vec![picture.clone()], ignore_end: true, ..greedy(&tokens, 12) }
}

/// Sequences with images and without answer as they do alone: together, in small chunks, and from
/// the cache. A second question about the same picture finds the first one's rows.
#[test]
fn answers_are_the_same_beside_others_and_after_what_is_cached() {
    for name in &fixtures_with_a_picture() {
        let alone = |request: Request| {
            let mut engine = engine_of(name, &cpu(), 256, 1);
            engine.complete(request).unwrap()
        };
        let picture = from_pixels(name, &model(name));
        let first = alone(request(name, &picture, &[]));
        let second = alone(request(name, &picture, &[40, 41, 42]));
        let text = alone(greedy(&[20, 21, 22, 23, 24, 25, 26], 12));
        let mut engine = engine_of(name, &cpu(), 9, 3);
        let mut tokens: Vec<Vec<u32>> = vec![Vec::new(); 3];
        let ids = [
            engine.add(request(name, &picture, &[])).unwrap(),
            engine.add(greedy(&[20, 21, 22, 23, 24, 25, 26], 12)).unwrap(),
            engine.add(request(name, &picture, &[40, 41, 42])).unwrap(),
        ];
        loop {
            let more = engine
                .step(&mut |event| {
                    if let ingle_engine::Event::Token { sequence, id, .. } = event {
                        let at = ids.iter().position(|id| *id == sequence).unwrap();
                        tokens[at].push(id);
                    }
                })
                .unwrap();
            if !more {
                break;
            }
        }
        assert_eq!(tokens, [first.tokens.clone(), text.tokens, second.tokens.clone()], "{name}");
        let again = engine.complete(request(name, &picture, &[40, 41, 42])).unwrap();
        assert_eq!(again.tokens, second.tokens, "{name}");
        let n_reused = again.finished.timings.reused_tokens;
        assert!(n_reused > 0, "{name}: nothing of {} was reused", again.finished.timings.prompt_tokens);
        // A different picture of the same size shares at most the text before it.
        let mut other = Picture::clone(&picture);
        other.hash = [3, 4];
        other.tiles.iter_mut().flat_map(|tile| &mut tile.pixels).for_each(|value| *value = -*value);
        let other = Arc::new(other);
        let found = engine.complete(request(name, &other, &[])).unwrap();
        assert_eq!(found.tokens, alone(request(name, &other, &[])).tokens, "{name}");
    }
}

#[test]
fn placeholders_that_do_not_fit_are_refused() {
    for name in &fixtures_with_a_picture() {
        let mut engine = engine_of(name, &cpu(), 256, 1);
        let picture = from_pixels(name, &engine.model().clone());
        let token = engine.model().vision().unwrap().token;
        let mut few = tokens(name);
        few.remove(few.iter().position(|id| *id == token).unwrap());
        let error = engine.add(Request { images: vec![picture.clone()], ..greedy(&few, 1) }).unwrap_err();
        assert!(error.to_string().contains("placeholders"), "{error}");
        let two = vec![picture.clone(), picture];
        let error = engine.add(Request { images: two, ..greedy(&tokens(name), 1) }).unwrap_err();
        assert!(error.to_string().contains("2 images"), "{error}");
    }
    let mut blind = engine_of("qwen3", &cpu(), 256, 1);
    let picture = from_pixels("gemma3_vl", &model("gemma3_vl"));
    let error = blind.add(Request { images: vec![picture], ..greedy(&[1, 2], 1) }).unwrap_err();
    assert!(error.to_string().contains("sees no images"), "{error}");
}

#[test]
fn towers_and_pictures_that_cannot_be_are_refused_by_name() {
    let folder = fixture("gemma4_vl");
    let refused = |change: &dyn Fn(&mut weights::Checkpoint)| {
        let mut checkpoint = formats::open(&folder, weights::Access::Map).unwrap();
        change(&mut checkpoint);
        model::ModelSpec::from_checkpoint(&checkpoint).unwrap_err().to_string()
    };
    let bound = "layers.1.mlp.up_proj.input_min";
    let said = refused(&|checkpoint| {
        let tensor = checkpoint.tensors.iter_mut().find(|t| t.name.ends_with(bound)).unwrap();
        tensor.data = weights::Bytes::from_slice(&[0x10, 0x41]); // 9 in BF16
    });
    assert!(said.contains(bound) && said.contains("found 9 beside 1.53125"), "{said}");
    let number = |key: &str, n| {
        refused(&|checkpoint| {
            let mut metadata = weights::Metadata::default();
            metadata.insert(key.to_owned(), weights::Value::Int(n));
            // Existing keys stay.
            for (key, value) in checkpoint.metadata.iter() {
                metadata.insert(key.to_owned(), value.clone());
            }
            checkpoint.metadata = metadata;
        })
    };
    for (key, n) in [("vision_config.head_dim", 12), ("vision_config.num_key_value_heads", 1)] {
        let said = number(key, n);
        assert!(said.contains(key) && said.contains(&format!("found {n}")), "{said}");
    }
    let said = number("vision_config.position_embedding_size", 65);
    assert!(said.contains("position_embedding_table") && said.contains("[2, 65, 32]"), "{said}");
    let model = model("gemma4_vl");
    let spec = model.vision().unwrap();
    let tile = spec.tile(&vec![0.0; 3 * 12 * 264], 12, 264).unwrap();
    let said = spec.check(&Picture { hash: [0; 2], tiles: vec![tile], layout: None }).unwrap_err();
    assert!(said.contains("3 x 66 patches, expected at most 64 a side"), "{said}");
}

/// MLX writes the weights of patches with colours last.
#[test]
fn patches_with_colours_last_are_the_same() {
    for name in ["smolvlm", "qwen3_vl"] {
        let mut checkpoint = formats::open(&fixture(name), weights::Access::Map).unwrap();
        let patch = checkpoint.tensors.iter_mut().find(|tensor| tensor.name.contains("patch_embed")).unwrap();
        let patch = match patch.name.ends_with(".weight") {
            true => patch,
            false => checkpoint
                .tensors
                .iter_mut()
                .find(|tensor| tensor.name.contains("patch_embed") && tensor.name.ends_with(".weight"))
                .unwrap(),
        };
        let (n_out, n_colours) = (patch.shape[0], patch.shape[1]);
        let n_pixels: usize = patch.shape[2..].iter().product();
        let value = |out: usize, pixel: usize, colour: usize| {
            let at = 2 * ((out * n_colours + colour) * n_pixels + pixel);
            [patch.data[at], patch.data[at + 1]]
        };
        let mut turned = Vec::with_capacity(patch.data.len());
        for out in 0..n_out {
            for pixel in 0..n_pixels {
                (0..n_colours).for_each(|colour| turned.extend(value(out, pixel, colour)));
            }
        }
        patch.data = weights::Bytes::from_slice(&turned);
        patch.shape.remove(1);
        patch.shape.push(n_colours);
        let model = Arc::new(Model::from_checkpoint(&fixture(name), checkpoint, None).unwrap());
        let options = LoadOptions { n_outputs: Some(64), kv_type: Some(KvType::F32), ..options(256, 256, 1) };
        let mut engine = Engine::new(model.clone(), &cpu(), &options).unwrap();
        let worst = difference(name, &mut engine, &from_pixels(name, &model), Prefill::Batched);
        assert!(worst < BOUND, "{name}: {worst}");
    }
}
