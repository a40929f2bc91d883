//! The loop over windows: encode, decode, align words, emit segments.

use std::sync::Arc;
use std::time::Instant;

use device::{Device, KvType, Limits, Numerics, Plan};
use engine::sampling::Rng;
use engine::{CancelFlag, Model, Turns, WeightFiles};
use model::{PlainMatrices, SpeechPlans, SpeechSpec, WeightType};
use text::{Specials, Tokenizer};

use crate::compression::compression_ratio;
use crate::options::{Task, TranscribeOptions};
use crate::rules::Rules;
use crate::runner::{Runner, SpeechTimings};
use crate::search::{Bounds, Hypothesis, beam_search, sample};
use crate::source::{Features, Silence, is_flat};
use crate::transcript::{Segment, Word, round_time};
use crate::window::{FRAMES_PER_SECOND, Piece, Window};
use crate::word_times::{self, TimeSpan};
use crate::words::{self, TimedWord};
use crate::{Error, Result};
use crate::{language, math};

/// Positions of a page. Pages are small, because beams that separate copy the last one.
const PAGE_LEN: usize = 16;
/// Rows of an alignment step, whose logits and scores are all held in memory.
const ALIGN_ROWS: usize = 64;
/// Maximum number of beams that an option may set.
const MAX_BEAMS: usize = 1 << 12;

/// Options of a transcriber.
#[derive(Clone, Debug)]
pub struct TranscriberOptions {
    /// Maximum number of beams, or samples, at once.
    pub n_beams: usize,
    /// Type of keys and values; `None` is the device's default.
    pub kv_type: Option<KvType>,
    /// Arithmetic of the device.
    pub numerics: Numerics,
    /// Type of matrices in memory.
    pub weights: WeightType,
    /// Refuse to load a model that does not fit in free memory.
    pub check_memory: bool,
    /// Turns that are shared with other engines; see [`engine::LoadOptions::turns`].
    pub turns: Option<Arc<Turns>>,
}

impl Default for TranscriberOptions {
    fn default() -> TranscriberOptions {
        TranscriberOptions {
            n_beams: 5,
            kv_type: None,
            numerics: Numerics::Fast,
            weights: WeightType::AsStored,
            check_memory: true,
            turns: None,
        }
    }
}

/// Results of a transcription.
#[derive(Clone, Debug, PartialEq)]
pub struct Summary {
    /// The language's code.
    pub language: String,
    /// The language's probability, if it was detected.
    pub language_probability: Option<f32>,
    /// Seconds of sound that were transcribed.
    pub seconds: f64,
    /// Number of segments emitted.
    pub n_segments: usize,
    /// True if the transcription was cancelled before the end.
    pub cancelled: bool,
    /// Times of the parts.
    pub timings: SpeechTimings,
}

/// A speech model on a device.
pub struct Transcriber {
    tokenizer: Arc<Tokenizer>,
    speech: SpeechSpec,
    plans: Vec<Plan>,
    runner: Runner,
    /// Frames of an encoder position.
    stride: usize,
    /// Maximum number of beams at once.
    n_beams: usize,
}

/// The tokens of a window, and their scores.
struct Decision {
    hypothesis: Hypothesis,
    temperature: f32,
    compression_ratio: f32,
    no_speech_prob: f32,
}

/// State of a transcription from window to window.
struct Progress {
    /// The language's code, and the tokens that begin a transcript in that language.
    language: String,
    language_probability: Option<f32>,
    start: Vec<u32>,
    /// Tokens of the text so far, for the prompt.
    context: Vec<u32>,
    n_segments: usize,
    /// End of the last word, in seconds.
    last_speech: f64,
    rng: Rng,
}

