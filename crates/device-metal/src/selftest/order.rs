//! The order of the cases: first a few that run every kernel function, then those that run other
//! pipelines, then the rest.

use super::{SHORTEST_SPLIT, may_split};
use crate::gpu::null::NullGpu;
use crate::gpu::{Facts, Request};
use crate::kernels::Kernel;
use crate::{MetalDevice, Profile};
use device::{Device, Limits, OwnedStep, Plan, Result};
use device_check::{Case, committed};
use device_lower::fusion::fuse;
use std::collections::{HashMap, HashSet};

/// Cases in the order of the report.
#[derive(Default)]
pub struct Order {
    /// The cases.
    pub cases: Vec<Case>,
    /// Number of the first cases that run every kernel function that any of them runs.
    pub n_cover: usize,
    /// Pipelines that the cases run: one of each function, then the others.
    pub requests: Vec<Request>,
}

impl Order {
    /// Orders cases for a GPU and a profile. A GPU that runs nothing records the pipelines of each.
    ///
    /// # Errors
    /// A case is not accepted.
    pub fn new(facts: &Facts, profile: &Profile, cases: Vec<Case>) -> Result<Order> {
        let device = MetalDevice::with_profile(NullGpu::with_facts(facts.clone()), profile.clone());
        let (mut pipelines, mut functions) = (Numbers::default(), Numbers::default());
        let mut requests: Vec<(usize, Request)> = vec![];
        let (mut of_case, mut functions_of_case) = (vec![], vec![]);
        for case in &cases {
            let (mut of_this, mut functions_of_this) = (vec![], vec![]);
            for request in requests_of(&device, case)? {
                let (function, (number, is_new)) =
                    (functions.of(&request.kernel).0, pipelines.of(&format!("{request:?}")));
                of_this.push(number);
                functions_of_this.push(function);
                if is_new {
                    requests.push((function, request));
                }
            }
            of_case.push(of_this);
            functions_of_case.push(functions_of_this);
        }
        let mut rest: Vec<usize> = (0..cases.len()).collect();
        rest.sort_by_key(|index| work(&cases[*index]));
        let mut order = cover(&functions_of_case, &mut rest, &mut HashSet::new());
        let n_cover = order.len();
        let mut known = order.iter().flat_map(|index| &of_case[*index]).copied().collect();
        order.extend(cover(&of_case, &mut rest, &mut known));
        order.extend(rest);
        let mut cases: Vec<Option<Case>> = cases.into_iter().map(Some).collect();
        let cases = order.iter().filter_map(|index| cases[*index].take()).collect();
        // A stable sort by whether an earlier one has the same function.
        let mut seen = HashSet::new();
        let mut requests: Vec<(bool, Request)> =
            requests.into_iter().map(|(function, request)| (!seen.insert(function), request)).collect();
        requests.sort_by_key(|(is_repeated, _)| *is_repeated);
        let requests = requests.into_iter().map(|(_, request)| request).collect();
        Ok(Order { cases, n_cover, requests })
    }

    /// Kernel functions of the first part.
    pub fn functions(&self) -> HashSet<&Kernel> {
        self.requests.iter().map(|request| &request.kernel).collect()
    }
}

/// Numbers of things, in the order of their first appearance.
struct Numbers<T>(HashMap<T, usize>);

impl<T> Default for Numbers<T> {
    fn default() -> Numbers<T> {
        Numbers(HashMap::new())
    }
}

impl<T: Clone + Eq + std::hash::Hash> Numbers<T> {
    /// The number of a thing, and true if it is new.
    fn of(&mut self, thing: &T) -> (usize, bool) {
        let next = self.0.len();
        let number = *self.0.entry(thing.clone()).or_insert(next);
        (number, number == next)
    }
}

/// Multiply-adds of a case.
fn work(case: &Case) -> u64 {
    let rows: usize = case.steps.iter().map(|step| step.tokens.len()).sum();
    case.plans.iter().map(|plan| plan.ops_per_token()).sum::<u64>() * rows as u64
}

/// Takes sets from `rest` until none has an element that is not known: each time the first of those
/// with most such elements. Returns them in this order.
fn cover(sets: &[Vec<usize>], rest: &mut Vec<usize>, known: &mut HashSet<usize>) -> Vec<usize> {
    let mut taken = vec![];
    loop {
        let n_new = |index: usize| sets[index].iter().filter(|element| !known.contains(element)).count();
        let best = rest.iter().enumerate().rev().max_by_key(|(_, index)| n_new(**index));
        let Some((at, _)) = best.filter(|(_, index)| n_new(**index) > 0) else { return taken };
        let index = rest.remove(at);
        known.extend(&sets[index]);
        taken.push(index);
    }
}

/// Pipelines that [`super::check_case`] runs at least.
fn requests_of(device: &MetalDevice<NullGpu>, case: &Case) -> Result<Vec<Request>> {
    let fused: Vec<Plan> = case.plans.iter().map(|plan| fuse(plan, device.fusion())).collect();
    run(device, &case.plans, &case.limits, &case.steps)?;
    run(device, &fused, &case.limits, &case.steps)?;
    if may_split(case) {
        // It shares the GPU.
        run(&device.splitting(SHORTEST_SPLIT), &fused, &case.limits, &case.steps)?;
    }
    Ok(device.gpu().take_requests())
}

fn run(device: &dyn Device, plans: &[Plan], limits: &Limits, steps: &[OwnedStep]) -> Result<()> {
    let mut program = device.compile(plans, limits).and_then(committed)?;
    steps.iter().try_for_each(|step| program.run(&step.borrow()))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The largest gain comes first; of equal ones the first. What adds nothing stays.
    #[test]
    fn a_cover_is_greedy() {
        let sets = [vec![1, 2], vec![1], vec![3, 4, 5], vec![2, 3], vec![6], vec![6]];
        let mut rest = vec![0, 1, 2, 3, 4, 5];
        let mut known = HashSet::new();
        assert_eq!(cover(&sets, &mut rest, &mut known), [2, 0, 4]);
        assert_eq!(rest, [1, 3, 5]);
        assert_eq!(known.len(), 6);
        assert_eq!(cover(&sets, &mut rest, &mut known), [0; 0]);
    }
}
