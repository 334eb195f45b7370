# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Manual computations of Shardy: jax.shard_map's and ours are local programs."""

from __future__ import annotations

import re
from dataclasses import replace

import numpy as np
import pytest
import tvm_ffi
from tvm import relax

import tvm_distir as td
from tvm_distir.core.analysis.levels import check_level
from tvm_distir.execution.runtime.engines.reference import Reference
from tvm_distir.execution.verification.random_inputs import draw_inputs
from tvm_distir.support.errors.tree import ModelError

SUM = """({
      ^bb0(%l: tensor<f32>, %r: tensor<f32>):
        %s = stablehlo.add %l, %r : tensor<f32>
        stablehlo.return %s : tensor<f32>
      })"""
CHANNEL = "channel_handle = #stablehlo.channel_handle<handle = 1, type = 1>"
ALONG_X = f"{CHANNEL}, replica_groups = dense<[[0, 2], [1, 3]]> : tensor<2x2xi64>"
ALONG_Y = f"{CHANNEL}, replica_groups = dense<[[0, 1], [2, 3]]> : tensor<2x2xi64>"
RING = f"{CHANNEL}, source_target_pairs = dense<[[0, 2], [2, 0], [1, 3], [3, 1]]> : tensor<4x2xi64>"
# jax.shard_map over a mesh of (x=2, y=2): psum, all_gather, psum_scatter, ppermute, all_to_all,
# axis_index, as JAX 0.10 writes it
TEXT = f"""
module @jit_f attributes {{mhlo.num_partitions = 4 : i32, mhlo.num_replicas = 1 : i32}} {{
  sdy.mesh @mesh = <["x"=2, "y"=2]>
  func.func public @main(%arg0: tensor<8x6xf32> loc("a"), %arg1: tensor<6x8xf32> loc("p['w']"),
      %arg2: tensor<4xf32> loc("b")) -> (tensor<32x4xf32>, tensor<i32>) {{
    %0:2 = sdy.manual_computation(%arg0, %arg1, %arg2) in_shardings=[<@mesh, [{{"x"}}, {{"y"}}]>,
        <@mesh, [{{"y"}}, {{}}]>, <@mesh, [{{}}]>] out_shardings=[<@mesh, [{{"x", "y"}}, {{}}]>,
        <@mesh, []>] manual_axes={{"x", "y"}} (%arg3: tensor<4x3xf32>, %arg4: tensor<3x8xf32>,
        %arg5: tensor<4xf32>) {{
      %1 = stablehlo.dot_general %arg3, %arg4, contracting_dims = [1] x [0]
          : (tensor<4x3xf32>, tensor<3x8xf32>) -> tensor<4x8xf32>
      %2 = "stablehlo.all_reduce"(%1) <{{{ALONG_Y}, use_global_device_ids}}> {SUM}
          : (tensor<4x8xf32>) -> tensor<4x8xf32>
      %3 = "stablehlo.all_gather"(%2) <{{all_gather_dim = 0 : i64, {ALONG_X},
          use_global_device_ids}}> : (tensor<4x8xf32>) -> tensor<8x8xf32>
      %4 = "stablehlo.reduce_scatter"(%3) <{{{ALONG_X}, scatter_dimension = 0 : i64,
          use_global_device_ids}}> {SUM} : (tensor<8x8xf32>) -> tensor<4x8xf32>
      %5 = "stablehlo.collective_permute"(%4) <{{{RING}}}> : (tensor<4x8xf32>) -> tensor<4x8xf32>
      %6 = "stablehlo.all_to_all"(%5) <{{{ALONG_Y}, concat_dimension = 0 : i64,
          split_count = 2 : i64, split_dimension = 1 : i64}}>
          : (tensor<4x8xf32>) -> tensor<8x4xf32>
      %7 = stablehlo.broadcast_in_dim %arg5, dims = [1] : (tensor<4xf32>) -> tensor<8x4xf32>
      %8 = stablehlo.add %6, %7 : tensor<8x4xf32>
      %9 = stablehlo.partition_id : tensor<ui32>
      %10 = stablehlo.convert %9 : (tensor<ui32>) -> tensor<i32>
      %11 = "stablehlo.all_reduce"(%10) <{{{CHANNEL}, replica_groups = dense<[[0, 1, 2, 3]]>
          : tensor<1x4xi64>, use_global_device_ids}}> {SUM.replace("f32", "i32")}
          : (tensor<i32>) -> tensor<i32>
      sdy.return %8, %11 : tensor<8x4xf32>, tensor<i32>
    }} : (tensor<8x6xf32>, tensor<6x8xf32>, tensor<4xf32>) -> (tensor<32x4xf32>, tensor<i32>)
    return %0#0, %0#1 : tensor<32x4xf32>, tensor<i32>
  }}
}}
"""


