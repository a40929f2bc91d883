//! The form of a transcription: `multipart/form-data`, parsed field by field in any order.

use axum::extract::multipart::{Field, Multipart, MultipartError};
use axum::extract::{FromRequest, Request};
use axum::http::StatusCode;
use serde_json::Value;
use speech::{Task, TranscribeOptions, language_code};

use crate::api::keep_alive::keep_alive;
use crate::error::{ApiError, HttpResult};
use crate::limits::MAX_BODY;
use runner::TranscribeRequest;
use runner::{ErrorKind, RequestError, Result};

/// Maximum number of bytes of a field other than the file.
const MAX_FIELD: usize = 64 << 10;

/// `response_format`
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Format {
    #[default]
    Json,
    Text,
    Srt,
    VerboseJson,
    Vtt,
}

/// `timestamp_granularities`
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Granularities {
    pub(super) segment: bool,
    pub(super) word: bool,
}

/// A parsed form.
#[derive(Clone, Debug, Default)]
pub(in crate::api::openai) struct Form {
    /// The request; its task comes from the path and is set later.
    pub(super) request: TranscribeRequest,
    pub(super) format: Format,
    pub(super) granularities: Granularities,
    pub(super) is_streamed: bool,
}

impl<S: Send + Sync> FromRequest<S> for Form {
    type Rejection = ApiError;

    async fn from_request(request: Request, state: &S) -> HttpResult<Form> {
        let mut fields = Multipart::from_request(request, state).await.map_err(|_| {
            RequestError::new(
                ErrorKind::UnsupportedMediaType,
                "the body is not a form, expected multipart/form-data with a boundary, and a field `file` in it",
            )
        })?;
        let mut form = Reading::default();
        while let Some(mut field) = fields.next_field().await.map_err(|error| broken(&error))? {
            let name = field.name().unwrap_or_default().to_owned();
            if name == "file" {
                let file_name = field.file_name().map_or_else(|| "file".to_owned(), shorten);
                let mut file = Vec::new();
                while let Some(chunk) = field.chunk().await.map_err(|error| broken(&error))? {
                    file.extend_from_slice(&chunk);
                }
                form.file = Some((file, file_name));
            } else if is_known(&name) {
                form.set(&name, text(&name, field).await?)?;
            }
            // Skips fields that are not used.
        }
        Ok(form.finish()?)
    }
}

/// A file name shortened for messages.
fn shorten(name: &str) -> String {
    name.chars().take(100).collect()
}

/// Error of an invalid or too large form.
fn broken(error: &MultipartError) -> RequestError {
    match error.status() {
        StatusCode::PAYLOAD_TOO_LARGE => {
            let message = format!(
                "the form is too large, expected at most {} MiB; a compressed format (MP3, OGG Vorbis, FLAC) holds more \
                 speech, and long recordings can be sent in parts",
                MAX_BODY >> 20
            );
            RequestError { param: Some("file".into()), ..RequestError::new(ErrorKind::TooLarge, message) }
        }
        _ => RequestError::new(
            ErrorKind::Invalid,
            format!("the form could not be read: {}", error.body_text()),
        ),
    }
}

async fn text(name: &str, mut field: Field<'_>) -> Result<String> {
    let mut bytes = Vec::new();
    while let Some(chunk) = field.chunk().await.map_err(|error| broken(&error))? {
        bytes.extend_from_slice(&chunk);
        if bytes.len() > MAX_FIELD {
            let message = format!("`{name}` is longer than {MAX_FIELD} bytes");
            return Err(RequestError::invalid(name, message));
        }
    }
    String::from_utf8(bytes)
        .map_err(|error| RequestError::invalid(name, format!("`{name}` is not UTF-8: {error}")))
}

/// Name of a field without brackets, with which OpenAI's clients mark lists.
fn stem(name: &str) -> &str {
    name.split_once('[').map_or(name, |(stem, _)| stem)
}

fn is_known(name: &str) -> bool {
    matches!(
        stem(name),
        "model"
            | "language"
            | "prompt"
            | "response_format"
            | "temperature"
            | "timestamp_granularities"
            | "stream"
            | "include"
            | "chunking_strategy"
            | "known_speaker_names"
            | "known_speaker_references"
            | "seed"
            | "keep_alive"
    )
}

