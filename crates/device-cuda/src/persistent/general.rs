//! General kernels: one for each kind of decoder, type of pages and shape of heads, which runs
//! every model of that kind. The build script includes this file and prints the prebuilt kernels,
//! so that it uses nothing else of the crate.

/// The number of rows that a persistent kernel computes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Rows {
    /// One row (`kernels/persistent/decode.cuh`).
    One,
    /// Up to eight rows (`kernels/persistent/decode_rows.cuh`).
    Several,
}

/// The type of keys and values in a kernel's pages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pages {
    /// Halves.
    F16,
    /// Blocks of 32 bytes with a scale.
    Q8_0,
    /// FP8 with a scale for each vector.
    Fp8,
}

/// A general kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct General {
    /// The rows that the kernel computes.
    pub rows: Rows,
    /// True if some layers are mixtures of experts.
    pub mixture: bool,
    /// The type of the pages.
    pub pages: Pages,
    /// Columns of a head.
    pub head_dim: usize,
    /// Query heads of a KV head.
    pub of_group: usize,
}

/// Shapes of heads of the prebuilt kernels: columns of a head, query heads of a KV head.
pub const PREBUILT_SHAPES: [(usize, usize); 7] =
    [(64, 2), (64, 3), (64, 4), (128, 2), (128, 3), (128, 4), (128, 8)];

impl General {
    /// The kernel's name without its prefix.
    fn short_name(&self) -> String {
        let rows = match self.rows {
            Rows::One => "",
            Rows::Several => "rows_",
        };
        let mixture = if self.mixture { "experts_" } else { "" };
        let pages = match self.pages {
            Pages::F16 => "",
            Pages::Q8_0 => "q8_0_",
            Pages::Fp8 => "fp8_",
        };
        format!("{rows}{mixture}{pages}{}_{}", self.head_dim, self.of_group)
    }

    /// The path of the kernel's text among the sources.
    pub fn file(&self) -> String {
        format!("persistent/decode_{}.cu", self.short_name())
    }

    /// The name of the kernel in its text.
    pub fn name(&self) -> String {
        format!("persistent_decode_{}", self.short_name())
    }

    /// The kernel's text. `codecs` are the bits of the codecs that it multiplies. A kernel without
    /// them multiplies all codecs but the rare ones (`kernels/persistent/units.cuh`).
    pub fn text(&self, codecs: Option<u32>) -> String {
        let codecs = codecs.map_or(String::new(), |bits| format!("#define PERSISTENT_CODECS {bits}\n"));
        let (header, kernel) = match self.rows {
            Rows::One => ("decode", "PERSISTENT_KERNEL"),
            Rows::Several => ("decode_rows", "PERSISTENT_ROWS_KERNEL"),
        };
        let pages = match self.pages {
            Pages::F16 => "PAGES_F16",
            Pages::Q8_0 => "PAGES_Q8_0",
            Pages::Fp8 => "PAGES_FP8",
        };
        let (name, d, h) = (self.name(), self.head_dim, self.of_group);
        let mixture = self.mixture;
        format!(
            "{codecs}#include \"persistent/{header}.cuh\"\n{kernel}({name}, {d}, {h}, {pages}, {mixture})\n"
        )
    }
}

/// The kernels that an archive has for machines without NVRTC. There is none for several rows of a
/// mixture: every machine that runs those steps fast has NVRTC, and such a kernel takes minutes to
/// compile.
pub fn prebuilt() -> impl Iterator<Item = General> {
    let kinds = [(Rows::One, false), (Rows::One, true), (Rows::Several, false)];
    let pages = [Pages::F16, Pages::Q8_0, Pages::Fp8];
    let of_shape = move |(head_dim, of_group): (usize, usize)| {
        kinds.into_iter().flat_map(move |(rows, mixture)| {
            pages.into_iter().map(move |pages| General { rows, mixture, pages, head_dim, of_group })
        })
    };
    PREBUILT_SHAPES.into_iter().flat_map(of_shape)
}
