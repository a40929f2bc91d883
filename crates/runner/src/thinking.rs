//! A limit of reasoning: after a number of tokens, only the mark that ends reasoning may follow.

use std::sync::Arc;

use engine::{Constraint, ConstraintResult};
use text::{Specials, Tokenizer};

/// Facts that are the same for all states.
struct LimitState {
    tokenizer: Arc<Tokenizer>,
    /// Maximum number of tokens of reasoning.
    budget: usize,
    /// Mark that begins reasoning.
    open: &'static str,
    /// Mark that ends reasoning, and its tokens.
    close: &'static str,
    close_tokens: Vec<u32>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ThinkingState {
    /// The opening mark is not complete yet.
    Waiting,
    /// Number of reasoning tokens so far.
    Thinking(usize),
    /// Number of forced tokens of the closing mark.
    Closing(usize),
    /// The closing mark is complete.
    Over,
}

/// The limit as a constraint, combined with a grammar if the answer has one.
pub(crate) struct ThinkingLimit {
    limit: Arc<LimitState>,
    grammar: Option<Box<dyn Constraint>>,
    state: ThinkingState,
    /// Earlier states, one for each token, as far back as draft tokens reach.
    before: Vec<(ThinkingState, usize)>,
    /// The last bytes of text, which may contain a mark.
    tail: Vec<u8>,
}

impl ThinkingLimit {
    /// Limits reasoning between these marks. `has_begun` is true if the prompt begins it.
    ///
    /// # Errors
    /// The mark has no tokens.
    pub(crate) fn new(
        tokenizer: &Arc<Tokenizer>,
        (open, close): (&'static str, &'static str),
        has_begun: bool,
        budget: usize,
        grammar: Option<Box<dyn Constraint>>,
    ) -> Result<ThinkingLimit, engine::Error> {
        let close_tokens = tokenizer.encode(close, Specials::Parse)?;
        let limit = LimitState { tokenizer: tokenizer.clone(), budget, open, close, close_tokens };
        Ok(ThinkingLimit {
            limit: Arc::new(limit),
            grammar,
            state: match (has_begun, budget) {
                (false, _) => ThinkingState::Waiting,
                (true, 0) => ThinkingState::Closing(0),
                (true, _) => ThinkingState::Thinking(0),
            },
            before: Vec::new(),
            tail: Vec::new(),
        })
    }

    fn next(&mut self, token: u32) -> ThinkingState {
        match self.state {
            ThinkingState::Over => ThinkingState::Over,
            ThinkingState::Closing(n) if n + 1 == self.limit.close_tokens.len() => ThinkingState::Over,
            ThinkingState::Closing(n) => ThinkingState::Closing(n + 1),
            ThinkingState::Waiting => {
                self.tail.extend_from_slice(self.limit.tokenizer.token_bytes(token));
                let (so_far, open) = (self.tail.trim_ascii_start(), self.limit.open.as_bytes());
                match so_far.strip_prefix(open) {
                    Some(_) if self.limit.budget == 0 => ThinkingState::Closing(0),
                    Some(_) => ThinkingState::Thinking(0),
                    None if open.starts_with(so_far) => ThinkingState::Waiting,
                    None => ThinkingState::Over,
                }
            }
            ThinkingState::Thinking(n) => {
                let close = self.limit.close.as_bytes();
                // The mark may have begun in earlier tokens.
                let from = self.tail.len().saturating_sub(close.len());
                self.tail.extend_from_slice(self.limit.tokenizer.token_bytes(token));
                let has_closed = self.tail[from..].windows(close.len()).any(|part| part == close);
                match n + 1 >= self.limit.budget {
                    _ if has_closed => ThinkingState::Over,
                    true => ThinkingState::Closing(0),
                    false => ThinkingState::Thinking(n + 1),
                }
            }
        }
    }
}

impl Constraint for ThinkingLimit {
    fn mask(&mut self, words: &mut [u32]) -> ConstraintResult<bool> {
        if let ThinkingState::Closing(n) = self.state
            && let Some(token) = self.limit.close_tokens.get(n).map(|token| *token as usize)
            && let Some(word) = words.get_mut(token / 32)
        {
            *word = 1 << (token % 32);
            return Ok(true);
        }
        match &mut self.grammar {
            Some(grammar) => grammar.mask(words),
            None => Ok(false),
        }
    }

    fn accept(&mut self, token: u32) -> ConstraintResult<()> {
        if let Some(grammar) = &mut self.grammar {
            grammar.accept(token)?;
        }
        let tail = self.tail.len();
        let next = self.next(token);
        if self.before.len() > 2 * engine::MAX_DRAFT {
            self.before.drain(..engine::MAX_DRAFT);
        }
        self.before.push((self.state, tail));
        self.state = next;
        Ok(())
    }

