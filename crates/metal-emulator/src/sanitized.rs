//! Runs dispatches under a sanitizer, in a process of their own. A sanitizer's runtime must be
//! present from the program's start, and its reports end the program.

use crate::abi::{MslBuffer, MslCounters, MslFault};
use crate::counters::{Counters, SimdgroupInstructions};
use crate::dispatch::{Dispatch, Resource, RunOptions, order_of};
use crate::error::{Fault, FaultKind};
use crate::options::Sanitizer;
use std::fs;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicU64, Ordering};

/// Exit status of the runner if the address of a resource is in use.
const TAKEN: i32 = 3;

static COUNT: AtomicU64 = AtomicU64::new(0);

/// Runs a validated dispatch, and copies its results into the buffers that kernels may write.
pub(crate) fn run(
    d: &Dispatch<'_>,
    options: &RunOptions,
    runner: &Path,
    sanitizer: Sanitizer,
) -> Result<Counters, Fault> {
    let failed = |text: String| d.fault(FaultKind::Dispatch(text));
    if d.resources.iter().any(|r| d.buffers.iter().any(|b| std::ptr::eq(b.buffer, r.buffer))) {
        return Err(failed(
            "a buffer is both bound and a resource, which sanitizers do not support".to_owned(),
        ));
    }
    let number = COUNT.fetch_add(1, Ordering::Relaxed);
    let name = |what: &str| runner.with_file_name(format!("{what}-{}-{number}", std::process::id()));
    let (request, answer) = (Removed(name("request")), Removed(name("answer")));
    let (text, memory) = encode(d, options);
    fs::write(&request.0, text).map_err(|e| failed(format!("{}: {e}", request.0.display())))?;
    let mut command = Command::new(runner);
    command.arg(&request.0).arg(&answer.0);
    let symbolizer =
        symbolizer().map_or(String::new(), |p| format!(":external_symbolizer_path={}", p.display()));
    command.env(
        "ASAN_OPTIONS",
        format!("detect_leaks=0:detect_stack_use_after_return=0:exitcode=77{symbolizer}"),
    );
    command.env("UBSAN_OPTIONS", format!("print_stacktrace=1:halt_on_error=1{symbolizer}"));
    // At exit its runtime would wait a second for other threads to finish, but there are none.
    command.env("TSAN_OPTIONS", format!("halt_on_error=1:exitcode=66:atexit_sleep_ms=0{symbolizer}"));
    if sanitizer == Sanitizer::Thread {
        // SAFETY: The closure makes only a system call, which is allowed between fork and exec. If
        // the call fails, newer runtimes make it themselves and older ones mostly work without.
        unsafe {
            command.pre_exec(|| {
                libc::personality(libc::ADDR_NO_RANDOMIZE as libc::c_ulong);
                Ok(())
            });
        }
    }
    let mut run = || command.output().map_err(|e| failed(format!("{}: {e}", runner.display())));
    let mut output = run()?;
    // Resources must be at the addresses in kernels' pointers. If the system uses one for something
    // else, it chooses another address next time.
    for _ in 0..4 {
        if output.status.code() != Some(TAKEN) {
            break;
        }
        output = run()?;
    }
    let report = String::from_utf8_lossy(&output.stderr);
    if !output.status.success() {
        return Err(d.fault(FaultKind::Sanitizer(format!("{}\n{report}", output.status))));
    }
    let bytes = fs::read(&answer.0).map_err(|e| failed(format!("{}: {e}", answer.0.display())))?;
    decode(d, &bytes, &memory)
}

/// A file that is removed on drop.
struct Removed(PathBuf);

impl Drop for Removed {
    fn drop(&mut self) {
        // A leftover file in the cache only takes space.
        let _ = fs::remove_file(&self.0);
    }
}

