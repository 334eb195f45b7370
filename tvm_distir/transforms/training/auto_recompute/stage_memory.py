# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Compute the device memory of a stage kind, depending on what its calls save.

The passes of a micro-batch are a function, whose calls are a chain (:mod:`.call_chain`); the
following stages are a task in it that turns the results into their gradients. The work that is done
once, and the memory that each micro-batch leaves, follow from the stage's function.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from tvm import relax
from tvm.relax import Var

from tvm_distir.core.ir import flat_types
from tvm_distir.core.ir.attributes import ACCUMULATE_PHASE, EACH_PHASE, FORWARD_PHASE, phase_of
from tvm_distir.core.plan import ACTIVATION, GRADIENT, STREAM, TOTAL
from tvm_distir.core.rewriting import tuple_of
from tvm_distir.transforms.training.autodiff.saved_values import type_bytes
from tvm_distir.transforms.training.autodiff.tape import ForwardBackward
from tvm_distir.transforms.training.pipeline.pipeline_step import WrittenPipeline
from tvm_distir.transforms.training.recompute.choice import Auto
from tvm_distir.transforms.training.recompute.drafts import DraftPair

from .buffers import Buffer, BufferTasks, CallTask, leaves
from .call_chain import CallChain
from .chain import ChainCall
from .peak_memory import PeakMemory

BLOCK_BYTES = 512
"""Allocators hand out multiples of it."""

_ARRIVING = (ACTIVATION, GRADIENT, STREAM)


@dataclass(frozen=True)
class StageMemory:
    """Device bytes of a stage kind.

    Attributes
    ----------
    links : tuple of ChainCall
        The calls of a micro-batch, forward and backward.
    gaps : tuple of int
        The memory between them, see :func:`.chain.least_time`.
    calls : tuple of int
        The numbers of these calls among the stage's calls of private functions.
    resident : int
        Data, weights and states.
    constants : int
        The bytes of the constants of all functions that are tried.
    sums : int
        The bytes of values that accumulate over micro-batches, from the first micro-batch on: sums
        of gradients.
    begun : int
        The bytes of such values that the first micro-batch makes beside its gradients, which
        otherwise become the sums.
    kept : int
        The bytes stored for a micro-batch between its forward and its backward pass, without what
        calls save.
    later : int
        The bytes stored for a micro-batch between its backward pass and its gradients of weights,
        without what calls pass on.
    adding : int
        The bytes that adding a micro-batch's gradients to the sums takes.
    end : int
        The bytes that the updates take, sums included.
    activations, results : int
        The bytes of a message from the preceding stage, and to the following stage.
    """

    links: tuple[ChainCall, ...]
    gaps: tuple[int, ...]
    calls: tuple[int, ...]
    resident: int
    constants: int
    sums: int
    begun: int
    kept: int
    later: int
    adding: int
    end: int
    activations: int
    results: int

    def handing_on(self, most: int) -> StageMemory:
        """Restrict to the options whose calls pass on at most a given number of bytes."""
        links = [
            replace(link, options=tuple(o for o in link.options if o.later_bytes <= most))
            for link in self.links
        ]
        more = sum(max((o.later_bytes for o in link.options), default=0) for link in links)
        return replace(self, links=tuple(links), later=self.later + more)


def memory_of(pipelined: WrittenPipeline, stage: int, auto: Auto) -> StageMemory:
    """Measure a stage of a step without recomputation."""
    return _Measuring(pipelined, stage, auto).run()


