# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Carry errors with their fields through TVM's FFI.

The FFI makes a new Python exception of a class's name and a text where an error comes back from
C++. Its C struct has a place for more, ``extra_context`` (``TVMFFIErrorCell`` of
``tvm/ffi/c_api.h``), which travels with the error through every function, pass and thread; the
Python binding reads it and cannot set it, so it is set here. It holds the fields, as
:meth:`.DistIRError.to_dict` writes them, and the error's cause. The library of the plugin
throws its errors with the same map (``passes/ffi/refuse.cc``).
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Protocol

_PREFIX = "tvm_distir."
_CAUSES = "causes"


class Carried(Protocol):
    """The interface of errors of the package (:class:`.tree.DistIRError`)."""

    __cause__: BaseException | None

    def to_dict(self) -> dict[str, object]:
        """Return the fields."""

    def restore(self, fields: Mapping[str, object]) -> None:
        """Restore the fields."""


class _Bytes(ctypes.Structure):
    """``TVMFFIByteArray``."""

    _fields_ = (("data", ctypes.c_void_p), ("size", ctypes.c_size_t))


class _Object(ctypes.Structure):
    """``TVMFFIObject``, which every object begins with."""

    _fields_ = (
        ("reference_counts", ctypes.c_uint64),
        ("type_index", ctypes.c_int32),
        ("padding", ctypes.c_uint32),
        ("deleter", ctypes.c_void_p),
    )


class _ErrorCell(ctypes.Structure):
    """``TVMFFIErrorCell``, which follows in an error; it owns its two last handles."""

    _fields_ = (
        ("kind", _Bytes),
        ("message", _Bytes),
        ("backtrace", _Bytes),
        ("update_backtrace", ctypes.c_void_p),
        ("cause_chain", ctypes.c_void_p),
        ("extra_context", ctypes.c_void_p),
    )


def register(classes: Iterable[type[Carried]]) -> None:
    """Register error classes with the FFI, and how to reconstruct an error."""
    import tvm_ffi

    for cls in classes:
        name = _PREFIX + cls.__name__
        tvm_ffi.register_error(name, cls)
        # The FFI makes the class it finds under the name with a text alone; ours wants its fields.
        tvm_ffi.register_error(name, type(cls.__name__, (), {"__new__": _beginner(cls)}))


def _beginner(cls: type[Carried]) -> Callable[[type, str], Carried]:
    """Return the constructor of an error whose fields are restored later."""

    def begin(_: type, message: str) -> Carried:
        error: Carried = cls.__new__(cls)
        error.restore({"code": "DIST0901", "what": message, "location": "", "remedy": ""})
        return error

    return begin


def pack(error: Carried, known: type[Carried], ours: type[Carried]) -> object:
    """Make the ``tvm_ffi`` error that carries an error of ours.

    Parameters
    ----------
    error : DistIRError
    known : type
        The registered class that it comes back as.
    ours : type
        The base class of errors of ours, which carry their causes on.
    """
    import tvm_ffi

    fields = error.to_dict()
    fields[_CAUSES] = [tvm_ffi.convert(cause) for cause in _causes(error, ours)]
    context = tvm_ffi.convert(fields)
    carrier = tvm_ffi.core.Error(_PREFIX + known.__name__, str(error), "")
    address = carrier.__chandle__() + ctypes.sizeof(_Object)
    tvm_ffi.LIB.TVMFFIObjectIncRef(ctypes.c_void_p(context.__chandle__()))
    _ErrorCell.from_address(address).extra_context = context.__chandle__()
    return carrier


def _causes(error: Carried, ours: type[Carried]) -> list[Exception]:
    """Return the chain of causes up to the first error of the package."""
    chain: list[Exception] = []
    seen: list[object] = [error]
    at = error.__cause__
    while isinstance(at, Exception):
        if any(at is before for before in seen):
            return []  # a circle has no first cause
        seen.append(at)
        if not any(isinstance(before, ours) for before in chain):
            chain.append(at)
        at = at.__cause__
    return chain


def unpack(error: Carried, carrier: Any) -> None:
    """Give an error the fields and the cause that came with its ``tvm_ffi`` error."""
    fields = carrier.extra_context
    # Where TVM notes which node it visited, it keeps what it found behind its note.
    fields = getattr(fields, "prev_error_context", fields)
    if fields is None or "code" not in fields:
        return
    error.restore(fields)
    at: Carried | BaseException = error
    for cause in fields.get(_CAUSES, ()):
        at.__cause__ = inner = cause.py_error()
        at = inner
