//! The shared checks on the interpreter itself, and on devices with known defects, which the checks
//! must find.

#![allow(clippy::unwrap_used)] // in helpers of tests too

use ingle_device as device;

use device::{
    Arithmetic, Chosen, CommandInfo, CommittedPages, Device, FusedKind, KvType, Limits, MemoryPlan, Numerics,
    Op, Peaks, Plan, Program, Residence, Result, Step, Ticket, Timing, ValueId, Want, Weight,
};
use device_lower::fusion::{self, fuse};
use device_reference::Reference;
use device_testing::{
    Case, PlanBuilder, Sequences, check_cases, check_commits, check_device, check_op_cases, check_reads,
    check_replaced_plans, check_shortage, check_steps, check_stops, check_wants, committed, limits,
    mini_transformer, run,
};
use std::ops::Range;
use std::sync::{Arc, LazyLock};
use weights::BlockType;

/// The interpreter under a fusion profile, with or without a defect.
struct Bent {
    inner: Reference,
    rules: &'static [FusedKind],
    /// Change to the plan before compilation.
    plan: fn(Plan) -> Plan,
    /// Change to the logits of a step, given its number of rows.
    logits: fn(&mut [f32], usize),
}

impl Default for Bent {
    fn default() -> Self {
        Bent { inner: Reference::new(2), rules: fusion::ALL, plan: |plan| plan, logits: |_, _| () }
    }
}

struct BentProgram {
    inner: Box<dyn Program>,
    logits: fn(&mut [f32], usize),
    /// Rows of the last submitted step.
    n_rows: usize,
    /// The changed logits of the last step.
    bent: Vec<f32>,
}

impl BentProgram {
    fn bend(&mut self) {
        self.bent = self.inner.logits().to_vec();
        (self.logits)(&mut self.bent, self.n_rows);
    }
}

impl Device for Bent {
    fn name(&self) -> &'static str {
        "bent"
    }
    fn describe(&self) -> String {
        self.inner.describe()
    }
    fn n_threads(&self) -> usize {
        self.inner.n_threads()
    }
    fn memory(&self) -> platform::SystemMemory {
        self.inner.memory()
    }
    fn fusion(&self) -> &[FusedKind] {
        self.rules
    }
    fn kv_types(&self) -> &[KvType] {
        self.inner.kv_types()
    }
    fn memory_plan(&self, plans: &[Plan], limits: &Limits) -> Result<MemoryPlan> {
        self.inner.memory_plan(plans, limits)
    }
    fn compile(&self, plans: &[Plan], limits: &Limits) -> Result<Box<dyn Program>> {
        let plans: Vec<Plan> = plans.iter().map(|plan| (self.plan)(plan.clone())).collect();
        let inner = self.inner.compile(&plans, limits)?;
        Ok(Box::new(BentProgram { inner, logits: self.logits, n_rows: 0, bent: vec![] }))
    }
    fn arithmetic(&self, weight: &Weight) -> Arithmetic {
        self.inner.arithmetic(weight)
    }
    fn peaks(&self) -> Peaks {
        self.inner.peaks()
    }
}

impl Program for BentProgram {
    fn submit(&mut self, step: &Step) -> Result<Ticket> {
        self.n_rows = step.tokens.len();
        self.inner.submit(step)
    }
    fn wait(&mut self, ticket: Ticket) -> Result<()> {
        self.inner.wait(ticket)?;
        self.bend();
        Ok(())
    }
    fn chosen(&self) -> &[Chosen] {
        self.inner.chosen()
    }
    fn best(&self, output: usize) -> &[(u32, f32)] {
        self.inner.best(output)
    }
    fn run_until(&mut self, step: &Step, last: usize) -> Result<()> {
        self.inner.run_until(step, last)
    }
    fn read(&self, value: ValueId) -> Option<Vec<f32>> {
        self.inner.read(value)
    }
    fn logits(&self) -> &[f32] {
        &self.bent
    }
    fn copy_page(&mut self, group: usize, from: u32, to: u32) -> Result<()> {
        self.inner.copy_page(group, from, to)
    }
    fn committed(&self) -> &CommittedPages {
        self.inner.committed()
    }
    fn commit(&mut self, group: usize, pages: Range<u32>) -> Result<()> {
        self.inner.commit(group, pages)
    }
    fn decommit(&mut self, group: usize, pages: Range<u32>) -> Result<()> {
        self.inner.decommit(group, pages)
    }
    fn kept(&self, index: usize) -> &[f32] {
        self.inner.kept(index)
    }
    fn commands(&self, plan: usize, n_rows: usize) -> Vec<CommandInfo> {
        self.inner.commands(plan, n_rows)
    }
    fn run_timed(&mut self, step: &Step, timings: &mut Vec<Timing>) -> Result<()> {
        self.n_rows = step.tokens.len();
        self.inner.run_timed(step, timings)?;
        self.bend();
        Ok(())
    }
}