impl Transcriber {
    /// Fuses and compiles the plans, after comparing their memory with free memory.
    ///
    /// # Errors
    /// The model is not a speech model or has no tokenizer, an option is outside its limits, or the
    /// device cannot run the model.
    pub fn new(model: &Model, device: &Arc<dyn Device>, options: &TranscriberOptions) -> Result<Transcriber> {
        let speech = model.speech()?;
        let tokenizer = Arc::clone(model.need_tokenizer()?);
        let plans = model.speech_plans(&speech)?;
        let kept_heads = plans.alignment.iter().map(|(_, heads)| heads.len()).collect();
        let mut plans = plans.into_vec();
        let memory = device.memory();
        let fits = |bytes: u64| !options.check_memory || memory.total == 0 || bytes <= memory.free;
        let too_large =
            |what: String, bytes: u64| device::Error::OutOfMemory { device: device.name(), what, bytes };
        if options.weights == WeightType::Q8_0 {
            let matrices = PlainMatrices::of(&plans);
            if !fits(matrices.bytes()) {
                return Err(too_large("the weights in 8 bits".into(), matrices.bytes()).into());
            }
            matrices.quantize(&mut plans);
        }
        let plans: Vec<Plan> =
            plans.iter().map(|plan| device_lower::fusion::fuse(plan, device.fusion())).collect();
        let limits = limits(model, &speech, &plans, device.as_ref(), options)?;
        let items = device.memory_plan(&plans, &limits)?.items;
        let bytes = items.iter().map(|item| item.bytes).sum();
        if !fits(bytes) {
            let what =
                format!("a model, windows of {} positions and {} beams", speech.n_audio_ctx, options.n_beams);
            return Err(too_large(what, bytes).into());
        }
        let mut program = device.compile(&plans, &limits)?;
        program.commit_all()?;
        let decoder = &plans[SpeechPlans::DECODER];
        let mut runner = Runner::new(program, decoder, &limits, speech.n_audio_ctx, kept_heads, ALIGN_ROWS);
        runner.turns = options.turns.clone();
        runner.weight_files = model.weight_files().clone();
        runner.weight_files.check_whole()?;
        let stride = speech.n_frames / speech.n_audio_ctx;
        Ok(Transcriber { tokenizer, plans, runner, stride, n_beams: options.n_beams, speech })
    }

    /// Files that are read while the model runs.
    pub fn weight_files(&self) -> &WeightFiles {
        &self.runner.weight_files
    }

    /// Number of features of a frame: mel bins.
    pub fn n_features(&self) -> usize {
        self.speech.n_mels
    }

    /// Frames of a window.
    pub fn window_frames(&self) -> usize {
        self.speech.n_frames
    }

    /// Codes of the model's languages. A model without languages knows English only.
    pub fn languages(&self) -> impl Iterator<Item = &str> {
        self.speech.tokens.languages.iter().map(|(code, _)| code.as_str())
    }

    /// The plans, fused by the device's rules: encoder, decoder and alignment.
    pub fn plans(&self) -> &[Plan] {
        &self.plans
    }

    /// Transcribes a window of near silence, so that the device compiles and records everything it
    /// needs.
    ///
    /// # Errors
    /// The device fails.
    pub fn warm_up(&mut self) -> Result<()> {
        // One temperature is enough, because the text of silence is not used.
        let options = TranscribeOptions { temperatures: vec![0.0], ..TranscribeOptions::default() };
        let mut silence = Silence { n_features: self.speech.n_mels };
        self.transcribe(&mut silence, &options, &CancelFlag::default(), &mut |_| Ok(())).map(drop)
    }

    /// Sets a callback before each step of the device, by which a watchdog sees progress.
    pub fn set_on_step(&mut self, on_step: Box<dyn FnMut() + Send>) {
        self.runner.on_step = Some(on_step);
    }

