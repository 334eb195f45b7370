# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""The append to `k_cache`, in `layer`, is in place; that to `v_cache`, a result too, is not."""

from __future__ import annotations

from tvm.script import ir as I
from tvm.script import relax as R

PASS = "donate"


@I.ir_module
class Before:
    I.module_attrs({"mesh_axes": [["tp"]]})
    I.module_global_infos({"mesh": [R.device_mesh((2,), I.Range(0, 2))]})

    @R.function(private=True)
    def layer(
        cache: R.Tensor((1, 2, 4, 1, 3), "float32"),
        rows: R.Tensor((1, 1, 1, 3), "float32"),
        pages: R.Tensor((1, 2), "int32"),
        lengths: R.Tensor((1,), "int32"),
    ):
        appended = R.dist.kv_append(cache, rows, pages, lengths, page_size=4)
        return appended

    @R.function
    def main(
        k_cache: R.Tensor((1, 2, 4, 1, 3), "float32"),
        v_cache: R.Tensor((1, 2, 4, 1, 3), "float32"),
        rows: R.Tensor((1, 1, 1, 3), "float32"),
        pages: R.Tensor((1, 2), "int32"),
        lengths: R.Tensor((1,), "int32"),
    ):
        R.func_attr(
            {
                "dist.io": {
                    "inputs": [
                        {"index": 0, "name": "k_cache"},
                        {"index": 1, "name": "v_cache"},
                        {"index": 2, "name": "rows"},
                        {"index": 3, "name": "pages"},
                        {"index": 4, "name": "lengths"},
                    ],
                    "outputs": [{"index": 0}, {"index": 1}, {"index": 2}],
                }
            }
        )
        cls = Before
        k = cls.layer(k_cache, rows, pages, lengths)
        v = R.dist.kv_append(v_cache, rows, pages, lengths, page_size=4)
        return (k, v, v_cache)


@I.ir_module
class After:
    I.module_attrs({"mesh_axes": [["tp"]]})
    I.module_global_infos({"mesh": [R.device_mesh((2,), I.Range(0, 2))]})

    @R.function(private=True)
    def layer(
        cache: R.Tensor((1, 2, 4, 1, 3), "float32"),
        rows: R.Tensor((1, 1, 1, 3), "float32"),
        pages: R.Tensor((1, 2), "int32"),
        lengths: R.Tensor((1,), "int32"),
    ):
        R.func_attr({"dist.donated": [0]})
        appended = R.dist.kv_append(cache, rows, pages, lengths, in_place=True, page_size=4)
        return appended

    @R.function
    def main(
        k_cache: R.Tensor((1, 2, 4, 1, 3), "float32"),
        v_cache: R.Tensor((1, 2, 4, 1, 3), "float32"),
        rows: R.Tensor((1, 1, 1, 3), "float32"),
        pages: R.Tensor((1, 2), "int32"),
        lengths: R.Tensor((1,), "int32"),
    ):
        R.func_attr(
            {
                "dist.donated": [0, 1],
                "dist.io": {
                    "inputs": [
                        {"index": 0, "name": "k_cache"},
                        {"index": 1, "name": "v_cache"},
                        {"index": 2, "name": "rows"},
                        {"index": 3, "name": "pages"},
                        {"index": 4, "name": "lengths"},
                    ],
                    "outputs": [{"index": 0}, {"index": 1}, {"index": 2}],
                },
            }
        )
        cls = After
        k = cls.layer(k_cache, rows, pages, lengths)
        v = R.dist.kv_append(v_cache, rows, pages, lengths, page_size=4)
        return (k, v, v_cache)
