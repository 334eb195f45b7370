# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Convert optimizers of ONNX Runtime and of ONNX.

ONNX's are those of the domain ``ai.onnx.preview.training``, version 1. Names are those of the
operators: ``alpha`` and ``beta`` are the decays of the moments. ONNX Runtime counts steps from 1.
Guards of its single kernels against infinities are left out.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from tvm import relax
from tvm.relax import Expr
from tvm.relax.op import add, clip, divide, multiply, power, sqrt, subtract, where
from tvm.relax.op import sum as sum_op

from tvm_distir.core.rewriting import scalar
from tvm_distir.models.common.translation import Unsupported, dtype_of
from tvm_distir.transforms import adam_moments

from .node_call import Converter, NodeCall

_op = relax.op
PREVIEW = "ai.onnx.preview.training"
ADAM_STEP = "AdamWOptimizer of one weight"
SGD_STEP = "SGDOptimizerV2 of one weight"
GROUP = 5
"""The operands and results of LambOptimizer per weight, and its operands before them."""
LARGEST = 3e38
UNIT = scalar(1.0, "float32")


def _by(call: NodeCall, factor: Expr | float, value: Expr) -> Expr:
    """Multiply a tensor by a number, or by a tensor of one element."""
    if isinstance(factor, float):
        return call.emit(multiply(call.constant(factor, value), value))
    return call.emit(multiply(call.cast(call.shaped(factor, ()), dtype_of(value)), value))


def _less(call: NodeCall, value: Expr, move: Expr) -> Expr:
    return call.emit(subtract(value, move))


@dataclass(frozen=True)
class _Adam:
    """Options of an optimizer with two moments.

    Attributes
    ----------
    call : NodeCall
    betas : pair of float
    epsilon, decay : float
    step : Expr or None
        The number of the step, from which the moments are corrected; None: they are not.
    """

    call: NodeCall
    betas: tuple[float, float]
    epsilon: float
    decay: float
    step: Expr | None

    def moments(self, gradient: Expr, states: Sequence[Expr]) -> list[Expr]:
        """Return the new moments."""
        gradient = self.call.cast(gradient, dtype_of(states[0]))
        return adam_moments(self.call.builder, gradient, states, self.betas)

    def corrections(self) -> list[Expr]:
        """Return ``1 - beta^step`` of both moments, float32 ()."""
        if self.step is None:
            return [UNIT, UNIT]
        count = self.call.cast(self.call.shaped(self.step, ()), "float32")
        powers = [self.call.emit(power(scalar(b, "float32"), count)) for b in self.betas]
        return [_less(self.call, UNIT, part) for part in powers]

    def direction(self, moments: Sequence[Expr], corrections: Sequence[Expr]) -> Expr:
        """Return ``m / (sqrt(v) + epsilon)`` of corrected moments."""
        call = self.call
        first, second = (
            call.emit(divide(m, call.cast(c, dtype_of(m))))
            for m, c in zip(moments, corrections, strict=True)
        )
        root = call.emit(sqrt(second))
        return call.emit(divide(first, call.emit(add(root, call.constant(self.epsilon, root)))))

    def decayed(self, weight: Expr, moments: Sequence[Expr]) -> Expr:
        """Return the direction plus the decay of the weight."""
        direction = self.call.cast(self.direction(moments, self.corrections()), dtype_of(weight))
        return self.call.emit(add(direction, _by(self.call, self.decay, weight)))

    def rated(self, rate: Expr) -> Expr:
        """Return the rate that corrects the moments: ``rate sqrt(1 - b2^t) / (1 - b1^t)``."""
        first, second = self.corrections()
        factor = self.call.emit(divide(self.call.emit(sqrt(second)), first))
        return _by(self.call, factor, self.call.cast(self.call.shaped(rate, ()), "float32"))

    def updated(self, rate: Expr, weight: Expr, moments: Sequence[Expr], after: bool) -> Expr:
        """Return the new weight; ``after``: it decays itself, and epsilon is not corrected."""
        if not after:
            return _less(self.call, weight, _by(self.call, rate, self.decayed(weight, moments)))
        move = _by(self.call, self.rated(rate), self.direction(moments, [UNIT, UNIT]))
        new = _less(self.call, weight, move)
        return _less(self.call, new, _by(self.call, rate, _by(self.call, self.decay, new)))


def _sgd(call: NodeCall) -> list[Expr]:
    """Convert ``W - rate G`` and ``-rate G``."""
    move = _by(call, call[0], call.cast(call[2], dtype_of(call[1])))
    return [subtract(call[1], move), *call.like([call.emit(_op.negative(move))], call[2])]


