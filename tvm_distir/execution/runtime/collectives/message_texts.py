# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Write what processes send each other as JSON: reading a message runs no code of its sender."""

from __future__ import annotations

import builtins
import json
from collections.abc import Sequence
from typing import Any

import numpy as np

from tvm_distir.core.collectives import Transfer
from tvm_distir.execution.runtime.program.io_layout import np_dtype
from tvm_distir.execution.runtime.program.tensors import Array
from tvm_distir.support import DistIRError, EngineError

from .native_library import Executed

_SIGNALS = ("KeyboardInterrupt", "SystemExit")


def transfer_items(transfer: Transfer) -> list[object]:
    """Return a transfer as JSON data."""
    return [transfer.tag, transfer.shape, transfer.src, transfer.dst]


def read_transfer(items: Sequence[Any]) -> Transfer:
    """Return the transfer of :func:`transfer_items`."""
    tag, shape, *sides = items
    src, dst = (tuple(tuple(part) for part in side) for side in sides)
    return Transfer(int(tag), tuple(shape), src, dst)  # type: ignore[arg-type]


def executed_items(executed: Sequence[Executed]) -> list[list[object]]:
    """Return collectives that a rank executed as JSON data."""
    return [[e.kind, e.groups, e.result_bytes, e.count] for e in executed]


def read_executed(items: Sequence[Sequence[Any]]) -> list[Executed]:
    """Return the collectives of :func:`executed_items`."""
    return [
        Executed(kind, tuple(tuple(group) for group in groups), size, count)
        for kind, groups, size, count in items
    ]


def received_items(received: Sequence[tuple[Transfer, int]]) -> list[list[object]]:
    """Return transfers and the bytes of an element of each as JSON data."""
    return [[transfer_items(transfer), element_bytes] for transfer, element_bytes in received]


def read_received(items: Sequence[Sequence[Any]]) -> list[tuple[Transfer, int]]:
    """Return the transfers of :func:`received_items`."""
    return [(read_transfer(transfer), int(element_bytes)) for transfer, element_bytes in items]


MessageMeaning = Transfer | str | None
"""What an array is sent for: a transfer, the words of a collective, or what both sides know."""


def array_head(meaning: MessageMeaning, array: Array) -> bytes:
    """Return what is sent before the bytes of an array: its meaning, shape and type."""
    content = transfer_items(meaning) if isinstance(meaning, Transfer) else meaning
    return json.dumps([content, array.shape, str(array.dtype)]).encode()


def read_array_head(text: bytes) -> tuple[MessageMeaning, tuple[int, ...], np.dtype[np.generic]]:
    """Return the meaning, the shape and the type that :func:`array_head` wrote."""
    content, shape, dtype = json.loads(text)
    meaning = read_transfer(content) if isinstance(content, list) else content
    return meaning, tuple(shape), np_dtype(dtype)


def error_text(error: BaseException) -> str:
    """Return an error of this package, or an interruption, as JSON.

    Raises
    ------
    TypeError
        For another exception, which :func:`~.fabric.worker_failed` describes.
    """
    if isinstance(error, DistIRError):
        return json.dumps(error.to_dict())
    name = type(error).__name__
    if name not in _SIGNALS:
        raise TypeError(f"{name} is not sent between processes")
    return json.dumps({"class": name})


def read_error(text: str | bytes) -> BaseException:
    """Return the error of :func:`error_text`; DIST0612 where it is none."""
    try:
        fields = json.loads(text)
        if fields["class"] in _SIGNALS:
            signal: BaseException = getattr(builtins, fields["class"])()
            return signal
        return DistIRError.from_dict(fields)
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as err:
        problem = f"a process reports a failure that cannot be read: {err}"
        remedy = "Check that no other program writes into the store of the job."
        return EngineError("DIST0612", problem, location="job", remedy=remedy)
