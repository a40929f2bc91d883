//! Transcription with a tiny model of random weights. Its text is meaningless, but must match the
//! model's probabilities.
#![allow(clippy::unwrap_used)]

use std::path::PathBuf;
use std::sync::Arc;

use device::{Device, KvType, Limits, Numerics, Span, Step, Want};
use device_reference::Reference;
use engine::{CancelFlag, Embedder, Engine, LoadOptions, Model, TokenizerSource, plan_memory};
use model::SpeechPlans;
use speech::{
    Error, Features, Result, Segment, Summary, Task, TranscribeOptions, Transcriber, TranscriberOptions,
};
use text::Tokenizer;
use weights::{Access, Array, Bytes, Metadata, Value};

/// The end token. Text is 0 to 93; after the end come the start, two languages, the other special
/// tokens, and marks from 0.00 to 1.00 s.
const EOT: u32 = 94;
const SOT: u32 = 95;
const ENGLISH: u32 = 96;
const TRANSLATE: u32 = 98;
const TRANSCRIBE: u32 = 99;
const NO_TIMESTAMPS: u32 = 103;
const N_MELS: usize = 80;

fn fixture(name: &str) -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../fixtures/models").join(name)
}

/// A byte-level vocabulary of 160 tokens: single characters, a few words, and halves of characters.
fn tokenizer() -> Tokenizer {
    let (mut bytes, mut spans) = (String::new(), Vec::new());
    for id in 0..160u32 {
        let token = match id {
            0..=93 => char::from(b'!' + id as u8).to_string(),
            94..=120 => format!("Ġword{id}"),
            _ => char::from_u32(0xa1 + id - 121).unwrap().to_string(),
        };
        spans.push((bytes.len() as u32, token.len() as u32));
        bytes.push_str(&token);
    }
    let strings =
        |bytes: &str, spans| Value::Array(Array::Str { bytes: Bytes::from_slice(bytes.as_bytes()), spans });
    let mut metadata = Metadata::default();
    metadata.insert("tokenizer.ggml.model".into(), Value::Str("gpt2".into()));
    metadata.insert("tokenizer.ggml.pre".into(), Value::Str("gpt-2".into()));
    metadata.insert("tokenizer.ggml.tokens".into(), strings(&bytes, spans));
    metadata.insert("tokenizer.ggml.merges".into(), strings("", vec![]));
    metadata.insert("tokenizer.ggml.token_type".into(), Value::Array(Array::Int(vec![1; 160])));
    Tokenizer::from_gguf(&metadata).unwrap()
}

fn model() -> Arc<Model> {
    let path = fixture("whisper");
    let mut checkpoint = formats::open(&path, Access::Map).unwrap();
    for (key, id) in [
        ("eos_token_id", EOT),
        ("decoder_start_token_id", SOT),
        ("lang_to_id.<|en|>", ENGLISH),
        ("lang_to_id.<|de|>", ENGLISH + 1),
        ("task_to_id.translate", TRANSLATE),
        ("task_to_id.transcribe", TRANSCRIBE),
        ("no_timestamps_token_id", NO_TIMESTAMPS),
    ] {
        assert!(checkpoint.metadata.insert(format!("generation_config.{key}"), Value::Int(id.into())));
    }
    Arc::new(Model::from_checkpoint(&path, checkpoint, Some(tokenizer())).unwrap())
}

fn devices() -> [Arc<dyn Device>; 2] {
    let cpu = device_cpu::CpuDevice::new(device_cpu::Options { threads: Some(2), isa: None }).unwrap();
    [Arc::new(Reference::default()), Arc::new(cpu)]
}

fn transcriber(device: &Arc<dyn Device>) -> Transcriber {
    let options = TranscriberOptions { kv_type: Some(KvType::F32), ..TranscriberOptions::default() };
    Transcriber::new(&model(), device, &options).unwrap()
}

/// Sound that differs in each frame; a window has 100 frames.
struct Sound(usize);

fn frame(index: usize) -> impl Iterator<Item = f32> {
    (0..N_MELS).map(move |band| ((index * 31 + band * 17) as f32 * 0.37).sin())
}

impl Features for Sound {
    fn n_features(&self) -> usize {
        N_MELS
    }

    fn read(&mut self, start: usize, out: &mut [f32]) -> Result<usize> {
        for (at, to) in out.chunks_mut(N_MELS).enumerate() {
            let is_there = start + at < self.0;
            to.iter_mut().zip(frame(start + at)).for_each(|(to, v)| *to = if is_there { v } else { 0.0 });
        }
        Ok(self.0.saturating_sub(start).min(out.len() / N_MELS))
    }
}

/// Options that accept the first result.
fn options() -> TranscribeOptions {
    TranscribeOptions {
        language: Some("en".into()),
        temperatures: vec![0.0],
        no_speech_threshold: None,
        log_prob_threshold: None,
        compression_ratio_threshold: None,
        ..TranscribeOptions::default()
    }
}

