# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""[Relax][DistIR] `PropagateSharding` takes quadratic time in annotations

Each layer of a chain is annotated, as in a model whose weights are. Four times the layers should
take about four times as long. They take more than eight times as long: each annotated axis starts
a search of its own through all that is connected, and the axis that stands for the device mesh
connects everything.

Expected: one pass over the graph for all annotations together.
"""

import time

from chains import chain
from reporting import report, state_of
from tvm.relax.distributed import transform

TEST = "test_10_time.py::test_time_is_linear_in_annotated_layers"
FEW, FACTOR, MOST = 30, 4, 8.0
ROUNDS = 3


def seconds(layers: int, rounds: int) -> float:
    """CPU time of the pass, the best of several rounds."""
    best = float("inf")
    for _ in range(rounds):
        mod = chain(layers, annotated=layers)
        start = time.process_time()
        transform.PropagateSharding()(mod)
        best = min(best, time.process_time() - start)
    return best


def reproduce() -> str:
    """Compare two lengths of a chain."""

    def right() -> bool:
        few = seconds(FEW, ROUNDS)
        many = seconds(FEW * FACTOR, 1)
        print(
            f"measured: {FEW} layers {few * 1e3:.0f} ms, {FEW * FACTOR} layers {many * 1e3:.0f} ms"
        )
        grows = many / few > MOST
        print(f"{FACTOR} times the layers take more than {MOST:.0f} times the CPU time:", grows)
        return not grows

    state = state_of(right)
    return "slow" if state == "wrong" else state


if __name__ == "__main__":
    report(reproduce)
