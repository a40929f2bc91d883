//! `/v1/audio/transcriptions` and `/v1/audio/translations`

mod form;

use axum::Json;
use axum::body::Bytes;
use axum::extract::State;
use axum::http::header;
use axum::response::{IntoResponse, Response};
use futures_util::Stream;
use serde::Serialize;
use serde_json::{Value, json};
use speech::{Segment, Task, TranscriptWriter, Word, language_name};

use crate::api::sse;
use crate::error::HttpResult;
use form::{Form, Format, Granularities};
use runner::Runner;
use runner::{Heard, TranscriptEvent};
use runner::{RequestError, Result};
use runner::{Transcript, Transcription};

pub(super) async fn transcribe(State(runner): State<Runner>, form: Form) -> HttpResult<Response> {
    create(&runner, form.with_task(Task::Transcribe)).await
}

pub(super) async fn translate(State(runner): State<Runner>, form: Form) -> HttpResult<Response> {
    create(&runner, form.with_task(Task::Translate)).await
}

async fn create(runner: &Runner, form: Form) -> HttpResult<Response> {
    let Form { request, format, granularities, is_streamed } = form;
    let task = request.options.task;
    let mut transcription = runner.transcribe(request).await?;
    if is_streamed {
        // An invalid recording fails before the first event, so the error has an HTTP status.
        let first = transcription.next().await?;
        return Ok(sse::response(frames(first, transcription)));
    }
    let transcript = transcription.collect().await?;
    Ok(match format {
        Format::Json => {
            let text = text(&transcript.segments);
            Json(json!({ "text": text, "usage": usage(&transcript.heard) })).into_response()
        }
        Format::VerboseJson => Json(Verbose::of(&transcript, task, granularities)).into_response(),
        Format::Text => plain(text(&transcript.segments) + "\n"),
        Format::Srt => plain(subtitles(&transcript, speech::Format::Srt)?),
        Format::Vtt => plain(subtitles(&transcript, speech::Format::Vtt)?),
    })
}

fn plain(text: String) -> Response {
    ([(header::CONTENT_TYPE, "text/plain; charset=utf-8")], text).into_response()
}

fn text(segments: &[Segment]) -> String {
    let all: String = segments.iter().map(|segment| segment.text.as_str()).collect();
    all.trim().to_owned()
}

fn subtitles(transcript: &Transcript, format: speech::Format) -> Result<String> {
    let write = || -> std::io::Result<Vec<u8>> {
        let mut out = Vec::new();
        let mut writer = TranscriptWriter::new(&mut out, format)?;
        transcript.segments.iter().try_for_each(|segment| writer.push(segment))?;
        writer.finish(&transcript.heard.language)?;
        Ok(out)
    };
    let bytes = write().map_err(|error| RequestError::internal(error.to_string()))?;
    String::from_utf8(bytes).map_err(|error| RequestError::internal(error.to_string()))
}

/// Recordings are billed in whole seconds, rounded up.
fn usage(heard: &Heard) -> Value {
    json!({ "type": "duration", "seconds": heard.seconds.ceil() as u64 })
}

/// `verbose_json`
#[derive(Serialize)]
struct Verbose<'a> {
    task: &'static str,
    language: &'a str,
    duration: f64,
    text: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    segments: Option<Vec<Segment>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    words: Option<Vec<Word>>,
    usage: Value,
}

impl Verbose<'_> {
    fn of(transcript: &Transcript, task: Task, granularities: Granularities) -> Verbose<'_> {
        let Transcript { segments, heard } = transcript;
        // Words are listed beside the segments, without the spaces around them.
        let bare = |segment: &Segment| Segment { words: None, ..segment.clone() };
        let words = segments.iter().flat_map(|segment| segment.words.iter().flatten());
        let trimmed = |word: &Word| Word { word: word.word.trim().to_owned(), ..word.clone() };
        Verbose {
            task: match task {
                Task::Transcribe => "transcribe",
                Task::Translate => "translate",
            },
            // The language of the text; a translation is English.
            language: match task {
                Task::Transcribe => language_name(&heard.language),
                Task::Translate => language_name("en"),
            },
            duration: heard.seconds,
            text: text(segments),
            segments: granularities.segment.then(|| segments.iter().map(bare).collect()),
            words: granularities.word.then(|| words.map(trimmed).collect()),
            usage: usage(heard),
        }
    }
}

