//! Kernels of `src/kernels`, run by the emulator with the bindings of their contracts, in several
//! orders of lanes.
#![cfg(all(target_os = "linux", target_arch = "x86_64"))]
#![allow(clippy::unwrap_used, dead_code)]

use ingle_device_metal::kernels::{HEADERS, Kernel};
pub use metal_emulator::Sanitizer;
use metal_emulator::{
    Binding, Buffer, Compiler, Constant, Counters, Dispatch, LaneOrder, Library, Options, ParameterKind,
    Pipeline, Resource, RunOptions,
};
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};

/// One dispatch with its bindings.
#[derive(Clone, Debug, Default)]
pub struct Launch {
    pub file: &'static str,
    pub function: String,
    pub constants: BTreeMap<u16, Constant>,
    pub arguments: Vec<u8>,
    /// Contents before the dispatch, by index.
    pub buffers: BTreeMap<u32, Vec<u8>>,
    /// KV pages, in chunks of [`CHUNK`] pages that are reached through addresses.
    pub pages: Option<Pages>,
    /// Bytes before a buffer's contents, where there are any.
    pub offsets: BTreeMap<u32, usize>,
    pub threadgroup_memory: u32,
    pub threadgroups: [u32; 3],
    pub threads: u32,
    /// True if the file is compiled as Metal 4, and the kernel uses tensor units.
    pub tensors: bool,
}

/// Pages that a page table names by their addresses.
#[derive(Clone, Debug)]
pub struct Pages {
    /// The index of the table.
    index: u32,
    /// Numbers of pages; other numbers become an address that faults.
    table: Vec<u32>,
    /// One page after the other.
    pool: Vec<u8>,
    page_bytes: usize,
}

/// Pages of a chunk.
const CHUNK: usize = 3;

/// The buffers after a dispatch.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Outcome {
    pub buffers: BTreeMap<u32, Vec<u8>>,
    /// The pages, one after the other.
    pub pool: Vec<u8>,
    pub counters: Counters,
}

impl Launch {
    pub fn new(file: &'static str, function: impl Into<String>) -> Launch {
        Launch { file, function: function.into(), threadgroups: [1; 3], threads: 32, ..Launch::default() }
    }

    pub fn flag(mut self, index: u16, value: bool) -> Launch {
        self.constants.insert(index, Constant::Bool(value));
        self
    }

    pub fn number(mut self, index: u16, value: u32) -> Launch {
        self.constants.insert(index, Constant::UInt(value));
        self
    }

    /// The launch as it is, and on tensor units.
    pub fn with_tensors(self) -> [Launch; 2] {
        use ingle_device_metal::kernels::{attention, linear};
        let on = Launch { tensors: true, ..self.clone() };
        [self, on.flag(linear::TENSOR, true).flag(attention::TENSOR, true)]
    }

    /// Buffer 0: words of 4 bytes.
    pub fn arguments(mut self, words: &[u32]) -> Launch {
        self.arguments = words.iter().flat_map(|w| w.to_le_bytes()).collect();
        self
    }

    pub fn bytes(mut self, index: u32, bytes: &[u8]) -> Launch {
        self.buffers.insert(index, bytes.to_vec());
        self
    }

    /// A page table, and the pages that its numbers name.
    pub fn pages(mut self, index: u32, table: &[u32], pool: &[u8], page_bytes: usize) -> Launch {
        self.pages = Some(Pages { index, table: table.to_vec(), pool: pool.to_vec(), page_bytes });
        self
    }

    pub fn floats(self, index: u32, values: &[f32]) -> Launch {
        self.bytes(index, bytemuck::cast_slice(values))
    }

    pub fn words(self, index: u32, values: &[u32]) -> Launch {
        self.bytes(index, bytemuck::cast_slice(values))
    }

    /// The contents of a buffer begin at this byte of it.
    pub fn at(mut self, index: u32, offset: usize) -> Launch {
        self.offsets.insert(index, offset);
        self
    }

    /// A buffer of floats that the kernel writes, NaN before.
    pub fn output(self, index: u32, n_floats: usize) -> Launch {
        self.floats(index, &vec![f32::NAN; n_floats])
    }

    pub fn grid(mut self, threadgroups: [usize; 3], threads: usize) -> Launch {
        self.threadgroups = threadgroups.map(|n| n as u32);
        self.threads = threads as u32;
        self
    }

    pub fn memory(mut self, bytes: usize) -> Launch {
        self.threadgroup_memory = bytes.next_multiple_of(16) as u32;
        self
    }

