//! A constraint for the calls in an answer, and for nothing else in it.

use std::sync::Arc;

use serde_json::Value;

use super::calls::Tools;
use super::{AnswerFormat, AnswerParser, AnswerPart};
use crate::{Detokenizer, Grammar, Matcher, Result, ShowSpecial, Specials, Tokenizer};

/// Follows an answer with its parser. Once the parser finds that a call of a known tool has begun,
/// a grammar enforces the tool's schema on the rest of that call. Everything else is free: text
/// that the parser accepts is never masked.
#[derive(Clone)]
pub struct CallGuard {
    tokenizer: Arc<Tokenizer>,
    /// The matcher at the start of a call; `None` if no tool's schema can be enforced.
    call: Option<Matcher>,
    /// True if more than one call is allowed.
    parallel: bool,
    place: GuardPlace,
    /// The state before draft tokens, and the tokens accepted since.
    before: Option<(Box<GuardPlace>, Vec<u32>)>,
}

/// Position in the answer.
#[derive(Clone)]
struct GuardPlace {
    parser: AnswerParser,
    detokenizer: Detokenizer,
    /// Matcher of the current call.
    matcher: Option<Matcher>,
    parts: Vec<AnswerPart>,
}

/// Compiled grammar of tool calls. Cheap to clone.
#[derive(Clone)]
pub struct HeldCalls {
    matcher: Option<Matcher>,
    unenforced: Arc<[String]>,
}

impl HeldCalls {
    /// Makes it from a matcher and the keys of the tools' schemas that the matcher does not
    /// enforce.
    pub fn new(matcher: Matcher, unenforced: Vec<String>) -> HeldCalls {
        HeldCalls { matcher: Some(matcher), unenforced: unenforced.into() }
    }

    /// The matcher at the start of a call; `None` if no schema can be enforced.
    pub fn matcher(&self) -> Option<&Matcher> {
        self.matcher.as_ref()
    }

    /// Keys of the tools' schemas that are not enforced, with their paths.
    pub fn unenforced(&self) -> &[String] {
        &self.unenforced
    }
}

impl AnswerFormat {
    /// Compiles the grammar of calls that a model begins. `tools` are in a request's form, and
    /// `compile` makes matchers. A tool whose schema cannot be compiled is called freely. The time
    /// grows with the schemas; the result may be cached for requests with the same tools.
    pub fn held_calls(
        &self,
        tools: &[Value],
        tokenizer: &Tokenizer,
        compile: impl Fn(&Grammar) -> Result<Matcher>,
    ) -> HeldCalls {
        let call = |tools: &[Value]| {
            let held = self.held_grammar(&Tools::new(tools), tokenizer)?;
            Ok::<_, crate::Error>(HeldCalls::new(compile(&held.grammar)?, held.unenforced))
        };
        let held = call(tools).or_else(|_| call(&self.loosened(tools, tokenizer, &compile)));
        held.unwrap_or_else(|error| HeldCalls { matcher: None, unenforced: [error.to_string()].into() })
    }

    /// Makes the guard of an answer to `prompt`, from `held` of the same `tools`. At most one call
    /// is allowed unless `parallel`.
    ///
    /// # Errors
    /// A mark of the format cannot be tokenised.
    pub fn guard(
        &self,
        held: HeldCalls,
        tools: &[Value],
        parallel: bool,
        prompt: &str,
        tokenizer: &Arc<Tokenizer>,
    ) -> Result<CallGuard> {
        let shown = ShowSpecial::Only(self.shown_tokens(tokenizer)?.into());
        Ok(CallGuard {
            tokenizer: tokenizer.clone(),
            call: held.matcher,
            parallel,
            place: GuardPlace {
                parser: self.parser(prompt, tools),
                detokenizer: Detokenizer::new(tokenizer, shown),
                matcher: None,
                parts: Vec::new(),
            },
            before: None,
        })
    }

    /// Returns the tools, in which schemas that cannot be compiled are replaced by any object.
    pub fn loosened(
        &self,
        tools: &[Value],
        tokenizer: &Tokenizer,
        compile: impl Fn(&Grammar) -> Result<Matcher>,
    ) -> Vec<Value> {
        let loosen = |tool: &Value| {
            let one = Tools::new(std::slice::from_ref(tool));
            let mut tool = tool.clone();
            if self.held_grammar(&one, tokenizer).and_then(|held| compile(&held.grammar)).is_err() {
                let any = serde_json::json!({ "type": "object" });
                match tool.get_mut("function") {
                    Some(function) => function["parameters"] = any,
                    None => tool["parameters"] = any,
                }
            }
            tool
        };
        tools.iter().map(loosen).collect()
    }
}

