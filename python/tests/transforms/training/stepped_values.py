# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Run a training step several times from states of zeros."""

from __future__ import annotations

import numpy as np

from tests.transforms.training.test_gradient_updates import drawn_for
from tvm_distir.execution.runtime.engines.reference import Reference


def stepped_values(step, weights, count):
    """The weights of some names before, and all values by name after ``count`` steps."""
    names = [str(n) for n in step["main"].attrs["dist.param_names"]]
    updated = [n for n in names if n in step["main"].attrs["dist.training"]["updated"]]
    values = {}
    for name, param in zip(names, step["main"].params, strict=True):
        zero = np.zeros([int(n) for n in param.ty.shape], str(param.ty.dtype))
        values[name] = drawn_for(name, zero) if name in ("x", "targets", *weights) else zero
    first = {n: values[n].copy() for n in weights}
    run = Reference(step)
    for _ in range(count):
        _, *new = run.run([values[name] for name in names])
        values.update(zip(updated, new, strict=True))
    return first, values
