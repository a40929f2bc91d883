//! A grammar that waits: any text may come until a trigger does, from which on the grammar holds.

use std::sync::Arc;

use engine::{Constraint, ConstraintResult};
use text::{Matcher, Specials, Tokenizer, Triggers};

/// See the module.
#[derive(Clone)]
pub(crate) struct Lazy {
    triggers: Arc<Triggers>,
    tokenizer: Arc<Tokenizer>,
    /// At the grammar's beginning while it waits.
    matcher: Matcher,
    has_begun: bool,
    /// What came in one token with the trigger is not as the grammar asks: nothing may follow.
    is_stuck: bool,
    /// The text so far, while it waits.
    text: String,
    /// Bytes of a character that is not whole.
    bytes: Vec<u8>,
}

impl Lazy {
    pub(crate) fn new(triggers: Arc<Triggers>, tokenizer: Arc<Tokenizer>, matcher: Matcher) -> Lazy {
        Lazy {
            triggers,
            tokenizer,
            matcher,
            has_begun: false,
            is_stuck: false,
            text: String::new(),
            bytes: Vec::new(),
        }
    }

    fn wait(&mut self, token: u32) -> ConstraintResult<()> {
        if self.triggers.has_token(token) {
            self.has_begun = true;
            return Constraint::accept(&mut self.matcher, token);
        }
        self.bytes.extend_from_slice(self.tokenizer.token_bytes(token));
        let n_before = self.text.len();
        let whole = match std::str::from_utf8(&self.bytes) {
            Ok(_) => self.bytes.len(),
            // What can never become a character counts as one.
            Err(error) if error.error_len().is_some() => self.bytes.len(),
            Err(error) => error.valid_up_to(),
        };
        self.text.push_str(&String::from_utf8_lossy(&self.bytes[..whole]));
        self.bytes.drain(..whole);
        let Some(at) = self.triggers.find(&self.text, self.text.len() - n_before) else { return Ok(()) };
        // The grammar has the trigger, and what came with it in the same token.
        let tokens = self.tokenizer.encode(&self.text[at..], Specials::Parse)?;
        (self.has_begun, self.text) = (true, String::new());
        self.is_stuck = Constraint::n_valid(&mut self.matcher, &tokens) < tokens.len();
        for token in tokens.into_iter().filter(|_| !self.is_stuck) {
            Constraint::accept(&mut self.matcher, token)?;
        }
        Ok(())
    }
}

impl Constraint for Lazy {
    fn mask(&mut self, words: &mut [u32]) -> ConstraintResult<bool> {
        match self.has_begun {
            true if self.is_stuck => Ok(true),
            true => Constraint::mask(&mut self.matcher, words),
            false => Ok(false),
        }
    }

    fn accept(&mut self, token: u32) -> ConstraintResult<()> {
        match self.has_begun {
            true => Constraint::accept(&mut self.matcher, token),
            false => self.wait(token),
        }
    }

    /// Guesses are made after the beginning alone, see [`Self::n_valid`].
    fn roll_back(&mut self, n_tokens: usize) -> ConstraintResult<()> {
        Constraint::roll_back(&mut self.matcher, n_tokens)
    }

    fn n_valid(&mut self, tokens: &[u32]) -> usize {
        match self.has_begun {
            true if self.is_stuck => 0,
            true => Constraint::n_valid(&mut self.matcher, tokens),
            false => 0,
        }
    }

    fn is_over(&self) -> bool {
        self.has_begun && Constraint::is_over(&self.matcher)
    }

    fn fork(&self) -> Box<dyn Constraint> {
        Box::new(self.clone())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use text::{Grammar, GrammarCompiler, Trigger};

    #[test]
    fn any_text_comes_before_the_trigger_and_the_grammar_after_it() {
        // Every printable byte is a token, and so are a word that goes beyond the trigger, and an end.
        let mut vocab: serde_json::Map<String, serde_json::Value> =
            (b'!'..=b'~').map(|byte| (char::from(byte).to_string(), u32::from(byte - b'!').into())).collect();
        vocab.insert("[{".into(), 94.into());
        let json = serde_json::json!({
            "model": { "type": "BPE", "vocab": vocab, "merges": [["[", "{"]] },
            "added_tokens": [{
                "id": 95, "content": "<|im_end|>", "special": true, "single_word": false, "lstrip": false,
                "rstrip": false, "normalized": false,
            }],
        });
        let config = serde_json::json!({ "eos_token": "<|im_end|>" });
        let tokenizer =
            Tokenizer::from_json(json.to_string().as_bytes(), Some(config.to_string().as_bytes()));
        let tokenizer = Arc::new(tokenizer.unwrap());
        let matcher = GrammarCompiler::new(&tokenizer, 96).unwrap();
        let matcher = matcher.compile(&Grammar::Regex("=\\[\\{[0-9]{2}".into())).unwrap();
        let triggers = Arc::new(Triggers::new(&[Trigger::Word("=[".into())]).unwrap());
        let mut lazy = Lazy::new(triggers, tokenizer.clone(), matcher.clone());
        let id = |text: &str| tokenizer.token_id(text).unwrap();
        let mut words = [0; 3];
        for text in ["a", "[", "=", "="] {
            assert!(!lazy.mask(&mut words).unwrap() && lazy.n_valid(&[id("a")]) == 0);
            lazy.accept(id(text)).unwrap();
        }
        lazy.accept(94).unwrap();
        assert!(lazy.mask(&mut words).unwrap());
        let n_allowed: u32 = words.iter().map(|word| word.count_ones()).sum();
        assert_eq!((n_allowed, lazy.n_valid(&[id("7"), id("a")])), (10, 1));
        assert!(lazy.accept(id("a")).is_err());
        // What comes with the trigger may contradict the grammar, which then lets nothing follow.
        let mut lazy = Lazy::new(
            Arc::new(Triggers::new(&[Trigger::Word("a".into())]).unwrap()),
            tokenizer.clone(),
            matcher,
        );
        lazy.accept(id("a")).unwrap();
        let mut words = [0; 3];
        assert_eq!((lazy.mask(&mut words).unwrap(), words), (true, [0; 3]));
    }
}
