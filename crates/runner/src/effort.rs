//! Reasoning effort, in the words of the APIs and in those of a template.

/// Efforts in ascending order.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Effort {
    /// No reasoning.
    None,
    /// Almost no reasoning.
    Minimal,
    /// Little reasoning.
    Low,
    /// The default of most models.
    Medium,
    /// Much reasoning.
    High,
    /// More than `High`.
    XHigh,
    /// The most that the model can do.
    Max,
}

/// Efforts with their words in templates.
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
    /// The effort of a word; synonyms of the highest are known. `None` for an unknown word: the
    /// model's default holds.
    pub fn named(word: &str) -> Option<Effort> {
        let word = word.to_ascii_lowercase();
        let known = WORDS.iter().find(|(_, name)| *name == word);
        let beyond = ["max", "ultra", "highest", "extreme"].iter().any(|more| word.contains(more));
        known.map(|(effort, _)| *effort).or(beyond.then_some(Effort::Max))
    }

    /// Returns false for no reasoning; `None` for the template's default.
    pub fn thinks(self) -> Option<bool> {
        (self <= Effort::Minimal).then_some(false)
    }

    /// The nearest word in the source of a template; of two equally near words, the lower.
    /// Templates always know low, medium and high; other words must occur in the source.
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
