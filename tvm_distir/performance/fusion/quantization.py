# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Price matrix products of quantized operands, and the kernels that quantize these."""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Iterator, Mapping

from tvm_distir.hardware import System
from tvm_distir.performance.program.checks import call_order
from tvm_distir.performance.program.parts import Function, Op, Value
from tvm_distir.performance.program.program import Program
from tvm_distir.support import HardwareError, UsageError

from .dataflow import GRADIENT, Dataflow
from .kernel_classes import BATCHED, LOGITS
from .profile import Profile
from .stored_weights import quantized_bytes, store_quantized
from .weight_kinds import Quantization

HALF = ("float16", "bfloat16")
EXPERTS = "relax.dist.expert_matmul"
QUANTIZE = "quantize"
"""Name of the kernels that quantize an operand."""
DEQUANTIZE = "dequantize"
"""Name of the kernels that make a weight of 16 bits of a quantized one."""
LOSSES = ("cross_entropy", "cross_entropy_backward")
"""Kernels of losses, also in parts: where logits are sharded along their classes."""
PRODUCTS = ("relax.matmul", "relax.einsum", "relax.dist.grouped_matmul", EXPERTS)


def quantized(program: Program, profile: Profile) -> Program:
    """Quantize the operands of the products of 16-bit floats in a grouped program.

    Products of logits and attention stay, as in Transformer Engine. An operand is quantized once
    in a function: in training a row-wise and a column-wise copy are written, as Hopper's tensor
    cores need them (Transformer Engine). What a backward function is given, except for gradients,
    the forward pass has quantized; the weights of an inference program, and those of a training
    step that are not trained, are quantized beforehand, and take so much less memory. A training
    step makes 16-bit weights of these before each product, as QLoRA does (Dettmers et al. 2023).

    Parameters
    ----------
    program : Program
        Grouped into kernels whose classes are known.
    profile : Profile
        Programs of profiles without ``quantization`` stay.

    Raises
    ------
    UsageError
        DIST0152 for a training step without frozen weights under a profile that quantizes weights
        alone.
    """
    chosen = profile.quantization
    if chosen is None:
        return program
    functions = program.functions
    training = is_training(functions)
    stored = not training or chosen.operands == "weights"
    frozen = frozen_weights(program) if training and stored else {}
    quantizers = {
        name: _Quantizer(fn, chosen, training, frozen.get(name, frozenset()))
        for name, fn in functions.items()
    }
    new = {name: quantizer.run() for name, quantizer in quantizers.items()}
    if training and stored and not any(q.operands for q in quantizers.values()):
        raise UsageError(
            "DIST0152",
            f'the kernel profile "{profile.name}" quantizes weights that are not trained and that '
            "no collective gathers, and 16-bit products of the training step read none",
            location="kernels",
            remedy="Train adapters by --lora, with data_parallel, megatron or zero:stage=1; or use "
            "fused-fp8, fused-mxfp8 or fused-nvfp4.",
        )
    if stored:
        operands = {name: quantizer.operands for name, quantizer in quantizers.items()}
        new = store_quantized(new, operands)
    return dataclasses.replace(program, functions=new)


def is_training(functions: Mapping[str, Function]) -> bool:
    """Return whether functions belong to a training step: some op waits for a given gradient."""
    return any(Dataflow(fn, False).after_gradients() for fn in functions.values())


def frozen_weights(program: Program) -> dict[str, set[int]]:
    """Return the weights of a training step that no update writes, by function.

    A parameter of a function is one where all calls pass one; what collectives make of weights is
    none.
    """
    updated = {(e.function, param) for e in program.entries for _, param in e.alias}
    frozen: dict[str, set[int]] = {}
    entries = {entry.function for entry in program.entries}
    for name in reversed(call_order(program.functions)):
        fn = program.functions[name]
        if name in entries:
            frozen[name] = {
                value
                for at, value in enumerate(fn.params)
                if fn.values[value].is_weight and (name, at) not in updated
            }
        source = Dataflow(fn, False).source
        for op in fn.ops:
            if op.kind != "call":
                continue
            params = program.functions[op.callee].params
            passed = {
                param
                for param, value in zip(params, op.inputs, strict=True)
                if source[value] in frozen.get(name, ())
            }
            frozen[op.callee] = frozen.get(op.callee, passed) & passed
    return frozen


