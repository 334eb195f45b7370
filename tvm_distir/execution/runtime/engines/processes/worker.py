# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Run a rank's part of one job after the other in a worker process."""

from __future__ import annotations

import importlib
import os
import socket
import sys
from pathlib import Path
from typing import Any

import numpy as np

from tvm_distir.execution.runtime.collectives import ccl
from tvm_distir.execution.runtime.collectives.message_texts import executed_items, received_items
from tvm_distir.execution.runtime.collectives.native_fabric import NativeFabric
from tvm_distir.execution.runtime.program.cores import THREADS_VARIABLE
from tvm_distir.execution.runtime.program.machines import make_machine
from tvm_distir.execution.runtime.program.runnable import load_saved
from tvm_distir.execution.runtime.program.tensors import flat_tensors, to_array
from tvm_distir.support import EngineError

from .shared_memory import ArraySlot, Memory
from .wire import Closed, Message, close_all, receive, send

_libraries: dict[str, Any] = {}


def serve(channel: socket.socket, rank: int) -> None:
    """Run jobs until the controller ends.

    Parameters
    ----------
    channel : socket
        The socket to the controller.
    rank : int
    """
    while True:
        try:
            message, files = receive(channel)
        except Closed:
            return
        try:
            reply = _run(message, files, rank)
        finally:
            close_all(files)
        try:
            send(channel, reply)
        except Closed:
            return


def _run(message: Message, files: list[int], rank: int) -> Message:
    """Run a job; a failure goes to the fabric."""
    fabric = NativeFabric.open(files[0])
    try:
        with ccl.worker(fabric, rank):
            _compute(message, files)
        fabric.finish(rank)
    except BaseException as err:
        fabric.fail(rank, err)
    return {
        "job": message["job"],
        "executed": executed_items(fabric.executed(rank)),
        "received": received_items(fabric.received(rank)),
    }


def _compute(message: Message, files: list[int]) -> None:
    if message["one_thread"]:
        os.environ[THREADS_VARIABLE] = "1"
    sys.path[:] = message["path"]
    for name in message["preload"]:
        importlib.import_module(name)
    ccl.register()
    # Writes to an input stay here: replicas lie in the same memory.
    inputs = Memory(files[1], int(message["input_bytes"]), private=True)
    outputs = Memory(files[2], int(message["output_bytes"]))
    function = str(message["function"])
    machine = make_machine(_library(str(message["library"]), function))
    args = [inputs.tensor(ArraySlot.from_list(p)) for p in message["inputs"]]
    results = [to_array(t) for t in flat_tensors(machine[function](*args))]
    places = [ArraySlot.from_list(p) for p in message["outputs"]]
    promised = [(p.shape, p.dtype) for p in places]
    actual = [(r.shape, str(r.dtype)) for r in results]
    if actual != promised:
        raise EngineError(
            "DIST0603",
            f"the results are {actual}, dist.io declares {promised}",
            place=function,
            remedy="Lower the module again: its entry function does not match its dist.io.",
        )
    for place, result in zip(places, results):
        np.copyto(outputs.array(place), result)


def _library(path: str, function: str) -> Any:
    if path not in _libraries:
        _libraries[path] = load_saved(Path(path), function)
    return _libraries[path]
