//! Builds the plans of a vision tower.

use std::collections::BTreeSet;

use device::{
    Activation, DType, KvLayout, Node, Op, OutputKind, Plan, RowCount, Value, ValueId, Weight, WeightId,
};
use weights::{BlockType, Checkpoint, Planes, Tensor};

use super::{
    CHANNELS, Joining, PatchPositions, ProjectorStep, Turning, VisionPlans, VisionSpec, VisionStage,
};
use crate::descriptor::NormKind;
use crate::error::{Error, Result};
use crate::transpose::{transposed_bytes, value_bytes};

impl VisionSpec {
    /// Builds the plans. With `used`, only checks tensors and collects their names, without
    /// decoding values.
    pub(super) fn build(
        &self,
        checkpoint: &Checkpoint,
        used: Option<&mut BTreeSet<String>>,
    ) -> Result<VisionPlans> {
        let mut source = TowerTensors { checkpoint, decodes: used.is_none(), used: BTreeSet::new() };
        let mut stages = Vec::new();
        let mut first = 0;
        while first < self.n_layers {
            let windowed = self.windowed(first);
            let ends = |l: &usize| {
                *l + 1 == self.n_layers || self.taps.contains(l) || self.windowed(*l + 1) != windowed
            };
            let last = (first..self.n_layers).find(ends).unwrap_or(first);
            let plan = self.stage(&mut source, first, last)?;
            stages.push(VisionStage { plan, windowed, tap: self.taps.iter().position(|l| *l == last) });
            first = last + 1;
        }
        let projector = self.project(&mut source, self.tower.projector, None)?;
        let taps = (0..self.taps.len())
            .map(|tap| self.project(&mut source, self.tower.tap_projector, Some(tap)))
            .collect::<Result<_>>()?;
        let positions = match self.tower.positions {
            PatchPositions::None => None,
            PatchPositions::Table | PatchPositions::Stretched => {
                let name = format!("{}{}.weight", self.prefixes[0], self.tower.position);
                Some(source.matrix(&name, self.table_side * self.table_side, self.hidden)?)
            }
            PatchPositions::Axes => {
                let name = format!("{}{}", self.prefixes[0], self.tower.position);
                Some(source.tables(&name, 2, self.table_side, self.hidden)?)
            }
        };
        let standard = match self.tower.joining {
            Joining::Standardised { bias, scale } => {
                let names = [bias, scale].map(|name| format!("{}{name}", self.prefixes[0]));
                match names.iter().any(|name| source.has(name)) {
                    true => {
                        Some([source.values(&names[0], self.hidden)?, source.values(&names[1], self.hidden)?])
                    }
                    false => None,
                }
            }
            Joining::Concatenated | Joining::Averaged => None,
        };
        if let Some(used) = used {
            *used = source.used;
        }
        Ok(VisionPlans { stages, projector, taps, positions, standard })
    }

    fn windowed(&self, layer: usize) -> bool {
        self.window.is_some() && !self.full_layers.contains(&layer)
    }

    fn name(&self, layer: usize, name: &str) -> String {
        format!("{}{}{name}", self.prefixes[0], self.tower.layer.replace("{l}", &layer.to_string()))
    }

    /// A product with a matrix of a layer. Its input and output are clamped if the checkpoint has
    /// bounds.
    fn of_layer(
        &self,
        b: &mut TowerBuilder<'_, '_>,
        x: ValueId,
        (layer, name): (usize, &str),
        n_out: usize,
        what: &str,
    ) -> Result<ValueId> {
        let name = self.name(layer, name);
        if !self.tower.bounds {
            return b.linear(x, &name, n_out, what);
        }
        let x = b.bounded(x, &name, "input")?;
        let out = b.linear(x, &format!("{name}.linear"), n_out, what)?;
        b.bounded(out, &name, "output")
    }