    fn roll_back(&mut self, n_tokens: usize) -> ConstraintResult<()> {
        if let Some(grammar) = &mut self.grammar {
            grammar.roll_back(n_tokens)?;
        }
        for _ in 0..n_tokens {
            let (state, tail) = self.before.pop().ok_or("a limit of reasoning was rolled back too far")?;
            self.state = state;
            self.tail.truncate(tail);
        }
        Ok(())
    }

    fn n_valid(&mut self, tokens: &[u32]) -> usize {
        let most = match self.state {
            ThinkingState::Over => tokens.len(),
            // Its first tokens decide.
            ThinkingState::Waiting => 0,
            ThinkingState::Closing(n) => {
                let due = self.limit.close_tokens.get(n..).unwrap_or_default();
                due.iter().zip(tokens).take_while(|(a, b)| a == b).count()
            }
            ThinkingState::Thinking(n) => self.limit.budget.saturating_sub(n),
        };
        let tokens = &tokens[..most.min(tokens.len())];
        match &mut self.grammar {
            Some(grammar) => grammar.n_valid(tokens),
            None => tokens.len(),
        }
    }

    fn is_over(&self) -> bool {
        self.state == ThinkingState::Over && self.grammar.as_ref().is_some_and(|grammar| grammar.is_over())
    }

    fn fork(&self) -> Box<dyn Constraint> {
        Box::new(ThinkingLimit {
            limit: self.limit.clone(),
            grammar: self.grammar.as_ref().map(|grammar| grammar.fork()),
            state: self.state,
            before: self.before.clone(),
            tail: self.tail.clone(),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Every byte is a token.
    fn tokenizer() -> Arc<Tokenizer> {
        let ranks: Vec<String> = (b'!'..=b'~').map(|byte| char::from(byte).to_string()).collect();
        let vocab: serde_json::Map<String, serde_json::Value> =
            ranks.iter().enumerate().map(|(id, token)| (token.clone(), id.into())).collect();
        let json = serde_json::json!({
            "model": { "type": "BPE", "vocab": vocab, "merges": [] },
            "added_tokens": [],
        });
        Arc::new(Tokenizer::from_json(json.to_string().as_bytes(), None).unwrap())
    }

    fn only(limit: &mut ThinkingLimit) -> Option<u32> {
        let mut words = [0; 3];
        limit.mask(&mut words).unwrap().then(|| {
            assert_eq!(words.iter().map(|word| word.count_ones()).sum::<u32>(), 1);
            (0..96).find(|id| words[id / 32] >> (id % 32) & 1 == 1).unwrap() as u32
        })
    }

    fn accept(limit: &mut ThinkingLimit, tokenizer: &Tokenizer, text: &str) {
        for token in tokenizer.encode(text, Specials::Literal).unwrap() {
            limit.accept(token).unwrap();
        }
    }

    #[test]
    fn the_mark_is_forced_when_the_budget_is_spent() {
        let tokenizer = tokenizer();
        let new = |has_begun, budget| {
            ThinkingLimit::new(&tokenizer, ("<a>", "</a>"), has_begun, budget, None).unwrap()
        };
        let mut limit = new(true, 3);
        accept(&mut limit, &tokenizer, "xy");
        assert_eq!((only(&mut limit), limit.n_valid(&[0; 9])), (None, 1));
        accept(&mut limit, &tokenizer, "z");
        let mark = tokenizer.encode("</a>", Specials::Literal).unwrap();
        for token in &mark {
            assert_eq!(only(&mut limit), Some(*token));
            limit.accept(*token).unwrap();
        }
        assert_eq!((only(&mut limit), limit.n_valid(&[0; 9])), (None, 9));
        // Roll back to where the mark was forced, and force it again.
        limit.roll_back(mark.len()).unwrap();
        assert_eq!((only(&mut limit), limit.n_valid(&mark)), (Some(mark[0]), 4));
        limit.roll_back(1).unwrap();
        assert_eq!(only(&mut limit), None);

        // Reasoning that ends by itself, never begins, or begins without a budget.
        let mut limit = new(true, 9);
        accept(&mut limit, &tokenizer, "x</a>yyyyyyyyyyyy");
        assert_eq!(only(&mut limit), None);
        let mut limit = new(false, 0);
        accept(&mut limit, &tokenizer, "<b>yyyy");
        assert_eq!(only(&mut limit), None);
        let mut limit = new(false, 0);
        accept(&mut limit, &tokenizer, "<a>");
        assert_eq!(only(&mut limit), Some(mark[0]));
    }
}