    /// Run it forward, in reverse and in a random order: every buffer must come out with the same
    /// bits.
    pub fn run(&self) -> Outcome {
        let library = match self.tensors {
            false => library(self.file, Way::Checked),
            true => self.library_of_one(Way::Checked),
        };
        let pipeline = self.pipeline(&library);
        let forward = self.run_once(&library, &pipeline, LaneOrder::Forward);
        for order in [LaneOrder::Reverse, LaneOrder::Random(11)] {
            let other = self.run_once(&library, &pipeline, order);
            assert!(forward.pool == other.pool, "{}: {order:?} stores other bits", self.function);
            for (index, bytes) in &forward.buffers {
                assert!(
                    *bytes == other.buffers[index],
                    "{} buffer {index}: {order:?} gives other bits",
                    self.function
                );
            }
        }
        forward
    }

    /// Run it once, with bytes counted, as a function of a source of the test's own: fewer kernels
    /// compile sooner.
    pub fn count(&self, source: &str) -> Counters {
        self.run_own(Way::Counting, source).counters
    }

    /// Run it once under a sanitizer, as [`Self::count`] does.
    pub fn sanitize(&self, sanitizer: Sanitizer, source: &str) -> Outcome {
        self.run_own(Way::Sanitized(sanitizer), source)
    }

    /// Runs only the file's own kernel under a sanitizer.
    pub fn sanitize_file(&self, sanitizer: Sanitizer) -> Outcome {
        let library = self.library_of_one(Way::Sanitized(sanitizer));
        self.run_once(&library, &self.pipeline(&library), LaneOrder::Reverse)
    }

    /// The file's own kernel without the others.
    fn library_of_one(&self, way: Way) -> Library {
        let compiler = compiler(way, self.tensors);
        match compiler.compile_function(self.file, source(self.file), HEADERS, &self.function) {
            Ok(library) => library,
            Err(error) => panic!("{}: {error}", self.function),
        }
    }

    fn run_own(&self, way: Way, source: &str) -> Outcome {
        match compiler(way, self.tensors).compile("own.metal", source, HEADERS) {
            Ok(library) => self.run_once(&library, &self.pipeline(&library), LaneOrder::Reverse),
            Err(error) => panic!("{}: {error}", self.function),
        }
    }

    fn pipeline(&self, library: &Library) -> Pipeline {
        let declared = |index: &u16| library.constants().iter().any(|c| c.index == *index);
        let constants: Vec<_> =
            self.constants.iter().filter(|c| declared(c.0)).map(|(i, c)| (*i, *c)).collect();
        library.pipeline(&self.function, &constants).unwrap()
    }

    fn run_once(&self, library: &Library, pipeline: &Pipeline, order: LaneOrder) -> Outcome {
        let offset = |index: &u32| self.offsets.get(index).copied().unwrap_or(0);
        let make = |(index, bytes): (&u32, &Vec<u8>)| {
            let whole = [&vec![0xff; offset(index)][..], bytes].concat();
            (*index, Buffer::from_bytes(&whole).unwrap())
        };
        let buffers: BTreeMap<u32, Buffer> = self.buffers.iter().map(make).collect();
        // Bindings that the contract leaves unused get an empty buffer, so that any access is an
        // error.
        let unused = Buffer::new(0).unwrap();
        let function = library.functions().iter().find(|f| f.name == self.function).unwrap();
        let mut bindings: Vec<Binding> =
            buffers.iter().map(|(index, buffer)| Binding::new(*index, buffer).at(offset(index))).collect();
        let pages = self.pages.as_ref();
        let chunks: Vec<Buffer> = pages.map_or(vec![], |pages| {
            pages.pool.chunks(CHUNK * pages.page_bytes).map(|c| Buffer::from_bytes(c).unwrap()).collect()
        });
        let table = pages.map(|pages| {
            let address = |page: &u32| {
                let (chunk, place) = (*page as usize / CHUNK, *page as usize % CHUNK * pages.page_bytes);
                chunks.get(chunk).map_or(0xdead_0000, |chunk| chunk.gpu_address() + place as u64)
            };
            let table: Vec<u64> = pages.table.iter().map(address).collect();
            (pages.index, Buffer::from_bytes(bytemuck::cast_slice(&table)).unwrap())
        });
        bindings.extend(table.iter().map(|(index, buffer)| Binding::new(*index, buffer)));
        let resources: Vec<Resource> = chunks.iter().map(Resource::write).collect();
        for parameter in &function.parameters {
            if let ParameterKind::Buffer(index) = parameter.kind
                && index != 0
                && !buffers.contains_key(&index)
                && pages.is_none_or(|pages| pages.index != index)
            {
                bindings.push(Binding::new(index, &unused));
            }
        }
        let memory = [(0, self.threadgroup_memory)];
        let dispatch = Dispatch {
            pipeline,
            buffers: &bindings,
            resources: &resources,
            bytes: &[(0, &self.arguments)],
            threadgroup_memory: if self.threadgroup_memory > 0 { &memory } else { &[] },
            threadgroups: self.threadgroups,
            threads_per_threadgroup: [self.threads, 1, 1],
        };
        let counters = match dispatch.run(&RunOptions { order, threads: 1 }) {
            Ok(counters) => counters,
            Err(fault) => panic!("{} {order:?}: {fault}", self.function),
        };
        let buffers = buffers
            .iter()
            .map(|(index, buffer)| (*index, buffer.as_slice()[offset(index)..].to_vec()))
            .collect();
        let pool = chunks.iter().flat_map(|chunk| chunk.as_slice().to_vec()).collect();
        Outcome { buffers, pool, counters }
    }
}

