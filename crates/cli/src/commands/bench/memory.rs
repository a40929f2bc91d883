//! The memory of a benchmark on each device: planned, in pools of keys and values, and taken.

use device::Device;
use engine::{Engine, MemoryItem};
use serde::Serialize;

use crate::output::{self, Style, Table};

/// Items of a plan that are in host memory on every device.
const OF_THE_PROGRAM: [&str; 3] =
    ["tokens and page tables", "program and libraries (about)", "vocabulary (about)"];

/// State of the memory before a model is loaded.
pub struct Watch {
    /// Free bytes of the device, if it has its own memory.
    free_before: Option<u64>,
}

/// Memory of a benchmark in the host or in a device with its own memory.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Taken {
    device: String,
    /// Bytes of the plan, with keys and values of one sequence.
    planned_bytes: u64,
    /// Bytes of keys and values in the plan.
    planned_pool_bytes: u64,
    /// Bytes of keys and values of all sequences and cached prompts at the end.
    pool_bytes: u64,
    /// Host: peak resident bytes of the process, mapped files included. Device: bytes that are no
    /// longer free.
    taken_bytes: Option<u64>,
}

impl Watch {
    pub fn begin(device: &dyn Device) -> Watch {
        Watch { free_before: device.memory_source().map(|_| device.memory().free) }
    }

    /// The memory after the tests.
    pub fn end(&self, engine: &Engine) -> Vec<Taken> {
        let device = engine.device();
        let resident = platform::peak_resident_memory();
        let lost = self.free_before.map(|before| before.saturating_sub(device.memory().free));
        split(&engine.memory().items, device.name(), engine.kv().resident_bytes(), resident, lost)
    }
}

/// Splits a plan's items between the host and the device, if the device has its own memory (`lost`
/// bytes of it).
fn split(
    items: &[MemoryItem],
    device: &str,
    pools: u64,
    resident: Option<u64>,
    lost: Option<u64>,
) -> Vec<Taken> {
    let on_host = |item: &MemoryItem| {
        lost.is_none() || item.what.starts_with("cpu: ") || OF_THE_PROGRAM.contains(&item.what.as_str())
    };
    let sum = |host: bool, only_pools: bool| -> u64 {
        let chosen = items.iter().filter(|item| on_host(item) == host);
        chosen.filter(|item| !only_pools || item.residence == "reserved").map(|item| item.bytes).sum()
    };
    let all_pools = sum(true, true) + sum(false, true);
    let of = |host: bool, name: &str, taken_bytes: Option<u64>| {
        let planned_pool_bytes = sum(host, true);
        // The pages of a layer are in the memory of the device that computes it.
        let share = |part: u64| (u128::from(pools) * u128::from(part)).checked_div(u128::from(all_pools));
        Taken {
            device: name.to_owned(),
            planned_bytes: sum(host, false),
            planned_pool_bytes,
            pool_bytes: share(planned_pool_bytes).map_or(0, |bytes| bytes as u64),
            taken_bytes,
        }
    };
    match lost {
        None => vec![of(true, device, resident)],
        Some(lost) => vec![of(false, device, Some(lost)), of(true, "host", resident)],
    }
}

/// Prints the table, except in CSV, where a second table would break the file.
///
/// # Errors
/// Stdout cannot be written.
pub fn print(taken: &[Taken], style: Style) -> anyhow::Result<()> {
    if style == Style::Csv {
        return Ok(());
    }
    let mut table = Table::new(&["peak memory of", "planned>", "pools>", "planned with pools>", "taken>"]);
    for row in taken {
        let with_pools = row.planned_bytes - row.planned_pool_bytes + row.pool_bytes;
        table.row(vec![
            row.device.clone(),
            output::bytes(row.planned_bytes),
            output::bytes(row.pool_bytes),
            output::bytes(with_pools),
            row.taken_bytes.map_or_else(|| "unknown".to_owned(), output::bytes),
        ]);
    }
    output::print_line("")?;
    table.print(style)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn item(what: &str, bytes: u64, residence: &'static str) -> MemoryItem {
        MemoryItem { what: what.to_owned(), bytes, residence }
    }

    fn taken(device: &str, planned: u64, planned_pool: u64, pool: u64, taken: u64) -> Taken {
        Taken {
            device: device.to_owned(),
            planned_bytes: planned,
            planned_pool_bytes: planned_pool,
            pool_bytes: pool,
            taken_bytes: Some(taken),
        }
    }

    #[test]
    fn the_memory_of_each_device_is_compared_with_its_own_plan() {
        let items = [
            item("weights", 100, "committed"),
            item("KV pages", 10, "reserved"),
            item("program and libraries (about)", 29, "committed"),
        ];
        assert_eq!(split(&items, "cpu", 80, Some(210), None), [taken("cpu", 139, 10, 80, 210)]);
        let on_gpu = split(&items, "cuda", 80, Some(300), Some(185));
        assert_eq!(on_gpu, [taken("cuda", 110, 10, 80, 185), taken("host", 29, 0, 0, 300)]);
        let shared = [
            item("cpu: weights", 40, "mapped"),
            item("cpu: KV pages", 10, "reserved"),
            item("cuda: weights", 60, "committed"),
            item("cuda: KV pages", 30, "reserved"),
        ];
        let found = split(&shared, "split", 80, Some(50), Some(90));
        assert_eq!(found, [taken("split", 90, 30, 60, 90), taken("host", 50, 10, 20, 50)]);
    }
}
