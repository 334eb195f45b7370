# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Write what processes send each other as JSON: reading a message runs no code of its sender."""

from __future__ import annotations

import builtins
import json
from dataclasses import astuple
from typing import Any

import numpy as np

from tvm_distir.core.collectives import Transfer
from tvm_distir.execution.runtime.program.io_layout import np_dtype
from tvm_distir.execution.runtime.program.tensors import Array
from tvm_distir.support import DistIRError, EngineError

_SIGNALS = ("KeyboardInterrupt", "SystemExit")


def tuples(items: Any) -> Any:
    """Turn the lists of JSON data into tuples, and those inside them too."""
    return tuple(map(tuples, items)) if isinstance(items, list) else items


MessageMeaning = Transfer | str | None
"""What an array is sent for: a transfer, the words of a collective, or what both sides know."""


def array_head(meaning: MessageMeaning, array: Array) -> bytes:
    """Return what is sent before the bytes of an array: its meaning, shape and type."""
    content = astuple(meaning) if isinstance(meaning, Transfer) else meaning
    return json.dumps([content, array.shape, str(array.dtype)]).encode()


def read_array_head(text: bytes) -> tuple[MessageMeaning, tuple[int, ...], np.dtype[np.generic]]:
    """Return the meaning, the shape and the type that :func:`array_head` wrote."""
    content, shape, dtype = json.loads(text)
    meaning = Transfer(*tuples(content)) if isinstance(content, list) else content
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