def drawn():
    rng = np.random.default_rng(0)
    shapes = (8, 6), (6, 8), (4,)
    return [rng.integers(-2, 3, shape).astype("float32") for shape in shapes]


def wanted(a, w, b):
    """The program by hand: rows are summed twice and swapped along x, columns cut along y."""
    halves = np.split(2 * (a @ w), 2)
    blocks = [
        np.concatenate([halves[1 - x][:, 4 * y : 4 * y + 4]] * 2) for x in (0, 1) for y in (0, 1)
    ]
    return np.concatenate(blocks) + b, np.int32(0 + 1 + 2 + 3)


def test_shard_map_is_a_local_program():
    mod = td.from_stablehlo(TEXT)
    check_level(mod, "local")
    main = mod["main"]
    names = [str(n) for n in main.attrs["dist.param_names"]]
    assert names == ["a", "b", "p.w"] and int(main.attrs["num_input"]) == 2
    assert [str(p["placement"]) for p in main.attrs["dist.io"]["inputs"]] == [
        "S[0], S[1]", "R, R", "R, S[0]",
    ]  # fmt: skip
    a, w, b = drawn()
    result = td.run(mod, [a, b, w])
    for array, other in zip(result, wanted(a, w, b), strict=True):
        np.testing.assert_array_equal(array, other)  # small integers: sums are exact


def test_the_generic_form_says_the_same():
    head = r"sdy\.manual_computation\((.*?)\) in_shardings=(\[.*?>\]) out_shardings=(\[.*?>\])\s+"
    head += r"manual_axes=\{(.*?)\} \((.*?)\) \{"
    generic = (
        r'"sdy.manual_computation"(\1) <{in_shardings = #sdy.sharding_per_value<\2>, '
        r"out_shardings = #sdy.sharding_per_value<\3>, manual_axes = #sdy<manual_axes{\4}>}> "
        r"({ ^bb0(\5):"
    )
    text, count = re.subn(head, generic, TEXT, flags=re.DOTALL)
    text = text.replace("    } : (tensor<8x6xf32>", "    }) : (tensor<8x6xf32>")
    assert count == 1
    pair = td.from_stablehlo(text), td.from_stablehlo(TEXT)
    assert tvm_ffi.structural_equal(*pair)


def test_ours_are_read_on_devices_in_another_order():
    mod = td.zoo.build("mlp", {"batch": "8", "layers": "2", "hidden": "16"})
    plan = td.planning.make_plan(mod, "data_parallel+tensor_parallel", {"dp": 2, "tp": 2})
    mesh = replace(plan.meshes[0], device_ids=(0, 2, 1, 3))
    local = td.distribute(mod, replace(plan, meshes=(mesh,)))
    text = td.to_stablehlo(local, "manual")
    assert "device_ids=[0, 2, 1, 3]" in text and "dense<[[0, 2], [1, 3]]>" in text
    back = td.from_stablehlo(text, inline=0)
    assert tvm_ffi.structural_equal(back["main"].attrs, local["main"].attrs)
    expected = relax.transform.CanonicalizeBindings()(local)
    for gv, function in expected.functions.items():
        pair = back[gv.name_hint], function
        assert tvm_ffi.structural_equal(*pair, map_free_vars=True)


def test_only_devices_that_run_the_program_are_counted():
    """Of two meshes one is used; its devices are numbered from 0."""
    mod = td.zoo.build("mlp", {"batch": "6", "layers": "2", "hidden": "8"})
    created = td.planning.make_plan(mod, "data_parallel+tensor_parallel", {"dp": 2, "tp": 1})
    used = replace(created.meshes[0], name="used", device_ids=(1, 2))
    unused = replace(created.meshes[0], name="unused", axes={"x": 4})
    rules = tuple(replace(rule, mesh="used") for rule in created.rules)
    local = td.distribute(mod, replace(created, meshes=(unused, used), rules=rules))
    inputs = draw_inputs(mod, 0)
    for form, message in (("replicas", "num_replicas = 2"), ("manual", "num_partitions = 2")):
        text = td.to_stablehlo(local, form)
        assert message in text and "@unused" not in text
    result = td.run(td.from_stablehlo(text, inline=0), inputs, engine="virtual")
    for array, expected in zip(result, Reference(mod).run(inputs), strict=True):
        np.testing.assert_allclose(array, expected, 1e-5, 1e-6)