/// The interpreter computes each row on its own in a fixed order. So nothing may differ without
/// fusion, in chunks, or with more threads.
#[test]
fn the_interpreter_agrees_with_itself_exactly() {
    let n_cases = check_device(&Bent::default(), |_| 0.0).unwrap();
    assert!(n_cases > 400, "{n_cases}");
}

/// Every rule fuses something in the cases, in every KV type if the rule has one.
#[test]
fn the_cases_cover_every_rule() {
    let cases = check_op_cases();
    for rule in fusion::ALL {
        let fuses =
            |case: &&Case| case.plans.iter().any(|plan| fuse(plan, &[*rule]).nodes.len() < plan.nodes.len());
        assert!(cases.iter().filter(fuses).count() >= 5, "{rule}");
    }
    for case in &cases {
        device::check_plans(&case.plans).unwrap();
        let needs: Vec<_> = case.plans.iter().map(|plan| device::Needs::new(plan, &case.limits)).collect();
        let mut committed = CommittedPages::new(&case.limits, |_| 1);
        for (group, n_pages) in case.limits.n_pages.iter().enumerate() {
            committed.set(group, 0..*n_pages as u32, true);
        }
        for step in &case.steps {
            step.borrow().check(&needs, &case.limits, &committed).unwrap();
        }
    }
    let mut names: Vec<_> = cases.iter().map(|case| &case.name).collect();
    names.sort();
    names.dedup();
    assert_eq!(names.len(), cases.len(), "names are distinct");
}

/// The cases about an Op, in F32 only, which keeps the tests quick.
fn about(part: &str) -> Vec<Case> {
    static CASES: LazyLock<Vec<Case>> = LazyLock::new(check_op_cases);
    CASES.iter().filter(|case| case.name.contains(part) && case.block == BlockType::F32).cloned().collect()
}

fn finds(device: Bent, part: &str, message: &str) {
    let cases = about(part);
    assert!(!cases.is_empty());
    let error = check_cases(&device, cases, |case| case.tolerance).unwrap_err();
    assert!(error.contains(message), "{error}");
}

/// The plan after an edit of every primitive, including those inside fused Ops.
fn edited(mut plan: Plan, edit: fn(&mut Op)) -> Plan {
    for node in &mut plan.nodes {
        match &mut node.op {
            Op::Fused { parts, .. } => parts.iter_mut().for_each(edit),
            op => edit(op),
        }
    }
    plan
}

#[test]
fn wrong_arithmetic_is_found() {
    let eps = |plan| {
        edited(plan, |op| {
            if let Op::RmsNorm { eps, .. } = op {
                *eps += 1e-3;
            }
        })
    };
    finds(Bent { plan: eps, ..Bent::default() }, "rms_norm", "not fused");
    let no_bias = |plan| {
        edited(plan, |op| {
            if let Op::Linear { bias, .. } = op {
                *bias = None;
            }
        })
    };
    finds(Bent { plan: no_bias, ..Bent::default() }, "linear F32 16", "step 0");
    finds(Bent { logits: |logits, _| logits[0] = f32::NAN, ..Bent::default() }, "add", "NaN");
    finds(
        Bent { logits: |logits, _| logits.reverse(), ..Bent::default() },
        "select_rows",
        "the best of the logits",
    );
}

