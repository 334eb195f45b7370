# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Modules that TVM's own DistIR passes compile to something else without a word.

What the stock passes leave is executed here, rank by rank: its kernels compiled by TVM, its
``R.ccl`` calls by what TVM documents of them. Every case shows the stock result to be wrong and
ours to be right.
"""

from __future__ import annotations

import numpy as np
import pytest
import tvm
from tvm import ir, relax, tirx
from tvm.relax.distributed import transform as stock

import tvm_distir as td
from tvm_distir.core.ir.mesh import mesh_shape
from tvm_distir.core.ir.placement import labels_of, shard_slices

BEYOND = 1000.0
"""What lies in memory behind every shard."""
LOCAL_VIEW = ("PropagateSharding", "LowerGlobalViewToLocalView", "LegalizeRedistribute")


def module(body, shape="(2,)", devices=2):
    return tvm.script.from_source(f"""
@I.ir_module
class Module:
    I.module_attrs({{"device_num": {devices}}})
    I.module_global_infos({{"mesh": [R.device_mesh({shape}, I.Range(0, {devices}))]}})
    @R.function
{body}""")


def by_stock(mod, legalize=True, lower=True):
    """The stock pipeline, none of whose passes complains."""
    if legalize:
        mod = relax.transform.LegalizeOps()(mod)
    for name in (*LOCAL_VIEW, *(["LowerDistIR"] if lower else [])):
        mod = getattr(stock, name)()(mod)
    return mod


def as_shard(x):
    """A tensor of TVM over the first bytes of a larger buffer that holds BEYOND."""
    room = np.full(8 * x.size + 64, BEYOND, x.dtype) if x.dtype.kind == "f" else np.zeros(
        8 * x.size + 64, x.dtype
    )  # fmt: skip
    start = (-room.ctypes.data % 64) // room.itemsize
    room[start : start + x.size] = x.ravel()
    return tvm.runtime.from_dlpack(room[start : start + x.size].reshape(x.shape))


class Ranks:
    """Runs the main function that the stock passes left on ``count`` ranks."""

    def __init__(self, mod, count):
        self.mod, self.count = mod, count

    def kernel(self, prim, operands, out):
        assert isinstance(prim, tirx.PrimFunc)
        executable = tvm.compile(ir.IRModule({"main": prim.with_attr("global_symbol", "main")}))
        result = as_shard(np.zeros([int(n) for n in out.shape], str(out.dtype)))
        executable["main"](*(as_shard(x) for x in operands), result)
        return result.numpy()

    def call(self, call, env):
        name = str(call.op.name)
        if name in ("relax.call_tir", "relax.dist.call_tir_local_view"):
            prim = self.mod[call.args[0]]
            out = prim.params[-1].ty
            rows = zip(*(env[a] for a in call.args[1].fields))
            return [self.kernel(prim, row, out) for row in rows]
        x = env[call.args[0]]
        if name == "relax.ccl.scatter_from_worker0":
            return np.split(x[0], int(call.attrs.num_workers), int(call.attrs.axis))
        if name == "relax.ccl.broadcast_from_worker0":
            return [x[0]] * self.count
        if name == "relax.ccl.allreduce":
            assert not bool(call.attrs.in_group)
            return [sum(x)] * self.count
        assert name == "relax.matmul"
        return [a @ b for a, b in zip(x, env[call.args[1]])]

    def run(self, inputs):
        """Results per rank; inputs whole, on every rank's program as its parameters ask."""
        main, env = self.mod["main"], {}
        for param, x in zip(main.params, inputs):
            env[param] = [x] * self.count
            if isinstance(param.ty, relax.distributed.DTensorType):
                sizes, labels = mesh_shape(param.ty.device_mesh), labels_of(param.ty.placement)
                boxes = [shard_slices(x.shape, labels, sizes, c) for c in np.ndindex(*sizes)]
                env[param] = [x[tuple(slice(a, b) for a, b in box)] for box in boxes]
        for block in main.body.blocks:
            for binding in block.bindings:
                env[binding.var] = self.call(binding.value, env)
        return env[main.body.body]

    def calls(self):
        return [
            str(b.value.op.name) for block in self.mod["main"].body.blocks for b in block.bindings
        ]


def by_ours(mod, axes, rules, inputs):
    """Our result on the virtual engine, inputs placed as the annotations of the case say."""
    rows = [{"param": name, "placement": text} for name, text in rules.items()]
    plan = td.Plan.from_dict({"schema_version": 1, "mesh": axes, "rules": rows})
    dist = td.distribute(mod, plan)
    entry = dist["main"]
    placed = {str(i["name"]): str(i["placement"]) for i in entry.attrs["dist.io"]["inputs"]}
    assert {name: placed[name] for name in rules} == rules
    (out,) = td.run(dist, inputs, engine="virtual")
    return out


def without_annotations(mod):
    """The same function before anybody annotated it."""
    text = mod.script()
    for line in text.splitlines():
        if "annotate_sharding" in line:
            new, old = line.split(":")[0].strip(), line.split("annotate_sharding(")[1].split(",")[0]
            text = text.replace(line, f"{' ' * 12}{new} = {old}")
    lines = [x for x in text.splitlines() if "module_attrs" not in x and "global_infos" not in x]
    return tvm.script.from_source("\n".join(lines))


@pytest.fixture
def rng():
    return np.random.default_rng(7)


