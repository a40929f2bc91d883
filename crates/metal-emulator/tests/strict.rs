//! Strict mode: address spaces are checked, and everything that runs passes it.
#![cfg(all(target_os = "linux", target_arch = "x86_64"))]
#![allow(clippy::unwrap_used, missing_docs)]

use crate::common::*;
use metal_emulator::Error;

const HEAD: &str = "#include <metal_stdlib>\nusing namespace metal;\n";

fn strict(source: &str) -> Result<(), Error> {
    compiler(options()).check_strict("strict.metal", &format!("{HEAD}{source}"), &[])
}

#[test]
fn kernels_that_run_pass() {
    let compiler = compiler(options());
    for (name, source) in [
        ("linear.metal", include_str!("kernels/linear.metal")),
        ("bugs.metal", include_str!("kernels/bugs.metal")),
        ("builtins.metal", include_str!("kernels/builtins.metal")),
        ("language.metal", include_str!("kernels/language.metal")),
    ] {
        compiler.check_strict(name, source, &[]).unwrap_or_else(|e| panic!("{e}"));
    }
}

/// A table converts to a pointer to constant memory, although neither may be written.
#[test]
fn tables_are_constant_memory() {
    let table = "constexpr constant static float table[4] = { 1, 2, 3, 4 };\n\
                 static inline float at(constant float * t, int i) { return t[i]; }\n";
    let with = |body| strict(&format!("{table}kernel void k(device float * x [[buffer(0)]]) {{\n {body} }}"));
    with("x[0] = at(table, 2);").unwrap();
    for body in ["table[0] = x[0];", "device const float * p = table; x[0] = p[0];"] {
        let Err(Error::Compile { messages, .. }) = with(body) else { panic!("accepted: {body}") };
        assert!(messages.contains("strict.metal:6:"), "{messages}");
    }
}

#[test]
fn mismatched_address_spaces_are_errors() {
    let cases = [
        (
            "kernel void k(device float * x [[buffer(0)]], threadgroup float * t [[threadgroup(0)]]) {\n device float * p = t;\n p[0] = x[0]; }",
            4,
        ),
        ("kernel void k(constant float & c [[buffer(0)]]) {\n c = 1; }", 4),
        ("kernel void k(constant float * c [[buffer(0)]]) {\n device const float * p = c;\n (void) p; }", 4),
        (
            "void f(threadgroup float * t) { t[0] = 1; }\nkernel void k(device float * x [[buffer(0)]]) {\n f(x); }",
            5,
        ),
        (
            "kernel void k(device float * x [[buffer(0)]]) {\n float y = 0;\n device float * p = &y;\n p[0] = x[0]; }",
            5,
        ),
        (
            "kernel void k(device half * x [[buffer(0)]]) {\n threadgroup half t[64];\n simdgroup_half8x8 m;\n simdgroup_load(m, t);\n device half * p = t;\n simdgroup_store(m, p); }",
            7,
        ),
    ];
    for (source, line) in cases {
        let Err(Error::Compile { messages, .. }) = strict(source) else { panic!("accepted: {source}") };
        assert!(messages.contains(&format!("strict.metal:{line}:")), "{source}: {messages}");
    }
}

#[test]
fn a_function_as_a_template_argument_passes() {
    let source = "
        struct B { half d; uchar q[4]; };
        template<typename T4> void dequantize(device const B * b, short i, thread T4 & out) { out = T4(float4(float(b->d) * float(b->q[i]))); }
        template<typename T4, void (*take)(device const B *, short, thread T4 &)>
        kernel void f(device const B * b [[buffer(0)]], device float4 * y [[buffer(1)]], uint i [[thread_position_in_grid]]) {
            T4 v;
            take(b + i, 1, v);
            y[i] = float4(v);
        }
        typedef decltype(f<half4, dequantize<half4>>) f_t;
        template [[host_name(\"f_half\")]] kernel f_t f<half4, dequantize<half4>>;";
    strict(source).unwrap_or_else(|e| panic!("{e}"));
    compile("function.metal", &format!("{HEAD}{source}")).pipeline("f_half", &[]).unwrap();
}