    /// The plan of layers `first` to `last`.
    fn stage(&self, source: &mut TowerTensors<'_>, first: usize, last: usize) -> Result<Plan> {
        let tower = self.tower;
        let mut b = TowerBuilder::new(source);
        let cols = self.stage_cols(first == 0);
        let input = b.value("input", cols);
        b.push(Op::Input { out: input });
        let mut x = if first == 0 {
            let pixels = b.part(input, 0, cols, self.patch_len(), "pixels");
            let name = format!("{}{}", self.prefixes[0], tower.patch);
            let mut x = b.patches(pixels, &name, self)?;
            if tower.positions != PatchPositions::None {
                let positions = b.part(input, self.patch_len(), cols, self.hidden, "positions");
                x = b.add(x, positions, "patches with positions");
            }
            x
        } else {
            b.part(input, 0, cols, self.hidden, "states")
        };
        let half = self.hidden / 2;
        let turns = (tower.turning != Turning::None).then(|| {
            let cos = b.part(input, cols - self.hidden, cols, half, "cosines");
            (cos, b.part(input, cols - half, cols, half, "sines"))
        });
        let turned = match tower.turning {
            Turning::Halves => self.head_dim() / 2,
            Turning::None | Turning::Whole => self.head_dim(),
        };
        for layer in first..=last {
            b.layer = Some(layer as u32);
            let normed = b.norm(x, &self.name(layer, tower.norms[0]), tower.norm_kind, 0.0, self.norm_eps)?;
            let mut qkv = [normed; 3];
            if let [all] = tower.qkv {
                let all = b.linear(normed, &self.name(layer, all), 3 * self.hidden, "qkv")?;
                for (i, (part, name)) in qkv.iter_mut().zip(["q", "k", "v"]).enumerate() {
                    *part = b.part(all, i * self.hidden, 3 * self.hidden, self.hidden, name);
                }
            } else {
                for ((part, name), what) in qkv.iter_mut().zip(tower.qkv).zip(["q", "k", "v"]) {
                    *part = self.of_layer(&mut b, normed, (layer, name), self.hidden, what)?;
                }
            }
            let [mut q, mut k, mut v] = qkv;
            if let Some([of_q, of_k]) = tower.qk_norms {
                q = b.norm_of_heads(q, Some(&self.name(layer, of_q)), self.head_dim(), self.norm_eps)?;
                k = b.norm_of_heads(k, Some(&self.name(layer, of_k)), self.head_dim(), self.norm_eps)?;
                v = b.norm_of_heads(v, None, self.head_dim(), self.norm_eps)?;
            }
            if let Some(turns) = turns {
                q = b.rotate(q, turns, turned, "q turned");
                k = b.rotate(k, turns, turned, "k turned");
            }
            let mixed = b.value("attention", self.hidden);
            let scale = if tower.unscaled { 1.0 } else { (self.head_dim() as f32).sqrt().recip() };
            b.push(Op::SelfAttention { q, k, v, n_heads: self.n_heads, scale, window: None, out: mixed });
            let mut out = self.of_layer(&mut b, mixed, (layer, tower.out), self.hidden, "attention out")?;
            if let Some([norm, _]) = tower.post_norms {
                out = b.norm(out, &self.name(layer, norm), tower.norm_kind, 0.0, self.norm_eps)?;
            }
            x = b.add(x, out, "attention residual");
            let normed = b.norm(x, &self.name(layer, tower.norms[1]), tower.norm_kind, 0.0, self.norm_eps)?;
            let kind = self.activation;
            let inner = match tower.network {
                [gate, up, _] => {
                    let gate = self.of_layer(&mut b, normed, (layer, gate), self.ffn, "gate")?;
                    let up = self.of_layer(&mut b, normed, (layer, up), self.ffn, "up")?;
                    let out = b.value("gated", self.ffn);
                    b.push(Op::Gate { gate, up, kind, out });
                    out
                }
                _ => {
                    let name = tower.network.first().copied().unwrap_or_default();
                    let up = self.of_layer(&mut b, normed, (layer, name), self.ffn, "up")?;
                    b.activate(up, kind)
                }
            };
            let down = tower.network.last().copied().unwrap_or_default();
            let mut out = self.of_layer(&mut b, inner, (layer, down), self.hidden, "down")?;
            if let Some([_, norm]) = tower.post_norms {
                out = b.norm(out, &self.name(layer, norm), tower.norm_kind, 0.0, self.norm_eps)?;
            }
            x = b.add(x, out, "network residual");
        }
        b.layer = None;
        if last + 1 == self.n_layers
            && !self.taps.contains(&last)
            && let Some(norm) = tower.last_norm
        {
            x = b.norm(x, &format!("{}{norm}", self.prefixes[0]), tower.norm_kind, 0.0, self.norm_eps)?;
        }
        b.finish(x)
    }

