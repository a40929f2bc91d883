//! The files of the kernels and, for shapes of heads that have none, the texts that NVRTC compiles instead.

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

    /// The text of a kernel's file, of which there may be none.
    pub(super) fn source(&self, rows: Rows) -> String {
        let (file, name) = self.kernel(rows);
        if let Some(text) = source(&file) {
            return text.to_owned();
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
                    "#include \"persistent/decode.cuh\"\nPERSISTENT_KERNEL({name}, {d}, {h}, {pages}, {mixture})\n"
                )
            }
            Rows::Several => {
                format!(
                    "#include \"persistent/decode_rows.cuh\"\nPERSISTENT_ROWS_KERNEL({name}, {d}, {h}, {pages})\n"
                )
            }
        }
    }

    /// The file of a kernel for all models, which is generated where there is none.
    pub fn general_file(&self, rows: Rows, kernels: &Kernels) -> String {
        let (file, _) = self.kernel(rows);
        match source(&file) {
            Some(_) => file,
            None => kernels.generate(file.trim_end_matches(".cu"), self.source(rows), None),
        }
    }
}
