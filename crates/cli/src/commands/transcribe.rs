//! `ingle transcribe`: transcribe speech to text, subtitles or JSON.

use std::fs::File;
use std::io::{self, BufWriter, Write};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::{Context, bail};
use clap::{Args, ValueEnum};
use device::KvType;
use engine::CancelFlag;
use ingle::LoadOptions;
use model::WeightType;
use speech::{
    AudioFeatures, Format, Segment, Summary, Task, TranscribeOptions, Transcriber, TranscriberOptions,
    TranscriptWriter,
};

use super::generate::Interrupt;
use crate::args::{DeviceArgs, FetchArgs, KvTypeName, ModelName};
use crate::tell::tell;
use crate::{load, output};

/// Transcribe speech to text
#[derive(Args)]
#[command(after_help = "\
Reads WAV, AIFF, MP3, M4A, FLAC and OGG Vorbis at any rate and number of channels. Segments are
printed as soon as they are final, JSON at the end. With --output-dir, the transcript of each file
is a file in that folder. A damaged file is transcribed as far as possible, with a note on stderr.

Examples:
  ingle transcribe whisper:base talk.mp3
  ingle transcribe whisper:base talk.mp3 --format srt > talk.srt
  ingle transcribe whisper:base interview.flac --language de --word-timestamps --json
  ingle transcribe whisper:base rede.ogg --task translate
  ingle transcribe whisper:tiny meetings/*.wav --format vtt --output-dir subtitles
  ffmpeg -i film.mkv -f wav - | ingle transcribe whisper:base -")]
pub struct Transcribe {
    /// The model: a catalog name, a path or hf:org/repo[/file][@revision]
    model: ModelName,

    /// Audio files; - reads stdin
    #[arg(required = true, value_name = "FILE")]
    files: Vec<PathBuf>,

    #[command(flatten)]
    fetch: FetchArgs,

    #[command(flatten)]
    device: DeviceArgs,

    #[command(flatten)]
    running: RunningArgs,

    #[command(flatten)]
    output: OutputArgs,

    #[command(flatten)]
    decoding: DecodingArgs,
}

/// Types of values, and arithmetic.
#[derive(Args, Clone, Debug)]
#[command(next_help_heading = "Running")]
struct RunningArgs {
    /// The type of cached keys and values
    ///
    /// [default: the device's own: f16 on cpu, f32 on reference]
    #[arg(long, value_enum)]
    kv_type: Option<KvTypeName>,

    /// The type of unquantised matrices in memory
    ///
    /// 8 bits (q8_0) are faster, and change a word now and then.
    #[arg(long, value_enum, default_value_t = WeightTypeName::AsStored)]
    weight_type: WeightTypeName,

    /// Fix the order of all sums
    #[arg(long)]
    deterministic: bool,
}

/// `--weight-type`
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum WeightTypeName {
    AsStored,
    #[value(name = "q8_0")]
    Q8_0,
}

/// Format and place of the transcript.
#[derive(Args, Clone, Debug)]
#[command(next_help_heading = "Output")]
struct OutputArgs {
    /// The format of the transcript
    #[arg(short, long, value_enum, default_value_t = FormatName::Text)]
    format: FormatName,

    /// Print JSON (--format json)
    #[arg(long, conflicts_with = "format")]
    json: bool,

    /// Write transcripts to DIR/FILE.txt (.srt, …)
    #[arg(short, long, value_name = "DIR")]
    output_dir: Option<PathBuf>,

    /// Find the time of each word
    ///
    /// JSON then has the times, and segments begin and end with their words.
    #[arg(long, overrides_with = "no_word_timestamps")]
    word_timestamps: bool,

    /// Do not find the times of words (the default)
    #[arg(long, overrides_with = "word_timestamps")]
    no_word_timestamps: bool,
}

impl OutputArgs {
    fn format(&self) -> FormatName {
        if self.json { FormatName::Json } else { self.format }
    }
}

/// Decoding of the text.
#[derive(Args, Clone, Debug)]
#[command(next_help_heading = "Decoding")]
struct DecodingArgs {
    /// The spoken language, as a code such as en
    ///
    /// auto detects it in the first 30 s.
    #[arg(short, long, value_name = "CODE", default_value = "auto")]
    language: String,

    /// Transcribe, or translate into English
    #[arg(long, value_enum, default_value_t = TaskName::Transcribe)]
    task: TaskName,

    /// Hypotheses of beam search, at temperature 0
    #[arg(long, value_name = "N", default_value_t = 5, value_parser = beams)]
    beam_size: usize,

    /// Samples at temperatures above 0; the best is used
    #[arg(long, value_name = "N", default_value_t = 5, value_parser = beams)]
    best_of: usize,

    /// Stop a search after N times --beam-size hypotheses
    #[arg(long, value_name = "N", default_value_t = 1.0)]
    patience: f32,

    /// Divide the log-probability by the length to this power
    #[arg(long, value_name = "X", default_value_t = 1.0)]
    length_penalty: f32,

    /// Temperatures to try in this order
    ///
    /// The first whose text of a window is good enough is used.
    #[arg(long, value_name = "T,…", value_delimiter = ',', default_values_t = [0.0, 0.2, 0.4, 0.6, 0.8, 1.0])]
    temperature: Vec<f32>,

    /// Reject repetitive text
    ///
    /// A text that compresses by more than this factor is not good enough.
    #[arg(long, value_name = "X", default_value_t = 2.4)]
    compression_ratio_threshold: f32,

    /// Reject text with a lower mean log-probability
    #[arg(long, value_name = "X", default_value_t = -1.0)]
    logprob_threshold: f32,

    /// Treat windows above this probability as silence
    ///
    /// The text of such a window must also be below --logprob-threshold.
    #[arg(long, value_name = "P", default_value_t = 0.6)]
    no_speech_threshold: f32,

    /// A text before the speech
    ///
    /// It shows the model names, spelling and style.
    #[arg(short, long, value_name = "TEXT")]
    prompt: Option<String>,

    /// Decode each window without the text before it
    #[arg(long)]
    no_context: bool,

    /// Decode without timestamps; each window is one segment
    #[arg(long)]
    no_timestamps: bool,

    /// Seed of the random numbers at temperatures above 0
    #[arg(long, default_value_t = 0)]
    seed: u64,
}

/// `--format`
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum FormatName {
    Text,
    Srt,
    Vtt,
    Tsv,
    Json,
}

/// `--task`
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum TaskName {
    Transcribe,
    Translate,
}

/// Parses a number of beams. Each beam has its own pages, so a large number is a typing mistake.
fn beams(text: &str) -> Result<usize, String> {
    let n = text.parse().ok().filter(|n| (1..=64).contains(n));
    n.ok_or_else(|| "expected a number from 1 to 64".into())
}

impl Transcribe {
    pub fn run(self) -> anyhow::Result<()> {
        let outputs = self.outputs()?;
        // A missing file is an error before a model is fetched and loaded.
        for file in self.files.iter().filter(|file| !is_stdin(file)) {
            File::open(file).with_context(|| format!("{}: cannot be opened", file.display()))?;
        }
        let loading = self.loading()?;
        let device = load::device(&loading.device)?;
        let model = load::open(&self.model, &loading)?;
        let options = self.options();
        let mut transcriber = Transcriber::new(
            &model,
            &device,
            &TranscriberOptions {
                n_beams: options.beam_size.max(options.best_of),
                kv_type: loading.kv_type,
                numerics: loading.numerics(),
                weights: match self.running.weight_type {
                    WeightTypeName::AsStored => WeightType::AsStored,
                    WeightTypeName::Q8_0 => WeightType::Q8_0,
                },
                ..TranscriberOptions::default()
            },
        )?;
        let interrupt = Interrupt::install()?;
        for (file, output) in self.files.iter().zip(&outputs) {
            let begun = Instant::now();
            let cancel = CancelFlag::default();
            interrupt.watch(Some(cancel.clone()));
            let done = self.transcribe(&mut transcriber, file, output.as_deref(), &options, &cancel);
            interrupt.watch(None);
            let summary = done.with_context(|| shown(file))?;
            tracing::info!("{}: {}", shown(file), figures(&summary, begun.elapsed()));
            if summary.cancelled {
                bail!("{}: cancelled after {:.1} s of audio", shown(file), summary.seconds);
            }
        }
        Ok(())
    }

    /// The options of loading.
    fn loading(&self) -> anyhow::Result<LoadOptions> {
        let mut options = LoadOptions::default();
        options.hub = self.fetch.hub()?;
        options.device = self.device.options();
        options.access = self.device.access();
        options.kv_type = self.running.kv_type.map(KvType::from);
        options.deterministic = self.running.deterministic;
        Ok(options)
    }

    /// The path of each file's transcript; `None`: stdout. All paths are different.
    fn outputs(&self) -> anyhow::Result<Vec<Option<PathBuf>>> {
        let Some(folder) = &self.output.output_dir else {
            if self.files.len() > 1 && self.output.format() != FormatName::Text {
                bail!(
                    "several transcripts of subtitles or JSON need --output-dir, because stdout cannot separate them"
                );
            }
            return Ok(vec![None; self.files.len()]);
        };
        std::fs::create_dir_all(folder).with_context(|| format!("making {}", folder.display()))?;
        let extension = self.output.format().format().extension();
        let mut outputs: Vec<Option<PathBuf>> = Vec::with_capacity(self.files.len());
        for file in &self.files {
            let stem = if is_stdin(file) { Some("stdin".as_ref()) } else { file.file_stem() };
            let stem = stem.with_context(|| format!("{}: found no file name in the path", file.display()))?;
            let mut name = stem.to_owned();
            name.push(".");
            name.push(extension);
            let path = folder.join(name);
            if outputs.iter().flatten().any(|other| *other == path) {
                bail!("two files would have the transcript {}; rename one", path.display());
            }
            outputs.push(Some(path));
        }
        Ok(outputs)
    }

    fn options(&self) -> TranscribeOptions {
        let decoding = &self.decoding;
        TranscribeOptions {
            language: (decoding.language != "auto").then(|| decoding.language.to_lowercase()),
            task: match decoding.task {
                TaskName::Transcribe => Task::Transcribe,
                TaskName::Translate => Task::Translate,
            },
            beam_size: decoding.beam_size,
            best_of: decoding.best_of,
            patience: decoding.patience,
            length_penalty: decoding.length_penalty,
            temperatures: decoding.temperature.clone(),
            compression_ratio_threshold: Some(decoding.compression_ratio_threshold),
            log_prob_threshold: Some(decoding.logprob_threshold),
            no_speech_threshold: Some(decoding.no_speech_threshold),
            condition_on_previous_text: !decoding.no_context,
            initial_prompt: decoding.prompt.clone(),
            timestamps: !decoding.no_timestamps,
            word_timestamps: self.output.word_timestamps && !self.output.no_word_timestamps,
            seed: decoding.seed,
            ..TranscribeOptions::default()
        }
    }

    fn transcribe(
        &self,
        transcriber: &mut Transcriber,
        file: &Path,
        output: Option<&Path>,
        options: &TranscribeOptions,
        cancel: &CancelFlag,
    ) -> anyhow::Result<Summary> {
        let stream = match is_stdin(file) {
            true => audio::AudioStream::from_reader(io::stdin(), "stdin")?,
            false => audio::AudioStream::open(file)?,
        };
        let promised = stream.info().seconds;
        let mut features = AudioFeatures::new(stream, transcriber.n_features())?;
        let out: Box<dyn Write> = match output {
            Some(path) => {
                let made = File::create(path).with_context(|| format!("creating {}", path.display()))?;
                Box::new(BufWriter::new(made))
            }
            None => Box::new(io::stdout()),
        };
        let mut writer = TranscriptWriter::new(out, self.output.format().format())?;
        let begun = Instant::now();
        let mut on_segment = |segment: Segment| {
            writer.push(&segment)?;
            progress(&segment, promised, begun.elapsed());
            Ok(())
        };
        let summary = transcriber.transcribe(&mut features, options, cancel, &mut on_segment)?;
        writer.finish(&summary.language)?;
        if let Some(damage) = features.damage() {
            tell!("note: {}: {damage}", shown(file));
        }
        Ok(summary)
    }
}

impl FormatName {
    fn format(self) -> Format {
        match self {
            FormatName::Text => Format::Text,
            FormatName::Srt => Format::Srt,
            FormatName::Vtt => Format::Vtt,
            FormatName::Tsv => Format::Tsv,
            FormatName::Json => Format::Json,
        }
    }
}

fn is_stdin(file: &Path) -> bool {
    file.as_os_str() == "-"
}

/// The name of a file in messages.
fn shown(file: &Path) -> String {
    if is_stdin(file) { "stdin".to_owned() } else { file.display().to_string() }
}

/// Logs the progress after a segment, for `-v`.
fn progress(segment: &Segment, promised: Option<f64>, elapsed: Duration) {
    let of = promised.map_or(String::new(), |seconds| format!(" of {seconds:.1}"));
    let speed = segment.end / elapsed.as_secs_f64().max(1e-6);
    tracing::info!("{:.1}{of} s of audio, {speed:.1} times real time", segment.end);
}

/// The line of timings, for `-v`.
fn figures(summary: &Summary, elapsed: Duration) -> String {
    let times = &summary.timings;
    let probability =
        summary.language_probability.map_or(String::new(), |p| format!(" ({:.0} %)", 100.0 * p));
    format!(
        "{:.1} s of audio in {:.2} s, {:.1} times real time; language {}{probability}; {}: features {:.3} s, \
         encoding {:.3} s, prompts {:.3} s, {} steps {:.3} s, search {:.3} s, word times {:.3} s",
        summary.seconds,
        elapsed.as_secs_f64(),
        summary.seconds / elapsed.as_secs_f64().max(1e-6),
        summary.language,
        output::plural(times.n_windows, "window"),
        times.features.as_secs_f64(),
        times.encode.as_secs_f64(),
        times.prompt.as_secs_f64(),
        times.n_steps,
        times.decode.as_secs_f64(),
        times.search.as_secs_f64(),
        times.align.as_secs_f64(),
    )
}
