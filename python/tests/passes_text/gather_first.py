# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""The step returns the shard `w_new` of the weight `w`, which it takes as a shard and gathers."""

from __future__ import annotations

from tvm.script import ir as I
from tvm.script import relax as R

PASS = "gather-first"


@I.ir_module
class Before:
    I.module_attrs({"mesh_axes": [["dp"]]})
    I.module_global_infos({"mesh": [R.device_mesh((2,), I.Range(0, 2))]})

    @R.function(pure=False)
    def main(
        x: R.Tensor((4,), "float32"), w: R.Tensor((4,), "float32"), m: R.Tensor((2,), "float32")
    ):
        R.func_attr(
            {
                "dist.io": {
                    "mesh": 0,
                    "inputs": [
                        {"index": 0, "name": "x", "shape": [4], "dtype": "float32",
                         "placement": "R", "role": "data"},
                        {"index": 1, "name": "w", "shape": [4], "dtype": "float32",
                         "placement": "R", "role": "weight"},
                        {"index": 2, "name": "m", "shape": [4], "dtype": "float32",
                         "placement": "S[0]", "role": "weight"},
                    ],
                    "outputs": [
                        {"index": 0, "shape": [4], "dtype": "float32", "placement": "R"},
                        {"index": 1, "shape": [4], "dtype": "float32", "placement": "R"},
                    ],
                },
                "dist.training": {"updated": {"w": "w_new"}},
            }
        )  # fmt: skip
        y = R.multiply(x, w)
        part = R.dist.local_slice(w, device_mesh="mesh[0]", mesh_axis=0, dim=0)
        w_new = R.subtract(part, m)
        w_placed = R.dist.all_gather(w_new, device_mesh="mesh[0]", mesh_axis=0, dim=0)
        return (y, w_placed)


@I.ir_module
class After:
    I.module_attrs({"mesh_axes": [["dp"]]})
    I.module_global_infos({"mesh": [R.device_mesh((2,), I.Range(0, 2))]})

    @R.function(pure=False)
    def main(
        x: R.Tensor((4,), "float32"), w: R.Tensor((2,), "float32"), m: R.Tensor((2,), "float32")
    ):
        R.func_attr(
            {
                "dist.io": {
                    "mesh": 0,
                    "inputs": [
                        {"index": 0, "name": "x", "shape": [4], "dtype": "float32",
                         "placement": "R", "role": "data"},
                        {"index": 1, "name": "w", "shape": [4], "dtype": "float32",
                         "placement": "S[0]", "role": "weight"},
                        {"index": 2, "name": "m", "shape": [4], "dtype": "float32",
                         "placement": "S[0]", "role": "weight"},
                    ],
                    "outputs": [
                        {"index": 0, "shape": [4], "dtype": "float32", "placement": "R"},
                        {"index": 1, "shape": [4], "dtype": "float32", "placement": "S[0]"},
                    ],
                },
                "dist.training": {"updated": {"w": "w_new"}},
            }
        )  # fmt: skip
        w_gathered = R.dist.all_gather(w, device_mesh="mesh[0]", mesh_axis=0, dim=0)
        y = R.multiply(x, w_gathered)
        w_new = R.subtract(w, m)
        return (y, w_new)
