# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""PropagateSharding on modules: placements, partial sums, functions, meshes, errors."""

from __future__ import annotations

import os
import subprocess
import sys

import numpy as np
import pytest
import tvm
import tvm_ffi
from tvm import relax
from tvm.relax import op as R_

import tvm_distir as td
from tests.core.propagation.modules_made import F32, build, distribute, moves, placement, tensor
from tvm_distir.core.analysis.levels import check_level
from tvm_distir.core.ir.placement import labels_of
from tvm_distir.core.passes.propagate.passes import PropagateSharding
from tvm_distir.models import zoo
from tvm_distir.support.errors.tree import PropagationError

SMALL = {"layers": 2, "hidden": 256, "heads": 16, "vocab": 512, "seq": 64, "batch": 16}


def megatron(extra=(), x="S[0], R"):
    """Megatron rules for the zoo's GPT over (dp, tp)."""
    rules = [
        {"param": "*", "placement": "R, R", "stationary": True},
        {"param": "input_ids", "placement": x},
        {"param": "wte.weight", "placement": "R, S[0]", "stationary": True},
    ]
    for name in ("q_proj", "k_proj", "v_proj", "up_proj"):
        for kind in ("weight", "bias"):
            rules.append({"param": f"*.{name}.{kind}", "placement": "R, S[0]", "stationary": True})
    for name in ("o_proj", "down_proj"):
        rules.append({"param": f"*.{name}.weight", "placement": "R, S[1]", "stationary": True})
    return [*rules, *extra]


def test_megatron_mlp_needs_no_redistribute():
    """Column then row sharding: one implied reduction, nothing else."""
    x, a, b = relax.Var("x", tensor(64, 32)), relax.Var("a", tensor(32, 128)), None
    b = relax.Var("b", tensor(128, 32))
    mod = build(
        [x, a, b],
        lambda e, _: e(R_.matmul(e(R_.nn.relu(e(R_.matmul(x, a)))), b)),
    )
    out = distribute(
        mod,
        [
            {"param": "a", "placement": "S[1]", "stationary": True},
            {"param": "b", "placement": "S[0]", "stationary": True},
        ],
        tp=4,
    )
    assert moves(out) == []
    assert placement(out, "x") == (-1,)
    assert labels_of(out["main"].ret_ty.placement) == (-1,)


@pytest.mark.parametrize("nested", [0, 1])
def test_gpt_with_megatron_placements_moves_nothing_but_its_reductions(nested):
    """Forward: the contractions of o_proj and down_proj are the only reductions of a layer."""
    out = distribute(zoo.gpt(nested=nested, **SMALL), megatron(), dp=2, tp=4)
    assert moves(out) == []
    functions = sorted(str(g.name_hint) for g in out.functions)
    assert functions == (["layer", "main"] if nested else ["main"])


@pytest.mark.parametrize("nested", [0, 1])
def test_sequence_parallelism_from_one_annotation(nested):
    """One annotation on the residual stream: 4 all-gathers and 4 reduce-scatters in 2 layers."""
    rule = {"value": "add", "function": "main", "placement": "S[0], S[1]"}
    mod = zoo.gpt(nested=nested, **SMALL)
    out = distribute(mod, megatron([rule]), dp=2, tp=4)
    result = moves(out)
    gathers = [m for m in result if m == ((0, 1), (0, -1))]
    scatters = [m for m in result if m == ((0, -1), (0, 1))]
    # per layer two of each (once in the text of a nested layer); the embedding is scattered
    # too, and the head's input gathered
    expected = 3 if nested else 5
    assert (len(gathers), len(scatters)) == (expected, expected)
    assert [m for m in result if m not in (gathers[0], scatters[0])] == [((-1, -1), (-1, 0))]
    names = sorted(str(g.name_hint) for g in out.functions)
    assert names == (["layer", "main"] if nested else ["main"])


