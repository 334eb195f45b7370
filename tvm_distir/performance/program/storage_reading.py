# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Read storage plans from JSON."""

from __future__ import annotations

from tvm_distir.support import JsonValue

from .storage import BRANCH, CALL, FREE, RETURN, TAKE, Storage, StorageFunction, StorageStep

_COUNTS = {TAKE: (1, 1), FREE: (1, None), CALL: (None, 1), BRANCH: (None, 2)}
"""The numbers of blocks and names of a step of each kind; None: any number."""


def read_storage(data: JsonValue) -> Storage:
    """Read a storage plan and check that callees exist and blocks are allocated first."""
    fields = data.object(("entries", "functions"))
    functions = {name: _function(item) for name, item in fields["functions"].fields()}
    entries = tuple(item.text() for item in fields["entries"].items())
    called = {
        name
        for fn in functions.values()
        for s in fn.steps
        if s.kind in (CALL, BRANCH)
        for name in s.names
    }
    missing = sorted({*called, *entries} - set(functions))
    if missing:
        raise data.wrong(f"there is no function {missing[0]!r}", "Plan the storage again.")
    return Storage(functions, entries)


def _function(data: JsonValue) -> StorageFunction:
    fields = data.object(("steps", "results"))
    steps = tuple(_step(item) for item in fields["steps"].items())
    results = fields["results"].integers()
    known: set[int] = set()
    for step in steps:
        if step.kind in (FREE, RETURN) and not known.issuperset(step.blocks):
            raise data.wrong(
                f"a block is released that is not allocated: {list(step.blocks)}", "Plan it again."
            )
        known.update(step.blocks)
    if not known.issuperset(results):
        raise data.wrong("a result is not allocated", "Plan the storage again.")
    return StorageFunction(steps, results)


def _step(data: JsonValue) -> StorageStep:
    parts = list(data.items())
    if len(parts) != 4:
        raise data.wrong(f"a step has {len(parts)} parts", "Plan the storage again.")
    kind, blocks, size, names = parts
    step = StorageStep(
        kind.word((TAKE, FREE, CALL, BRANCH, RETURN)),
        blocks.integers(),
        size.integer(),
        tuple(item.text() for item in names.items()),
    )
    block_count, name_count = _COUNTS.get(step.kind, (None, None))
    if block_count not in (None, len(step.blocks)) or name_count not in (None, len(step.names)):
        what = f"a {step.kind} has {len(step.blocks)} blocks and {len(step.names)} names"
        raise data.wrong(what, "Plan the storage again.")
    return step
