//! Forms of the language and idioms of real kernels, compiled and run.
#![cfg(all(target_os = "linux", target_arch = "x86_64"))]
#![allow(clippy::unwrap_used, missing_docs)]

use crate::common::*;
use metal_emulator::{
    Binding, Buffer, Constant, Dispatch, Error, FaultKind, LaneOrder, ParameterKind, RunOptions,
};

const SOURCE: &str = include_str!("kernels/language.metal");

#[test]
fn function_constants_specialise_a_kernel() {
    let library = compile("language.metal", SOURCE);
    let declared: Vec<_> =
        library.constants().iter().map(|c| (c.index, c.name.as_str(), c.type_name.as_str())).collect();
    assert_eq!(declared, [(10, "WIDTH", "uint"), (11, "SECOND", "bool"), (12, "SCALE", "float")]);
    let (y, extra) = (Buffer::new(8 * 4).unwrap(), uints(&[100, 101, 102, 103, 104, 105, 106, 107]));
    let both = [(10, Constant::UInt(7)), (11, Constant::Bool(true)), (12, Constant::Float(0.25))];
    let first = library.pipeline("constants", &both[..2]).unwrap();
    let scaled = library.pipeline("constants", &both).unwrap();
    // Pipelines of one library do not share constants.
    run(&first, &[&y, &extra], 1, 8, LaneOrder::Forward).unwrap();
    assert_eq!(to_uints(&y), (0..8).map(|i| 7 * i + 100 + i + 1000).collect::<Vec<u32>>());
    run(&scaled, &[&y, &extra], 1, 8, LaneOrder::Forward).unwrap();
    assert_eq!(to_uints(&y)[1], 7 + 101 + 250);
    run(&first, &[&y, &extra], 1, 8, LaneOrder::Forward).unwrap();
    assert_eq!(to_uints(&y)[1], 7 + 101 + 1000);
    // A parameter exists if its function constant is true.
    let f = run(&first, &[&y], 1, 8, LaneOrder::Forward).unwrap_err();
    assert_eq!(f.kind, FaultKind::Unbound { name: "extra".to_owned(), place: "buffer 1".to_owned() });
    let without = library.pipeline("constants", &[(10, Constant::UInt(3))]).unwrap();
    run(&without, &[&y], 1, 8, LaneOrder::Forward).unwrap();
    assert_eq!(to_uints(&y)[2], 6 + 1000);
}

#[test]
fn function_constants_are_checked() {
    let library = compile("language.metal", SOURCE);
    let error = |c: &[(u16, Constant)]| library.pipeline("constants", c).unwrap_err().to_string();
    assert!(error(&[(10, Constant::Int(7))]).contains("declared as uint, and Int(7) was given"));
    assert!(error(&[(9, Constant::Int(7))]).contains("the source does not declare it"));
    assert!(error(&[(11, Constant::Bool(true)), (11, Constant::Bool(true))]).contains("given twice"));
    let linear = compile("linear.metal", include_str!("kernels/linear.metal"));
    let e = linear.pipeline("rms_norm", &[]).unwrap_err();
    assert!(e.to_string().contains("'has_weight' is used by rms_norm and has no value"), "{e}");
    linear.pipeline("gemm_f16", &[]).unwrap();
    let e = linear.pipeline("gemm", &[]).unwrap_err();
    assert!(matches!(&e, Error::NoFunction { known, .. } if known.contains(&"gemm_f16".to_owned())), "{e}");
}

#[test]
fn the_table_of_functions_is_complete() {
    let library = compile("language.metal", SOURCE);
    let names: Vec<_> = library.functions().iter().map(|f| f.name.as_str()).collect();
    assert_eq!(names, ["constants", "tile_float", "tile_half", "positions", "histogram"]);
    let tile = &library.functions()[2];
    assert_eq!(tile.max_threads, Some(64));
    assert_eq!(tile.parameters[0].type_name, "constant Arguments &");
    assert_eq!(tile.parameters[3].kind, ParameterKind::Threadgroup(0));
    assert_eq!(tile.parameters.iter().map(|p| p.writable).collect::<Vec<_>>()[..3], [false, false, true]);
}

