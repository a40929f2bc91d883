//! A lazy grammar: any text, or calls of tools, until a trigger occurs. The grammar holds from
//! there on.

use std::sync::Arc;
use std::time::{Duration, Instant};

use engine::{Constraint, ConstraintResult};
use text::{Asides, Matcher, Specials, Tokenizer, Triggers};

/// A constraint that enforces its grammar after a trigger.
#[derive(Clone)]
pub(crate) struct Lazy {
    triggers: Arc<Triggers>,
    tokenizer: Arc<Tokenizer>,
    /// The matcher, at the grammar's start until a trigger occurs.
    matcher: Matcher,
    has_begun: bool,
    /// Constraint of the text before a trigger, which keeps its calls valid.
    free: Option<Box<dyn Constraint>>,
    /// Parts in which triggers do not count: calls.
    asides: Option<Asides>,
    /// True if the rest of the trigger's token violates the grammar, so no token may follow.
    is_stuck: bool,
    /// Text since the last call, before a trigger.
    text: String,
    /// Bytes of an incomplete character.
    bytes: Vec<u8>,
    /// Time spent searching for triggers.
    spent: Duration,
}

/// Longest search for triggers in one answer. Usual triggers take a few milliseconds; a regular
/// expression built to be slow would delay all answers of the model.
const MOST_TIME: Duration = Duration::from_secs(2);

impl Lazy {
    pub(crate) fn new(triggers: Arc<Triggers>, tokenizer: Arc<Tokenizer>, matcher: Matcher) -> Lazy {
        Lazy {
            triggers,
            tokenizer,
            matcher,
            has_begun: false,
            free: None,
            asides: None,
            is_stuck: false,
            text: String::new(),
            bytes: Vec::new(),
            spent: Duration::ZERO,
        }
    }

    /// Adds tool calls: `free` keeps them valid, and `asides` finds them.
    pub(crate) fn beside_calls(self, free: Option<Box<dyn Constraint>>, asides: Asides) -> Lazy {
        Lazy { free, asides: Some(asides), ..self }
    }

    fn wait(&mut self, token: u32) -> ConstraintResult<()> {
        let in_call = self.asides.as_ref().is_some_and(Asides::is_within);
        if !in_call && self.triggers.has_token(token) {
            self.has_begun = true;
            return Constraint::accept(&mut self.matcher, token);
        }
        if let Some(free) = &mut self.free {
            free.accept(token)?;
        }
        self.bytes.extend_from_slice(self.tokenizer.token_bytes(token));
        let whole = match std::str::from_utf8(&self.bytes) {
            Ok(_) => self.bytes.len(),
            // An invalid byte sequence counts as one character.
            Err(error) if error.error_len().is_some() => self.bytes.len(),
            Err(error) => error.valid_up_to(),
        };
        let new = String::from_utf8_lossy(&self.bytes[..whole]).into_owned();
        self.bytes.drain(..whole);
        let mut rest = new.as_str();
        while !rest.is_empty() {
            let (n, is_call) = self.asides.as_mut().map_or((rest.len(), false), |asides| asides.next(rest));
            let (piece, after) = rest.split_at(n);
            if is_call {
                self.text.clear();
            } else {
                self.text.push_str(piece);
                let begun = Instant::now();
                let found = self.triggers.find(&self.text, n);
                self.spent += begun.elapsed();
                if self.spent > MOST_TIME {
                    return Err(
                        "searching for `grammar_triggers` takes too long, expected simpler patterns".into()
                    );
                }
                if let Some(at) = found {
                    self.text.push_str(after);
                    return self.begin(at);
                }
            }
            rest = after;
        }
        Ok(())
    }

    /// Starts the grammar at the trigger, byte `at` of the text.
    fn begin(&mut self, at: usize) -> ConstraintResult<()> {
        // The grammar consumes the trigger and the rest of its token.
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
            false => self.free.as_mut().map_or(Ok(false), |free| free.mask(words)),
        }
    }

    fn accept(&mut self, token: u32) -> ConstraintResult<()> {
        match self.has_begun {
            true => Constraint::accept(&mut self.matcher, token),
            false => self.wait(token),
        }
    }

    /// Draft tokens are accepted only after the trigger, see [`Self::n_valid`].
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
        match self.has_begun {
            true => Constraint::is_over(&self.matcher),
            false => self.free.as_ref().is_some_and(|free| free.is_over()),
        }
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
        // The vocabulary has every printable byte, a word that extends beyond the trigger, and an
        // end token.
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
        // A trigger within a call does not count, and calls follow their own grammar.
        let matcher_of = |regex: &str| {
            let compiler = GrammarCompiler::new(&tokenizer, 96).unwrap();
            compiler.compile(&Grammar::Regex(regex.into())).unwrap()
        };
        let tools = [serde_json::json!({ "type": "function", "function": { "name": "f" } })];
        let asides = text::AnswerFormat::detect("<tool_call>").asides("", &tools);
        let (begun, rest) = ("a<tool_call>{\"name\":\"f\",\"arguments\":{\"=[", "\":1}}</tool_call>");
        let regex =
            format!("{}[a-z=\\[{{]*", format!("{begun}{rest}").replace('[', "\\[").replace('{', "\\{"));
        let triggers = Arc::new(Triggers::new(&[Trigger::Word("=[".into())]).unwrap());
        let lazy = Lazy::new(triggers, tokenizer.clone(), matcher.clone());
        let mut lazy = lazy.beside_calls(Some(Box::new(matcher_of(&regex))), asides);
        let accept = |lazy: &mut Lazy, text: &str| {
            for c in text.chars() {
                assert!(lazy.mask(&mut [0; 3]).unwrap());
                lazy.accept(id(c.encode_utf8(&mut [0; 4]))).unwrap();
            }
        };
        accept(&mut lazy, begun);
        assert!(lazy.fork().accept(id("7")).is_err(), "a call is held");
        accept(&mut lazy, rest);
        for text in ["b", "=", "[{"] {
            lazy.accept(id(text)).unwrap();
        }
        assert_eq!(lazy.n_valid(&[id("7"), id("a")]), 1, "the trigger after the call counts");
        // A token that continues the trigger against the grammar lets no token follow.
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