def _sgd_step(call: NodeCall) -> list[Expr]:
    """Convert the update of a weight by rate, weight, gradient and whether to update."""
    return [call.unless(call.get(3), call[1], call.emit(_sgd(call)[0]))]


def _betas(call: NodeCall) -> tuple[float, float]:
    return call.number("alpha", 0.9), call.number("beta", 0.999)


def _adam_step(call: NodeCall) -> list[Expr]:
    """Convert the update of one weight of AdamWOptimizer, and of its moments."""
    rate, step, weight, gradient, *states = (call[i] for i in range(6))
    options = call.number("epsilon", 1e-8), call.number("weight_decay", 1e-2)
    adam = _Adam(call, _betas(call), *options, step if call.whether("correct_bias", True) else None)
    moments = adam.moments(gradient, states)
    news = [adam.updated(rate, weight, moments, call.whether("adam_mode")), *moments]
    olds = [weight, *states]
    return [call.unless(call.get(6), old, new) for old, new in zip(olds, news, strict=True)]


def _unscaled(
    call: NodeCall, gradient: Expr, scale: Expr | None, norm: Expr | None, most: float
) -> Expr:
    """Divide a gradient by the scale of the loss, and clip its norm.

    ``norm`` is that of all scaled gradients: above ``most`` times the scale it is the divisor.
    """
    if scale is None and norm is None:
        return gradient
    factor = UNIT if scale is None else call.cast(call.shaped(scale, ()), "float32")
    if norm is not None:
        wide = call.cast(call.shaped(norm, ()), "float32")
        above = call.emit(_op.greater(wide, _by(call, most, factor)))
        factor = call.emit(where(above, _by(call, 1 / most, wide), factor))
    return call.emit(divide(gradient, call.cast(factor, dtype_of(gradient))))


def _further(call: NodeCall, step: Expr, update: Expr | None) -> Expr:
    return call.unless(update, step, call.emit(add(step, call.constant(1, step))))


def _adam_optimizer(call: NodeCall) -> list[Expr]:
    """Convert AdamOptimizer: step, moments, weight, change and 16-bit weight."""
    rate, step, weight, gradient, *states = (call[i] for i in range(6))
    corrected = step if call.whether("do_bias_correction", True) else None
    options = call.number("epsilon", 1e-8), call.number("lambda", 0.0)
    adam, update = _Adam(call, _betas(call), *options, corrected), call.get(9)
    wide, most = call.cast(gradient, dtype_of(states[0])), call.number("max_norm_clip", 1.0)
    moments = adam.moments(_unscaled(call, wide, call.get(7), call.get(8), most), states)
    new = adam.updated(rate, weight, moments, call.whether("weight_decay_mode"))
    change = call.like([_less(call, new, weight)], gradient)
    states = [call.unless(update, s, m) for s, m in zip(states, moments, strict=True)]
    new = call.unless(update, weight, new)
    narrow = [] if call.get(6) is None else call.like([new], call[6])
    return [_further(call, step, update), *states, new, *change, *narrow]


def _lamb(call: NodeCall) -> list[Expr]:
    """Convert LambOptimizer: the step, then weight, change, moments, 16-bit weight per weight."""
    step = call.get(4)
    results = [scalar(0.0, "int64") if step is None else _further(call, step, call.get(0))]
    count, more = divmod(len(call.inputs) - GROUP + 1, GROUP)  # the last 16-bit weight may lack
    if more > 1:
        raise Unsupported(f"{len(call.inputs)} operands are not {GROUP} and {GROUP} per weight")
    for number in range(count):
        results += _lamb_of(call, number)
    return results


