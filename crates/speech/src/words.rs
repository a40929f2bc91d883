//! Words of tokens, and the punctuation that belongs to each word.

/// Languages without spaces, in which a word is the shortest run of tokens that decodes to whole
/// characters.
const WITHOUT_SPACES: [&str; 6] = ["zh", "ja", "th", "lo", "my", "yue"];

/// The character for bytes that are not UTF-8.
const REPLACEMENT: char = '\u{fffd}';

/// ASCII punctuation in code order. A part of a word that is a substring of it begins a new word.
const PUNCTUATION: &str = "!\"#$%&'()*+,-./:;<=>?@[\\]^_`{|}~";

/// A word and its tokens.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct WordTokens {
    pub(crate) text: String,
    pub(crate) n_tokens: usize,
}

/// Splits text tokens, whose bytes are `pieces`, into words of a language.
pub(crate) fn split(pieces: &[&[u8]], language: &str) -> Vec<WordTokens> {
    let characters = split_at_characters(pieces);
    if WITHOUT_SPACES.contains(&language) {
        return characters;
    }
    let mut words: Vec<WordTokens> = Vec::with_capacity(characters.len());
    for part in characters {
        let begins = part.text.starts_with(' ') || PUNCTUATION.contains(part.text.trim());
        match words.last_mut().filter(|_| !begins) {
            Some(word) => {
                word.text.push_str(&part.text);
                word.n_tokens += part.n_tokens;
            }
            None => words.push(part),
        }
    }
    words
}

/// Splits tokens at the earliest character boundaries. In broken text, a part ends where its
/// replacement character is complete.
fn split_at_characters(pieces: &[&[u8]]) -> Vec<WordTokens> {
    let whole: Vec<char> = String::from_utf8_lossy(&pieces.concat()).chars().collect();
    let mut parts = Vec::new();
    let (mut bytes, mut n_tokens, mut n_chars) = (Vec::new(), 0, 0);
    for piece in pieces {
        bytes.extend_from_slice(piece);
        n_tokens += 1;
        let text = String::from_utf8_lossy(&bytes);
        let broken = text.chars().position(|c| c == REPLACEMENT);
        if broken.is_none_or(|at| whole.get(n_chars + at) == Some(&REPLACEMENT)) {
            n_chars += text.chars().count();
            parts.push(WordTokens { text: text.into_owned(), n_tokens });
            bytes.clear();
            n_tokens = 0;
        }
    }
    if n_tokens > 0 {
        let text = String::from_utf8_lossy(&bytes).into_owned();
        parts.push(WordTokens { text, n_tokens });
    }
    parts
}

/// A word and its time, in seconds from its window's start.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct TimedWord {
    /// The text; empty after it was joined to a neighbour.
    pub(crate) text: String,
    pub(crate) n_tokens: usize,
    pub(crate) start: f64,
    pub(crate) end: f64,
    pub(crate) probability: f64,
}

/// Joins punctuation to the word after it (`prepended`, if it follows a space) or before it
/// (`appended`). The joined punctuation becomes an empty word; the word's times do not change.
pub(crate) fn join_punctuation(words: &mut [TimedWord], prepended: &str, appended: &str) {
    let mut following = words.len().saturating_sub(1);
    for at in (0..words.len().saturating_sub(1)).rev() {
        let text = &words[at].text;
        if text.starts_with(' ') && prepended.contains(text.trim()) {
            let (text, n_tokens) = take(words, at);
            words[following].text.insert_str(0, &text);
            words[following].n_tokens += n_tokens;
        } else {
            following = at;
        }
    }
    let mut previous = 0;
    for at in 1..words.len() {
        if !words[previous].text.ends_with(' ') && appended.contains(words[at].text.as_str()) {
            let (text, n_tokens) = take(words, at);
            words[previous].text.push_str(&text);
            words[previous].n_tokens += n_tokens;
        } else {
            previous = at;
        }
    }
}

fn take(words: &mut [TimedWord], at: usize) -> (String, usize) {
    (std::mem::take(&mut words[at].text), std::mem::take(&mut words[at].n_tokens))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn texts(words: &[WordTokens]) -> Vec<(&str, usize)> {
        words.iter().map(|w| (w.text.as_str(), w.n_tokens)).collect()
    }

    #[test]
    fn spaces_and_punctuation_begin_words() {
        let pieces: [&[u8]; 8] = [b" And", b" so", b",", b" my", b" fell", b"ow", b" Amer", b"icans"];
        let expected = [(" And", 1), (" so", 1), (",", 1), (" my", 1), (" fellow", 2), (" Americans", 2)];
        assert_eq!(texts(&split(&pieces, "en")), expected);
        let pieces: [&[u8]; 4] = [b"ab", b"c", b" d", b"..."];
        // Three dots are not a substring of the table, so they do not begin a word.
        assert_eq!(texts(&split(&pieces, "en")), [("abc", 2), (" d...", 2)]);
    }

    #[test]
    fn characters_of_several_tokens_stay_whole() {
        let bytes = "日本".as_bytes();
        let pieces = [&bytes[..1], &bytes[1..3], &bytes[3..]];
        assert_eq!(texts(&split(&pieces, "ja")), [("日", 2), ("本", 1)]);
        assert_eq!(texts(&split(&pieces, "en")), [("日本", 3)]);
        // Tokens of broken text must not be held back for ever.
        let broken = [&bytes[..2], b" a", &bytes[3..5]];
        let found = split(&broken, "en");
        assert_eq!(found.iter().map(|w| w.n_tokens).sum::<usize>(), 3);
        assert_eq!(found[1].text, " a\u{fffd}");
        assert!(split(&[], "en").is_empty());
    }

    fn timed(texts: &[&str]) -> Vec<TimedWord> {
        let word = |(i, text): (usize, &&str)| TimedWord {
            text: text.to_string(),
            n_tokens: 1,
            start: i as f64,
            end: i as f64 + 1.0,
            probability: 0.5,
        };
        texts.iter().enumerate().map(word).collect()
    }

    #[test]
    fn punctuation_joins_its_word() {
        let mut words = timed(&[" He", ":", " \"", " Yes", ",", "\"", " no", "."]);
        join_punctuation(&mut words, "\"'“¿([{-", "\"'.。,，!！?？:：”)]}、");
        let found: Vec<(&str, usize)> = words.iter().map(|w| (w.text.as_str(), w.n_tokens)).collect();
        let expected =
            [(" He:", 2), ("", 0), ("", 0), (" \" Yes,\"", 4), ("", 0), ("", 0), (" no.", 2), ("", 0)];
        assert_eq!(found, expected);
        join_punctuation(&mut [], "", "");
        join_punctuation(&mut timed(&[" a"]), "", "");
    }
}
