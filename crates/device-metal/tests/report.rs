//! The order of the report of `ingle metal-selftest`.
#![cfg(all(target_os = "linux", target_arch = "x86_64"))]
#![allow(clippy::unwrap_used)]

use device::Device;
use device_testing::every;
use ingle_device_metal::MetalDevice;
use ingle_device_metal::gpu::Gpu;
use ingle_device_metal::gpu::emulated::{EmulatedGpu, Options};
use ingle_device_metal::gpu::null::NullGpu;
use ingle_device_metal::kernels::{FILES, Kernel};
use ingle_device_metal::selftest::{self, Order};
use std::collections::BTreeSet;

/// Parts of a macro's body, and the text that a use replaces: the kernels of a type of weights.
const OF_TYPES: &str = "#define INSTANTIATE_LINEAR(type, D)";

/// Kernel functions of a file, by the text of its source.
fn functions(file: &'static str) -> BTreeSet<String> {
    let source = Kernel::of(file).source().unwrap();
    let of_types = source.split_once(OF_TYPES).map_or("", |(_, rest)| rest);
    let of_types = of_types.lines().take_while(|line| line.ends_with('\\') || line.contains("INSTANTIATE("));
    let of_types: Vec<&str> = of_types.collect();
    let name_of = |line: &str| {
        let rest = line.trim_start().strip_prefix("INSTANTIATE(")?;
        Some(rest.split(',').next()?.trim().to_owned())
    };
    let mut found = BTreeSet::new();
    let mut is_template = false;
    for line in source.lines().filter(|line| !line.starts_with("#define")) {
        if let Some(rest) = line.strip_prefix("INSTANTIATE_LINEAR(") {
            let block = rest.split(',').next().unwrap();
            let names = of_types.iter().filter_map(|line| name_of(line));
            found.extend(names.map(|name| name.replace("##type##", block).replace("##type", block)));
        } else if line.starts_with("INSTANTIATE(") {
            found.extend(name_of(line));
        } else if let Some(rest) = line.strip_prefix("kernel void ").filter(|_| !is_template) {
            found.insert(rest.split('(').next().unwrap().to_owned());
        }
        is_template = line.starts_with("template");
    }
    found
}

/// The stages before the rest of the cases run every function: the cover, probes, peaks, and steps
/// in flight.
#[test]
fn the_first_part_runs_every_function() {
    let device = MetalDevice::new(NullGpu::new("Apple M4 Pro"));
    let facts = device.gpu().facts();
    let cases = selftest::report_cases().into_iter().filter(|case| case.runs_on(&device)).collect();
    let order = Order::new(facts, device.profile(), cases).unwrap();
    let all: BTreeSet<(&str, String)> = FILES
        .iter()
        .flat_map(|(file, _)| functions(file).into_iter().map(move |name| (*file, name)))
        .collect();
    // Its order promises this of the first cases; here they run alone.
    let cover = Order::new(facts, device.profile(), order.cases[..order.n_cover].to_vec()).unwrap();
    let mut ran: BTreeSet<(&str, String)> =
        cover.requests.iter().map(|request| (request.kernel.file, request.kernel.function.clone())).collect();
    // Their results are wrong on a GPU that runs nothing.
    device.gpu().take_requests();
    let _ = (selftest::check_ahead(&device, 1), selftest::probe(device.gpu()).unwrap(), device.peaks());
    let others = device.gpu().take_requests().into_iter();
    ran.extend(others.map(|request| (request.kernel.file, request.kernel.function)));
    let (n, n_cover) = (order.cases.len(), order.n_cover);
    println!("{n_cover} of {n} cases run all of {} functions, {} pipelines", all.len(), order.requests.len());
    // The probe of tensor units runs before the report, with `--tensors`.
    let missed: Vec<_> = all.difference(&ran).filter(|(_, name)| name != "tensor_probe").collect();
    assert!(missed.is_empty(), "no case runs {missed:?}");
    let unknown: Vec<_> = ran.difference(&all).collect();
    assert!(unknown.is_empty(), "no source has {unknown:?}");
    assert!(n_cover < n / 4, "{n_cover} of {n}");
    // Pipelines of other functions come first.
    let n_functions = order.functions().len();
    let first: BTreeSet<&str> =
        order.requests[..n_functions].iter().map(|request| request.kernel.function.as_str()).collect();
    assert_eq!(first.len(), n_functions);
}

/// The cases that only the report has agree with the interpreter. Runs of more cases check all.
#[test]
fn further_cases_agree() {
    let cache = concat!(env!("CARGO_TARGET_TMPDIR"), "/shaders");
    let device = MetalDevice::new(EmulatedGpu::new(&Options::new(cache)).unwrap());
    let cases = selftest::further_cases();
    assert!(cases.iter().all(|case| case.runs_on(&device)));
    for case in cases.iter().step_by(every(6)) {
        selftest::check_case(&device, case).unwrap_or_else(|difference| panic!("{difference}"));
    }
}
