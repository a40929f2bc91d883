//! Choices that differ between chips: fusion rules, passes, sizes of threadgroups, thresholds. They
//! are data, by GPU family and cores.

use crate::geometry::{GEMV_ROWS, MOST_SPLITS};
use crate::gpu::Facts;
use device::{FusedKind, KvType};
use device_lower::fusion;
use device_lower::passes::{self, Pass};

/// KV types, the default first.
pub const KV_TYPES: &[KvType] = &[KvType::F16, KvType::Q8_0, KvType::F32];

/// The choices for a chip. None was measured: they follow published facts about the chips (see
/// docs/metal.md).
#[derive(Clone, Debug, PartialEq)]
pub struct Profile {
    /// `M4 Pro`, or the GPU's own name.
    pub chip: String,
    /// Kinds of fused Ops. Each saves a dispatch or a pass over activations on every chip.
    pub rules: &'static [FusedKind],
    /// Passes from fused nodes to units, in order.
    pub passes: &'static [Pass],
    /// Threads of a threadgroup that finds the largest of a vocabulary.
    pub argmax_threads: u32,
    /// Maximum number of threads of a threadgroup that normalises a row.
    pub norm_threads: u32,
    /// SIMD-groups that a GEMV should have in all, so that every core hides its memory's latency.
    pub gemv_simdgroups: u32,
    /// SIMD-groups of a threadgroup of a GEMV whose weight rows are not shared: 1 to 16.
    pub gemv_threadgroup: u32,
    /// Rows of a weight that a SIMD-group multiplies with one row of x at once, 4 or 8, in products
    /// that then still have [`Self::gemv_simdgroups`]. Eight halve the loads of x and its norm.
    pub weight_rows: u32,
    /// Maximum number of rows of x that one SIMD-group multiplies with the weights that it loads:
    /// 2, 4 or 8. More read weights fewer times and need more registers (`kernels/NOTES.md`).
    pub product_rows: u32,
    /// SIMD-groups of a threadgroup that attends with few rows: 1 to 8.
    pub attention_simdgroups: u32,
    /// SIMD-groups of a threadgroup of a GEMV that first computes its row, at most 16. The row is
    /// the sum of an attention's parts, or a branch after its norm. Each threadgroup computes the
    /// row, so fewer, larger threadgroups read less.
    pub merged_simdgroups: u32,
    /// Number of positions from which on a row's attention is split over threadgroups. The next
    /// projection, or a dispatch of its own, merges their results.
    pub split_positions: usize,
    /// Threadgroups that attention of one row should have in all where it is split.
    pub split_threadgroups: usize,
    /// Lanes that share a key where rows are decoded: 4, 8 or 16, and fewer where more query heads
    /// share it.
    pub key_lanes: u32,
    /// Steps that may be in flight.
    pub in_flight: usize,
    /// Rows of a tile where there are more than 32: 32 or 64.
    pub tile_rows: u32,
    /// Rows of a prompt that are computed together, where `--chunk` does not say.
    pub prompt_chunk: usize,
    /// Rows of a span from which on recurrent layers take 16 positions at a time, as matrix
    /// products, and not one by one (`kernels/scan_chunks.h`).
    pub scan_rows: usize,
    /// True if the tiles of prompts are multiplied on the tensor units of Metal 4. Only the
    /// emulator has executed these kernels.
    pub tensor: bool,
}

/// Choices that differ between GPU families.
struct Family {
    /// Apple's number of the first GPU family with these values.
    number: u32,
    /// Like [`Profile::gemv_simdgroups`], for each core.
    gemv_simdgroups: u32,
    /// Value of [`Profile::merged_simdgroups`].
    merged_simdgroups: u32,
}

