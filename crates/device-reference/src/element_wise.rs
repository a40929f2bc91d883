//! Activate, Gate, GateClamped, Add, Scale, Softcap, Clamp: Ops that compute each element by
//! itself.

use device::Activation;

/// The function of one number.
pub fn activate(kind: Activation, x: f32) -> f32 {
    match kind {
        Activation::Silu => x / (1.0 + (-x).exp()),
        Activation::GeluTanh => {
            const SQRT_2_OVER_PI: f32 = 0.797_884_6;
            0.5 * x * (1.0 + (SQRT_2_OVER_PI * (x + 0.044715 * x * x * x)).tanh())
        }
        Activation::GeluErf => {
            let x = f64::from(x);
            (0.5 * x * (1.0 + erf(x * std::f64::consts::FRAC_1_SQRT_2))) as f32
        }
        Activation::Relu => x.max(0.0),
        Activation::Sigmoid => 1.0 / (1.0 + (-x).exp()),
        Activation::Identity => x,
        Activation::ReluSquared => x.max(0.0) * x.max(0.0),
        // Without the larger term, `exp` would overflow.
        Activation::Softplus => x.max(0.0) + (-x.abs()).exp().ln_1p(),
    }
}

/// The error function, to about 1e-15: `2 / sqrt(pi) * exp(-x^2) * sum of 2^n x^(2n+1) / (1 * 3 *
/// .. * (2n+1))` (Abramowitz and Stegun, 7.1.6). All terms have the sign of x, so no digits cancel.
pub fn erf(x: f64) -> f64 {
    if x.abs() > 6.0 {
        return x.signum(); // differs by 2e-17
    }
    let (mut sum, mut term, mut n) = (x, x, 0.0);
    while term.abs() > sum.abs() * 1e-17 {
        n += 1.0;
        term *= 2.0 * x * x / (2.0 * n + 1.0);
        sum += term;
    }
    std::f64::consts::FRAC_2_SQRT_PI * (-x * x).exp() * sum
}

/// `out = kind(x)`
pub fn activation(kind: Activation, x: &[f32], out: &mut [f32]) {
    unary(x, out, |x| activate(kind, x));
}

/// `out = kind(gate) * up`
pub fn gate(kind: Activation, gate: &[f32], up: &[f32], out: &mut [f32]) {
    binary(gate, up, out, |gate, up| activate(kind, gate) * up);
}

/// `out = g * sigmoid(alpha * g) * (u + 1)`, with gate and up clamped
pub fn gate_clamped(alpha: f32, limit: f32, gate: &[f32], up: &[f32], out: &mut [f32]) {
    binary(gate, up, out, |gate, up| {
        let (gate, up) = (gate.min(limit), up.clamp(-limit, limit));
        gate / (1.0 + (-alpha * gate).exp()) * (up + 1.0)
    });
}

/// `out = a + b`
pub fn add(a: &[f32], b: &[f32], out: &mut [f32]) {
    binary(a, b, out, |a, b| a + b);
}

/// `out = factor * x`
pub fn scale(factor: f32, x: &[f32], out: &mut [f32]) {
    unary(x, out, |x| factor * x);
}

/// `out = cap * tanh(x / cap)`
pub fn softcap(cap: f32, x: &[f32], out: &mut [f32]) {
    unary(x, out, |x| cap * (x / cap).tanh());
}

/// `out = max(min, min(x, max))`
pub fn clamp(min: f32, max: f32, x: &[f32], out: &mut [f32]) {
    unary(x, out, |x| x.min(max).max(min));
}

fn unary(x: &[f32], out: &mut [f32], f: impl Fn(f32) -> f32) {
    for (out, x) in out.iter_mut().zip(x) {
        *out = f(*x);
    }
}

fn binary(a: &[f32], b: &[f32], out: &mut [f32], f: impl Fn(f32, f32) -> f32) {
    for (out, (a, b)) in out.iter_mut().zip(a.iter().zip(b)) {
        *out = f(*a, *b);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_error_function_at_tabulated_points() {
        // Abramowitz and Stegun, table 7.1.
        for (x, y) in [(0.0, 0.0), (0.5, 0.520_499_877_8), (1.0, 0.842_700_792_9), (2.0, 0.995_322_265_0)] {
            assert!((erf(x) - y).abs() < 1e-10 && (erf(-x) + y).abs() < 1e-10, "{x}");
        }
        assert_eq!((erf(7.0), erf(-50.0)), (1.0, -1.0));
        assert!((erf(5.99) - 1.0).abs() < 1e-15);
    }

    #[test]
    fn activations_at_known_points() {
        let near = |kind, x: f32, y: f32| {
            let found = activate(kind, x);
            assert!((found - y).abs() <= 1e-6, "{kind} {x}: {found} {y}");
        };
        near(Activation::Silu, 1.0, 0.731_058_6);
        near(Activation::Silu, -200.0, 0.0);
        near(Activation::GeluErf, 1.0, 0.841_344_7);
        near(Activation::GeluErf, -1.0, -0.158_655_3);
        near(Activation::GeluTanh, 1.0, 0.841_192);
        near(Activation::GeluTanh, -30.0, 0.0);
        near(Activation::Relu, -3.0, 0.0);
        near(Activation::Relu, 3.0, 3.0);
        near(Activation::Sigmoid, 1.0, 0.731_058_6);
        near(Activation::Sigmoid, -200.0, 0.0);
        near(Activation::Identity, -3.0, -3.0);
        near(Activation::ReluSquared, -3.0, 0.0);
        near(Activation::ReluSquared, 3.0, 9.0);
        near(Activation::Softplus, 0.0, std::f32::consts::LN_2);
        near(Activation::Softplus, 200.0, 200.0);
        near(Activation::Softplus, -10.0, 4.539_889_9e-5);
    }

    #[test]
    fn clamp_bounds() {
        let mut out = [0.0; 4];
        clamp(-1.0, 0.5, &[-3.0, -0.25, 0.5, 9.0], &mut out);
        assert_eq!(out, [-1.0, -0.25, 0.5, 0.5]);
    }

    #[test]
    fn softcap_bounds() {
        let mut out = [0.0; 3];
        softcap(30.0, &[0.0, 30.0, -1e9], &mut out);
        assert_eq!(out, [0.0, 30.0 * 1f32.tanh(), -30.0]);
    }
}