/// Returns `transcript.text.delta` for each segment, then `transcript.text.done`.
fn frames(
    first: TranscriptEvent,
    transcription: Transcription,
) -> impl Stream<Item = Bytes> + Send + 'static {
    /// The text so far and the rest of the transcription; `None` after the last event.
    struct State {
        next: Option<Result<TranscriptEvent>>,
        said: String,
        transcription: Transcription,
    }
    let state = State { next: Some(Ok(first)), said: String::new(), transcription };
    futures_util::stream::unfold(Some(state), |state| async {
        let State { mut next, mut said, mut transcription } = state?;
        let event = match next.take() {
            Some(event) => event,
            None => transcription.next().await,
        };
        match event {
            Ok(TranscriptEvent::Segment(segment)) => {
                // The deltas joined are the text of the last event.
                let delta = if said.is_empty() { segment.text.trim_start() } else { &segment.text };
                said.push_str(delta);
                let frame = sse::data(&json!({ "type": "transcript.text.delta", "delta": delta }));
                Some((frame, Some(State { next: None, said, transcription })))
            }
            Ok(TranscriptEvent::Done(heard)) => {
                let usage = usage(&heard);
                let done = json!({ "type": "transcript.text.done", "text": said, "usage": usage });
                Some((sse::data(&done), None))
            }
            Err(error) => Some((sse::error(&error), None)),
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn segment(id: usize, text: &str, words: Option<Vec<Word>>) -> Segment {
        Segment {
            id,
            seek: 0,
            start: id as f64,
            end: id as f64 + 1.0,
            text: text.into(),
            tokens: vec![1, 2],
            temperature: 0.2,
            avg_logprob: -0.25,
            compression_ratio: 1.5,
            no_speech_prob: 0.1,
            words,
        }
    }

    fn transcript() -> Transcript {
        let word = Word { word: " Eins,".into(), start: 0.0, end: 0.5, probability: 0.9 };
        let segments = vec![segment(0, " Eins,", Some(vec![word])), segment(1, " zwei.", Some(vec![]))];
        Transcript { segments, heard: Heard { language: "de".into(), seconds: 2.25 } }
    }

    #[test]
    fn verbose_json_has_the_requested_granularities() {
        let verbose = |segment, word| {
            let granularities = Granularities { segment, word };
            serde_json::to_value(Verbose::of(&transcript(), Task::Transcribe, granularities)).unwrap()
        };
        let segments = verbose(true, false);
        assert_eq!((&segments["language"], &segments["duration"]), (&json!("german"), &json!(2.25)));
        assert_eq!((&segments["text"], &segments["task"]), (&json!("Eins, zwei."), &json!("transcribe")));
        assert_eq!(segments["usage"], json!({ "type": "duration", "seconds": 3 }));
        assert!(segments["segments"][1].get("words").is_none() && segments.get("words").is_none());
        let words = verbose(false, true);
        assert!(words.get("segments").is_none());
        assert_eq!(words["words"][0]["word"], "Eins,");
        let whole = transcript();
        let translated = Verbose::of(&whole, Task::Translate, Granularities::default());
        assert_eq!((translated.task, translated.language), ("translate", "english"));
    }

    #[test]
    fn subtitles_are_those_of_the_command() {
        let srt = subtitles(&transcript(), speech::Format::Srt).unwrap();
        assert!(srt.starts_with("1\n00:00:00,000 --> 00:00:01,000\nEins,\n\n2\n"), "{srt}");
        assert!(subtitles(&transcript(), speech::Format::Vtt).unwrap().starts_with("WEBVTT\n\n"));
    }
}
