# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Distribute a module with passes in ``tvm.transform.Sequential``, and print its IR at two levels.

Run it: ``python examples/sequential_passes.py``.
"""

from __future__ import annotations

import tvm

import tvm_distir as td


def main() -> None:
    """Annotate, propagate, legalize, optimize and lower an MLP on two devices."""
    mod = td.zoo.mlp(layers=2, hidden=16, batch=8)
    plan = td.Plan(
        mesh={"tp": 2},
        rules={"layers.0.linear.weight": td.P("tp", None), "head.weight": td.P(None, "tp")},
    )
    explicit = tvm.transform.Sequential(
        [
            td.transforms.AnnotateSharding(plan),
            td.transforms.PropagateSharding(),
            td.transforms.LegalizeRedistribute(),
            td.transforms.OptimizeCollectives(),
        ]
    )(mod)
    td.show(explicit)  # every collective, and P for partial sums
    local = td.transforms.LowerDistIR()(explicit)
    td.show(local)  # what each device runs
    td.verify(mod, plan, engine="threads").check()
    print("verified: the devices compute what the module computes")


if __name__ == "__main__":
    main()