class _Measuring:
    """Implementation of :func:`memory_of`."""

    def __init__(self, pipelined: WrittenPipeline, stage: int, auto: Auto) -> None:
        self.written, self.tools = pipelined, pipelined.tools
        self.writer, self.pipeline = pipelined.writers[stage], pipelined.pipeline
        self.pair = self.writer.pair
        self.memory = PeakMemory(self.tools.pairs, auto, BLOCK_BYTES)
        self._size, self._sizes = self.memory.size, self.memory.sizes
        self.draft = self.tools.pairs.draft(self.pair.name, self.pair.differentiated)
        part = self.writer.part.stage
        self.first = len(part.activations) + len(part.data)
        self.weights = {str(param.name) for param in self.draft.params[self.first :]}

    def run(self) -> StageMemory:
        """Measure all parts of the stage."""
        splits = self.tools.schedule.splits_backward
        for call in self.draft.calls:
            self.memory.flag(call.pair, call.args, self.weights)
        body, boundary = self._micro_batch(self.draft)
        arrive = self.draft.params[: self.first]
        arriving = [b for param in arrive for b in leaves(body.trees[param])]
        later = self._handed_on if splits else None
        chain = CallChain(self.memory, body, self.draft.calls, self.weights, arriving, later)
        links, (resident, _) = chain.links(), chain.profile[boundary]
        labels = list(self.tools.pairs.inside[self.pair.name])
        once = self._once()
        before, sums, begun, adding, end = self._sums(once)
        if self.tools.schedule.stash:  # each micro-batch has separate weights
            resident += self._bytes(list(self.writer.params.args[self.first :]), once)
            sums = begun = self._sizes(leaves(once.result))
            adding += end
        return StageMemory(
            tuple(links),
            tuple(chain.gaps()),
            tuple(labels.index(position.call.label) for position in chain.positions),
            self._resident(once) + before,
            self.memory.constant_bytes,
            sums,
            begun,
            resident,
            self._later(chain, once) if splits else 0,
            adding,
            end,
            self._bytes(self.writer.params.activations, once),
            self._bytes(self.writer.params.grads, once),
        )

    def _bytes(self, params: Sequence[Var], body: BufferTasks) -> int:
        return self._sizes(b for param in params for b in leaves(body.trees[param]))

    def _micro_batch(self, draft: DraftPair) -> tuple[BufferTasks, int]:
        """Return both passes as a single function, and the task between them."""
        results = tuple_of([draft.result, *draft.gradients])
        block = relax.DataflowBlock([*draft.before, *draft.after])
        params = [*draft.params, draft.grad]
        fn = relax.Function(params, relax.SeqExpr([block], results), results.ty, True)
        name = f"{self.pair.name}_micro_batch"
        self.tools.functions.of[name] = fn
        flags = [
            number >= self.first
            for number, param in enumerate(draft.params)
            for _ in flat_types(param.ty)
        ]
        flags += [False for _ in flat_types(draft.grad.ty)]
        body = self.memory.read(name, tuple(flags))
        output, *gradients = body.result
        for number, gradient in zip(draft.given, gradients, strict=True):
            for buffer in leaves(gradient):
                buffer.weight |= number >= self.first
        before = {binding.var for binding in draft.before}
        boundary = sum(task.var in before for task in body.tasks)
        grad = list(leaves(body.trees[draft.grad]))
        body.tasks.insert(boundary, CallTask(draft.grad, list(leaves(output)), grad))
        body.params = [b for b in body.params if b not in grad]
        body.result = tuple(gradients)
        return body, boundary

    def _once(self) -> BufferTasks:
        """Return the stage's function without the results that go to other stages.

        Results that replace a weight or a state are left out too, since they use its memory.
        """
        name, params = self.writer.name, self.writer.params
        for gv, early in self._backward():
            self.memory.gradients[str(gv.name_hint)] = early
        self.tools.functions.of[name] = self.written.module[name]
        data = {str(var.name) for var in params.ports.vars[: params.data_count]}
        fn = self.written.module[name]
        flags = (str(p.name) not in data for p in fn.params for _ in flat_types(p.ty))
        body = self.memory.read(name, tuple(flags))
        notes = zip(body.result, self.writer.outputs.notes, strict=True)
        body.result = tuple(tree for tree, note in notes if not self._is_let_go(note))
        body.trees.update(zip(params.ports.vars, (body.trees[p] for p in fn.params), strict=True))
        return body

    def _is_let_go(self, note: str) -> bool:
        """Return whether a result is sent, or shares memory with the value that it replaces."""
        replaces = note in self.pipeline.inputs and not self.tools.schedule.stash
        return replaces or _kind(note) in _ARRIVING

    def _backward(self) -> list[tuple[Any, tuple[bool, ...]]]:
        """Return the functions of the backward pass, and which results are gradients of weights."""
        flags = [number >= self.first for number in self.pair.given]
        if not self.tools.schedule.splits_backward:
            return [(self.pair.backward, tuple(flags))]
        splits = self.writer.split_backward
        return [
            (splits.inputs, tuple(flags[k] for k in splits.first)),
            (splits.weights, tuple(flags[k] for k in splits.later)),
        ]

    def _resident(self, once: BufferTasks) -> int:
        """Return the bytes of data of all micro-batches, weights and states."""
        total, pipeline = 0, self.pipeline
        for var, note in zip(
            self.writer.params.ports.vars, self.writer.params.ports.notes, strict=True
        ):
            if note in pipeline.inputs or _kind(note) == TOTAL:
                times = self.tools.schedule.micro_batches if note in pipeline.sliced else 1
                total += times * self._bytes([var], once)
        return total

    def _sums(self, once: BufferTasks) -> tuple[int, int, int, int, int]:
        """Return the bytes of values computed once, gradient sums, their addition and the end."""
        profile = self.memory.profile(once, ())
        phases = [self._phase(task) for task in once.tasks]
        positions = [i for i, phase in enumerate(phases) if phase in (ACCUMULATE_PHASE, EACH_PHASE)]
        terms = {b for i in positions for b in once.tasks[i].reads}
        sums = [b for i in positions for b in leaves(once.trees[once.tasks[i].var])]
        begun = self._sizes(b for b in sums if b not in terms)
        adding = self._sizes(terms)
        end = max((most for _, most in profile[max(positions, default=-1) + 1 :]), default=0)
        before = profile[phases.index(FORWARD_PHASE)][0]
        if self.tools.schedule.micro_batches == 1:  # nothing is added to them
            return before, begun, begun, adding, end
        more = max(map(self._size, sums), default=0)
        return before, self._sizes(sums), begun, adding + more, end

    def _phase(self, task: CallTask) -> str:
        fn = self.tools.functions.of.get(task.callee or "")
        return "" if fn is None else phase_of(fn)

    def _later(self, chain: CallChain, once: BufferTasks) -> int:
        """Return the bytes that a split backward pass passes on, without those of calls."""
        inputs = str(self.writer.split_backward.inputs.name_hint)
        task = next(task for task in once.tasks if task.callee == inputs)
        crossing = {b for b in leaves(once.trees[task.var][-1]) if not b.weight}
        calls = sum(self._handed_on(position.call.pair) for position in chain.positions)
        return self._sizes(crossing) - calls

    def _handed_on(self, pair: ForwardBackward) -> int:
        """Return the bytes that a call's split backward pass passes on, with its arguments."""
        flags = self.memory.gradients[str(pair.backward.name_hint)]
        early = [k for k, of_weight in enumerate(flags) if not of_weight]
        splits = self.tools.splitter.split(pair.backward, early)
        handed = self.tools.functions.of[str(splits.inputs.name_hint)].ret_ty.fields[-1]
        return self._sizes(Buffer(type_bytes(ty)) for ty in flat_types(handed))


def _kind(note: str) -> str:
    return note.partition(":")[0]
