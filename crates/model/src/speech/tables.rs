//! OpenAI's two vocabularies for speech, which have the same special tokens after the text tokens.
//!
//! ```text
//! text | endoftext | startoftranscript | languages | translate | transcribe | startoflm |
//! startofprev | nospeech | notimestamps | 1501 timestamps, 0.00 to 30.00
//! ```
//!
//! See `whisper/tokenizer.py` of <https://github.com/openai/whisper>.

/// Vocabulary size of English-only models: 50256 text tokens, and 99 languages that they never use.
pub const ENGLISH_VOCAB: usize = 51864;

/// Vocabulary size of multilingual models: 50257 text tokens and 99 languages. One more token is
/// one more language.
pub const MULTILINGUAL_VOCAB: usize = 51865;

/// Text tokens of English-only models.
pub const ENGLISH_TEXT: u32 = 50256;
/// Text tokens of multilingual models.
pub const MULTILINGUAL_TEXT: u32 = 50257;

/// Number of timestamps: every 0.02 s from 0 to 30 s, both included.
pub const N_TIMESTAMPS: u32 = 1501;

/// Language codes in the order of their tokens, mostly of ISO 639. The last is not in the older
/// vocabulary.
#[rustfmt::skip]
pub const LANGUAGES: [&str; 100] = [
    "en", "zh", "de", "es", "ru", "ko", "fr", "ja", "pt", "tr", "pl", "ca", "nl", "ar", "sv", "it", "id",
    "hi", "fi", "vi", "he", "uk", "el", "ms", "cs", "ro", "da", "hu", "ta", "no", "th", "ur", "hr", "bg",
    "lt", "la", "mi", "ml", "cy", "sk", "te", "fa", "lv", "bn", "sr", "az", "sl", "kn", "et", "mk", "br",
    "eu", "is", "hy", "ne", "mn", "bs", "kk", "sq", "sw", "gl", "mr", "pa", "si", "km", "sn", "yo", "so",
    "af", "oc", "ka", "be", "tg", "sd", "gu", "am", "yi", "lo", "uz", "fo", "ht", "ps", "tk", "nn", "mt",
    "sa", "lb", "my", "bo", "tl", "mg", "as", "tt", "haw", "ln", "ha", "ba", "jw", "su", "yue",
];

/// Text tokens that are not speech (transcriber punctuation, musical notes), of English-only
/// models.
#[rustfmt::skip]
pub const ENGLISH_NON_SPEECH: &[u32] = &[
    1, 2, 7, 8, 9, 10, 14, 25, 26, 27, 28, 29, 31, 58, 59, 60, 61, 62, 63, 90, 91, 92, 93, 357, 366, 438, 532,
    685, 705, 796, 930, 1058, 1220, 1267, 1279, 1303, 1343, 1377, 1391, 1635, 1782, 1875, 2162, 2361, 2488,
    3467, 4008, 4211, 4600, 4808, 5299, 5855, 6329, 7203, 9609, 9959, 10563, 10786, 11420, 11709, 11907,
    13163, 13697, 13700, 14808, 15306, 16410, 16791, 17992, 19203, 19510, 20724, 22305, 22935, 27007, 30109,
    30420, 33409, 34949, 40283, 40493, 40549, 47282, 49146,
];

/// Text tokens that are not speech, of multilingual models.
#[rustfmt::skip]
pub const MULTILINGUAL_NON_SPEECH: &[u32] = &[
    1, 2, 7, 8, 9, 10, 14, 25, 26, 27, 28, 29, 31, 58, 59, 60, 61, 62, 63, 90, 91, 92, 93, 359, 503, 522, 542,
    873, 893, 902, 918, 922, 931, 1350, 1853, 1982, 2460, 2627, 3246, 3253, 3268, 3536, 3846, 3961, 4183,
    4667, 6585, 6647, 7273, 9061, 9383, 10428, 10929, 11938, 12033, 12331, 12562, 13793, 14157, 14635, 15265,
    15618, 16553, 16604, 18362, 18956, 20075, 21675, 22520, 26130, 26161, 26435, 28279, 29464, 31650, 32302,
    32470, 36865, 42863, 47425, 49870, 50254,
];

/// The space token of both vocabularies.
pub const SPACE: u32 = 220;
