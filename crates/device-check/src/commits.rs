//! Rules for the memory of a program's KV pages, checked on any device.

use device::{Device, Error, Limits, OwnedStep, PAGE_NONE, Program};
use device_lower::fusion::fuse;
use weights::BlockType;

use super::{Sequences, committed, limits, mini_transformer};

type Outcome<T = ()> = Result<T, String>;

fn words(error: Error) -> String {
    error.to_string()
}

fn expect(holds: bool, what: impl FnOnce() -> String) -> Outcome {
    if holds { Ok(()) } else { Err(what()) }
}

/// Checks that a call was refused with a message that contains `part`.
fn refused<T>(result: device::Result<T>, part: &str) -> Outcome {
    match result {
        Ok(_) => Err(format!("accepted, expected an error about {part:?}")),
        Err(Error::Failed { reason, .. }) if reason.contains(part) => Ok(()),
        Err(error) => Err(format!("{error:?}, expected a failure about {part:?}")),
    }
}

/// Checks that a step needs committed pages, that granules can be committed and decommitted while
/// others keep their content, and that bad ranges are refused.
///
/// # Errors
/// The first rule that the device breaks.
pub fn check_commits(device: &dyn Device) -> Outcome {
    let plan = fuse(&mini_transformer(3, BlockType::F32), device.fusion());
    let plans = std::slice::from_ref(&plan);
    let mut limits = Limits { kv_type: device.kv_types()[0], n_pages: vec![1 << 14; 2], ..limits(&plan.kv) };
    let huge = device.compile(plans, &limits).map_err(words)?;
    // Several granules, and a part of one on purpose.
    let n_pages =
        |group| (7 * huge.committed().granule(group) + huge.committed().granule(group) / 2 + 1).max(45);
    limits.n_pages = (0..2).map(n_pages).collect();
    drop(huge);
    let mut sequences = Sequences::new(5, &plan.kv, &limits, plan.value(plan.output).cols as u32);
    let steps: Vec<OwnedStep> =
        [&[(0, 20), (1, 3)][..], &[(0, 1), (1, 30)], &[(0, 9)]].map(|spans| sequences.step(spans)).into();
    let logits = |program: &mut dyn Program| -> Outcome<Vec<Vec<f32>>> {
        let mut all = vec![];
        for step in &steps {
            program.run(&step.borrow()).map_err(words)?;
            all.push(program.logits().to_vec());
        }
        Ok(all)
    };
    let mut whole = device.compile(plans, &limits).and_then(committed).map_err(words)?;
    let expected = logits(whole.as_mut())?;

    let mut program = device.compile(plans, &limits).map_err(words)?;
    let program = program.as_mut();
    for (group, n_pages) in limits.n_pages.iter().enumerate() {
        let pages = program.committed();
        let (n, granule) = (pages.n_pages(group), pages.granule(group) as u32);
        expect(n == *n_pages && pages.n_committed(group) == 0 && granule > 0, || {
            format!("group {group}: {pages:?}")
        })?;
        let end = *n_pages as u32;
        refused(program.commit(group, 0..0), "granules")?;
        refused(program.commit(group, 0..end + granule), "granules")?;
        if granule > 1 {
            refused(program.commit(group, 1..granule), "granules")?;
        }
        refused(program.decommit(group, 0..granule.min(end)), "not committed")?;
        refused(program.copy_page(group, 0, 1), "not committed")?;
        refused(program.copy_page(group, end, 0), "expected one of")?;
    }
    refused(program.commit(2, 0..1), "group 2")?;
    refused(program.run(&steps[0].borrow()), "not committed")?;

    // Commit only the granules that the steps use.
    let n_groups = plan.kv.groups.len();
    let mut used = vec![vec![]; n_groups];
    for step in &steps {
        for (entry, page) in step.page_tables.iter().enumerate().filter(|(_, page)| **page != PAGE_NONE) {
            used[entry / step.pages_per_table % n_groups].push(*page);
        }
    }
    for (group, pages) in used.iter().enumerate() {
        for &page in pages {
            if !program.committed().contains(group, page) {
                let granule = program.committed().granule_of(group, page);
                program.commit(group, granule.clone()).map_err(words)?;
                refused(program.commit(group, granule), "committed already")?;
            }
        }
    }
    expect(logits(program)? == expected, || "logits with the pages in use alone differ".to_owned())?;

    // The last step still finds what the first ones wrote while other granules are committed and
    // decommitted.
    program.commit_all().map_err(words)?;
    expect((0..n_groups).all(|g| program.committed().n_committed(g) == limits.n_pages[g]), || {
        format!("after committing all: {:?}", program.committed())
    })?;
    for (group, pages) in used.iter().enumerate() {
        let mut at = program.committed().granule_of(group, 0);
        while !at.is_empty() {
            if !pages.iter().any(|page| at.contains(page)) {
                program.decommit(group, at.clone()).map_err(words)?;
                refused(program.decommit(group, at.clone()), "not committed")?;
                refused(program.copy_page(group, pages[0], at.start), "not committed")?;
            }
            at = program.committed().granule_of(group, at.end);
        }
    }
    program.run(&steps[2].borrow()).map_err(words)?;
    expect(program.logits() == expected[2], || "a step after granules were decommitted differs".to_owned())?;

    // A granule that was decommitted and committed again works like a new one.
    let granule = program.committed().granule_of(0, used[0][0]);
    program.decommit(0, granule.clone()).map_err(words)?;
    refused(program.run(&steps[2].borrow()), "not committed")?;
    program.commit(0, granule).map_err(words)?;
    expect(logits(program)? == expected, || "logits after a granule was committed again differ".to_owned())
}
