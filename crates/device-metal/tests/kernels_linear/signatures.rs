//! The parameters of the products.

use crate::launch::parameters;

/// All products of a type have the parameters of `linear/parameters.h`, at the same indices.
#[test]
fn products_share_one_parameter_list() {
    let found = parameters("linear/q4_0.metal");
    let products: Vec<_> = found.iter().filter(|(name, _)| name.contains("linear_")).collect();
    assert_eq!(products.len(), 12, "gemv 5, gemm 2, joined, merged, and three of experts");
    let shared: Vec<(u32, &str)> = vec![
        (1, "x"),
        (2, "norm"),
        (3, "codes_0"),
        (4, "codes_1"),
        (5, "codes_2"),
        (6, "scales_0"),
        (7, "scales_1"),
        (8, "scales_2"),
        (9, "offsets_0"),
        (10, "offsets_1"),
        (11, "offsets_2"),
        (12, "bias_0"),
        (13, "bias_1"),
        (14, "bias_2"),
        (15, "other"),
        (16, "y_0"),
        (17, "y_1"),
        (18, "y_2"),
        (19, "partials"),
    ];
    for (function, buffers) in products {
        let of_all: Vec<_> =
            buffers.iter().filter(|(i, _)| (1..20).contains(i)).map(|(i, n)| (*i, n.as_str())).collect();
        assert_eq!(of_all, shared, "{function}");
    }
}
