//! The feed-forward network of a layer: dense, experts, or both.

use device::{Activation, DType, Op, Place, ValueId};

use super::Builder;
use crate::descriptor::ExpertPlace;
use crate::error::Result;
use crate::names::TensorRole;
use crate::spec::{ExpertSpec, LayerSpec};

/// Places of a dense network: its gate, up, the product of both, and down.
pub(super) type DensePlaces = [Place; 4];
pub(super) const DENSE: DensePlaces = [Place::Gate, Place::Up, Place::Gated, Place::Down];
const SHARED: DensePlaces = [Place::SharedGate, Place::SharedUp, Place::SharedDown, Place::SharedDown];
const LATE: DensePlaces = [Place::LateGate, Place::LateUp, Place::LateDown, Place::LateDown];

impl Builder<'_, '_> {
    /// `x + post_norm(network(pre_norm(x)))`, with a dense network, experts, or both.
    pub fn feed_forward(&mut self, x: ValueId, layer: &LayerSpec) -> Result<ValueId> {
        let norms = self.spec.family.norms;
        let (x, branch) = match (layer.experts, self.spec.family.experts) {
            (Some(experts), ExpertPlace::Beside) => (x, self.dense_and_experts(x, layer, experts)?),
            (experts, place) => {
                self.at(Place::NetworkNorm);
                let input = self.maybe_norm(norms.pre_ffn, x, TensorRole::FfnNorm, "ffn norm")?;
                match (experts, place) {
                    (Some(experts), ExpertPlace::Instead) => (x, self.experts(input, experts)?),
                    (Some(experts), ExpertPlace::WithPlainShared) => {
                        let routed = self.experts(input, experts)?;
                        if layer.ffn == 0 {
                            (x, routed)
                        } else {
                            let shared = self.network(input, layer, LATE)?;
                            (self.add_branch(x, shared, "shared experts residual"), routed)
                        }
                    }
                    (Some(experts), ExpertPlace::WithShared) => self.shared(x, input, layer, experts)?,
                    (Some(experts), ExpertPlace::BesideShared) => {
                        (x, self.beside_shared(input, layer, experts)?)
                    }
                    (Some(_), ExpertPlace::Nowhere | ExpertPlace::Beside) | (None, _) => {
                        (x, self.network(input, layer, DENSE)?)
                    }
                }
            }
        };
        let norm = norms.post_ffn.then_some((TensorRole::PostFfnNorm, "post-ffn norm"));
        self.at(Place::NetworkSum);
        let sum = self.join(x, branch, norm, "ffn residual");
        self.place = None;
        sum
    }

    /// `x + sigmoid(weight) * shared expert`, and the output of the routed experts, which is added
    /// later without a norm.
    fn shared(
        &mut self,
        x: ValueId,
        input: ValueId,
        layer: &LayerSpec,
        experts: ExpertSpec,
    ) -> Result<(ValueId, ValueId)> {
        let routed = self.experts(input, experts)?;
        self.at(Place::SharedWeight);
        let weight = self.linear(input, TensorRole::SharedWeight, "shared weight")?;
        let shared = self.network(input, layer, SHARED)?;
        self.at(Place::SharedSum);
        let open = self.like(weight, "shared weight sigmoid");
        self.push(Op::Activate { x: weight, kind: Activation::Sigmoid, out: open });
        let weighed = self.like(shared, "shared expert");
        self.push(Op::ExpertSum { x: shared, weights: open, out: weighed });
        Ok((self.add_branch(x, weighed, "shared expert residual"), routed))
    }

    /// The sum of the routed experts and the shared network.
    fn beside_shared(&mut self, input: ValueId, layer: &LayerSpec, experts: ExpertSpec) -> Result<ValueId> {
        let sparse = self.experts(input, experts)?;
        if layer.ffn == 0 {
            return Ok(sparse);
        }
        let dense = self.network(input, layer, LATE)?;
        Ok(self.sum(sparse, dense, "experts and shared"))
    }

