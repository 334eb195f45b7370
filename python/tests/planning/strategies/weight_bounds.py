# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Compute the bounds that plans of ``tensor_parallel`` have to meet."""

from __future__ import annotations

from tvm import ir

from tvm_distir.core.ir import lift_branches
from tvm_distir.core.propagation import PlacementSearch
from tvm_distir.core.rewriting import canonical
from tvm_distir.planning.strategies.model_info import entries, tensor_parameters
from tvm_distir.planning.strategies.tensor_parallelism import _weights
from tvm_distir.planning.strategies.weight_search import SLACK_PERCENT, Bounds, bounds_for


def bounds_of(mod: ir.IRModule, ranks: int) -> Bounds:
    """Return the bounds that a plan of ``tensor_parallel`` over ``ranks`` devices has to meet."""
    parameters = {
        name: tensor_parameters(name, fn, rule_name) for name, fn, rule_name in entries(mod)
    }
    weights = _weights(mod, parameters)
    explorer = PlacementSearch(lift_branches(canonical(mod)), "tp", ranks, weights)
    return bounds_for(explorer, weights, ranks, SLACK_PERCENT)
