# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Warn of weights that an exporter wrote into the model as constants, which are not trained."""

from __future__ import annotations

import warnings
from collections.abc import Iterator

from tvm import ir

from tvm_distir.core import all_bindings, known_shape, op_name, relax_functions, tensor_type

_WEIGHTS = {
    "relax.matmul": (0, 1),
    "relax.take": (0,),
    **{f"relax.nn.conv{n}d{t}": (1,) for n in (1, 2, 3) for t in ("", "_transpose")},
    "relax.nn.batch_norm": (1, 2, 3, 4),
    "relax.nn.group_norm": (1, 2),
    "relax.nn.instance_norm": (1, 2),
    "relax.nn.layer_norm": (1, 2),
    "relax.nn.rms_norm": (1,),
}
"""Operands that are weights of a layer, by op; of batch norms its running statistics too."""

SHOWN = 3


def constant_weights(mod: ir.IRModule) -> Iterator[str]:
    """Yield ``function/binding (op)`` of each use of a constant as a layer's weight."""
    for gv, fn in relax_functions(mod):
        for binding in all_bindings(fn.body):
            value = binding.value
            if not isinstance(value, ir.Call) or not isinstance(value.op, ir.Op):
                continue
            for position in _WEIGHTS.get(str(value.op.name), ()):
                if _is_weight(value.args[position]):
                    yield f"{gv.name_hint}/{binding.var.name} ({op_name(value)})"
                    break


def _is_weight(arg: object) -> bool:
    if not isinstance(arg, ir.GenericConst):
        return False
    tensor, shape = tensor_type(arg.ty), known_shape(arg.ty)
    return tensor is not None and "float" in str(tensor.dtype) and bool(shape)


def warn_of_constants(mod: ir.IRModule) -> None:
    """Warn of layers whose weights are constants."""
    names = list(dict.fromkeys(constant_weights(mod)))
    if names:
        more = f" and {len(names) - SHOWN} more" if len(names) > SHOWN else ""
        warnings.warn(
            f"constants are not trained: the weights of {', '.join(names[:SHOWN])}{more}; "
            "export the model with its weights as parameters to train them",
            stacklevel=3,
        )


__all__ = ["constant_weights", "warn_of_constants"]