    /// `norm(network(norm(x))) + norm(experts(norm(x)))`.
    fn dense_and_experts(&mut self, x: ValueId, layer: &LayerSpec, experts: ExpertSpec) -> Result<ValueId> {
        let hidden = self.spec.hidden;
        let factor = (hidden as f32).sqrt().recip();
        let scale = self.tensors.scaled(self.spec, TensorRole::RouterScale, self.layer, factor)?;
        let scale = self.weight(scale);
        self.at(Place::NetworkNorm);
        let routed = self.plain_norm(x, Some(scale), hidden, "router norm");
        let (ids, weights) = self.route(routed, experts)?;
        self.at(Place::DenseNorm);
        let input = self.maybe_norm(self.spec.family.norms.pre_ffn, x, TensorRole::FfnNorm, "ffn norm")?;
        let dense = self.network(input, layer, DENSE)?;
        self.at(Place::PostDenseNorm);
        let dense = self.norm(dense, TensorRole::PostDenseNorm, hidden, "dense norm")?;
        self.at(Place::ExpertNorm);
        let input = self.norm(x, TensorRole::ExpertNorm, hidden, "expert norm")?;
        let sparse = self.experts_inner(input, ids, experts)?;
        let sparse = self.experts_sum(sparse, ids, weights, experts)?;
        self.at(Place::PostExpertNorm);
        let sparse = self.norm(sparse, TensorRole::PostExpertNorm, hidden, "experts norm")?;
        self.at(Place::NetworkSum);
        Ok(self.sum(dense, sparse, "dense and experts"))
    }

    /// The output of the routed experts, weighted and summed.
    fn experts(&mut self, input: ValueId, experts: ExpertSpec) -> Result<ValueId> {
        let (ids, weights) = self.route(input, experts)?;
        self.at(Place::ExpertInput);
        if self.spec.family.experts_weigh_input {
            let weighed = self.like(input, "input weighed");
            self.push(Op::ExpertSum { x: input, weights, out: weighed });
            let gated = self.experts_inner(weighed, ids, experts)?;
            self.at(Place::ExpertDown);
            return self.expert_linear(gated, ids, TensorRole::ExpertDown, self.spec.hidden, "expert down");
        }
        let latent = experts.latent.is_some();
        let input = if latent { self.linear(input, TensorRole::LatentDown, "latent input")? } else { input };
        let gated = self.experts_inner(input, ids, experts)?;
        let sum = self.experts_sum(gated, ids, weights, experts)?;
        if latent { self.linear(sum, TensorRole::LatentUp, "latent output") } else { Ok(sum) }
    }

    /// Routes each row: the ids of its experts, and their weights.
    fn route(&mut self, routed: ValueId, experts: ExpertSpec) -> Result<(ValueId, ValueId)> {
        self.at(Place::Router);
        let x = self.linear(routed, TensorRole::Router, "router")?;
        self.at(Place::Route);
        let ExpertSpec { n_used, normalise, factor, scores, groups, .. } = experts;
        let bias = self.vectors(TensorRole::RouterBias)?;
        let scaled = self.layer.is_some_and(|l| self.tensors.has_in(TensorRole::ExpertScale, l));
        let scales = match scaled {
            true => {
                let scales = self.tensors.scaled(self.spec, TensorRole::ExpertScale, self.layer, 1.0)?;
                Some(self.weight(scales))
            }
            false => None,
        };
        let rows = self.rows(x);
        let ids = self.new_value("experts", rows, n_used, DType::U32);
        let weights = self.value("expert weights", rows, n_used);
        self.push(Op::Route { x, normalise, factor, scores, bias, groups, scales, ids, weights });
        Ok((ids, weights))
    }

