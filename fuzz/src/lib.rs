//! Fuzz targets: each passes untrusted bytes to one of our readers, and panics if the reader breaks
//! a promise. A reader returns a valid value or an error, in bounded time and memory.
//!
//! Targets are functions of a library, so that a test can run each over its seeds on every machine.
//! `cargo xtask fuzz` runs them under libFuzzer.

mod files;
mod http;
mod media;
mod prompt_cache;
mod seeds;
mod texts;

/// A fuzz target.
#[derive(Debug)]
pub struct Target {
    /// The target's name for `cargo xtask fuzz`.
    pub name: &'static str,
    /// Runs one input. Panics if a promise is broken.
    pub run: fn(&[u8]),
    /// Returns the first inputs: small valid ones, and ones that once revealed a fault.
    pub seeds: fn() -> Vec<Vec<u8>>,
}

/// All fuzz targets.
pub const TARGETS: &[Target] = &[
    Target { name: "gguf", run: files::gguf, seeds: seeds::gguf },
    Target { name: "safetensors", run: files::safetensors, seeds: seeds::safetensors },
    Target { name: "base", run: files::base, seeds: seeds::base },
    Target { name: "mlx", run: files::mlx, seeds: seeds::mlx },
    Target { name: "ctranslate2", run: files::ctranslate2, seeds: seeds::ctranslate2 },
    Target { name: "whisper_cpp", run: files::whisper_cpp, seeds: seeds::whisper_cpp },
    Target { name: "lora", run: files::lora, seeds: seeds::lora },
    Target { name: "mmproj", run: files::mmproj, seeds: seeds::mmproj },
    Target { name: "prompt_cache", run: prompt_cache::run, seeds: prompt_cache::seeds },
    Target { name: "tokenizer", run: texts::tokenizer, seeds: seeds::tokenizer },
    Target { name: "template", run: texts::template, seeds: seeds::template },
    Target { name: "grammar", run: texts::grammar, seeds: seeds::grammar },
    Target { name: "answer", run: texts::answer, seeds: seeds::answer },
    Target { name: "audio", run: media::audio, seeds: seeds::audio },
    Target { name: "wav", run: media::wav, seeds: seeds::wav },
    Target { name: "image", run: media::image, seeds: seeds::image },
    Target { name: "http", run: http::run, seeds: http::seeds },
];

#[cfg(test)]
mod tests {
    use std::time::{Duration, Instant};

    /// Runs every target over its seeds, over truncated seeds, and over seeds with one byte
    /// changed.
    #[test]
    fn targets_keep_their_promises_on_their_seeds() {
        for target in super::TARGETS {
            let started = Instant::now();
            let seeds = (target.seeds)();
            assert!(!seeds.is_empty(), "{}", target.name);
            for seed in &seeds {
                (target.run)(seed);
            }
            for seed in seeds.iter().filter(|seed| seed.len() > 2 && seed.len() < 1 << 16).take(3) {
                (target.run)(&seed[..seed.len() / 2]);
                let mut changed = seed.clone();
                changed[seed.len() / 3] ^= 0x40;
                (target.run)(&changed);
            }
            let took = started.elapsed();
            assert!(took < Duration::from_secs(120), "{}: {took:?}", target.name);
        }
    }
}