#[test]
fn a_wrong_window_is_found() {
    let narrow = |plan| {
        edited(plan, |op| {
            if let Op::Attention { window: Some(window), .. } = op {
                *window = (*window - 1).max(1);
            }
        })
    };
    finds(Bent { plan: narrow, ..Bent::default() }, "window Some(7)", "expected");
    finds(Bent { plan: narrow, ..Bent::default() }, "window Some(33)", "expected");
}

#[test]
fn a_defect_of_the_fused_kernel_only_is_found() {
    // Norms inside fused Ops lose their weight.
    let plan = |mut plan: Plan| {
        for node in &mut plan.nodes {
            if let Op::Fused { parts, .. } = &mut node.op {
                for op in parts {
                    if let Op::RmsNorm { weight, .. } = op {
                        *weight = None;
                    }
                }
            }
        }
        plan
    };
    finds(Bent { plan, ..Bent::default() }, "norm and 2 linears", "fused by norm_linear");
    finds(Bent { plan, ..Bent::default() }, "norm and residual", "fused by norm_add");
}

#[test]
fn chunks_that_differ_from_single_rows_are_found() {
    // The change is within the tolerance of the comparison with the interpreter, but not of a
    // tolerance of 0.
    let logits = |logits: &mut [f32], n_rows: usize| {
        if n_rows > 1 {
            logits[0] += 1e-5;
        }
    };
    let device = Bent { logits, ..Bent::default() };
    let cases = about("two layers F32 kv F32");
    let case = &cases[0];
    device_testing::compare(&device, case, case.tolerance).unwrap();
    let error = device_testing::compare_chunks(&device, case, 0.0).unwrap_err();
    assert!(error.contains("row by row"), "{error}");
    let exact =
        Case { limits: Limits { numerics: Numerics::Deterministic, ..case.limits.clone() }, ..case.clone() };
    device_testing::compare_chunks(&Bent::default(), &exact, 0.0).unwrap();
}

#[test]
fn the_interpreter_keeps_the_contract_of_steps() {
    let count = check_steps(&Bent::default(), 0.0).unwrap();
    // Without fusion every value can be read right after its node; only KvWrites write none.
    let plain = check_reads(&Bent { rules: &[], ..Bent::default() }, 0.0).unwrap();
    assert_eq!(plain.n_read, plain.n_values);
    assert!(count.n_read * 2 > count.n_values && count.n_values == plain.n_values, "{count:?}");
}

#[test]
fn broken_promises_of_steps_are_found() {
    let bent = |logits: fn(&mut [f32], usize)| Bent { logits, ..Bent::default() };
    // The choices belong to other logits.
    let error = check_wants(&bent(|logits, _| logits.reverse())).unwrap_err();
    assert!(error.contains("output 0 chose"), "{error}");
    // A large step changes later ones.
    let error = check_stops(&bent(|logits, n| {
        if n == 23 {
            logits[0] = f32::NAN
        }
    }))
    .unwrap_err();
    assert!(error.contains("after a stopped one"), "{error}");
    // Values of another plan than the requested one.
    let twice = |plan| {
        edited(plan, |op| {
            if let Op::Embed { scale, .. } = op {
                *scale *= 2.0;
            }
        })
    };
    let error = check_reads(&Bent { plan: twice, ..Bent::default() }, 1e-3).unwrap_err();
    assert!(error.contains("step 0, after node 0: v0"), "{error}");
}

/// The interpreter keeps each value until the next step, including those inside fused Ops.
#[test]
fn every_value_of_the_interpreter_can_be_read_after_a_step() {
    let plan = fuse(&mini_transformer(6, BlockType::F32), fusion::ALL);
    let limits = limits(&plan.kv);
    let mut program =
        Reference::new(1).compile(std::slice::from_ref(&plan), &limits).and_then(committed).unwrap();
    let mut sequences = Sequences::new(2, &plan.kv, &limits, 50);
    for step in [sequences.step(&[(0, 7), (1, 2)]), sequences.step(&[(0, 1)])] {
        let mut after_node = vec![];
        for (node, n) in plan.nodes.iter().enumerate() {
            program.run_until(&step.borrow(), node).unwrap();
            after_node.extend(n.op.writes().into_iter().map(|id| (id, program.read(id).unwrap())));
        }
        program.run(&step.borrow()).unwrap();
        for (id, expected) in after_node {
            assert_eq!(program.read(id).unwrap(), expected, "{id}");
        }
        program.run_until(&step.borrow(), 0).unwrap();
        assert!(program.read(plan.output).is_none(), "it is of the step before");
    }
}

