# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Compile and run StableHLO with XLA:CPU, as a script of an interpreter with JAX.

It reads questions, each the path of a file of JSON, and answers each by a line of JSON. It ends
when its controller is gone, whatever it does then. Neither this package nor TVM is imported, so
that JAX may be in another environment. ``XLA_FLAGS``, with the number of devices of the host, is
set in the environment before JAX is imported.
"""

from __future__ import annotations

import json
import math
import os
import queue
import re
import sys
import threading
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    import jax

_KINDS = ("all-reduce", "all-gather", "reduce-scatter", "all-to-all", "collective-permute")
_COLLECTIVE = re.compile(rf" = (\(.*?\)|\S+) ({'|'.join(_KINDS)})(-start)?\(")
_ARRAY = re.compile(r"\b([a-z]+)(\d*)[a-z0-9]*\[([\d,]*)\]")
_GROUPS = re.compile(r"replica_groups=(?:\[\d+,(\d+)\]|\{\{([\d,]*)\})")


class Xla:
    """XLA:CPU by the parts of JAX that compile modules of MLIR."""

    def __init__(self) -> None:
        import jax

        self._jax = jax
        self.version = str(jax.__version__)

    def enable_wide_types(self) -> None:
        """Let arrays have 64-bit types in this process."""
        self._jax.config.update("jax_enable_x64", True)

    def devices(self, count: int) -> list[jax.Device]:
        """Return the first devices."""
        return list(self._jax.devices()[:count])

    def compiled(self, text: str, devices: list[jax.Device], replicas: bool) -> Any:
        """Return a program for devices, as replicas or as partitions of a program."""
        from jax._src import compiler, xla_bridge
        from jax._src.interpreters import mlir
        from jaxlib._jax import DeviceList
        from jaxlib.mlir import ir

        module = ir.Module.parse(text, mlir.make_ir_context())
        module.operation.verify()
        backend = xla_bridge.get_backend()
        shape = (len(devices), 1) if replicas else (1, len(devices))
        options = compiler.get_compile_options(
            num_replicas=shape[0],
            num_partitions=shape[1],
            device_assignment=np.array([device.id for device in devices]).reshape(shape),
            backend=backend,
        )
        build = options.executable_build_options
        build.use_spmd_partitioning = not replicas
        build.use_shardy_partitioner = not replicas
        return backend.compile_and_load(module, DeviceList(tuple(devices)), options, [])

    def run_replicas(
        self, program: Any, columns: dict[int, list[np.ndarray]], devices: list[jax.Device]
    ) -> dict[int, list[np.ndarray]]:
        """Run on the arrays of the devices of this process, by position; returns their results."""
        from jax.sharding import Mesh, NamedSharding, PartitionSpec

        replicated = NamedSharding(Mesh(np.array(devices), ("d",)), PartitionSpec())
        args = []
        for index in range(len(next(iter(columns.values()), []))):
            parts = [
                self._jax.device_put(np.ascontiguousarray(column[index]), devices[position])
                for position, column in columns.items()
            ]
            shape = parts[0].shape
            args.append(self._jax.make_array_from_single_device_arrays(shape, replicated, parts))
        results = self._parts(program, args)
        return {
            position: [np.asarray(result[i]) for result in results]
            for i, position in enumerate(columns)
        }

    def run_unsharded(self, program: Any, arrays: list[np.ndarray], count: int) -> list[np.ndarray]:
        """Run on full arrays, and return full arrays; the program states their shardings."""
        from jax._src.lib import xla_client
        from jax._src.sharding_impls import GSPMDSharding

        devices = tuple(self._jax.devices()[:count])

        def lies(proto: object) -> jax.sharding.Sharding:
            return GSPMDSharding(devices, xla_client.HloSharding.from_proto(proto))

        shardings = program.get_parameter_shardings() or []
        args = [self._jax.device_put(a, lies(s)) for a, s in zip(arrays, shardings, strict=True)]
        result = []
        for parts, proto in zip(self._parts(program, args), program.get_output_shardings()):
            sharding = lies(proto)
            shape = _whole_shape(parts[0].shape, proto)
            array = self._jax.make_array_from_single_device_arrays(shape, sharding, parts)
            result.append(np.asarray(array))
        return result

    @staticmethod
    def _parts(program: Any, args: list[jax.Array]) -> list[list[jax.Array]]:
        return list(program.execute_sharded(args).disassemble_into_single_device_arrays())


def _whole_shape(shape: tuple[int, ...], proto: object) -> tuple[int, ...]:
    """Return the shape of the array whose shard is of a shape."""
    from jax._src.lib import xla_client

    sharding = xla_client.HloSharding.from_proto(proto)
    if sharding.is_replicated():
        return shape
    return tuple(n * k for n, k in zip(shape, sharding.tile_assignment_dimensions()))


def collectives(text: str, devices: int) -> list[tuple[str, int, int]]:
    """Return each collective of a compiled program.

    Kind, bytes of a device's result, ranks of a group.

    Parameters
    ----------
    text : str
        HLO.
    devices : int
        The number of devices that run it: a collective that names no groups is of all of them.
    """
    result = []
    for line in text.splitlines():
        match = _COLLECTIVE.search(line)
        if match is None:
            continue
        kind = match.group(2)
        sizes = [_bytes(*array) for array in _ARRAY.findall(match.group(1))]
        if match.group(3) and kind in ("all-gather", "collective-permute"):
            sizes = sizes[1:2]  # what it was given, what it gives
        groups = _GROUPS.search(line)
        ranks = devices
        if groups is not None:
            ranks = int(groups.group(1) or 1 + groups.group(2).count(","))
        result.append((kind, sum(sizes), ranks))
    return result


def _bytes(kind: str, bits: str, shape: str) -> int:
    count = math.prod(int(dim) for dim in filter(None, shape.split(",")))
    return count * max(int(bits or 8) // 8, 1)


def _read(path: str, kinds: list[str]) -> list[np.ndarray]:
    import ml_dtypes

    with np.load(path) as archive:
        arrays = [archive[str(i)] for i in range(len(kinds))]
    return [
        array.view(getattr(ml_dtypes, kind)) if hasattr(ml_dtypes, kind) else array
        for array, kind in zip(arrays, kinds, strict=True)
    ]


def _answer(xla: Xla, question: dict[str, Any]) -> dict[str, object]:
    with open(question["text"], encoding="utf-8") as file:
        text = file.read()
    count, replicas = int(question["devices"]), bool(question["replicas"])
    devices = xla.devices(count)
    program = xla.compiled(text, devices, replicas)
    arrays = _read(question["inputs"], question["kinds"])
    if replicas:
        width = len(arrays) // count
        columns = {i: arrays[i * width : (i + 1) * width] for i in range(count)}
        rows = xla.run_replicas(program, columns, devices)
        results = [array for i in range(count) for array in rows[i]]
    else:
        results = xla.run_unsharded(program, arrays, count)
    kinds = [str(array.dtype) for array in results]
    plain: list[Any] = [
        array if kind in np.sctypeDict else array.view(f"u{array.dtype.itemsize}")
        for array, kind in zip(results, kinds, strict=True)
    ]
    np.savez(question["outputs"], **{str(i): array for i, array in enumerate(plain)})
    text = program.hlo_modules()[0].to_string()
    return {"kinds": kinds, "collectives": collectives(text, count)}


def _listen(questions: queue.Queue[str]) -> None:
    """Read questions, and end the process with its controller."""
    for line in sys.stdin:
        questions.put(line.rstrip("\n"))
    os._exit(0)


def main() -> None:
    """Answer questions."""
    try:
        xla = Xla()
        xla.enable_wide_types()
        greeting = {"version": xla.version}
    except ImportError as error:
        print(json.dumps({"missing": str(error)}), flush=True)
        return
    print(json.dumps(greeting), flush=True)
    questions: queue.Queue[str] = queue.Queue()
    threading.Thread(target=_listen, args=(questions,), daemon=True).start()
    while True:
        path = questions.get()
        try:
            with open(path, encoding="utf-8") as file:
                answer = _answer(xla, json.load(file))
        except Exception as error:  # whatever XLA says goes back to who asked
            answer = {"error": f"{type(error).__name__}: {error}"}
        print(json.dumps(answer), flush=True)


if __name__ == "__main__":
    main()
