//! Tokens to text for one sequence: detokenising, then stop strings. It allocates only when it is
//! created and when it ends.

use std::sync::Arc;

use text::{Detokenizer, StopStrings, Stops, Tokenizer};

use crate::Request;

/// Detokenizer and stop strings of a sequence.
#[derive(Clone)]
pub(crate) struct TextStream {
    /// `None`: the caller wants only token ids; texts are empty and no stop string ends the answer.
    decoder: Option<(Arc<Tokenizer>, Detokenizer)>,
    stops: StopStrings,
    /// The strings that `stops` looks for.
    stop_strings: Stops,
    /// Buffer for the text that [`Self::finish`] returns.
    tail: String,
}

impl TextStream {
    /// The text of a request's answer. Takes the request's stop strings and special tokens.
    pub(crate) fn of(request: &mut Request, tokenizer: Option<Arc<Tokenizer>>) -> TextStream {
        let show_special = std::mem::take(&mut request.show_special);
        let decoder = tokenizer.map(|tokenizer| {
            let detokenizer = Detokenizer::new(&tokenizer, show_special);
            (tokenizer, detokenizer)
        });
        let stop_strings = std::mem::take(&mut request.stop);
        let stops = StopStrings::new(stop_strings.clone()).outside(request.stop_outside.take());
        TextStream { decoder, stops, stop_strings, tail: String::new() }
    }

    /// Push a token. Returns the text that is certain now, and the stop string that was found.
    pub(crate) fn push(&mut self, id: u32) -> (&str, Option<&str>) {
        let Some((tokenizer, detokenizer)) = &mut self.decoder else { return ("", None) };
        let released = self.stops.push(detokenizer.push(tokenizer, id));
        (released.text, released.stop.and_then(|index| self.stop_strings.get(index)))
    }

    /// End the text. Returns the text that was held back, which is empty if a stop string ended it.
    pub(crate) fn finish(&mut self, stopped: bool) -> &str {
        self.tail.clear();
        if let Some((_, detokenizer)) = &mut self.decoder
            && !stopped
        {
            self.tail.push_str(self.stops.push(detokenizer.finish()).text);
            self.tail.push_str(self.stops.finish());
        }
        &self.tail
    }
}
