//! The files of the kernels, and the texts that NVRTC compiles where no file has what a decoder needs.

use super::pattern::Layer;
use super::{Persistent, Rows};
use crate::kernels::{Kernels, source};

impl Persistent {
    /// A kernel's file and its name.
    pub fn kernel(&self, rows: Rows) -> (String, String) {
        let heads = self.decoder.heads;
        let shape = format!("{}_{}", heads.head_dim, heads.of_group());
        let kind = match (rows, self.mixture()) {
            (Rows::One, None) => "",
            (Rows::One, Some(_)) => "experts_",
            (Rows::Several, None) => "rows_",
            (Rows::Several, Some(_)) => "rows_experts_",
        };
        let shape = format!("{kind}{}{shape}", self.kv_name);
        (format!("persistent/decode_{shape}.cu"), format!("persistent_decode_{shape}"))
    }

    /// Whether the decoder needs what kernels that are files lack (`PERSISTENT_HAS_RARE`).
    pub(super) fn has_rare(&self) -> bool {
        let is_rare = |layer: &Layer| {
            let of_products =
                [layer.sinks, layer.output_bias, layer.down_bias, layer.expert_biases.map(|of| of[0])];
            of_products.iter().any(Option::is_some)
        };
        self.products.iter().any(|product| product.codec.is_rare())
            || self.mixture().is_some_and(|mixture| mixture.clamp.is_some())
            || self.decoder.layers.iter().any(is_rare)
    }

    /// Whether a kernel for all models of its kind is a file.
    pub(super) fn has_file(&self, rows: Rows) -> bool {
        !self.has_rare() && source(&self.kernel(rows).0).is_some()
    }

    /// The text of a kernel's file or, where there is none, one with what this model needs.
    pub(super) fn source(&self, rows: Rows) -> String {
        let (file, name) = self.kernel(rows);
        if let Some(text) = source(&file).filter(|_| self.has_file(rows)) {
            return text.to_owned();
        }
        let heads = self.decoder.heads;
        let (d, h) = (heads.head_dim, heads.of_group());
        let pages = match self.kv_name {
            "" => "PAGES_F16",
            "q8_0_" => "PAGES_Q8_0",
            _ => "PAGES_FP8",
        };
        let (header, macro_name) = match rows {
            Rows::One => ("decode", "PERSISTENT_KERNEL"),
            Rows::Several => ("decode_rows", "PERSISTENT_ROWS_KERNEL"),
        };
        let codecs = self.products.iter().fold(0u32, |codecs, product| codecs | 1 << product.codec.number);
        let mixture = self.mixture().is_some();
        format!(
            "#define PERSISTENT_CODECS {codecs}\n#include \"persistent/{header}.cuh\"\n\
             {macro_name}({name}, {d}, {h}, {pages}, {mixture})\n"
        )
    }

    /// The file of a kernel for all models, which is generated where there is none.
    pub fn general_file(&self, rows: Rows, kernels: &Kernels) -> String {
        let (file, _) = self.kernel(rows);
        match self.has_file(rows) {
            true => file,
            false => kernels.generate(file.trim_end_matches(".cu"), self.source(rows), None),
        }
    }
}
