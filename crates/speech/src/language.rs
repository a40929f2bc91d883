//! Which language is spoken: the probabilities of the language tokens after the token that begins a transcript.

use crate::math;

/// The probability of each language, likeliest first, from the logits of a row.
pub(crate) fn probabilities(logits: &[f32], languages: &[(String, u32)]) -> Vec<(String, f32)> {
    let mut values: Vec<f32> = languages
        .iter()
        .map(|(_, id)| logits.get(*id as usize).copied().filter(|l| !l.is_nan()).unwrap_or(f32::NEG_INFINITY))
        .collect();
    math::softmax(&mut values);
    let mut found: Vec<_> = languages.iter().map(|(code, _)| code.clone()).zip(values).collect();
    found.sort_by(|a, b| b.1.total_cmp(&a.1));
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_languages_count() {
        let languages = [("en".to_string(), 1), ("de".to_string(), 3), ("xx".to_string(), 99)];
        let found = probabilities(&[9.0, 0.0, 9.0, 2f32.ln()], &languages);
        let codes: Vec<&str> = found.iter().map(|(code, _)| code.as_str()).collect();
        assert_eq!(codes, ["de", "en", "xx"]);
        assert!((found[0].1 - 2.0 / 3.0).abs() < 1e-5, "{found:?}");
    }
}
