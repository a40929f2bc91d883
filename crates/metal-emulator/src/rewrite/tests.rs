//! Rewriting of each form, and rejected sources.

use super::*;
use crate::library::ParameterKind;

const ALL: What<'static> = What::RUN;

fn accept(source: &str) -> Rewritten {
    rewrite(&format!("# 1 \"t.metal\"\n{source}"), ALL).unwrap()
}

/// Line and message of the error.
fn refused(source: &str) -> (u32, String) {
    let r = rewrite(&format!("# 1 \"t.metal\"\n{source}"), ALL).unwrap_err();
    assert_eq!(r.file, "t.metal");
    (r.line, r.what)
}

/// One function of several: instantiations and entry points of the others are removed, and lines do
/// not move.
#[test]
fn one_function_of_a_source() {
    let source = "template<int n> kernel void k(device int * a [[buffer(0)]]) { a[0] = n; }\n\
                  template [[host_name(\"one\")]] kernel void k<1>(device int * a [[buffer(0)]]);\n\
                  template [[host_name(\"two\")]] kernel void k<2>(device int * a [[buffer(0)]]);\n\
                  kernel void other(device int * a [[buffer(0)]]) { a[0] = 3; }\n";
    let text = format!("# 1 \"t.metal\"\n{source}");
    let all = rewrite(&text, ALL).unwrap();
    let only = |name| rewrite(&text, What { only: Some(name), ..What::RUN });
    let two = only("two").unwrap();
    assert_eq!(two.functions.len(), 1);
    assert_eq!(two.functions[0], all.functions[1]);
    assert!(!two.text.contains("k<1>") && two.text.contains("k<2>"));
    let line = |r: &Rewritten| r.text.lines().position(|line| line.contains("void other")).unwrap();
    assert_eq!(line(&two), line(&all));
    assert_eq!(only("other").unwrap().functions[0].name, "other");
    assert!(only("three").unwrap_err().what.contains("no kernel of the host name 'three'"));
}

#[test]
fn kernels_and_their_parameters() {
    let r = accept(
        "[[host_name(\"k\")]] [[max_total_threads_per_threadgroup(64)]] kernel void impl(device const float * x [[buffer(2)]],\n\
         constant A & a [[buffer(0)]], device float * y, threadgroup half * t [[threadgroup(1)]], ushort2 p [[thread_position_in_threadgroup]]) {}",
    );
    let f = &r.functions[0];
    assert_eq!((f.name.as_str(), f.max_threads, f.parameters.len()), ("k", Some(64), 5));
    let kinds: Vec<_> = f.parameters.iter().map(|p| p.kind).collect();
    // `y` has no index, so it gets the next one.
    assert_eq!(
        kinds[..4],
        [
            ParameterKind::Buffer(2),
            ParameterKind::Buffer(0),
            ParameterKind::Buffer(1),
            ParameterKind::Threadgroup(1)
        ]
    );
    assert_eq!(kinds[4], ParameterKind::Position("thread_position_in_threadgroup"));
    let writable: Vec<_> = f.parameters.iter().map(|p| p.writable).collect();
    assert_eq!(writable, [false, false, true, false, false]);
    assert_eq!(f.parameters[0].type_name, "device const float *");
    assert!(!r.text.contains("[["), "{}", r.text);
}

#[test]
fn instantiations_of_both_forms() {
    let r = accept(
        "template<typename T, short N> kernel void f(device T * x [[buffer(0)]]) {}\n\
         template [[host_name(\"f_half\")]] kernel void f<half, (4 > 3)>(device half * x [[buffer(0)]]);\n\
         typedef decltype(f<float, 2>) f_t;\n\
         template [[host_name(\"f_float\")]] [[kernel]] f_t f<float, 2>;\n",
    );
    let names: Vec<_> = r.functions.iter().map(|f| f.name.as_str()).collect();
    assert_eq!(names, ["f_half", "f_float"]);
    assert!(r.text.contains("f<half, (4 > 3)>(msl_memory"), "{}", r.text);
    assert_eq!(r.functions[1].parameters.len(), 1);
}

#[test]
fn function_constants_and_the_kernels_that_need_them() {
    let r = accept(
        "constant bool A [[function_constant(0)]];\nconstant uint B [[function_constant(2 + 3 * 4)]];\n\
         constant uint C = B * 2;\nstatic inline uint helper() { return C; }\n\
         kernel void a(device uint * x [[buffer(0)]]) { if (A) x[0] = 1; }\n\
         kernel void b(device uint * x [[buffer(0)]], device uint * y [[buffer(1), function_constant(A)]]) { x[0] = helper(); }\n\
         kernel void c(device uint * x [[buffer(0)]]) { x[0] = is_function_constant_defined(A) ? 1 : 2; }",
    );
    let declared: Vec<_> = r.constants.iter().map(|c| (c.index, c.name.as_str(), c.size)).collect();
    assert_eq!(declared, [(0, "A", 1), (14, "B", 4)]);
    let needed: Vec<_> = r.functions.iter().map(|f| f.constants.clone()).collect();
    assert_eq!(needed, [vec![0], vec![0, 14], vec![]]);
    assert_eq!(r.functions[1].parameters[1].condition.as_deref(), Some("A"));
    assert!(r.text.contains("msl_defined_A ? 1 : 2"));
}

