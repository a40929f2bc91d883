//! Refused memory for a program's KV pages, checked on any device.

use std::sync::Arc;

use device::{Device, Error, Limits};
use device_check::{limits, mini_transformer};
use device_lower::fusion::fuse;
use weights::BlockType;

use super::Scarce;

type Outcome<T = ()> = Result<T, String>;

fn words(error: Error) -> String {
    error.to_string()
}

fn expect(holds: bool, what: impl FnOnce() -> String) -> Outcome {
    if holds { Ok(()) } else { Err(what()) }
}

/// Checks that a refused commit leaves a program unchanged, and that the program continues once
/// there is memory.
///
/// # Errors
/// The first rule that the device breaks.
pub fn check_shortage(device: Arc<dyn Device>) -> Outcome {
    let plan = fuse(&mini_transformer(3, BlockType::F32), device.fusion());
    let limits = Limits { kv_type: device.kv_types()[0], ..limits(&plan.kv) };
    let scarce = Scarce::new(device);
    let mut program = scarce.compile(std::slice::from_ref(&plan), &limits).map_err(words)?;
    let granule = program.committed().granule_of(0, 0);
    scarce.refuse(0);
    let before = program.committed().clone();
    match program.commit(0, granule.clone()) {
        Err(Error::Shortage { group: 0, n_pages, .. }) if n_pages == granule.len() => {}
        other => return Err(format!("{other:?}, expected a shortage")),
    }
    expect(*program.committed() == before, || "a refused commit changed something".to_owned())?;
    program.commit(0, granule.clone()).map_err(words)?;
    scarce.allow(granule.len());
    let next = program.committed().granule_of(1, 0);
    expect(matches!(program.commit(1, next.clone()), Err(Error::Shortage { .. })), || {
        "no shortage".to_owned()
    })?;
    program.decommit(0, granule.clone()).map_err(words)?;
    scarce.allow(next.len());
    program.commit(1, next.clone()).map_err(words)?;
    expect((scarce.n_commits(), scarce.n_committed()) == (4, next.len()), || "counts are wrong".to_owned())?;
    drop(program);
    expect(scarce.n_committed() == 0, || "pages outlive their program".to_owned())
}
