# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Merge small collectives of the same kind into buckets (level 5)."""

from __future__ import annotations

import functools
from collections.abc import Callable, Collection, Iterable, Mapping
from functools import partial
from typing import Any

from tvm import ir, relax
from tvm.relax import Expr, Var

from tvm_distir.core.ir import is_private, known_shape
from tvm_distir.core.ir.attributes import PIPELINE_ATTR
from tvm_distir.core.ir.operators import REDUCTIONS
from tvm_distir.core.passes import Rewrite, module_pass
from tvm_distir.core.plan import Pipeline, StageNote
from tvm_distir.core.redistribution import local_bytes
from tvm_distir.core.rewriting import BlockWriter, all_bindings, callee_of, variables, with_body
from tvm_distir.core.rewriting.native import is_pure
from tvm_distir.transforms.stage_body import StageBody

from .binding_rewriter import Editor, FunctionStep, stepped
from .call_sites import CallSites, axes_of, group_axes, laid_out
from .packing import Bucket, BucketWriter

BUCKET_BYTES = 25 * 2**20
"""The bytes of a bucket, as in PyTorch's DistributedDataParallel."""
UNBOUNDED = 1 << 60
"""The bytes of a bucket of any size."""


Key = tuple[Any, ...]
Runs = Callable[[], Mapping[Var, Key]]
"""A function to when the variables of pipeline stages are computed."""


@module_pass("local")
def BucketReductions(
    bucket_bytes: int = BUCKET_BYTES, *, units: bool = False, private: bool = False
) -> Rewrite:
    """Merge reductions of small tensors.

    ``all_reduce`` calls (and ``reduce_scatter`` calls, among themselves) along the same axes, of
    one reduction and dtype, that do not depend on each other are flattened, concatenated, reduced
    at once and split again: as many bytes, one latency instead of many. What reads one of them
    may have to wait for the last, so bindings move; those that transfer or call functions end a
    bucket instead. Each bucket takes a copy of its tensors before and after. The order of a sum
    over devices stays; a library that reduces by position in a buffer may round otherwise. A bucket
    of a pipeline stage is of one phase: it runs as often as each of its members did.

    Parameters
    ----------
    bucket_bytes : int
        Maximum size of a bucket; larger tensors (operands, for a ``reduce_scatter``) are reduced
        separately.
    units : bool
        Whether each function has buckets of ``reduce_scatter`` calls of any size, as FSDP reduces
        the gradients of a block. Functions with collectives along other axes are exempt.
    private : bool
        Whether only private functions have such buckets, so that each large sum of an entry, or of
        a pipeline stage, is reduced by itself.

    Returns
    -------
    pass : tvm.transform.Pass
    """
    alone = ("reduce_scatter",)

    def bucket_reductions(mod: ir.IRModule) -> ir.IRModule:
        if units:
            mod = _merged(mod, alone, UNBOUNDED, alone=True, private=private)
        return _merged(mod, REDUCTIONS, bucket_bytes)

    return bucket_reductions


@module_pass("local")
def BucketGathers(bucket_bytes: int = BUCKET_BYTES, *, units: bool = False) -> Rewrite:
    """Merge gathers of small tensors.

    ``all_gather`` calls along the same axes and of one dtype, by the rules of
    :func:`BucketReductions`: shards of weights, above all, each of which would pay a latency of
    its own. A bucket is resident from its gather until its last reader: ``bucket_bytes`` bounds
    what that takes. What is gathered twice, to be freed in between, is never in one bucket twice.

    Parameters
    ----------
    bucket_bytes : int
        Maximum size of a bucket after the gather; larger tensors are gathered separately.
    units : bool
        Whether each private function has buckets of the weights that it gathers, of any size, as
        FSDP gathers a block. Of other gathers, those of values that an entry only returns, as
        weights that ZeRO updates as shards, are merged into buckets of 25 MiB then; those of a
        pipeline stage are not.

    Returns
    -------
    pass : tvm.transform.Pass
    """

    def bucket_gathers(mod: ir.IRModule) -> ir.IRModule:
        if not units:
            return _merged(mod, ("all_gather",), bucket_bytes)
        calls = CallSites(mod)
        weights = {
            str(gv.name_hint): calls.early_params(gv)
            for gv, fn in calls.functions.items()
            if is_private(fn) and calls.of[gv]
        }
        mod = _merged(mod, ("all_gather",), UNBOUNDED, weights=weights)
        if mod.attrs is not None and PIPELINE_ATTR in mod.attrs:
            return mod
        return _merged(mod, ("all_gather",), BUCKET_BYTES, returned=True)

    return bucket_gathers