fn run(
    transcriber: &mut Transcriber,
    n_frames: usize,
    options: &TranscribeOptions,
) -> (Summary, Vec<Segment>) {
    let mut segments = Vec::new();
    let mut take = |segment| {
        segments.push(segment);
        Ok(())
    };
    let summary =
        transcriber.transcribe(&mut Sound(n_frames), options, &CancelFlag::default(), &mut take).unwrap();
    (summary, segments)
}

/// Logarithm of the sum of `e^x`.
fn log_sum_exp(values: impl Iterator<Item = f32> + Clone) -> f64 {
    let highest = values.clone().fold(f32::NEG_INFINITY, f32::max);
    f64::from(highest) + values.map(|v| f64::from(v - highest).exp()).sum::<f64>().ln()
}

/// Log-probability of tokens after a prompt, and of the end unless the tokens fill half the
/// context. It is computed in one sequence, without a search.
fn log_prob(device: &dyn Device, window: &[f32], prompt: &[u32], tokens: &[u32]) -> f64 {
    const PAGES: usize = 4;
    let model = model();
    let plans = model.speech_plans(&model.speech().unwrap()).unwrap().into_vec();
    let limits = Limits {
        max_rows: 64,
        max_outputs: 64,
        max_spans: 1,
        n_ctx: 64,
        page_len: 16,
        n_pages: vec![PAGES; plans[0].kv.groups.len()],
        n_states: 0,
        background_rows: 0,
        kv_type: KvType::F32,
        numerics: Numerics::Fast,
    };
    let plans: Vec<_> = plans.iter().map(|plan| device_lower::fusion::fuse(plan, device.fusion())).collect();
    let mut program = device.compile(&plans, &limits).unwrap();
    program.commit_all().unwrap();
    let page_tables: Vec<u32> = (0..2).flat_map(|_| 0..PAGES as u32).collect();
    let all: Vec<u32> = prompt.iter().chain(tokens).copied().collect();
    let outputs: Vec<u32> = (prompt.len() as u32 - 1..all.len() as u32).collect();
    let zeros = vec![0; window.len() / N_MELS / 2];
    for (plan, tokens, input, outputs) in
        [(SpeechPlans::ENCODER, &zeros[..], window, &[][..]), (SpeechPlans::DECODER, &all, &[], &outputs)]
    {
        let span = Span { slot: 0, first_row: 0, n_rows: tokens.len() as u32, first_position: 0 };
        let step = Step {
            plan,
            tokens,
            input,
            spans: &[span],
            page_tables: &page_tables,
            pages_per_table: PAGES,
            outputs,
            wants: &vec![Want::LOGITS; outputs.len()],
            ..Step::default()
        };
        program.run(&step).unwrap();
    }
    let is_allowed = |id: usize| id < SOT as usize || id == ENGLISH as usize || id == ENGLISH as usize + 1;
    let rows = program.logits().chunks(160);
    let said = tokens.iter().copied().chain((tokens.len() < 32).then_some(EOT));
    rows.zip(said)
        .map(|(row, token)| {
            let allowed = row.iter().enumerate().filter(|(id, _)| is_allowed(*id)).map(|(_, v)| *v);
            f64::from(row[token as usize]) - log_sum_exp(allowed)
        })
        .sum()
}

#[test]
fn a_search_is_as_likely_as_it_says() {
    let window: Vec<f32> = (0..100).flat_map(frame).collect();
    for device in devices() {
        for (n_beams, temperature) in [(1, 0.0), (5, 0.0), (5, 0.9)] {
            let options = TranscribeOptions {
                timestamps: false,
                suppress_blank: false,
                suppress_non_speech: false,
                beam_size: n_beams,
                best_of: n_beams,
                temperatures: vec![temperature],
                ..options()
            };
            let (_, segments) = run(&mut transcriber(&device), 100, &options);
            let [segment] = &segments[..] else { panic!("{segments:?}") };
            let prompt = [SOT, ENGLISH, TRANSCRIBE, NO_TIMESTAMPS];
            let exact = log_prob(device.as_ref(), &window, &prompt, &segment.tokens);
            let n = segment.tokens.len();
            let found = f64::from(segment.avg_logprob) * (n + 1) as f64;
            // Steps of one row and of many rows add in different orders.
            assert!((found - exact).abs() < 1e-3 * n as f64, "{}: {found} for {exact}", device.name());
            assert_eq!((segment.start, segment.end, segment.id, segment.seek), (0.0, 1.0, 0, 0));
        }
    }
}

