# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Assigns a mesh to each value, and makes moves between meshes explicit.

An annotation puts its value on a mesh. An op runs on the mesh of its latest operand (meshes
are ordered as in the module: the stages of a pipeline), or, when no operand is bound to a mesh,
on the mesh of its readers. A free parameter is on the mesh of its first use. A private function
is placed once per tuple of meshes its arguments come from.
"""

from __future__ import annotations

from tvm_distir.support import PropagationError, Steps, lists_by_key, unrolled

from .extract import extract
from .graph import Graph, Node
from .types import ModuleTypes

Where = tuple[int, ...]
UNKNOWN = -1


class MeshAssignment:
    """Placed graphs of a module, callees first in :attr:`order`."""

    def __init__(self, facts: ModuleTypes, default: int = 0) -> None:
        self.facts, self.default = facts, default
        self.graphs: dict[str, Graph] = {}
        self.order: list[str] = []
        self._raw: dict[str, Graph] = {}
        self._keys: dict[tuple[str, Where, int], str] = {}
        self._placed: dict[object, str] = {}
        self._count: dict[str, int] = {}
        self._path: dict[str, None] = {}  # the functions that are being placed

    def unrolled_key(self, name: str) -> str:
        """Place a public function; return the graph's key. It raises as :meth:`placed` does."""
        return unrolled(self.placed(name))

    def placed(self, name: str, params: Where | None = None, want: int = UNKNOWN) -> Steps[str]:
        """Place a function whose arguments are on ``params``; return the graph's key.

        Parameters
        ----------
        name : str
            The function.
        params : tuple of int, optional
            Mesh per flat parameter, -1 where free; nothing for a public function.
        want : int
            Mesh its results are wanted on when nothing inside says where.

        Raises
        ------
        PropagationError
            DIST0408 for recursive calls.
        """
        if name in self._path:
            path = list(self._path)
            cycle = " -> ".join([*path[path.index(name) :], name])
            problem = f"recursive call {cycle}"
            remedy = "Recursive functions cannot be distributed: unroll the recursion."
            raise PropagationError("DIST0408", problem, location=f"{path[-1]}", remedy=remedy)
        if name not in self._raw:
            self._raw[name] = extract(self.facts, name)
        raw = self._raw[name]
        where = params if params is not None else (UNKNOWN,) * len(raw.params)
        key = (name, where, want)
        if key not in self._keys:
            self._path[name] = None
            if self.facts.only_mesh >= 0:
                graph = yield from self._on_one_mesh(raw)
            else:
                graph = yield from _Placing(self, raw, where, want).run()
            del self._path[name]
            self._keys[key] = self._intern(graph)
        return self._keys[key]

    def _on_one_mesh(self, raw: Graph) -> Steps[Graph]:
        """Return the graph of a module with a single mesh, with its callees' keys filled in."""
        keys: dict[str, str] = {}
        for k in raw.calls:
            node = raw.nodes[k]
            if node.callee not in keys:
                keys[node.callee] = yield self.placed(node.callee)
            raw.nodes[k] = node._replace(callee=keys[node.callee])
        return raw

    def _intern(self, graph: Graph) -> str:
        """Return the key of the placed graph; calls that end up on the same meshes share it."""
        content: object = graph.name
        if self.facts.only_mesh < 0:
            where = tuple([v.mesh for v in graph.values])
            content = (content, where, tuple([(n.kind, n.mesh, n.callee) for n in graph.nodes]))
        if content not in self._placed:
            number = self._count.get(graph.name, 0)
            self._count[graph.name] = number + 1
            graph.key = f"{graph.name}#{number}"
            self.graphs[graph.key] = graph
            self.order.append(graph.key)
            self._placed[content] = graph.key
        return self._placed[content]


