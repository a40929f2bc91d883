//! Plans of requests: texts and times follow from the seed, so that two servers get the same load.

use std::time::Duration;

use clap::ValueEnum;

/// Kinds of requests.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Workload {
    /// Log-normal lengths of prompts and answers, as in people's chats
    Sharegpt,
    /// Like sharegpt, after 2,048 words that begin every prompt
    Prefix,
    /// Like sharegpt, with one prompt of --intruder-words in the middle
    Intruder,
    /// Like sharegpt, and every fifth client hangs up within its answer
    Disconnects,
    /// Chats of four turns, each with the whole chat before it
    Growing,
    /// Short prompts at the same time, whose answers grow to 2.5 times --memory-tokens
    Overload,
}

/// Distributions of the times at which requests arrive.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Arrivals {
    /// Exponential gaps between requests
    Poisson,
    /// Eight requests at the same time, then a gap, at the same mean rate
    Bursty,
}

/// Parameters of a plan.
#[derive(Clone, Debug)]
pub struct Shape {
    pub workload: Workload,
    pub arrivals: Arrivals,
    pub seed: u64,
    /// Number of chats; `Overload` ignores it.
    pub n_requests: usize,
    /// Mean arrivals a second.
    pub rate: f64,
    /// Maximum number of tokens of an answer.
    pub max_tokens: usize,
    /// Maximum number of words of a prompt, without a shared prefix. The intruder's prompt has its
    /// own limit.
    pub max_words: usize,
    pub intruder_words: usize,
    /// Tokens that fit in the server's KV memory, for `Overload`.
    pub memory_tokens: usize,
}

/// A user's message and the length of its answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PlannedTurn {
    pub text: String,
    /// Tokens of the answer.
    pub n_answer: usize,
}

/// A chat, whose turns run one after the other.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Chat {
    /// Planned start, from the start of the run.
    pub at: Duration,
    pub turns: Vec<PlannedTurn>,
    /// Number of chunks of the answer after which the client hangs up.
    pub hang_up_after: Option<usize>,
}

const BURST: usize = 8;
const SHARED_WORDS: usize = 2048;

/// Common words. Most are one token in any vocabulary.
const WORDS: &[&str] = &[
    "the", "of", "and", "to", "in", "is", "that", "it", "for", "was", "on", "are", "with", "as", "they",
    "be", "at", "one", "have", "this", "from", "by", "hot", "but", "some", "what", "there", "we", "can",
    "out", "other", "were", "all", "your", "when", "up", "use", "word", "how", "said", "each", "she",
    "which", "do", "their", "time", "if", "will", "way", "about", "many", "then", "them", "would", "write",
    "like", "so", "these", "her", "long", "make", "thing", "see", "him", "two", "has", "look", "more", "day",
    "could", "go", "come", "did", "my", "sound", "no", "most", "number", "who", "over", "know", "water",
    "than", "call", "first", "people", "may", "down", "side", "been", "now", "find", "any", "new", "work",
    "part", "take", "get", "place", "made", "live", "where", "after", "back", "little", "only", "round",
    "man", "year", "came", "show", "every", "good", "me", "give", "our", "under", "name", "very", "through",
    "just", "form", "much", "great", "think", "say", "help", "low", "line",
];

/// SplitMix64 (Steele, Lea and Flood, 2014).
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// A number in (0, 1], so that its logarithm is finite.
    fn unit(&mut self) -> f64 {
        ((self.next() >> 11) + 1) as f64 / (1u64 << 53) as f64
    }

    /// A length from a log-normal distribution, from 1 to `most`.
    fn length(&mut self, median: f64, sigma: f64, most: usize) -> usize {
        // The Box-Muller transform.
        let normal = (-2.0 * self.unit().ln()).sqrt() * (std::f64::consts::TAU * self.unit()).cos();
        ((median * (sigma * normal).exp()) as usize).clamp(1, most.max(1))
    }

    fn words(&mut self, n: usize) -> String {
        let words: Vec<&str> = (0..n).map(|_| WORDS[(self.next() % WORDS.len() as u64) as usize]).collect();
        words.join(" ")
    }
}