#[test]
fn more_beams_find_nothing_less_likely() {
    let device = &devices()[1];
    let mut transcriber = transcriber(device);
    let score = |segments: &[Segment]| f64::from(segments[0].avg_logprob);
    let free = TranscribeOptions { timestamps: false, ..options() };
    let (_, greedy) = run(&mut transcriber, 100, &TranscribeOptions { beam_size: 1, ..free.clone() });
    let (_, beams) = run(&mut transcriber, 100, &free);
    assert!(score(&beams) >= score(&greedy) - 1e-4, "{} {}", score(&beams), score(&greedy));
}

#[test]
fn devices_write_the_same_and_words_are_the_text() {
    let options = TranscribeOptions {
        word_timestamps: true,
        initial_prompt: Some("abc".into()),
        max_initial_timestamp: 0.2,
        ..options()
    };
    let mut found: Vec<Vec<Segment>> = Vec::new();
    for device in devices() {
        let (summary, segments) = run(&mut transcriber(&device), 370, &options);
        assert!(!summary.cancelled && !segments.is_empty(), "{}: {segments:?}", device.name());
        assert_eq!(summary.n_segments, segments.len());
        assert_eq!(
            (summary.language.as_str(), summary.language_probability, summary.seconds),
            ("en", None, 3.7)
        );
        assert!(summary.timings.n_windows >= 4 && summary.timings.n_steps > 10, "{:?}", summary.timings);
        for (id, segment) in segments.iter().enumerate() {
            assert_eq!(segment.id, id);
            assert!(
                segment.end >= segment.start && segment.end <= segment.seek as f64 / 100.0 + 1.5,
                "{segment:?}"
            );
            let words = segment.words.as_ref().unwrap();
            assert!(
                words.iter().all(|word| word.end >= word.start && (0.0..=1.0).contains(&word.probability))
            );
            assert!(words.windows(2).all(|pair| pair[1].start >= pair[0].start), "{words:?}");
        }
        assert!(segments.windows(2).all(|pair| pair[1].seek >= pair[0].seek));
        // A word that extends beyond its segment belongs to the segment as a whole. Segments
        // without length are dropped with their text, except if such a word is in them. So the
        // texts of a window follow one another in its words.
        for window in segments.chunk_by(|a, b| a.seek == b.seek) {
            let words = window.iter().flat_map(|segment| segment.words.as_ref().unwrap());
            let words: String = words.map(|word| word.word.as_str()).collect();
            let mut rest = words.as_str();
            for segment in window {
                let at = rest.find(&segment.text);
                assert!(at.is_some(), "{:?} among {words:?}", segment.text);
                rest = &rest[at.unwrap() + segment.text.len()..];
            }
        }
        found.push(segments);
    }
    // Both devices compute in f32 here, in different orders, so the tokens are equal unless two are
    // equally probable.
    let tokens = |segments: &[Segment]| segments.iter().map(|s| s.tokens.clone()).collect::<Vec<_>>();
    assert_eq!(tokens(&found[0]), tokens(&found[1]));
}

#[test]
fn samples_depend_on_the_seed_and_on_nothing_else() {
    let device = &devices()[1];
    let mut transcriber = transcriber(device);
    let mut text = |seed| {
        let options = TranscribeOptions { temperatures: vec![1.0], seed, timestamps: false, ..options() };
        run(&mut transcriber, 100, &options).1[0].text.clone()
    };
    assert_eq!(text(1), text(1));
    assert_ne!(text(1), text(2));
}

#[test]
fn a_language_is_found_out_and_fallback_goes_to_the_end() {
    let device = &devices()[1];
    let options = TranscribeOptions {
        language: None,
        log_prob_threshold: Some(1.0), // nothing is good enough
        temperatures: vec![0.0, 0.5, 1.0],
        // one window, since what a mark of time leaves over may be too short for a second try
        timestamps: false,
        ..options()
    };
    let (summary, segments) = run(&mut transcriber(device), 100, &options);
    assert!(["en", "de"].contains(&summary.language.as_str()));
    assert!((0.5..=1.0).contains(&summary.language_probability.unwrap()));
    assert!(segments.iter().all(|segment| segment.temperature == 1.0));
}

#[test]
fn silence_is_skipped() {
    let device = &devices()[1];
    let options = TranscribeOptions {
        no_speech_threshold: Some(-1.0), // all windows are silent
        log_prob_threshold: Some(0.5),
        ..options()
    };
    let (summary, segments) = run(&mut transcriber(device), 250, &options);
    assert!(segments.is_empty() && summary.timings.n_windows == 3, "{summary:?}");
}