#[test]
fn threadgroup_variables_become_references() {
    let r = accept(
        "kernel void k(device float * x [[buffer(0)]]) {\n threadgroup float a[4][8], b;\n threadgroup float * p = a[0]; }",
    );
    assert!(r.text.contains("threadgroup float (&a)[4][8] = *(threadgroup float (*)[4][8]) MSL_THREADGROUP(sizeof(float [4][8]), \"a\");"));
    assert!(r.text.contains(
        "threadgroup float (&b) = *(threadgroup float (*)) MSL_THREADGROUP(sizeof(float ), \"b\");"
    ));
    assert!(r.text.contains("threadgroup float * p = a[0];"));
}

#[test]
fn threadgroup_variables_may_be_zero() {
    let r =
        accept("kernel void k() { threadgroup float a[2] = {0}; threadgroup int b[1] = {}; a[0] = b[0]; }");
    assert!(!r.text.contains("{0}") && !r.text.contains("{};"), "{}", r.text);
}

#[test]
fn function_constants_may_be_static_and_constexpr() {
    let r = accept("static constant constexpr const bool A [[function_constant(3)]];");
    assert_eq!((r.constants[0].name.as_str(), r.constants[0].type_name.as_str()), ("A", "bool"));
    assert!(r.text.contains("static const bool A =") && !r.text.contains("static static"), "{}", r.text);
}

#[test]
fn headers_may_have_templates_for_other_sources() {
    let source = "# 1 \"h.h\" 1\ntemplate<typename T> kernel void f(device T * x [[buffer(0)]]) {}\n# 2 \"t.metal\" 2\n\
                  kernel void g(device int * x [[buffer(0)]]) {}\n";
    let r = rewrite(&format!("# 1 \"t.metal\"\n{source}"), ALL).unwrap();
    assert_eq!(r.functions.len(), 1);
}

#[test]
fn numbers_are_metals() {
    let r = accept(
        "constant float x = 1.0 + 2e3 + 3.f; constant half y = 1.5h + 2h; constant bfloat z = 1.0bf; constant int w = 0xeh0;",
    );
    assert!(r.text.contains("1.0f + 2e3f + 3.f"), "{}", r.text);
    assert!(r.text.contains("((half) 1.5f) + ((half) 2.0f)"), "{}", r.text);
    assert!(r.text.contains("(bfloat(1.0f))"), "{}", r.text);
}

/// Pragmas that change nothing here, and those that set clang's mode.
#[test]
fn known_pragmas_are_accepted() {
    let r = accept(
        "#pragma METAL fp math_mode(safe)\n#pragma METAL internals : enable\n#pragma METAL fp  contract( off )\n\
         #pragma clang loop unroll(full)\n#pragma unroll(4)\n",
    );
    let kept: Vec<&str> = r.text.lines().filter(|line| line.starts_with("#pragma")).collect();
    assert_eq!(kept, ["#pragma clang fp contract(off)"]);
    let counted = What { unroll: true, ..What::RUN };
    let r = rewrite("# 1 \"t.metal\"\n#pragma clang loop unroll(full)\n", counted).unwrap();
    assert!(r.text.contains("clang loop unroll(full)"));
}

/// A variable may have the name of another template's type parameter.
#[test]
fn products_are_not_pointers() {
    accept("template<typename T> T f(T x) { return x; } int g(int T, int C) { return T * C; }");
    accept("struct A { int T; }; template<typename T> T f(thread A & a, T b) { return a.T * b; }");
    let (_, what) = refused("template<typename T> T f(T * x) { return *x; }");
    assert!(what.contains("'T' without an address space"), "{what}");
    let (_, what) = refused("struct S { int a; }; int f(S * x) { return x->a; }");
    assert!(what.contains("'S' without an address space"), "{what}");
}

#[test]
fn helpers_may_have_attributes_of_parameters() {
    let r = accept(
        "int f(device int * x [[buffer(1)]], ushort i [[thread_index_in_simdgroup]]) { return x[i]; }\n\
         typedef void (form)(device int * x, uint3 at[[threadgroup_position_in_grid]]);\n\
         struct L { L(ushort i [[simdgroup_index_in_threadgroup]]) thread {} };\n",
    );
    assert!(!r.text.contains("[["), "{}", r.text);
    let (_, what) = refused("int i [[thread_index_in_simdgroup]];");
    assert!(what.contains("thread_index_in_simdgroup"), "{what}");
}

