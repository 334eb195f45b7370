# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Minimize the recomputation time within a memory bound (``recompute="auto"``).

The step is written once without recomputation. A chain of the calls of ``main``
(:mod:`.call_chain`) describes the live memory beside the stashes of the calls, and the options of
each call; a dynamic program over the calls chooses (:mod:`.auto_recompute.chain`). Sizes are those
of the full tensors, divided by the degrees of :class:`.choice.Auto`.
"""

from __future__ import annotations

from typing import Any

from tvm_distir.core.plan import Recomputation, Runs
from tvm_distir.support import InfeasibleError, lists_by_key
from tvm_distir.transforms.step_faults import wrong_argument
from tvm_distir.transforms.training.recompute.choice import Auto
from tvm_distir.transforms.training.step.recipe import Recipe
from tvm_distir.transforms.training.step.step_writer import TrainStepWriter

from .buffers import leaves
from .call_chain import CallChain
from .chain import ChainCall, least_bytes, least_time
from .peak_memory import PeakMemory

GIB = 2**30


def chain_of(
    writer: TrainStepWriter, main: Any, auto: Auto
) -> tuple[CallChain, list[ChainCall], list[int]]:
    """Return the calls of ``main`` as a chain, with their links and gaps.

    Parameters
    ----------
    writer : TrainStepWriter
        Has run, without recomputation.
    main : Function
        The function ``main`` that the trial wrote.
    auto : Auto
    """
    memory = PeakMemory(writer.pairs, auto)
    writer.pairs.functions.of["main"] = main
    data, rest = len(writer.inputs), main.params[len(writer.inputs) :]
    weights = {str(param.name) for param in rest}
    calls = [call for call in writer.tape.calls.values() if call.back is not None]
    for call in calls:
        memory.flag(call.pair, call.args, weights)
    body = memory.read("main", (False,) * data + (True,) * len(rest))
    trees = {str(var.name): tree for var, tree in body.trees.items()}
    for name in writer.gradients.values():
        for buffer in leaves(trees[name]):
            buffer.weight = True
    chain = CallChain(memory, body, calls, weights)
    links = chain.links()
    base = memory.sizes(body.params) + memory.constant_bytes
    gaps = [0, *(gap + base for gap in chain.gaps()[1:])]
    return chain, [link.beside(base) for link in links], gaps


def decided(trial: TrainStepWriter, auto: Auto) -> Recomputation:
    """Choose the recomputation of the calls of a step.

    Parameters
    ----------
    trial : TrainStepWriter
        The writer of the same step without recomputation; it is run.
    auto : Auto

    Raises
    ------
    ModelError
        DIST0351 if the memory is not known.
    InfeasibleError
        DIST0803 if nothing stays within it.
    """
    bound = bound_of(trial.recipe, auto)
    chain, links, gaps = chain_of(trial, trial.run(), auto)
    chosen = least_time(links, gaps, bound)
    if chosen is None:
        raise too_little(least_bytes(links, gaps), bound)
    pairs = zip(chain.positions, chosen, strict=True)
    policies = lists_by_key((x.call.pair.name, option.policy) for x, option in pairs)
    return Recomputation(tuple((name, Runs.of(choices)) for name, choices in policies.items()))


def bound_of(recipe: Recipe, auto: Auto) -> int:
    """Return the memory bound of a device in bytes (ModelError DIST0351 if unknown)."""
    system = recipe.system
    if auto.memory_gib:
        return int(auto.memory_gib * GIB)
    if system is None:
        remedy = "Give auto:memory_gib=80, or a system."
        raise wrong_argument("the memory of a device is unknown", remedy, "recompute")
    return system.memory_capacity_bytes


def too_little(needed: int, bound: int) -> InfeasibleError:
    """Return the error about an infeasible bound (DIST0803)."""
    error = InfeasibleError(
        "DIST0803",
        f"the step needs {needed / GIB:.3g} GiB on each device with full recomputation, and "
        f"{bound / GIB:.3g} GiB are available",
        location="train_step (recompute)",
        remedy="Give more memory_gib, or the numbers of shards of activations and weights: "
        "auto:activations=8,weights=8.",
    )
    error.least_bytes = needed
    return error
