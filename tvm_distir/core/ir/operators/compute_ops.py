# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Register the ops of ``R.dist`` that compute and move nothing between devices.

As ops of ``R`` they have a sharding rule, a local form and a legalization. They are in modules of
every level.
"""

from __future__ import annotations

import functools

import tvm_ffi
from tvm import ir

from tvm_distir.core.ir.operators import attention_ops, grouped_ops, paged_attention_ops

from .ops import PREFIX

_MODULES = (attention_ops, grouped_ops, paged_attention_ops)

COMPUTE_OPS = frozenset(name for module in _MODULES for name in module.INFER)


@functools.cache
def register_compute_ops() -> None:
    """Add the ops to TVM's registry and to the TVMScript parser, once per process."""
    import tvm.relax.script.parser.dist as parser_dist

    add = tvm_ffi.get_global_func("ir.RegisterOp")
    known = set(ir.Op.list_op_names())
    for module in _MODULES:
        for name, infer in module.INFER.items():
            make = getattr(module, name.removeprefix(PREFIX))
            setattr(parser_dist, make.__name__, make)
            if name in known:
                continue
            add(name, (make.__doc__ or "").splitlines()[0])
            ir.register_op_attr(name, "FInferType", infer)
            ir.register_op_attr(name, "FPurity", True)