    /// Transcribes the speech in `source`. Segments are passed to `on_segment` as soon as their
    /// window is final.
    ///
    /// # Errors
    /// An option is outside its limits, the language is unknown, the sound cannot be read, the
    /// device fails, or `on_segment` fails.
    pub fn transcribe(
        &mut self,
        source: &mut dyn Features,
        options: &TranscribeOptions,
        cancel: &CancelFlag,
        on_segment: &mut dyn FnMut(Segment) -> Result<()>,
    ) -> Result<Summary> {
        options.check(self.n_beams)?;
        if source.n_features() != self.speech.n_mels {
            return Err(Error::Option {
                name: "features",
                value: format!("{} numbers a frame", source.n_features()),
                expected: format!("{}, as the model learned", self.speech.n_mels),
            });
        }
        self.runner.timings = SpeechTimings::default();
        let mut progress = self.begin(options)?;
        let n_marks = self.speech.n_audio_ctx + 1;
        let rules = Rules::new(&self.speech.tokens, n_marks, self.runner.n_vocab(), options);
        let mut features = vec![0.0; self.speech.n_frames * self.speech.n_mels];
        let (mut seek, mut heard, mut cancelled) = (0, 0, false);
        loop {
            let begun = Instant::now();
            let n_frames = source.read(seek, &mut features)?;
            self.runner.timings.features += begun.elapsed();
            if n_frames == 0 {
                break;
            }
            if is_flat(&features[..n_frames * self.speech.n_mels]) {
                (heard, seek) = (seek + n_frames, seek + n_frames);
                continue;
            }
            let window = Window {
                seek,
                n_frames,
                frames_per_mark: self.stride,
                first_mark: self.speech.tokens.timestamp_begin,
            };
            match self.window(&features, window, options, &rules, cancel, &mut progress, on_segment) {
                Ok(next) => {
                    heard = seek + n_frames;
                    seek = next;
                }
                Err(Error::Cancelled) => {
                    cancelled = true;
                    break;
                }
                Err(error) => return Err(error),
            }
        }
        if progress.language.is_empty() {
            // The sound is empty.
            progress.language = self.languages().next().unwrap_or("en").to_owned();
        }
        Ok(Summary {
            language: progress.language,
            language_probability: progress.language_probability,
            seconds: heard as f64 / FRAMES_PER_SECOND,
            n_segments: progress.n_segments,
            cancelled,
            timings: self.runner.timings,
        })
    }

    fn begin(&self, options: &TranscribeOptions) -> Result<Progress> {
        let mut context = Vec::new();
        if let Some(prompt) = options.initial_prompt.as_deref().map(str::trim).filter(|p| !p.is_empty()) {
            context = self.tokenizer.encode(&format!(" {prompt}"), Specials::Literal)?;
        }
        let tokens = &self.speech.tokens;
        if !tokens.multilingual && options.task == Task::Translate {
            return Err(Error::Option {
                name: "task",
                value: "translate".into(),
                expected: "transcribe, because this model knows English only".into(),
            });
        }
        let language = match options.language.clone() {
            Some(language) => language,
            None if tokens.multilingual => String::new(), // found out from the first window
            None => "en".into(),
        };
        Ok(Progress {
            start: if language.is_empty() { Vec::new() } else { self.start(&language, options)? },
            language,
            language_probability: None,
            context,
            n_segments: 0,
            last_speech: 0.0,
            rng: Rng::new(options.seed),
        })
    }

    /// The tokens that begin a transcript in a language.
    fn start(&self, language: &str, options: &TranscribeOptions) -> Result<Vec<u32>> {
        let tokens = &self.speech.tokens;
        let unknown =
            |known: String| Error::Option { name: "language", value: language.into(), expected: known };
        if !tokens.multilingual {
            return match language {
                "en" => Ok(vec![tokens.sot]),
                _ => Err(unknown("en, because this model knows English only".into())),
            };
        }
        let known = || self.languages().collect::<Vec<_>>().join(", ");
        let id = tokens.language(language).ok_or_else(|| unknown(format!("one of {}", known())))?;
        let task = match options.task {
            Task::Transcribe => tokens.transcribe,
            Task::Translate => tokens.translate,
        };
        Ok(vec![tokens.sot, id, task])
    }

