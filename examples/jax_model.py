# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Take a model of JAX, shard it with a ``PartitionSpec``, and run it back in JAX.

Run it with the extra ``jax``: ``python examples/jax_model.py``.
"""

from __future__ import annotations

import os

os.environ.setdefault("XLA_FLAGS", "--xla_force_host_platform_device_count=4")

import jax
import numpy as np
from jax.sharding import PartitionSpec as P

import tvm_distir as td


def model(x: jax.Array, up: jax.Array, down: jax.Array) -> jax.Array:
    """Return an MLP of two products."""
    return jax.nn.relu(x @ up) @ down


def main() -> None:
    """Distribute the model over four devices of JAX, and compare the results."""
    rng = np.random.default_rng(0)
    shapes = (8, 16), (16, 32), (32, 16)
    arrays = [rng.normal(size=shape).astype("float32") for shape in shapes]
    mod = td.from_stablehlo(jax.jit(model).lower(*arrays).as_text(debug_info=True))
    plan = td.Plan(
        mesh={"dp": 2, "tp": 2},
        rules={"x": P("dp", None), "up": P(None, "tp"), "down": P("tp", None)},
    )
    step = td.to_jax(td.distribute(mod, plan))
    (y,) = step(*arrays)
    print("sharding of x:", step.in_shardings[0].spec)
    print("equal:", bool(np.allclose(y, model(*arrays), atol=1e-4)))


if __name__ == "__main__":
    main()