/// M1 and M2; M3 and later.
///
/// The first two reserve registers and threadgroup memory for the largest need of a kernel, and
/// have room for some 24 SIMD-groups per core. Threadgroups of 16 would leave a third of a core
/// empty while they wait at their barrier. From family 9 on both are given out as they are used
/// (Apple, "Explore GPU advancements in M3 and A17 Pro", 2023).
const FAMILIES: [Family; 2] = [
    Family { number: 7, gemv_simdgroups: 12, merged_simdgroups: 8 },
    Family { number: 9, gemv_simdgroups: 16, merged_simdgroups: 16 },
];

impl Profile {
    /// The profile of a GPU. A family that is not listed has the profile of the last earlier one.
    pub fn new(facts: &Facts) -> Profile {
        // An M4 Pro's value if the system does not report it.
        let cores = if facts.n_cores == 0 { 20 } else { facts.n_cores };
        let [first, ..] = &FAMILIES;
        let family = FAMILIES.iter().rfind(|family| family.number <= facts.family).unwrap_or(first);
        Profile {
            chip: facts.name.trim_start_matches("Apple ").to_owned(),
            rules: fusion::ALL,
            passes: passes::ALL,
            argmax_threads: facts.max_threads.min(1024),
            norm_threads: 256,
            gemv_simdgroups: family.gemv_simdgroups * cores as u32,
            gemv_threadgroup: 2,
            weight_rows: 8,
            product_rows: 8,
            // One step runs and one waits, so the GPU never idles. Two more cover delays of the
            // host.
            in_flight: 4,
            tile_rows: 64,
            // Each chunk reads the weights once: 434 MB of a 0.6B model take 1.8 of the 83 ms that
            // its products take with 512 rows (docs/metal.md). Twice as many rows would save 1 %,
            // and double the memory of activations.
            prompt_chunk: 512,
            attention_simdgroups: 8,
            merged_simdgroups: family.merged_simdgroups,
            // At this number a head has two tiles of 32 positions for each of eight SIMD-groups.
            // Unsplit attention would keep 4 to 8 threadgroups busy on 20 cores.
            split_positions: 256,
            // Two of eight SIMD-groups each hide a core's latency; every further split is read by
            // every threadgroup that merges.
            split_threadgroups: 2 * cores,
            // 64 neighbouring bytes of a key in F16, where 4 lanes read 32.
            key_lanes: 8,
            // A chunk costs the same with any number of positions: the multiply-adds of 16 single
            // positions, and the bytes of five (docs/metal.md).
            scan_rows: 12,
            // Nobody has run them yet.
            tensor: false,
        }
    }

    /// Prints the profile as TOML, one field a line, for `ingle metal-selftest --chip-profile`.
    pub fn to_text(&self) -> String {
        let rules: Vec<String> = self.rules.iter().map(|rule| format!("\"{rule}\"")).collect();
        let mut text = format!("# {}\nrules = [{}]\n", self.chip, rules.join(", "));
        for (name, value) in self.numbers() {
            text += &format!("{name} = {value}\n");
        }
        text
    }