#[test]
fn a_flag_cancels_between_steps_and_errors_come_through() {
    let device = &devices()[1];
    let mut transcriber = transcriber(device);
    let (cancel, mut n) = (CancelFlag::default(), 0);
    let mut on_segment = |_| {
        n += 1;
        cancel.cancel();
        Ok(())
    };
    let summary = transcriber.transcribe(&mut Sound(1000), &options(), &cancel, &mut on_segment).unwrap();
    assert!(summary.cancelled && summary.seconds < 9.0 && n > 0);
    let mut fail = |_| Err(Error::Output(std::io::Error::other("full")));
    let error = transcriber.transcribe(&mut Sound(100), &options(), &CancelFlag::default(), &mut fail);
    assert!(matches!(error, Err(Error::Output(_))));
    // No state is left from the first run.
    let (again, _) = run(&mut transcriber, 0, &options());
    assert_eq!((again.n_segments, again.seconds), (0, 0.0));
}

#[test]
fn what_cannot_be_done_is_said() {
    let device = &devices()[1];
    let mut transcriber = transcriber(device);
    let mut error = |options: TranscribeOptions| {
        let done = transcriber.transcribe(&mut Sound(9), &options, &CancelFlag::default(), &mut |_| Ok(()));
        done.unwrap_err().to_string()
    };
    let unknown = error(TranscribeOptions { language: Some("xx".into()), ..options() });
    assert_eq!(unknown, "language is xx, expected one of en, de");
    assert!(error(TranscribeOptions { beam_size: 6, ..options() }).contains("1 to 5"));
    assert!(
        run(&mut transcriber, 20, &TranscribeOptions { task: Task::Translate, ..options() }).0.seconds > 0.1
    );
    let text = Model::from_opened(
        &fixture("llama"),
        formats::open(&fixture("llama"), Access::Map).unwrap(),
        &TokenizerSource::None,
    )
    .unwrap();
    let error = Transcriber::new(&text, device, &TranscriberOptions::default()).err().unwrap();
    assert!(error.to_string().contains("does not hear"), "{error}");
}

#[test]
fn nothing_else_is_done_with_a_model_for_speech() {
    let options = LoadOptions::default();
    for device in &devices() {
        let error = Engine::new(model(), device, &options).err().unwrap();
        assert!(matches!(error, engine::Error::OnlySpeech { .. }), "{error}");
        let error = plan_memory(&model(), device.as_ref(), &options).unwrap_err();
        assert!(error.to_string().contains("transcribe"), "{error}");
        assert!(matches!(Embedder::new(model(), device, &options), Err(engine::Error::NoEmbeddings { .. })));
    }
}

#[test]
fn a_transcriber_goes_to_another_thread() {
    fn is_send<T: Send>() {}
    is_send::<Transcriber>();
}

/// Frames in which every value is this number.
struct Flat(usize, f32);

impl Features for Flat {
    fn n_features(&self) -> usize {
        N_MELS
    }

    fn read(&mut self, start: usize, out: &mut [f32]) -> Result<usize> {
        out.fill(self.1);
        Ok(self.0.saturating_sub(start).min(out.len() / N_MELS))
    }
}

/// Options that reject every result, so that every temperature is tried.
fn strict() -> TranscribeOptions {
    TranscribeOptions { log_prob_threshold: Some(100.0), temperatures: vec![0.0, 0.5, 1.0], ..options() }
}

#[test]
fn a_short_sound_takes_a_short_time_and_one_try() {
    let [_, cpu] = devices();
    let mut transcriber = transcriber(&cpu);
    let steps = |transcriber: &mut Transcriber, n_frames| {
        let (summary, _) = run(transcriber, n_frames, &strict());
        assert_eq!(summary.timings.n_windows, 1);
        summary.timings.n_steps
    };
    // 50 ms allow at most 9 tokens in one try; longer text is not speech.
    let short = steps(&mut transcriber, 5);
    assert!((1..=9).contains(&short), "{short}");
    assert!(short < 9 || run(&mut transcriber, 5, &strict()).1.is_empty());
    // Half a second allows three tries of at most 24 tokens.
    let longer = steps(&mut transcriber, 50);
    assert!((2 * short..=3 * 24).contains(&longer), "{longer}");
}

#[test]
fn where_there_is_no_sound_nothing_is_made_up() {
    let [_, cpu] = devices();
    let mut transcriber = transcriber(&cpu);
    let mut hear = |features: &mut dyn Features, language: Option<&str>| {
        let options = TranscribeOptions { language: language.map(str::to_owned), ..strict() };
        let mut n = 0;
        let mut count = |_| {
            n += 1;
            Ok(())
        };
        let summary = transcriber.transcribe(features, &options, &CancelFlag::default(), &mut count).unwrap();
        (n, summary)
    };
    for (level, language) in [(-1.5, None), (0.0, Some("de"))] {
        let (n, summary) = hear(&mut Flat(250, level), language);
        assert_eq!((n, summary.timings.n_windows, summary.seconds), (0, 0, 2.5));
        assert_eq!(summary.language, language.unwrap_or("en"));
    }
    // A single value that differs is a sound.
    assert_eq!(hear(&mut Sound(30), None).1.timings.n_windows, 1);
}