    /// The plan from joined patches, of the last layer or of a tap, to rows of the text.
    fn project(
        &self,
        source: &mut TowerTensors<'_>,
        steps: &[ProjectorStep],
        tap: Option<usize>,
    ) -> Result<Plan> {
        let joined = self.joined();
        let mut b = TowerBuilder::new(source);
        let mut x = b.value("joined patches", joined);
        b.push(Op::Input { out: x });
        // A tap on the last layer reads states before the last norm, so the projector applies it.
        let last = self.n_layers.checked_sub(1);
        let here = tap.is_none() && last.is_some_and(|l| self.taps.contains(&l));
        if here && let Some(norm) = self.tower.last_norm {
            x = b.norm_of_groups(
                x,
                &format!("{}{norm}", self.prefixes[0]),
                self.hidden,
                self.tower.norm_kind,
                self.norm_eps,
            )?;
        }
        let last =
            steps.iter().rposition(|s| matches!(s, ProjectorStep::Linear(_) | ProjectorStep::Turned(_)));
        for (i, step) in steps.iter().enumerate() {
            let n_out = if last == Some(i) { self.out } else { joined };
            let name = |name: &str| {
                format!("{}{}", self.prefixes[1], name.replace("{i}", &tap.unwrap_or(0).to_string()))
            };
            x = match step {
                ProjectorStep::Norm(norm, kind, offset) => {
                    b.norm(x, &name(norm), *kind, *offset, self.norm_eps)?
                }
                ProjectorStep::PlainNorm => b.norm_of_heads(x, None, joined, self.norm_eps)?,
                ProjectorStep::Linear(linear) => b.linear(x, &name(linear), n_out, "projected")?,
                ProjectorStep::Turned(linear) => b.transposed(x, &name(linear), n_out)?,
                ProjectorStep::Activate(kind) => b.activate(x, *kind),
            };
        }
        b.finish(x)
    }

    /// Columns of a row of joined patches.
    pub fn joined(&self) -> usize {
        match self.tower.joining {
            Joining::Concatenated => self.hidden * self.merge * self.merge,
            Joining::Averaged | Joining::Standardised { .. } => self.hidden,
        }
    }
}

/// Tensors by name.
struct TowerTensors<'a> {
    checkpoint: &'a Checkpoint,
    decodes: bool,
    used: BTreeSet<String>,
}

impl TowerTensors<'_> {
    fn find(&mut self, name: &str, expected: &[usize]) -> Result<&Tensor> {
        let missing = || Error::MissingTensor {
            name: name.to_owned(),
            naming: self.checkpoint.naming,
            role: "tower of images".to_owned(),
            shape: expected.to_vec(),
        };
        let tensor = self.checkpoint.tensor(name).ok_or_else(missing)?;
        self.used.insert(name.to_owned());
        Ok(tensor)
    }

    /// A matrix `(n_out, n_in)`, stored with any number of dimensions.
    fn matrix(&mut self, name: &str, n_out: usize, n_in: usize) -> Result<Weight> {
        let tensor = self.find(name, &[n_out, n_in])?.clone();
        self.matrix_of(&tensor, n_out, n_in)
    }

    fn matrix_of(&self, tensor: &Tensor, n_out: usize, n_in: usize) -> Result<Weight> {
        let (decodes, name) = (self.decodes, tensor.name.as_str());
        let fits = tensor.shape.first() == Some(&n_out)
            && tensor.shape[1..].iter().try_fold(1usize, |n, d| n.checked_mul(*d)) == Some(n_in);
        let of_rows = tensor.shape.len() == 2;
        let n_bytes = tensor.n_rows().checked_mul(tensor.row_bytes());
        let whole = tensor.planes.fit(tensor.block, tensor.n_rows(), tensor.n_cols())
            && tensor.n_cols().is_multiple_of(tensor.block.block_len())
            && n_bytes == Some(tensor.data.len());
        if !fits || !whole || (!of_rows && value_bytes(tensor.block).is_none()) {
            return Err(bad(tensor, &[n_out, n_in]));
        }
        // Kernels read unblocked values as slices of their type, but the file formats promise no
        // alignment.
        if tensor.block == BlockType::F32 && tensor.data.as_ptr().align_offset(4) != 0 {
            let values = if decodes { tensor.to_f32() } else { vec![0.0; n_out * n_in] };
            return Ok(Weight { shape: vec![n_out, n_in], ..Weight::vector(name, &values) });
        }
        Ok(Weight {
            name: name.to_owned(),
            shape: vec![n_out, n_in],
            block: tensor.block,
            data: tensor.data.clone(),
            planes: tensor.planes.clone(),
            parts: vec![],
        })
    }

    fn vector(&mut self, name: &str, len: usize, offset: f32) -> Result<Weight> {
        let mut values = self.values(name, len)?;
        values.iter_mut().for_each(|value| *value += offset);
        Ok(Weight::vector(name, &values))
    }

    /// Several tables `(n_rows, n_cols)`, concatenated.
    fn tables(&mut self, name: &str, n: usize, n_rows: usize, n_cols: usize) -> Result<Weight> {
        let tensor = self.find(name, &[n, n_rows, n_cols])?;
        if tensor.shape != [n, n_rows, n_cols] || value_bytes(tensor.block).is_none() {
            return Err(bad(tensor, &[n, n_rows, n_cols]));
        }
        let flat = Tensor { shape: vec![n * n_rows, n_cols], ..tensor.clone() };
        self.matrix_of(&flat, n * n_rows, n_cols)
    }

    /// The values of a vector; zeros if values are not decoded.
    fn values(&mut self, name: &str, len: usize) -> Result<Vec<f32>> {
        let decodes = self.decodes;
        let tensor = self.find(name, &[len])?;
        if tensor.shape != [len] || tensor.data.len() != tensor.row_bytes() || tensor.block.has_planes() {
            return Err(bad(tensor, &[len]));
        }
        Ok(if decodes { tensor.to_f32() } else { vec![0.0; len] })
    }

    /// A single number, if the file has it. It is always decoded, because the plan depends on it.
    fn number(&mut self, name: &str) -> Result<Option<f32>> {
        if !self.has(name) {
            return Ok(None);
        }
        let tensor = self.find(name, &[])?;
        let is_one = tensor.shape.iter().product::<usize>() == 1;
        if !is_one || value_bytes(tensor.block) != Some(tensor.data.len()) {
            return Err(bad(tensor, &[]));
        }
        Ok(tensor.to_f32().first().copied())
    }

    fn has(&self, name: &str) -> bool {
        self.checkpoint.tensor(name).is_some()
    }
}

