//! The choice of a persistent kernel's text: the general text of its kind, prebuilt if the decoder
//! needs nothing rare, otherwise with the codecs of the model.

use super::general::prebuilt;
use super::pattern::Layer;
use super::{General, Persistent, Rows};
use crate::kernels::Kernels;

impl Persistent {
    /// The general kernel that runs the decoder.
    pub fn kernel(&self, rows: Rows) -> General {
        let heads = self.decoder.heads;
        General {
            rows,
            mixture: self.mixture().is_some(),
            pages: self.pages,
            head_dim: heads.head_dim,
            of_group: heads.of_group(),
        }
    }

    /// True if the decoder needs code that prebuilt kernels lack (`PERSISTENT_HAS_RARE`).
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

    /// True if a prebuilt kernel runs the decoder.
    pub(super) fn is_prebuilt(&self, rows: Rows) -> bool {
        !self.has_rare() && prebuilt().any(|kernel| kernel == self.kernel(rows))
    }

    /// The text of the general kernel.
    pub(super) fn source(&self, rows: Rows) -> String {
        let codecs = || self.products.iter().fold(0, |codecs, product| codecs | 1 << product.codec.number);
        self.kernel(rows).text((!self.is_prebuilt(rows)).then(codecs))
    }

    /// The file of the general kernel, which is generated unless the kernel is prebuilt.
    pub fn general_file(&self, rows: Rows, kernels: &Kernels) -> String {
        let file = self.kernel(rows).file();
        match self.is_prebuilt(rows) {
            true => file,
            false => kernels.generate(file.trim_end_matches(".cu"), self.source(rows), None),
        }
    }
}
