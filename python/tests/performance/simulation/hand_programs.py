# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Programs written by hand, and a system with round numbers, for the tests of the simulator.

The system: 1 TFLOP/s and 1 TB/s reached in full, no launch floor, so ``us(n)`` FLOPs take n
microseconds. A node has 4 devices; a collective takes 10 us, 1 us per step, and its wire bytes
at 1 GB/s (1000 bytes per us). Between nodes: 1 adapter per device of the same speed, 100 us more.
"""

from __future__ import annotations

import math
from typing import Any

from tvm_distir.hardware.systems.system import System
from tvm_distir.performance.program.mesh import Mesh
from tvm_distir.performance.program.parts import Entry, Function, Op, Value
from tvm_distir.performance.program.program import Program

MICRO = 1e-6


def us(time_us):
    """FLOPs that take a time."""
    return round(time_us * 1e6)


def round_system(wires: float = 1, latency: float = 1, **device: Any) -> System:
    """The system; its networks' bandwidths and latencies times a factor."""
    return System.from_dict(
        {
            "schema_version": 1,
            "name": "round",
            "device": {
                "name": "d",
                "memory_capacity_GiB": 1,
                "memory_bandwidth_GBps": 1000,
                "launch_floor_us": 0,
                "matmul_TFLOPs": {"default": 1},
                "vector_TFLOPs": {"default": 1},
                "efficiency": {
                    kind: {"flops": 1, "bandwidth": 1}
                    for kind in ("matmul", "conv", "attention", "memory", "gather")
                },
                **device,
            },
            "intra_node": {
                "name": "n",
                "devices_per_node": 4,
                "bandwidth_GBps": wires,
                "latency_us": latency,
                "setup_us": 10 * latency,
            },
            "inter_node": {
                "name": "n",
                "nics_per_node": 4,
                "bandwidth_per_nic_GBps": wires,
                "latency_us": latency,
                "setup_us": 100 * latency,
            },
        }
    )


SYSTEM = round_system()


class Build:
    """Builds a function; values are named, and their size is given in bytes."""

    def __init__(self, mesh=0):
        self.mesh, self.values, self.ops, self.params, self.index = mesh, [], [], [], {}

    def new(self, name, size, role="activation"):
        self.index[name] = len(self.values)
        self.values.append(Value(name, (size,), "int8", size, role))
        return self.index[name]

    def param(self, name, size=0, role="input"):
        self.params.append(self.new(name, size, role))
        return self

    def constant(self, name, size):
        self.new(name, size, "constant")
        return self

    def of(self, names):
        return tuple(self.index[n] for n in names.split())

    def compute(self, out, ins, time_us, size=0, op="relax.op", **more):
        inputs = self.of(ins)
        outputs = tuple(self.new(n, size) for n in out.split())
        self.ops.append(
            Op(out, "compute", op, inputs, outputs, us(time_us), kernel_class="matmul", **more)
        )
        return self

    def view(self, out, ins):
        inputs = self.of(ins)
        size = self.values[inputs[0]].bytes
        self.ops.append(Op(out, "view", "relax.reshape", inputs, (self.new(out, size),)))
        return self

    def collective(self, out, ins, kind, size, group_size, axes=(0,)):
        inputs = self.of(ins)
        op = Op(
            out,
            "collective",
            f"relax.dist.{kind}",
            inputs,
            (self.new(out, size),),
            collective=kind,
            mesh=self.mesh,
            mesh_axes=tuple(axes),
            group_size=group_size,
            payload_bytes=size,
        )
        self.ops.append(op)
        return self

    def transfer(self, out, ins, kind, size, peer, tag=0):
        inputs = self.of(ins)
        op = Op(
            out,
            "transfer",
            f"relax.dist.{kind}",
            inputs,
            (self.new(out, size),),
            collective=kind,
            mesh=self.mesh,
            peer_mesh=peer,
            tag=tag,
            payload_bytes=size,
            wire_bytes=size,
        )
        self.ops.append(op)
        return self

    def call(self, out, ins, callee, size=0):
        inputs = self.of(ins)
        outputs = tuple(self.new(n, size) for n in out.split())
        self.ops.append(Op(out, "call", callee, inputs, outputs, callee=callee))
        return self

    def done(self, results):
        return Function(
            self.mesh, tuple(self.params), tuple(self.ops), self.of(results), tuple(self.values)
        )


def program(*meshes, **functions):
    """Meshes as ``(axes, shape)``; entries are ``main``, or ``main_mesh<i>``."""
    created, first = [], 0
    for number, (axes, shape) in enumerate(meshes):
        count = math.prod(shape)
        ids = tuple(range(first, first + count))
        created.append(Mesh(f"mesh{number}", tuple(axes), tuple(shape), ids))
        first += count
    names = ["main"] if "main" in functions else [f"main_mesh{i}" for i in range(len(created))]
    entries = tuple(Entry(i, name) for i, name in enumerate(names))
    result = Program(tuple(created), functions, entries)
    return Program.from_json(result.to_json())


def random_program(rng):
    """Two meshes of 2 x 2 devices with calls, collectives and transfers, all in a random order."""

    def body(build, names, count, callable_=True):
        for number in range(count):
            name = f"v{len(build.values)}"
            ins = " ".join(rng.choice(names, int(rng.integers(1, 3))))
            choice = rng.random()
            if choice < 0.5:
                build.compute(name, ins, int(rng.integers(0, 30)), int(rng.integers(0, 5000)))
            elif choice < 0.7:
                axes, size = [((0,), 2), ((1,), 2), ((0, 1), 4)][int(rng.integers(3))]
                kind = str(rng.choice(["all_reduce", "all_gather", "reduce_scatter", "all_to_all"]))
                build.collective(name, ins.split()[0], kind, int(rng.integers(1, 9000)), size, axes)
            elif choice < 0.8 or not callable_:
                build.view(name, ins.split()[0])
            else:
                build.call(name, ins.split()[0], f"f{build.mesh}", int(rng.integers(0, 5000)))
            names.append(name)
        return build

    functions = {}
    mains = [Build(0), Build(1)]
    for mesh, main in enumerate(mains):
        inner = Build(mesh).param("p")
        names = ["p"]
        functions[f"f{mesh}"] = body(inner, names, 4, False).done(names[-1])
        main.param("x", 100)
        names = ["x"]
        body(main, names, 5)
        for k in range(2):
            size = 1000 * (k + 1)
            if mesh == 0:
                main.transfer(f"t{k}", str(rng.choice(names)), "send", size, 1, tag=k)
            else:
                main.transfer(f"t{k}", "", "recv", size, 0, tag=k)
            names.append(f"t{k}")
        body(main, names, 8)
        functions[f"main_mesh{mesh}"] = main.done(" ".join(names[-2:]))
    mesh = (("dp", "tp"), (2, 2))
    return program(mesh, mesh, **functions)
