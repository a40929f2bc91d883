//! Known parts of keys: the layers that have them, and that subtracting them changes no score.

use device_testing::{AttentionOptions, PlanBuilder, Rng};
use ingle_device::key_bias::{BLOCK, KeyBias, KnownKeys};
use ingle_device::{KvLayer, Plan, RopeStyle};
use weights::BlockType;

/// Construction of a plan's keys.
#[derive(Clone, Copy, Debug)]
struct Keys {
    n_kv_heads: usize,
    head_dim: usize,
    /// Rotated columns; 0 for no Rope.
    n_dims: usize,
    style: RopeStyle,
    bias: bool,
    norm: bool,
}

fn plan(keys: &[Keys]) -> Plan {
    let mut b = PlanBuilder::new(5, 40);
    let mut x = b.embed(32);
    for keys in keys {
        let Keys { n_kv_heads, head_dim, n_dims, style, .. } = *keys;
        let cols = n_kv_heads * head_dim;
        let layer = b.kv_layer(KvLayer {
            n_kv_heads,
            head_dim,
            window: None,
            encoder_states: None,
            values_are_keys: false,
        });
        let q = b.linear(x, cols, BlockType::F32, false);
        let mut k = b.linear(x, cols, BlockType::F32, keys.bias);
        if keys.norm {
            k = b.rms_norm(k, head_dim);
        }
        if n_dims > 0 {
            k = b.rope_scaled(k, head_dim, n_dims, style, 1.5);
        }
        let v = b.linear(x, cols, BlockType::F32, false);
        b.kv_write(k, v, layer);
        let y = b.attention(q, layer, n_kv_heads, AttentionOptions::default());
        x = b.linear(y, 32, BlockType::F32, false);
    }
    let logits = b.linear(x, 40, BlockType::F32, false);
    b.finish(logits)
}

const BIASED: Keys =
    Keys { n_kv_heads: 3, head_dim: 24, n_dims: 16, style: RopeStyle::Half, bias: true, norm: false };

#[test]
fn layers_with_large_unchanged_biases_have_a_key_bias() {
    let styles = [RopeStyle::Half, RopeStyle::Interleaved];
    let plan = plan(&[
        BIASED,
        Keys { bias: false, ..BIASED },
        Keys { norm: true, ..BIASED },
        Keys { style: styles[1], n_dims: 24, ..BIASED },
        Keys { n_dims: 0, ..BIASED },
    ]);
    let found = KeyBias::of_layers(std::slice::from_ref(&plan));
    let sizes: Vec<_> = found
        .iter()
        .map(|bias| bias.as_ref().map(|b| (!b.constant.is_empty(), !b.pairs.is_empty())))
        .collect();
    let some = |constant, pairs| Some((constant, pairs));
    assert_eq!(sizes, [some(true, true), None, None, some(false, true), some(true, false)]);
    // Another plan that writes other keys to the same layers disables the key bias.
    let mut other = plan.clone();
    for weight in other.weights.iter_mut().filter(|w| w.name.contains("bias")) {
        let values: Vec<f32> = (0..weight.n_cols()).map(|i| i as f32 + 2.0).collect();
        *weight = ingle_device::Weight::vector(weight.name.clone(), &values);
    }
    assert!(KeyBias::of_layers(&[plan, other]).iter().all(Option::is_none));
}

/// `q . k` equals `q . (k - R b)` plus the terms, for positions in all blocks; `R b` is the bias,
/// rotated like a key.
#[test]
fn subtracted_biases_are_added_to_the_score() {
    let mut rng = Rng::new(9);
    for (style, n_dims) in
        [(RopeStyle::Half, 16), (RopeStyle::Interleaved, 24), (RopeStyle::Half, 24), (RopeStyle::Half, 0)]
    {
        let keys = Keys { style, n_dims, ..BIASED };
        let bias = KeyBias::of_layers(&[plan(&[keys])]).remove(0).unwrap();
        let all = bias.of_head(1).to_vec();
        let known = KnownKeys::new(bias.clone(), 5000);
        for position in [0, 1, 127, 128, 300, 4097, 4999] {
            let mut key = vec![0.0; keys.head_dim];
            known.add(1, position, 1.0, &mut key);
            for (column, b) in bias.constant.iter().zip(&all) {
                assert_eq!(key[*column], *b);
            }
            for (i, pair) in bias.pairs.iter().enumerate() {
                let [a, b] = [0, 1].map(|at| f64::from(all[bias.constant.len() + 2 * i + at]));
                let (sin, cos) = (position as f64 * f64::from(pair.frequency)).sin_cos();
                let want = [a * cos - b * sin, b * cos + a * sin];
                for (column, want) in pair.columns.iter().zip(want) {
                    assert!((f64::from(key[*column]) - want).abs() < 1e-5, "{keys:?} {position}");
                }
            }
            let q: Vec<f32> = (0..keys.head_dim).map(|_| rng.normal()).collect();
            let (mut terms, mut turned) = (vec![0.0; bias.n_terms()], vec![0.0; bias.n_terms()]);
            known.terms(1, &q, 0.5, &mut terms);
            known.turn(position, &terms, &mut turned);
            let got: f32 =
                turned.iter().zip(known.within.chunks(BLOCK)).map(|(t, row)| t * row[position % BLOCK]).sum();
            let want: f32 = q.iter().zip(&key).map(|(q, k)| 0.5 * q * k).sum();
            assert!((got - want).abs() < 1e-4, "{keys:?} {position}: {got} for {want}");
        }
    }
}

/// Biases smaller than the differences between keys are ignored.
#[test]
fn small_biases_are_left_alone() {
    let mut small = plan(&[BIASED]);
    for weight in small.weights.iter_mut().filter(|w| w.name.contains("bias")) {
        let values: Vec<f32> = (0..weight.n_cols()).map(|i| if i == 5 { 700.0 } else { 0.6 }).collect();
        *weight = ingle_device::Weight::vector(weight.name.clone(), &values);
    }
    let bias = KeyBias::of_layers(&[small]).remove(0).unwrap();
    assert_eq!((bias.pairs.len(), bias.constant.len()), (1, 0));
    assert_eq!(bias.pairs[0].columns, [5, 13]);
}
