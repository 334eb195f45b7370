# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Orders of mesh axes that JAX states, through StableHLO in and out, compared with JAX."""

from __future__ import annotations

import os
import re
from typing import Any

import numpy as np
import pytest
import tvm

import tvm_distir as td
from tvm_distir.core.ir import parse_placement, shard_slices

os.environ.setdefault("XLA_FLAGS", "--xla_force_host_platform_device_count=8")
jax = pytest.importorskip("jax", reason="the extra jax is not installed")

SHAPE = (24, 6)


def update(w: Any, m: Any) -> Any:
    n = m + w * 2
    return w - n, n


@pytest.fixture(scope="module")
def shardings() -> list[Any]:
    if len(jax.devices()) < 8:
        pytest.skip("JAX was started with fewer devices")
    mesh = jax.sharding.Mesh(np.array(jax.devices()[:8]).reshape(2, 4), ("dp", "tp"))
    specs = [("tp", None), (("tp", "dp"), None)]
    return [jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec(*spec)) for spec in specs]


@pytest.fixture(scope="module")
def imported(shardings: list[Any]) -> Any:
    tensor = jax.ShapeDtypeStruct(SHAPE, "float32")
    step = jax.jit(update, in_shardings=shardings, out_shardings=tuple(shardings))
    return td.from_stablehlo(jax.export.export(step)(tensor, tensor).mlir_module())


def slices_of(
    port: Any, sizes: tuple[int, ...], devices: list[int], shape: tuple[int, ...] = SHAPE
) -> dict[int, Any]:
    """What each device holds, by ``dist.io``."""
    if "mesh" in port:
        sizes, devices = (tuple(int(n) for n in port["mesh"][k]) for k in ("shape", "devices"))
    labels = parse_placement(str(port["placement"]))
    return {
        device: shard_slices(shape, labels, sizes, np.unravel_index(number, sizes))
        for number, device in enumerate(devices)
    }


@pytest.mark.parametrize("rounds", [1, 2], ids=["imported", "exported_and_imported_again"])
def test_devices_hold_what_jax_gives_them(imported: Any, shardings: Any, rounds: int) -> None:
    local = td.distribute(imported)
    assert sorted(re.findall(r"R\.dist\.(\w+)", local.script())) == ["all_gather", "local_slice"]
    if rounds == 2:
        local = td.from_stablehlo(td.to_stablehlo(local))
    for side in ("inputs", "outputs"):
        for port, sharding in zip(local["main"].attrs["dist.io"][side], shardings, strict=True):
            ours = slices_of(port, (2, 4), list(range(8)))
            for device, cuts in sharding.devices_indices_map(SHAPE).items():
                theirs = [cut.indices(size)[:2] for cut, size in zip(cuts, SHAPE, strict=True)]
                assert ours[device.id] == theirs
    rng = np.random.default_rng(0)
    arrays = [rng.standard_normal(SHAPE).astype("float32") for _ in range(2)]
    for ours, theirs in zip(td.run(local, arrays), update(*arrays), strict=True):
        np.testing.assert_array_equal(ours, theirs)


def constrained_functions(shardings: Any) -> dict[str, Any]:
    """Functions of a value that ``tp`` shards, with constraints in other orders than the mesh's."""
    along_tp, tp_major = shardings
    dp_major = jax.sharding.NamedSharding(
        tp_major.mesh, jax.sharding.PartitionSpec(("dp", "tp"), None)
    )
    constraint, tanh = jax.lax.with_sharding_constraint, jax.numpy.tanh

    @jax.jit
    def layer(x: Any) -> Any:
        for scale in range(4):
            x = tanh(x) * 2 + scale
        return constraint(x, tp_major) * 3

    def both(x: Any) -> Any:
        y = constraint(x * 2, tp_major)
        return constraint(y + 1, dp_major) * y

    return {
        "sliced": lambda x: constraint(x * 2, tp_major) + 1,
        "the more expensive order": lambda x: constraint(x * 2, dp_major) + 1,
        "of an argument": lambda x: constraint(x, tp_major) + 1,
        "gathered": lambda x: constraint(tanh(constraint(x, tp_major)), along_tp),
        "inside of a function": lambda x: layer(x) + x,
        "two orders": both,
    }


