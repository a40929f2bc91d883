//! Models: loading, facts, tokens, vectors and transcripts.

use std::ffi::{CString, c_char, c_void};
use std::mem::MaybeUninit;
use std::ptr;
use std::sync::{Arc, Mutex, PoisonError};

use ingle::{Model, ModelKind, Progress};
use serde_json::json;

use crate::boundary::{
    CStruct, Failure, Outcome, array, buffer, guard, handle, place, read_struct, text, texts, write_struct,
};
use crate::null;
use crate::options::{
    INGLE_PROGRESS_BYTES, INGLE_PROGRESS_END, INGLE_PROGRESS_NOTE, INGLE_PROGRESS_START, IngleLoadOptions,
    IngleProgressCallback, IngleTranscribeOptions,
};
use crate::status::{INGLE_ERROR_BUFFER, INGLE_OK, IngleStatus};
use crate::string::hand_over;

/// Capability of a model: ingle_chat, since it has a chat template.
pub const INGLE_CAN_CHAT: u64 = 1;
/// Capability of a model: ingle_complete_tokens, and ingle_complete if it has a tokenizer.
pub const INGLE_CAN_COMPLETE: u64 = 2;
/// Capability of a model: ingle_embed, or ingle_rerank if it judges pairs of texts.
pub const INGLE_CAN_EMBED: u64 = 4;
/// Capability of a model: ingle_transcribe.
pub const INGLE_CAN_TRANSCRIBE: u64 = 8;
/// Capability of a model: images in messages.
pub const INGLE_CAN_SEE: u64 = 16;
/// Capability of a model: ingle_tokenize and ingle_detokenize.
pub const INGLE_CAN_TOKENIZE: u64 = 32;

/// A loaded model.
pub struct IngleModel {
    model: Model,
    family: CString,
    format: CString,
    device: CString,
    notes: CString,
}

/// Facts about a model. The texts belong to the model.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct IngleModelInfo {
    /// sizeof(ingle_model_info), which the caller sets.
    pub struct_size: usize,
    /// Bits INGLE_CAN_…
    pub capabilities: u64,
    /// Name of the family, such as "llama".
    pub family: *const c_char,
    /// Format of the file, in words.
    pub format: *const c_char,
    /// Name of the device, such as "cpu".
    pub device: *const c_char,
    /// Facts about loading that a user should know, one a line; empty if there are none.
    pub notes: *const c_char,
    /// Bytes of the model's files.
    pub file_bytes: u64,
    /// Number of tokens of the vocabulary.
    pub n_vocab: u64,
    /// Context length of a sequence in tokens; for embedders the longest text; 0 for speech.
    pub n_ctx: u64,
    /// Number of sequences that run at once.
    pub n_sequences: u64,
    /// Number of dimensions of an embedding; 0 for other models.
    pub n_dims: u64,
}

// SAFETY: the struct is `repr(C)`, begins with its size, and has numbers and pointers only.
unsafe impl CStruct for IngleModelInfo {
    const NAME: &'static str = "ingle_model_info";
}

/// The caller's function for progress.
struct Listener {
    callback: unsafe extern "C" fn(u32, *const c_char, u64, u64, *mut c_void),
    user: *mut c_void,
}

// SAFETY: the header says that the callback runs on another thread, so `user` may go there.
unsafe impl Send for Listener {}

/// Progress of a download, as long as `listener` is there: while the model loads.
struct Reporter {
    listener: Arc<Mutex<Option<Listener>>>,
    done: u64,
    total: u64,
}

impl Reporter {
    fn tell(&self, kind: u32, words: &str) {
        let words = CString::new(words.replace('\0', " ")).unwrap_or_default();
        let listener = self.listener.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(Listener { callback, user }) = &*listener {
            // SAFETY: `callback` and `user` are the caller's, who waits in ingle_load; `words` ends
            // with a zero byte.
            unsafe { callback(kind, words.as_ptr(), self.done, self.total, *user) };
        }
    }
}

impl Progress for Reporter {
    fn start(&mut self, name: &str, total_bytes: Option<u64>) {
        (self.done, self.total) = (0, total_bytes.unwrap_or(0));
        self.tell(INGLE_PROGRESS_START, name);
    }

    fn advance(&mut self, bytes: u64) {
        self.done = self.done.saturating_add(bytes);
        self.tell(INGLE_PROGRESS_BYTES, "");
    }

    fn finish(&mut self) {
        self.tell(INGLE_PROGRESS_END, "");
    }

    fn note(&mut self, text: &str) {
        self.tell(INGLE_PROGRESS_NOTE, text);
    }
}

impl IngleModel {
    fn new(model: Model) -> IngleModel {
        let words = |text: &str| CString::new(text.replace('\0', " ")).unwrap_or_default();
        let info = model.info();
        let notes: Vec<String> = model.notes().iter().map(ToString::to_string).collect();
        let (family, format, device) = (words(&info.family), words(&info.format), words(&info.device));
        IngleModel { family, format, device, notes: words(&notes.join("\n")), model }
    }

    pub(crate) fn model(&self) -> &Model {
        &self.model
    }

