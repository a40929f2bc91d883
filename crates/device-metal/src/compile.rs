//! From units to tables: which kernel runs each unit for how many rows, with which arguments and
//! buffers.
//!
//! `call` and `draft` hold what all units share. `primitives` has the kernels of single Ops,
//! `linear` the projections, `attention` the readers of KV pages, and `experts` the mixtures.
//! `merged` has the projection that merges the parts of a split attention. `join` has the sum of a
//! branch after its norm. `recurrent` has the layers with states; `choose` the kernels that choose
//! tokens from logits; `products` has the shared code of products with weights, `turns` the
//! cosines and sines of RoPE.

mod attention;
mod call;
mod choose;
mod draft;
mod experts;
mod join;
mod linear;
mod merged;
mod primitives;
mod products;
mod recurrent;
mod turns;

pub use draft::{Compiler, Pipelines};

use crate::gpu::MetalGpu;
use device::Result;
use device_lower::lifetimes::selections;
use device_lower::table::{RowClass, Table};
use device_lower::units::{LoweredUnit, Unit};
use draft::Draft;
use std::collections::HashMap;

impl<'a, G: MetalGpu> Compiler<'a, G> {
    /// The table for steps of these classes. Kernels that it needs are added to `pipelines`.
    ///
    /// # Errors
    /// A shader does not compile, or something has no kernel.
    pub fn table(&self, tokens: RowClass, outputs: RowClass, pipelines: &mut Pipelines) -> Result<Table> {
        let mut draft = Draft {
            tokens,
            outputs,
            table: Table::default(),
            pipelines,
            alias: HashMap::new(),
            ordered: None,
            node: 0,
            rest: &[],
            n_done: 0,
            bests: None,
            parts: None,
            join: None,
            normed: vec![],
            expert_parts: None,
            has_turns: false,
            compiler: self,
        };
        if tokens == RowClass::One {
            draft.alias = selections(self.plan).into_iter().map(|(x, out)| (out, x)).collect();
        }
        for (index, LoweredUnit { node, unit, .. }) in self.units.iter().enumerate() {
            if draft.n_done > 0 {
                draft.n_done -= 1;
                continue;
            }
            draft.node = *node;
            draft.rest = &self.units[index + 1..];
            draft.unit(unit)?;
        }
        Ok(draft.table)
    }
}

impl<G: MetalGpu> Draft<'_, G> {
    fn unit(&mut self, unit: &Unit) -> Result<()> {
        match unit {
            Unit::Projection(p) => self.projection(p),
            Unit::Gated { product, by } => self.gated(product, by),
            Unit::RowGated { product, by } => self.row_gated(product, by),
            Unit::Join(join) => self.join(join),
            Unit::QkRopeKv(heads) => self.qk_rope_kv(heads),
            Unit::QRope(queries) => self.q_rope(queries),
            Unit::ExpertGateUp { .. } | Unit::ExpertDownSum { .. } => self.expert_unit(unit),
            Unit::Primitive(op) => self.primitive(op),
        }
    }
}
