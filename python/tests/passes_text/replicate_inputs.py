# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""`lengths` becomes an input of both meshes, each of which computes `rows`, so that the second mesh
receives activations alone.
"""

from __future__ import annotations

from tvm.script import ir as I
from tvm.script import relax as R

PASS = "replicate-inputs"


@I.ir_module
class Before:
    I.module_attrs({"mesh_axes": [["pp"], ["pp"]]})
    I.module_global_infos(
        {"mesh": [R.device_mesh((1,), I.Range(0, 1)), R.device_mesh((1,), I.Range(1, 2))]}
    )

    @R.function(pure=False)
    def main_mesh0(x: R.Tensor((4,), "int32"), lengths: R.Tensor((4,), "int32")):
        R.func_attr(
            {
                "dist.io": {
                    "mesh": 0,
                    "inputs": [
                        {"index": 0, "name": "x", "shape": [4], "dtype": "int32",
                         "placement": "R", "role": "weight"},
                        {"index": 1, "name": "lengths", "shape": [4], "dtype": "int32",
                         "placement": "R", "role": "data"},
                    ],
                    "outputs": [],
                }
            }
        )  # fmt: skip
        rows = R.negative(lengths)
        y = R.add(x, rows)
        sent = R.dist.send(
            y, device_mesh="mesh[0]", peer_mesh="mesh[1]", placement="R", peer_placement="R",
            shape=[4], tag=0,
        )  # fmt: skip
        rows_sent = R.dist.send(
            rows, device_mesh="mesh[0]", peer_mesh="mesh[1]", placement="R", peer_placement="R",
            shape=[4], tag=1,
        )  # fmt: skip
        return R.tuple()

    @R.function(pure=False)
    def main_mesh1():
        R.func_attr(
            {
                "dist.io": {
                    "mesh": 1,
                    "inputs": [],
                    "outputs": [{"index": 0, "shape": [4], "dtype": "int32", "placement": "R"}],
                }
            }
        )
        y = R.dist.recv(
            device_mesh="mesh[1]", peer_mesh="mesh[0]", placement="R", peer_placement="R",
            shape=[4], dtype="int32", tag=0,
        )  # fmt: skip
        rows = R.dist.recv(
            device_mesh="mesh[1]", peer_mesh="mesh[0]", placement="R", peer_placement="R",
            shape=[4], dtype="int32", tag=1,
        )  # fmt: skip
        z = R.multiply(y, rows)
        return z


@I.ir_module
class After:
    I.module_attrs({"mesh_axes": [["pp"], ["pp"]]})
    I.module_global_infos(
        {"mesh": [R.device_mesh((1,), I.Range(0, 1)), R.device_mesh((1,), I.Range(1, 2))]}
    )

    @R.function(pure=False)
    def main_mesh0(x: R.Tensor((4,), "int32"), lengths: R.Tensor((4,), "int32")):
        R.func_attr(
            {
                "dist.io": {
                    "mesh": 0,
                    "inputs": [
                        {"index": 0, "name": "x", "shape": [4], "dtype": "int32",
                         "placement": "R", "role": "weight"},
                        {"index": 1, "name": "lengths", "shape": [4], "dtype": "int32",
                         "placement": "R", "role": "data"},
                    ],
                    "outputs": [],
                }
            }
        )  # fmt: skip
        rows = R.negative(lengths)
        y = R.add(x, rows)
        sent = R.dist.send(
            y, device_mesh="mesh[0]", peer_mesh="mesh[1]", placement="R", peer_placement="R",
            shape=[4], tag=0,
        )  # fmt: skip
        return R.tuple()

    @R.function(pure=False)
    def main_mesh1(lengths: R.Tensor((4,), "int32")):
        R.func_attr(
            {
                "dist.io": {
                    "mesh": 1,
                    "inputs": [
                        {"index": 1, "name": "lengths", "shape": [4], "dtype": "int32",
                         "placement": "R", "role": "data"},
                    ],
                    "outputs": [{"index": 0, "shape": [4], "dtype": "int32", "placement": "R"}],
                }
            }
        )  # fmt: skip
        y = R.dist.recv(
            device_mesh="mesh[1]", peer_mesh="mesh[0]", placement="R", peer_placement="R",
            shape=[4], dtype="int32", tag=0,
        )  # fmt: skip
        rows = R.negative(lengths)
        z = R.multiply(y, rows)
        return z
