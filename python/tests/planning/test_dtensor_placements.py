# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Placements of plans as DTensor writes them, joined from the shards of our program by torch."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import tvm_distir as td
from tvm_distir.core.ir import parse_placement, shard_slices

torch = pytest.importorskip("torch", reason="the extra torch is not installed")
threaded = pytest.importorskip(
    "torch.testing._internal.distributed.multi_threaded_pg",
    reason="torch has no process groups of threads",
)


def shards_of(port: Any, of_module: Any, array: np.ndarray) -> list[np.ndarray]:
    """The shard of each device, by ``dist.io``."""
    sizes, devices = of_module
    if "mesh" in port:
        sizes, devices = (tuple(int(n) for n in port["mesh"][k]) for k in ("shape", "devices"))
    labels = parse_placement(str(port["placement"]))
    shards: dict[int, np.ndarray] = {}
    for number, device in enumerate(devices):
        cuts = shard_slices(array.shape, labels, sizes, np.unravel_index(number, sizes))
        shards[device] = array[tuple(slice(*cut) for cut in cuts)]
    return [shards[device] for device in range(len(shards))]


def joined_by_torch(
    code: str, shards: dict[str, list[np.ndarray]], sizes: tuple[int, ...], axes: tuple[str, ...]
) -> list[dict[str, np.ndarray]]:
    """What each of the ranks, which are threads, gets of ``full_tensor``."""
    from torch.distributed.tensor import DTensor

    results: list[dict[str, np.ndarray]] = []

    def rank(number: int) -> None:
        names: dict[str, Any] = {}
        exec(code, names)
        mesh = torch.distributed.init_device_mesh("cpu", sizes, mesh_dim_names=axes)
        arrays = {}
        for name, of_ranks in shards.items():
            local = torch.tensor(of_ranks[number])
            placed = DTensor.from_local(local, mesh, names["placements"](name, mesh))
            arrays[name] = placed.full_tensor().numpy()
        results.append(arrays)

    run_in_threads(int(np.prod(sizes)), rank)
    return results


def run_in_threads(count: int, rank: Callable[[int], None]) -> None:
    """Run ranks as threads, whose collectives meet in this process."""
    isolate = torch._C._distributed_c10d._set_thread_isolation_mode
    isolate(True)
    threaded._install_threaded_pg()
    store, faults = torch.distributed.HashStore(), []

    def work(number: int) -> None:
        torch.distributed.init_process_group("threaded", rank=number, world_size=count, store=store)
        try:
            rank(number)
        except BaseException as error:  # the others wait for it
            faults.append(error)
            threaded.ProcessLocalGroup.exception_handle(error)
        finally:
            torch.distributed.destroy_process_group()

    threads = [threading.Thread(target=work, args=(number,)) for number in range(count)]
    try:
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(20)
    finally:
        threaded._uninstall_threaded_pg()
        isolate(False)
    assert faults == []


@pytest.mark.parametrize(
    ("strategy", "mesh", "strided"),
    [
        ("data_parallel+megatron", {"dp": 2, "tp": 2}, False),
        ("fsdp+megatron", {"dp": 2, "tp": 4}, True),
    ],
)
def test_torch_joins_what_devices_hold(strategy: str, mesh: dict[str, int], strided: bool) -> None:
    config = {"layers": 1, "hidden": 32, "heads": 4, "vocab": 64, "seq": 8, "positions": 8}
    mod = td.zoo.build("gpt", {**config, "batch": 8})
    step = td.train_step(mod, optimizer="sgd")
    plan = td.planning.make_plan(step, strategy, mesh)
    local = td.distribute(step, plan)["main"]
    sizes, devices = tuple(mesh.values()), list(range(int(np.prod([*mesh.values()]))))
    rng = np.random.default_rng(0)
    arrays, shards = {}, {}
    ports = local.attrs["dist.io"]["inputs"]
    for port, name in zip(ports, local.attrs["dist.param_names"], strict=True):
        arrays[str(name)] = rng.standard_normal([int(n) for n in port["shape"]])
        shards[str(name)] = shards_of(port, (sizes, devices), arrays[str(name)])
    code = td.export_plan(step, plan, "dtensor")
    names: dict[str, Any] = {}
    exec(code, names)
    assert (("tp", "dp") in [axes for spec in names["SPECS"].values() for axes in spec]) == strided
    results = joined_by_torch(code, shards, sizes, tuple(mesh))
    assert len(results) == len(devices)
    for result in results:
        for name, array in arrays.items():
            np.testing.assert_array_equal(result[name], array)


@pytest.mark.parametrize("order", [*itertools.permutations(("pod", "dp", "tp")), ("tp", "pod")])
def test_orders_of_three_axes_are_strided_shards(order: tuple[str, ...]) -> None:
    mesh = {"pod": 2, "dp": 3, "tp": 2}
    mod = td.zoo.build("mlp", {"batch": 16, "layers": 1, "hidden": 16})
    code = td.export_plan(mod, td.planning.make_plan(mod, "fsdp", {"dp": 2}), "dtensor")
    array = np.arange(48).reshape(24, 2)
    coordinates = np.indices([*mesh.values()]).reshape(3, -1)
    tile = np.zeros(12, int)
    for axis in order:
        tile = tile * mesh[axis] + coordinates[[*mesh].index(axis)]
    parts = np.split(array, int(np.prod([mesh[axis] for axis in order])))
    code += f"SPECS = {{'w': ({order!r}, None)}}\n"
    shards = {"w": [parts[number] for number in tile]}
    for result in joined_by_torch(code, shards, tuple(mesh.values()), tuple(mesh)):
        np.testing.assert_array_equal(result["w"], array)