    /// The fields that are numbers.
    fn numbers(&self) -> [(&'static str, usize); 15] {
        [
            ("gemv_simdgroups", self.gemv_simdgroups as usize),
            ("gemv_threadgroup", self.gemv_threadgroup as usize),
            ("weight_rows", self.weight_rows as usize),
            ("product_rows", self.product_rows as usize),
            ("attention_simdgroups", self.attention_simdgroups as usize),
            ("merged_simdgroups", self.merged_simdgroups as usize),
            ("norm_threads", self.norm_threads as usize),
            ("argmax_threads", self.argmax_threads as usize),
            ("split_positions", self.split_positions),
            ("split_threadgroups", self.split_threadgroups),
            ("key_lanes", self.key_lanes as usize),
            ("in_flight", self.in_flight),
            ("tile_rows", self.tile_rows as usize),
            ("prompt_chunk", self.prompt_chunk),
            ("scan_rows", self.scan_rows),
        ]
    }

    /// Returns this profile with the fields of `text` replaced ([`Self::to_text`]).
    ///
    /// # Errors
    /// Number of a line that is no field, or whose value no kernel supports, and what was expected.
    pub fn with_text(&self, text: &str) -> Result<Profile, String> {
        let mut profile = self.clone();
        for (number, line) in (1..).zip(text.lines()) {
            let line = line.split('#').next().unwrap_or("").trim();
            if line.is_empty() {
                continue;
            }
            let wrong = |what: String| Err(format!("line {number}: {what}"));
            let Some((name, value)) = line.split_once('=').map(|(name, value)| (name.trim(), value.trim()))
            else {
                return wrong(format!("'{line}', expected NAME = VALUE"));
            };
            if name == "rules" {
                profile.rules = match rules_of(value) {
                    Ok(rules) => rules,
                    Err(what) => return wrong(what),
                };
                continue;
            }
            let Some((_, range)) = RANGES.iter().find(|(other, _)| *other == name) else {
                let known: Vec<_> = RANGES.iter().map(|(name, _)| *name).collect();
                return wrong(format!("no field '{name}'; there are rules, {}", known.join(", ")));
            };
            let n: usize = match value.replace('_', "").parse() {
                Ok(n) if range.contains(&n) => n,
                _ => {
                    let (least, most) = (range.start(), range.end());
                    return wrong(format!("{name} = {value}, expected a number from {least} to {most}"));
                }
            };
            match name {
                "gemv_simdgroups" => profile.gemv_simdgroups = n as u32,
                "gemv_threadgroup" => profile.gemv_threadgroup = n as u32,
                "attention_simdgroups" => profile.attention_simdgroups = n as u32,
                "merged_simdgroups" => profile.merged_simdgroups = n as u32,
                "norm_threads" if n.is_multiple_of(32) => profile.norm_threads = n as u32,
                "argmax_threads" if n.is_multiple_of(32) => profile.argmax_threads = n as u32,
                "split_positions" => profile.split_positions = n,
                "split_threadgroups" => profile.split_threadgroups = n,
                "scan_rows" => profile.scan_rows = n,
                "prompt_chunk" => profile.prompt_chunk = n,
                "in_flight" => profile.in_flight = n,
                "key_lanes" if n.is_power_of_two() => profile.key_lanes = n as u32,
                "weight_rows" if n.is_power_of_two() => profile.weight_rows = n as u32,
                "product_rows" if n.is_power_of_two() => profile.product_rows = n as u32,
                "tile_rows" if n == 32 || n == 64 => profile.tile_rows = n as u32,
                _ => {
                    let expected = "a multiple of 32; of tile_rows 32 or 64; of key_lanes 4, 8 or 16; of weight_rows 4 or 8; of product_rows 2, 4 or 8";
                    return wrong(format!("{name} = {n}, expected {expected}"));
                }
            }
        }
        Ok(profile)
    }

    /// Lanes that share a key for `n_heads` query heads. Each lane has a sum of every key and head
    /// in registers, 32 at most.
    pub fn key_lanes(&self, n_heads: usize) -> u32 {
        let most = 32 / (n_heads.max(1) as u32).next_power_of_two();
        self.key_lanes.min(most).max(4)
    }

    /// Rows of weights that a SIMD-group of a GEMV of one row computes, of products of `n_rows`
    /// rows of weights in all.
    pub fn weight_rows(&self, n_rows: usize) -> usize {
        let wide = self.weight_rows as usize;
        if n_rows.div_ceil(wide) < self.gemv_simdgroups as usize { GEMV_ROWS } else { wide }
    }

    /// SIMD-groups of a GEMV's threadgroup, and the number of them that share the same rows.
    /// `n_blocks`: blocks of rows; `spans_per_lane`: spans of a row for each lane.
    pub fn gemv_shape(&self, n_blocks: usize, spans_per_lane: usize) -> (u32, u32) {
        let mut split = 1;
        while split < 8
            && n_blocks as u32 * split < self.gemv_simdgroups
            && spans_per_lane as u32 >= 2 * split
        {
            split *= 2;
        }
        (split.max(self.gemv_threadgroup), split)
    }

    /// Blocks of rows for each SIMD-group of a GEMV that first computes its input row.
    /// `n_simdgroups`: SIMD-groups needed for one block each. Each core keeps two of its loads.
    pub fn passes(&self, n_simdgroups: usize) -> usize {
        n_simdgroups.div_ceil(2 * self.gemv_simdgroups as usize).max(1)
    }

    /// Threadgroups that share the positions of a row that unsplit would have `n_threadgroups`.
    pub fn n_splits(&self, n_threadgroups: usize) -> usize {
        self.split_threadgroups.div_ceil(n_threadgroups.max(1)).clamp(2, MOST_SPLITS)
    }

    /// Threads for a norm of `cols` columns: whole SIMD-groups, about four columns a thread.
    pub fn norm_threads(&self, cols: usize) -> u32 {
        let threads = (cols as u32).div_ceil(4).next_multiple_of(32);
        threads.clamp(32, self.norm_threads)
    }
}

/// The values of each field that kernels support.
const RANGES: [(&str, std::ops::RangeInclusive<usize>); 15] = [
    ("gemv_simdgroups", 1..=65_536),
    ("gemv_threadgroup", 1..=16),
    ("weight_rows", 4..=8),
    ("product_rows", 2..=8),
    ("attention_simdgroups", 1..=8),
    ("merged_simdgroups", 1..=16),
    ("norm_threads", 32..=1024),
    ("argmax_threads", 32..=1024),
    ("split_positions", 1..=usize::MAX),
    ("split_threadgroups", 1..=65_536),
    ("key_lanes", 4..=16),
    ("in_flight", 1..=16),
    ("tile_rows", 32..=64),
    ("prompt_chunk", 1..=65_536),
    ("scan_rows", 1..=usize::MAX),
];

/// The rules of a list of names in brackets.
fn rules_of(list: &str) -> Result<&'static [FusedKind], String> {
    let inner = list.strip_prefix('[').and_then(|rest| rest.strip_suffix(']'));
    let inner = inner.ok_or_else(|| format!("rules = {list}, expected names in brackets"))?;
    let mut rules = vec![];
    for name in inner.split(',').map(|name| name.trim().trim_matches('"')).filter(|name| !name.is_empty()) {
        let rule = fusion::ALL.iter().find(|rule| rule.to_string() == name).ok_or_else(|| {
            let known: Vec<_> = fusion::ALL.iter().map(|rule| rule.to_string()).collect();
            format!("no rule '{name}'; there are {}", known.join(", "))
        })?;
        rules.push(*rule);
    }
    // A process reads one file.
    Ok(Vec::leak(rules))
}

