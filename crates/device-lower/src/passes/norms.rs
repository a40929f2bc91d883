//! Norms with several readers, such as a router and the experts that it chooses. With few rows a
//! product normalises its row at hardly any cost, so each reader recomputes the norm, which saves a
//! dispatch. With many rows the first reader computes it for all.

use super::Readers;
use crate::fields::{Norm, Projection, Tail};
use crate::units::{LoweredUnit, Unit};
use device::{Plan, ValueId};

/// The units without norms that only products read; the products contain these norms. Fusion rules
/// have already decided on a norm with a single projection as its reader.
pub fn inside(plan: &Plan, readers: &Readers, mut lowered: Vec<LoweredUnit>) -> Vec<LoweredUnit> {
    let mut index = 0;
    while let Some(unit) = lowered.get(index).map(|l| &l.unit) {
        let taken = unit.whole_norm(plan).filter(|(_, norm, out)| {
            let users = lowered.iter().filter(|l| l.unit.reads().contains(out));
            let n_reads: usize = users.clone().map(|l| n_products_of(&l.unit, *out)).sum();
            let is_for_rules = match &Vec::from_iter(users)[..] {
                [] => true,
                [only] => matches!(only.unit, Unit::Projection(_)),
                [_, _, ..] => false,
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

/// Number of matrices by which a unit multiplies a value that it could compute itself as the norm
/// of its rows.
fn n_products_of(unit: &Unit, out: ValueId) -> usize {
    match unit {
        Unit::Projection(Projection { x, norm: None, matrices, tail: Tail::Store | Tail::Gate { .. } })
            if *x == out =>
        {
            matrices.len()
        }
        Unit::ExpertGateUp { x, norm: None, .. } if *x == out => 2,
        Unit::Projection(_)
        | Unit::ExpertGateUp { .. }
        | Unit::Primitive(_)
        | Unit::Gated { .. }
        | Unit::RowGated { .. }
        | Unit::Join(_)
        | Unit::QkRopeKv(_)
        | Unit::QRope(_)
        | Unit::ExpertDownSum { .. } => 0,
    }
}

/// Moves a norm into a unit that reads it.
fn take(unit: &mut Unit, from: ValueId, made: (Norm, ValueId)) {
    if let Unit::Projection(Projection { x, norm, .. }) | Unit::ExpertGateUp { x, norm, .. } = unit
        && *x == made.1
    {
        (*x, *norm) = (from, Some(made));
    }
}
