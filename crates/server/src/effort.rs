//! How much a model is to think, in the words of the APIs and in those that its template knows.

/// Efforts, the least first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Effort {
    /// No reasoning.
    None,
    /// Next to none.
    Minimal,
    /// Little.
    Low,
    /// As much as most models think by themselves.
    Medium,
    /// Much.
    High,
    /// More than that.
    XHigh,
    /// As much as the model can.
    Max,
}

/// Efforts with the words that templates have for them.
const WORDS: [(Effort, &str); 7] = [
    (Effort::None, "none"),
    (Effort::Minimal, "minimal"),
    (Effort::Low, "low"),
    (Effort::Medium, "medium"),
    (Effort::High, "high"),
    (Effort::XHigh, "xhigh"),
    (Effort::Max, "max"),
];

impl Effort {
    /// What a word means; other words for the most effort are taken for it. `None`: nobody can tell, so the model decides.
    pub fn named(word: &str) -> Option<Effort> {
        let word = word.to_ascii_lowercase();
        let known = WORDS.iter().find(|(_, name)| *name == word);
        let beyond = ["max", "ultra", "highest", "extreme"].iter().any(|more| word.contains(more));
        known.map(|(effort, _)| *effort).or(beyond.then_some(Effort::Max))
    }

    /// Whether the model thinks at all; `None`: as its template does by default.
    pub fn thinks(self) -> Option<bool> {
        (self <= Effort::Minimal).then_some(false)
    }

    /// The nearest word that a template of this source knows; of two as near, the lower. Every template that knows efforts knows
    /// low, medium and high; others stand in its source.
    pub(crate) fn word_for(self, source: &str) -> &'static str {
        let is_known = |(effort, word): &&(Effort, &str)| {
            (Effort::Low..=Effort::High).contains(effort)
                || ['\'', '"'].iter().any(|quote| source.contains(&format!("{quote}{word}{quote}")))
        };
        let known = WORDS[1..].iter().filter(is_known);
        let nearest = known.min_by_key(|(effort, _)| (*effort as u8).abs_diff(self as u8));
        nearest.map_or("medium", |(_, word)| word)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_are_the_nearest_that_the_template_knows() {
        let word = |name: &str, source: &str| Effort::named(name).map(|effort| effort.word_for(source));
        assert_eq!(word("low", ""), Some("low"));
        assert_eq!(word("minimal", ""), Some("low"));
        assert_eq!(word("minimal", "effort == 'minimal'"), Some("minimal"));
        assert_eq!((word("xhigh", ""), word("max", "")), (Some("high"), Some("high")));
        assert_eq!(word("xhigh", "effort == \"max\""), Some("high"));
        assert_eq!(word("max", "effort == \"max\""), Some("max"));
        assert_eq!(word("Ultra", "effort == \"max\""), Some("max"));
        assert_eq!(word("whatever", ""), None);
        let thinks = |name: &str| Effort::named(name).and_then(Effort::thinks);
        assert_eq!((thinks("none"), thinks("minimal"), thinks("low")), (Some(false), Some(false), None));
    }
}
