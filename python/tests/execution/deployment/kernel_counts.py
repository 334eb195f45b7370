# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Count the kernels of a program for CUDA from its source and its bytecode."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

_KERNEL = re.compile(
    r"__global__ void (?:__launch_bounds__\(\d+\) )?(\w+)\([^;{]*\) \{(.*?)^\}", re.S | re.M
)
_ACCUMULATOR = re.compile(r"accumulator, 16, 16, 16, (\w+)>")
_PRODUCT = re.compile(r"matmul|einsum|conv[123]d")
_CALL = re.compile(r"\bcall +([\w.]+)")
_OF_SCALARS = "compute_symbolic_expr"
"""Functions of scalars, which TVM computes on the host."""
_LIBRARY = "tvm_distir.torch."


@dataclass(frozen=True)
class KernelCounts:
    """Kernels of a program, by the places where the bytecode calls them.

    Attributes
    ----------
    kernels : int
        The kernels of the source.
    library, tensor_cores, other_products : int
        Products and convolutions in PyTorch, on tensor cores, and in neither.
    accumulators : frozenset of str
        The types of CUDA that tensor cores sum in.
    attention : int
        Calls of attention in PyTorch.
    softmax : int
        Kernels of a softmax.
    transposes : int
        Kernels that only transpose.
    host : frozenset of str
        Functions that are called and launch no kernel.
    """

    kernels: int
    library: int
    tensor_cores: int
    other_products: int
    accumulators: frozenset[str]
    attention: int
    softmax: int
    transposes: int
    host: frozenset[str]


def count_kernels(program: Any) -> KernelCounts:
    """Count the kernels of a compiled program with one entry."""
    (executable,) = program.executables.values()
    text = executable.as_text()
    bodies = dict(_KERNEL.findall(program.kernel_source(program.entries[0])))
    called = _CALL.findall(text)
    inner = set(re.findall(r"^@(\w+):", text, re.MULTILINE))
    own = [name for name in called if "." not in name and name not in inner]
    own = [name for name in own if not name.startswith(_OF_SCALARS)]
    launched = {name: [k for k in bodies if k.startswith(f"{name}_kernel")] for name in own}
    on_cores = {n for n, ks in launched.items() if any("wmma::mma_sync" in bodies[k] for k in ks)}
    products = [name for name in own if name in on_cores or _PRODUCT.search(name)]
    packed = [name.removeprefix(_LIBRARY) for name in called if name.startswith(_LIBRARY)]
    return KernelCounts(
        len(bodies),
        sum(name in ("product", "convolution") for name in packed),
        sum(name in on_cores for name in products),
        sum(name not in on_cores for name in products),
        frozenset(kind for body in bodies.values() for kind in _ACCUMULATOR.findall(body)),
        sum(name.startswith(("attention", "flash")) for name in packed),
        sum("softmax" in name for name in own),
        sum(bool(re.fullmatch(r"transpose\d*", name)) for name in own),
        frozenset(name for name, kernels in launched.items() if not kernels),
    )