/// Fields parsed so far.
#[derive(Default)]
struct Reading {
    form: Form,
    file: Option<(Vec<u8>, String)>,
    temperature: f32,
}

impl Reading {
    fn set(&mut self, name: &str, text: String) -> Result<()> {
        let wrong = |expected: &str| {
            RequestError::invalid(stem(name), format!("`{name}` is {text:?}, expected {expected}"))
        };
        let request = &mut self.form.request;
        match stem(name) {
            "model" => request.model = text,
            // Clients send empty fields; "auto" is whisper.cpp's word for no language.
            "language" => {
                let code = language_code(&text);
                request.options.language = Some(code).filter(|code| !code.is_empty() && code != "auto");
            }
            "prompt" => request.options.initial_prompt = Some(text).filter(|text| !text.is_empty()),
            "response_format" => {
                self.form.format = match text.as_str() {
                    "" | "json" => Format::Json,
                    "text" => Format::Text,
                    "srt" => Format::Srt,
                    "verbose_json" => Format::VerboseJson,
                    "vtt" => Format::Vtt,
                    "diarized_json" => {
                        let expected = "json, text, srt, verbose_json or vtt; speakers are not distinguished";
                        return Err(RequestError::unsupported_value("response_format", &text, expected));
                    }
                    _ => return Err(wrong("json, text, srt, verbose_json or vtt")),
                }
            }
            "temperature" => {
                let number = text.trim().parse().ok().filter(|number| (0.0..=1.0).contains(number));
                self.temperature = number.ok_or_else(|| wrong("a number from 0 to 1"))?;
            }
            "timestamp_granularities" => match text.as_str() {
                "segment" => self.form.granularities.segment = true,
                "word" => self.form.granularities.word = true,
                _ => return Err(wrong("segment or word")),
            },
            "stream" => {
                self.form.is_streamed = match text.to_ascii_lowercase().as_str() {
                    "true" | "1" => true,
                    "false" | "0" | "" => false,
                    _ => return Err(wrong("true or false")),
                }
            }
            // Beam search has no probability for each token.
            "include" if text == "logprobs" => return Err(RequestError::unsupported("include")),
            "include" => return Err(wrong("logprobs")),
            // Windows are always cut at the model's timestamps; no other strategy is built.
            "chunking_strategy" if matches!(text.as_str(), "auto" | "") && !name.contains('[') => {}
            "chunking_strategy" => return Err(RequestError::unsupported("chunking_strategy")),
            "seed" => {
                let number = text.trim().parse::<i64>();
                request.options.seed = number.map_err(|_| wrong("an integer"))? as u64;
            }
            "keep_alive" => {
                let value = serde_json::from_str(&text).unwrap_or(Value::String(text));
                request.keep_alive = Some(keep_alive(&value)?);
            }
            other => return Err(RequestError::unsupported(other)),
        }
        Ok(())
    }

    fn finish(self) -> Result<Form> {
        let Reading { mut form, file, temperature } = self;
        let (file, file_name) = file.ok_or_else(|| {
            RequestError::invalid(
                "file",
                "the form has no `file`, expected an audio file: WAV, AIFF, MP3, M4A, FLAC or OGG Vorbis",
            )
        })?;
        if file.is_empty() {
            let message =
                format!("{file_name}: the file is empty, expected WAV, AIFF, MP3, M4A, FLAC or OGG Vorbis");
            return Err(RequestError::invalid("file", message));
        }
        (form.request.file, form.request.file_name) = (file, file_name);
        let Granularities { segment, word } = form.granularities;
        if (segment || word) && form.format != Format::VerboseJson {
            return Err(RequestError::invalid(
                "timestamp_granularities",
                "`timestamp_granularities` needs `response_format` verbose_json, the only format with times",
            ));
        }
        if form.is_streamed && !matches!(form.format, Format::Json | Format::Text) {
            return Err(RequestError::invalid(
                "stream",
                "a stream has text only, expected `response_format` json or text with `stream`",
            ));
        }
        form.granularities.segment |= !word;
        form.request.options = TranscribeOptions {
            word_timestamps: word,
            temperatures: temperatures(temperature),
            ..form.request.options
        };
        Ok(form)
    }
}

impl Form {
    pub(super) fn with_task(mut self, task: Task) -> Form {
        self.request.options.task = task;
        self
    }
}