def _merged(
    mod: ir.IRModule, kinds: tuple[str, ...], bucket_bytes: int, **options: Any
) -> ir.IRModule:
    runs = functools.cache(partial(_runs, mod))  # only what can be in a bucket asks for it
    step = FunctionStep(
        _Buckets, kinds, joined=kinds, bucket_bytes=bucket_bytes, runs=runs, **options
    )
    return stepped(mod, [step], 5)


def _runs(mod: ir.IRModule) -> dict[Var, Key]:
    """Return when the variables of pipeline stages are computed."""
    pipeline, runs = Pipeline.of(mod), dict[Any, Key]()
    if pipeline is None:
        return runs
    for note in {_kind_of(note, pipeline.varying): note for note in pipeline.stages}.values():
        body = StageBody(mod, note, pipeline.varying, fresh=False)
        for binding, run in zip(all_bindings(mod[note.function].body), body.runs, strict=True):
            runs[binding.var] = (*runs.get(binding.var, ()), run)
    return runs


def _kind_of(note: StageNote, varying: Collection[str]) -> Key:
    """Return what the phases of a stage's bindings depend on: stages of a kind share it."""
    numbers = {slot: k for k, slot in enumerate(dict.fromkeys((*note.params, *note.results)))}

    def kind(slot: str) -> Key:
        word, mark, _ = slot.partition(":")
        return word if mark else "", slot in varying, numbers[slot]

    return note.function, tuple(map(kind, note.params)), tuple(map(kind, note.results))


class _Buckets(Editor):
    """Rewriter of a function block by block, which may reorder bindings."""

    def prepare(
        self,
        joined: tuple[str, ...],
        bucket_bytes: int,
        runs: Runs,
        alone: bool = False,
        private: bool = False,
        weights: Mapping[str, Collection[int]] | None = None,
        returned: bool = False,
    ) -> None:
        """Take the kinds and sizes of buckets, and which functions and operands have some."""
        self.returned = returned
        self.joined = joined
        self.bucket_bytes, self.runs = bucket_bytes, runs
        self.alone, self.private, self.weights = alone, private, weights

    def run(self) -> relax.Function:
        """Return the rewritten function, or the given function if nothing can be merged."""
        if self.private and not is_private(self.fn):
            return self.fn
        if self.alone and len(axes_of(row[2] for rows in self.scan.blocks for row in rows)) > 1:
            return self.fn
        operands = None
        if self.returned:
            operands = set() if is_private(self.fn) else self._returned_gathers()
        elif self.weights is not None:
            operands = self._laid_out_weights(self.weights)
        blocks, changed = [], False
        for block, rows in zip(self.fn.body.blocks, self.scan.blocks, strict=True):
            buckets = _fill(rows, self.joined, self.bucket_bytes, operands, self.runs)
            if buckets:
                changed = True
                self.writer = BlockWriter(self.builder, isinstance(block, relax.DataflowBlock))
                BucketWriter(self.writer, buckets).run(rows)
                block = self.writer.block()
            blocks.append(block)
        if not changed:
            return self.fn
        return with_body(self.fn, self.fn.params, blocks, self.fn.body.body, bool(self.fn.is_pure))

    def _returned_gathers(self) -> set[Any]:
        """Return the operands of gathers whose results are only returned."""
        rows = [row for rows in self.scan.blocks for row in rows]
        names, read = dict[Var, Var](), set[Var]()
        for _, var, value, _ in rows:
            if isinstance(value, ir.Var):  # the same tiles under another view of the mesh
                names[var] = names.get(value, value)
            else:
                read.update(names.get(used, used) for used in variables(value))
        return {v.args[0] for _, var, v, kind in rows if kind == "all_gather" and var not in read}

    def _laid_out_weights(self, weights: Mapping[str, Collection[int]]) -> set[Any]:
        """Return the parameters that are weights, and local layout changes of them."""
        cached = {self.fn.params[n] for n in weights.get(self.name, ())}
        for rows in self.scan.blocks:
            for _, var, value, _ in rows:
                if laid_out(value, cached):
                    cached.add(var)
        return cached