fn bad(tensor: &Tensor, expected: &[usize]) -> Error {
    Error::BadTensor {
        name: tensor.name.clone(),
        found: format!("shape {:?} of {}, {} bytes", tensor.shape, tensor.block, tensor.data.len()),
        expected: format!("shape {expected:?}, in its last dimensions together (tower of images)"),
    }
}

struct TowerBuilder<'s, 'a> {
    source: &'s mut TowerTensors<'a>,
    layer: Option<u32>,
    values: Vec<Value>,
    weights: Vec<Weight>,
    nodes: Vec<Node>,
}

impl<'s, 'a> TowerBuilder<'s, 'a> {
    fn new(source: &'s mut TowerTensors<'a>) -> TowerBuilder<'s, 'a> {
        TowerBuilder { source, layer: None, values: Vec::new(), weights: Vec::new(), nodes: Vec::new() }
    }

    fn value(&mut self, name: &str, cols: usize) -> ValueId {
        self.new_value(name, RowCount::Tokens, cols, DType::F32)
    }

    fn new_value(&mut self, name: &str, rows: RowCount, cols: usize, dtype: DType) -> ValueId {
        let name = self.layer.map_or_else(|| name.to_owned(), |l| format!("layer {l} {name}"));
        self.values.push(Value { name, rows, cols, dtype });
        ValueId(self.values.len() as u32 - 1)
    }

    fn cols(&self, id: ValueId) -> usize {
        self.values.get(id.0 as usize).map_or(0, |value| value.cols)
    }

    fn weight(&mut self, weight: Weight) -> WeightId {
        self.weights.push(weight);
        WeightId(self.weights.len() as u32 - 1)
    }

    fn push(&mut self, op: Op) {
        self.nodes.push(Node { op, layer: self.layer, place: None });
    }

    fn part(&mut self, x: ValueId, first: usize, group: usize, taken: usize, name: &str) -> ValueId {
        let out = self.value(name, self.cols(x) / group.max(1) * taken);
        self.push(Op::Columns { x, first, group, out });
        out
    }

    fn add(&mut self, a: ValueId, b: ValueId, name: &str) -> ValueId {
        let out = self.value(name, self.cols(a));
        self.push(Op::Add { a, b, out });
        out
    }

