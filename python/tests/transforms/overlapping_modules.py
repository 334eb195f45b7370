# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Random programs at level 3 over meshes that share some of their devices, with their values.

Every value is an ``(N, N)`` float32 of small integers, so that all sums are exact.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import tvm

N = 6

MESHES = [
    (((4,), (0, 1, 2, 3)), ((2,), (0, 1))),
    (((2,), (1, 2)), ((4,), (3, 0, 2, 1))),
    (((2, 2), (0, 1, 2, 3)), ((2, 2), (2, 3, 4, 5))),
    (((3,), (0, 1, 2)), ((3,), (2, 3, 4)), ((2,), (4, 0))),
    (((4,), (0, 1, 2, 3)), ((2, 2), (3, 1, 0, 2)), ((2,), (2, 4)), ((1,), (5,))),
    (((2, 3), (0, 1, 2, 3, 4, 5)), ((2,), (5, 0)), ((1,), (3,)), ((2,), (6, 7))),
    (((2,), (0, 1)), ((2,), (2, 3)), ((4,), (1, 2, 3, 0)), ((1,), (1,))),
]
"""One inside the other, overlapping in chains and rings, of the same devices, and disjoint."""


@dataclass(frozen=True)
class Held:
    """A value of the program: its name, where it lies, and what it is."""

    name: str
    mesh: int
    labels: tuple[int, ...]
    array: np.ndarray


@dataclass
class Writer:
    """Writes a program step by step, and computes it in NumPy.

    Attributes
    ----------
    meshes : sequence of (shape, device ids)
    """

    meshes: tuple
    rng: np.random.Generator
    params: list[Held] = field(default_factory=list)
    lines: list[str] = field(default_factory=list)
    count: int = 0

    def ty(self, mesh, labels):
        text = ", ".join("R" if x < 0 else f"S[{x}]" for x in labels)
        return f'R.DTensor(({N}, {N}), "float32", "mesh[{mesh}]", "{text}")'

    def labels(self, mesh):
        return tuple(int(x) for x in self.rng.choice([-1, 0, 1], len(self.meshes[mesh][0])))

    def any_mesh(self):
        return int(self.rng.integers(len(self.meshes)))

    def bind(self, text, mesh, labels, array):
        self.count += 1
        name = f"v{self.count}"
        self.lines.append(f"{name}: {self.ty(mesh, labels)} = {text}")
        return Held(name, mesh, labels, array)

    def param(self):
        mesh = self.any_mesh()
        array = self.rng.integers(-2, 3, (N, N)).astype("float32")
        stored = Held(f"x{len(self.params)}", mesh, self.labels(mesh), array)
        self.params.append(stored)
        return stored

    def moved(self, x, mesh, labels):
        if (x.mesh, x.labels) == (mesh, labels):
            return x
        text = ", ".join("R" if label < 0 else f"S[{label}]" for label in labels)
        call = f'R.dist.redistribute({x.name}, "mesh[{mesh}]", "{text}")'
        return self.bind(call, mesh, labels, x.array)

    def negative(self, x):
        return self.bind(f"R.negative({x.name})", x.mesh, x.labels, -x.array)

    def clipped(self, x):
        array = np.clip(x.array, -2, 2)
        return self.bind(f"R.clip({x.name}, -2, 2)", x.mesh, x.labels, array)

    def added(self, x, y):
        y = self.moved(y, x.mesh, x.labels)
        text = f"R.add({x.name}, {y.name})"
        return self.clipped(self.bind(text, x.mesh, x.labels, x.array + y.array))

    def product(self, x, y):
        """Rows, columns or the sum over each mesh axis, drawn."""
        mesh = self.any_mesh()
        forms = [(0, -1, 0), (-1, 1, 1), (1, 0, -1), (-1, -1, -1)]
        factors = [forms[i] for i in self.rng.integers(0, 4, len(self.meshes[mesh][0]))]
        a, b, c = (tuple(labels) for labels in zip(*factors))
        x, y = self.moved(x, mesh, a), self.moved(y, mesh, b)
        text = f"R.matmul({x.name}, {y.name})"
        return self.clipped(self.bind(text, mesh, c, x.array @ y.array))

    def layer(self, x, y):
        """A private function, with a collective inside, called on a mesh of several devices."""
        mesh = self.any_mesh()
        labels = tuple([1] + [-1] * (len(self.meshes[mesh][0]) - 1))
        other = tuple([0] + [-1] * (len(self.meshes[mesh][0]) - 1))
        x, y = self.moved(x, mesh, labels), self.moved(y, mesh, other)
        out = tuple([-1] * len(labels))
        array = np.clip(x.array @ y.array, -2, 2)
        return self.bind(f"cls.layer{mesh}({x.name}, {y.name})", mesh, out, array)

    def layers(self):
        for mesh, (shape, _) in enumerate(self.meshes):
            rest = (-1,) * (len(shape) - 1)
            single, two, out = (self.ty(mesh, (x, *rest)) for x in (1, 0, -1))
            yield f"""
    @R.function(private=True)
    def layer{mesh}(x: {single}, w: {two}):
        with R.dataflow():
            z: {out} = R.matmul(x, w)
            y: {out} = R.clip(z, -2, 2)
            R.output(y)
        return y
"""

    def script(self, results):
        infos = ", ".join(
            f"R.device_mesh({shape}, {list(devices)})" for shape, devices in self.meshes
        )
        axes = [[f"a{i}" for i in range(len(shape))] for shape, _ in self.meshes]
        params = ", ".join(f"{p.name}: {self.ty(p.mesh, p.labels)}" for p in self.params)
        body = "\n            ".join(self.lines)
        names = ", ".join(r.name for r in results)
        return f"""
@I.ir_module
class Module:
    I.module_attrs({{"mesh_axes": {axes!r}}})
    I.module_global_infos({{"mesh": [{infos}]}})
{"".join(self.layers())}
    @R.function
    def main({params}):
        cls = Module
        with R.dataflow():
            {body}
            R.output({names})
        return ({names},)
"""


def program(seed, steps=14):
    """A random module at level 3, its inputs and the results it must give."""
    rng = np.random.default_rng(seed)
    writer = Writer(MESHES[seed % len(MESHES)], rng)
    stored = [writer.param() for _ in range(4)]
    for _ in range(steps):
        x, y = (stored[i] for i in rng.integers(0, len(stored), 2))
        kind = rng.choice(["negative", "add", "product", "layer", "move"])
        if kind == "negative":
            stored.append(writer.negative(x))
        elif kind == "add":
            stored.append(writer.added(x, y))
        elif kind == "product":
            stored.append(writer.product(x, y))
        elif kind == "layer":
            stored.append(writer.layer(x, y))
        else:
            mesh = writer.any_mesh()
            stored.append(writer.moved(x, mesh, writer.labels(mesh)))
    created = [h for h in stored if h.name.startswith("v")]
    results = list(
        {
            h.name: h
            for h in (created[-1], *(created[i] for i in rng.integers(0, len(created), 3)))
        }.values()
    )
    mod = tvm.script.from_source(writer.script(results))
    return mod, [p.array for p in writer.params], [r.array for r in results]