def _key(var: Var, value: ir.Call, kind: str, run: Key) -> Key:
    return (
        run,
        kind,
        group_axes(value),
        str(value.attrs["op"]) if kind in REDUCTIONS else "",
        str(var.ty.dtype),
    )


def _fill(
    rows: list[Any],
    joined: tuple[str, ...],
    most_bytes: int,
    operands: Collection[Any] | None,
    runs: Runs,
) -> dict[Var, Bucket]:
    """Return the buckets of two or more collectives, by the variables of their members.

    ``operands``: what alone may be merged; None: anything. ``runs``: when a variable of a pipeline
    stage is computed; a bucket of several phases would run with the last of them.

    A collective joins the open bucket of its kind unless it depends on a member of an open bucket:
    then those are closed first. So no bucket ever waits for another that waits for it.
    """
    buckets: list[Bucket] = []
    open_: dict[Key, int] = {}  # numbers in ``made``
    closed: set[int] = set()
    waits: dict[Var, frozenset[int]] = {}
    bucket_of: dict[Var, Bucket] = {}

    def close(numbers: Iterable[int]) -> None:
        closed.update(numbers)
        for key in [key for key, number in open_.items() if number in closed]:
            del open_[key]

    for _, var, value, kind in rows:
        wait_numbers = [waits[used] for used in variables(value) if used in waits]
        deps: frozenset[int] = frozenset().union(*wait_numbers) - closed
        if deps and (kind is not None or _is_barrier(value)):
            close(deps)
            deps = frozenset()
        merges = kind in joined and (operands is None or value.args[0] in operands)
        size = _larger_bytes(var, value) if merges else None
        if kind is None or size is None or size >= most_bytes:
            if deps:
                waits[var] = deps
            continue
        key, operand = _key(var, value, kind, runs().get(var, ())), value.args[0]
        if key in open_:
            bucket = buckets[open_[key]]
            repeated = kind == "all_gather" and operand in bucket.operands
            if repeated or bucket.size_bytes + size > most_bytes:
                close([open_[key]])
        if key not in open_:
            open_[key] = len(buckets)
            buckets.append(Bucket())
        bucket = bucket_of[var] = buckets[open_[key]]
        bucket.members.append(var)
        bucket.operands.add(operand)
        bucket.size_bytes += size
        waits[var] = frozenset([open_[key]])
    return {var: bucket for var, bucket in bucket_of.items() if len(bucket.members) > 1}


def _larger_bytes(var: Var, value: ir.Call) -> int | None:
    """Return the bytes of the larger side of a collective, or None if a size is unknown."""
    ends = var, value.args[0]
    if any(known_shape(end.ty) is None for end in ends):
        return None
    return max(local_bytes(end.ty) for end in ends)


def _is_barrier(value: Expr) -> bool:
    """Return whether a binding must not be moved: it has effects, is a call or an ``If``."""
    return callee_of(value) is not None or isinstance(value, relax.If) or not is_pure(value)
