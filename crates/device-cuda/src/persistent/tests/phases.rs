//! Compares the table with the plan that it was compiled from. The interpreter of the table runs it
//! phase by phase, and the reference device runs the plan. An error names the first phase that
//! differs.

use super::interpreter::Interpreter;
use super::*;
use device::{Activation, Device, Op, OwnedStep, Program, RopeStyle};
use device_reference::Reference;
use device_testing::{Sequences, committed};
use std::collections::BTreeMap;

/// The address of a weight's vector.
fn address(id: WeightId) -> u64 {
    u64::from(id.0 + 1) << 20
}

/// The address of the packed weights.
const WEIGHTS: u64 = 1 << 40;

/// The address of a layer's pages.
const PAGES: u64 = 1 << 50;

/// A plan whose tokens the reference device computes, and its table with all that it points to.
struct Subject {
    plan: Plan,
    mine: Persistent,
    packed: PersistentPlan,
    arguments: PersistentArguments,
    phases: Vec<PersistentPhase>,
    vectors: BTreeMap<u64, Vec<f32>>,
}

impl Subject {
    fn new(shape: Decoder, seed: u64) -> Subject {
        let plan = shape.plan(seed);
        let found = found(&plan);
        let packed = PersistentPlan::new(std::iter::once((&plan, &found)));
        let mine = found.unwrap();
        let at = |offset: usize| WEIGHTS + offset as u64;
        let (weights, biases) = packed.offsets(0);
        let weights: Vec<u64> = weights.iter().map(|offset| at(*offset)).collect();
        let mut vectors: BTreeMap<u64, Vec<f32>> =
            biases.iter().flatten().map(|(offset, values)| (at(*offset), values.clone())).collect();
        let of_biases: Vec<u64> =
            biases.iter().map(|bias| bias.as_ref().map_or(0, |(offset, _)| at(*offset))).collect();
        for (index, weight) in plan.weights.iter().enumerate() {
            if weight.block == BlockType::F32 && weight.parts.is_empty() && weight.data.len() < 1 << 20 {
                let words = weight.data.as_chunks::<4>().0;
                let values = words.iter().map(|word| f32::from_le_bytes(*word)).collect();
                vectors.insert(address(WeightId(index as u32)), values);
            }
        }
        let pages = |layer: device::KvLayerId| (PAGES + (u64::from(layer.0) << 20), 77, 3);
        let places = PhasePlaces {
            weights: &weights,
            biases: &of_biases,
            vector: &|id| Ok(address(id)),
            pages: &pages,
        };
        let phases = mine.phases(&plan, &places).unwrap();
        let (base, _) = arguments_of(&plan, &mine, Rows::One);
        let frequencies = |index: usize| mine.decoder.rotations.get(index).map_or(0, |(id, _)| address(*id));
        let arguments = PersistentArguments {
            first_norm: address(mine.decoder.layers[0].norm),
            frequencies1: frequencies(0),
            frequencies2: frequencies(1),
            ..base
        };
        Subject { plan, mine, packed, arguments, phases, vectors }
    }

    fn interpreter(&self) -> Interpreter<'_> {
        let Subject { mine, packed, arguments, phases, vectors, .. } = self;
        Interpreter::new(*arguments, phases.clone(), mine.decoder.heads, (packed, WEIGHTS), vectors.clone())
    }

    /// The results of the plan's Ops that phases compute, by phase; `None` for parts of q, k and v.
    fn expected(&self, program: &dyn Program) -> Vec<Option<Vec<f32>>> {
        let read = |id: ValueId| program.read(id).expect("the reference keeps all values");
        let results = |is: fn(&Op) -> bool| {
            let ops = self.plan.nodes.iter().flat_map(|node| node.op.primitives());
            ops.filter(|op| is(op)).map(|op| op.writes()).collect::<Vec<_>>().into_iter()
        };
        let mut attended = results(|op| matches!(op, Op::Attention { .. }));
        let mut sums = results(|op| matches!(op, Op::Add { .. }));
        let mut gated = results(|op| matches!(op, Op::Gate { .. } | Op::GateClamped { .. }));
        let mut routes = results(|op| matches!(op, Op::Route { .. }));
        let mut weights = vec![];
        let of_phase = |phase: &PersistentPhase| match phase.kind {
            QKV if phase.qkv_part & CONTINUED != 0 => None,
            QKV => attended.next().map(|out| read(out[0])),
            ADD | ADD_EXPERTS => sums.next().map(|out| read(out[0])),
            GATE => gated.next().map(|out| read(out[0])),
            ROUTE => {
                weights = routes.next().map(|out| read(out[1])).unwrap();
                Some(weights.clone())
            }
            EXPERTS => {
                let out = gated.next().map(|out| read(out[0])).unwrap();
                let of_expert = out.len() / weights.len();
                let by = |(index, value): (usize, &f32)| value * weights[index / of_expert];
                Some(out.iter().enumerate().map(by).collect())
            }
            _ => Some(read(self.mine.decoder.logits)),
        };
        self.phases.iter().map(of_phase).collect()
    }

    /// Runs `n_steps` steps of one row on both. Returns the phase of the last step that differs
    /// first, and how it differs.
    fn first_difference(&self, interpreter: &mut Interpreter<'_>, n_steps: usize) -> Option<(usize, String)> {
        let limits = limits(&self.plan.kv);
        let program = Reference::new(1).compile(std::slice::from_ref(&self.plan), &limits);
        let mut program = program.and_then(committed).unwrap();
        let mut sequences = Sequences::new(3, &self.plan.kv, &limits, 64);
        for position in 0..n_steps {
            let step: OwnedStep = sequences.step(&[(0, 1)]);
            program.run(&step.borrow()).unwrap();
            let x = program.read(self.mine.decoder.first).unwrap();
            let found = interpreter.step(&x, position, self.phases.len());
            let expected = self.expected(program.as_ref());
            let difference = (0..)
                .zip(&found)
                .zip(&expected)
                .find_map(|((phase, found), expected)| Some((phase, difference(found, expected.as_ref()?)?)));
            if let Some((phase, reason)) = difference {
                let kind = self.phases[phase].kind;
                return Some((phase, format!("position {position}, phase {phase} of kind {kind}: {reason}")));
            }
        }
        None
    }
}