SENT = """
module {
  sdy.mesh @mesh = <["d"=4]>
  func.func public @main(%arg0: tensor<8xf32>) -> tensor<8xf32> {
    %0 = sdy.manual_computation(%arg0) in_shardings=[<@mesh, [{"d"}]>]
        out_shardings=[<@mesh, [{"d"}]>] manual_axes={"d"} (%arg1: tensor<2xf32>) {
      %1 = "stablehlo.collective_permute"(%arg1) <{PAIRS}> : (tensor<2xf32>) -> tensor<2xf32>
      sdy.return %1 : tensor<2xf32>
    } : (tensor<8xf32>) -> tensor<8xf32>
    return %0 : tensor<8xf32>
  }
}
"""


@pytest.mark.parametrize(
    "pairs",
    [
        [(0, 1), (1, 2), (2, 3)],
        [(1, 0), (2, 1), (3, 2)],
        [(0, 1), (1, 2), (2, 3), (3, 0)],
        [(1, 0), (2, 1), (3, 2), (0, 3)],
        [(0, 2), (1, 3), (2, 0), (3, 1)],
        [(3, 0)],
    ],
)
def test_pairs_are_shifts(pairs):
    rows = [list(pair) for pair in pairs]
    message = f"source_target_pairs = dense<{rows}> : tensor<{len(rows)}x2xi64>"
    mod = td.from_stablehlo(SENT.replace("PAIRS", f"{CHANNEL}, {message}"))
    x = np.arange(1, 9, dtype="float32").reshape(4, 2)
    expected = np.zeros_like(x)
    for source, target in pairs:
        expected[target] = x[source]
    (result,) = td.run(mod, [x.reshape(-1)])
    np.testing.assert_array_equal(result, expected.reshape(-1))


RING_PAIRS, CROSS = "[[0, 2], [2, 0], [1, 3], [3, 1]]", "[[0, 3], [3, 0], [1, 2], [2, 1]]"
REFUSED = {
    "not along axes of the mesh": ("dense<[[0, 1], [2, 3]]>", "dense<[[0, 3], [1, 2]]>"),
    "not a shift along an axis": (RING_PAIRS, CROSS),
    "between replicas": ("handle<handle = 1", "handle<handle = 0"),
    "whose mesh the module does not have": ("<@mesh, []>", "<@other, []>"),
    "parts of a single dim": ("split_dimension = 1", "split_dimension = 0"),
    "a shard [4, 3] of an array": ('[{"x"}, {"y"}]>', "[{?}, {?}]>"),
    "a shard": ('[{"y"}, {}]>', '[{}, {"y"}]>'),
    "row-major order": ('"y"=2]>', '"y"=2], device_ids=[0, 2, 1, 3]>'),
}  # fmt: skip


@pytest.mark.parametrize("what", REFUSED)
def test_what_is_no_local_program_is_refused(what):
    first, other = REFUSED[what]
    assert first in TEXT
    text = TEXT.replace(first, other)
    if what == "row-major order":  # the groups of these devices
        text = text.replace("[[0, 1], [2, 3]]", "[[9]]").replace(
            "[[0, 2], [1, 3]]", "[[0, 1], [2, 3]]"
        )
        text = text.replace("[[9]]", "[[0, 2], [1, 3]]")
        text = text.replace(RING_PAIRS, "[[0, 1], [1, 0], [2, 3], [3, 2]]")
    with pytest.raises(ModelError, match=f"DIST0372.*{re.escape(what)}"):
        td.from_stablehlo(text)


def test_collectives_outside_are_refused():
    mod = td.zoo.build("mlp", {"batch": "8", "layers": "2", "hidden": "16"})
    plan = td.planning.make_plan(mod, "data_parallel+tensor_parallel", {"dp": 2, "tp": 2})
    text = td.to_stablehlo(td.distribute(mod, plan), "replicas")
    assert "stablehlo.all_reduce" in text or "stablehlo.reduce_scatter" in text
    with pytest.raises(ModelError, match=r"DIST0372.*outside of a manual computation"):
        td.from_stablehlo(text.replace("tvm_distir.port", "someone.port"))
