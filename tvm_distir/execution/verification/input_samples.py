# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Sample inputs for which a comparison can fail: the reference is finite and varies."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import tvm_ffi
from tvm import ir, relax, tirx

from tvm_distir.core.ir import flat_types, relax_functions
from tvm_distir.core.ir.attributes import FRONTEND_ATTR
from tvm_distir.core.rewriting import all_bindings, called_name, entry_of, location_of
from tvm_distir.execution.runtime.program.tensors import Array
from tvm_distir.support import EngineError

from .compare import not_finite
from .random_inputs import draw_inputs

DRAWS = 4
"""The number of other draws that must leave an output as it is before it counts as constant."""
_SHAPES_ONLY = tuple(
    f"relax.{name}" for name in ("shape_of", "zeros_like", "ones_like", "full_like", "eye_like")
)
"""Ops whose results depend on the shape of their first operand, not on its values."""


def file_weights(mod: ir.IRModule) -> dict[str, Any]:
    """Return the weights by name of the file that a module came from, if any."""
    attrs = mod.attrs or {}
    if FRONTEND_ATTR not in attrs or not str(attrs[FRONTEND_ATTR]["source"]):
        return {}
    from tvm_distir.models import load_weights

    return load_weights(mod)


class Original(Protocol):
    """A program of a single device that can be run: its module, and the results for inputs."""

    mod: ir.IRModule

    def run(self, inputs: Sequence[Array]) -> list[Array]:
        """Return the flattened results for full arrays, in the order of the parameters."""


@dataclass(eq=False)
class RandomInputs:
    """Draws full inputs for a module, in the order of the entry's parameters.

    Parameters
    ----------
    mod : IRModule
        The module, at level 1 or 2.
    exact : bool
        Draw from {-2..2}, weights of the file included.
    weights : mapping of str to array
        Values of weights by name.
    distribution : str
        The distribution of data, of :data:`.random_inputs.DISTRIBUTIONS`, or ``positive``.
    """

    mod: ir.IRModule
    exact: bool
    weights: Mapping[str, Array]
    distribution: str = "normal"

    def draw(self, seed: int) -> list[Array]:
        """Return an array per parameter (see :func:`.random_inputs.draw_inputs`)."""
        return draw_inputs(self.mod, seed, self.exact, self.weights, self.distribution)


@dataclass(frozen=True)
class InputSample:
    """Inputs, where others come from, and what a single device computes of them."""

    draws: RandomInputs
    values: list[Array]
    expected: list[Array]


def finite_samples(
    reference: Original, draws: Sequence[RandomInputs], seed: int, values: list[Array] | None
) -> Iterator[InputSample]:
    """Yield a sample of each distribution for which the reference is finite.

    Parameters
    ----------
    reference : Original
    draws : sequence of RandomInputs
        The distributions, in the order in which they are tried.
    seed : int
    values : list of array, optional
        Given inputs, in place of drawn ones.

    Raises
    ------
    EngineError
        DIST0620 or DIST0621 where there is none; they describe the first distribution.
    """
    refused: EngineError | None = None
    usable = False
    for source in draws:
        inputs = source.draw(seed) if values is None else values
        expected = reference.run(inputs)
        try:
            refuse_nothing_proved(expected)
        except EngineError as error:
            refused = refused or error
            continue
        usable = True
        yield InputSample(source, inputs, expected)
    if refused is not None and not usable:
        raise refused


def refuse_nothing_proved(outputs: Sequence[Array]) -> None:
    """Refuse a reference with NaN or Inf (DIST0620), or without outputs (DIST0621)."""
    if not outputs:
        problem = "the function has no output"
        remedy = "Return at least one value."
        raise EngineError("DIST0621", problem, location="reference", remedy=remedy)
    for i, value in enumerate(outputs):
        if value.dtype.kind in "iub":
            continue
        bad = not_finite(value)
        if bad:
            problem = f"{bad} of {value.size} values of the reference are NaN or Inf"
            remedy = "Use other inputs or weights, or another seed."
            raise EngineError("DIST0620", problem, location=f"output {i}", remedy=remedy)


def refuse_unwritten_results(mod: ir.IRModule) -> None:
    """Refuse kernels that do not mention a result, whose values are then those of old memory.

    Raises
    ------
    EngineError
        DIST0621 which names the call and the kernel.
    """
    for gv, fn in relax_functions(mod):
        for binding in all_bindings(fn.body):
            call = binding.value
            if not isinstance(call, ir.Call) or called_name(call) != "relax.call_tir":
                continue
            kernel = mod[call.args[0]]
            if any(param not in _mentioned(kernel) for param in _results(kernel, call)):
                raise EngineError(
                    "DIST0621",
                    f"the kernel {call.args[0].name_hint} does not write a result",
                    location=location_of(str(gv.name_hint), binding.var, call),
                    remedy="Write each element of each result in the kernel.",
                )


def _results(kernel: tirx.PrimFunc, call: ir.Call) -> list[tirx.Buffer]:
    """Return the parameters of a kernel that are results of a call."""
    buffers = [param for param in kernel.params if isinstance(param.ty, tirx.BufferType)]
    return buffers[len(buffers) - len(flat_types(call.ty)) :]


def _mentioned(kernel: tirx.PrimFunc) -> set[tirx.Var]:
    """Return the variables that the body of a kernel mentions."""
    variables: set[tirx.Var] = set()
    tvm_ffi.structural_walk(kernel.body, (ir.Var, variables.add))
    return variables


def refuse_constant_outputs(reference: Original, sample: InputSample, seed: int) -> None:
    """Refuse outputs that are equal, up to signs of zeros, for every draw (DIST0621).

    Outputs that no value of an input can change, such as a tensor of ones, are left out.
    """
    depends = reads_inputs(reference.mod)
    first = sample.expected
    constant = [i for i, value in enumerate(first) if value.size and depends[i]]
    for other in range(1, DRAWS + 1):
        if not constant:
            return
        other_outputs = reference.run(sample.draws.draw(seed + other))
        constant = [i for i in constant if np.array_equal(first[i], other_outputs[i])]
    if not constant:
        return
    raise EngineError(
        "DIST0621",
        f"{DRAWS} other samples of the inputs resulted in the same values",
        location=f"output{'s' * (len(constant) > 1)} {', '.join(map(str, constant))}",
        remedy="Use weights on which it depends, or exclude the output: its value does not test "
        "the distribution.",
    )


def reads_inputs(mod: ir.IRModule) -> list[bool]:
    """Return whether each output of the entry may depend on the values of an input."""
    fn = mod[entry_of(mod)]
    known: dict[relax.Var, bool] = {param: True for param in fn.params}

    def reads(expr: relax.Expr) -> bool:
        if isinstance(expr, ir.Call) and called_name(expr) in _SHAPES_ONLY:
            return any(reads(arg) for arg in expr.args[1:])
        if isinstance(expr, relax.If):
            return True
        return any(known.get(var, True) for var in relax.analysis.free_vars(expr))

    for binding in all_bindings(fn.body):
        known[binding.var] = reads(binding.value)

    def leaves(expr: relax.Expr) -> list[bool]:
        if isinstance(expr, relax.Tuple):
            return [leaf for field in expr.fields for leaf in leaves(field)]
        return [reads(expr)] * len(flat_types(expr.ty))

    return leaves(fn.body.body)
