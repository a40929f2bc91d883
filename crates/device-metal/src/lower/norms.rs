//! Norms of several readers, as of a router and of the experts that it chooses. With few rows a product normalises its row at hardly any
//! cost, so each makes the norm for itself, which saves the dispatch before them; with many rows the first makes it for all.

use super::{Lowered, Readers, Unit, whole_norm};
use device::lower::{Norm, Projection, Tail};
use device::{Plan, ValueId};

/// The units without the norms that nobody but products reads; these have them inside. Whether a single projection does is for the rules
/// of fusion to say.
pub fn inside(plan: &Plan, readers: &Readers, mut lowered: Vec<Lowered>) -> Vec<Lowered> {
    let mut index = 0;
    while let Some(unit) = lowered.get(index).map(|l| &l.unit) {
        let taken = whole_norm(plan, unit).filter(|(_, norm, out)| {
            let users = lowered.iter().filter(|l| l.unit.reads().contains(out));
            let n_reads: usize = users.clone().map(|l| n_products_of(&l.unit, *out)).sum();
            let is_for_rules = match &Vec::from_iter(users)[..] {
                [] => true,
                [only] => matches!(only.unit, Unit::Projection(_)),
                _ => false,
            };
            norm.weight.is_some() && !is_for_rules && n_reads == readers.count(*out)
        });
        let Some((x, norm, out)) = taken else {
            index += 1;
            continue;
        };
        lowered.remove(index);
        lowered.iter_mut().for_each(|l| take(&mut l.unit, x, (norm, out)));
    }
    lowered
}

/// How many matrices a unit multiplies a value by that it could make for itself as the norm of its rows.
fn n_products_of(unit: &Unit, out: ValueId) -> usize {
    match unit {
        Unit::Projection(Projection { x, norm: None, matrices, tail: Tail::Store | Tail::Gate { .. } })
            if *x == out =>
        {
            matrices.len()
        }
        Unit::ExpertGateUp { x, norm: None, .. } if *x == out => 2,
        _ => 0,
    }
}

/// Have a unit that reads a norm make it.
fn take(unit: &mut Unit, from: ValueId, made: (Norm, ValueId)) {
    match unit {
        Unit::Projection(Projection { x, norm, .. }) | Unit::ExpertGateUp { x, norm, .. } if *x == made.1 => {
            (*x, *norm) = (from, Some(made));
        }
        _ => {}
    }
}