/// Ids are integers in every representation.
#[test]
fn ids_and_best_tokens_can_be_read() {
    let mut b = PlanBuilder::new(4, 50);
    let x = b.embed(9);
    let (ids, weights) = b.route(x, 3, true, 1.0, false);
    let plan = b.finish(weights);
    let limits = limits(&plan.kv);
    let mut program =
        Reference::default().compile(std::slice::from_ref(&plan), &limits).and_then(committed).unwrap();
    let step = Sequences::new(1, &plan.kv, &limits, 50).step(&[(0, 6)]);
    program.run_until(&step.borrow(), 1).unwrap();
    let (routed, read) = (program.read(x).unwrap(), program.read(ids).unwrap());
    for (row, ids) in routed.chunks(9).zip(read.chunks(3)) {
        let best = row.iter().enumerate().max_by(|a, b| a.1.total_cmp(b.1)).unwrap().0;
        assert_eq!(ids[0], best as f32);
        assert!(ids.iter().all(|id| id.fract() == 0.0 && (0.0..9.0).contains(id)));
    }
    assert!(program.read(plan.argmax).is_none());
    program.run(&step.borrow()).unwrap();
    let chosen: Vec<f32> = program.chosen().iter().map(|chosen| chosen.token.unwrap() as f32).collect();
    assert_eq!(program.read(plan.argmax).unwrap(), chosen);
}

#[test]
fn pages_are_copied_and_their_originals_decommitted() {
    let plan = mini_transformer(1, BlockType::F32);
    let limits = limits(&plan.kv);
    let mut sequences = Sequences::new(4, &plan.kv, &limits, 97);
    let (first, second) = (sequences.step(&[(0, 18)]), sequences.step(&[(0, 1)]));
    let expected =
        run(&Reference::default(), std::slice::from_ref(&plan), &limits, &[first.clone(), second.clone()])
            .unwrap();

    // Copied pages give the same results after the granules of the originals are decommitted.
    let mut program =
        Reference::default().compile(std::slice::from_ref(&plan), &limits).and_then(committed).unwrap();
    program.run(&first.borrow()).unwrap();
    let n_groups = plan.kv.groups.len();
    let (mut moved, mut taken, mut old) = (second.clone(), vec![], vec![]);
    for (entry, page) in
        moved.page_tables.iter_mut().enumerate().filter(|(_, page)| **page != device::PAGE_NONE)
    {
        let group = entry / second.pages_per_table % n_groups;
        let granule = |page: u32| program.committed().granule_of(group, page);
        let is_old = |to: &u32| second.page_tables.iter().any(|page| granule(*page) == granule(*to));
        let to = (0..48).find(|to| !is_old(to) && !taken.contains(to)).unwrap();
        taken.push(to);
        program.copy_page(group, *page, to).unwrap();
        old.push((group, *page));
        *page = to;
    }
    for (group, page) in old {
        if program.committed().contains(group, page) {
            let granule = program.committed().granule_of(group, page);
            program.decommit(group, granule).unwrap();
        }
    }
    program.run(&moved.borrow()).unwrap();
    assert_eq!(program.logits(), expected[1][0]);
    // Exported and imported pages give the same results in another program.
    let mut other =
        Reference::default().compile(std::slice::from_ref(&plan), &limits).and_then(committed).unwrap();
    for (entry, page) in moved.page_tables.iter().enumerate().filter(|(_, page)| **page != device::PAGE_NONE)
    {
        let group = entry / second.pages_per_table % n_groups;
        let mut bytes = vec![0; plan.kv.page_bytes(group, limits.kv_type, limits.page_len)];
        program.read_page(group, *page, &mut bytes).unwrap();
        other.write_page(group, *page, &bytes).unwrap();
        assert!(program.read_page(group, *page, &mut bytes[1..]).is_err());
        assert!(other.write_page(group, 48, &bytes).is_err());
    }
    other.run(&moved.borrow()).unwrap();
    assert_eq!(other.logits(), expected[1][0]);
    // The originals are no longer committed.
    assert!(program.run(&second.borrow()).unwrap_err().to_string().contains("not committed"));
    program.commit_all().unwrap();
    program.run(&second.borrow()).unwrap();
    assert!(program.logits().iter().all(|logit| logit.is_nan()));
    assert!(program.copy_page(0, 0, 48).is_err());
    assert!(program.copy_page(2, 0, 1).is_err());
}

