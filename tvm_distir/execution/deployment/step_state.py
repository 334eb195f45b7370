# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Find the state of a training step: the outputs that are inputs of the next step."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from tvm import ir

from tvm_distir.execution.runtime.program.inputs import input_ports
from tvm_distir.execution.runtime.program.io_layout import Entries, Port


@dataclass(frozen=True)
class StepState:
    """The state of a training step.

    Attributes
    ----------
    inputs : mapping of int to int
        The position of the input that an output becomes in the next step, by position of the
        output.
    zeros : tuple of int
        The positions of the inputs that are zero before the first step: the state of the
        optimizer.
    """

    inputs: Mapping[int, int] = field(default_factory=dict)
    zeros: tuple[int, ...] = ()


def state_of(mod: ir.IRModule, entries: Entries) -> StepState:
    """Return the state of a training step; empty for other programs.

    A training step returns its state last, in the order in which it takes it.

    Parameters
    ----------
    mod : IRModule
        The module, at level 5.
    entries : sequence of EntryFunction
        Its entry functions.
    """
    from tvm import relax  # TVM's runtime alone loads folders

    from tvm_distir.core.ir.attributes import TRAINING_ATTR, training_notes
    from tvm_distir.core.plan import plain_name

    functions = [fn for fn in mod.functions.values() if isinstance(fn, relax.Function)]
    steps = [fn for fn in functions if fn.attrs and TRAINING_ATTR in fn.attrs]
    updated, weights = (
        {plain_name(str(name)) for fn in steps for name in training_notes(fn, key)}
        for key in ("updated", "gradients")
    )
    inputs = input_ports(entries)
    outputs = {port.index: port for entry in entries for port in entry.outputs}
    names = {index: plain_name(inputs[index].name) for index in sorted(inputs)}
    state = [index for index, name in names.items() if name in updated]
    last = sorted(outputs)[len(outputs) - len(state) :]
    pairs = dict(zip(last, state))
    same = all(_is_same(outputs[output], inputs[source]) for output, source in pairs.items())
    if not same or not updated <= {names[index] for index in pairs.values()}:
        return StepState()
    return StepState(pairs, tuple(i for i in state if names[i] not in weights))


def _is_same(output: Port, source: Port) -> bool:
    return (output.shape, output.dtype) == (source.shape, source.dtype)
