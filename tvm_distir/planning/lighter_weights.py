# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Find the types of weights with which what does not fit into memory would fit."""

from __future__ import annotations

import math
from collections.abc import Iterable

from tvm import ir

from tvm_distir.core.ir import known_shape
from tvm_distir.core.ir.attributes import param_names
from tvm_distir.core.rewriting import entry_of
from tvm_distir.hardware import System
from tvm_distir.performance import multiplies, weight_quantization


def lighter_kinds(system: System) -> tuple[str, str]:
    """Return the types of weights to suggest for a device, those of more bits first."""
    return "fp8", "nvfp4" if multiplies(system, "nvfp4") else "int4"


def remedy_of(kinds: Iterable[str]) -> str:
    """Return the sentence that names types of weights that fit; empty without one."""
    names = " or ".join(kinds)
    return f"Use --quantize {names}. " if names else ""


def kinds_that_may_fit(
    mod: ir.IRModule, system: System, devices: int, needs_bytes: int, limit_bytes: int
) -> list[str]:
    """Return types of weights in which a step may fit that needs too much memory.

    A device holds at least its part of the matrices of 16 bits that no other type leaves, and saves
    as much of them as the type does.

    Parameters
    ----------
    mod : IRModule
        A step of inference.
    system : System
    devices : int
    needs_bytes, limit_bytes : int
        What a device needs, and has.
    """
    sizes = {}
    main = mod[entry_of(mod)]
    for name, param in zip(param_names(main), main.params, strict=True):
        shape = known_shape(param.ty) or ()
        if len(shape) > 1 and str(param.ty.dtype) in ("float16", "bfloat16"):
            sizes[name] = 2 * math.prod(shape)
    kinds = []
    for kind in lighter_kinds(system):
        chosen = weight_quantization(kind, "--quantize")
        narrow = [n for name, n in sizes.items() if chosen.bits_of(name) < 16]
        if needs_bytes - sum(narrow) * (1 - chosen.bits / 16) / devices <= limit_bytes:
            kinds.append(kind)
    return kinds
