# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""What frontends write on a module, so that it survives a trip through TVMScript."""

from __future__ import annotations

from tvm import relax

FRONTEND_ATTR = "dist.frontend"
"""Module attribute: ``{"format": "onnx", "source": path, "batch": n}``; batch 0 is the file's."""

PARAM_NAMES_ATTR = "dist.param_names"
"""Attribute of ``main``: its parameters' names as the model has them, dots included."""

NUM_INPUT_ATTR = "num_input"
"""TVM's attribute of ``main``: how many of its first parameters are data."""


def param_names(fn: relax.Function) -> list[str]:
    """Return the names of a function's parameters, as the model has them where it is known."""
    names = fn.attrs.get(PARAM_NAMES_ATTR) if fn.attrs else None
    if names is None or len(names) != len(fn.params):
        return [str(param.name) for param in fn.params]
    return [str(name) for name in names]


def num_input(fn: relax.Function) -> int | None:
    """Return how many of the first parameters are data, None when the function does not say."""
    count = fn.attrs.get(NUM_INPUT_ATTR) if fn.attrs else None
    return None if count is None else int(count)