def multiplies(system: System, dtype: str) -> bool:
    """Return whether a device has a peak for products of a type; empty: of the operands."""
    return not dtype or bool({dtype, dtype.split("_")[0]} & system.device.matmul_TFLOPs.keys())


def check_products(profile: Profile, system: System) -> None:
    """Refuse a profile whose products are of a type that a device cannot multiply.

    Raises
    ------
    HardwareError
        DIST0705, naming the types that the device lists.
    """
    chosen, peaks = profile.quantization, system.device.matmul_TFLOPs
    if chosen is not None and not multiplies(system, chosen.dtype):
        listed = ", ".join(name for name in peaks if name != "default")
        raise HardwareError(
            "DIST0705",
            f'the device of the system "{system.name}" has no peak for products of {chosen.dtype}, '
            f'which the kernel profile "{profile.name}" uses',
            location="kernels", remedy=f"Use a profile for one of its types: {listed}.",
        )  # fmt: skip


def half_matrices(flow: Dataflow, number: int) -> list[int]:
    """Return the 16-bit matrices that an op reads."""
    values = flow.fn.values
    return [v for v in flow.reads[number] if values[v].dtype in HALF and len(values[v].shape) > 1]


class _Quantizer:
    """Writer of a function with quantized products.

    Parameters
    ----------
    fn : Function
    chosen : Quantization
    training : bool
        Whether the function belongs to a training step.
    frozen : collection of int
        Weights of a training step that are stored quantized.

    Attributes
    ----------
    operands : dict of int to dict of int to float
        The values that each product of the new function reads quantized, with their bits.
    """

    def __init__(
        self, fn: Function, chosen: Quantization, training: bool, frozen: Collection[int]
    ) -> None:
        self.fn, self.chosen, self.training, self.frozen = fn, chosen, training, frozen
        self.values = list(fn.values)
        self.flow = Dataflow(fn, False)
        self.late = self.flow.in_backward()
        self.logits = self._logits()
        self.done: set[int] = set()
        self.operands: dict[int, dict[int, float]] = {}

    def run(self) -> Function:
        """Return the function."""
        ops: list[Op] = []
        for number, op in enumerate(self.fn.ops):
            if self._is_linear(number):
                operands = self._operands(number)
                for value in operands if self.frozen else ():
                    self.operands[len(ops)] = {value: self._bits(value)}
                    ops.append(self._dequantized(value))
                    op = op._replace(inputs=self._replaced(op.inputs, value, ops[-1].outputs[0]))
                if self.frozen:
                    ops.append(op)
                    continue
                saved = self._saved_bytes(number, operands)
                if self.chosen.operands == "all":
                    ops += self._kernels(number, operands)
                op = op._replace(
                    dtype=self.chosen.dtype or op.dtype, bytes_read=max(op.bytes_read - saved, 0)
                )
                self.operands[len(ops)] = {v: self._bits(v) for v in operands}
            ops.append(op)
        return dataclasses.replace(self.fn, ops=tuple(ops), values=tuple(self.values))

    def _dequantized(self, value: int) -> Op:
        """Return the kernel that makes the 16-bit weight that a product of a step reads."""
        known = self.fn.values[value]
        name = f"{known.name}_dequantized"
        self.values.append(Value(name, known.shape, known.dtype, known.bytes))
        return Op(
            name, "compute", DEQUANTIZE, (value,), (len(self.values) - 1,), 0,
            self._bytes(value), known.bytes, True, "memory", known.dtype,
        )  # fmt: skip

    def _replaced(self, inputs: tuple[int, ...], value: int, new: int) -> tuple[int, ...]:
        """Return operands with another in place of a weight and its views."""
        return tuple(new if self.flow.source[v] == value else v for v in inputs)

    def _saved_bytes(self, number: int, operands: list[int]) -> int:
        """Return the bytes that a product reads less; experts that get no tokens are not read."""
        op, values = self.fn.ops[number], self.fn.values
        if op.op != EXPERTS:
            return sum(values[v].bytes - self._bytes(v) for v in operands)
        weights = [v for v in operands if self._is_given(v)]
        others = sum(values[v].bytes for v in self.flow.reads[number] if v not in weights)
        sizes = {v: values[v].bytes // values[v].shape[0] for v in weights}
        active = max(op.bytes_read - others, 0) // sum(sizes.values())
        saved = active * sum(n - quantized_bytes(n, self._bits(v)) for v, n in sizes.items())
        return saved + sum(values[v].bytes - self._bytes(v) for v in operands if v not in weights)

    def _is_linear(self, number: int) -> bool:
        """Return whether an op is a 16-bit product with a weight, or the gradient of one."""
        op = self.fn.ops[number]
        if op.dtype not in HALF or op.model_op not in PRODUCTS:
            return False
        if self.chosen.operands == "weights" and op.kernel_class in ("matmul", BATCHED):
            return bool(self._operands(number))
        return op.kernel_class == "matmul" and self.logits.isdisjoint((*op.inputs, *op.outputs))

    def _logits(self) -> set[int]:
        """Return the values that kernels over logits read or make, also before collectives."""
        logits = {
            value
            for op in self.fn.ops
            if op.kernel_class == LOGITS or op.op in LOSSES
            for value in (*op.inputs, *op.outputs)
        }
        kinds = ("view", "collective", "wait")
        moves = [op for op in self.fn.ops if op.kind in kinds or op.op == "relax.dist.local_slice"]
        for op in reversed(moves):
            if not logits.isdisjoint(op.outputs):
                logits.update(op.inputs)
        for op in moves:
            if not logits.isdisjoint(op.inputs):
                logits.update(op.outputs)
        return logits

    def _operands(self, number: int) -> list[int]:
        """Return the operands of a product that are quantized."""
        matrices = half_matrices(self.flow, number)
        if self.chosen.operands == "all":
            return matrices
        if self.training:
            weights = [v for v in matrices if v in self.frozen]
        else:
            weights = [v for v in matrices if self._is_given(v)][-1:]
        return [v for v in weights if self._bits(v) < 16]

    def _is_given(self, value: int) -> bool:
        """Return whether a value is a parameter, or has been gathered from parameters."""
        maker = self.flow.maker.get(value)
        return maker is None or self.fn.ops[maker].kind in ("collective", "wait")

    def _kernels(self, number: int, operands: list[int]) -> Iterator[Op]:
        """Yield the kernels that quantize operands that no earlier product of the function has."""
        for value in operands:
            if value in self.done:
                continue
            self.done.add(value)
            known = self.fn.values[value]
            stored = self.training and number not in self.late
            is_gradient = GRADIENT.match(known.name) or self.flow.maker.get(value) in self.late
            if self._is_given(value) and not stored and not is_gradient:
                continue
            yield Op(
                f"{known.name}_quantized", "compute", QUANTIZE, (value,), (), 0,
                self.chosen.passes * known.bytes, (1 + self.training) * self._bytes(value), True,
                "memory", known.dtype,
            )  # fmt: skip

    def _bytes(self, value: int) -> int:
        """Return the bytes of a value once it is quantized, with its scales."""
        return quantized_bytes(self.fn.values[value].bytes, self._bits(value))

    def _bits(self, value: int) -> float:
        """Return the bits of an element of a value once it is quantized."""
        return self.chosen.bits_of(self.fn.values[value].name)