#[test]
fn templates_structs_lambdas_and_threadgroup_memory() {
    let library = compile("language.metal", SOURCE);
    let (threads, groups, n) = (48u32, 3u32, 37u32);
    let q: Vec<u8> = (0..n as u8).map(|i| i.wrapping_mul(37)).collect();
    let (qb, y) = (Buffer::from_bytes(&q).unwrap(), Buffer::new((threads * groups * 4) as usize).unwrap());
    for kind in [0u32, 1] {
        let mut arguments = n.to_le_bytes().to_vec();
        for v in [0.5f32, 1.5, 2.5, 3.5] {
            arguments.extend(v.to_le_bytes());
        }
        arguments.extend(kind.to_le_bytes());
        for (name, element, negate) in [("tile_float", 4, false), ("tile_half", 2, true)] {
            let p = library.pipeline(name, &[]).unwrap();
            let mut first: Option<Vec<f32>> = None;
            for order in ORDERS {
                let d = Dispatch {
                    pipeline: &p,
                    buffers: &[Binding::new(1, &qb), Binding::new(2, &y)],
                    bytes: &[(0, &arguments)],
                    threadgroup_memory: &[(0, threads * element)],
                    threadgroups: [groups, 1, 1],
                    resources: &[],
                    threads_per_threadgroup: [8, threads / 8, 1],
                };
                d.run(&RunOptions { order, threads: 2 }).unwrap();
                let table = |c: u8| if c < 8 { f32::from(c) } else { 8.0 - f32::from(c) };
                let value = |g: u32, i: u32| {
                    let at = (i % threads + g) % n;
                    table((q[at as usize / 2] >> (4 * (at % 2))) & 15)
                };
                let expected: Vec<f32> = (0..groups * threads)
                    .map(|i| {
                        let (g, i) = (i / threads, i % threads);
                        let total: f32 = (0..4).map(|k| value(g, i + k)).sum();
                        let total = if negate { -total } else { total };
                        let extra = if kind == 0 { 1.5 } else { f32::from([1u8, 2, 4, 8][(i % 4) as usize]) };
                        total + extra + 0.0 + 4.0
                    })
                    .collect();
                assert_eq!(to_floats(&y), expected, "{name} {kind} {order:?}");
                assert_eq!(*first.get_or_insert_with(|| to_floats(&y)), to_floats(&y));
            }
        }
    }
}

#[test]
fn every_position_is_right() {
    let library = compile("language.metal", SOURCE);
    let p = library.pipeline("positions", &[]).unwrap();
    let (groups, threads) = ([2u32, 3, 2], [5u32, 3, 3]);
    let grid: Vec<u32> = (0..3).map(|d| groups[d] * threads[d]).collect();
    let y = Buffer::new((12 * 4 * grid.iter().product::<u32>()) as usize).unwrap();
    let d = Dispatch {
        pipeline: &p,
        buffers: &[Binding::new(0, &y)],
        bytes: &[],
        threadgroup_memory: &[],
        threadgroups: groups,
        resources: &[],
        threads_per_threadgroup: threads,
    };
    for order in ORDERS {
        d.run(&RunOptions { order, threads: 1 }).unwrap();
        let got = to_uints(&y);
        let pack = |v: [u32; 3]| v[0] | v[1] << 8 | v[2] << 16;
        for (n, row) in got.chunks_exact(12).enumerate() {
            let n = n as u32;
            let at = [n % grid[0], n / grid[0] % grid[1], n / (grid[0] * grid[1])];
            let local = [at[0] % 5, at[1] % 3, at[2] % 3];
            let index = local[0] + 5 * (local[1] + 3 * local[2]);
            let expected = [
                pack(at),
                pack([grid[0], grid[1], grid[2]]),
                pack([at[0] / 5, at[1] / 3, at[2] / 3]),
                pack(groups),
                pack(local),
                pack(threads),
                index,
                index % 32,
                index / 32,
                2 | 32 << 16,
                index / 4,
                index % 4,
            ];
            assert_eq!(row, expected);
        }
    }
}

