# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Redistributions executed on NumPy shards: plans, and the collectives as the engines define them.

Padding holds junk from the start, and every rank's shard is compared, so that a step which reads
padding or sends a tile to the wrong rank is found.
"""

from __future__ import annotations

import functools
import itertools
import math
from dataclasses import dataclass, replace

import numpy as np
from tvm import relax

import tvm_distir as td
from tvm_distir.core.collectives.calls import decode_collective
from tvm_distir.core.collectives.meaning import all_reduce, apply
from tvm_distir.core.ir.placement import P, R, local_shape, placement_text, shard_slices
from tvm_distir.core.ir.views import Tiling, View, labels_on, tiling
from tvm_distir.core.passes.legalize.collective_calls import step_call
from tvm_distir.core.redistribution.shards import terms_move
from tvm_distir.core.redistribution.steps import exchange_step
from tvm_distir.core.redistribution.view_search import ViewTransition
from tvm_distir.execution.runtime.program.io_layout import np_dtype

MESHES = [(2,), (3,), (4,), (8,), (2, 2), (2, 3), (4, 2), (2, 2, 2)]
EVEN = {1: (24,), 2: (24, 48), 3: (24, 8, 12)}
UNEVEN = {1: (7,), 2: (9, 5), 3: (7, 3, 10)}
RAGGED = {1: (11,), 2: (6, 13), 3: (5, 6, 2)}
OPS = ("sum", "max", "min", "prod")
DTYPES = ("float32", "int32", "float16", "bool", "bfloat16", "int8", "float64", "uint8")


@dataclass(frozen=True)
class Case:
    """One redistribution."""

    shape: tuple
    before: tuple
    after: tuple
    mesh: tuple
    devices: tuple
    dtype: str = "float32"
    op: str = "sum"

    def text(self):
        return (
            f'{list(self.shape)} {self.dtype} "{placement_text(self.before)}" -> '
            f'"{placement_text(self.after)}" ({self.op}) on {self.mesh} {self.devices}'
        )


@functools.cache
def mesh_of(shape, devices):
    return td.device_mesh({f"a{i}": n for i, n in enumerate(shape)}, device_ids=devices)


@functools.lru_cache(maxsize=4096)
def shard_bounds(shape, labels, mesh):
    coords = itertools.product(*(range(n) for n in mesh))
    return [tuple(slice(a, b) for a, b in shard_slices(shape, labels, mesh, c)) for c in coords]


def draw(shape, dtype, rng):
    """Whole numbers but 0 (which padding holds), so small that every type adds them exactly."""
    if dtype == "bool":
        return rng.integers(0, 2, shape).astype(bool)
    sign = 1 if dtype.startswith("u") else rng.choice([-1, 1], shape)
    return (sign * rng.integers(1, 61, shape)).astype(np_dtype(dtype))


def terms_of(whole, count, op, rng):
    """``count`` arrays whose reduction is ``whole``, different on every rank."""
    dtype = whole.dtype
    holder = rng.integers(0, count, whole.shape)
    if op == "sum" and dtype != np.bool_:
        rest = [rng.integers(0, 3, whole.shape).astype(dtype) for _ in range(count - 1)]
        return [(whole - sum(rest, np.zeros_like(whole))).astype(dtype), *rest]
    if op == "prod" and dtype != np.bool_:
        neutral = np.ones_like(whole)
    elif dtype == np.bool_:
        neutral = np.full_like(whole, op in ("min", "prod"))
    elif op == "max":
        neutral = np.minimum(whole, draw(whole.shape, str(dtype), rng))
    else:
        neutral = np.maximum(whole, draw(whole.shape, str(dtype), rng))
    return [np.where(holder == i, whole, neutral).astype(dtype) for i in range(count)]


def shards_of(whole, labels, mesh, op, rng):
    """Every rank's (junk-padded) shard, row-major over the mesh."""
    partial = [a for a, x in enumerate(labels) if x == P]
    count = math.prod(mesh[a] for a in partial)
    terms = terms_of(whole, count, op, rng) if count > 1 else [whole]
    size = local_shape(whole.shape, labels, mesh)
    matches = []
    coords = itertools.product(*(range(n) for n in mesh))
    for c, box in zip(coords, shard_bounds(whole.shape, labels, mesh)):
        number = 0
        for a in partial:
            number = number * mesh[a] + c[a]
        part = terms[number][box]
        if list(part.shape) != size:
            full = np.full(size, 1 if whole.dtype == np.bool_ else 77).astype(whole.dtype)
            full[tuple(slice(0, n) for n in part.shape)] = part
            part = full
        matches.append(np.ascontiguousarray(part))
    return matches


