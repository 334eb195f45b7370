# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Train an MLP with tensor parallelism in a job of ``torchrun``, over gloo.

Run it: ``torchrun --nproc-per-node 2 examples/train_torchrun.py``.
"""

from __future__ import annotations

import numpy as np
from torch import distributed

import tvm_distir as td

STEPS = 20


def main() -> None:
    """Fit random targets; every process prints the same losses, the first one shows them."""
    distributed.init_process_group("gloo")
    mod = td.zoo.mlp(layers=2, hidden=16, batch=8)
    step = td.train_step(mod, loss="mse", optimizer="sgd", rate=0.2)
    plan = td.planning.make_plan(step, "tensor_parallel", {"tp": distributed.get_world_size()})
    local = td.distribute(step, plan)
    rng = np.random.default_rng(0)
    shapes = [tuple(int(n) for n in param.ty.shape.values) for param in step["main"].params]
    x, targets, *weights = [rng.normal(size=shape).astype("float32") / 2 for shape in shapes]
    losses = []
    for _ in range(STEPS):
        loss, *weights = td.run(local, [x, targets, *weights], engine="torch")
        losses.append(float(loss))
    if distributed.get_rank() == 0:
        print(f"loss {losses[0]:.4f} -> {losses[-1]:.4f}")
    distributed.destroy_process_group()


if __name__ == "__main__":
    main()
