//! Arguments of kernels, as `kernels/arguments.h` and `kernels/step.h` declare them; a test compares them with the headers.

use bytemuck::{Pod, Zeroable};

macro_rules! arguments {
    ($($(#[$doc:meta])* $name:ident { $($(#[$field_doc:meta])* $field:ident: $type:ty,)* })*) => {
        $($(#[$doc])*
        #[derive(Clone, Copy, Debug, Default, PartialEq, Pod, Zeroable)]
        #[repr(C)]
        pub struct $name { $($(#[$field_doc])* pub $field: $type,)* })*

        /// Name, size, and the fields with their offsets of every struct.
        #[cfg(test)]
        pub const LAYOUTS: &[(&str, usize, &[(&str, usize)])] = &[
            $((stringify!($name), size_of::<$name>(),
               &[$((stringify!($field), std::mem::offset_of!($name, $field)),)*]),)*
        ];
    };
}

arguments! {
    /// Everything that multiplies with weights (`linear/arguments.h`).
    LinearArguments {
        /// Columns of x and of each weight.
        n_in: u32,
        /// Rows of x for each token; 0: for each output.
        per_token: u32,
        /// Floats from one row of x to the next.
        x_stride: u32,
        /// Bytes of a weight's row, without planes.
        row_bytes: u32,
        /// Bytes of a row of its plane of scales.
        scale_bytes: u32,
        /// Rows of weight 0.
        n_out_0: u32,
        /// Of weight 1.
        n_out_1: u32,
        /// Of weight 2.
        n_out_2: u32,
        /// Of the norm.
        eps: f32,
        /// The bound.
        softcap: f32,
        /// Experts: matrices.
        n_experts: u32,
        /// Experts: those of a row.
        experts_per_row: u32,
        /// Floats from one row of what the product is a gate of to the next.
        up_stride: u32,
        reserved0: u32,
        reserved1: u32,
        reserved2: u32,
    }
    /// `linear_<type>_merged` (`linear/arguments.h`)
    MergedArguments {
        /// One weight, one row.
        linear: LinearArguments,
        /// Of the attention.
        n_heads: u32,
        /// Columns of a head.
        head_dim: u32,
        /// Parts of each head.
        n_splits: u32,
        /// Whether heads have a sink.
        has_sinks: u32,
    }
    /// `expert_linear_<type>_gemv` (`linear/arguments.h`)
    ExpertArguments {
        /// The experts' own.
        experts: LinearArguments,
        /// Columns of the dense weight beside them.
        beside_n_in: u32,
        /// Bytes of a row of it, without planes.
        beside_row_bytes: u32,
        /// Bytes of a row of its plane of scales.
        beside_scale_bytes: u32,
        /// Rows of it.
        beside_n_out: u32,
    }
    /// `join` (`linear/arguments.h`)
    JoinArguments {
        /// Rows for each token.
        per_token: u32,
        /// Columns.
        cols: u32,
        /// Parts of a row of the other of a pair.
        n_parts: u32,
        /// Of the sum.
        factor: f32,
        /// Of the norm of the branch.
        eps: f32,
        /// Of the norm of the first of a pair.
        first_eps: f32,
        /// Of that of the other.
        other_eps: f32,
        /// Of the norms of the sum.
        norm_eps: f32,
    }
    /// `linear_<type>_joined` (`linear/arguments.h`)
    JoinedArguments {
        /// One row.
        linear: LinearArguments,
        /// What makes the row.
        join: JoinArguments,
        /// Blocks that a SIMD-group makes.
        passes: u32,
        reserved0: u32,
        reserved1: u32,
        reserved2: u32,
    }
    /// `embed` (`linear/arguments.h`)
    EmbedArguments {
        /// Columns of the table and of out.
        n_cols: u32,
        /// Bytes of a row of the table, without planes.
        row_bytes: u32,
        /// Bytes of a row of its plane of scales.
        scale_bytes: u32,
        /// Factor.
        scale: f32,
    }
    /// Sizes of a step.
    Step {
        /// Tokens.
        n_rows: u32,
        /// Rows whose logits are wanted.
        n_outputs: u32,
        /// Sequences.
        n_spans: u32,
        /// KV groups.
        n_groups: u32,
        /// Entries of a page table.
        pages_per_table: u32,
        /// Tokens that a chain has chosen so far.
        n_chained: u32,
        /// Tokens before the chain that have penalties.
        n_recent: u32,
        reserved: u32,
    }
    /// How the tokens of a chain are chosen (`sampling/arguments.h`)
    Sampling {
        /// Logits of a row.
        n_vocab: u32,
        /// Tokens that are kept; 0: all.
        top_k: u32,
        /// Part of their probability that is kept, in 2^-32, at least 1; 0: all.
        nucleus: u32,
        /// Last tokens that have penalties.
        window: u32,
        /// Divides the logits.
        temperature: f32,
        /// Logarithm of the part of the best's probability that a token must have.
        floor: f32,
        /// Divides or multiplies logits of recent tokens.
        repeat: f32,
        /// Taken from them.
        presence: f32,
        /// Taken from them for each occurrence.
        frequency: f32,
        reserved0: u32,
        reserved1: u32,
        reserved2: u32,
    }
    /// Consecutive rows of one sequence.
    Span {
        /// The first row.
        first_row: u32,
        /// How many.
        n_rows: u32,
        /// Position of the first in its sequence.
        first_position: u32,
        reserved: u32,
    }
    /// Element-wise kernels.
    ElementArguments {
        /// Rows for each token; 0: for each output.
        per_token: u32,
        /// Columns.
        cols: u32,
        /// A factor, or a cap.
        factor: f32,
        reserved: u32,
    }
    /// `columns`
    ColumnsArguments {
        /// Rows for each token.
        per_token: u32,
        /// Columns of x.
        from: u32,
        /// The first one taken.
        first: u32,
        /// Columns of out.
        to: u32,
    }
    /// `rms_norm`, `layer_norm`
    NormArguments {
        /// Rows for each token.
        per_token: u32,
        /// Columns of a row.
        cols: u32,
        /// Columns normalised together.
        group: u32,
        /// Added to the mean square.
        eps: f32,
    }
    /// How heads turn.
    TurnArguments {
        /// Heads.
        n_heads: u32,
        /// Columns of a head that turn.
        n_dims: u32,
        /// On cosine and sine.
        scale: f32,
        /// Of the norm before.
        eps: f32,
    }
    /// `rope`
    RopeArguments {
        /// Columns of a head.
        head_dim: u32,
        reserved0: u32,
        reserved1: u32,
        reserved2: u32,
        /// How they turn.
        turn: TurnArguments,
    }
    /// Where keys and values of a layer lie.
    PagesArguments {
        page_bytes_low: u32,
        page_bytes_high: u32,
        layer_offset_low: u32,
        layer_offset_high: u32,
        /// Which page table.
        group: u32,
        /// Positions of a page.
        page_len: u32,
        /// Heads.
        n_kv_heads: u32,
        /// Columns of a head.
        head_dim: u32,
    }
    /// Attention (`attention/arguments.h`)
    AttentionArguments {
        /// Where the layer lies.
        pages: PagesArguments,
        /// Query heads.
        n_heads: u32,
        /// Positions of a memory.
        n_positions: u32,
        /// Positions that a row sees.
        window: u32,
        /// Threadgroups that share a row's positions.
        n_splits: u32,
        /// On the scores.
        scale: f32,
        /// Bound of the scores.
        softcap: f32,
        /// Heads whose scores are wanted.
        n_chosen: u32,
        /// Of the norm of value heads.
        v_eps: f32,
        /// Norm and turn of query heads.
        q: TurnArguments,
        /// Of key heads.
        k: TurnArguments,
    }
    /// `kv_write`
    KvWriteArguments {
        /// Where.
        pages: PagesArguments,
    }
    /// `qk_rope_kv`
    QkRopeKvArguments {
        /// Where.
        pages: PagesArguments,
        /// Query heads; none: they are not part of it.
        q: TurnArguments,
        /// Key heads.
        k: TurnArguments,
        /// Of the norm of value heads.
        v_eps: f32,
        reserved0: u32,
        reserved1: u32,
        reserved2: u32,
    }
    /// `route`
    RouteArguments {
        /// Rows for each token.
        per_token: u32,
        /// Columns.
        n_experts: u32,
        /// Chosen ones.
        k: u32,
        /// On every weight.
        factor: f32,
    }
    /// `expert_sum`
    ExpertSumArguments {
        /// Rows for each token.
        per_token: u32,
        /// Columns of out.
        cols: u32,
        /// Parts of a row of x.
        k: u32,
        reserved: u32,
    }
    /// `argmax`
    ArgmaxArguments {
        /// Columns of the row, or largest of its parts.
        cols: u32,
        reserved0: u32,
        reserved1: u32,
        reserved2: u32,
    }
    /// `peaks`
    PeakArguments {
        /// Vectors to read, or rounds.
        n_vectors: u32,
        reserved0: u32,
        reserved1: u32,
        reserved2: u32,
    }
    /// `unfold`
    UnfoldArguments {
        /// Rows of out for each token.
        per_token: u32,
        /// Columns of x.
        cols: u32,
        /// Rows of a window.
        size: u32,
        /// Rows from one window to the next.
        stride: u32,
    }
}

impl PagesArguments {
    /// Of a layer's part of the pages of its group.
    pub fn new(
        page_bytes: usize,
        layer_offset: usize,
        group: usize,
        page_len: usize,
        layer: &device::KvLayer,
    ) -> Self {
        let low = |n: usize| n as u64 as u32;
        let high = |n: usize| (n as u64 >> 32) as u32;
        PagesArguments {
            page_bytes_low: low(page_bytes),
            page_bytes_high: high(page_bytes),
            layer_offset_low: low(layer_offset),
            layer_offset_high: high(layer_offset),
            group: group as u32,
            page_len: page_len as u32,
            n_kv_heads: layer.n_kv_heads as u32,
            head_dim: layer.head_dim as u32,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashMap;

    /// Size and fields of every struct of the headers, by the rules of C: 4-byte fields, or a struct declared before.
    fn declared() -> HashMap<String, (usize, Vec<(String, usize)>)> {
        let mut structs: HashMap<String, (usize, Vec<(String, usize)>)> = HashMap::new();
        let text =
            ["step.h", "arguments.h", "linear/arguments.h", "attention/arguments.h", "sampling/arguments.h"]
                .map(|file| crate::kernels::header(file).unwrap())
                .concat();
        let code: String =
            text.lines().map(|line| line.split("//").next().unwrap_or("").to_owned() + "\n").collect();
        for part in code.split("struct ").skip(1) {
            let (name, rest) = part.split_once('{').unwrap();
            let (body, _) = rest.split_once('}').unwrap();
            let (mut at, mut fields) = (0, vec![]);
            for field in body.split(';').map(str::trim).filter(|field| !field.is_empty()) {
                let (kind, field) = field.split_once(' ').unwrap();
                fields.push((field.trim().to_owned(), at));
                at += match kind {
                    "uint" | "float" | "int" => 4,
                    other => structs[other].0,
                };
            }
            structs.insert(name.trim().to_owned(), (at, fields));
        }
        structs
    }

    #[test]
    fn structs_are_those_of_the_headers() {
        let declared = declared();
        // A tile of experts is the GPU's own.
        assert_eq!(declared.len(), LAYOUTS.len() + 1);
        assert_eq!(declared["ExpertTile"].0, crate::compile::experts::TILE_BYTES);
        for (name, size, fields) in LAYOUTS {
            let (declared_size, declared_fields) = &declared[*name];
            assert_eq!(size, declared_size, "{name}");
            assert!(size.is_multiple_of(16), "{name}: {size} bytes");
            let fields: Vec<(String, usize)> = fields.iter().map(|(f, at)| ((*f).to_owned(), *at)).collect();
            assert_eq!(&fields, declared_fields, "{name}");
        }
    }
}
