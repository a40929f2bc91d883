//! Flags of clang.

use crate::options::{Numerics, Sanitizer};

/// Preprocessing, apart from include paths and the caller's macros.
pub(crate) const PREPROCESS: &str = "-E -x c++ -std=c++17 -undef -nostdinc -w -D__METAL__=1 -D__METAL_MACOS__=1 \
     -D__HAVE_BFLOAT__=1 -D__HAVE_SIMDGROUP_MATRIX__=1 -D__HAVE_SIMDGROUP_REDUCTION__=1 \
     -D__METAL_EMULATOR__=1";

/// Preprocessing: the version of the language, Metal 3.1, or 4.0 with tensors.
pub(crate) fn version(tensors: bool) -> Vec<String> {
    words(if tensors { "-D__METAL_VERSION__=400 -D__HAVE_TENSOR__=1" } else { "-D__METAL_VERSION__=310" })
}

/// Strict mode, the check of address spaces.
pub(crate) const STRICT: &str =
    "-cc1 -x clcpp -fdeclspec -cl-std=clc++2021 -triple x86_64-linux-gnu -fsyntax-only -w -ferror-limit 20";

/// Strict mode, continued to the text that NVIDIA's assembler reads.
pub(crate) const REGISTERS: &str = "-cc1 -x clcpp -fdeclspec -cl-std=clc++2021 -triple nvptx64-nvidia-cuda -target-cpu sm_80 \
     -target-feature +ptx70 -cl-ext=+__opencl_c_generic_address_space,+__opencl_c_program_scope_global_variables,+cl_khr_fp16 \
     -O3 -funroll-loops -mllvm -inline-threshold=1000000 -S -w -ferror-limit 20 -DMSL_REGISTERS";

/// Kernels and the runtime, in every mode.
const COMMON: &str = "-x c++ -fPIC -ffreestanding -nostdinc -fno-exceptions -fno-rtti -fvisibility=hidden \
     -fno-stack-protector";

/// The runtime: multiply and add are never contracted.
const STANDARD: &str = "-O2 -std=c++20 -ffp-contract=off";

/// Flags of kernels. Metal 3.1 is C++14 and Metal 4.0 is C++17; later features are errors outside
/// the emulator's own headers. Debug information locates sources as if they were in the folder
/// `/metal`.
const KERNEL: &str = "-Wno-everything -Werror=c++17-extensions -Werror=c++20-extensions \
     -Werror=c++23-extensions -fdeclspec -gdwarf-4 -g1 -fdebug-compilation-dir=/metal -ferror-limit=20 \
     -Xclang -ffloat16-excess-precision=none";

/// AddressSanitizer's instrumentation with our own runtime (see cpp/access.cpp), and checks of
/// undefined behaviour that involves no address.
const CHECKED: &str = "-O2 -fsanitize=address,alignment,bounds,shift,integer-divide-by-zero -fno-sanitize-recover=all \
     -fsanitize-address-use-after-return=never -mllvm -asan-memory-access-callback-prefix=msl_ \
     -mllvm -asan-instrumentation-with-call-threshold=0 -mllvm -asan-mapping-scale=4 -mllvm -asan-opt-same-temp=0 \
     -mllvm -asan-stack=0 -mllvm -asan-globals=0";

/// The runtime. Without builtins clang emits no calls to memcpy, which sanitizers would attribute
/// to the kernel.
const RUNTIME: &str = "-fno-strict-aliasing -fno-builtin";

/// The program that runs dispatches under a sanitizer.
const RUNNER: &str = "-x c++ -std=c++20 -O1 -g1 -fno-exceptions -fno-rtti -nostdinc++ -rdynamic";

/// The words of a text.
pub(crate) fn words(text: &str) -> Vec<String> {
    text.split_whitespace().map(str::to_owned).collect()
}

/// Flags of every translation unit.
fn common() -> Vec<String> {
    let wide = std::arch::is_x86_feature_detected!("avx2")
        && std::arch::is_x86_feature_detected!("fma")
        && std::arch::is_x86_feature_detected!("f16c");
    let mut flags = words(COMMON);
    flags.push(if wide { "-march=x86-64-v3" } else { "-march=x86-64" }.to_owned());
    flags
}

/// Flags of kernels.
pub(crate) fn kernel(sanitizer: Sanitizer, numerics: Numerics, tensors: bool) -> Vec<String> {
    let mut flags = common();
    flags.extend(words(KERNEL));
    flags.extend(words(if tensors { "-std=c++17 -DMSL_TENSORS" } else { "-std=c++14" }));
    let contract = if numerics.contract { "-ffp-contract=fast-honor-pragmas" } else { "-ffp-contract=off" };
    flags.push(contract.to_owned());
    // Few dispatches run under a sanitizer, and unoptimised code compiles in a tenth of the time
    // and hides nothing.
    flags.extend(words(match sanitizer {
        Sanitizer::None => CHECKED,
        Sanitizer::AddressUndefined => {
            "-O0 -fsanitize=address,undefined -fno-sanitize=function,vptr -fno-sanitize-recover=all"
        }
        Sanitizer::Thread => "-O0 -fsanitize=thread",
    }));
    flags
}

/// Flags of a kernel with products and sums contracted where allowed; the output is [`TEXT`].
pub(crate) fn contractible() -> Vec<String> {
    let mut flags = common();
    flags.extend(words(KERNEL));
    flags.extend(words("-std=c++14 -g0 -ffp-contract=fast-honor-pragmas"));
    flags
}

/// Makes clang write an object file.
pub(crate) const OBJECT: &str = "-c";

/// Accepts extensions of newer versions of C++.
pub(crate) const NEWER_LANGUAGE: &str = "-Wno-c++17-extensions -Wno-c++20-extensions -Wno-c++23-extensions";

/// Makes clang end after its front end.
pub(crate) const NOTHING: &str = "-fsyntax-only";

/// Makes clang write its output before optimisation, as text.
pub(crate) const TEXT: &str = "-S -emit-llvm -Xclang -disable-llvm-passes";

/// Makes clang write a parsed header. It does not contain the header's time, so that a cache may be
/// copied.
pub(crate) const HEADER: &str = "-Xclang -fno-pch-timestamp -x c++-header";

/// Flags of the runtime.
pub(crate) fn runtime(sanitizer: Sanitizer, counting: bool) -> Vec<String> {
    let mut flags = common();
    flags.extend(words(STANDARD));
    flags.extend(words(RUNTIME));
    flags.extend(words(match sanitizer {
        Sanitizer::None if counting => "-DMSL_COUNT",
        Sanitizer::None => "",
        Sanitizer::AddressUndefined => "-DMSL_ASAN",
        Sanitizer::Thread => "-DMSL_TSAN",
    }));
    flags
}

/// Flags of the runner, if the sanitizer has one.
pub(crate) fn runner(sanitizer: Sanitizer) -> Option<Vec<String>> {
    let sanitize = match sanitizer {
        Sanitizer::None => return None,
        Sanitizer::AddressUndefined => "-fsanitize=address,undefined -fno-sanitize=function,vptr",
        Sanitizer::Thread => "-fsanitize=thread",
    };
    let mut flags = words(RUNNER);
    flags.extend(words(sanitize));
    Some(flags)
}
