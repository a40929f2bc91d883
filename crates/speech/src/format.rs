//! Transcripts as files: plain text, subtitles, tables and JSON, in openai-whisper's formats.

use std::io::{self, Write};

use serde::Serialize;

use crate::transcript::Segment;

/// Formats of a transcript.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Format {
    /// A line for each segment.
    #[default]
    Text,
    /// SubRip subtitles.
    Srt,
    /// Web Video Text Tracks.
    Vtt,
    /// A table of milliseconds and text, separated by tabs.
    Tsv,
    /// One JSON object with everything.
    Json,
}

impl Format {
    /// The extension of a file in this format, such as `srt`.
    pub fn extension(self) -> &'static str {
        match self {
            Format::Text => "txt",
            Format::Srt => "srt",
            Format::Vtt => "vtt",
            Format::Tsv => "tsv",
            Format::Json => "json",
        }
    }
}

/// Writes segments as they arrive. JSON is written at the end, because its text and language
/// enclose the segments.
pub struct TranscriptWriter<W: Write> {
    out: W,
    format: Format,
    n_segments: usize,
    /// All segments, for JSON only.
    kept: Vec<Segment>,
}

impl<W: Write> TranscriptWriter<W> {
    /// Writes the head of the file.
    ///
    /// # Errors
    /// Errors of `out`.
    pub fn new(mut out: W, format: Format) -> io::Result<Self> {
        match format {
            Format::Vtt => out.write_all(b"WEBVTT\n\n")?,
            Format::Tsv => out.write_all(b"start\tend\ttext\n")?,
            Format::Text | Format::Srt | Format::Json => {}
        }
        Ok(TranscriptWriter { out, format, n_segments: 0, kept: Vec::new() })
    }

    /// Writes a segment and flushes it, so that a reader has it at once.
    ///
    /// # Errors
    /// Errors of `out`.
    pub fn push(&mut self, segment: &Segment) -> io::Result<()> {
        self.n_segments += 1;
        let text = segment.text.trim();
        // An arrow would end the line of times.
        let subtitle = || text.replace("-->", "->");
        let (start, end) = (Milliseconds::of(segment.start), Milliseconds::of(segment.end));
        match self.format {
            Format::Text => writeln!(self.out, "{text}")?,
            Format::Srt => writeln!(
                self.out,
                "{}\n{} --> {}\n{}\n",
                self.n_segments,
                start.srt(),
                end.srt(),
                subtitle()
            )?,
            Format::Vtt => writeln!(self.out, "{} --> {}\n{}\n", start.vtt(), end.vtt(), subtitle())?,
            Format::Tsv => writeln!(self.out, "{}\t{}\t{}", start.0, end.0, text.replace('\t', " "))?,
            Format::Json => self.kept.push(segment.clone()),
        }
        self.out.flush()
    }

    /// Writes the end of the file.
    ///
    /// # Errors
    /// Errors of `out`.
    pub fn finish(mut self, language: &str) -> io::Result<()> {
        #[derive(Serialize)]
        struct Transcript<'a> {
            text: String,
            segments: &'a [Segment],
            language: &'a str,
        }
        if self.format == Format::Json {
            let text = self.kept.iter().map(|segment| segment.text.as_str()).collect();
            let transcript = Transcript { text, segments: &self.kept, language };
            serde_json::to_writer(&mut self.out, &transcript)?;
            writeln!(self.out)?;
        }
        self.out.flush()
    }
}

/// A time in a subtitle.
#[derive(Clone, Copy)]
struct Milliseconds(u64);

impl Milliseconds {
    fn of(seconds: f64) -> Milliseconds {
        Milliseconds((seconds * 1000.0).round().max(0.0) as u64)
    }

    fn parts(self) -> [u64; 4] {
        [self.0 / 3_600_000, self.0 / 60_000 % 60, self.0 / 1000 % 60, self.0 % 1000]
    }

    /// The time as `00:01:02,345`.
    fn srt(self) -> String {
        let [hours, minutes, seconds, milliseconds] = self.parts();
        format!("{hours:02}:{minutes:02}:{seconds:02},{milliseconds:03}")
    }

    /// The time as `01:02.345`, with hours from one hour on.
    fn vtt(self) -> String {
        let [hours, minutes, seconds, milliseconds] = self.parts();
        let hours = if hours > 0 { format!("{hours:02}:") } else { String::new() };
        format!("{hours}{minutes:02}:{seconds:02}.{milliseconds:03}")
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::transcript::Word;

    fn write(format: Format, segments: &[Segment]) -> String {
        let mut out = Vec::new();
        let mut writer = TranscriptWriter::new(&mut out, format).unwrap();
        segments.iter().for_each(|segment| writer.push(segment).unwrap());
        writer.finish("en").unwrap();
        String::from_utf8(out).unwrap()
    }

    fn segments() -> Vec<Segment> {
        let first = Segment {
            id: 0,
            seek: 0,
            start: 0.0,
            end: 61.5,
            text: " One --> two\tthree.".into(),
            tokens: vec![50363, 1],
            temperature: 0.0,
            avg_logprob: -0.25,
            compression_ratio: 1.5,
            no_speech_prob: 0.125,
            words: Some(vec![Word { word: " One".into(), start: 0.0, end: 0.5, probability: 0.75 }]),
        };
        let second = Segment {
            id: 1,
            start: 3661.5,
            end: 3662.006,
            text: " Four.".into(),
            words: None,
            ..first.clone()
        };
        vec![first, second]
    }

    #[test]
    fn every_format_is_as_expected() {
        let segments = segments();
        assert_eq!(write(Format::Text, &segments), "One --> two\tthree.\nFour.\n");
        assert_eq!(
            write(Format::Srt, &segments),
            "1\n00:00:00,000 --> 00:01:01,500\nOne -> two\tthree.\n\n\
             2\n01:01:01,500 --> 01:01:02,006\nFour.\n\n"
        );
        assert_eq!(
            write(Format::Vtt, &segments),
            "WEBVTT\n\n00:00.000 --> 01:01.500\nOne -> two\tthree.\n\n01:01:01.500 --> 01:01:02.006\nFour.\n\n"
        );
        assert_eq!(
            write(Format::Tsv, &segments),
            "start\tend\ttext\n0\t61500\tOne --> two three.\n3661500\t3662006\tFour.\n"
        );
    }

    #[test]
    fn json_has_the_keys_that_readers_know() {
        let text = write(Format::Json, &segments());
        let value: serde_json::Value = serde_json::from_str(&text).unwrap();
        let keys = |value: &serde_json::Value| value.as_object().unwrap().keys().cloned().collect::<Vec<_>>();
        assert_eq!(keys(&value), ["text", "segments", "language"]);
        assert_eq!(value["text"], " One --> two\tthree. Four.");
        let all =
            "id seek start end text tokens temperature avg_logprob compression_ratio no_speech_prob words";
        assert_eq!(keys(&value["segments"][0]).join(" "), all);
        assert_eq!(keys(&value["segments"][1]).join(" "), all.trim_end_matches(" words"));
        assert_eq!(keys(&value["segments"][0]["words"][0]), ["word", "start", "end", "probability"]);
        assert_eq!(write(Format::Json, &[]), "{\"text\":\"\",\"segments\":[],\"language\":\"en\"}\n");
    }
}
