//! Every kind of fault is detected, with its location; the same kernels pass when within bounds.
#![cfg(all(target_os = "linux", target_arch = "x86_64"))]
#![allow(clippy::unwrap_used, missing_docs, unsafe_code)]

use crate::common::*;
use metal_emulator::{Binding, Buffer, Dispatch, Fault, FaultKind, LaneOrder, Library, Options, RunOptions};
use std::ptr::NonNull;
use std::time::Duration;

const SOURCE: &str = include_str!("kernels/bugs.metal");

fn library() -> Library {
    compile("bugs.metal", SOURCE)
}

/// The line number of `text` in the source.
fn line(text: &str) -> u32 {
    1 + SOURCE.lines().position(|l| l.contains(text)).unwrap() as u32
}

/// Runs one threadgroup of a kernel that must fault, in every order. Returns the first fault.
fn fault(function: &str, buffers: &[&Buffer], threads: u32) -> Fault {
    let p = library().pipeline(function, &[]).unwrap();
    let faults: Vec<Fault> = ORDERS.iter().map(|o| run(&p, buffers, 1, threads, *o).unwrap_err()).collect();
    for f in &faults {
        assert_eq!(std::mem::discriminant(&f.kind), std::mem::discriminant(&faults[0].kind), "{f}");
    }
    faults[0].clone()
}

fn at(f: &Fault) -> (&str, u32) {
    f.location.as_ref().map_or(("", 0), |l| (l.file.as_str(), l.line))
}

#[test]
fn accesses_past_the_end_are_detected_to_the_byte() {
    let x = Buffer::new(32 * 4).unwrap();
    let f = fault("past_the_end", &[&x], 32);
    assert_eq!(f.kind, FaultKind::OutOfBounds { write: true, size: 4, buffer: Some((0, 128, 128)) });
    assert_eq!(at(&f), ("bugs.metal", line("x[t + 1] = t;")));
    assert_eq!(f.thread.as_ref().map(|t| (t.threadgroup, t.thread)), Some(([0, 0, 0], [31, 0, 0])));
    let text = f.to_string();
    assert!(
        text.contains("past_the_end at bugs.metal:")
            && text.contains("offset 128 of buffer 0, which has 128 bytes"),
        "{text}"
    );
    // With one more element it is correct.
    let x = Buffer::new(33 * 4).unwrap();
    run(&library().pipeline("past_the_end", &[]).unwrap(), &[&x], 1, 32, LaneOrder::Forward).unwrap();
    // A length that is not a multiple of a page, word or sector.
    for length in [1usize, 17, 4095, 4096, 16385] {
        let x = Buffer::new(length).unwrap();
        let last = uints(&[length as u32 - 1]);
        let p = library().pipeline("last_byte", &[]).unwrap();
        run(&p, &[&x, &last], 1, 1, LaneOrder::Forward).unwrap();
        let f = run(&p, &[&x, &uints(&[length as u32])], 1, 1, LaneOrder::Forward).unwrap_err();
        assert_eq!(
            f.kind,
            FaultKind::OutOfBounds { write: true, size: 1, buffer: Some((0, length as i64, length as u64)) }
        );
    }
}

#[test]
fn accesses_before_far_away_and_across_the_end_are_detected() {
    let (x, y) = (Buffer::new(128).unwrap(), Buffer::new(128).unwrap());
    let f = fault("before_the_start", &[&x, &y], 32);
    assert_eq!(f.kind, FaultKind::OutOfBounds { write: false, size: 4, buffer: Some((0, -4, 128)) });
    let f = fault("far_away", &[&x, &y], 32);
    assert!(matches!(f.kind, FaultKind::OutOfBounds { write: false, .. }), "{f}");
    let blocks = Buffer::new(31 * 18 + 17).unwrap();
    let f = fault("half_a_block", &[&blocks, &y], 32);
    assert!(
        matches!(f.kind, FaultKind::OutOfBounds { write: false, buffer: Some((0, at, 575)), .. } if at >= 31 * 18),
        "{f}"
    );
    let p = library().pipeline("half_a_block", &[]).unwrap();
    run(&p, &[&Buffer::new(32 * 18).unwrap(), &y], 1, 32, LaneOrder::Forward).unwrap();
}