class _Placing:
    """Placement of a function for a tuple of argument meshes."""

    def __init__(self, owner: MeshAssignment, raw: Graph, params: Where, want: int) -> None:
        self.owner, self.raw, self.want = owner, raw, want
        self.mesh: list[int] = [UNKNOWN] * len(raw.values)
        self.node_mesh: list[int] = [UNKNOWN] * len(raw.nodes)
        self.callee: dict[int, str] = {}
        for k, m in zip(raw.params, params):
            node = raw.nodes[k]
            self.mesh[node.results[0]] = m if m != UNKNOWN else node.mesh

    def run(self) -> Steps[Graph]:
        """Assign meshes forward, backward, then to the rest; return the placed graph."""
        yield from self._forward()
        if UNKNOWN in self.mesh:
            yield from self._backward()
            yield from self._forward()
        for k, node in enumerate(self.raw.nodes):
            if self.node_mesh[k] == UNKNOWN and node.kind in ("op", "call"):
                yield from self._settle(k, self._fallback())
        self.mesh = [self._fallback() if m == UNKNOWN else m for m in self.mesh]
        yield from self._follow()
        return self._write()

    def _follow(self) -> Steps[None]:
        """Move ops to the mesh of all their readers when their operands are moved there anyway.

        The cast at the head of a layer's norm, of an activation that its residual addition reads
        as well: a single value is sent instead of two.
        """
        readers = lists_by_key(
            (v, k) for k, node in enumerate(self.raw.nodes) for v in set(node.operands)
        )
        for k in reversed(range(len(self.raw.nodes))):
            node = self.raw.nodes[k]
            if node.kind != "op":
                continue
            meshes = {self._read_on(r, v) for v in node.results for r in readers.get(v, ())}
            if len(meshes) != 1 or UNKNOWN in meshes:
                continue
            (target,) = meshes
            if target > self.node_mesh[k] and all(
                self.mesh[v] == target
                or any(self._read_on(r, v) == target for r in readers[v] if r != k)
                for v in node.operands
                if v >= 0
            ):
                yield from self._settle(k, target)

    def _read_on(self, k: int, v: int) -> int:
        """Return the mesh on which a node reads a value; unknown where it takes any."""
        node = self.raw.nodes[k]
        if node.kind in ("op", "pin"):
            return self.node_mesh[k]
        if node.kind == "call":
            inner = self.owner.graphs[self.callee[k]]
            (first, *others) = {
                inner.values[inner.param_values[i]].mesh
                for i, operand in enumerate(node.operands)
                if operand == v
            }
            return UNKNOWN if others else first
        return UNKNOWN

    def _fallback(self) -> int:
        return self.want if self.want != UNKNOWN else self.owner.default

    def _settle(self, k: int, mesh: int) -> Steps[None]:
        node = self.raw.nodes[k]
        self.node_mesh[k] = mesh
        if node.kind == "call":
            where = tuple(
                self.mesh[v] if v >= 0 and self.mesh[v] != UNKNOWN else UNKNOWN
                for v in node.operands
            )
            self.callee[k] = yield self.owner.placed(node.callee, where, mesh)
            inner = self.owner.graphs[self.callee[k]]
            for i, v in enumerate(node.results):
                w = inner.result_values[i]
                self.mesh[v] = inner.values[w].mesh if w >= 0 else mesh
            for i, v in enumerate(node.operands):
                if v >= 0 and self.mesh[v] == UNKNOWN:
                    self.mesh[v] = inner.values[inner.param_values[i]].mesh
            return
        for v in node.results:
            self.mesh[v] = mesh

    def _forward(self) -> Steps[None]:
        produced = {v for k, n in enumerate(self.raw.nodes) if n.kind != "param" for v in n.results}
        for k, node in enumerate(self.raw.nodes):
            if node.kind == "pin":
                yield from self._settle(k, node.mesh)
            elif node.kind in ("op", "call") and self.node_mesh[k] == UNKNOWN:
                known = [self.mesh[v] for v in node.operands if v >= 0 and v in produced]
                every = [self.mesh[v] for v in node.operands if v >= 0]
                latest = max([m for m in known if m != UNKNOWN], default=UNKNOWN)
                if latest == UNKNOWN:
                    latest = max(every, default=UNKNOWN)
                if latest != UNKNOWN:
                    yield from self._settle(k, latest)
                    if node.kind == "op":
                        for v in node.operands:
                            if v >= 0 and self.mesh[v] == UNKNOWN:
                                self.mesh[v] = latest

    def _backward(self) -> Steps[None]:
        for k in reversed(range(len(self.raw.nodes))):
            node = self.raw.nodes[k]
            if node.kind in ("op", "call") and self.node_mesh[k] == UNKNOWN:
                meshes = [self.mesh[v] for v in node.results if self.mesh[v] != UNKNOWN]
                if meshes:
                    yield from self._settle(k, min(meshes))
            mesh = self.node_mesh[k]
            if mesh != UNKNOWN:
                for v in node.operands:
                    if v >= 0 and self.mesh[v] == UNKNOWN:
                        self.mesh[v] = mesh

    def _write(self) -> Graph:
        raw = self.raw
        g = Graph(raw.key, raw.name, raw.fn, public=raw.public)
        g.values = [v._replace(mesh=m) for v, m in zip(raw.values, self.mesh)]
        g.env, g.bindings, g.bound = raw.env, raw.bindings, raw.bound
        g.tensors, g.pinned, g.block_reads = raw.tensors, raw.pinned, raw.block_reads
        renumbered: dict[int, int] = {}
        moved: dict[tuple[int, int], int] = {}

        def bring(v: int, mesh: int) -> int:
            if v < 0 or self.mesh[v] == mesh:
                return v
            if (v, mesh) not in moved:
                old = raw.values[v]
                new = len(g.values)
                g.values.append(old._replace(mesh=mesh))
                g.add_node(Node("move", (v,), (new,), mesh=mesh, label=f"{old.name} (move)"))
                moved[v, mesh] = new
            return moved[v, mesh]

        for k, node in enumerate(raw.nodes):
            operands = node.operands
            if node.kind in ("op", "pin"):
                operands = tuple(bring(v, self.node_mesh[k]) for v in operands)
            elif node.kind == "call":
                inner = self.owner.graphs[self.callee[k]]
                param_meshes = [
                    inner.values[inner.param_values[i]].mesh for i in range(len(operands))
                ]
                operands = tuple(bring(v, m) for v, m in zip(operands, param_meshes))
            mesh = node.mesh if node.kind == "param" else self.node_mesh[k]
            if node.kind == "ret":
                mesh = self._fallback()  # of a constant: other results lie where they are
            renumbered[k] = g.add_node(
                node._replace(operands=operands, mesh=mesh, callee=self.callee.get(k, ""))
            )
        g.node_of = {var: renumbered[k] for var, k in raw.node_of.items()}
        return g.finish()
