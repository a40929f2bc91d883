//! Threadgroups of fewer threads than a table names, for kernels that need more registers than a
//! GPU has for so many threads.
//!
//! A table is written before its kernels are compiled, so that its threads are a wish. A pipeline
//! is made for half the threads if the GPU refuses them. Each dispatch of that pipeline then has
//! fewer threads or more threadgroups than the table says.

use super::Request;
use device::{Error, Result};

/// The way in which a kernel runs with fewer threads than its table names.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fewer {
    /// It cannot.
    Never,
    /// In the same number of threadgroups, each of any number of whole SIMD-groups.
    SameGroups,
    /// In more threadgroups along x, so that there are as many threads in all, or some more, which
    /// do nothing. Threads of a threadgroup stay a multiple of this number.
    MoreGroups(u32),
}

impl Fewer {
    /// The next smaller number of threads of a threadgroup.
    fn below(self, threads: u32) -> Option<u32> {
        match self {
            Fewer::Never => None,
            Fewer::SameGroups => Fewer::MoreGroups(32).below(threads),
            Fewer::MoreGroups(unit) => (threads > unit).then(|| (threads / unit).div_ceil(2) * unit),
        }
    }
}

/// Threads that a pipeline was made for, and what its dispatches do about it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Fitted {
    /// Threads of a threadgroup, at most.
    pub threads: u32,
    fewer: Fewer,
}

impl Fitted {
    /// Makes a pipeline for the threads of a request, or for the most that the GPU allows it.
    /// `make` returns a pipeline for a number of threads, and the number that the GPU allows.
    ///
    /// # Errors
    /// The first error of `make`, or the kernel cannot run with as few threads as allowed.
    pub fn make<P>(
        request: &Request,
        device: &'static str,
        mut make: impl FnMut(u32) -> Result<(P, u32)>,
    ) -> Result<(P, Fitted)> {
        let (wanted, fewer) = (request.threads, request.fewer);
        let mut threads = wanted;
        let mut first = None;
        loop {
            let error = match make(threads) {
                Ok((pipeline, most)) if most >= threads => return Ok((pipeline, Fitted { threads, fewer })),
                Ok((_, most)) => Error::Unsupported {
                    device,
                    what: format!("a threadgroup of {wanted} threads for {}", request.kernel.function),
                    hint: format!(
                        "this GPU runs at most {most} of them; please report it, and use --device cpu"
                    ),
                },
                Err(error) => error,
            };
            let error = first.take().unwrap_or(error);
            match fewer.below(threads) {
                Some(below) => (first, threads) = (Some(error), below),
                None => return Err(error),
            }
        }
    }

    /// Threadgroups and threads of a dispatch for which the table names these.
    pub fn grid(self, threadgroups: [u32; 3], threads: [u32; 3]) -> ([u32; 3], [u32; 3]) {
        let ([width, height, depth], [wanted, ..]) = (threadgroups, threads);
        let n = wanted.min(self.threads);
        match self.fewer {
            Fewer::Never | Fewer::SameGroups => (threadgroups, [n, 1, 1]),
            Fewer::MoreGroups(_) => ([width * wanted.div_ceil(n), height, depth], [n, 1, 1]),
        }
    }

    /// Tells that a kernel runs with fewer threads than it was to; nothing if it does not.
    pub fn note(self, request: &Request) -> Option<String> {
        let (function, wanted) = (&request.kernel.function, request.threads);
        let is_fewer = self.threads < wanted;
        is_fewer.then(|| format!("{function} has threadgroups of {} threads, not {wanted}", self.threads))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The threads of a pipeline of 512, and of the attempts to make it, on a GPU that allows
    /// `most`.
    fn fit(fewer: Fewer, most: u32) -> (std::result::Result<Fitted, String>, Vec<u32>) {
        fit_threads(512, fewer, most)
    }

    fn fit_threads(threads: u32, fewer: Fewer, most: u32) -> (std::result::Result<Fitted, String>, Vec<u32>) {
        let request = Request { fewer, ..Request::plain("x.metal", "x", threads) };
        let mut tried = vec![];
        let made = Fitted::make(&request, "metal", |threads| {
            tried.push(threads);
            Ok(((), most))
        });
        (made.map(|((), fitted)| fitted).map_err(|error| error.to_string()), tried)
    }

    #[test]
    fn a_refusal_halves_the_threads_where_the_kernel_allows_it() {
        let (fitted, tried) = fit(Fewer::MoreGroups(64), 448);
        let fitted = fitted.unwrap();
        assert_eq!((fitted.threads, tried), (256, vec![512, 256]));
        assert_eq!(fitted.grid([5, 2, 1], [512, 1, 1]), ([10, 2, 1], [256, 1, 1]));
        let request = Request::plain("x.metal", "x", 512);
        assert_eq!(fitted.note(&request).unwrap(), "x has threadgroups of 256 threads, not 512");

        // Odd numbers of units leave threads without work.
        let (fitted, tried) = fit_threads(160, Fewer::MoreGroups(32), 100);
        assert_eq!(
            (fitted.unwrap().grid([5, 1, 1], [160, 1, 1]), tried),
            (([10, 1, 1], [96, 1, 1]), vec![160, 96])
        );

        let (fitted, _) = fit(Fewer::SameGroups, 100);
        assert_eq!(fitted.unwrap().grid([5, 2, 1], [512, 1, 1]), ([5, 2, 1], [64, 1, 1]));

        let (fitted, tried) = fit(Fewer::MoreGroups(512), 1024);
        assert_eq!(
            (fitted.clone().unwrap().grid([5, 1, 1], [512, 1, 1]), tried),
            (([5, 1, 1], [512, 1, 1]), vec![512])
        );
        assert_eq!(fitted.unwrap().note(&request), None);
    }

    #[test]
    fn a_refusal_that_nothing_helps_is_an_error() {
        for (fewer, n_tried) in [(Fewer::Never, 1), (Fewer::MoreGroups(256), 2), (Fewer::SameGroups, 5)] {
            let (made, tried) = fit(fewer, 16);
            let error = made.unwrap_err();
            assert!(error.contains("512 threads for x") && error.contains("at most 16"), "{error}");
            assert_eq!(tried.len(), n_tried);
        }
        // An error of the compiler is that of the first attempt.
        let request = Request { fewer: Fewer::SameGroups, ..Request::plain("x.metal", "x", 64) };
        let error = Fitted::make::<()>(&request, "metal", |threads| {
            Err(Error::Failed { device: "metal", reason: format!("with {threads}") })
        });
        assert!(error.unwrap_err().to_string().contains("with 64"));
    }
}
