# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""[Relax][DistIR] `PropagateSharding` overflows the stack on deep modules

A chain of 10,000 layers with one annotation. The search along an axis calls itself once per
value, and the process ends with a segmentation fault where the stack ends (8 MiB here).

Expected: a work list instead of recursion; depth is no limit.
"""

from chains import chain
from reporting import report, state_of
from tvm.relax.distributed import transform

TEST = "test_05_work_list.py::test_one_annotation_reaches_the_end_of_a_deep_chain"
LAYERS = 10_000


def reproduce() -> str:
    """Propagate one annotation through all layers."""

    def right() -> bool:
        mod = chain(LAYERS, annotated=1)
        print(f"{LAYERS} layers, one annotation", flush=True)
        return str(transform.PropagateSharding()(mod)["main"].ret_ty.placement) == '"S[0]"'

    return state_of(right)


if __name__ == "__main__":
    report(reproduce)
