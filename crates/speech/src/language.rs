//! Detection of the spoken language, from the probabilities of the language tokens after a
//! transcript's first token; and names of languages.

use crate::math;

/// Codes of the languages that speech models know, and their names in English.
#[rustfmt::skip]
const NAMES: [(&str, &str); 100] = [
    ("af", "afrikaans"), ("am", "amharic"), ("ar", "arabic"), ("as", "assamese"), ("az", "azerbaijani"),
    ("ba", "bashkir"), ("be", "belarusian"), ("bg", "bulgarian"), ("bn", "bengali"), ("bo", "tibetan"),
    ("br", "breton"), ("bs", "bosnian"), ("ca", "catalan"), ("cs", "czech"), ("cy", "welsh"), ("da", "danish"),
    ("de", "german"), ("el", "greek"), ("en", "english"), ("es", "spanish"), ("et", "estonian"), ("eu", "basque"),
    ("fa", "persian"), ("fi", "finnish"), ("fo", "faroese"), ("fr", "french"), ("gl", "galician"), ("gu", "gujarati"),
    ("ha", "hausa"), ("haw", "hawaiian"), ("he", "hebrew"), ("hi", "hindi"), ("hr", "croatian"),
    ("ht", "haitian creole"), ("hu", "hungarian"), ("hy", "armenian"), ("id", "indonesian"), ("is", "icelandic"),
    ("it", "italian"), ("ja", "japanese"), ("jw", "javanese"), ("ka", "georgian"), ("kk", "kazakh"), ("km", "khmer"),
    ("kn", "kannada"), ("ko", "korean"), ("la", "latin"), ("lb", "luxembourgish"), ("ln", "lingala"), ("lo", "lao"),
    ("lt", "lithuanian"), ("lv", "latvian"), ("mg", "malagasy"), ("mi", "maori"), ("mk", "macedonian"),
    ("ml", "malayalam"), ("mn", "mongolian"), ("mr", "marathi"), ("ms", "malay"), ("mt", "maltese"), ("my", "myanmar"),
    ("ne", "nepali"), ("nl", "dutch"), ("nn", "nynorsk"), ("no", "norwegian"), ("oc", "occitan"), ("pa", "punjabi"),
    ("pl", "polish"), ("ps", "pashto"), ("pt", "portuguese"), ("ro", "romanian"), ("ru", "russian"),
    ("sa", "sanskrit"), ("sd", "sindhi"), ("si", "sinhala"), ("sk", "slovak"), ("sl", "slovenian"), ("sn", "shona"),
    ("so", "somali"), ("sq", "albanian"), ("sr", "serbian"), ("su", "sundanese"), ("sv", "swedish"), ("sw", "swahili"),
    ("ta", "tamil"), ("te", "telugu"), ("tg", "tajik"), ("th", "thai"), ("tk", "turkmen"), ("tl", "tagalog"),
    ("tr", "turkish"), ("tt", "tatar"), ("uk", "ukrainian"), ("ur", "urdu"), ("uz", "uzbek"), ("vi", "vietnamese"),
    ("yi", "yiddish"), ("yo", "yoruba"), ("yue", "cantonese"), ("zh", "chinese"),
];

/// The English name of a language, in lower case. A code without a name is returned unchanged.
pub fn language_name(code: &str) -> &str {
    NAMES.iter().find(|(known, _)| *known == code).map_or(code, |(_, name)| name)
}

/// The code of a language, from its code or English name in any case. Another word is returned in
/// lower case.
pub fn language_code(text: &str) -> String {
    let text = text.trim().to_lowercase();
    // The models have their own code for Javanese, which is not ISO's.
    let text = if text == "jv" { "jw".to_owned() } else { text };
    let code = NAMES.iter().find(|(_, name)| *name == text).map(|(code, _)| (*code).to_owned());
    code.unwrap_or(text)
}

/// The probability of each language, most probable first, from the logits of a row.
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

    #[test]
    fn languages_have_names() {
        assert!(NAMES.is_sorted());
        for (code, name) in NAMES {
            assert_eq!((language_name(code), &*language_code(name)), (name, code));
        }
        assert_eq!([language_code("German"), language_code(" EN"), language_code("jv")], ["de", "en", "jw"]);
        assert_eq!((language_name("de"), language_name("xx"), &*language_code("Xx")), ("german", "xx", "xx"));
    }
}
