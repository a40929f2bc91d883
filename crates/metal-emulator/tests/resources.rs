//! Buffers that kernels reach through addresses in memory: every access is checked to the byte,
//! with and without sanitizers, and counted.
#![cfg(all(target_os = "linux", target_arch = "x86_64"))]
#![allow(clippy::unwrap_used, missing_docs)]

use crate::common::*;
use metal_emulator::{
    Binding, Buffer, Counters, Dispatch, Fault, FaultKind, LaneOrder, MAX_BINDINGS, MAX_RESOURCES, Options,
    Resource, RunOptions, Sanitizer,
};

const SOURCE: &str = include_str!("kernels/bugs.metal");

/// Three chunks of 40 words, 100 words apart, and a chunk that no dispatch may access.
struct Chunks {
    chunks: Vec<Buffer>,
    table: Buffer,
}

impl Chunks {
    fn new() -> Chunks {
        let words = |n: u32| uints(&(0..40).map(|i| 100 * n + i).collect::<Vec<_>>());
        let chunks: Vec<Buffer> = (0..4).map(words).collect();
        let addresses: Vec<u8> = chunks.iter().flat_map(|c| c.gpu_address().to_le_bytes()).collect();
        Chunks { table: Buffer::from_bytes(&addresses).unwrap(), chunks }
    }

    /// Reads 32 words of a chunk from `first` on, and writes `value` there unless it is 0.
    fn run(&self, o: Options, chunk: u32, first: u32, value: u32) -> Result<(Vec<u32>, Counters), Fault> {
        let library = compiler(o).compile("bugs.metal", SOURCE, &[]).unwrap();
        let pipeline = library.pipeline("through_an_address", &[]).unwrap();
        let y = Buffer::new(128).unwrap();
        let at: Vec<u8> = [chunk, first, value, 0].iter().flat_map(|n| n.to_le_bytes()).collect();
        let d = Dispatch {
            pipeline: &pipeline,
            buffers: &[Binding::new(0, &self.table), Binding::new(1, &y)],
            bytes: &[(2, &at)],
            threadgroup_memory: &[],
            threadgroups: [2, 1, 1],
            resources: &[
                Resource::write(&self.chunks[0]),
                Resource::read(&self.chunks[1]),
                Resource::write(&self.chunks[2]),
            ],
            threads_per_threadgroup: [16, 1, 1],
        };
        let counters = d.run(&RunOptions { order: LaneOrder::Forward, threads: 1 })?;
        Ok((to_uints(&y), counters))
    }
}

#[test]
fn resources_are_checked_to_the_byte() {
    let c = Chunks::new();
    let (y, _) = c.run(options(), 2, 8, 7).unwrap();
    assert_eq!(y, (0..32).map(|i| 208 + i).collect::<Vec<_>>());
    assert_eq!(to_uints(&c.chunks[2]), [&(200..208).collect::<Vec<_>>()[..], &[7; 32]].concat());
    assert_eq!(to_uints(&c.chunks[0]), (0..40).collect::<Vec<_>>());
    c.run(options(), 1, 8, 0).unwrap();

    // One word past the end.
    let fault = c.run(options(), 2, 9, 0).unwrap_err();
    let buffer = Some((MAX_BINDINGS + 2, 160, 160));
    assert_eq!(fault.kind, FaultKind::OutOfBounds { write: false, size: 4, buffer });
    assert!(fault.to_string().contains("offset 160 of resource 2, which has 160 bytes"), "{fault}");
    // A write to a read-only resource.
    let fault = c.run(options(), 1, 0, 7).unwrap_err();
    assert_eq!(fault.kind, FaultKind::ReadOnly { index: MAX_BINDINGS + 1, size: 4 });
    // A buffer that exists, but is not among the resources.
    let fault = c.run(options(), 3, 0, 0).unwrap_err();
    assert!(matches!(fault.kind, FaultKind::OutOfBounds { write: false, .. }), "{fault}");
}

#[test]
fn too_many_resources_are_refused() {
    let c = Chunks::new();
    let pipeline = compile("bugs.metal", SOURCE).pipeline("write", &[]).unwrap();
    let resources = vec![Resource::read(&c.table); MAX_RESOURCES + 1];
    let d = Dispatch {
        pipeline: &pipeline,
        buffers: &[Binding::new(0, &c.chunks[0])],
        bytes: &[],
        threadgroup_memory: &[],
        threadgroups: [1, 1, 1],
        resources: &resources,
        threads_per_threadgroup: [32, 1, 1],
    };
    let fault = d.run(&RunOptions::default()).unwrap_err();
    assert!(fault.to_string().contains("1025 resources"), "{fault}");
    Dispatch { resources: &resources[1..], ..d }.run(&RunOptions::default()).unwrap();
}

#[test]
fn traffic_of_resources_is_counted() {
    let c = Chunks::new();
    let (_, counters) = c.run(Options { counting: true, ..options() }, 2, 8, 7).unwrap();
    let [first, second, third] = counters.resources[..] else { panic!("{counters:?}") };
    assert_eq!((first.read, second.read, third.index), (0, 0, 2));
    assert_eq!((third.read, third.written, third.read_once, third.written_once), (128, 128, 128, 128));
    // The table is read by each thread, from one sector.
    assert_eq!(counters.device_bytes(), (32 + 128, 128 + 128));
}

/// The sanitizers' process maps resources at the same addresses, with nothing after them.
#[test]
fn sanitizers_check_resources() {
    for sanitizer in [Sanitizer::AddressUndefined, Sanitizer::Thread] {
        let options = || Options { sanitizer, ..options() };
        let c = Chunks::new();
        let (y, _) = c.run(options(), 2, 8, 7).unwrap();
        assert_eq!(y, (0..32).map(|i| 208 + i).collect::<Vec<_>>());
        assert_eq!(to_uints(&c.chunks[2])[8..], [7; 32]);
        if sanitizer == Sanitizer::AddressUndefined {
            let fault = c.run(options(), 2, 9, 0).unwrap_err();
            assert!(fault.to_string().contains("AddressSanitizer"), "{fault}");
        }
    }
}