    /// Transcribes one window and emits its segments. Returns the start of the next window.
    #[allow(clippy::too_many_arguments)]
    fn window(
        &mut self,
        features: &[f32],
        window: Window,
        options: &TranscribeOptions,
        rules: &Rules,
        cancel: &CancelFlag,
        progress: &mut Progress,
        on_segment: &mut dyn FnMut(Segment) -> Result<()>,
    ) -> Result<usize> {
        if cancel.is_cancelled() {
            return Err(Error::Cancelled);
        }
        self.runner.encode(features)?;
        if progress.start.is_empty() {
            let logits = self.runner.prompt(&[self.speech.tokens.sot], &[0])?;
            let found = language::probabilities(logits, &self.speech.tokens.languages);
            let (code, probability) = found.into_iter().next().unwrap_or_else(|| ("en".into(), 1.0));
            progress.start = self.start(&code, options)?;
            progress.language = code;
            progress.language_probability = Some(probability);
        }
        let decision = self.decide(&window, options, rules, cancel, progress)?;
        let mean = decision.hypothesis.mean_log_prob();
        let is_silent = options.no_speech_threshold.is_some_and(|most| decision.no_speech_prob > most)
            && options.log_prob_threshold.is_none_or(|least| mean <= least);
        if is_silent {
            return Ok(window.seek + window.n_frames);
        }
        let tokens = &decision.hypothesis.tokens;
        let pieces = window.cut(tokens);
        let mut next = window.seek + pieces.advance;
        let mut spans: Vec<TimeSpan> = pieces
            .pieces
            .iter()
            .map(|piece| TimeSpan {
                start: piece.start,
                end: piece.end,
                n_tokens: self.text_tokens(&tokens[piece.tokens.clone()]).count(),
            })
            .collect();
        let mut words = None;
        if options.word_timestamps {
            let found = self.words(tokens, &window, options, progress, &mut spans)?;
            let last_word = found.iter().rev().find_map(|words| words.last()).map(|word| word.end);
            let last = last_word.or(spans.last().map(|span| span.end)).unwrap_or(0.0);
            if !pieces.ends_in_silence && last > window.start() {
                next = ((last * FRAMES_PER_SECOND).round() as usize).max(window.seek + 1);
            }
            progress.last_speech = last;
            words = Some(found);
        }
        for (index, (piece, span)) in pieces.pieces.iter().zip(&spans).enumerate() {
            let words = words.as_mut().and_then(|words| words.get_mut(index)).map(std::mem::take);
            if let Some(segment) = self.segment(&decision, window.seek, piece, span, words, progress) {
                progress.context.extend_from_slice(&segment.tokens);
                on_segment(segment)?;
            }
        }
        if !options.condition_on_previous_text || decision.temperature > options.prompt_reset_on_temperature {
            progress.context.clear();
        }
        let longest = self.speech.n_text_ctx;
        let surplus = progress.context.len().saturating_sub(longest);
        progress.context.drain(..surplus);
        Ok(next)
    }

