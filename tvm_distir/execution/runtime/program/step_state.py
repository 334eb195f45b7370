# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Find the state of a training step: the outputs that are inputs of the next step."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from tvm import ir

from .inputs import input_ports
from .io_layout import Entries, Port


@dataclass(frozen=True)
class StepState:
    """The state of a training step.

    Attributes
    ----------
    inputs : mapping of int to int
        The position of the input that an output becomes in the next step, by position of the
        output.
    zeros : tuple of int
        The positions of the inputs that are zero before the first step.
    optimizer : frozenset of int
        The positions of the inputs that are state of the optimizer, not weights of the model.
    masters : mapping of int to int
        The positions of float32 copies of weights, with those of the weights, which are their
        values before the first step.
    caches : mapping of int to int
        The position of the cache that an output of a serving step becomes in the next step, by
        position of the output.
    """

    inputs: Mapping[int, int] = field(default_factory=dict)
    zeros: tuple[int, ...] = ()
    optimizer: frozenset[int] = frozenset()
    masters: Mapping[int, int] = field(default_factory=dict)
    caches: Mapping[int, int] = field(default_factory=dict)


def state_of(mod: ir.IRModule, entries: Entries) -> StepState:
    """Return the state of a training step, or the caches of a serving step.

    Both return it last, in the order in which they take it.

    Parameters
    ----------
    mod : IRModule
        The module, at level 5.
    entries : sequence of EntryFunction
        Its entry functions.
    """
    from tvm import relax  # TVM's runtime alone loads folders

    from tvm_distir.core.ir.attributes import TRAINING_ATTR, training_notes
    from tvm_distir.core.plan import match_name, plain_name
    from tvm_distir.transforms import CACHES, LOSS_SCALE, MASTER, SCALE_STEPS

    functions = [fn for fn in mod.functions.values() if isinstance(fn, relax.Function)]
    steps = [fn for fn in functions if fn.attrs and TRAINING_ATTR in fn.attrs]

    def noted(key: str) -> dict[str, Any]:
        notes = [training_notes(fn, key) for fn in steps]
        return {plain_name(name): value for note in notes for name, value in note.items()}

    updated, weights = set(noted("updated")), set(noted("gradients"))
    inputs = input_ports(entries)
    outputs = {port.index: port for entry in entries for port in entry.outputs}
    names = {index: plain_name(inputs[index].name) for index in sorted(inputs)}
    state = [index for index, name in names.items() if name in updated]
    caches = [i for i, name in names.items() if any(match_name(p, name) for p in CACHES)]
    carried = state if steps else caches
    pairs = dict(zip(sorted(outputs)[len(outputs) - len(carried) :], carried))
    same = all(_is_same(outputs[output], inputs[source]) for output, source in pairs.items())
    if not same or not updated <= {names[index] for index in pairs.values()}:
        return StepState()
    if not steps:
        return StepState(caches=pairs)
    owners = {
        plain_name(str(name)): weight
        for weight, owned in noted("states").items()
        for name in owned[:]
    }
    optimizer = {*owners, *noted("counters"), LOSS_SCALE, SCALE_STEPS}
    positions = {name: index for index, name in names.items()}
    masters = {
        i: positions[owner]
        for i in state
        if (owner := owners.get(names[i])) and names[i] == f"{owner}_{MASTER}"
    }
    zeros = [i for i in state if names[i] not in weights | {LOSS_SCALE} and i not in masters]
    return StepState(
        pairs, tuple(zeros), frozenset(i for i in state if names[i] in optimizer), masters
    )


def _is_same(output: Port, source: Port) -> bool:
    same = (output.shape, output.dtype) == (source.shape, source.dtype)
    return same and not source.is_object