def pieces(x, dim, parts):
    """The shards of axes with so many devices: every block padded, cut into equal parts."""
    if not parts:
        return [x]
    widths = [(0, 0)] * x.ndim
    widths[dim] = (0, -x.shape[dim] % parts[0])
    blocks = np.split(np.pad(x, widths), parts[0], dim)
    return [piece for block in blocks for piece in pieces(block, dim, parts[1:])]


def together(result, dim, parts, size):
    """Undo :func:`pieces` for a dim of so many elements."""
    if not parts:
        return result[0]
    per, block = len(result) // parts[0], -(-size // parts[0])
    groups = [result[i * per : (i + 1) * per] for i in range(parts[0])]
    x = np.concatenate([together(g, dim, parts[1:], block) for g in groups], dim)
    return x[tuple(slice(0, size if d == dim else n) for d, n in enumerate(x.shape))]


@functools.lru_cache(maxsize=4096)
def collective_of(shape, step, before, mesh, devices, op):
    mesh = mesh_of(mesh, devices)
    x = relax.Var("x", relax.TensorType([1] * len(shape), "float32"))
    return decode_collective(step_call(x, mesh, step, before, shape, op))


def run_step(parts, labels, step, case):
    """One step on all ranks of a mesh, by device id, as the lowering writes it."""
    count = math.prod(case.mesh[a] for a in step.axes)
    if count == 1:
        return parts
    if step.kind == "reduce_scatter":
        move = terms_move(case.shape, labels, step.axes, step.split_dim, case.mesh)
        if move is not None:
            return run_terms(parts, move, case)
    sizes = [case.mesh[a] for a in step.axes]
    cut, join = step.split_dim, step.gather_dim
    if cut is not None:
        parts = {d: np.concatenate(pieces(x, cut, sizes), cut) for d, x in parts.items()}
    call = collective_of(case.shape, step, labels, case.mesh, case.devices, case.op)
    out = {}
    for group in call.groups:
        out.update(zip(group, apply(call, [parts[d] for d in group])))
    if join is None:
        return out
    want = local_shape(case.shape, step.after, case.mesh)[join]
    return {d: together(np.split(x, count, join), join, sizes, want) for d, x in out.items()}


def run_terms(parts, move, case):
    """Terms as elements of a dim of their own: exchanged, then reduced on each device."""
    step = exchange_step(move.before, move.after)
    call = collective_of(move.shape, step, move.before, case.mesh, case.devices, case.op)
    out = {}
    for group in call.groups:
        out.update(zip(group, apply(call, [parts[d][None] for d in group])))
    return {d: all_reduce(list(x), case.op) for d, x in out.items()}


def finished(parts, labels, mesh, op):
    """Reduce what is left partial; ``parts`` row-major over the mesh."""
    table = np.empty(mesh, object)
    for index, part in zip(np.ndindex(*mesh), parts):
        table[index] = part
    for axis, label in enumerate(labels):
        if label == P:
            new = np.empty(mesh, object)
            for index in np.ndindex(*mesh):
                row = [table[(*index[:axis], i, *index[axis + 1 :])] for i in range(mesh[axis])]
                new[index] = all_reduce(row, op)
            table = new
    return [table[index] for index in np.ndindex(*mesh)]


