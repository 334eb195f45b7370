# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Move stashes to the host's memory and back in the program of a rank."""

from __future__ import annotations

from typing import Any

from tvm import ir, relax

from tvm_distir.core import FETCH, HOST_PREFIX, typed

from .unit_writer import UnitWriter


def move_stash(writer: UnitWriter, kind: str, number: int, micro: int) -> None:
    """Write the copies of what a stage saves for a micro-batch.

    What is read behind a store is what it made, what is read behind a fetch what that made: the
    tensor on the device lives no longer than to the store.

    Parameters
    ----------
    writer : UnitWriter
        Of the rank's program.
    kind : str
        ``store`` or ``fetch``.
    number : int
        Of the stage.
    micro : int
    """
    stage = writer.stages[number]
    env = stage.micro(micro)
    for var in stage.body.stash:
        value = env[var]
        if isinstance(value, ir.Var) and value not in stage.rows.values():
            env[var] = _moved(writer, kind, value, f"{var.name}_{micro}")


def _moved(writer: UnitWriter, kind: str, value: Any, name: str) -> Any:
    if isinstance(value.ty, relax.TupleType):
        fields = [
            _moved(writer, kind, _field(writer, value, k, name), f"{name}_{k}")
            for k in range(len(value.ty.fields))
        ]
        return writer.bind(typed(relax.Tuple(fields), value.ty), name)
    function = relax.ExternFunc(f"{HOST_PREFIX}{kind}")
    if kind == FETCH:
        return writer.emit(
            relax.op.call_dps_packed(function, [value], out_ty=value.ty), f"{name}_back"
        )
    call = relax.op.call_pure_packed(function, value, ty_args=[value.ty])
    return writer.emit(call, f"{name}_host")


def _field(writer: UnitWriter, value: Any, number: int, name: str) -> Any:
    return writer.bind(
        typed(relax.TupleGetItem(value, number), value.ty.fields[number]), f"{name}_{number}"
    )


__all__ = ["move_stash"]
