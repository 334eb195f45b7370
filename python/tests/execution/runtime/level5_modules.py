# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Level-5 modules written by hand, for the tests of the engines."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from tvm import ir, relax

import tvm_distir  # registers the ops
from tvm_distir.core.ir.mesh import mesh_shape
from tvm_distir.core.ir.operators import ops
from tvm_distir.core.ir.placement import local_shape, parse_placement
from tvm_distir.execution.runtime.program.io_layout import np_dtype

Port = tuple[str, Sequence[int], str, str]
"""name, whole shape, dtype, placement"""

__all__ = ["Level5", "arrival", "draw", "ops", "there_and_back", "tvm_distir"]


def draw(rng: np.random.Generator, shape: Sequence[int], dtype: str) -> Any:
    """Values from {-2..2}: sums of them are exact."""
    values = rng.integers(-2, 3, tuple(shape))
    return (values > 0) if dtype == "bool" else values.astype(np_dtype(dtype))


class Level5:
    """Builds a level-5 module entry by entry."""

    def __init__(self, *meshes: Any, axes: Sequence[Sequence[str]] | None = None) -> None:
        self.meshes = meshes
        self.axes = axes
        self.bb = relax.BlockBuilder()

    def private(
        self, name: str, params: Sequence[tuple[str, Sequence[int], str]], body: Callable[..., Any]
    ) -> ir.GlobalVar:
        """Add a private function on local tensors."""
        args = [relax.Var(n, relax.TensorType(list(s), d)) for n, s, d in params]
        with self.bb.function(name, args, private=True):
            with self.bb.dataflow():
                out = self.bb.emit_output(body(self.bb, *args))
            self.bb.emit_func_output(out)
        return self.bb.get().get_global_var(name)

    def entry(
        self,
        inputs: Sequence[Port],
        outputs: Sequence[Port],
        body: Callable[..., Any],
        mesh: int = 0,
        pure: bool = True,
        index: Sequence[int] | None = None,
        out_index: Sequence[int] | None = None,
    ) -> None:
        """Add the entry of one mesh; ``body(bb, *params)`` returns a var or a list of them."""
        name = "main" if len(self.meshes) == 1 else f"main_mesh{mesh}"
        shape = mesh_shape(self.meshes[mesh])
        params = [
            relax.Var(n, relax.TensorType(local_shape(s, parse_placement(p), shape), d))
            for n, s, d, p in inputs
        ]
        io = {
            "mesh": mesh,
            "inputs": self._items(inputs, index),
            "outputs": self._items(outputs, out_index),
        }
        with self.bb.function(name, params, {"dist.io": io}, pure=pure):
            if pure:
                with self.bb.dataflow():
                    out = body(self.bb, *params)
                    out = [
                        self.bb.emit_output(o) for o in (out if isinstance(out, list) else [out])
                    ]
            else:
                out = body(self.bb, *params)
                out = out if isinstance(out, list) else [out]
            self.bb.emit_func_output(out[0] if len(out) == 1 else relax.Tuple(out))

    @staticmethod
    def _items(ports: Sequence[Port], index: Sequence[int] | None) -> list[dict[str, Any]]:
        numbers = range(len(ports)) if index is None else index
        return [
            {"index": i, "name": n, "shape": list(s), "dtype": d, "placement": p}
            for i, (n, s, d, p) in zip(numbers, ports)
        ]

    def get(self) -> ir.IRModule:
        """The module, with its meshes."""
        mod = self.bb.finalize()
        mod.update_global_info("mesh", list(self.meshes))
        return mod.with_attr("mesh_axes", [list(a) for a in self.axes]) if self.axes else mod


def arrival(
    bb: relax.BlockBuilder,
    ends: tuple[Any, Any],
    placements: tuple[str, str],
    shape: Sequence[int],
    dtype: str = "float32",
    tag: int = 0,
) -> relax.Var:
    """Emit the ``recv`` of a transfer; meshes and placements of the receiver and of the sender."""
    return bb.emit(
        ops.recv(
            device_mesh=ends[0],
            peer_mesh=ends[1],
            placement=placements[0],
            peer_placement=placements[1],
            shape=shape,
            dtype=dtype,
            tag=tag,
        )
    )


def there_and_back(
    shape: Sequence[int] = (4, 4), here: str = "S[0]", present: str = "R, S[1]"
) -> ir.IRModule:
    """``(4 x, 3 x)`` of ``x``: sent to a larger mesh, which keeps ``3 x`` and sends it back."""
    first = tvm_distir.device_mesh({"dp": 2})
    second = tvm_distir.device_mesh({"a": 2, "b": 2}, start=2)
    build = Level5(first, second)

    def stage0(bb: Any, x: Any) -> Any:
        bb.emit(ops.send(x, first, second, here, present, shape=shape, tag=0))
        back = arrival(bb, (first, second), (here, present), shape, tag=1)
        return bb.emit(relax.op.add(back, x))

    def stage1(bb: Any) -> Any:
        got = arrival(bb, (second, first), (present, here), shape, tag=0)
        y = bb.emit(relax.op.multiply(got, relax.const(3.0)))
        bb.emit(ops.send(y, second, first, present, here, shape=shape, tag=1))
        return y

    build.entry([("x", shape, "float32", here)], [("y", shape, "float32", here)], stage0, 0, False)
    build.entry([], [("z", shape, "float32", present)], stage1, 1, False, [], [1])
    return build.get()