TAKE = """
    def main(w: R.Tensor((8, 4), "float32"), i: R.Tensor((3,), "int32")):
        with R.dataflow():
            a = R.dist.annotate_sharding(w, device_mesh="mesh[0]", placement="S[0]")
            y = R.take(a, i, axis=0)
            R.output(y)
        return y
"""


def test_take_from_a_table_cut_along_its_rows(rng):
    """Each rank looks whole indices up in its half, and nobody adds up."""
    mod = module(TAKE)
    w = rng.integers(1, 9, (8, 4)).astype("float32")
    ranks = Ranks(by_stock(mod), 2)
    assert "relax.ccl.allreduce" not in ranks.calls()
    low = np.array([0, 3, 1], "int32")
    first, second = ranks.run([w, low])
    np.testing.assert_array_equal(first, w[low])
    np.testing.assert_array_equal(second, w[4:][low])  # the replicas of one value differ
    high = np.array([7, 4, 6], "int32")
    for rank in ranks.run([w, high]):
        assert not np.array_equal(rank, w[high])
        assert (rank == BEYOND).any()  # read behind the end of the half table
    for i in (low, high):
        got = by_ours(without_annotations(mod), {"tp": 2}, {"w": "S[0]"}, [w, i])
        np.testing.assert_array_equal(got, w[i])


CONV = """
    def main(x: R.Tensor((1, 2, 8, 8), "float32"), k: R.Tensor((3, 2, 3, 3), "float32")):
        with R.dataflow():
            a = R.dist.annotate_sharding(x, device_mesh="mesh[0]", placement="S[2]")
            y = R.nn.conv2d(a, k, padding=1)
            R.output(y)
        return y
"""


def convolved(x, k):
    padded = np.pad(x, [(0, 0), (0, 0), (1, 1), (1, 1)])
    windows = np.lib.stride_tricks.sliding_window_view(padded, (3, 3), (2, 3))
    return np.einsum("nchwij,ocij->nohw", windows, k).astype("float32")


def test_convolution_of_an_image_cut_along_its_rows(rng):
    """Each rank computes the whole image from its half: no rows are exchanged."""
    mod = module(CONV)
    x = rng.integers(-2, 3, (1, 2, 8, 8)).astype("float32")
    k = rng.integers(1, 3, (3, 2, 3, 3)).astype("float32")
    ranks = Ranks(by_stock(mod), 2)
    assert not {"relax.ccl.allreduce", "relax.ccl.allgather"} & set(ranks.calls())
    want = convolved(x, k)
    for rank in ranks.run([x, k]):
        assert rank.shape == want.shape
        assert not np.array_equal(rank, want)
        assert rank.max() >= BEYOND  # read behind the end of the half image
    got = by_ours(without_annotations(mod), {"sp": 2}, {"x": "S[2]"}, [x, k])
    np.testing.assert_array_equal(got, want)


MATMUL = """
    def main(x: R.Tensor((4, 8), "float32"), w: R.Tensor((8, 6), "float32")):
        with R.dataflow():
            a = R.dist.annotate_sharding(x, device_mesh="mesh[0]", placement="{x}")
            b = R.dist.annotate_sharding(w, device_mesh="mesh[0]", placement="{w}")
            y = R.matmul(a, b)
            R.output(y)
        return y
"""


def operands(rng):
    return [rng.integers(-2, 3, s).astype("float32") for s in ((4, 8), (8, 6))]


def test_contraction_without_legalized_ops(rng):
    """The sum over the ranks is lost; with LegalizeOps before, the stock passes have it."""
    mod = module(MATMUL.format(x="S[1]", w="S[0]"))
    x, w = operands(rng)
    ranks = Ranks(by_stock(mod, legalize=False), 2)
    assert "relax.ccl.allreduce" not in ranks.calls()
    for number, rank in enumerate(ranks.run([x, w])):
        half = slice(4 * number, 4 * number + 4)
        np.testing.assert_array_equal(rank, x[:, half] @ w[half])
        assert not np.array_equal(rank, x @ w)
    for rank in Ranks(by_stock(mod), 2).run([x, w]):
        np.testing.assert_array_equal(rank, x @ w)
    got = by_ours(without_annotations(mod), {"tp": 2}, {"x": "S[1]", "w": "S[0]"}, [x, w])
    np.testing.assert_array_equal(got, x @ w)


def test_all_reduce_on_a_mesh_of_two_axes(rng):
    """The reduction spans all devices: it adds up rows of different batches."""
    mod = module(MATMUL.format(x="S[0], S[1]", w="R, S[0]"), "(2, 2)", 4)
    x, w = operands(rng)
    left = by_stock(mod, lower=False)
    result = left["main"].ret_ty
    assert mesh_shape(result.device_mesh) == (2, 2)
    ranks = Ranks(left, 4)
    assert ranks.calls().count("relax.ccl.allreduce") == 1
    for number, rank in enumerate(ranks.run([x, w])):
        rows = slice(2 * (number // 2), 2 * (number // 2) + 2)
        np.testing.assert_array_equal(rank, x[:2] @ w + x[2:] @ w)
        assert not np.array_equal(rank, (x @ w)[rows])
    rules = {"x": "S[0], S[1]", "w": "R, S[0]"}
    got = by_ours(without_annotations(mod), {"dp": 2, "tp": 2}, rules, [x, w])
    np.testing.assert_array_equal(got, x @ w)
