# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""The event loops of engines in plain Python, with which the native ones are compared."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import numpy as np

from tvm_distir.planning.serving.batching import UNIT, ServedRequests


def interpolated(rows, columns, times, row, column):
    """Bilinear between points, linear beyond."""
    i = below(rows, row)
    j = below(columns, column)
    u = (row - rows[i]) / float(rows[i + 1] - rows[i])
    v = (column - columns[j]) / float(columns[j + 1] - columns[j])
    first = times[i][j] + (times[i][j + 1] - times[i][j]) * v
    second = times[i + 1][j] + (times[i + 1][j + 1] - times[i + 1][j]) * v
    return first + (second - first) * u


def below(axis, value):
    i = 0
    while i + 2 < len(axis) and axis[i + 1] <= value:
        i += 1
    return i


@dataclass
class Entry:
    arrival: int
    input: int
    output: int
    prefix: int
    prefix_tokens: int
    filled: bool
    held: int = 0
    pages: int = 0
    shared: int = 0
    made: int = 0
    again: int = 0
    uses_prefix: bool = False
    first: int = -1
    finish: int = -1
    start: int = -1
    preemptions: int = 0
    replica: int = -1


class ReferenceReplicas:
    """Serves requests by engines in order of time, and routes each when it arrives."""

    def __init__(self, requests, times, options, pages, page, users, filled, pools, replicas):
        self.requests, self.users, self.router = requests, users, replicas.router
        columns = (
            requests.arrival_ps, requests.input_tokens, requests.output_tokens,
            requests.prefix_id, requests.prefix_tokens,
        )  # fmt: skip
        self.entries = [Entry(*map(int, row), filled) for row in zip(*columns, strict=True)]
        for e in self.entries:
            e.again = 0 if filled else e.input
        self.engines = [
            ReferenceEngine(self, times, options, pages, page, pools) for _ in range(replicas.count)
        ]
        first = min(users, len(self.entries)) if users else len(self.entries)
        self.arriving = sorted((e.arrival, n) for n, e in enumerate(self.entries[:first]))
        self.later = list(range(first, len(self.entries)))

    def run(self):
        routed = 0
        while any(e.finish < 0 for e in self.entries):
            ready = [(x.now, k) for k, x in enumerate(self.engines) if x.running or x.waiting]
            if self.arriving and (not ready or self.arriving[0][0] <= min(ready)[0]):
                time, number = self.arriving.pop(0)
                replica = routed % len(self.engines)
                if self.router == "least_requests":
                    loads = [self.in_flight(k, time) for k in range(len(self.engines))]
                    replica = loads.index(min(loads))
                routed += 1
                self.entries[number].replica = replica
                engine = self.engines[replica]
                if not engine.running and not engine.waiting:
                    engine.now = max(engine.now, time)
                engine.waiting.append(number)
            else:
                self.engines[min(ready)[1]].step()
        return [(np.array(self.places(k), np.int64), self.served(k)) for k in self.numbers()]

    def numbers(self):
        return range(len(self.engines))

    def places(self, replica):
        return [n for n, e in enumerate(self.entries) if e.replica == replica]

    def in_flight(self, replica, time):
        mine = [e for e in self.entries if e.replica == replica]
        return sum(not 0 <= e.finish <= time for e in mine)

    def served(self, replica):
        which = self.places(replica)
        e = [self.entries[n] for n in which]
        column = lambda name: np.array([getattr(x, name) for x in e], np.int64)  # noqa: E731
        steps = np.array(self.engines[replica].steps, np.int64).reshape(-1, 5)
        requests = replace(self.requests.some(which), arrival_ps=column("arrival"))
        return ServedRequests(
            requests, column("first"), column("finish"), column("start"), column("preemptions"),
            steps,
        )  # fmt: skip

    def ended(self, time):
        """The next request of a closed loop arrives when another has its answer."""
        if self.users and self.later:
            number = self.later.pop(0)
            self.entries[number].arrival = time
            self.arriving = sorted([*self.arriving, (time, number)])


