# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Import modules of ``tvm.relax.frontend.nn``, as MLC-LLM defines its models."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tvm import ir, relax

from tvm_distir.core.ir.attributes import FIELDS_ATTR, PARAM_NAMES_ATTR
from tvm_distir.core.rewriting import bind_dims, map_functions, open_tuples
from tvm_distir.support import ModelError

_PACKED = "packed_params"
"""Name of the tuple in which `relax.nn` exports parameters with ``param_mode="packed"``."""


def from_nn(module: Any, spec: Any, dims: Mapping[str, int] | None = None) -> ir.IRModule:
    """Export a module of ``relax.nn``, with its parameters by their names.

    Parameters
    ----------
    module : tvm.relax.frontend.nn.Module
    spec : mapping or ModuleSpec
        The entry points and their inputs, as ``module.export_tvm`` takes them. Parameters may be
        ``plain`` or ``packed``: each tensor is a parameter of the result all the same.
    dims : mapping of str to int, optional
        Sizes of symbolic dims, as `tvm_distir.bind_dims` takes them.

    Returns
    -------
    IRModule
        The module, at level 1. Plans, checkpoints and reports call a parameter as the module does,
        ``layers.0.mlp.down_proj.weight``.

    Raises
    ------
    ModelError
        DIST0340 for what is no such module, DIST0313 for unknown dims.

    Examples
    --------
    >>> from tvm.relax.frontend import nn
    >>> spec = {"forward": {"x": nn.spec.Tensor((2, 8), "float32")}}
    >>> [str(param.name) for param in td.from_nn(nn.Linear(8, 4), spec)["forward"].params]
    ['x', 'weight', 'bias']
    """
    if not hasattr(module, "export_tvm"):
        problem = f"a {type(module).__name__} cannot be exported"
        remedy = "Give a tvm.relax.frontend.nn.Module."
        raise ModelError("DIST0340", problem, location="from_nn", remedy=remedy)
    mod, params = module.export_tvm(spec)
    return bind_dims(with_names(open_tuples(mod), [str(name) for name, _ in params]), dims or {})


def with_names(mod: ir.IRModule, names: list[str]) -> ir.IRModule:
    """Return a module with opened tuples whose parameters have the names of an ``nn.Module``."""
    return map_functions(mod, lambda fn: _named(fn, names))


def _named(fn: relax.Function, names: list[str]) -> relax.Function:
    """Return a function whose parameters from the tuple have the names of the module."""
    if not fn.attrs or FIELDS_ATTR not in fn.attrs:
        return fn
    titles = [str(param.name) for param in fn.params]
    for position, field in enumerate(fn.attrs[FIELDS_ATTR]):
        tuple_name, _, number = str(field).rpartition(".")
        if tuple_name == _PACKED and int(number) < len(names):
            titles[position] = names[int(number)]
    return fn.with_attr(PARAM_NAMES_ATTR, titles)