@pytest.mark.parametrize("partitioner", ["shardy", "gspmd"])
@pytest.mark.parametrize(
    ("name", "collectives"),
    [
        ("sliced", ["local_slice"]),
        ("the more expensive order", ["exchange"]),
        ("of an argument", ["local_slice"]),
        ("gathered", ["local_slice", "all_gather"]),
        ("inside of a function", None),
        ("two orders", None),
    ],
)
def test_constraints_inside_of_functions_have_their_order(
    shardings: Any, name: str, collectives: list[str] | None, partitioner: str
) -> None:
    tensor, function = (
        jax.ShapeDtypeStruct(SHAPE, "float32"),
        constrained_functions(shardings)[name],
    )
    before = jax.config.jax_use_shardy_partitioner
    jax.config.update("jax_use_shardy_partitioner", partitioner == "shardy")
    try:
        step = jax.jit(function, in_shardings=shardings[0])
        text = jax.export.export(step)(tensor).mlir_module()
    finally:
        jax.config.update("jax_use_shardy_partitioner", before)
    local = td.distribute(td.from_stablehlo(text))
    if collectives is not None:
        assert re.findall(r"R\.dist\.(\w+)", local.script()) == collectives
    x = np.random.default_rng(0).standard_normal(SHAPE).astype("float32")
    expected = np.asarray(jax.jit(function, in_shardings=shardings[0])(x))
    # JAX runs the program on its eight devices, unless values move from one order to the other.
    for engine in ("virtual", "xla") if name != "two orders" else ("virtual",):
        (result,) = td.run(local, [x], engine=engine)
        np.testing.assert_allclose(result, expected, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(("axis", "order"), [("dp", ("tp", "dp")), ("tp", ("dp", "tp"))])
def test_devices_hold_a_constrained_value_as_jax_gives_it(
    shardings: Any, axis: str, order: tuple[str, ...]
) -> None:
    """The only result is the constrained value; the other order would send less."""
    source, target = [
        jax.sharding.NamedSharding(shardings[0].mesh, jax.sharding.PartitionSpec(axes, None))
        for axes in (axis, order)
    ]
    function = jax.jit(
        lambda x: jax.lax.with_sharding_constraint(x * 2, target), in_shardings=source
    )
    tensor = jax.ShapeDtypeStruct(SHAPE, "float32")
    assert function(np.zeros(SHAPE, "float32")).sharding.is_equivalent_to(target, 2)
    local = td.distribute(td.from_stablehlo(jax.export.export(function)(tensor).mlir_module()))
    (port,) = local["main"].attrs["dist.io"]["outputs"]
    ours = slices_of(port, (2, 4), list(range(8)))
    for device, cuts in target.devices_indices_map(SHAPE).items():
        theirs = [cut.indices(size)[:2] for cut, size in zip(cuts, SHAPE, strict=True)]
        assert ours[device.id] == theirs


@pytest.mark.parametrize("name", ["sliced", "inside of a function", "two orders"])
def test_orders_of_annotations_are_written_again(shardings: Any, name: str) -> None:
    function = constrained_functions(shardings)[name]
    step = jax.jit(function, in_shardings=shardings[0], out_shardings=shardings[1])
    tensor = jax.ShapeDtypeStruct(SHAPE, "float32")
    before = jax.export.export(step)(tensor).mlir_module()
    mod = td.from_stablehlo(before)
    text = td.to_stablehlo(mod)
    parsed(text)
    for order in ('{"tp", "dp"}', '{"dp", "tp"}'):
        assert (order in before) == (order in text)
    for key, axes in mod["main"].attrs["dist.axis_orders"].items():
        if not key.startswith("%"):
            assert [*td.from_stablehlo(text)["main"].attrs["dist.axis_orders"][key]] == [*axes]


def random_shardings(count: int) -> list[Any]:
    """Shardings of two dims by some axes of a mesh of three in any order."""
    rng = np.random.default_rng(51)
    names = ("pod", "dp", "tp")
    mesh = jax.sharding.Mesh(np.array(jax.devices()[:8]).reshape(2, 2, 2), names)
    result = []
    for _ in range(count):
        axes = [names[a] for a in rng.permutation(3)[: rng.integers(0, 4)]]
        cut = int(rng.integers(0, len(axes) + 1))
        spec = jax.sharding.PartitionSpec(tuple(axes[:cut]) or None, tuple(axes[cut:]) or None)
        result.append(jax.sharding.NamedSharding(mesh, spec))
    return result


@pytest.mark.parametrize("partitioner", ["shardy", "gspmd"])
def test_random_orders_pass_through_the_text_of_jax(partitioner: str) -> None:
    if len(jax.devices()) < 8:
        pytest.skip("JAX was started with fewer devices")
    shape, shardings = (24, 16), random_shardings(50)
    tensors = [jax.ShapeDtypeStruct(shape, "float32") for _ in shardings]
    before = jax.config.jax_use_shardy_partitioner
    jax.config.update("jax_use_shardy_partitioner", partitioner == "shardy")
    try:
        step = jax.jit(lambda *xs: sum(x.sum() for x in xs), in_shardings=shardings)
        text = jax.export.export(step)(*tensors).mlir_module()
    finally:
        jax.config.update("jax_use_shardy_partitioner", before)
    assert ("sdy.sharding" in text) == (partitioner == "shardy")
    local = td.distribute(td.from_stablehlo(text))
    again = td.from_stablehlo(td.to_stablehlo(local))
    for mod in (local, again):
        mesh = mod.global_infos["mesh"][0]
        for port, sharding in zip(mod["main"].attrs["dist.io"]["inputs"], shardings, strict=True):
            ours = slices_of(port, tuple(int(n) for n in mesh.shape), list(range(8)), shape)
            for device, cuts in sharding.devices_indices_map(shape).items():
                theirs = [cut.indices(size)[:2] for cut, size in zip(cuts, shape, strict=True)]
                assert ours[device.id] == theirs, sharding.spec


SUB_AXES = ['"x":(1)2', '"x":(2)4', '"x":(2)4, "y"', '"x":(4)2, "x":(1)2', '"x"', '"y", "x":(1)4']


def text_of(cuts: list[str]) -> str:
    """A sum of arguments with these axes along dim 0, of a mesh of ``x=8`` and ``y=2``."""
    params = ", ".join(
        f"%x{i}: tensor<16x4xf32> {{sdy.sharding = #sdy.sharding<@m, [{{{cut}}}, {{}}]>}}"
        for i, cut in enumerate(cuts)
    )
    sums = "\n".join(
        f"    %s{i} = stablehlo.add %{f's{i - 1}' if i > 1 else 'x0'}, %x{i} : tensor<16x4xf32>"
        for i in range(1, len(cuts))
    )
    return (
        f'module {{\n  sdy.mesh @m = <["x"=8, "y"=2]>\n  func.func public @main({params}) -> '
        f"tensor<16x4xf32> {{\n{sums}\n    return %s{len(cuts) - 1} : tensor<16x4xf32>\n  }}\n}}\n"
    )


def parsed(text: str) -> Any:
    """Parse a text by JAX's own parser, which verifies it."""
    from jax._src.interpreters import mlir
    from jax._src.lib.mlir import ir

    context = mlir.make_ir_context()
    with context:
        module = ir.Module.parse(text)
        assert module.operation.verify()
    return module


@pytest.mark.parametrize("seed", range(4))
def test_sub_axes_are_joined_again(seed: int) -> None:
    """What is read as axes of a finer mesh is written as it was, and is read as the same module."""
    rng = np.random.default_rng(seed)
    parts = [
        ['"x":(1)2', '"x":(2)2', '"x":(4)2', '"y"'],
        ['"x":(1)4', '"x":(4)2', '"y"'],
        ['"y"', '"x"'],
    ]
    cuts = [*(SUB_AXES if seed == 0 else [])]
    for _ in range(3):
        axes = parts[seed - 1]
        cuts.append(", ".join(axes[i] for i in rng.permutation(len(axes))[: rng.integers(1, 5)]))
    mod = td.from_stablehlo(text_of(cuts))
    text = td.to_stablehlo(mod)
    parsed(text)
    for port, (before, after) in enumerate(
        zip(cuts, re.findall(r"#sdy.sharding<@m, \[\{(.*?)\}, ", text))
    ):
        assert joined(before) == after, port
    assert '<["x"=8, "y"=2]>' in text
    again = td.from_stablehlo(text)
    tvm.ir.assert_structural_equal(again, mod)


def joined(cut: str) -> str:
    """Axes whose parts that follow each other are a single part, and all parts the axis."""
    text, before = cut, ""
    while text != before:
        before, text = (
            text,
            re.sub(
                r'"x":\((\d)\)(\d), "x":\((\d)\)(\d)',
                lambda m: (
                    f'"x":({m[1]}){int(m[2]) * int(m[4])}'
                    if int(m[1]) * int(m[2]) == int(m[3])
                    else m[0]
                ),
                text,
            ),
        )
    return text.replace('"x":(1)8', '"x"')


def test_sub_axes_are_axes_of_a_finer_mesh() -> None:
    """Parts of an axis, joined, and out of order."""
    cuts = SUB_AXES
    text = text_of(cuts)
    local = td.distribute(td.from_stablehlo(text))
    mesh = local.global_infos["mesh"][0]
    assert [int(n) for n in mesh.shape] == [2, 2, 2, 2]
    device = np.arange(16)
    x, y = device // 2, device % 2
    parts = {"x": (x, 8), "y": (y, 2)}
    for low, size in ((1, 2), (2, 4), (4, 2), (1, 4)):
        # "x":(low)size: the digits of x behind the first ``low`` parts.
        parts[f"x:({low}){size}"] = x // (8 // (low * size)) % size, size
    for port, cut in zip(local["main"].attrs["dist.io"]["inputs"], cuts, strict=True):
        tile, count = np.zeros(16, int), 1
        for word in cut.replace('"', "").split(", "):
            position, size = parts[word]
            tile, count = tile * size + position, count * size
        ours = slices_of(port, (2, 2, 2, 2), list(range(16)), (16, 4))
        rows = 16 // count
        assert [ours[d][0] for d in range(16)] == [(t * rows, (t + 1) * rows) for t in tile]
    arrays = [np.full((16, 4), i + 1, "float32") for i in range(len(cuts))]
    (total,) = td.run(local, arrays, engine="virtual")
    np.testing.assert_array_equal(total, sum(arrays))
