# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""A collective over all workers is an op of `R.ccl`; `dist.workers` says how inputs are cut."""

from __future__ import annotations

from tvm.script import ir as I
from tvm.script import relax as R

PASS = "ccl"


@I.ir_module
class Before:
    I.module_attrs({"device_num": 2, "mesh_axes": [["a"]], "mesh_names": ["mesh0"]})
    I.module_global_infos({"mesh": [R.device_mesh((2,), I.Range(0, 2))]})

    @R.function
    def main(
        x: R.Tensor((8, 8), "float32"),
        y: R.Tensor((8, 32), "float32"),
    ):
        R.func_attr(
            {
                "num_input": 2,
                "dist.io": {
                    "mesh": 0,
                    "inputs": [
                        {
                            "name": "x",
                            "index": 0,
                            "dtype": "float32",
                            "shape": [8, 16],
                            "placement": "S[1]",
                        },
                        {
                            "name": "y",
                            "index": 1,
                            "dtype": "float32",
                            "shape": [16, 32],
                            "placement": "S[0]",
                        },
                    ],
                    "outputs": [
                        {"index": 0, "dtype": "float32", "shape": [8, 32], "placement": "R"}
                    ],
                },
            }
        )
        with R.dataflow():
            terms = R.matmul(x, y)
            z = R.dist.all_reduce(terms, "mesh[0]", [0], "sum")
            R.output(terms, z)
        return z


@I.ir_module
class After:
    I.module_attrs(
        {
            "device_num": 2,
            "dist.workers": {"axes": ["a"], "groups": 1, "sizes": [2]},
            "mesh_names": ["mesh0"],
        }
    )

    @R.function
    def get_shard_info():
        return R.str("{}")  # no input is a weight, which a ShardLoader would divide

    @R.function
    def main(
        x: R.Tensor((8, 8), "float32"),
        y: R.Tensor((8, 32), "float32"),
    ):
        R.func_attr(
            {
                "num_input": 2,
                "dist.workers": {
                    "mesh": 0,
                    "inputs": [
                        {
                            "name": "x",
                            "index": 0,
                            "dtype": "float32",
                            "shape": [8, 16],
                            "placement": "S[1]",
                        },
                        {
                            "name": "y",
                            "index": 1,
                            "dtype": "float32",
                            "shape": [16, 32],
                            "placement": "S[0]",
                        },
                    ],
                    "outputs": [
                        {"index": 0, "dtype": "float32", "shape": [8, 32], "placement": "R"}
                    ],
                },
            }
        )
        with R.dataflow():
            terms = R.matmul(x, y)
            z = R.ccl.allreduce(terms, "sum", False)
            R.output(terms, z)
        return z