/// GPU cores of the largest configuration of each chip, as published.
const CORES: [(&str, usize); 17] = [
    ("M1 Ultra", 64),
    ("M1 Max", 32),
    ("M1 Pro", 16),
    ("M1", 8),
    ("M2 Ultra", 76),
    ("M2 Max", 38),
    ("M2 Pro", 19),
    ("M2", 10),
    ("M3 Ultra", 80),
    ("M3 Max", 40),
    ("M3 Pro", 18),
    ("M3", 10),
    ("M4 Max", 40),
    ("M4 Pro", 20),
    ("M4", 10),
    ("M5 Max", 40),
    ("M5", 10),
];

/// GPU cores of the chip with this name; 0 for an unknown chip. The system's own count of cores
/// comes first (`cores.rs`).
pub fn cores_of(name: &str) -> usize {
    CORES.iter().find(|(chip, _)| name.trim_start_matches("Apple ") == *chip).map_or(0, |(_, cores)| *cores)
}

/// Apple's GPU family of the chip with this name: 7 for M1, 8 for M2, 9 for M3, M4 and unknown
/// chips, 10 for M5.
#[cfg(all(target_os = "linux", target_arch = "x86_64"))]
pub fn family_of(name: &str) -> u32 {
    let name = name.trim_start_matches("Apple ");
    [("M1", 7), ("M2", 8), ("M5", 10)]
        .iter()
        .find(|(chip, _)| name.starts_with(chip))
        .map_or(9, |(_, family)| *family)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::gpu::Common;

    fn profile(name: &str, family: u32) -> Profile {
        let n_cores = cores_of(name);
        assert!(n_cores > 0, "{name}");
        Profile::new(&Facts {
            name: format!("Apple {name}"),
            family,
            n_cores,
            common: Common { max_buffer_bytes: 1 << 36, subgroup_width: 32, max_threads: 1024 },
            page_bytes: 16 << 10,
            max_threadgroup_bytes: 32 << 10,
            has_tensors: false,
            is_emulated: false,
        })
    }

    /// Every chip has a profile that kernels can run, and a larger chip is given more to do at
    /// once.
    #[test]
    fn every_chip_has_a_profile() {
        for (name, cores) in CORES {
            let family = [("M1", 7), ("M2", 8), ("M3", 9), ("M4", 9), ("M5", 10)];
            let family = family.iter().find(|(chip, _)| name.starts_with(chip)).unwrap().1;
            let p = profile(name, family);
            assert_eq!(p.chip, name);
            assert!((1..=8).contains(&p.attention_simdgroups) && (1..=16).contains(&p.merged_simdgroups));
            assert_eq!(p.split_threadgroups, 2 * cores);
            assert_eq!(p.gemv_simdgroups, if family < 9 { 12 } else { 16 } * cores as u32);
            assert!(!p.tensor, "nobody has run it");
            // Four rows of a weight each: 1024 rows are too few for a large chip, 64k enough for
            // all.
            let (simdgroups, split) = p.gemv_shape(256, 8);
            assert!(simdgroups >= split && (split > 1) == (p.gemv_simdgroups > 256), "{name}: {split}");
            assert_eq!(p.gemv_shape(16384, 8), (2, 1));
            // Eight rows at once where that leaves enough SIMD-groups.
            let enough = 8 * p.gemv_simdgroups as usize;
            assert_eq!([enough - 8, enough - 7].map(|n| p.weight_rows(n)), [4, 8]);
            assert_eq!([1, 2, 4, 5, 8].map(|n| p.key_lanes(n)), [8, 8, 8, 4, 4]);
            assert!((2..=MOST_SPLITS).contains(&p.n_splits(8)));
            // SIMD-groups of a GEMV that first computes its row: enough for its work, and at most
            // two loads of the chip.
            assert_eq!([1, 2 * p.gemv_simdgroups as usize].map(|n| p.passes(n)), [1, 1]);
            assert!(65_536 / p.passes(65_536) <= 2 * p.gemv_simdgroups as usize);
        }
        // A printed profile is read back, and values that no kernel supports are refused.
        let m1 = profile("M1", 7);
        let other = Profile {
            in_flight: 2,
            rules: &fusion::ALL[..3],
            split_positions: 300,
            tile_rows: 32,
            prompt_chunk: 96,
            ..m1.clone()
        };
        assert_eq!(m1.with_text(&other.to_text()), Ok(other));
        for (bad, why) in [
            ("in_flight = 0", "from 1 to 16"),
            ("attention_simdgroups = 9", "from 1 to 8"),
            ("norm_threads = 100", "a multiple of 32"),
            ("tile_rows = 48", "32 or 64"),
            ("key_lanes = 12", "4, 8 or 16"),
            ("weight_rows = 6", "4 or 8"),
            ("rules = [\"all\"]", "no rule 'all'"),
            ("speed = 1", "no field 'speed'"),
            ("in_flight", "expected NAME = VALUE"),
        ] {
            let error = m1.with_text(&format!("# a comment\n{bad}\n")).unwrap_err();
            assert!(error.starts_with("line 2: ") && error.contains(why), "{error}");
        }
        // A GPU newer than the table is treated as the last in it; one of unknown cores as an M4
        // Pro.
        assert_eq!(profile("M5", 12), profile("M5", 10));
        assert_eq!(cores_of("Apple M9"), 0);
    }
}