def test_partial_sums_cross_functions():
    """Three calls of a linear function are summed before the one reduction."""
    px, pw = relax.Var("x", tensor(64, 64)), relax.Var("w", tensor(64, 64))
    xs = [relax.Var(f"x{i}", tensor(64, 64)) for i in range(3)]
    ws = [relax.Var(f"w{i}", tensor(64, 64)) for i in range(3)]

    def body(e, gvs):
        a, b, c = (e(tvm.ir.Call(gvs["lin"], [x, w])) for x, w in zip(xs, ws))
        return e(R_.nn.relu(e(R_.add(e(R_.add(a, b)), c))))

    mod = build([*xs, *ws], body, {"lin": ([px, pw], lambda e, _: e(R_.matmul(px, pw)))})
    rules = [{"param": f"x{i}", "placement": "S[1]"} for i in range(3)]
    rules += [{"param": f"w{i}", "placement": "S[0]"} for i in range(3)]
    out = distribute(mod, rules, tp=4)
    assert out["lin"].attrs["dist.partial"]["results"]["0"][0] == 0
    assert moves(out) == [((-1,), (-1,))]


def test_one_gather_serves_all_consumers():
    """A value wanted whole by three calls is gathered once."""
    x = relax.Var("x", tensor(64, 64))
    mod = build(
        [x],
        lambda e, _: relax.Tuple(
            [e(R_.sort(x, axis=0)), e(R_.sort(x, axis=0, descending=True)), e(R_.exp(x))]
        ),
    )
    out = distribute(mod, [{"param": "x", "placement": "S[0]"}], tp=4)
    assert moves(out) == [((0,), (-1,))]


def test_specialisations_are_shared_and_named():
    """Two placements of one function give two functions, however often each is called."""
    p, w = relax.Var("t", tensor(64, 64)), relax.Var("w", tensor(64, 64))
    xs = [relax.Var(n, tensor(64, 64)) for n in ("a", "b", "c", "d")]
    ww = relax.Var("w", tensor(64, 64))

    def body(e, gvs):
        return relax.Tuple([e(tvm.ir.Call(gvs["f"], [x, ww])) for x in xs])

    mod = build([*xs, ww], body, {"f": ([p, w], lambda e, _: e(R_.nn.relu(e(R_.matmul(p, w)))))})
    rules = [
        {"param": "a", "placement": "S[0], R"},
        {"param": "b", "placement": "R, S[0]"},
        {"param": "c", "placement": "S[0], R"},
        {"param": "d", "placement": "R, S[0]"},
        {"param": "w", "placement": "R, R"},
    ]
    out = distribute(mod, rules, x=2, y=2)
    assert sorted(str(g.name_hint) for g in out.functions) == ["f", "f_1", "main"]
    assert placement(out, "t", "f") == (0, -1)
    assert placement(out, "t", "f_1") == (-1, 0)


def test_uneven_dims_are_sharded_where_an_annotation_says_so():
    """A vocabulary of 101 over 2 devices stays sharded through the head."""
    mod = zoo.gpt(**{**SMALL, "vocab": 101})
    out = distribute(mod, megatron(), dp=2, tp=2)
    assert moves(out) == []
    assert labels_of(out["main"].ret_ty.placement) == (0, 2)


def test_symbolic_batch():
    """A symbolic dim is sharded; sizes stay symbolic."""
    n = tvm.tirx.Var("n", "int64")
    x, w = relax.Var("x", relax.TensorType((n, 32), F32)), relax.Var("w", tensor(32, 16))
    mod = build([x, w], lambda e, _: e(R_.nn.relu(e(R_.matmul(x, w)))))
    out = distribute(mod, [{"param": "x", "placement": "S[0]"}], dp=2)
    assert labels_of(out["main"].ret_ty.placement) == (0,)


def test_nested_tuples_and_constants():
    """Tuples are followed through, constants are sliced where a shard is wanted."""
    x, y = relax.Var("x", tensor(8, 4)), relax.Var("y", tensor(8, 4))

    table = relax.const(np.arange(32, dtype=F32).reshape(8, 4))

    def body(e, _):
        pair = e(relax.Tuple([x, relax.Tuple([y, x])]))
        inner = e(relax.TupleGetItem(pair, 1))
        return e(
            R_.add(
                e(R_.concat([x, e(relax.TupleGetItem(inner, 0))], axis=1)),
                e(R_.concat([table, table], axis=1)),
            )
        )

    out = distribute(build([x, y], body), [{"param": "x", "placement": "S[0]"}], dp=2)
    assert labels_of(out["main"].ret_ty.placement) == (0,)


