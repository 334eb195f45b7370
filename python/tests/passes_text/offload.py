# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""The state `m` of the weight `w` is fetched before its first reader, and `m_new` is stored."""

from __future__ import annotations

from tvm.script import ir as I
from tvm.script import relax as R

PASS = "offload"


@I.ir_module
class Before:
    I.module_attrs({"mesh_axes": [["dp"]]})
    I.module_global_infos({"mesh": [R.device_mesh((2,), I.Range(0, 2))]})

    @R.function
    def main(
        x: R.Tensor((4,), "float32"), w: R.Tensor((4,), "float32"), m: R.Tensor((4,), "float32")
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
                        {"index": 2, "name": "w.m", "shape": [4], "dtype": "float32",
                         "placement": "R", "role": "weight"},
                    ],
                    "outputs": [
                        {"index": 0, "shape": [4], "dtype": "float32", "placement": "R"},
                        {"index": 1, "shape": [4], "dtype": "float32", "placement": "R"},
                        {"index": 2, "shape": [4], "dtype": "float32", "placement": "R"},
                    ],
                },
                "dist.training": {
                    "updated": {"w": "w_new", "w.m": "m_new"}, "states": {"w": ["w.m"]},
                },
            }
        )  # fmt: skip
        y = R.multiply(x, w)
        m_new = R.add(m, x)
        w_new = R.subtract(w, m_new)
        return (y, w_new, m_new)


@I.ir_module
class After:
    I.module_attrs({"mesh_axes": [["dp"]]})
    I.module_global_infos({"mesh": [R.device_mesh((2,), I.Range(0, 2))]})

    @R.function
    def main(
        x: R.Tensor((4,), "float32"), w: R.Tensor((4,), "float32"), m: R.Tensor((4,), "float32")
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
                        {"index": 2, "name": "w.m", "shape": [4], "dtype": "float32",
                         "placement": "R", "role": "weight"},
                    ],
                    "outputs": [
                        {"index": 0, "shape": [4], "dtype": "float32", "placement": "R"},
                        {"index": 1, "shape": [4], "dtype": "float32", "placement": "R"},
                        {"index": 2, "shape": [4], "dtype": "float32", "placement": "R"},
                    ],
                },
                "dist.training": {
                    "updated": {"w": "w_new", "w.m": "m_new"}, "states": {"w": ["w.m"]},
                    "host": {"w": ["w.m"]},
                },
            }
        )  # fmt: skip
        y = R.multiply(x, w)
        fetched = R.call_dps_packed("tvm_distir.host.fetch", (m,), out_ty=R.Tensor((4,), "float32"))
        m_new = R.add(fetched, x)
        stored = R.call_pure_packed(
            "tvm_distir.host.store", m_new, ty_args=(R.Tensor((4,), "float32"),)
        )
        w_new = R.subtract(w, m_new)
        return (y, w_new, stored)
