//! Cost per token of the norm in each product's prologue: a layer's products with the norm, and on
//! rows that are already normalised. A producer whose epilogue wrote x * w and partial sums of
//! squares would save the difference.

use crate::count::{Cost, Rows, dispatches_by};
use crate::shapes::{Layers, MODELS, Shapes};
use device::FusedKind;

/// A layer of the smallest and of the widest dense model.
pub fn norms() {
    println!(
        "| a layer of | norm | bytes read once MB | loaded MB | threadgroup MB | reductions k |\n|{}",
        "---|".repeat(6)
    );
    for model in [0, 3] {
        // The head is short, since it is no part of the layer.
        let shapes = Shapes { n_vocab: 2048, ..MODELS[model] };
        let all: fn(&FusedKind) -> bool = |_| true;
        let apart: fn(&FusedKind) -> bool =
            |rule| ![FusedKind::NormLinear, FusedKind::NormGateUp].contains(rule);
        for (how, wanted) in [("in each product (now)", all), ("none", apart)] {
            let c = products(&shapes, wanted);
            println!(
                "| {} | {how} | {:.3} | {:.3} | {:.3} | {:.1} |",
                shapes.name,
                c.read / 1e6,
                c.loaded / 1e6,
                c.threadgroup / 1e6,
                c.reductions / 1e3
            );
        }
    }
}

/// The products of one layer, for a token at position 511.
fn products(s: &Shapes, wanted: fn(&FusedKind) -> bool) -> Cost {
    let layers: Vec<&Layers> = s.layers.iter().collect();
    let (dispatches, _) = dispatches_by(s, &layers, Rows { n: 1, position: 511 }, wanted);
    let mut products: Vec<Cost> =
        dispatches.into_iter().filter(|(name, _)| name.contains("gemv")).map(|(_, cost)| cost).collect();
    products.pop();
    products.into_iter().fold(Cost::default(), Cost::plus)
}