impl CallGuard {
    /// Returns true if the schemas of calls are enforced.
    pub fn has_grammar(&self) -> bool {
        self.call.is_some()
    }

    /// Like [`Matcher::mask`]. Returns false and leaves `words` if every token is allowed.
    ///
    /// # Errors
    /// The grammar takes more work than allowed.
    pub fn mask(&mut self, words: &mut [u32]) -> Result<bool> {
        if self.is_over() {
            for end in self.tokenizer.ends() {
                if let Some(word) = words.get_mut(*end as usize / 32) {
                    *word |= 1 << (end % 32);
                }
            }
            return Ok(true);
        }
        match &mut self.place.matcher {
            Some(matcher) => matcher.mask(words).map(|()| true),
            None => Ok(false),
        }
    }

    /// Accepts a token that [`Self::mask`] allowed.
    ///
    /// # Errors
    /// The token is not allowed.
    pub fn accept(&mut self, token: u32) -> Result<()> {
        if let Some((_, tokens)) = &mut self.before {
            tokens.push(token);
        }
        if let Some(matcher) = &mut self.place.matcher {
            matcher.accept(token)?;
        }
        self.follow(token);
        Ok(())
    }

    /// Parses a token, with which a call may begin or end.
    fn follow(&mut self, token: u32) {
        let place = &mut self.place;
        let text = place.detokenizer.push(&self.tokenizer, token);
        let mut begun: Option<String> = None;
        for c in text.chars() {
            place.parser.push(c.encode_utf8(&mut [0; 4]), &mut place.parts);
            if let Some(begun) = &mut begun {
                begun.push(c);
            }
            if let Some(call) = place.parser.take_held() {
                begun = Some(call);
            }
            if !place.parser.is_held() {
                begun = None;
                place.matcher = None;
            }
        }
        place.parts.clear();
        if let (Some(text), Some(call)) = (begun, &self.call) {
            place.matcher = matcher_within(call, &text, &self.tokenizer);
        }
    }

    /// Rolls back the last `n_tokens`, which [`Self::n_valid`] counted before.
    ///
    /// # Errors
    /// There were fewer.
    pub fn roll_back(&mut self, n_tokens: usize) -> Result<()> {
        if n_tokens == 0 {
            return Ok(());
        }
        if let Some(matcher) = &mut self.place.matcher {
            matcher.roll_back(n_tokens)?;
        }
        let matcher = self.place.matcher.take();
        let Some((place, mut tokens)) = self.before.take() else {
            let what = format!("cannot roll back {n_tokens} tokens, expected draft tokens only");
            return Err(crate::Error::Grammar { what });
        };
        tokens.truncate(tokens.len().saturating_sub(n_tokens));
        self.place = *place;
        for token in tokens {
            self.follow(token);
        }
        self.place.matcher = matcher;
        Ok(())
    }

    /// Number of leading tokens that are valid. It stops where a call begins or ends, so that draft
    /// tokens can be rolled back.
    pub fn n_valid(&mut self, tokens: &[u32]) -> usize {
        if self.is_over() {
            return 0;
        }
        let n = match &mut self.place.matcher {
            Some(matcher) => matcher.n_valid(tokens),
            None => tokens.len(),
        };
        let before = GuardPlace { matcher: None, ..self.place.clone() };
        let mut ahead = CallGuard {
            tokenizer: self.tokenizer.clone(),
            call: None,
            parallel: self.parallel,
            place: before.clone(),
            before: None,
        };
        let (is_held, n_calls) = (ahead.place.parser.is_held(), ahead.place.parser.n_calls());
        let mut stays = |token: &u32| {
            ahead.follow(*token);
            let parser = &ahead.place.parser;
            parser.is_held() == is_held && (is_held || parser.n_calls() == n_calls)
        };
        let n = tokens.iter().take(n).take_while(|token| stays(token)).count();
        self.before = Some((Box::new(before), Vec::new()));
        n
    }

    /// Returns true if only the end may follow.
    pub fn is_over(&self) -> bool {
        !self.parallel && self.place.parser.n_whole_calls() > 0
    }
}

/// A matcher of calls after this text; `None` if the grammar does not accept the text.
fn matcher_within(call: &Matcher, text: &str, tokenizer: &Tokenizer) -> Option<Matcher> {
    let mut matcher = call.clone();
    let tokens = tokenizer.encode(text, Specials::Parse).ok()?;
    if matcher.n_valid(&tokens) < tokens.len() {
        return None;
    }
    tokens.into_iter().try_for_each(|token| matcher.accept(token)).ok()?;
    Some(matcher)
}