#[test]
fn atomics_of_device_and_threadgroup_memory() {
    let library = compile("language.metal", SOURCE);
    let p = library.pipeline("histogram", &[]).unwrap();
    let mut random = Random(4);
    let n = 1000usize;
    let x: Vec<u8> = (0..n).map(|_| random.bits() as u8).collect();
    let xb = Buffer::from_bytes(&x).unwrap();
    for threads in [1, 3] {
        let (counts, sum, extremes) =
            (Buffer::new(64).unwrap(), Buffer::new(4).unwrap(), uints(&[0, 1000, 0]));
        let d = Dispatch {
            pipeline: &p,
            buffers: &[
                Binding::new(0, &xb),
                Binding::new(1, &counts),
                Binding::new(2, &sum),
                Binding::new(3, &extremes),
            ],
            bytes: &[(4, &(n as u32).to_le_bytes())],
            threadgroup_memory: &[],
            threadgroups: [16, 1, 1],
            resources: &[],
            threads_per_threadgroup: [64, 1, 1],
        };
        d.run(&RunOptions { order: LaneOrder::Random(9), threads }).unwrap();
        let mut expected = vec![0u32; 16];
        x.iter().for_each(|v| expected[usize::from(v & 15)] += 1);
        assert_eq!(to_uints(&counts), expected);
        // Sums of small integers are exact in any order.
        assert_eq!(to_floats(&sum), [x.iter().map(|v| f32::from(*v)).sum::<f32>()]);
        let (max, min) = (x.iter().max().unwrap(), x.iter().min().unwrap());
        assert_eq!(
            to_uints(&extremes),
            [u32::from(*max), u32::from(*min), u32::from(x.iter().fold(0, |a, b| a | b))]
        );
    }
}

#[test]
fn includes_are_found_and_messages_name_them() {
    let compiler = compiler(options());
    let includes = [
        ("shared/sizes.h", "#pragma once\n#define N 3\n#include \"../deep.h\"\n"),
        ("deep.h", "inline uint deep() { return N; }\n"),
    ];
    let source = "#include <metal_stdlib>\nusing namespace metal;\n#include \"shared/sizes.h\"\n\
                  kernel void k(device uint * y [[buffer(0)]]) { y[0] = deep() + N; }";
    let library = compiler.compile("a/b.metal", &source.replace("shared/", "../shared/"), &includes).unwrap();
    let y = Buffer::new(4).unwrap();
    run(&library.pipeline("k", &[]).unwrap(), &[&y], 1, 1, LaneOrder::Forward).unwrap();
    assert_eq!(to_uints(&y), [6]);
    let broken = [includes[0], ("deep.h", "\ninline uint deep() { return nonsense; }\n")];
    let e = compiler.compile("b.metal", source, &broken).unwrap_err().to_string();
    assert!(e.contains("deep.h:2:") && e.contains("nonsense"), "{e}");
    let refused = [includes[0], ("deep.h", "\n\ninline uint deep(texture2d<float> t) { return 0; }\n")];
    let Err(Error::Refused(r)) = compiler.compile("b.metal", source, &refused) else { panic!("accepted") };
    assert_eq!((r.file.as_str(), r.line), ("deep.h", 3));
    let e = compiler.compile("b.metal", "#include <metal_raytracing>\n", &[]).unwrap_err().to_string();
    assert!(e.contains("metal_raytracing"), "{e}");
    let e = compiler.compile("b.metal", "", &[("../up.h", "")]).unwrap_err();
    assert!(matches!(&e, Error::Name(n) if n == "../up.h"), "{e}");
}

#[test]
fn macros_are_defined_before_the_source() {
    let defines = vec![("ANSWER".to_owned(), "42".to_owned())];
    let compiler = compiler(metal_emulator::Options { defines, ..options() });
    let source = "kernel void k(device int * y [[buffer(0)]]) { y[0] = ANSWER; }";
    let y = Buffer::new(4).unwrap();
    let p = compiler.compile("k.metal", source, &[]).unwrap().pipeline("k", &[]).unwrap();
    run(&p, &[&y], 1, 1, LaneOrder::Forward).unwrap();
    assert_eq!(to_uints(&y), [42]);
}