    fn capabilities(&self) -> u64 {
        let info = self.model.info();
        let of_kind = match info.kind {
            ModelKind::Chat => INGLE_CAN_CHAT | INGLE_CAN_COMPLETE,
            ModelKind::Text => INGLE_CAN_COMPLETE,
            ModelKind::Embedder => INGLE_CAN_EMBED,
            ModelKind::Speech => INGLE_CAN_TRANSCRIBE,
            _ => 0,
        };
        let sees = if info.sees_images { INGLE_CAN_SEE } else { 0 };
        let tokenizes = if self.model.tokenizer().is_ok() { INGLE_CAN_TOKENIZE } else { 0 };
        of_kind | sees | tokenizes
    }
}

/// Loads a model: a path, a name of the catalog, or hf:org/repo, which is fetched if needed. The
/// options may be null. Free the model with ingle_model_free.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ingle_load(
    source: *const c_char,
    options: *const IngleLoadOptions,
    model: *mut *mut IngleModel,
) -> IngleStatus {
    guard(|| {
        // SAFETY: each pointer is null or as the header says.
        let (model, source, given) =
            unsafe { (null(place(model, "model")?), text(source, "source")?, read_struct(options)?) };
        // SAFETY: the pointers of `given` are null or as the header says.
        let options = unsafe { given.options() }?;
        let callback: IngleProgressCallback = given.progress;
        let listener = callback.map(|callback| Listener { callback, user: given.progress_user });
        let listener = Arc::new(Mutex::new(listener));
        let reporter = Reporter { listener: listener.clone(), done: 0, total: 0 };
        let loaded = Model::load_telling(source, &options, reporter);
        *listener.lock().unwrap_or_else(PoisonError::into_inner) = None;
        *model = Box::into_raw(Box::new(IngleModel::new(loaded?)));
        Ok(INGLE_OK)
    })
}

/// Frees a model. Its answers stay valid; the memory is freed with the last of them. Null is
/// allowed.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ingle_model_free(model: *mut IngleModel) {
    guard(|| {
        if !model.is_null() {
            // SAFETY: `model` came from `ingle_load`, and its caller frees it once.
            drop(unsafe { Box::from_raw(model) });
        }
        Ok(INGLE_OK)
    });
}

/// Facts about a model. Set `info->struct_size` before.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ingle_model_get_info(
    model: *const IngleModel,
    info: *mut IngleModelInfo,
) -> IngleStatus {
    guard(|| {
        // SAFETY: `model` is null or a live handle.
        let handle = unsafe { handle(model, "model") }?;
        let facts = handle.model.info();
        let found = IngleModelInfo {
            struct_size: size_of::<IngleModelInfo>(),
            capabilities: handle.capabilities(),
            family: handle.family.as_ptr(),
            format: handle.format.as_ptr(),
            device: handle.device.as_ptr(),
            notes: handle.notes.as_ptr(),
            file_bytes: facts.file_bytes,
            n_vocab: facts.n_vocab as u64,
            n_ctx: facts.n_ctx as u64,
            n_sequences: facts.n_sequences as u64,
            n_dims: facts.n_dims as u64,
        };
        // SAFETY: `info` is null or points to a struct with its size.
        unsafe { write_struct(info, &found, "info") }?;
        Ok(INGLE_OK)
    })
}

/// Copies results to a caller's buffer, or says how many there are.
fn fill<T: Copy>(found: &[T], buffer: &mut [MaybeUninit<T>], name: &str) -> Outcome<()> {
    let (needed, room) = (found.len(), buffer.len());
    let Some(buffer) = buffer.get_mut(..needed) else {
        let message = format!("{name} has room for {room} values, expected {needed}");
        return Err(Failure { status: INGLE_ERROR_BUFFER, message });
    };
    for (place, &value) in buffer.iter_mut().zip(found) {
        place.write(value);
    }
    Ok(())
}

/// Tokens of a text, with the model's start tokens. Control tokens in the text are parsed. `tokens`
/// has room for `capacity` tokens, and may be null if that is 0. `n_tokens` is set to their number,
/// even if the room is too small: INGLE_ERROR_BUFFER.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ingle_tokenize(
    model: *const IngleModel,
    text: *const c_char,
    tokens: *mut u32,
    capacity: usize,
    n_tokens: *mut usize,
) -> IngleStatus {
    guard(|| {
        // SAFETY: each pointer is null or as the header says.
        let (model, words, tokens, n_tokens) = unsafe {
            (
                handle(model, "model")?,
                crate::boundary::text(text, "text")?,
                buffer(tokens, capacity, "tokens")?,
                place(n_tokens, "n_tokens")?,
            )
        };
        let found = model.model.tokenize(words)?;
        n_tokens.write(found.len());
        fill(&found, tokens, "tokens")?;
        Ok(INGLE_OK)
    })
}

