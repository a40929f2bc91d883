//! Route, ExpertLinear, ExpertSum: a mixture of experts (Shazeer et al., "Outrageously Large Neural
//! Networks", 2017).

use weights::codec::dequantize_rows;

use crate::linear::dot;
use device::{RouterGroups, RouterScores, Weight};

/// The parameters of a Route.
pub struct Route<'a> {
    pub n_experts: usize,
    pub normalise: bool,
    pub factor: f32,
    pub scores: RouterScores,
    pub bias: Option<&'a [f32]>, // (n_experts)
    pub groups: Option<RouterGroups>,
    pub scales: Option<&'a [f32]>, // (n_experts)
}

impl Route<'_> {
    /// Ids of the `k` largest columns of each row, the largest first, ties to the lower id. NaN is
    /// never chosen before a number.
    pub fn choose(
        &self,
        x: &[f32],       // (n, n_experts)
        k: usize,        //
        ids: &mut [u32], // (n, k)
    ) {
        for (row, ids) in x.chunks_exact(self.n_experts).zip(ids.chunks_exact_mut(k)) {
            for (to, id) in ids.iter_mut().zip(falling(&self.sizes(row))) {
                *to = id as u32;
            }
        }
    }

    /// Numbers by which experts are ranked. Without a bias and groups, logits have the same order
    /// as scores.
    fn sizes(&self, row: &[f32]) -> Vec<f32> {
        if self.bias.is_none() && self.groups.is_none() {
            return row.to_vec();
        }
        let mut sizes = self.scores(row);
        sizes.iter_mut().zip(self.bias.unwrap_or_default()).for_each(|(size, bias)| *size += bias);
        let Some(RouterGroups { n, n_used, n_best }) = self.groups else { return sizes };
        let group = row.len() / n;
        let sum = |sizes: &[f32]| falling(sizes).into_iter().take(n_best).map(|i| sizes[i]).sum::<f32>();
        let sums: Vec<f32> = sizes.chunks_exact(group).map(sum).collect();
        for unused in falling(&sums).into_iter().skip(n_used) {
            sizes[unused * group..][..group].fill(f32::NEG_INFINITY);
        }
        sizes
    }

    /// Scores of a row's logits.
    fn scores(&self, row: &[f32]) -> Vec<f32> {
        match self.scores {
            RouterScores::Sigmoid => row.iter().map(|v| 1.0 / (1.0 + (-v).exp())).collect(),
            RouterScores::Softmax => {
                let max = row.iter().copied().fold(f32::NEG_INFINITY, f32::max);
                let sum: f32 = row.iter().map(|v| (v - max).exp()).sum();
                row.iter().map(|v| (v - max).exp() / sum).collect()
            }
        }
    }

    /// Weights of the chosen experts: their scores times the factors.
    pub fn weigh(
        &self,
        x: &[f32],           // (n, n_experts)
        ids: &[u32],         // (n, k)
        k: usize,            //
        weights: &mut [f32], // (n, k)
    ) {
        let rows = x.chunks_exact(self.n_experts).zip(ids.chunks_exact(k));
        for ((row, ids), weights) in rows.zip(weights.chunks_exact_mut(k)) {
            let scores = self.scores(row);
            let p = |id: &u32| scores[*id as usize];
            let chosen = ids.iter().map(p).sum::<f32>().max(f32::MIN_POSITIVE);
            for (id, weight) in ids.iter().zip(weights) {
                let p = if self.normalise { p(id) / chosen } else { p(id) };
                *weight = p * self.scales.map_or(1.0, |s| s[*id as usize]) * self.factor;
            }
        }
    }
}

/// `out[pair] = x[pair] W[id of pair]^T`, where a pair is a row and one of its `k` experts.
///
/// Each weight row of each used expert is decoded once.
pub fn linear(
    x: &[f32],       // (n, n_in) or (n, k * n_in)
    ids: &[u32],     // (n, k)
    k: usize,        //
    weight: &Weight, // (n_experts, n_out, n_in)
    out: &mut [f32], // (n, k * n_out)
) {
    if ids.is_empty() {
        return;
    }
    let n_in = weight.n_cols();
    let n_out = out.len() / ids.len();
    let own = x.len() == ids.len() * n_in;
    let mut row = vec![0.0; n_in];
    for (expert, part) in weight.parts.iter().enumerate() {
        let mine = |(_, id): &(usize, &u32)| **id as usize == expert;
        let pairs: Vec<usize> = ids.iter().enumerate().filter(mine).map(|(pair, _)| pair).collect();
        if pairs.is_empty() {
            continue;
        }
        let planes = part.planes.as_slices();
        for (r, bytes) in part.data.chunks_exact(weight.row_bytes()).enumerate() {
            let planes = planes.rows(weight.block, n_in, r..r + 1);
            dequantize_rows(weight.block, n_in, bytes, planes, &mut row);
            for pair in &pairs {
                let from = if own { *pair } else { pair / k };
                out[pair * n_out + r] = dot(&x[from * n_in..][..n_in], &row);
            }
        }
    }
}

