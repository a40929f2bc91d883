//! Clang's sanitizers over the kernels that multiply.

use super::experts::{expert_arguments, stack};
use super::joined::Branch;
use super::merged::Parts;
use super::*;

#[test]
fn sanitizers_find_nothing_in_any_decoder() {
    let mut rng = Rng::new(12);
    let mut names: Vec<_> = types().iter().map(|t| t.1).collect();
    names.dedup();
    let source = source_of(&names, &["linear_*_gemv_1", "embed_*"]);
    for (file, name, block, n_in) in types() {
        let w = stored(&mut rng, "w", 3, n_in, block, 0.3);
        let x = normal(&mut rng, n_in);
        let out = gemv(file, name, 1, 1, &x, &w).sanitize(Sanitizer::AddressUndefined, &source);
        check(name, &out.floats(16), &products(&x, n_in, &w), F32_BOUND);
        let (row, scale) = (block.row_bytes(n_in) as u32, block.row_scale_bytes(n_in) as u32);
        let embed = launch(file, format!("embed_{name}"), block, n_in)
            .arguments(&[n_in as u32, row, scale, 1f32.to_bits(), 0, 0, 0, 0])
            .words(1, &[2])
            .words(2, &[0])
            .output(16, n_in)
            .words(20, &step(1, 0, 1, 0, 0))
            .grid([1, 1, 1], 32);
        let out = bind(embed, 0, &w).sanitize(Sanitizer::AddressUndefined, &source).floats(16);
        assert!(out.iter().all(|v| v.is_finite()), "{name}");
    }
}

#[test]
fn sanitizers_find_nothing_where_threadgroup_memory_is_shared() {
    let mut rng = Rng::new(13);
    let (name, file, block, n_in) = ("iq4_nl", "linear/iq4_nl.metal", BlockType::IQ4_NL, 64);
    let kernels = [
        "linear_*_gemv_2",
        "linear_*_gemv_8",
        "linear_*_merged",
        "linear_*_joined",
        "linear_*_gemm_32",
        "linear_*_gemm_64",
        "expert_linear_*_gemv",
        "expert_linear_*_gemm",
    ];
    let source = source_of(&[name], &kernels);
    // Every template of a header that they include has an instance.
    let is_needed = |kernel: &&str| ["gemm", "gemv_2", "expert"].iter().any(|part| kernel.contains(part));
    let tiles: Vec<&str> = kernels.into_iter().filter(is_needed).collect();
    let tiles = source_of(&[name], &tiles);
    let w = stored(&mut rng, "w", 67, n_in, block, 0.3);
    let x = normal(&mut rng, 5 * n_in);
    let (parts, residual) = (Parts::new(&mut rng, 4, 16, 3, true), normal(&mut rng, 67));
    let merged = with_bias(&products(&parts.merged(), n_in, &w), &residual);
    let branch = Branch::new(&mut rng, n_in, [true, true, true]);
    let joined = products(&branch.normed(), n_in, &w);
    let ids = [2, 0, 0, 1, 2, 0];
    let experts = Vec::from_iter((0..3).map(|_| stored(&mut rng, "w", 8, n_in, block, 0.3)));
    let (bytes, places) = stack(&experts);
    for sanitizer in [Sanitizer::Thread, Sanitizer::AddressUndefined] {
        let out = parts.launch(file, name, &w, &residual, None).sanitize(sanitizer, &source);
        check(name, &out.floats(16), &merged, F32_BOUND);
        let base = launch(file, format!("linear_{name}_joined"), block, n_in).flag(ARGMAX, true);
        let made = branch.launch(base, &[&w], [4, 2, 3]).output(16, 67).output(19, 2 * 3);
        check(name, &made.sanitize(sanitizer, &source).floats(16), &joined, F32_BOUND);
        let sum = branch.alone(64).sanitize_file(sanitizer).floats(3);
        assert!(sum.iter().zip(branch.sum()).all(|(a, b)| (a - b).abs() < 1e-5), "{sum:?}");
        for tile in [32, 64] {
            for launch in gemm(file, name, tile, 5, &x, &w).with_tensors() {
                let out = launch.sanitize(sanitizer, if launch.tensors { &tiles } else { &source });
                check(name, &out.floats(16), &products(&x, n_in, &w), HALF_BOUND);
            }
        }
        let out = gemv(file, name, 8, 5, &x, &w).sanitize(sanitizer, &source);
        check(name, &out.floats(16), &products(&x, n_in, &w), F32_BOUND);
        let out = gemv(file, name, 2, 2, &x, &w)
            .number(SPLIT, 2)
            .flag(NORM, true)
            .flag(ARGMAX, true)
            .floats(2, &[1.0; 64])
            .output(19, 2 * 2 * 17)
            .grid([17, 1, 1], 64)
            .sanitize(sanitizer, &source);
        let x_norm = normalised(&x[..2 * n_in], &[1.0; 64]);
        check(name, &out.floats(16), &products(&x_norm, n_in, &w), F32_BOUND);
        let groups = Launch::new("expert_groups.metal", "expert_groups")
            .arguments(&[1, 3, 2, 1f32.to_bits(), 0, 0, 0, 0])
            .words(1, &step(3, 0, 1, 0, 0))
            .words(3, &ids)
            .output(23, 6)
            .output(24, 3 * 4)
            .grid([1, 1, 1], 64)
            .sanitize_file(sanitizer);
        assert_eq!(groups.words(23), [1, 2, 5, 3, 0, 4]);

        // The products of these pairs, one by one and by tiles.
        let expected: Vec<_> = ids
            .iter()
            .enumerate()
            .flat_map(|(pair, id)| products(&x[pair / 2 * n_in..][..n_in], n_in, &experts[*id as usize]))
            .collect();
        let pairs = |what: &str| {
            launch(file, format!("expert_linear_{name}_{what}"), block, n_in)
                .arguments(&expert_arguments(block, n_in, 8, 3, 2))
                .floats(1, &x[..3 * n_in])
                .bytes(25, &bytes)
                .bytes(27, &places)
                .output(16, 6 * 8)
                .words(20, &step(3, 0, 1, 0, 0))
                .words(21, &ids)
                .words(23, &groups.words(23))
                .words(24, &groups.words(24))
        };
        let out = pairs("gemv").grid([1, 6, 1], 64).sanitize(sanitizer, &source);
        check(name, &out.floats(16), &expected, F32_BOUND);
        for launch in pairs("gemm").grid([1, 3, 1], 128).with_tensors() {
            let out = launch.sanitize(sanitizer, if launch.tensors { &tiles } else { &source });
            check(name, &out.floats(16), &expected, HALF_BOUND);
        }
    }
}