/// The request, and the first binding and length of each allocation.
fn encode(d: &Dispatch<'_>, options: &RunOptions) -> (Vec<u8>, Vec<(usize, usize)>) {
    let mut out = Vec::new();
    let put = |out: &mut Vec<u8>, n: u64| out.extend_from_slice(&n.to_le_bytes());
    let path = d.pipeline.specialised.as_os_str().as_encoded_bytes();
    put(&mut out, path.len() as u64);
    out.extend_from_slice(path);
    put(&mut out, u64::from(d.pipeline.index));
    for n in d.threadgroups.iter().chain(&d.threads_per_threadgroup) {
        put(&mut out, u64::from(*n));
    }
    let (order, seed) = order_of(options.order);
    put(&mut out, u64::from(order));
    put(&mut out, seed);
    // A buffer with several bindings is one allocation.
    let mut memory: Vec<(usize, usize)> = Vec::new();
    let which: Vec<usize> = (0..d.buffers.len())
        .map(|n| {
            let same =
                memory.iter().position(|(o, _)| std::ptr::eq(d.buffers[*o].buffer, d.buffers[n].buffer));
            same.unwrap_or_else(|| {
                memory.push((n, d.buffers[n].buffer.len()));
                memory.len() - 1
            })
        })
        .collect();
    put(&mut out, (memory.len() + d.bytes.len()) as u64);
    for (n, length) in &memory {
        put(&mut out, *length as u64);
        out.extend_from_slice(d.buffers[*n].buffer.as_slice());
    }
    for (_, bytes) in d.bytes {
        put(&mut out, bytes.len() as u64);
        out.extend_from_slice(bytes);
    }
    put(&mut out, (d.buffers.len() + d.bytes.len()) as u64);
    for (b, which) in d.buffers.iter().zip(which) {
        for n in [which as u64, b.offset as u64, u64::from(b.index)] {
            put(&mut out, n);
        }
    }
    for (n, (index, _)) in d.bytes.iter().enumerate() {
        for n in [(memory.len() + n) as u64, 0, u64::from(*index)] {
            put(&mut out, n);
        }
    }
    put(&mut out, d.resources.len() as u64);
    for r in d.resources {
        for n in [r.buffer.gpu_address(), r.buffer.len() as u64] {
            put(&mut out, n);
        }
        out.extend_from_slice(r.buffer.as_slice());
    }
    put(&mut out, d.threadgroup_memory.len() as u64);
    for (index, length) in d.threadgroup_memory {
        put(&mut out, u64::from(*index));
        put(&mut out, u64::from(*length));
    }
    (out, memory)
}

/// Copies the results into the buffers, and returns the counters.
fn decode(d: &Dispatch<'_>, bytes: &[u8], memory: &[(usize, usize)]) -> Result<Counters, Fault> {
    let head = size_of::<MslCounters>() + size_of::<MslFault>();
    // The result contains by-value arguments, too, after the allocations.
    let by_value = d.bytes.iter().map(|(_, bytes)| bytes.len()).sum::<usize>();
    let resources = d.resources.iter().map(|r| r.buffer.len()).sum::<usize>();
    let whole = head + memory.iter().map(|(_, n)| n).sum::<usize>() + by_value + resources;
    if bytes.len() < whole {
        return Err(d.fault(FaultKind::Dispatch(format!(
            "the runner returned {} bytes, expected {whole}",
            bytes.len()
        ))));
    }
    // SAFETY: Both types are structs of integers, valid for any bytes; `bytes` was checked to be
    // long enough for both.
    let (c, f) = unsafe {
        (
            bytes.as_ptr().cast::<MslCounters>().read_unaligned(),
            bytes[size_of::<MslCounters>()..].as_ptr().cast::<MslFault>().read_unaligned(),
        )
    };
    if f.kind != 0 {
        let none: [MslBuffer; 0] = [];
        return Err(d.found(&f, &none));
    }
    let mut at = head;
    for (n, length) in memory {
        let buffer = d.buffers[*n].buffer;
        if buffer.is_writable() {
            // SAFETY: The source has `length` bytes from `at`, since `bytes.len() >= whole`; the
            // destination is the writable buffer's contents of the same length.
            unsafe { std::ptr::copy_nonoverlapping(bytes[at..].as_ptr(), buffer.contents(), *length) };
        }
        at += length;
    }
    at += by_value;
    for Resource { buffer, writable } in d.resources {
        if *writable && buffer.is_writable() {
            // SAFETY: The source has the resource's length from its place after the allocations,
            // since `bytes.len() >= whole`; the destination is the writable buffer's contents of
            // the same length.
            unsafe {
                std::ptr::copy_nonoverlapping(bytes[at..].as_ptr(), buffer.contents(), buffer.len());
            }
        }
        at += buffer.len();
    }
    let [shuffles, reductions, votes, matrix_multiplies, barriers, tensor_products] = c.operations;
    Ok(Counters {
        threadgroups: c.threadgroups,
        threads: c.threads,
        threadgroup_barriers: c.threadgroup_barriers,
        simdgroup: SimdgroupInstructions {
            shuffles,
            reductions,
            votes,
            matrix_multiplies,
            barriers,
            tensor_products,
        },
        ..Counters::default()
    })
}

/// A program that resolves addresses to source lines in reports.
fn symbolizer() -> Option<PathBuf> {
    let path = std::env::var_os("PATH")?;
    ["llvm-symbolizer", "addr2line"]
        .iter()
        .find_map(|name| std::env::split_paths(&path).map(|p| p.join(name)).find(|p| p.is_file()))
}
