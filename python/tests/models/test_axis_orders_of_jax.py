# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Orders of mesh axes that JAX states, through StableHLO in and out, compared with JAX."""

from __future__ import annotations

import os
import re
from typing import Any

import numpy as np
import pytest

import tvm_distir as td
from tvm_distir.core.ir import parse_placement, shard_slices
from tvm_distir.support import ModelError

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


def test_a_constraint_inside_of_a_function_in_another_order_is_refused(shardings: Any) -> None:
    def constrained(x: Any) -> Any:
        return jax.lax.with_sharding_constraint(x * 2, shardings[1]) + 1

    tensor = jax.ShapeDtypeStruct(SHAPE, "float32")
    text = jax.export.export(jax.jit(constrained, in_shardings=shardings[0]))(tensor).mlir_module()
    with pytest.raises(ModelError, match=r"DIST0372 .*out of the mesh's order"):
        td.from_stablehlo(text)


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


def test_sub_axes_are_axes_of_a_finer_mesh() -> None:
    """Texts of Shardy of ``x=8`` and ``y=2``: parts of an axis, joined, and out of order."""
    cuts = ['"x":(1)2', '"x":(2)4', '"x":(2)4, "y"', '"x":(4)2, "x":(1)2', '"x"', '"y", "x":(1)4']
    params = ", ".join(
        f"%x{i}: tensor<16x4xf32> {{sdy.sharding = #sdy.sharding<@m, [{{{cut}}}, {{}}]>}}"
        for i, cut in enumerate(cuts)
    )
    sums = "\n".join(
        f"    %s{i} = stablehlo.add %{f's{i - 1}' if i > 1 else 'x0'}, %x{i} : tensor<16x4xf32>"
        for i in range(1, len(cuts))
    )
    text = (
        f'module {{\n  sdy.mesh @m = <["x"=8, "y"=2]>\n  func.func public @main({params}) -> '
        f"tensor<16x4xf32> {{\n{sums}\n    return %s{len(cuts) - 1} : tensor<16x4xf32>\n  }}\n}}\n"
    )
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