#[test]
fn too_short_a_value_is_detected() {
    let p = library().pipeline("arguments_too_short", &[]).unwrap();
    let y = Buffer::new(4).unwrap();
    let mut d = Dispatch {
        pipeline: &p,
        buffers: &[Binding::new(1, &y)],
        bytes: &[(0, &[0; 12])],
        threadgroup_memory: &[],
        threadgroups: [1, 1, 1],
        resources: &[],
        threads_per_threadgroup: [1, 1, 1],
    };
    let f = d.run(&RunOptions::default()).unwrap_err();
    assert!(matches!(f.kind, FaultKind::OutOfBounds { buffer: Some((0, _, 12)), .. }), "{f}");
    d.bytes = &[(0, &[0; 16])];
    d.run(&RunOptions::default()).unwrap();
}

#[test]
fn a_value_in_a_shared_buffer_ends_where_its_binding_ends() {
    let arena = Buffer::new(1024).unwrap();
    let p = library().pipeline("into_the_neighbour", &[]).unwrap();
    let bindings =
        |limit: usize| [Binding::new(0, &arena).limit(limit), Binding::new(1, &arena).at(128).limit(128)];
    let run = |bindings: &[Binding]| {
        let d = Dispatch {
            pipeline: &p,
            buffers: bindings,
            bytes: &[],
            threadgroup_memory: &[],
            threadgroups: [1, 1, 1],
            resources: &[],
            threads_per_threadgroup: [32, 1, 1],
        };
        d.run(&RunOptions::default())
    };
    // The write hits the memory bound at 1, through the pointer bound at 0.
    let f = run(&bindings(128)).unwrap_err();
    assert_eq!(f.kind, FaultKind::OutOfBounds { write: true, size: 4, buffer: Some((0, 128, 128)) });
    run(&bindings(256)).unwrap();
    assert_eq!(to_floats(&arena)[32..64], [2.0; 32], "both bindings share memory");
}

#[test]
fn read_only_memory_is_not_written() {
    let data = [1.0f32; 32];
    let p = library().pipeline("write", &[]).unwrap();
    // SAFETY: The array outlives the buffer.
    let x = unsafe { Buffer::borrowed(NonNull::from(&data).cast(), 128, false) };
    let f = run(&p, &[&x], 1, 32, LaneOrder::Forward).unwrap_err();
    assert_eq!(f.kind, FaultKind::ReadOnly { index: 0, size: 4 });
    assert_eq!(data, [1.0; 32]);
}

#[test]
fn threadgroup_memory_is_checked() {
    let x = Buffer::new(64 * 4).unwrap();
    let f = fault("threadgroup_overrun", &[&x], 32);
    assert_eq!(
        f.kind,
        FaultKind::ThreadgroupOutOfBounds { write: true, name: "a".to_owned(), offset: 128, size: 4 }
    );
    assert_eq!(at(&f), ("bugs.metal", line("p[t + 1] = t;")));
    let f = fault("uninitialised", &[&x], 32);
    assert_eq!(f.kind, FaultKind::UninitialisedThreadgroup { name: "s".to_owned(), offset: 124, size: 4 });
    let f = fault("too_much_memory", &[&x], 32);
    assert_eq!(f.kind, FaultKind::TooMuchThreadgroupMemory { bytes: 32768 + 16, name: "b".to_owned() });
    // A threadgroup does not see what the previous one wrote.
    let p = library().pipeline("uninitialised_again", &[]).unwrap();
    run(&p, &[&x], 1, 32, LaneOrder::Forward).unwrap();
    let f = run(&p, &[&x], 2, 32, LaneOrder::Forward).unwrap_err();
    assert!(matches!(f.kind, FaultKind::UninitialisedThreadgroup { .. }), "{f}");
    assert_eq!(f.thread.unwrap().threadgroup, [1, 0, 0]);
}

#[test]
fn threadgroup_arguments_are_checked() {
    let p = library().pipeline("argument_overrun", &[]).unwrap();
    let x = Buffer::new(128).unwrap();
    let with = |memory: &[(u32, u32)]| {
        let d = Dispatch {
            pipeline: &p,
            buffers: &[Binding::new(0, &x)],
            bytes: &[],
            threadgroup_memory: memory,
            threadgroups: [1, 1, 1],
            resources: &[],
            threads_per_threadgroup: [32, 1, 1],
        };
        d.run(&RunOptions::default()).unwrap_err().kind
    };
    assert!(matches!(with(&[(0, 128)]), FaultKind::ThreadgroupOutOfBounds { offset: 128, .. }));
    assert!(matches!(with(&[(0, 144)]), FaultKind::UninitialisedThreadgroup { offset: 0, .. }));
    assert!(
        matches!(with(&[]), FaultKind::Unbound { name, place } if name == "a" && place == "threadgroup memory 0")
    );
    assert!(matches!(with(&[(0, 120)]), FaultKind::Dispatch(text) if text.contains("not a multiple of 16")));
    assert!(matches!(with(&[(0, 32784)]), FaultKind::TooMuchThreadgroupMemory { bytes: 32784, .. }));
}

