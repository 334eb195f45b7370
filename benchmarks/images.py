# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Small programs on images cut by rows, as data that both TVM's and JAX's side read."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from tvm import ir, relax

import tvm_distir as td

BATCH, CHANNELS, COLUMNS = 2, 8, 16


@dataclass(frozen=True)
class Layer:
    """One op on images, with a square window.

    Attributes
    ----------
    kind : str
        ``conv``, ``transposed``, ``max``, ``average``, ``pad``, ``cumsum`` or ``resize``.
    kernel, stride, dilation, groups : int
    pad : int
        Rows and columns on all four sides.
    more : int
        Output padding of a transposed convolution.
    """

    kind: str
    kernel: int = 3
    stride: int = 1
    pad: int = 0
    dilation: int = 1
    groups: int = 1
    more: int = 0

    @property
    def weight(self) -> tuple[int, ...] | None:
        """Shape of its kernel."""
        if self.kind not in ("conv", "transposed"):
            return None
        return (CHANNELS, CHANNELS // self.groups, self.kernel, self.kernel)


@dataclass(frozen=True)
class Program:
    """Layers on an image of ``rows``, over devices that hold blocks of rows; ``train``: a step."""

    layers: Sequence[Layer]
    rows: int = 32
    ranks: int = 4
    train: bool = False

    def question(self) -> dict[str, Any]:
        """The same as JSON."""
        shape = [BATCH, CHANNELS, self.rows, COLUMNS]
        layers = [{**asdict(each), "weight": each.weight} for each in self.layers]
        return {"shape": shape, "layers": layers, "ranks": self.ranks, "train": self.train}


def _called(layer: Layer, x: Any, weight: Any) -> Any:
    """Write a layer as a relax call."""
    nn, both = relax.op.nn, (layer.pad, layer.pad)
    if layer.kind == "conv":
        return nn.conv2d(x, weight, layer.stride, both, layer.dilation, groups=layer.groups)
    if layer.kind == "transposed":
        return nn.conv2d_transpose(x, weight, layer.stride, both, layer.more, groups=layer.groups)
    window = (layer.kernel, layer.kernel)
    if layer.kind == "max":
        return nn.max_pool2d(x, window, layer.stride, both)
    if layer.kind == "average":
        return nn.avg_pool2d(x, window, layer.stride, both, count_include_pad=True)
    if layer.kind == "pad":
        return nn.pad(x, [0, 0, 0, 0, *both, *both])
    if layer.kind == "cumsum":
        return relax.op.cumsum(x, 2)
    _, _, rows, columns = (int(n) for n in x.ty.shape)
    return relax.op.image.resize2d(
        x,
        (2 * rows, 2 * columns),
        layout="NCHW",
        method="nearest_neighbor",
        coordinate_transformation_mode="asymmetric",
        rounding_method="floor",
    )


def module_of(program: Program) -> ir.IRModule:
    """Module of a program; its image is ``x``, its result ``y``."""
    shape = [BATCH, CHANNELS, program.rows, COLUMNS]
    x: Any = relax.Var("x", relax.TensorType(shape, "float32"))
    shapes = [list(layer.weight) for layer in program.layers if layer.weight is not None]
    weights = [
        relax.Var(f"w{i}", relax.TensorType(single, "float32")) for i, single in enumerate(shapes)
    ]
    builder, waiting = relax.BlockBuilder(), list(weights)
    with builder.function("main", [x, *weights], {"num_input": 1}):
        with builder.dataflow():
            for layer in program.layers[:-1]:
                x = builder.emit(_called(layer, x, waiting.pop(0) if layer.weight else None))
            last = program.layers[-1]
            y = builder.emit_output(
                _called(last, x, waiting.pop(0) if last.weight else None), name_hint="y"
            )
        builder.emit_func_output(y)
    mod = builder.get()
    return td.train_step(mod, loss="mse") if program.train else mod


def plan_of(program: Program) -> td.Plan:
    """Rows of the image, and of the result or its targets, over all devices."""
    placed = "S[2]"
    result = {"param": "targets"} if program.train else {"value": "y"}
    rules = [{"param": "x", "placement": placed}, {**result, "placement": placed}]
    rules += [
        {"param": f"w{i}", "placement": "R"}
        for i in range(sum(layer.weight is not None for layer in program.layers))
    ]
    return td.Plan.from_dict({"schema_version": 1, "mesh": {"rows": program.ranks}, "rules": rules})


SAME = Layer("conv", 3, 1, 1)
PROGRAMS = {
    "3x3 SAME": Program([SAME]),
    "3x3 SAME, 2 devices": Program([SAME], ranks=2),
    "3x3 SAME, two layers": Program([SAME, SAME]),
    "3x3 stride 2": Program([Layer("conv", 3, 2, 1)]),
    "7x7 stride 2": Program([Layer("conv", 7, 2, 3)]),
    "3x3 dilation 2": Program([Layer("conv", 3, 1, 2, 2)]),
    "3x3 depthwise": Program([Layer("conv", 3, 1, 1, groups=CHANNELS)]),
    "7x7, shards of 2 rows": Program([Layer("conv", 7, 1, 3)], rows=8),
    "pad 1, 3x3 VALID": Program([Layer("pad", pad=1), Layer("conv")]),
    "max pool 3x3 stride 2": Program([Layer("max", 3, 2, 1)]),
    "max pool 2x2 stride 2": Program([Layer("max", 2, 2)]),
    "average pool 3x3": Program([Layer("average", 3, 1, 1)]),
    "transposed 3x3 stride 2": Program([Layer("transposed", 3, 2, 1, more=1)]),
    "transposed 2x2 stride 2": Program([Layer("transposed", 2, 2)]),
    "running sum": Program([Layer("cumsum")]),
    "nearest pixels x 2": Program([Layer("resize")]),
    "training, 3x3 twice": Program([SAME, SAME], train=True),
    "training, stride 2": Program([SAME, Layer("conv", 3, 2, 1)], train=True),
    "training, depthwise": Program([SAME, Layer("conv", 3, 1, 1, groups=CHANNELS)], train=True),
    "training, max pool": Program([SAME, Layer("max", 2, 2), SAME], train=True),
    "training, transposed": Program([SAME, Layer("transposed", 3, 2, 1, more=1)], train=True),
}
