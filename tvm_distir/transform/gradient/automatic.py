# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""``recompute="auto"``: the least time of making values again, within a memory bound.

The step is written once without recomputation. Between the forward and the backward parts of the
calls of ``main`` that tells what lives there beside what the calls keep; each call's options are
the policies and the minimum cuts of its function, written and measured; a dynamic program over the
calls chooses (:mod:`.recompute.chain`). Sizes are those of the whole tensors, divided by what
:class:`.recompute.Auto` says. A value that several calls get, as a mask, is taken to live as it
does without recomputation; where one of them needs it longer, that call counts it.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from tvm import ir

from ...errors import InfeasibleError, ModelError
from ...plan import CUT, FULL, NONE, SELECTIVE, Recomputation, Runs
from .recompute import (
    Auto,
    Buffer,
    Link,
    Live,
    Option,
    kept_by,
    kept_bytes,
    least_bytes,
    least_time,
    leaves,
    tree_of,
)
from .tape import CallGradient, Pair
from .writing import StepWriter

GIB = 2**30


@dataclass(frozen=True)
class _Place:
    """A call of ``main`` with both its parts.

    Attributes
    ----------
    call : CallGradient
    forward, backward : int
        Numbers of their tasks.
    """

    call: CallGradient
    forward: int
    backward: int


