# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Expand ONNX's training operators Adam, Momentum and Adagrad into standard ones.

The formulas are those of the domain ``ai.onnx.preview.training``, version 1; tensors are float32.
"""

from __future__ import annotations

from collections.abc import Callable

import onnx
from onnx import helper

from .protos import attributes_of, constant_node

DOMAIN = "ai.onnx.preview.training"


def updates(node: onnx.NodeProto) -> list[onnx.NodeProto] | None:
    """Return the nodes that expand an optimizer's node, or None for any other node."""
    write = _WRITERS.get(node.op_type) if node.domain == DOMAIN else None
    if write is None:
        return None
    states = _STATES[node.op_type]
    count = (len(node.input) - 2) // (2 + states)
    out = _Nodes(node)
    rate, step = node.input[:2]
    for number in range(count):
        inputs = [node.input[2 + count * i + number] for i in range(2 + states)]
        outputs = [node.output[count * i + number] for i in range(1 + states)]
        write(out, rate, step, inputs, outputs)
    return out.nodes


class _Nodes:
    """Writer of consecutive nodes, named after the operator."""

    def __init__(self, node: onnx.NodeProto) -> None:
        self.nodes: list[onnx.NodeProto] = []
        self.prefix = node.name or node.output[0]
        self.attributes = attributes_of(node)

    def number(self, key: str, usual: float = 0.0) -> float:
        """Return an attribute of the operator."""
        return float(self.attributes.get(key, usual))

    def __call__(self, op: str, *inputs: str | float, to: str = "") -> str:
        """Write a node, with numbers as constants; return the name of its result."""
        names = [self.constant(x) if isinstance(x, float) else x for x in inputs]
        output = to or f"{self.prefix}__{len(self.nodes)}"
        self.nodes.append(helper.make_node(op, names, [output], name=output))
        return output

    def constant(self, value: float) -> str:
        """Write a float32 scalar constant."""
        name = f"{self.prefix}__{len(self.nodes)}"
        self.nodes.append(constant_node(name, value, "float32"))
        return name

    def count(self, step: str) -> str:
        """Write the step number as float32."""
        output = f"{self.prefix}__{len(self.nodes)}"
        kind = onnx.TensorProto.FLOAT
        self.nodes.append(helper.make_node("Cast", [step], [output], name=output, to=kind))
        return output

    def regularized(self, x: str, grad: str) -> str:
        """Write ``norm_coefficient * X + G``."""
        norm = self.number("norm_coefficient")
        return self("Add", self("Mul", norm, x), grad) if norm else grad

    def blended(self, old: str, new: str, keep: float) -> str:
        """Write ``keep * old + (1 - keep) * new``."""
        return self("Add", self("Mul", keep, old), self("Mul", 1.0 - keep, new))


def _adam(out: _Nodes, rate: str, step: str, inputs: list[str], outputs: list[str]) -> None:
    x, grad, mean, square = inputs
    alpha, beta = out.number("alpha", 0.9), out.number("beta", 0.999)
    grad = out.regularized(x, grad)
    v = out("Identity", out.blended(mean, grad, alpha), to=outputs[1])
    h = out("Identity", out.blended(square, out("Mul", grad, grad), beta), to=outputs[2])
    root = out("Add", out("Sqrt", h), out.number("epsilon", 1e-6))
    times = out.count(step)
    above = out("Sqrt", out("Sub", 1.0, out("Pow", beta, times)))
    scaled = out("Div", out("Mul", rate, above), out("Sub", 1.0, out("Pow", alpha, times)))
    begun = out("Greater", times, 0.0)
    adjusted = out("Where", begun, scaled, rate)
    moved = out("Sub", x, out("Div", out("Mul", adjusted, v), root))
    out("Mul", 1.0 - out.number("norm_coefficient_post"), moved, to=outputs[0])


def _momentum(out: _Nodes, rate: str, step: str, inputs: list[str], outputs: list[str]) -> None:
    x, grad, velocity = inputs
    grad = out.regularized(x, grad)
    begun = out("Greater", out.count(step), 0.0)
    share = out("Where", begun, out.number("beta"), 1.0)
    decayed = out("Mul", out.number("alpha"), velocity)
    v = out("Add", decayed, out("Mul", share, grad), to=outputs[1])
    if out.attributes["mode"] in (b"nesterov", "nesterov"):
        v = out("Add", grad, out("Mul", out.number("alpha"), v))
    out("Sub", x, out("Mul", rate, v), to=outputs[0])


def _adagrad(out: _Nodes, rate: str, step: str, inputs: list[str], outputs: list[str]) -> None:
    x, grad, square = inputs
    grad = out.regularized(x, grad)
    slowed = out("Add", 1.0, out("Mul", out.count(step), out.number("decay_factor")))
    h = out("Add", square, out("Mul", grad, grad), to=outputs[1])
    root = out("Add", out("Sqrt", h), out.number("epsilon", 1e-6))
    out("Sub", x, out("Div", out("Mul", out("Div", rate, slowed), grad), root), to=outputs[0])


_WRITERS: dict[str, Callable[[_Nodes, str, str, list[str], list[str]], None]] = {
    "Adam": _adam,
    "Momentum": _momentum,
    "Adagrad": _adagrad,
}
_STATES = {"Adam": 2, "Momentum": 1, "Adagrad": 1}
"""The number of states of a weight, by operator."""