    fn product(&mut self, a: ValueId, b: ValueId) -> ValueId {
        let out = self.value("product", self.cols(a));
        self.push(Op::Gate { gate: a, up: b, kind: Activation::Identity, out });
        out
    }

    fn activate(&mut self, x: ValueId, kind: Activation) -> ValueId {
        let out = self.value("activated", self.cols(x));
        self.push(Op::Activate { x, kind, out });
        out
    }

    fn linear(&mut self, x: ValueId, name: &str, n_out: usize, what: &str) -> Result<ValueId> {
        let weight = self.source.matrix(&format!("{name}.weight"), n_out, self.cols(x))?;
        let weight = self.weight(weight);
        let bias = format!("{name}.bias");
        let bias = if self.source.has(&bias) { Some(self.source.vector(&bias, n_out, 0.0)?) } else { None };
        let bias = bias.map(|bias| self.weight(bias));
        let out = self.value(what, n_out);
        self.push(Op::Linear { x, weight, bias, out });
        Ok(out)
    }

    /// The patch embedding: a convolution with a stride of its own size. Its weights are converted
    /// to F32, because some devices round the input of BF16 products, and pixels would lose half
    /// their shades.
    fn patches(&mut self, x: ValueId, name: &str, spec: &VisionSpec) -> Result<ValueId> {
        let (of, columns) = (format!("{name}.weight"), spec.patch_len());
        let VisionSpec { hidden, frames, patch, .. } = *spec;
        // MLX stores colours last, and so do files that store a matrix.
        let colours_last = match self.source.find(&of, &[hidden, CHANNELS, frames, patch, patch])?.shape[..] {
            [_, _] => frames == 1,
            [n, h, w, CHANNELS] => (n, h, w) == (hidden, patch, patch) && frames == 1,
            [n, f, h, w, CHANNELS] => (n, f, h, w) == (hidden, frames, patch, patch),
            _ => false,
        };
        let weight = self.source.matrix(&of, hidden, columns)?;
        let mut values = vec![0.0; hidden * columns];
        if self.source.decodes {
            weight.decode_rows(0..hidden, &mut values);
        }
        if colours_last {
            let colour = |row: &[f32], channel: usize| -> Vec<f32> {
                row.iter().skip(channel).step_by(CHANNELS).copied().collect()
            };
            let row = |row: &[f32]| -> Vec<f32> { (0..CHANNELS).flat_map(|c| colour(row, c)).collect() };
            values = values.chunks_exact(columns).flat_map(row).collect();
        }
        let weight = self.weight(Weight { shape: vec![hidden, columns], ..Weight::vector(of, &values) });
        let bias = format!("{name}.bias");
        let bias = if self.source.has(&bias) { Some(self.source.vector(&bias, hidden, 0.0)?) } else { None };
        let bias = bias.map(|bias| self.weight(bias));
        let out = self.value("patches", hidden);
        self.push(Op::Linear { x, weight, bias, out });
        Ok(out)
    }

    /// A product with a matrix `(n_in, n_out)`, transposed at load.
    fn transposed(&mut self, x: ValueId, name: &str, n_out: usize) -> Result<ValueId> {
        let (n_in, decodes) = (self.cols(x), self.source.decodes);
        let weight = self.source.matrix(name, n_in, n_out)?;
        let tensor = self.source.find(name, &[n_in, n_out])?;
        let data = transposed_bytes(tensor, 0, (0, 1), [n_out, n_in], decodes)?;
        let name = format!("{name} turned");
        let planes = Planes::default();
        let weight = self.weight(Weight { name, shape: vec![n_out, n_in], data, planes, ..weight });
        let out = self.value("projected", n_out);
        self.push(Op::Linear { x, weight, bias: None, out });
        Ok(out)
    }

    fn norm(&mut self, x: ValueId, name: &str, kind: NormKind, offset: f32, eps: f32) -> Result<ValueId> {
        let cols = self.cols(x);
        let weight = self.source.vector(&format!("{name}.weight"), cols, offset)?;
        let weight = self.weight(weight);
        let out = self.value("norm", cols);
        if kind == NormKind::Rms {
            self.push(Op::RmsNorm { x, weight: Some(weight), eps, group: cols, out });
            return Ok(out);
        }
        let bias = format!("{name}.bias");
        let bias = if self.source.has(&bias) { Some(self.source.vector(&bias, cols, 0.0)?) } else { None };
        let bias = bias.map(|bias| self.weight(bias));
        self.push(Op::LayerNorm { x, weight, bias, eps, out });
        Ok(out)
    }