#[test]
fn divergence_is_detected() {
    let x = Buffer::new(64 * 4).unwrap();
    let f = fault("divergent_barrier", &[&x], 32);
    assert_eq!(f.kind, FaultKind::DivergentBarrier { reached: 16, threads: 32 });
    assert_eq!(at(&f), ("bugs.metal", line("if (t < 16) threadgroup_barrier")));
    let f = fault("two_barriers", &[&x], 64);
    assert_eq!(f.kind, FaultKind::DivergentBarrier { reached: 32, threads: 64 });
    let f = fault("divergent_reduction", &[&x], 32);
    assert_eq!(f.kind, FaultKind::DivergentSimdgroup { lanes: 0x5555_5555 });
    let f = fault("divergent_matrix", &[&x], 32);
    assert_eq!(f.kind, FaultKind::DivergentSimdgroup { lanes: 0xffff });
    let f = fault("inactive_lane", &[&x], 20);
    assert_eq!(f.kind, FaultKind::InactiveLane { lane: 20, lanes: 0xf_ffff });
    run(&library().pipeline("inactive_lane", &[]).unwrap(), &[&x], 1, 21, LaneOrder::Forward).unwrap();
}

#[test]
fn undefined_behaviour_is_detected() {
    let x = Buffer::new(64 * 4).unwrap();
    let f = fault("misaligned", &[&x], 32);
    assert_eq!(f.kind, FaultKind::Misaligned { alignment: 16, excess: 4 });
    assert_eq!(at(&f), ("bugs.metal", line("*(device float4 *) (x + 1)")));
    let f = fault("misaligned_word", &[&x], 1);
    assert_eq!(f.kind, FaultKind::Misaligned { alignment: 4, excess: 2 });
    assert_eq!(at(&f), ("bugs.metal", line("*(device uint *) (x + 6)")));
    for (function, threads, text, part) in [
        ("shift", 32, "1 << (t + 1)", "shift by as many bits"),
        ("division", 8, "7 / (int(t) - 3)", "division by zero"),
        ("index", 5, "x[t] = table[t];", "past the end of its array"),
    ] {
        let f = fault(function, &[&x], threads);
        assert!(matches!(&f.kind, FaultKind::Undefined(what) if what.contains(part)), "{f}");
        assert_eq!(at(&f), ("bugs.metal", line(text)));
    }
    run(&library().pipeline("index", &[]).unwrap(), &[&x], 1, 4, LaneOrder::Forward).unwrap();
}

#[test]
fn dispatches_that_metal_rejects_are_rejected() {
    let library = library();
    let x = Buffer::new(256).unwrap();
    let p = library.pipeline("limited", &[]).unwrap();
    let b = [Binding::new(0, &x)];
    let good = Dispatch {
        pipeline: &p,
        buffers: &b,
        bytes: &[],
        threadgroup_memory: &[],
        threadgroups: [1, 1, 1],
        resources: &[],
        threads_per_threadgroup: [8, 8, 1],
    };
    good.run(&RunOptions::default()).unwrap();
    Dispatch { threadgroups: [0, 1, 1], ..good }.run(&RunOptions::default()).unwrap();
    let large = [0; 4097];
    let far = [Binding::new(0, &x).at(257)];
    let long = [Binding::new(0, &x).at(16).limit(241)];
    let cases = [
        (Dispatch { threads_per_threadgroup: [65, 1, 1], ..good }, "expected 1 to 64"),
        (Dispatch { threads_per_threadgroup: [8, 0, 1], ..good }, "expected 1 to 64"),
        (Dispatch { threads_per_threadgroup: [1 << 16, 1 << 16, 1], ..good }, "expected 1 to 64"),
        (Dispatch { threadgroups: [u32::MAX, u32::MAX, u32::MAX], ..good }, "too large"),
        (Dispatch { bytes: &[(0, &[1])], ..good }, "bound twice"),
        (Dispatch { bytes: &[(31, &[1])], ..good }, "past 30"),
        (Dispatch { bytes: &[(1, &large)], ..good }, "4097 bytes"),
        (Dispatch { buffers: &far, ..good }, "offset 257"),
        (Dispatch { buffers: &long, ..good }, "and 241 bytes"),
        (Dispatch { threadgroup_memory: &[(0, 16), (0, 16)], ..good }, "given twice"),
        (Dispatch { threadgroup_memory: &[(0, 24)], ..good }, "not a multiple of 16"),
    ];
    for (d, part) in cases {
        let f = d.run(&RunOptions::default()).unwrap_err();
        assert!(matches!(&f.kind, FaultKind::Dispatch(text) if text.contains(part)), "{f}");
    }
    let f = Dispatch { buffers: &[], ..good }.run(&RunOptions::default()).unwrap_err();
    assert_eq!(f.kind, FaultKind::Unbound { name: "x".to_owned(), place: "buffer 0".to_owned() });
}