class ReferenceEngine:
    """Serves requests one step after the other, as the words of ``batching`` say."""

    def __init__(self, whole, times, options, pages, page, pools):
        self.whole, self.entries, self.pools = whole, whole.entries, pools
        self.times, self.options, self.page = times, options, page
        self.total = self.free = pages
        self.gain = round(times.gain * UNIT)
        self.overhead = round(options.step_overhead_us * 1e6)
        self.axes = [x.tolist() for x in (times.batches, times.contexts, times.tokens, times.pasts)]
        self.decode = times.decode_ps.astype(float).tolist()
        self.prefill = times.prefill_ps.astype(float).tolist()
        self.prefixes = {}
        self.now, self.waiting, self.running, self.steps = 0, [], [], []

    def make_room(self, count):
        while self.free < count:
            idle = [(p["used_at"], k) for k, p in self.prefixes.items() if p["users"] == 0]
            if not idle:
                return False
            self.free += self.prefixes.pop(min(idle)[1])["pages"]
        return True

    def grow(self, e, tokens):
        more = -(-tokens // self.page) - e.shared - e.pages
        if more <= 0:
            return True
        if not self.make_room(more):
            return False
        self.free -= more
        e.pages += more
        return True

    def release(self, e):
        self.free += e.pages
        e.pages = e.held = 0
        if e.uses_prefix:
            self.prefixes[e.prefix]["users"] -= 1
            self.prefixes[e.prefix]["used_at"] = self.now
            e.uses_prefix = False
        e.shared = 0

    def admit(self, number, tokens):
        e = self.entries[number]
        before = e.again
        known = self.prefixes.get(e.prefix) if e.prefix >= 0 and not e.filled else None
        if known is not None:
            known["users"] += 1
            known["used_at"] = self.now
            e.uses_prefix, e.shared = True, known["pages"]
            e.held = min(known["pages"] * self.page, e.again - 1)
            e.again -= e.held
        arrives_full = e.filled and e.held == 0
        needed = e.input + 1 if arrives_full else e.held + min(tokens, e.again)
        if not self.grow(e, needed):
            self.release(e)
            e.again = before
            return False
        if arrives_full:
            e.held, e.made = e.input, e.made or UNIT
        if e.start < 0:
            e.start = self.now
        self.running.append(number)
        return True

    def preempt(self, place):
        number = self.running.pop(place)
        e = self.entries[number]
        known = e.held + e.again
        self.release(e)
        e.again, e.filled = known, False
        e.preemptions += 1
        self.waiting.insert(0, number)
        self.preempted = True

    def choose_decoding(self, budget):
        chosen, place = [], 0
        while place < len(self.running):
            e = self.entries[self.running[place]]
            if e.again > 0 or budget <= 0:
                place += 1
                continue
            while not self.grow(e, e.held + 1):
                if len(self.running) > place + 1:
                    self.preempt(len(self.running) - 1)
                    continue
                if len(self.running) > 1:
                    self.preempt(place)
                return chosen, budget
            chosen.append(self.running[place])
            budget -= 1
            place += 1
        return chosen, budget

    def step(self):
        kind, most = self.options.kind, self.options.tokens
        budget = most * self.pools
        together = kind == "continuous"
        chunks, decoding = [], []
        prompts = any(self.entries[n].again > 0 for n in self.running)
        may_admit = kind != "static" or not self.running
        self.preempted = False
        if together:
            decoding, budget = self.choose_decoding(budget)
        for number in self.running:
            e = self.entries[number]
            chunk = min(e.again, budget, most)
            if chunk > 0 and self.grow(e, e.held + chunk):
                chunks.append((number, chunk))
                budget -= chunk
        while may_admit and not self.preempted and self.waiting and budget > 0:
            if len(self.running) >= self.options.requests * self.pools:
                break
            number = self.waiting[0]
            e = self.entries[number]
            if not together and e.again > budget and chunks:
                break
            if not self.admit(number, min(budget, most)):
                break
            self.waiting.pop(0)
            if e.again == 0:
                if together:
                    decoding.append(number)
                continue
            chunks.append((number, min(e.again, budget, most)))
            budget -= chunks[-1][1]
        if not together and not chunks:
            decoding, budget = self.choose_decoding(budget)
        if not chunks and not decoding:
            assert self.running and prompts and len(self.running) > 1, "a request never fits"
            self.preempt(len(self.running) - 1)
            return
        self.work(decoding, chunks)

    def span(self, decoding, chunks):
        count = float(len(decoding))
        context = sum(float(self.entries[n].held) for n in decoding)
        context = context / count if count else 0.0
        decode = lambda past: interpolated(*self.axes[:2], self.decode, count, past)  # noqa: E731
        if not chunks:
            return decode(context)
        tokens = [float(c) for _, c in chunks]
        seen = [float(c) * (float(self.entries[n].held) + float(c) / 2) for n, c in chunks]
        filled = min(self.pools, len(chunks))
        rows = max(max(tokens), sum(tokens) / filled) + count / self.pools
        pairs = max(max(seen), sum(seen) / filled)
        time = interpolated(*self.axes[2:], self.prefill, rows, pairs / rows - rows / 2)
        if count:
            time += decode(context) - decode(0.0)
        return time

    def work(self, decoding, chunks):
        begin, used = self.now, self.total - self.free
        self.now += max(1, math.floor(self.span(decoding, chunks) + 0.5)) + self.overhead
        for number, chunk in chunks:
            e = self.entries[number]
            e.held += chunk
            e.again -= chunk
            if e.again == 0:
                self.publish(e)
                if e.made == 0:
                    e.first = self.now
                e.made += UNIT
                self.end(e)
        for number in decoding:
            e = self.entries[number]
            e.made = min(e.output * UNIT, e.made + self.gain)
            e.held = max(e.held, e.input + e.made // UNIT - 1)
            if e.first < 0:
                e.first = self.now
            self.end(e)
        self.running = [n for n in self.running if self.entries[n].finish < 0]
        prompt_tokens = sum(c for _, c in chunks)
        self.steps.append([begin, self.now - begin, len(decoding), prompt_tokens, used])

    def publish(self, e):
        pages = min(e.prefix_tokens // self.page, e.pages)
        if e.prefix < 0 or e.uses_prefix or pages == 0 or e.prefix in self.prefixes:
            return
        self.prefixes[e.prefix] = {"pages": pages, "users": 1, "used_at": self.now}
        e.pages -= pages
        e.shared, e.uses_prefix = pages, True

    def end(self, e):
        if e.made < e.output * UNIT:
            return
        e.finish = self.now
        self.release(e)
        self.whole.ended(self.now)