#[test]
fn commands_timings_and_memory() {
    let plan = fuse(&mini_transformer(1, BlockType::Q4_K), fusion::ALL);
    let limits = limits(&plan.kv);
    let device = Reference::default();
    let mut program = device.compile(std::slice::from_ref(&plan), &limits).and_then(committed).unwrap();
    let commands = program.commands(0, 1);
    assert_eq!(commands.iter().map(|c| c.weight_bytes).sum::<u64>(), plan.weight_bytes_per_token());
    assert!(commands.iter().any(|c| c.kernel == "linear_q4_k" && c.layer == Some(1)));
    let mut sequences = Sequences::new(4, &plan.kv, &limits, 97);
    let step = sequences.step(&[(0, 3)]);
    let mut timings = vec![];
    program.run_timed(&step.borrow(), &mut timings).unwrap();
    assert_eq!(timings.len(), commands.len());
    assert!(
        timings
            .windows(2)
            .all(|pair| pair[0].command + 1 == pair[1].command && pair[0].start <= pair[1].start)
    );
    let timed = program.logits().to_vec();
    let step = step.with_outputs(vec![], Want::LOGITS);
    program.run(&step.borrow()).unwrap();
    assert!(program.logits().is_empty() && program.chosen().is_empty() && !timed.is_empty());

    let memory = device.memory_plan(std::slice::from_ref(&plan), &limits).unwrap();
    let weights: u64 = plan.weights.iter().map(|w| w.n_bytes()).sum();
    assert_eq!(memory.items.iter().find(|item| item.what == "weights in memory").unwrap().bytes, weights);
    let pages: usize = (0..2).map(|group| 48 * plan.kv.page_bytes(group, KvType::F32, 16)).sum();
    assert_eq!(memory.total(Residence::Reserved), pages as u64);
    assert!(memory.items.iter().any(|item| item.what == "KV pages (window 20)"));
    assert!(memory.total(Residence::Committed) > weights);
}

#[test]
fn steps_that_cannot_run_are_refused() {
    let plan = mini_transformer(1, BlockType::F32);
    let limits = limits(&plan.kv);
    let mut program =
        Reference::default().compile(std::slice::from_ref(&plan), &limits).and_then(committed).unwrap();
    let mut sequences = Sequences::new(4, &plan.kv, &limits, 97);
    let good = sequences.step(&[(0, 3)]);
    let mut step = good.clone();
    step.tokens[1] = 97;
    assert!(program.run(&step.borrow()).unwrap_err().to_string().contains("token 97"));
    let mut step = good.clone();
    step.page_tables.fill(device::PAGE_NONE);
    assert!(program.run(&step.borrow()).unwrap_err().to_string().contains("no page"));
    program.run(&good.borrow()).unwrap();
    let unfit = Limits { n_pages: vec![usize::MAX >> 20; 2], ..limits };
    assert!(Reference::default().compile(std::slice::from_ref(&plan), &unfit).is_err());
}

#[test]
fn pages_are_committed_and_decommitted() {
    check_commits(&Reference::default()).unwrap();
    check_shortage(Arc::new(Reference::default())).unwrap();
}

#[test]
fn plans_are_replaced_while_sequences_go_on() {
    check_replaced_plans(&Reference::default()).unwrap();
}