/// The chats of `shape`, in order of arrival.
pub fn plan(shape: &Shape) -> Vec<Chat> {
    let mut random = Random(shape.seed);
    let shared = match shape.workload {
        Workload::Prefix => random.words(SHARED_WORDS) + " ",
        Workload::Sharegpt
        | Workload::Intruder
        | Workload::Disconnects
        | Workload::Growing
        | Workload::Overload => String::new(),
    };
    let n_requests = match shape.workload {
        // All answers together have 2.5 times the tokens that fit in memory.
        Workload::Overload => (shape.memory_tokens * 5).div_ceil(2 * shape.max_tokens.max(1)).max(1),
        Workload::Sharegpt
        | Workload::Prefix
        | Workload::Intruder
        | Workload::Disconnects
        | Workload::Growing => shape.n_requests,
    };
    let mut at = 0.0;
    (0..n_requests)
        .map(|index| {
            at += match (shape.workload, shape.arrivals) {
                (Workload::Overload, Arrivals::Poisson | Arrivals::Bursty) => 0.0,
                (_, Arrivals::Poisson) => -random.unit().ln() / shape.rate,
                (_, Arrivals::Bursty) if index > 0 && index % BURST == 0 => BURST as f64 / shape.rate,
                (_, Arrivals::Bursty) => 0.0,
            };
            let mut turn = || {
                let n_answer = random.length(128.0, 0.9, shape.max_tokens);
                let n_words = random.length(90.0, 1.1, shape.max_words);
                PlannedTurn { text: shared.clone() + &random.words(n_words), n_answer }
            };
            let mut chat = Chat { at: Duration::from_secs_f64(at), turns: vec![turn()], hang_up_after: None };
            match shape.workload {
                Workload::Sharegpt | Workload::Prefix => {}
                Workload::Growing => chat.turns.extend([turn(), turn(), turn()]),
                Workload::Intruder if index == n_requests / 2 => {
                    chat.turns = vec![PlannedTurn { text: random.words(shape.intruder_words), n_answer: 16 }];
                }
                Workload::Intruder => {}
                Workload::Disconnects if index % 5 == 4 => {
                    let n_answer = chat.turns[0].n_answer as u64;
                    chat.hang_up_after = Some((random.next() % n_answer) as usize + 1);
                }
                Workload::Disconnects => {}
                Workload::Overload => {
                    chat.turns = vec![PlannedTurn { text: random.words(32), n_answer: shape.max_tokens }];
                }
            }
            chat
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shape(workload: Workload) -> Shape {
        Shape {
            workload,
            arrivals: Arrivals::Poisson,
            seed: 7,
            n_requests: 400,
            rate: 4.0,
            max_tokens: 256,
            max_words: 512,
            intruder_words: 5000,
            memory_tokens: 10_240,
        }
    }

    #[test]
    fn a_seed_gives_one_plan_and_another_seed_another() {
        for &workload in Workload::value_variants() {
            let shape = shape(workload);
            assert_eq!(plan(&shape), plan(&shape), "{workload:?}");
            assert_ne!(plan(&shape), plan(&Shape { seed: 8, ..shape }), "{workload:?}");
        }
    }

    #[test]
    fn arrivals_have_the_rate_that_was_asked_for() {
        for arrivals in [Arrivals::Poisson, Arrivals::Bursty] {
            let chats = plan(&Shape { arrivals, ..shape(Workload::Sharegpt) });
            assert!(chats.windows(2).all(|pair| pair[0].at <= pair[1].at));
            // 400 requests at 4 a second take 100 s, with a standard deviation of 5 s for Poisson.
            let last = chats[399].at.as_secs_f64();
            assert!((80.0..120.0).contains(&last), "{arrivals:?}: {last}");
        }
    }

    #[test]
    fn workloads_are_what_their_names_say() {
        let n_words = |chat: &Chat| chat.turns[0].text.split(' ').count();
        let prefix = plan(&shape(Workload::Prefix));
        let shared = |chat: &Chat| chat.turns[0].text.split(' ').take(2048).collect::<Vec<_>>().join(" ");
        assert!(prefix.iter().all(|chat| shared(chat) == shared(&prefix[0]) && n_words(chat) > 2048));
        let intruder = plan(&shape(Workload::Intruder));
        assert_eq!(intruder.iter().filter(|chat| n_words(chat) == 5000).count(), 1);
        let cut = plan(&shape(Workload::Disconnects));
        assert_eq!(cut.iter().filter(|chat| chat.hang_up_after.is_some()).count(), 80);
        assert!(plan(&shape(Workload::Growing)).iter().all(|chat| chat.turns.len() == 4));
        let overload = plan(&shape(Workload::Overload));
        assert_eq!(overload.iter().map(|chat| chat.turns[0].n_answer).sum::<usize>(), 25_600);
        assert!(overload.iter().all(|chat| chat.at.is_zero()));
        let lengths = plan(&shape(Workload::Sharegpt));
        assert!(lengths.iter().all(|chat| n_words(chat) <= 512 && chat.turns[0].n_answer <= 256));
    }
}