/// The first number that differs by more than f32 arithmetic in another order explains.
fn difference(found: &[f32], expected: &[f32]) -> Option<String> {
    if found.len() != expected.len() {
        return Some(format!("{} numbers, expected {}", found.len(), expected.len()));
    }
    let size = (expected.iter().map(|x| x * x).sum::<f32>() / expected.len() as f32).sqrt();
    // Written so that NaN differs.
    let near = |(a, b): (&f32, &f32)| (a - b).abs() <= 1e-3 * size.max(1e-3);
    let at = found.iter().zip(expected).position(|pair| !near(pair))?;
    Some(format!("number {at} is {}, expected {}", found[at], expected[at]))
}

/// Decoders that have every field of a phase between them.
fn subjects() -> Vec<Decoder> {
    use BlockType::{MXFP4, Q4_1, Q6_K, Q8_0};
    let norms = Decoder { bias: true, head_norms: true, post_norms: true, windows: true, ..SMALL };
    let experts = Experts { n: 16, n_used: 3, bias: true, ..Experts::SMALL };
    let clamped = Experts { block: MXFP4, biases: true, ..experts };
    vec![
        norms,
        Decoder { softcap: Some(20.0), style: RopeStyle::Interleaved, ..SMALL },
        Decoder { sinks: true, added_bias: true, activation: Activation::GeluTanh, ..SMALL },
        Decoder { mix: Some(Mix { k: Q4_1, v: Q8_0, down: Q6_K }), bias: true, ffn: 512, ..SMALL },
        Decoder {
            experts: Some(Experts { scales: true, normalise: false, factor: 1.5, ..experts }),
            ..SMALL
        },
        Decoder { experts: Some(Experts { sigmoid: true, first_dense: true, ..experts }), ..norms },
        Decoder { experts: Some(clamped), sinks: true, ..SMALL },
    ]
}

#[test]
fn every_phase_computes_what_the_plan_does() {
    for (seed, shape) in (1..).zip(subjects()) {
        let subject = Subject::new(shape, seed);
        // Beyond the window of 40 positions.
        let n_steps = if shape.windows { 44 } else { 3 };
        let found = subject.first_difference(&mut subject.interpreter(), n_steps);
        assert_eq!(found, None, "{shape:?}");
    }
}

#[test]
fn a_step_can_stop_after_any_phase() {
    let subject = Subject::new(subjects()[0], 1);
    let x = vec![0.5; SMALL.residual];
    let whole = subject.interpreter().step(&x, 0, usize::MAX);
    assert_eq!(whole.len(), subject.phases.len());
    for stop in [0, 1, 5, whole.len()] {
        assert_eq!(subject.interpreter().step(&x, 0, stop), whole[..stop]);
    }
}

/// A fault of the table is found at its phase and not later.
#[test]
fn a_wrong_entry_is_the_first_phase_that_differs() {
    let subject = Subject::new(subjects()[0], 1);
    let of_layer_1 = |phase: usize| 4 + phase;
    type Change = fn(&mut [PersistentPhase]);
    let faults: [(usize, Change); 6] = [
        (of_layer_1(0), |p| p[4].q_norm_or_second_bias = p[4].k_norm_or_factors),
        (of_layer_1(0), |p| p[4].bias = 0),
        (of_layer_1(1), |p| p[5].post_norm = 0),
        (of_layer_1(2), |p| p[6].activation = 3),
        (of_layer_1(3), |p| p[7].weights = p[3].weights),
        (of_layer_1(4), |p| p[8].rotation = 0),
    ];
    for (phase, change) in faults {
        let mut interpreter = subject.interpreter();
        change(&mut interpreter.phases);
        let found = subject.first_difference(&mut interpreter, 2);
        assert_eq!(found.map(|(phase, _)| phase), Some(phase));
    }
    // The norm after the last phase of a layer shows in the next layer.
    let mut interpreter = subject.interpreter();
    interpreter.phases[3].norm_or_sinks = interpreter.phases[1].norm_or_sinks;
    let found = subject.first_difference(&mut interpreter, 1);
    assert_eq!(found.map(|(phase, _)| phase), Some(of_layer_1(0)));
}