class TestErrors:
    """What cannot be distributed is refused by name."""

    def test_no_mesh(self):
        """A module without meshes."""
        with pytest.raises(PropagationError, match="DIST0409"):
            PropagateSharding()(zoo.gpt(**SMALL))

    def test_recursion(self):
        """A function that calls itself, through another."""
        text = """
@I.ir_module
class Module:
    I.module_global_infos({"mesh": [R.device_mesh((2,), I.Range(0, 2))]})
    @R.function(private=True)
    def f(x: R.Tensor((4, 4), "float32")) -> R.Tensor((4, 4), "float32"):
        cls = Module
        y: R.Tensor((4, 4), "float32") = cls.g(x)
        return y
    @R.function(private=True)
    def g(x: R.Tensor((4, 4), "float32")) -> R.Tensor((4, 4), "float32"):
        cls = Module
        y: R.Tensor((4, 4), "float32") = cls.f(x)
        return y
    @R.function
    def main(x: R.Tensor((4, 4), "float32")) -> R.Tensor((4, 4), "float32"):
        cls = Module
        y: R.Tensor((4, 4), "float32") = cls.f(x)
        return y
"""
        with pytest.raises(PropagationError, match=r"DIST0408.*f -> g -> f"):
            PropagateSharding()(tvm.script.from_source(text))

    def test_a_stationary_placement_no_op_can_use(self):
        """A sort cannot take its axis sharded, and the weight may not move."""
        x = relax.Var("x", tensor(8, 8))
        mod = build([x], lambda e, _: e(R_.sort(x, axis=0)))
        rules = [{"param": "x", "placement": "S[0]", "stationary": True}]
        with pytest.raises(PropagationError, match=r"DIST0411.*x is sharded on dim 0.*sort"):
            distribute(mod, rules, tp=2)


SCRIPT = """
import hashlib
from tvm_distir.models import zoo
from tvm_distir.core.plan import Plan
from tvm_distir.core.propagation import Costs
from tvm_distir.transforms import (
    AnnotateSharding,
    LegalizeRedistribute,
    LowerDistIR,
    PropagateSharding,
)
rules = [{"param": "*", "placement": "?, ?"}, {"param": "input_ids", "placement": "S[0], R"},
         {"param": "*_proj.weight", "placement": "R, S[0]"}]
plan = Plan.from_dict({"schema_version": 1, "mesh": {"dp": 2, "tp": 2}, "rules": rules})
mod = zoo.gpt(layers=2, hidden=64, heads=4, vocab=96, seq=16, batch=8)
text = PropagateSharding()(AnnotateSharding(plan)(mod)).script(show_meta=True)
print(hashlib.sha256(text.encode()).hexdigest())
"""


def test_fresh_processes_agree():
    """Hash seeds do not show in the text."""
    texts = set()
    for seed in ("0", "1", "4242"):
        env = {**os.environ, "PYTHONHASHSEED": seed}
        done = subprocess.run(
            [sys.executable, "-c", SCRIPT], env=env, capture_output=True, text=True, check=True
        )
        texts.add(done.stdout)
    assert len(texts) == 1
    assert td.device_mesh({"x": 1}) is not None


def test_values_cross_block_boundaries():
    """An annotation ends a dataflow block; later blocks use and convert its value."""
    text = """
@I.ir_module
class Module:
    I.module_global_infos({"mesh": [R.device_mesh((2,), I.Range(0, 2))]})
    @R.function
    def main(x: R.Tensor((4, 4), "float32"), w: R.Tensor((4, 4), "float32")):
        with R.dataflow():
            a = R.matmul(x, w)
            same = a
            y = R.dist.annotate_sharding(same, device_mesh="mesh[0]", placement="S[0]")
            R.output(y, same)
        n = R.nn.relu(y)
        with R.dataflow():
            b = R.cumsum(y, axis=0)
            c = R.cumsum(same, axis=0)
            out = (b, c, n)
            R.output(out)
        return out
"""
    mod = tvm.script.from_source(text)
    out = PropagateSharding()(mod)
    relax.analysis.well_formed(out)
    check_level(out, 3)
    assert tvm_ffi.structural_equal(tvm.script.from_source(out.script(show_meta=True)), out)
    assert moves(out).count(((0,), (-1,))) == 1
