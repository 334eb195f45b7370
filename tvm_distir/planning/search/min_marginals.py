# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Explain placements of weights by the cost of their second best placements."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np

from tvm_distir.core.ir import placement_text
from tvm_distir.core.ir.attributes import param_names, training_notes
from tvm_distir.core.plan import data_positions
from tvm_distir.core.propagation import Graph, WarmStarts, minimise
from tvm_distir.core.solver import INFINITE, Problem
from tvm_distir.hardware import PICOSECONDS, WIDTH, Labeller, ShardingProblem


class MinMarginal(NamedTuple):
    """Min-marginal of a weight: the cost of placing it otherwise, all else at its best.

    Attributes
    ----------
    entry : str
        The public function.
    weight : str
        The name of the weight, with numbers as ``*``: of equal weights the first is placed
        otherwise.
    alike : int
        The number of equal weights.
    form, other : str
        The placement of the weight, and its best alternative.
    dearer_s : float
        The difference of the prices of the whole step. Below 0 where the other placement is
        cheaper: memory is what speaks against it, which is not counted here.
    """

    entry: str
    weight: str
    alike: int
    form: str
    other: str
    dearer_s: float

    def to_dict(self) -> dict[str, Any]:
        """Give the fields by name."""
        return self._asdict()


def min_marginals(labeller: Labeller, gap: float = 0.0) -> tuple[MinMarginal, ...]:
    """Return the second best placements of all weights, the ones that matter most first.

    Parameters
    ----------
    labeller : Labeller
        A labeller that has run.
    gap : float
        The optimality gap of the assignment with the alternative placement, as of
        :func:`.auto_shard`.
    """
    choices = [
        second
        for name, (net, values) in labeller.solutions.items()
        for second in _of_entry(labeller, name, net, list(values), gap)
    ]
    return tuple(
        sorted(choices, key=lambda choice: (-choice.dearer_s, choice.entry, choice.weight))
    )


def _of_entry(
    labeller: Labeller, entry: str, net: ShardingProblem, values: list[int], gap: float
) -> Iterator[MinMarginal]:
    g, tables = labeller.module.graphs[labeller.module.entries[entry]], labeller.tables
    cost, _ = tables.evaluate(Problem(net.domains, net.factors), values)
    groups: dict[tuple[Any, ...], list[int]] = {}
    for k, name in _weights(g):
        states, variable = net.ends[k]
        if variable >= 0:
            form, v = states.results[0][values[variable]], g.nodes[k].results[0]
            groups.setdefault((re.sub(r"\d+", "*", name), g.values[v].shape, form), []).append(k)
    starts = WarmStarts()
    for (pattern, _, form), nodes in groups.items():
        states, variable = net.ends[nodes[0]]
        placements = states.results[0]
        if all(x == form for x in placements):
            continue
        barred = np.array([INFINITE if x == form else 0 for x in placements], np.int64)
        number, constant = tables.intern(barred)
        factors = dict(net.factors)
        if (variable,) in factors:
            number, constant = tables.add(factors[variable,], number)
        factors[variable,] = number
        problem = Problem(net.domains, factors)
        other = minimise(
            tables, problem, WIDTH, entry, starts, gap=gap, constant=net.constant + constant
        )
        total, forbidden = tables.evaluate(problem, other.values)
        if forbidden or not other.feasible:
            continue
        yield MinMarginal(
            entry,
            pattern,
            len(nodes),
            placement_text(form),
            placement_text(placements[other.values[variable]]),
            (total + constant - cost) / PICOSECONDS,
        )


def _weights(g: Graph) -> Iterator[tuple[int, str]]:
    """Yield the nodes and names of parameters that are neither data nor optimizer states."""
    states = {
        str(x) for training_note in training_notes(g.fn, "states").values() for x in training_note
    }
    data = set(data_positions(g.fn, g.name))
    names = param_names(g.fn)
    if len(names) != len(g.params):  # tuples among them have no names
        return
    for i, (k, name) in enumerate(zip(g.params, names, strict=True)):
        if i not in data and name not in states and g.values[g.nodes[k].results[0]].shape:
            yield k, name