def _lamb_of(call: NodeCall, number: int) -> list[Expr]:
    """Convert the update of one weight by LAMB.

    ``weight - rate r direction`` with ``r = ||weight|| / ||direction||``, within bounds; 1 if
    either is zero.
    """

    def option(key: str, usual: float) -> float:
        values = call.attributes.get(key, ())
        return float(values[number]) if number < len(values) else usual

    first = GROUP * (number + 1)
    weight, gradient, *states = (call[first + i] for i in range(4))
    corrected = call.get(4) if call.whether("do_bias_correction", True) else None
    betas = option("alpha", 0.9), option("beta", 0.999)
    adam = _Adam(call, betas, option("epsilon", 1e-6), option("lambda", 0.0), corrected)
    wide, most = call.cast(gradient, dtype_of(states[0])), option("max_norm_clip", 1.0)
    moments = adam.moments(_unscaled(call, wide, call.get(1), call.get(2), most), states)
    direction = adam.decayed(weight, moments)
    norms = [
        call.emit(sqrt(call.emit(sum_op(call.emit(multiply(x, x)))))) for x in (weight, direction)
    ]
    least = max(call.number("ratio_min", -LARGEST), -LARGEST)
    ratio = clip(call.emit(divide(*norms)), least, min(call.number("ratio_max", LARGEST), LARGEST))
    some = _op.greater(call.emit(multiply(*norms)), call.constant(0.0, weight))
    ratio = call.emit(where(some, call.emit(ratio), call.constant(1.0, weight)))
    move = _by(call, call[3], _by(call, ratio, direction))
    change = call.like([call.emit(_op.negative(move))], gradient)
    states = [call.unless(call.get(0), s, m) for s, m in zip(states, moments, strict=True)]
    new = call.unless(call.get(0), weight, _less(call, weight, move))
    narrow = call.get(first + 4)
    return [new, *change, *states, new if narrow is None else call.like([new], narrow)[0]]


Update = Callable[[NodeCall, Expr, Expr, Expr, list[Expr]], list[Expr]]
"""A function of a node, its step number in float32, weight, regularized gradient and states to the
new weight and states."""


def _preview(states: int, update: Update) -> Converter:
    """Return the converter of an optimizer of ONNX, whose operands stand side by side by kind."""

    def convert(call: NodeCall) -> list[Expr]:
        count, more = divmod(len(call.inputs) - 2, 2 + states)
        if more:
            raise Unsupported(f"{len(call.inputs)} operands are not 2 and {2 + states} per weight")
        step, norm, results = call.cast(call[1], "float32"), call.number("norm_coefficient", 0), []
        for number in range(count):
            weight, gradient, *olds = (call[2 + count * i + number] for i in range(2 + states))
            if norm:
                gradient = call.emit(add(_by(call, norm, weight), gradient))
            results.append(update(call, step, weight, gradient, olds))
        return [result for kind in zip(*results, strict=True) for result in kind]

    return convert


def _begun(call: NodeCall, step: Expr, then: Expr, first: Expr) -> Expr:
    """Return ``then`` after the first step, whose number is 0."""
    return call.emit(where(_op.greater(step, scalar(0.0, "float32")), then, first))


def _adam(
    call: NodeCall, step: Expr, weight: Expr, gradient: Expr, states: list[Expr]
) -> list[Expr]:
    adam = _Adam(call, _betas(call), call.number("epsilon", 1e-6), 0.0, step)
    moments = adam.moments(gradient, states)
    rate = _begun(call, step, adam.rated(call[0]), call.shaped(call[0], ()))
    new = _less(call, weight, _by(call, rate, adam.direction(moments, [UNIT, UNIT])))
    return [_by(call, 1.0 - call.number("norm_coefficient_post", 0.0), new), *moments]


def _momentum(
    call: NodeCall, step: Expr, weight: Expr, gradient: Expr, states: list[Expr]
) -> list[Expr]:
    alpha = call.number("alpha", 0.0)
    share = _begun(call, step, scalar(call.number("beta", 0.0), "float32"), UNIT)
    velocity = call.emit(add(_by(call, alpha, states[0]), _by(call, share, gradient)))
    move = velocity
    if call.text("mode", "standard") == "nesterov":
        move = call.emit(add(gradient, _by(call, alpha, velocity)))
    return [_less(call, weight, _by(call, call[0], move)), velocity]


def _adagrad(
    call: NodeCall, step: Expr, weight: Expr, gradient: Expr, states: list[Expr]
) -> list[Expr]:
    slowed = call.emit(add(UNIT, _by(call, call.number("decay_factor", 0.0), step)))
    squares = call.emit(add(states[0], call.emit(multiply(gradient, gradient))))
    epsilon = call.constant(call.number("epsilon", 1e-6), squares)
    root = call.emit(add(call.emit(sqrt(squares)), epsilon))
    rate = call.emit(divide(call.shaped(call[0], ()), slowed))
    return [_less(call, weight, call.emit(divide(_by(call, rate, gradient), root))), squares]


CONVERTERS: dict[str, Converter] = {
    ADAM_STEP: _adam_step,
    SGD_STEP: _sgd_step,
    "Adagrad": _preview(1, _adagrad),
    "Adam": _preview(2, _adam),
    "AdamOptimizer": _adam_optimizer,
    "LambOptimizer": _lamb,
    "Momentum": _preview(1, _momentum),
    "SGDOptimizer": _sgd,
}