/// Constant memory is bound at multiples of 4 bytes; device memory where its type allows.
#[test]
fn offsets_of_constant_memory_are_aligned() {
    let p = library().pipeline("from_constant", &[]).unwrap();
    let (x, y) = (Buffer::new(64).unwrap(), Buffer::new(64).unwrap());
    let at = |x_at, y_at| {
        let buffers = [Binding::new(0, &x).at(x_at), Binding::new(1, &y).at(y_at)];
        let d = Dispatch {
            pipeline: &p,
            buffers: &buffers,
            bytes: &[],
            threadgroup_memory: &[],
            threadgroups: [1, 1, 1],
            resources: &[],
            threads_per_threadgroup: [1, 1, 1],
        };
        d.run(&RunOptions::default())
    };
    at(4, 1).unwrap();
    let f = at(2, 1).unwrap_err().to_string();
    assert!(f.contains("at offset 2, not a multiple of 4: parameter 'x'"), "{f}");
}

/// A length that was set for an earlier pipeline counts, although this kernel has no such argument.
#[test]
fn lengths_that_no_argument_uses_count() {
    let p = library().pipeline("much_of_its_own", &[]).unwrap();
    let x = Buffer::new(1024).unwrap();
    let with = |length| {
        let d = Dispatch {
            pipeline: &p,
            buffers: &[Binding::new(0, &x)],
            bytes: &[],
            threadgroup_memory: &[(0, length)],
            threadgroups: [1, 1, 1],
            resources: &[],
            threads_per_threadgroup: [32, 1, 1],
        };
        d.run(&RunOptions::default())
    };
    with(16).unwrap();
    with(12 << 10).unwrap();
    let f = with((12 << 10) + 16).unwrap_err();
    assert!(
        matches!(&f.kind, FaultKind::TooMuchThreadgroupMemory { bytes, .. } if *bytes == (32 << 10) + 16),
        "{f}"
    );
}

#[test]
fn a_kernel_that_never_ends_is_stopped() {
    assert_eq!(options().watchdog, Some(Duration::from_secs(2)));
    let within =
        |watchdog| compiler(Options { watchdog, ..options() }).compile("bugs.metal", SOURCE, &[]).unwrap();
    let library = within(Some(Duration::from_millis(20)));
    let never = library.pipeline("never_ends", &[]).unwrap();
    let together = library.pipeline("never_ends_together", &[]).unwrap();
    for order in ORDERS {
        let f = run(&never, &[&uints(&[0])], 1, 1, order).unwrap_err();
        assert_eq!(f.kind, FaultKind::Overdue { threads: 1, steps: 400_000 });
        assert!(f.to_string().contains("0.02 s on the slowest GPU"), "{f}");
        // A barrier in the loop is counted, too.
        let f = run(&together, &[&uints(&[0])], 1, 32, order).unwrap_err();
        assert_eq!(f.kind, FaultKind::Overdue { threads: 32, steps: 12_800_000 });
    }
    // Work that ends in time passes, and is counted.
    let c = run(&never, &[&uints(&[1])], 1, 1, LaneOrder::Forward).unwrap();
    assert!(c.steps > 0 && c.steps < 10 && c.seconds() < 1e-6, "{c:?}");
    // 32 stores, with room for 16 and without a limit.
    let stores = |watchdog| {
        let p = within(watchdog).pipeline("past_the_end", &[]).unwrap();
        run(&p, &[&Buffer::new(33 * 4).unwrap()], 1, 32, LaneOrder::Forward)
    };
    let f = stores(Some(Duration::from_nanos(25))).unwrap_err();
    assert_eq!(f.kind, FaultKind::Overdue { threads: 32, steps: 16 });
    stores(Some(Duration::from_nanos(50))).unwrap();
    stores(None).unwrap();
}

#[test]
fn a_race_shows_as_a_difference_between_orders() {
    let x = Buffer::new(256).unwrap();
    let p = library().pipeline("race", &[]).unwrap();
    // Reading what another lane has not written yet is a fault in at least one order.
    assert!(ORDERS.iter().any(|o| run(&p, &[&x], 1, 64, *o).is_err()));
}