def difference(case, steps):
    """Execute steps; return what is wrong, or an empty text."""
    rng = np.random.default_rng([x + 2 for x in (*case.before, *case.after)])
    whole = draw(case.shape, case.dtype, rng)
    parts = dict(zip(case.devices, shards_of(whole, case.before, case.mesh, case.op, rng)))
    labels = case.before
    for step in steps:
        parts = run_step(parts, labels, step, case)
        labels = step.after
    if labels != case.after:
        return f"{case.text()}: ends in {labels}"
    remaining = "sum" if case.before.count(P) == 0 else case.op
    rows = finished([parts[d] for d in case.devices], labels, case.mesh, remaining)
    for device, got, box in zip(case.devices, rows, shard_bounds(case.shape, labels, case.mesh)):
        want = whole[box]
        got = got[tuple(slice(0, n) for n in want.shape)]
        if got.dtype != want.dtype or not np.array_equal(got, want):
            return f"{case.text()}: device {device} is wrong after {[s.kind for s in steps]}"
    return ""


def placements(ndim, axes, partial):
    words = [R, *range(ndim)] + ([P] if partial else [])
    return list(itertools.product(words, repeat=axes))


def all_cases(meshes=MESHES, families=(EVEN, UNEVEN, RAGGED)):
    """All S/R/partial -> S/R pairs; ids, types and reductions take turns."""
    number = 0
    for mesh, sizes, ndim in itertools.product(meshes, families, (1, 2, 3)):
        count = math.prod(mesh)
        orders = [
            tuple(range(count)),
            tuple(int(i) for i in np.random.default_rng(3).permutation(count)),
        ]
        pairs = itertools.product(
            placements(ndim, len(mesh), True), placements(ndim, len(mesh), False)
        )
        for before, after in pairs:
            number += 1
            yield Case(
                sizes[ndim], before, after, mesh, orders[number % 2],
                DTYPES[number // 2 % len(DTYPES)], OPS[number // 3 % len(OPS)],
            )  # fmt: skip


def tilings(axes, ndim):
    """All ordered tilings of tensors on a mesh, partial sums included."""
    found = []
    for labels in placements(ndim, axes, True):
        cuts = [[a for a, x in enumerate(labels) if x == d] for d in range(ndim)]
        partial = frozenset(a for a, x in enumerate(labels) if x == P)
        found += [
            Tiling(dims, partial)
            for dims in itertools.product(*(itertools.permutations(cut) for cut in cuts))
        ]
    return found


def view_requests(shape, mesh, devices=None):
    """All pairs of ordered tilings that a view can state together, and so steps lead between."""
    own = mesh, tuple(devices or range(math.prod(mesh)))
    orders = tuple(itertools.permutations(range(len(mesh))))
    for before, after in itertools.permutations(tilings(len(mesh), len(shape)), 2):
        ends = (before, after)
        common = any(all(labels_on(View(own, o), x) is not None for x in ends) for o in orders)
        if common and after.partial <= before.partial:
            yield ViewTransition(shape, "float32", before, after, own, orders)


def view_difference(request, steps):
    """Execute steps on views of a mesh; return what is wrong, or an empty text."""
    rng = np.random.default_rng(len(steps))
    whole = draw(request.shape, request.dtype, rng)

    def case_on(order, state):
        view = View(request.family, order)
        labels = labels_on(view, state)
        devices = np.array(request.family[1]).reshape(request.family[0]).transpose(order).ravel()
        mesh = request.sizes(order)
        return labels and Case(request.shape, labels, labels, mesh, tuple(devices.tolist()))

    first = next(filter(None, (case_on(o, request.before) for o in request.views)))
    parts = dict(zip(first.devices, shards_of(whole, first.before, first.mesh, "sum", rng)))
    state = request.before
    for step in steps:
        case = case_on(step.view, state)
        if case is None or case.before != step.before:
            return f"{request}: {step} from {state}"
        parts = run_step(parts, step.before, step, replace(case, after=step.after))
        state = tiling(View(request.family, step.view), step.after, len(request.shape))
    last = next(filter(None, (case_on(o, request.after) for o in request.views)))
    rows = finished([parts[d] for d in last.devices], last.before, last.mesh, "sum")
    for got, box in zip(rows, shard_bounds(whole.shape, last.before, last.mesh)):
        want = whole[box]
        if not np.array_equal(got[tuple(slice(0, n) for n in want.shape)], want):
            return f"{request}: wrong after {steps}"
    return "" if state == request.after else f"{request}: ends in {state}"


def request(case):
    """What :meth:`Planner.plan` is asked."""
    return case.shape, case.before, case.after, case.mesh, case.dtype, case.devices