    /// `f(gate) * up` of the chosen experts.
    fn experts_inner(&mut self, input: ValueId, ids: ValueId, experts: ExpertSpec) -> Result<ValueId> {
        let ExpertSpec { n_used, ffn, .. } = experts;
        if !self.spec.family.gated {
            self.at(Place::ExpertUp);
            let up = self.expert_linear(input, ids, TensorRole::ExpertUp, n_used * ffn, "expert up")?;
            let out = self.like(up, "expert activated");
            self.push(Op::Activate { x: up, kind: self.spec.activation, out });
            return Ok(out);
        }
        self.at(Place::ExpertGate);
        let gate = self.expert_linear(input, ids, TensorRole::ExpertGate, n_used * ffn, "expert gate")?;
        self.at(Place::ExpertUp);
        let up = self.expert_linear(input, ids, TensorRole::ExpertUp, n_used * ffn, "expert up")?;
        self.at(Place::ExpertGateBias);
        let gate = self.expert_bias(gate, ids, TensorRole::ExpertGateBias, "expert gate biased")?;
        self.at(Place::ExpertGated);
        let up = self.expert_bias(up, ids, TensorRole::ExpertUpBias, "expert up biased")?;
        let gated = self.like(gate, "expert gated");
        self.push(match experts.clamp {
            Some((alpha, limit)) => Op::GateClamped { gate, up, alpha, limit, out: gated },
            None => Op::Gate { gate, up, kind: self.spec.activation, out: gated },
        });
        Ok(gated)
    }

    /// The down projections of the chosen experts, weighted and summed.
    fn experts_sum(
        &mut self,
        gated: ValueId,
        ids: ValueId,
        weights: ValueId,
        experts: ExpertSpec,
    ) -> Result<ValueId> {
        self.at(Place::ExpertDown);
        let hidden = experts.latent.unwrap_or(self.spec.hidden);
        let cols = experts.n_used * hidden;
        let down = self.expert_linear(gated, ids, TensorRole::ExpertDown, cols, "expert down")?;
        let down = self.expert_bias(down, ids, TensorRole::ExpertDownBias, "expert down biased")?;
        let out = self.value("experts sum", self.rows(gated), hidden);
        self.push(Op::ExpertSum { x: down, weights, out });
        Ok(out)
    }

    /// Adds the biases of the chosen experts, if the file has them.
    fn expert_bias(&mut self, x: ValueId, ids: ValueId, role: TensorRole, name: &str) -> Result<ValueId> {
        let Some(bias) = self.vectors(role)? else { return Ok(x) };
        let out = self.like(x, name);
        self.push(Op::ExpertBias { x, ids, bias, out });
        Ok(out)
    }

    fn expert_linear(
        &mut self,
        x: ValueId,
        ids: ValueId,
        role: TensorRole,
        cols: usize,
        name: &str,
    ) -> Result<ValueId> {
        let weight = self.tensors.experts(self.spec, role, self.layer)?;
        let weight = self.weight(weight);
        let out = self.value(name, self.rows(x), cols);
        self.push(Op::ExpertLinear { x, ids, weight, out });
        Ok(out)
    }

    /// `down(f(gate) * up)`, or `down(f(up))` without a gate.
    pub(super) fn network(
        &mut self,
        input: ValueId,
        layer: &LayerSpec,
        places: DensePlaces,
    ) -> Result<ValueId> {
        let [of_gate, of_up, of_product, of_down] = places;
        let kind = self.spec.activation;
        let gate = match self.spec.family.gated {
            true => {
                self.at(of_gate);
                let gate = self.linear(input, TensorRole::FfnGate, "gate")?;
                let gate = self.scaled(gate, self.spec.multipliers.ffn_gate, "gate scaled");
                Some(layer.cutoff.map_or(gate, |cutoff| self.cut_off(gate, cutoff)))
            }
            false => None,
        };
        self.at(of_up);
        let up = self.linear(input, TensorRole::FfnUp, "up")?;
        self.at(of_product);
        let name = if gate.is_some() { "gated" } else { "activated" };
        let inner = self.value(name, self.rows(input), layer.ffn);
        self.push(match gate {
            Some(gate) => Op::Gate { gate, up, kind, out: inner },
            None => Op::Activate { x: up, kind, out: inner },
        });
        self.at(of_down);
        let out = self.linear(inner, TensorRole::FfnDown, "down")?;
        Ok(self.scaled(out, self.spec.multipliers.ffn_out, "down scaled"))
    }
}
