//! The set of overloads is that of Apple's library of Metal 3.1: what it lacks is an error here,
//! and what it has is there.
#![cfg(all(target_os = "linux", target_arch = "x86_64"))]
#![allow(clippy::unwrap_used, missing_docs)]

use crate::common::*;

/// Errors of a function with this body, in both modes; `None`: it is accepted.
fn errors(body: &str) -> Option<String> {
    let source = format!(
        "#include <metal_stdlib>\nusing namespace metal;\n\
         static inline float4 f(float4 x, half4 h, int4 n, float s, int i, bfloat b) {{ {body} return x; }}\n\
         kernel void k(device float4 * y [[buffer(0)]]) {{ y[0] = f(y[0], half4(1.0h), int4(1), 1.0f, 1, 1.0bf); }}\n"
    );
    let compiler = compiler(options());
    let run = compiler.parse("o.metal", &source, &[]).err();
    let strict = compiler.check_strict("o.metal", &source, &[]).err();
    assert_eq!(run.is_some(), strict.is_some(), "{body}: {run:?}, {strict:?}");
    run.map(|error| error.to_string())
}

#[test]
fn scalars_become_vectors() {
    for body in [
        "x = fmax(0, x); x = fmin(1, x); x = max(x, 0); x = min(0.5f, x);",
        "x = clamp(x, 0, 1); x = fast::clamp(x, 0.0f, s); x = precise::max(x, 1);",
        "x = pow(x, 2); x = fma(x, 2.0f, x); x = mix(x, x, 0.5f); x = fmod(x, 3); x = step(0.5f, x);",
        "h = max(h, 0); n = max(n, 0); n = clamp(n, 0, 7); n = min(i, n);",
        "s = fmax(0, s); s = fmin(s, 1);",
    ] {
        assert_eq!(errors(body), None, "{body}");
    }
    for (body, part) in [
        ("s = max(0, s);", "ambiguous"),
        ("n = max(n, x);", "no matching function"),
        ("h = max(h, x);", "no matching function"),
    ] {
        let found = errors(body).unwrap_or_default();
        assert!(found.contains(part), "{body}: {found}");
    }
}

#[test]
fn functions_of_bfloat_are_missing() {
    for body in [
        "s = exp(b); s = abs(b); s = min(b, b); s = fma(b, b, b); b = bfloat(sqrt(b));",
        "b = 0; b = b * b; b += 1.0f; b = bfloat(s); s = b;",
        "struct Yes { operator bool() const { return true; } }; b = Yes();",
    ] {
        assert_eq!(errors(body), None, "{body}");
    }
    for (body, part) in [
        ("b = exp(b);", "no viable overloaded '='"),
        ("bfloat c = abs(b);", "no viable conversion"),
        ("bfloat c = max(b, b);", "no viable conversion"),
        ("bfloat c = s;", "no viable conversion"),
        ("b = simd_sum(b);", "no simdgroup functions of bfloat"),
    ] {
        let found = errors(body).unwrap_or_default();
        assert!(found.contains(part), "{body}: {found}");
    }
}
