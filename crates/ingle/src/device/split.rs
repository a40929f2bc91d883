//! Splitting a model between a GPU and the CPU, by options or because the GPU's memory is too
//! small.

use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

use device::{Device, Op};
use device_split::{Share, SplitDevice};
use engine::Model;

use super::{DeviceKind, cpu, cuda, of_kind};
use crate::error::{Error, Result};
use crate::note::Note;
use crate::options::LoadOptions;

/// Bytes of a GPU's memory that stay free when a model is split, for the driver and for further
/// keys and values.
const GPU_RESERVE: u64 = 1 << 30;

/// Time for which the CPU's workers stay awake between segments. It is longer than attention of a
/// row on the GPU.
const GPU_TURN: Duration = Duration::from_micros(500);

/// The device, or a split of the model between it and the CPU, if options set that or if the
/// GPU's memory is too small. The latter adds a note. The CPU runs the experts of the first layers.
/// If the experts of all layers are not enough, it also runs the first layers as a whole.
pub fn split(
    options: &LoadOptions,
    model: &Model,
    device: Arc<dyn Device>,
    notes: &mut Vec<Note>,
) -> Result<Arc<dyn Device>> {
    let engine_options = options.engine_options();
    let nodes = || model.plan().nodes.iter();
    let n_layers = nodes().filter_map(|node| node.layer).max().map_or(0, |last| last as usize + 1);
    let has_experts = |layers: Range<usize>| {
        let routers = nodes().filter(|node| matches!(node.op, Op::Route { .. }));
        routers.filter_map(|node| node.layer).any(|layer| layers.contains(&(layer as usize)))
    };
    let cpu = || -> Result<Arc<dyn Device>> { Ok(Arc::new(cpu(&options.device)?.staying_awake(GPU_TURN))) };
    let frugal = || -> Result<Arc<dyn Device>> {
        Ok(match device.name() {
            "cuda" => cuda::frugal(options.device.first_gpu())?,
            _ => device.clone(),
        })
    };
    let with = |share: Share, cpu: &Arc<dyn Device>, other: &Arc<dyn Device>| {
        SplitDevice::new(cpu.clone(), other.clone(), share).map(Arc::new)
    };
    let wanted = [("gpu_layers", options.gpu_layers), ("cpu_moe_layers", options.cpu_moe_layers)];
    for (option, number) in wanted {
        if number.is_some() && device.name() == "cpu" {
            return Err(Error::NoGpuToSplit { option });
        }
    }
    if options.cpu_moe_layers.is_some() && !has_experts(0..n_layers) {
        return Err(Error::NoExperts);
    }
    match (options.gpu_layers, options.cpu_moe_layers) {
        (None, None) if device.name() == "cuda" => {}
        (None, None) => return Ok(device),
        (Some(0), _) => return of_kind(DeviceKind::Cpu, &options.device),
        (gpu_layers, expert_layers) => {
            let first_layers = n_layers - gpu_layers.unwrap_or(n_layers).min(n_layers);
            let expert_layers = expert_layers.unwrap_or(0).min(n_layers);
            if first_layers == 0 && !has_experts(0..expert_layers) {
                return Ok(device);
            }
            return Ok(with(Share { n_layers, first_layers, expert_layers }, &cpu()?, &frugal()?)?);
        }
    }
    // Other errors are reported when the model is loaded.
    let Ok(whole) = engine::plan_memory(model, device.as_ref(), &engine_options) else { return Ok(device) };
    if whole.fits {
        return Ok(device);
    }
    let (cpu, other, free) = (cpu()?, frugal()?, device.memory().free.saturating_sub(GPU_RESERVE));
    if engine::plan_memory(model, other.as_ref(), &engine_options).is_ok_and(|report| report.fits) {
        tracing::info!(
            "{} runs without faster copies of the weights, which do not fit in its memory",
            device.name()
        );
        return Ok(other);
    }
    let prefix = format!("{}: ", device.name());
    let fits = |share: Share| -> bool {
        let planned = with(share, &cpu, &other).map_err(engine::Error::from);
        let planned = planned.and_then(|split| engine::plan_memory(model, split.as_ref(), &engine_options));
        let on_gpu = |report: engine::MemoryReport| {
            let items = report.items.iter().filter(|item| item.what.starts_with(&prefix));
            items.map(|item| item.bytes).sum::<u64>()
        };
        planned.map(on_gpu).is_ok_and(|bytes| bytes <= free)
    };
    let share = smallest(n_layers, has_experts(0..n_layers), &fits);
    notes.push(Note::Split {
        on_cpu: share.describe(),
        device: device.name().to_owned(),
        needed: whole.total,
        free: whole.free,
    });
    if share.first_layers == n_layers {
        of_kind(DeviceKind::Cpu, &options.device)
    } else {
        Ok(with(share, &cpu, &other)?)
    }
}

/// The smallest share of the CPU with which the rest fits on the GPU. It is the experts of the
/// fewest first layers. If the experts of all layers are not enough, or there are none, it is also
/// the fewest first layers as a whole. If nothing fits, it is all layers.
fn smallest(n_layers: usize, has_experts: bool, fits: &dyn Fn(Share) -> bool) -> Share {
    let share = |first_layers: usize, expert_layers: usize| Share { n_layers, first_layers, expert_layers };
    let all = if has_experts { n_layers } else { 0 };
    if has_experts && fits(share(0, all)) {
        return share(0, least(n_layers, &|n| fits(share(0, n))));
    }
    share(least(n_layers, &|n| fits(share(n, all))), all)
}

/// The least number from 1 to `most` for which `fits` is true, or `most` if there is none. A larger
/// number on the CPU needs less memory of the GPU.
fn least(most: usize, fits: &dyn Fn(usize) -> bool) -> usize {
    let (mut low, mut high) = (1, most.max(1));
    while low < high {
        let middle = low + (high - low) / 2;
        if fits(middle) { high = middle } else { low = middle + 1 }
    }
    high
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The share for a GPU with this room. Each of six layers takes 10, of which experts take 8.
    fn share(room: usize, has_experts: bool) -> (usize, usize) {
        let fits = |share: Share| {
            assert!(share.first_layers < share.n_layers);
            let with_experts = share.n_layers - share.first_layers.max(share.expert_layers);
            2 * (share.n_layers - share.first_layers) + 8 * with_experts <= room
        };
        let share = smallest(6, has_experts, &fits);
        (share.first_layers, share.expert_layers)
    }

    #[test]
    fn experts_leave_the_gpu_before_layers_do() {
        assert_eq!(share(59, true), (0, 1));
        assert_eq!(share(51, true), (0, 2));
        assert_eq!(share(12, true), (0, 6));
        assert_eq!(share(11, true), (1, 6));
        assert_eq!(share(2, true), (5, 6));
        assert_eq!(share(1, true), (6, 6), "nothing fits");
        assert_eq!(share(59, false), (1, 0));
        assert_eq!(share(10, false), (5, 0));
        assert_eq!(share(9, false), (6, 0), "nothing fits");
    }
}