    /// Searches at the first temperature, and at further ones while the result is not good enough.
    fn decide(
        &mut self,
        window: &Window,
        options: &TranscribeOptions,
        rules: &Rules,
        cancel: &CancelFlag,
        progress: &mut Progress,
    ) -> Result<Decision> {
        let tokens = &self.speech.tokens;
        let n_ctx = self.speech.n_text_ctx;
        let mut prompt = Vec::with_capacity(n_ctx);
        let shown = progress.context.len().saturating_sub((n_ctx / 2).saturating_sub(1));
        if !progress.context.is_empty() {
            prompt.push(tokens.sot_prev);
            prompt.extend_from_slice(&progress.context[shown..]);
        }
        let sot = prompt.len();
        prompt.extend_from_slice(&progress.start);
        if !options.timestamps {
            prompt.push(tokens.no_timestamps);
        }
        let last = prompt.len() - 1;
        let outputs = if sot == last { vec![last] } else { vec![sot, last] };
        let no_speech = tokens.no_speech as usize;
        let n_vocab = self.runner.n_vocab();
        let bounds = Bounds {
            n_vocab,
            max_tokens: (n_ctx / 2).min(n_ctx.saturating_sub(last)).min(window.max_tokens()).max(1),
            length_penalty: options.length_penalty,
        };
        let n_tries = if window.is_worth_retrying() { options.temperatures.len() } else { 1 };
        let temperatures = options.temperatures.get(..n_tries).unwrap_or_default();
        let mut best: Option<Decision> = None;
        for &temperature in temperatures {
            let logits = self.runner.prompt(&prompt, &outputs)?;
            let first = logits.get(..n_vocab).unwrap_or_default();
            let no_speech_prob = first.get(no_speech).map_or(0.0, |l| (l - math::log_sum_exp(first)).exp());
            let begun = Instant::now();
            let before = self.runner.timings.decode;
            let mut beams = self.runner.beams(prompt.len(), outputs.len(), cancel);
            let found = match temperature > 0.0 {
                true => sample(&mut beams, rules, options.best_of, temperature, &mut progress.rng, &bounds),
                false => beam_search(&mut beams, rules, options.beam_size, options.patience, &bounds),
            };
            let stepped = self.runner.timings.decode - before;
            self.runner.timings.search += begun.elapsed().saturating_sub(stepped);
            let hypothesis = found?.ok_or(Error::NoCandidate { n_vocab })?;
            let compression_ratio = compression_ratio(self.text(&hypothesis.tokens).trim());
            let decision = Decision { hypothesis, temperature, compression_ratio, no_speech_prob };
            let mean = decision.hypothesis.mean_log_prob();
            let is_repetitive =
                options.compression_ratio_threshold.is_some_and(|most| compression_ratio > most);
            let is_unsure = options.log_prob_threshold.is_some_and(|least| mean < least);
            let is_silent = options.no_speech_threshold.is_some_and(|most| no_speech_prob > most);
            // Without thresholds the first result is used.
            let is_judged = options.compression_ratio_threshold.is_some();
            let goes_on = is_judged && decision.hypothesis.tokens.len() >= bounds.max_tokens;
            if !window.is_worth_retrying() && (is_repetitive || goes_on) {
                // The text is longer than speech of this length can be, so the window counts as
                // silent.
                return Ok(Decision { hypothesis: Hypothesis::default(), ..decision });
            }
            if !(is_repetitive || is_unsure) || (is_silent && is_unsure) {
                return Ok(decision);
            }
            // If no result is good enough, the most probable one that is not repetitive is used,
            // else the most probable one.
            let rank = |decision: &Decision| {
                let repeats =
                    options.compression_ratio_threshold.is_some_and(|most| decision.compression_ratio > most);
                (!repeats, decision.hypothesis.mean_log_prob())
            };
            if best.as_ref().is_none_or(|best| rank(&decision) > rank(best)) {
                best = Some(decision);
            }
        }
        // The last temperature decides about the prompt of the next window, whichever result was
        // used.
        let last = temperatures.last().copied().unwrap_or(0.0);
        let best = best.map(|best| Decision { temperature: last, ..best });
        best.ok_or(Error::NoCandidate { n_vocab })
    }