/// Text of tokens, without names of control tokens. Bytes that are not UTF-8 become U+FFFD. Free
/// `text` with ingle_string_free. `n_bytes` may be null.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ingle_detokenize(
    model: *const IngleModel,
    tokens: *const u32,
    n_tokens: usize,
    text: *mut *mut c_char,
    n_bytes: *mut usize,
) -> IngleStatus {
    guard(|| {
        // SAFETY: each pointer is null or as the header says.
        let (model, tokens, text, n_bytes) = unsafe {
            (
                handle(model, "model")?,
                array(tokens, n_tokens, "tokens")?,
                place(text, "text")?,
                place(n_bytes, "n_bytes").ok(),
            )
        };
        null(text);
        hand_over(&model.model.detokenize(tokens)?, text, n_bytes);
        Ok(INGLE_OK)
    })
}

/// Vectors of texts, which are computed together: `n_texts` rows of `n_dims` numbers (see
/// ingle_model_info). `capacity` is the number of floats for which `vectors` has room. `n_tokens`
/// is set to the number of tokens of all texts, and may be null.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ingle_embed(
    model: *const IngleModel,
    texts: *const *const c_char,
    n_texts: usize,
    vectors: *mut f32,
    capacity: usize,
    n_tokens: *mut u64,
) -> IngleStatus {
    guard(|| {
        // SAFETY: each pointer is null or as the header says.
        let (model, texts, vectors, n_tokens) = unsafe {
            (
                handle(model, "model")?,
                crate::boundary::texts(texts, n_texts, "texts")?,
                buffer(vectors, capacity, "vectors")?,
                place(n_tokens, "n_tokens").ok(),
            )
        };
        let found = model.model.embed(&texts)?;
        fill(&found.vectors.concat(), vectors, "vectors")?;
        if let Some(place) = n_tokens {
            place.write(found.n_tokens as u64);
        }
        Ok(INGLE_OK)
    })
}

/// Scores of documents for a query, in their order; larger is better. `capacity` is the number of
/// floats for which `scores` has room.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ingle_rerank(
    model: *const IngleModel,
    query: *const c_char,
    documents: *const *const c_char,
    n_documents: usize,
    scores: *mut f32,
    capacity: usize,
) -> IngleStatus {
    guard(|| {
        // SAFETY: each pointer is null or as the header says.
        let (model, query, documents, scores) = unsafe {
            (
                handle(model, "model")?,
                text(query, "query")?,
                texts(documents, n_documents, "documents")?,
                buffer(scores, capacity, "scores")?,
            )
        };
        fill(&model.model.rerank(query, &documents)?, scores, "scores")?;
        Ok(INGLE_OK)
    })
}

/// Transcribes a recording: the bytes of a WAV, AIFF, MP3, M4A, FLAC or OGG Vorbis file. The
/// options may be null. `json` becomes an object with "text", "language", "duration" (in seconds)
/// and "segments"; free it with ingle_string_free. `n_json` may be null.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ingle_transcribe(
    model: *const IngleModel,
    file: *const u8,
    n_file: usize,
    options: *const IngleTranscribeOptions,
    json: *mut *mut c_char,
    n_json: *mut usize,
) -> IngleStatus {
    guard(|| {
        // SAFETY: each pointer is null or as the header says.
        let (model, file, options, json, n_json) = unsafe {
            (
                handle(model, "model")?,
                array(file, n_file, "file")?,
                read_struct(options)?.options()?,
                place(json, "json")?,
                place(n_json, "n_json").ok(),
            )
        };
        null(json);
        let found = model.model.transcribe(file.to_vec(), options)?;
        let whole = json!({
            "text": found.text(), "language": found.language, "duration": found.seconds,
            "segments": found.segments,
        });
        hand_over(&whole.to_string(), json, n_json);
        Ok(INGLE_OK)
    })
}

/// Makes a result null until it is known.
pub(crate) fn null_of<T>(place: &mut MaybeUninit<*mut T>) -> &mut *mut T {
    place.write(ptr::null_mut())
}

#[cfg(test)]
#[allow(clippy::unwrap_used)] // A test that cannot go on fails.
mod tests {
    use super::*;
    use std::ffi::CStr;

    unsafe extern "C" fn note(kind: u32, text: *const c_char, done: u64, total: u64, user: *mut c_void) {
        // SAFETY: `text` ends with a zero byte, and `user` is the test's list.
        let (text, calls) = unsafe { (CStr::from_ptr(text), &mut *user.cast::<Vec<String>>()) };
        calls.push(format!("{kind} {} {done}/{total}", text.to_string_lossy()));
    }

    #[test]
    fn progress_is_reported_while_the_model_loads() {
        let mut calls: Vec<String> = Vec::new();
        let listener = Listener { callback: note, user: (&raw mut calls).cast() };
        let listener = Arc::new(Mutex::new(Some(listener)));
        let mut reporter = Reporter { listener: listener.clone(), done: 0, total: 0 };
        reporter.start("a", Some(5));
        reporter.advance(2);
        reporter.advance(3);
        reporter.finish();
        reporter.note("b");
        *listener.lock().unwrap() = None;
        reporter.note("c");
        assert_eq!(calls, ["1 a 0/5", "2  2/5", "2  5/5", "3  5/5", "4 b 5/5"]);
    }
}
