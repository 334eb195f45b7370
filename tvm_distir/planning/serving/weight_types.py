# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Choose the type of the weights of a served model, as the kernel profile that quantizes them."""

from __future__ import annotations

from dataclasses import replace

from tvm_distir.hardware import System
from tvm_distir.performance import profile_names
from tvm_distir.support import UsageError, nearest

PLAIN = "none"
"""The type of weights that are not quantized."""


def with_weights(system: System, weights: str) -> System:
    """Return a system whose kernel profile has weights of a type.

    Parameters
    ----------
    system : System
    weights : str
        ``none``, or ``fp8``, ``nvfp4``, ``int4``, ... as the names of the profiles that quantize
        those of the system end.

    Raises
    ------
    UsageError
        DIST0152 for a type that no profile of these kernels has.
    """
    if weights in ("", PLAIN):
        return system
    base, names = system.kernels, profile_names()
    for name in (f"{base}-{weights}", f"{base}-{weights}-weights"):
        if name in names:
            return replace(system, kernels=name)
    ends = (name.removeprefix(f"{base}-") for name in names if name.startswith(f"{base}-"))
    known = [PLAIN, *(end.removesuffix("-weights") for end in ends)]
    raise UsageError(
        "DIST0152", f'the kernels "{base}" have no profile with weights of type "{weights}"',
        location="--quantize", remedy=nearest(weights, known),
    )  # fmt: skip