/// Run mode has one address space, so one of the functions that differ by it remains.
#[test]
fn members_have_address_spaces() {
    let source = "struct A {\n  A() thread : a(0) {}\n  A() threadgroup : a(0) {}\n  int get() const device { return a; }\n  int a;\n};\n";
    let r = accept(source);
    assert!(r.text.contains("A() : a(0) {}") || r.text.contains("A()  : a(0) {}"), "{}", r.text);
    assert_eq!(r.text.matches("A()").count(), 1, "{}", r.text);
    assert!(!r.text.contains("device {"), "{}", r.text);
    let strict = rewrite(&format!("# 1 \"t.metal\"\n{source}"), What::STRICT).unwrap();
    assert!(strict.text.contains("A() threadgroup : a(0) {}"), "{}", strict.text);
}

#[test]
fn limits_of_threads_may_name_template_parameters() {
    let r = accept(
        "template<typename T, int M, int N> [[kernel, max_total_threads_per_threadgroup(M * N * 32)]]\n\
         void f(device T * x [[buffer(0)]], constant const int n[3] [[buffer(1)]]) {}\n\
         template [[host_name(\"a\")]] [[kernel]] decltype(f<float, 1, 2>) f<float, 1, 2>;\n\
         template [[host_name(\"b\")]] [[kernel]] decltype(f<int, 4, (1 + 1)>) f<int, 4, (1 + 1)>;\n",
    );
    let most: Vec<_> = r.functions.iter().map(|f| f.max_threads).collect();
    assert_eq!(most, [Some(64), Some(256)]);
    assert_eq!(r.functions[0].parameters[1].kind, ParameterKind::Buffer(1));
    let (_, what) = refused(
        "template<int M> [[max_total_threads_per_threadgroup(Q)]] kernel void f(device int * x [[buffer(0)]]) {}\n\
         template [[host_name(\"a\")]] kernel void f<1>(device int * x [[buffer(0)]]);\n",
    );
    assert!(what.contains("'Q' is not an integer"), "{what}");
}

/// Templates of one name are told apart by the number of their parameters.
#[test]
fn kernel_templates_may_share_a_name() {
    let r = accept(
        "template<typename T, typename M, int N> kernel void f(device T * x [[buffer(0)]], device M * m [[buffer(3)]]) {}\n\
         template<typename T, int N = 1> kernel void f(device T * x [[buffer(0)]]) {}\n\
         template [[host_name(\"a\")]] kernel void f<int, bool, 1>(device int * x [[buffer(0)]], device bool * m [[buffer(3)]]);\n\
         template [[host_name(\"b\")]] kernel void f<int, 2>(device int * x [[buffer(0)]]);\n\
         template [[host_name(\"c\")]] kernel void f<int>(device int * x [[buffer(0)]]);\n",
    );
    assert_eq!(r.functions.iter().map(|f| f.parameters.len()).collect::<Vec<_>>(), [2, 1, 1]);
}

#[test]
fn buffers_may_be_coherent() {
    let r = accept("kernel void k(volatile coherent(system) device uint * x [[buffer(2)]]) { x[0] = 1; }");
    assert!(r.text.contains("volatile  device uint * x"), "{}", r.text);
    assert_eq!(r.functions[0].parameters[0].kind, ParameterKind::Buffer(2));
}

#[test]
fn braced_lists_may_be_short() {
    let r = accept(
        "void f(int a) { uint4 v = { a, max(a, 2), 1 }; uint2 w = { a, a }; float3 z = {}; int3 q = { a }; }",
    );
    assert!(r.text.contains("uint4 v = uint4::braced( a, max(a, 2), 1 ); uint2 w = { a, a };"), "{}", r.text);
    assert!(r.text.contains("float3 z = {}; int3 q = int3::braced( a );"), "{}", r.text);
}

#[test]
fn lines_stay_where_they_are() {
    let source = "kernel\nvoid k(\n  device float * x\n  [[buffer(0)]])\n{\n  threadgroup float\n    a[2];\n}\nint last;";
    let r = accept(source);
    let line = r.text.lines().position(|l| l.contains("int last")).unwrap();
    assert_eq!(line, 1 + source.lines().count() - 1);
}