    /// The words of each piece of a window, with their times. The times of pieces are adjusted to
    /// their words.
    fn words(
        &mut self,
        tokens: &[u32],
        window: &Window,
        options: &TranscribeOptions,
        progress: &mut Progress,
        spans: &mut [TimeSpan],
    ) -> Result<Vec<Vec<Word>>> {
        let begun = Instant::now();
        let mut all = progress.start.clone();
        let first = all.len();
        all.push(self.speech.tokens.no_timestamps);
        let from = all.len();
        all.extend(self.text_tokens(tokens));
        all.truncate(self.speech.n_text_ctx.saturating_sub(1));
        let text = from..all.len();
        all.push(self.speech.tokens.eot);
        if text.is_empty() {
            return Ok(vec![Vec::new(); spans.len()]);
        }
        let n_positions = window.n_frames / self.stride;
        let n_text_ids = self.speech.tokens.eot as usize;
        let (scores, probabilities) = self.runner.align(&all, text.clone(), n_text_ids, n_positions)?;
        let jumps = scores.align(first);
        let seconds = |token: usize| {
            let position = jumps.get(token).copied().unwrap_or(n_positions);
            (position * self.stride) as f64 / FRAMES_PER_SECOND
        };
        let pieces: Vec<&[u8]> = all[text].iter().map(|id| self.tokenizer.token_bytes(*id)).collect();
        let mut at = 0;
        let timed = words::split(&pieces, &progress.language).into_iter().map(|word| {
            let from = at;
            at += word.n_tokens;
            let own = probabilities.get(from..at).unwrap_or_default();
            let sum: f64 = own.iter().map(|p| f64::from(*p)).sum();
            TimedWord {
                text: word.text,
                n_tokens: word.n_tokens,
                start: seconds(from),
                end: seconds(at),
                probability: sum / own.len().max(1) as f64,
            }
        });
        let timed: Vec<TimedWord> = timed.collect();
        let punctuation = [&*options.prepend_punctuations, &*options.append_punctuations];
        let words = word_times::assign(timed, spans, window.start(), &mut progress.last_speech, punctuation);
        self.runner.timings.align += begun.elapsed();
        Ok(words)
    }

    /// A segment, unless its text or its length is empty.
    fn segment(
        &self,
        decision: &Decision,
        seek: usize,
        piece: &Piece,
        span: &TimeSpan,
        words: Option<Vec<Word>>,
        progress: &mut Progress,
    ) -> Option<Segment> {
        let tokens = decision.hypothesis.tokens.get(piece.tokens.clone())?;
        let text = self.text(tokens);
        if span.start == span.end || text.trim().is_empty() {
            return None;
        }
        progress.n_segments += 1;
        Some(Segment {
            id: progress.n_segments - 1,
            seek,
            start: round_time(span.start),
            end: round_time(span.end),
            text,
            tokens: tokens.to_vec(),
            temperature: decision.temperature,
            avg_logprob: decision.hypothesis.mean_log_prob(),
            compression_ratio: decision.compression_ratio,
            no_speech_prob: decision.no_speech_prob,
            words,
        })
    }

    /// The tokens that are text.
    fn text_tokens(&self, tokens: &[u32]) -> impl Iterator<Item = u32> {
        let eot = self.speech.tokens.eot;
        tokens.iter().copied().filter(move |token| *token < eot)
    }

    /// The text of tokens; bytes that are not UTF-8 become U+FFFD.
    fn text(&self, tokens: &[u32]) -> String {
        let bytes: Vec<u8> =
            self.text_tokens(tokens).flat_map(|id| self.tokenizer.token_bytes(id)).copied().collect();
        String::from_utf8_lossy(&bytes).into_owned()
    }
}

/// Limits of steps: a window's positions, a prompt, beams.
fn limits(
    model: &Model,
    speech: &SpeechSpec,
    plans: &[Plan],
    device: &dyn Device,
    options: &TranscriberOptions,
) -> Result<Limits> {
    if !(1..=MAX_BEAMS).contains(&options.n_beams) {
        return Err(Error::Option {
            name: "number of beams",
            value: options.n_beams.to_string(),
            expected: format!("a number from 1 to {MAX_BEAMS}"),
        });
    }
    let kv_type = model.kv_type(device, options.kv_type)?;
    let layout = plans.first().map(|plan| plan.kv.clone()).unwrap_or_default();
    let (max_rows, n_ctx) = (speech.n_audio_ctx.max(speech.n_text_ctx), speech.n_text_ctx);
    Ok(Limits {
        max_rows,
        max_outputs: options.n_beams.max(ALIGN_ROWS),
        max_spans: options.n_beams,
        n_ctx,
        page_len: PAGE_LEN,
        n_pages: engine::pool_sizes(&layout, n_ctx, max_rows, options.n_beams, PAGE_LEN),
        n_states: 0,
        background_rows: 0,
        kv_type,
        numerics: options.numerics,
    })
}