/// Temperatures to try in turn, as Whisper does for a window whose text is not good enough.
fn temperatures(first: f32) -> Vec<f32> {
    let steps = (0..=5u8).map(|step| f32::from(step) / 5.0);
    std::iter::once(first).chain(steps.filter(|step| *step > first + 1e-3)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use axum::body::Body;

    async fn read(fields: &[(&str, &str)]) -> Result<Form> {
        let part = |(name, value): &(&str, &str)| {
            let file = if *name == "file" { "; filename=\"a.wav\"" } else { "" };
            format!("--x\r\ncontent-disposition: form-data; name=\"{name}\"{file}\r\n\r\n{value}\r\n")
        };
        let body = fields.iter().map(part).collect::<String>() + "--x--\r\n";
        let request = Request::post("/").header("content-type", "multipart/form-data; boundary=x");
        Ok(Form::from_request(request.body(Body::from(body)).unwrap(), &()).await?)
    }

    #[tokio::test]
    async fn fields_in_any_order() {
        let form = read(&[
            ("temperature", "0.4"),
            ("timestamp_granularities[]", "word"),
            ("language", "German"),
            ("hotwords", "Ingle"),
            ("chunking_strategy", "auto"),
            ("file", "RIFF"),
            ("keep_alive", "5m"),
            ("stream", "false"),
            ("response_format", "verbose_json"),
        ])
        .await
        .unwrap();
        assert_eq!((&*form.request.file, &*form.request.file_name), (&b"RIFF"[..], "a.wav"));
        assert_eq!(form.request.options.language.as_deref(), Some("de"));
        assert_eq!(form.request.options.temperatures, [0.4, 0.6, 0.8, 1.0]);
        assert_eq!(form.granularities, Granularities { segment: false, word: true });
        assert!(
            form.request.options.word_timestamps && form.request.keep_alive.is_some() && !form.is_streamed
        );
        let plain = read(&[("file", "x"), ("language", ""), ("prompt", "")]).await.unwrap();
        assert_eq!(plain.request.options, TranscribeOptions::default());
        assert!(plain.granularities.segment && plain.format == Format::Json);
    }

    #[tokio::test]
    async fn errors_name_the_value() {
        for (name, value, kind) in [
            ("temperature", "2", ErrorKind::Invalid),
            ("temperature", "NaN", ErrorKind::Invalid),
            ("response_format", "xml", ErrorKind::Invalid),
            ("response_format", "diarized_json", ErrorKind::Invalid),
            ("timestamp_granularities", "word", ErrorKind::Invalid),
            ("timestamp_granularities[]", "letter", ErrorKind::Invalid),
            ("include[]", "logprobs", ErrorKind::Invalid),
            ("chunking_strategy", "{\"type\":\"server_vad\"}", ErrorKind::Invalid),
            ("chunking_strategy[type]", "server_vad", ErrorKind::Invalid),
            ("known_speaker_names[]", "Ann", ErrorKind::Invalid),
            ("stream", "perhaps", ErrorKind::Invalid),
            ("keep_alive", "soon", ErrorKind::Invalid),
            ("file", "", ErrorKind::Invalid),
        ] {
            let error = read(&[("file", "x"), (name, value)]).await.unwrap_err();
            assert_eq!((error.kind, error.param.as_deref()), (kind, Some(stem(name))), "{error}");
        }
        let long = "a".repeat(MAX_FIELD + 1);
        assert_eq!(read(&[("prompt", &long)]).await.unwrap_err().param.as_deref(), Some("prompt"));
        assert_eq!(read(&[("model", "m")]).await.unwrap_err().param.as_deref(), Some("file"));
        let srt = read(&[("file", "x"), ("stream", "true"), ("response_format", "srt")]).await;
        assert_eq!(srt.unwrap_err().param.as_deref(), Some("stream"));
        let json = Request::post("/").header("content-type", "application/json").body(Body::from("{}"));
        let error = Form::from_request(json.unwrap(), &()).await.unwrap_err().0;
        assert_eq!(error.kind, ErrorKind::UnsupportedMediaType);
        let cut = Request::post("/").header("content-type", "multipart/form-data; boundary=x");
        let cut =
            cut.body(Body::from("--x\r\ncontent-disposition: form-data; name=\"file\"\r\n\r\nRI")).unwrap();
        assert_eq!(Form::from_request(cut, &()).await.unwrap_err().0.kind, ErrorKind::Invalid);
    }
}