#[test]
fn unsupported_source_is_rejected_with_its_line() {
    let cases: &[(&str, u32, &str)] = &[
        ("\nkernel void k(texture2d<float> t [[texture(0)]]) {}", 2, "attribute 'texture'"),
        ("kernel void k(device float * x [[buffer(0)]], uint i [[nonsense]]) {}", 1, "'nonsense'"),
        ("kernel void k(device float * x [[buffer(31)]]) {}", 1, "index 31"),
        ("kernel void k(device float * x [[buffer(N)]]) {}", 1, "'N' is not an integer"),
        ("kernel void k(uint i) {}", 1, "no binding attribute"),
        ("kernel void k(float x [[buffer(0)]]) {}", 1, "buffers are pointers"),
        ("kernel void k(threadgroup float * x [[buffer(0)]]) {}", 1, "buffers are pointers"),
        ("kernel int k() { return 0; }", 1, "between 'kernel' and 'void'"),
        (
            "kernel void k(device float * x [[buffer(0)]], device float * y [[buffer(0)]]) {}",
            1,
            "have the index",
        ),
        ("kernel void k() {}\n\nkernel void k() {}", 3, "a second kernel"),
        ("template<int N> kernel void k() {}\ntemplate<int M> kernel void k() {}\n", 2, "a second kernel"),
        ("kernel void k() {\n threadgroup float a[2] = { 1, 2 };\n}", 2, "initialiser"),
        ("kernel void k() {\n const threadgroup float a[2];\n}", 2, "'const' before"),
        ("void f() { threadgroup float a[2]; }", 1, "outside of a kernel's body"),
        ("threadgroup float a[2];", 1, "not recognised"),
        ("void f(threadgroup float a) {}", 1, "not recognised"),
        ("kernel void k() { threadgroup struct { int a; } s; }", 1, "not recognised"),
        ("kernel void k() { threadgroup float a[2] [[align]]; }", 1, "threadgroup variable 'a'"),
        ("[[host_name(\"x\")]] void f() {}", 1, "not a kernel"),
        ("[[intersection(triangle)]] void f() {}", 1, "'intersection'"),
        ("struct S { float4 p [[position]]; };", 1, "'position'"),
        ("vertex float4 v() { return 0; }", 1, "only kernels"),
        ("void f() { double d = 0; }", 1, "Metal has no double"),
        ("void f() { float d = 1.0L; }", 1, "Metal has no double"),
        ("#pragma omp parallel\n", 1, "'#pragma omp parallel'"),
        ("\n#pragma METAL fp math_mode(fast)\n", 2, "math_mode(fast)' is not known to the emulator"),
        ("#pragma METAL fp math_mode(relaxed)\n", 1, "expected 'fp contract(off)'"),
        ("#pragma METAL fp contract(perhaps)\n", 1, "contract(perhaps)"),
        ("#pragma METAL fp contract(off) reassociate(on)\n", 1, "reassociate"),
        ("#pragma METAL\n", 1, "is not known"),
        ("constant float4 c [[function_constant(0)]];", 1, "only scalars"),
        (
            "constant bool a [[function_constant(0)]];\nconstant bool b [[function_constant(0)]];",
            2,
            "both have index 0",
        ),
        ("void f() { if (is_function_constant_defined(q)) {} }", 1, "not a function constant"),
        ("template [[host_name(\"x\")]] kernel void f<float>(device float * x);", 1, "no kernel 'f'"),
        (
            "template<typename T> kernel void f(device T * x [[buffer(0)]]) {}",
            1,
            "no instantiation with a host name",
        ),
        (
            "template<typename T> [[host_name(\"x\")]] kernel void f(device T * x [[buffer(0)]]) {}",
            1,
            "expected host names",
        ),
        (
            "[[host_name(\"x\")]] kernel void a() {}\n[[host_name(\"x\")]] kernel void b() {}",
            2,
            "given twice",
        ),
        ("constexpr sampler s(filter::linear);", 1, "textures"),
    ];
    for (source, line, part) in cases {
        let (at, what) = refused(source);
        assert!(what.contains(part), "{source}: {what}");
        assert_eq!(at, *line, "{source}: {what}");
    }
}

/// Truncated sources and sources with a missing token are rewritten or rejected; nothing panics.
#[test]
fn damaged_sources_are_survived() {
    for source in
        [include_str!("../../tests/kernels/language.metal"), include_str!("../../tests/kernels/linear.metal")]
    {
        let lines = source.lines().filter(|l| !l.starts_with('#')).filter_map(|l| l.split("//").next());
        let plain: String = lines.map(|l| format!("{l}\n")).collect();
        for end in (0..plain.len()).step_by(5).filter(|e| plain.is_char_boundary(*e)) {
            let _ = rewrite(&plain[..end], What { strict: end % 2 == 0, ..What::RUN });
        }
        let tokens = Tokens::scan(&plain).unwrap();
        for t in tokens.list.iter().step_by(2) {
            let _ = rewrite(&format!("{}{}", &plain[..t.start], &plain[t.end..]), ALL);
        }
    }
}