/// `out[:, j] = x_j + bias[ids[:, j]]`
pub fn bias(
    x: &[f32],       // (n, k * cols)
    ids: &[u32],     // (n, k)
    k: usize,        //
    bias: &[f32],    // (n_experts * cols)
    out: &mut [f32], // (n, k * cols)
) {
    if ids.is_empty() {
        return;
    }
    let cols = x.len() / (ids.len() / k * k);
    for ((out, x), id) in out.chunks_exact_mut(cols).zip(x.chunks_exact(cols)).zip(ids) {
        let bias = &bias[*id as usize * cols..][..cols];
        out.iter_mut().zip(x).zip(bias).for_each(|((out, x), bias)| *out = x + bias);
    }
}

/// Indices from the largest value to the smallest, ties to the lower index; NaN counts as the
/// smallest.
fn falling(values: &[f32]) -> Vec<usize> {
    let mut order: Vec<usize> = (0..values.len()).collect();
    let size = |i: usize| if values[i].is_nan() { f32::NEG_INFINITY } else { values[i] };
    // The sort is stable, so ties stay in order.
    order.sort_by(|a, b| size(*b).total_cmp(&size(*a)));
    order
}

/// `out = sum over j of weights[:, j] * x_j`, in the order of `j`.
pub fn sum(
    x: &[f32],       // (n, k * cols)
    weights: &[f32], // (n, k)
    k: usize,        //
    out: &mut [f32], // (n, cols)
) {
    if weights.is_empty() {
        return;
    }
    let cols = x.len() / weights.len();
    let rows = x.chunks_exact(k * cols).zip(weights.chunks_exact(k));
    for (out, (x, weights)) in out.chunks_exact_mut(cols).zip(rows) {
        out.fill(0.0);
        for (x, weight) in x.chunks_exact(cols).zip(weights) {
            for (out, x) in out.iter_mut().zip(x) {
                *out += weight * x;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use device::WeightPart;
    use weights::{BlockType, Bytes, Planes};

    fn routed(route: &Route, x: &[f32], k: usize) -> (Vec<u32>, Vec<f32>) {
        let n = x.len() / route.n_experts;
        let (mut ids, mut weights) = (vec![0; n * k], vec![0.0; n * k]);
        route.choose(x, k, &mut ids);
        route.weigh(x, &ids, k, &mut weights);
        (ids, weights)
    }

    #[test]
    fn the_largest_are_chosen_and_weighed() {
        // The exponentials of these are 1, 2, 4 and 1; their sum is 8.
        let x = [0.0, 2f32.ln(), 4f32.ln(), 0.0];
        let plain = Route {
            n_experts: 4,
            normalise: false,
            factor: 1.0,
            scores: RouterScores::Softmax,
            bias: None,
            groups: None,
            scales: None,
        };
        let close = |a: &[f32], b: &[f32]| a.iter().zip(b).all(|(a, b)| (a - b).abs() < 1e-6);
        let (ids, weights) = routed(&plain, &x, 3);
        assert_eq!(ids, [2, 1, 0], "the lower of equals");
        assert!(close(&weights, &[0.5, 0.25, 0.125]), "{weights:?}");
        let scaled = Route { normalise: true, factor: 3.0, scales: Some(&[1.0, 2.0, 5.0, 1.0]), ..plain };
        let (_, weights) = routed(&scaled, &x, 2);
        assert!(close(&weights, &[2.0 / 3.0 * 15.0, 1.0 / 3.0 * 6.0]), "{weights:?}");
    }

    #[test]
    fn biases_and_groups_choose_but_do_not_weigh() {
        // Sigmoids 0.5, 0.75, 0.9 and 0.5, in two groups.
        let x = [0.0, 3f32.ln(), 9f32.ln(), 0.0];
        let bias = [0.0, 0.5, 0.0, 0.0];
        let route = Route {
            n_experts: 4,
            normalise: false,
            factor: 2.0,
            scores: RouterScores::Sigmoid,
            bias: Some(&bias),
            groups: None,
            scales: None,
        };
        let (ids, weights) = routed(&route, &x, 2);
        assert_eq!(ids, [1, 2]);
        assert!((weights[0] - 1.5).abs() < 1e-6 && (weights[1] - 1.8).abs() < 1e-6, "{weights:?}");
        let groups = Some(RouterGroups { n: 2, n_used: 1, n_best: 2 });
        let (ids, _) = routed(&Route { groups, ..route }, &x, 2);
        assert_eq!(ids, [1, 0], "0.5 + 1.25 over 0.9 + 0.5");
    }

    #[test]
    fn experts_by_hand() {
        let part = |values: [f32; 4]| WeightPart {
            data: Bytes::from_slice(&values.map(f32::to_le_bytes).concat()),
            planes: Planes::default(),
        };
        let parts = vec![part([1., 0., 0., 1.]), part([9.; 4]), part([0., 2., 1., 1.])];
        let weight = Weight::stack("w", [2, 2], BlockType::F32, parts);
        let ids = [2, 0, 0, 2];
        let mut out = [0.0; 8];
        linear(&[1., 2., 3., 4.], &ids, 2, &weight, &mut out);
        assert_eq!(out, [4., 3., 1., 2., 3., 4., 8., 7.], "the same input for both");
        linear(&[1., 2., 3., 4., 5., 6., 7., 8.], &ids, 2, &weight, &mut out);
        assert_eq!(out, [4., 3., 3., 4., 5., 6., 16., 15.], "each its own");
        let mut total = [0.0; 4];
        sum(&out, &[1., 10., 0., 2.], 2, &mut total);
        assert_eq!(total, [34., 43., 32., 30.]);
    }
}
