//! The loop of all element-wise kernels: `out[i] = f(a[i], b[i])`, with `(n, cols)` values treated
//! as one vector.
//!
//! Workers get contiguous shares of whole cache lines. Bytes of a value: 8 read (4 for one input),
//! 4 written.

use crate::command::Worker;
use crate::simd::Simd;
use device::RowCount;

/// Parameters of every element-wise kernel.
#[derive(Clone, Copy)]
pub struct ElementwiseParams {
    /// `(n, cols)`
    pub a: *const f32,
    /// `(n, cols)`; equal to `a` for functions of one input.
    pub b: *const f32,
    /// `(n, cols)`; may alias `a` or `b`.
    pub out: *mut f32,
    /// Columns.
    pub cols: usize,
    /// Kind of rows (tokens or outputs).
    pub rows: RowCount,
    /// Parameter of the function: a factor or a bound.
    pub factor: f32,
}

/// A function of two numbers, as a type; see [`Curve`](crate::simd::math::Curve) for why it is not
/// a closure.
pub trait Function {
    /// The function's values.
    ///
    /// # Safety
    /// The instruction set is available.
    unsafe fn of<S: Simd>(&self, a: S::V, b: S::V) -> S::V;
}

/// `a`
#[derive(Clone, Copy)]
pub struct Same;
/// `a + b`
#[derive(Clone, Copy)]
pub struct Sum;
/// `factor * a`
#[derive(Clone, Copy)]
pub struct Times(pub f32);
/// `factor * a * b`
#[derive(Clone, Copy)]
pub struct TimesBoth(pub f32);

impl Function for Same {
    #[inline(always)]
    unsafe fn of<S: Simd>(&self, a: S::V, _: S::V) -> S::V {
        a
    }
}

impl Function for Sum {
    #[inline(always)]
    unsafe fn of<S: Simd>(&self, a: S::V, b: S::V) -> S::V {
        // SAFETY: by the caller, the instruction set is available.
        unsafe { S::add(a, b) }
    }
}

impl Function for Times {
    #[inline(always)]
    unsafe fn of<S: Simd>(&self, a: S::V, _: S::V) -> S::V {
        // SAFETY: by the caller, the instruction set is available.
        unsafe { S::mul(a, S::splat(self.0)) }
    }
}

impl Function for TimesBoth {
    #[inline(always)]
    unsafe fn of<S: Simd>(&self, a: S::V, b: S::V) -> S::V {
        // SAFETY: by the caller, the instruction set is available.
        unsafe { S::mul(S::mul(a, S::splat(self.0)), b) }
    }
}

/// Applies `f` to all values of this worker's share.
///
/// # Safety
/// As [`crate::command::Kernel`].
#[inline(always)]
pub unsafe fn map<S: Simd>(p: &ElementwiseParams, worker: &Worker<'_>, f: impl Function) {
    let share = worker.share(worker.step.n_rows(p.rows) * p.cols, 16);
    // SAFETY: `share` is within the step's rows times `cols`, for which `a`, `b` and `out` are
    // valid.
    unsafe {
        let (a, b, out) = (p.a.add(share.start), p.b.add(share.start), p.out.add(share.start));
        combine::<S>(a, b, out, share.len(), f);
    }
}

/// Computes `out[i] = f(a[i], b[i])` for `n` values; `out` may alias `a` or `b`.
///
/// # Safety
/// `a` and `b` are valid for reads of `n` values, `out` for writes; the instruction set is
/// available.
#[inline(always)]
pub unsafe fn combine<S: Simd>(a: *const f32, b: *const f32, out: *mut f32, n: usize, f: impl Function) {
    let whole = n / S::N * S::N;
    // SAFETY: the caller guarantees `n` values at `a`, `b` and `out`, and the instruction set.
    // Vectors end at `whole`; the rest is copied to and from arrays of a vector's length.
    unsafe {
        for i in (0..whole).step_by(S::N) {
            S::store(out.add(i), f.of::<S>(S::load(a.add(i)), S::load(b.add(i))));
        }
        let rest = n - whole;
        if rest > 0 {
            let (mut u, mut v) = ([0f32; 16], [0f32; 16]);
            u.as_mut_ptr().copy_from_nonoverlapping(a.add(whole), rest);
            v.as_mut_ptr().copy_from_nonoverlapping(b.add(whole), rest);
            let y = f.of::<S>(S::load(u.as_ptr()), S::load(v.as_ptr()));
            S::store(u.as_mut_ptr(), y);
            out.add(whole).copy_from_nonoverlapping(u.as_ptr(), rest);
        }
    }
}

/// Defines `$name(isa, kind)`, which returns the kernel that applies `$function<Curve>` of an
/// activation. Each activation has its own instance, so that no loop branches on it.
macro_rules! of_curves {
    ($name:ident, $function:ident) => {
        of_curves!($name, $function, Silu GeluTanh GeluErf Relu Sigmoid Identity ReluSquared Softplus);
    };
    ($name:ident, $function:ident, $($curve:ident)*) => {
        /// The kernel for a function and an instruction set.
        pub fn $name(
            isa: $crate::isa::Isa,
            kind: device::Activation,
        ) -> $crate::command::Kernel<$crate::kernels::elementwise::ElementwiseParams> {
            use $crate::command::Worker;
            use $crate::kernels::elementwise::{ElementwiseParams, map};
            use $crate::simd::{math, variants};
            match kind {
                $(device::Activation::$curve => {
                    /// # Safety
                    /// As [`crate::command::Kernel`].
                    #[inline(always)]
                    unsafe fn body<S: Simd>(p: &ElementwiseParams, worker: &Worker<'_>) {
                        // SAFETY: by the caller, the parameters' pointers are valid for the rows of
                        // the step, and no other worker writes what this one reads. The caller
                        // checked the instruction set.
                        unsafe { map::<S>(p, worker, $function::<math::$curve>(PhantomData)) }
                    }
                    variants!(kernel, body, ElementwiseParams);
                    kernel(isa)
                })*
            }
        }
    };
}
pub(crate) use of_curves;