/// Ways of compiling a library.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Way {
    Checked,
    Counting,
    Sanitized(Sanitizer),
}

/// The compiler for all tests of a process, since finding clang is slower than a launch. Its cache
/// is the device's own, so that a file is compiled once for all tests of all crates, and kept for
/// the next run.
fn compiler(way: Way, tensors: bool) -> Arc<Compiler> {
    type Made = ((Way, bool), Arc<Compiler>);
    static COMPILERS: Mutex<Vec<Made>> = Mutex::new(Vec::new());
    let way_and_tensors = (way, tensors);
    let mut compilers = COMPILERS.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some((_, compiler)) = compilers.iter().find(|(other, _)| *other == way_and_tensors) {
        return compiler.clone();
    }
    let mut options = Options::new(concat!(env!("CARGO_TARGET_TMPDIR"), "/shaders"));
    options.counting = way == Way::Counting;
    if let Way::Sanitized(sanitizer) = way {
        options.sanitizer = sanitizer;
    }
    if tensors {
        options.tensors = true;
        options.defines.push(("WITH_TENSORS".to_owned(), "1".to_owned()));
    }
    let compiler = Arc::new(Compiler::new(options).unwrap());
    compilers.push((way_and_tensors, compiler.clone()));
    compiler
}

fn source(file: &'static str) -> &'static str {
    Kernel::of(file).text().unwrap_or_else(|| panic!("{file} is not among the kernels"))
}

/// Compiled as the device compiles it, so that both find what the other compiled.
fn library(file: &'static str, way: Way) -> Library {
    match compiler(way, false).compile(file, source(file), HEADERS) {
        Ok(library) => library,
        Err(error) => panic!("{file}: {error}"),
    }
}

/// The functions of a file, and the indices and names of the buffers that they take.
pub fn parameters(file: &'static str) -> Vec<(String, Vec<(u32, String)>)> {
    let library = library(file, Way::Checked);
    let buffers = |parameters: &[metal_emulator::Parameter]| {
        let buffer = |p: &metal_emulator::Parameter| {
            if let ParameterKind::Buffer(index) = p.kind { Some((index, p.name.clone())) } else { None }
        };
        parameters.iter().filter_map(buffer).collect()
    };
    library.functions().iter().map(|f| (f.name.clone(), buffers(&f.parameters))).collect()
}

/// Check a file with real address spaces, with tensors or without.
pub fn compile_strict(file: &'static str, tensors: bool) {
    if let Err(error) = compiler(Way::Checked, tensors).check_strict(file, source(file), HEADERS) {
        panic!("{file}: {error}");
    }
}

impl Outcome {
    pub fn floats(&self, index: u32) -> Vec<f32> {
        self.buffers[&index].chunks_exact(4).map(|b| f32::from_le_bytes(b.try_into().unwrap())).collect()
    }

    pub fn words(&self, index: u32) -> Vec<u32> {
        self.buffers[&index].chunks_exact(4).map(|b| u32::from_le_bytes(b.try_into().unwrap())).collect()
    }
}

/// The step buffer: 8 words.
pub fn step(
    n_rows: usize,
    n_outputs: usize,
    n_spans: usize,
    n_groups: usize,
    pages_per_table: usize,
) -> [u32; 8] {
    [n_rows as u32, n_outputs as u32, n_spans as u32, n_groups as u32, pages_per_table as u32, 0, 0, 0]
}
