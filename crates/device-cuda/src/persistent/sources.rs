//! The files of the kernels and, for shapes of heads that have none, the texts that NVRTC compiles instead.

use super::pattern::Layer;
use super::{Persistent, Rows};
use crate::kernels::{Kernels, source};

impl Persistent {
    /// A kernel's file and its name.
    pub fn kernel(&self, rows: Rows) -> (String, String) {
        let heads = self.decoder.heads;
        let shape = format!("{}_{}", heads.head_dim, heads.of_group());
        let kind = match rows {
            Rows::Several => "rows_",
            Rows::One if self.mixture().is_some() => "experts_",
            Rows::One => "",
        };
        let shape = format!("{kind}{}{shape}", self.kv_name);
        (format!("persistent/decode_{shape}.cu"), format!("persistent_decode_{shape}"))
    }

    /// Whether the decoder needs what kernels that are files lack (`PERSISTENT_RARE`).
    fn has_rare(&self) -> bool {
        let is_rare = |layer: &Layer| {
            let of_products =
                [layer.sinks, layer.output_bias, layer.down_bias, layer.expert_biases.map(|of| of[0])];
            of_products.iter().any(Option::is_some)
        };
        self.products.iter().any(|product| product.codec.is_rare())
            || self.mixture().is_some_and(|mixture| mixture.clamp.is_some())
            || self.decoder.layers.iter().any(is_rare)
    }

    /// Whether the kernels for all models of its kind are files.
    pub(super) fn has_files(&self) -> bool {
        !self.has_rare() && source(&self.kernel(Rows::One).0).is_some()
    }

    /// The text of a kernel's file, of which there may be none.
    pub(super) fn source(&self, rows: Rows) -> String {
        let (file, name) = self.kernel(rows);
        let rare = if self.has_rare() { "#define PERSISTENT_RARE\n" } else { "" };
        if let Some(text) = source(&file) {
            return format!("{rare}{text}");
        }
        let heads = self.decoder.heads;
        let (d, h) = (heads.head_dim, heads.of_group());
        let pages = match self.kv_name {
            "" => "PAGES_F16",
            "q8_0_" => "PAGES_Q8_0",
            _ => "PAGES_FP8",
        };
        match rows {
            Rows::One => {
                let mixture = self.mixture().is_some();
                format!(
                    "{rare}#include \"persistent/decode.cuh\"\nPERSISTENT_KERNEL({name}, {d}, {h}, {pages}, {mixture})\n"
                )
            }
            Rows::Several => {
                format!(
                    "{rare}#include \"persistent/decode_rows.cuh\"\nPERSISTENT_ROWS_KERNEL({name}, {d}, {h}, {pages})\n"
                )
            }
        }
    }

    /// The file of a kernel for all models, which is generated where there is none.
    pub fn general_file(&self, rows: Rows, kernels: &Kernels) -> String {
        let (file, _) = self.kernel(rows);
        match self.has_files() {
            true => file,
            false => kernels.generate(file.trim_end_matches(".cu"), self.source(rows), None),
        }
    }
}
