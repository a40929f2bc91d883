//! Tokens to text for one sequence: detokenising, then stop strings. Allocates when it is made and when it ends.

use std::sync::Arc;

use text::{Asides, Detokenizer, ShowSpecial, StopStrings, Stops, Tokenizer};

/// The text side of a sequence.
#[derive(Clone)]
pub(crate) struct TextStream {
    /// None: only token ids are wanted; texts are empty and no token ends the answer.
    decoder: Option<(Arc<Tokenizer>, Detokenizer)>,
    stops: StopStrings,
    /// The strings that `stops` looks for.
    stop_strings: Stops,
    /// What was held back at the end.
    tail: String,
}

impl TextStream {
    pub(crate) fn new(
        tokenizer: Option<Arc<Tokenizer>>,
        stops: Stops,
        asides: Option<Asides>,
        show_special: ShowSpecial,
    ) -> TextStream {
        let decoder = tokenizer.map(|tokenizer| {
            let detokenizer = Detokenizer::new(&tokenizer, show_special);
            (tokenizer, detokenizer)
        });
        let finder = StopStrings::new(stops.clone()).outside(asides);
        TextStream { decoder, stops: finder, stop_strings: stops, tail: String::new() }
    }

    /// The text that is certain after one more token, and the stop string that ends it.
    pub(crate) fn push(&mut self, id: u32) -> (&str, Option<&str>) {
        let Some((tokenizer, detokenizer)) = &mut self.decoder else { return ("", None) };
        let released = self.stops.push(detokenizer.push(tokenizer, id));
        (released.text, released.stop.and_then(|index| self.stop_strings.get(index)))
    }

    /// The end: text that was held back in case more came; none if a stop string ended it.
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
