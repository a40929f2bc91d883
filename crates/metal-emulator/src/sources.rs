//! C++ sources for compiling kernels, embedded in the crate.

/// Headers, by name. The first is included before every kernel.
pub(crate) const HEADERS: &[(&str, &str)] = &[
    ("metal_stdlib.h", include_str!("../cpp/metal_stdlib.h")),
    ("runtime_calls.h", include_str!("../cpp/runtime_calls.h")),
    ("runtime.h", include_str!("../cpp/runtime.h")),
    ("types.h", include_str!("../cpp/types.h")),
    ("vectors.h", include_str!("../cpp/vectors.h")),
    ("math.h", include_str!("../cpp/math.h")),
    ("simdgroup.h", include_str!("../cpp/simdgroup.h")),
    ("simdgroup_matrix.h", include_str!("../cpp/simdgroup_matrix.h")),
    ("metal_tensor.h", include_str!("../cpp/metal_tensor.h")),
    ("atomic.h", include_str!("../cpp/atomic.h")),
    ("internals.h", include_str!("../cpp/internals.h")),
    ("launch.h", include_str!("../cpp/launch.h")),
    ("worker.h", include_str!("../cpp/worker.h")),
];

/// The runtime's translation units.
pub(crate) const RUNTIME: (&str, &str) = ("runtime.cpp", include_str!("../cpp/runtime.cpp"));
pub(crate) const ACCESS: (&str, &str) = ("access.cpp", include_str!("../cpp/access.cpp"));
pub(crate) const RUNNER: (&str, &str) = ("runner.cpp", include_str!("../cpp/runner.cpp"));

/// Names that `#include <...>` finds in Metal 4.0 only.
pub(crate) const TENSORS: &[&str] =
    &["metal_tensor", "MetalPerformancePrimitives/MetalPerformancePrimitives.h"];

/// Content of [`TENSORS`]: everything is included already.
pub(crate) const TENSORS_TEXT: &str = "#ifndef __HAVE_TENSOR__\n#error \"tensors need Metal 4.0\"\n#endif\n";

/// Names that `#include <...>` finds. They are empty: everything is included already.
pub(crate) const STANDARD: &[&str] = &[
    "metal_stdlib",
    "metal_atomic",
    "metal_common",
    "metal_compute",
    "metal_geometric",
    "metal_integer",
    "metal_limits",
    "metal_math",
    "metal_matrix",
    "metal_numeric",
    "metal_pack",
    "metal_relational",
    "metal_simdgroup",
    "metal_simdgroup_matrix",
    "metal_type_traits",
    "metal_types",
    "metal_uniform",
    "simd/simd.h",
];