    /// `max(min, min(x, max))`, with the bounds stored beside a matrix, if it has both.
    fn bounded(&mut self, x: ValueId, name: &str, side: &str) -> Result<ValueId> {
        let bounds = ["min", "max"].map(|end| format!("{name}.{side}_{end}"));
        let [Some(min), Some(max)] = [self.source.number(&bounds[0])?, self.source.number(&bounds[1])?]
        else {
            return Ok(x);
        };
        if min.is_nan() || max.is_nan() || min > max {
            return Err(Error::BadTensor {
                name: bounds[0].clone(),
                found: format!("{min} beside {max} in {}", bounds[1]),
                expected: "the lesser of two numbers".to_owned(),
            });
        }
        if min == f32::NEG_INFINITY && max == f32::INFINITY {
            return Ok(x);
        }
        let (min, max) = (min.max(f32::MIN), max.min(f32::MAX));
        let out = self.value("bounded", self.cols(x));
        self.push(Op::Clamp { x, min, max, out });
        Ok(out)
    }

    /// RMS norm of each head, or of other groups of columns, with a shared weight if there is one.
    fn norm_of_heads(&mut self, x: ValueId, name: Option<&str>, group: usize, eps: f32) -> Result<ValueId> {
        let weight = match name {
            Some(name) => {
                let weight = self.source.vector(&format!("{name}.weight"), group, 0.0)?;
                Some(self.weight(weight))
            }
            None => None,
        };
        let out = self.value("norm of heads", self.cols(x));
        self.push(Op::RmsNorm { x, weight, eps, group, out });
        Ok(out)
    }

    /// A norm of each group of columns.
    fn norm_of_groups(
        &mut self,
        x: ValueId,
        name: &str,
        group: usize,
        kind: NormKind,
        eps: f32,
    ) -> Result<ValueId> {
        let cols = self.cols(x);
        let mut joined = None;
        for first in (0..cols).step_by(group.max(1)) {
            let part = self.part(x, first, cols, group, "patch");
            let part = self.norm(part, name, kind, 0.0, eps)?;
            joined = Some(match joined {
                None => part,
                Some(before) => self.join(before, part, 1),
            });
        }
        Ok(joined.unwrap_or(x))
    }

    fn join(&mut self, a: ValueId, b: ValueId, n_heads: usize) -> ValueId {
        let out = self.value("joined", self.cols(a) + self.cols(b));
        self.push(Op::Join { a, b, n_heads, out });
        out
    }

    /// Rotates all columns of heads by `(cosines, sines)` of each pair. A pair has one column of
    /// each half.
    fn rotate(&mut self, x: ValueId, (cos, sin): (ValueId, ValueId), head_dim: usize, name: &str) -> ValueId {
        let (half, n_heads) = (head_dim / 2, self.cols(x) / head_dim);
        let a = self.part(x, 0, head_dim, half, "first halves");
        let b = self.part(x, half, head_dim, half, "second halves");
        let (a_cos, b_sin) = (self.product(a, cos), self.product(b, sin));
        let (b_cos, a_sin) = (self.product(b, cos), self.product(a, sin));
        let negative = self.value("negative", self.cols(b_sin));
        self.push(Op::Scale { x: b_sin, factor: -1.0, out: negative });
        let first = self.add(a_cos, negative, "first turned");
        let second = self.add(b_cos, a_sin, "second turned");
        let out = self.join(first, second, n_heads);
        if let Some(value) = self.values.get_mut(out.0 as usize) {
            value.name = name.to_owned();
        }
        out
    }

    /// Finishes the plan with all rows of `x` as the result.
    fn finish(mut self, x: ValueId) -> Result<Plan> {
        let output = self.new_value("all rows", RowCount::Outputs, self.cols(x), DType::F32);
        self.push(Op::SelectRows { x, out: output });
        let argmax = self.new_value("largest", RowCount::Outputs, 1, DType::U32);
        self.push(Op::Argmax { x: output, out: argmax });
        let TowerBuilder { values, weights, nodes, .. } = self;
        let plan = Plan {
            values,
            weights,
            nodes,
            kv: KvLayout::default(),
            output,
            argmax,
            output_kind: OutputKind::Hidden,
            kept: vec![],
        };
        plan.check()?;
        Ok(plan)
    }
}