class Chain:
    """The calls of a step without recomputation, and what lives around them.

    Parameters
    ----------
    writer : StepWriter
        Has run, without recomputation.
    main : Function
        What it wrote.
    auto : Auto
    """

    def __init__(self, writer: StepWriter, main: Any, auto: Auto) -> None:
        self.pairs, self.auto = writer.pairs, auto
        functions = self.pairs.functions.of
        functions["main"] = main
        self.live = Live(functions, self.pairs.times.kernels, self._size)
        rest = main.params[len(writer.inputs) :]
        self.weights = {str(param.name) for param in rest}
        calls = [call for call in writer.tape.calls.values() if call.back is not None]
        for call in calls:
            self._flag(call, call.pair)
        self.main = self.live.read("main", (False,) * len(writer.inputs) + (True,) * len(rest))
        self.trees = {str(var.name): tree for var, tree in self.main.trees.items()}
        for name in writer.gradients.values():
            for buffer in leaves(self.trees[name]):
                buffer.weight = True
        self.resident = set(self.main.params)
        self.places = self._placed(calls)
        self.last = self.live.last_uses(self.main, self._unread())
        self.profile = self.live.profile(self.main, (), self._kept(), self.last)
        self._options: dict[Any, list[tuple[str, int, Pair]]] = {}

    def _size(self, buffer: Buffer) -> int:
        parts = self.auto.weights if buffer.weight else self.auto.activations
        return -(-buffer.size_bytes // parts)

    def _flag(self, call: CallGradient, pair: Pair) -> None:
        """Say which results of a backward part are gradients of weights."""
        flags = tuple(_name(call.args[i]) in self.weights for i in pair.given)
        self.live.gradients[str(pair.backward.name_hint)] = flags

    def _buffers(self, value: Any) -> list[Buffer]:
        return list(leaves(tree_of(value, self.main.trees)))

    def _placed(self, calls: Sequence[CallGradient]) -> list[_Place]:
        number = {str(task.var.name): i for i, task in enumerate(self.main.tasks)}
        return [_Place(c, number[str(c.made.name)], number[str(c.back.name)]) for c in calls]

    def _unread(self) -> dict[int, set[Buffer]]:
        """What backward parts read of what their calls kept, and of values that they alone get."""
        given = [
            {b for arg in place.call.args for b in self._buffers(arg) if self._is_value(b)}
            for place in self.places
        ]
        readers = Counter(buffer for buffers in given for buffer in buffers)
        return {
            place.backward: {*self._saved(place.call), *(b for b in own if readers[b] == 1)}
            for place, own in zip(self.places, given, strict=True)
        }

    def _saved(self, call: CallGradient) -> list[Buffer]:
        return [] if call.saved is None else self._buffers(call.saved)

    def _is_value(self, buffer: Buffer) -> bool:
        """Whether a buffer is made in the step, and of data."""
        return not buffer.weight and buffer not in self.resident

    def _kept(self) -> set[Buffer]:
        """What the calls keep and nobody else has."""
        found: set[Buffer] = set()
        for place in self.places:
            shown = set(self._buffers(place.call.made)[: -len(self._saved(place.call)) or None])
            found.update(b for b in self._saved(place.call) if b not in shown)
        return found

    def links(self) -> tuple[list[Link], list[int]]:
        """Links of the chain, and its gaps (see :func:`.recompute.least_time`)."""
        options = [tuple(self._measured(place)) for place in self.places]
        base = sum(map(self._size, self.main.params)) + self.live.constant_bytes
        links = [
            Link(
                found,
                base + self.profile[place.forward][0],
                base + self.profile[place.backward][0],
            )
            for place, found in zip(self.places, options, strict=True)
        ]
        return links, self._gaps(base)

    def solved(self, bound: int) -> Recomputation:
        """Choose for all calls.

        Raises
        ------
        InfeasibleError
            DIST0802 where nothing stays within the bound.
        """
        links, gaps = self.links()
        chosen = least_time(links, gaps, bound)
        if chosen is None:
            raise InfeasibleError(
                "DIST0802",
                f"the step needs {least_bytes(links, gaps) / GIB:.3g} GiB on each device with all "
                f"that can be made again, and {bound / GIB:.3g} GiB are there",
                place="train_step (recompute)",
                remedy="Give more memory_gib, or say into how many parts activations and weights "
                "are cut: auto:activations=8,weights=8.",
            )
        policies: dict[str, list[str]] = {}
        for place, option in zip(self.places, chosen, strict=True):
            policies.setdefault(place.call.pair.name, []).append(option.policy)
        return Recomputation(tuple((name, Runs.of(found)) for name, found in policies.items()))

    def _gaps(self, base: int) -> list[int]:
        """Most that lives beside what the first i calls keep, between calls."""
        gaps = [0] * (len(self.places) + 1)
        ends = {k for place in self.places for k in (place.forward, place.backward)}
        for number, (_, most) in enumerate(self.profile):
            count = sum(place.forward < number < place.backward for place in self.places)
            if count and number not in ends:
                gaps[count] = max(gaps[count], base + most)
        return gaps

    def _candidates(self, call: CallGradient) -> list[tuple[str, int, Pair]]:
        """Policies of a function, their times and pairs."""
        key = (call.pair.name, call.pair.roles)
        if key not in self._options:
            draft = self.pairs.draft(*key)
            parts = (draft.before, draft.read, draft.params, draft.frontier)
            plain = kept_bytes(kept_by(NONE, *parts)[0])
            shares = [
                math.ceil(100 * point.size_bytes / max(plain, 1)) for point in draft.frontier.points
            ]
            cuts = [f"{CUT}{share / 100:g}" for share in shares if 0 < share < 100]
            found = []
            for policy in dict.fromkeys((NONE, FULL, SELECTIVE, *cuts)):
                _, again = kept_by(policy, *parts)
                time = sum(self.pairs.times.of(binding.value) for binding in again)
                found.append((policy, time, self.pairs.pair_with(*key, policy)))
                self._flag(call, found[-1][2])
            self._options[key] = found
        return self._options[key]

    def _measured(self, place: _Place) -> list[Option]:
        """Options of a call, without those that another one is as good as."""
        found: list[Option] = []
        for policy, time, pair in self._candidates(place.call):
            option = Option(policy, time, *self._bytes(place, pair))
            figures = _figures(option)
            if not any(
                all(a <= b for a, b in zip(_figures(o), figures, strict=True)) for o in found
            ):
                found.append(option)
        return found

    def _bytes(self, place: _Place, pair: Pair) -> tuple[int, int, int]:
        """Bytes kept, and the peaks inside both parts."""
        live, args = self.live, place.call.args
        given = [b for arg in args for b in self._buffers(arg)]
        needed = [b for i in pair.needed for b in self._buffers(args[i])]
        held = {b for b in needed if self._is_value(b) and self.last.get(b, -1) < place.backward}
        forward = str(pair.forward.name_hint)
        tree, _ = live.results(forward, given)
        saved = list(dict.fromkeys(leaves(tree[1]))) if pair.saves else []
        ends = {b for b in given if self._is_value(b) and self.last.get(b) == place.forward}
        grad = self.main.tasks[place.backward].reads[: self._width(place)]
        dying = {
            b for b in (*grad, *needed) if self.last.get(b) == place.backward and self._is_value(b)
        }
        return (
            sum(map(self._size, (*saved, *held))),
            live.peak(forward, given, ends - held) + sum(map(self._size, ends & held)),
            live.peak(
                str(pair.backward.name_hint), [*grad, *saved, *needed], {*dying, *saved, *held}
            ),
        )

    def _width(self, place: _Place) -> int:
        """How many buffers the gradient of a call's result has."""
        made = self._buffers(place.call.made)
        return len(made) - len(self._saved(place.call))


def _figures(option: Option) -> tuple[int, ...]:
    return option.time, option.kept_bytes, option.forward_bytes, option.backward_bytes


def _name(value: Any) -> str:
    return str(value.name) if isinstance(value, ir.Var) else ""


def decided(trial: StepWriter, auto: Auto) -> Recomputation:
    """Choose what the calls of a step make again.

    Parameters
    ----------
    trial : StepWriter
        Of the same step without recomputation; it is run.
    auto : Auto

    Raises
    ------
    ModelError
        DIST0351 where the memory is not known.
    InfeasibleError
        DIST0802 where nothing stays within it.
    """
    system = trial.recipe.system
    if not auto.memory_gib and system is None:
        raise ModelError(
            "DIST0351",
            "nothing says how much memory a device has",
            place="train_step (recompute)",
            remedy="Give auto:memory_gib=80, or a system.",
        )
    bound = (
        int(auto.memory_gib * GIB)
        if system is None or auto.memory_gib
        else system.memory_capacity_bytes
    )
    return Chain(trial, trial.run(), auto).solved(bound)
