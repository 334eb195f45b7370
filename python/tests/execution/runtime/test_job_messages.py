# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Messages between processes: JSON alone, failures that another program cannot write."""

from __future__ import annotations

import ast
import pickle
import stat
import tempfile
from pathlib import Path

import numpy as np
import pytest
from listening_ports import is_loopback, listening_sockets

import tvm_distir
from tvm_distir.core.collectives import Transfer
from tvm_distir.execution.runtime.collectives.message_texts import (
    array_head,
    error_text,
    read_array_head,
    read_error,
)
from tvm_distir.execution.runtime.collectives.native_library import Executed
from tvm_distir.execution.runtime.engines.job_results import Ended
from tvm_distir.execution.runtime.engines.torch.failure_store import SECRET_VARIABLE, FailureStore
from tvm_distir.support import EngineError, Faults

SIDE = ((0, 3), (2,), (1,))
TRANSFER = Transfer(4, (6, 5), SIDE, SIDE)

#: The modules that read pickles: files of a job's own folder, which no other user can write.
JOB_FOLDERS = {"job_folder.py", "job_launch.py", "mpi/failures.py"}


@pytest.mark.parametrize("meaning", [TRANSFER, "all_reduce of 3", None])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float8_e4m3fn", "bool"])
def test_heads_of_arrays(meaning, dtype):
    from tvm_distir.execution.runtime.program.io_layout import np_dtype

    array = np.zeros((2, 0, 3), np_dtype(dtype))
    assert read_array_head(array_head(meaning, array)) == (meaning, array.shape, array.dtype)


def test_reports_of_ranks():
    executed = [Executed("all_gather", ((0, 3), (1, 2)), 12, 5)]
    for report in (Ended(1, ["0a", "1b"], executed, [(TRANSFER, 2)]), Ended(None, [], [], [])):
        assert Ended.read(report.text()) == report


def test_errors():
    several = Faults("place", EngineError("DIST0602", "several"))
    several.add(EngineError("DIST0602", "one", location="a", remedy="b"))
    several.add(EngineError("DIST0619", "two"))
    with pytest.raises(EngineError) as caught:
        several.raise_all()
    got = read_error(error_text(caught.value))
    assert (type(got), str(got)) == (EngineError, str(caught.value))
    assert isinstance(read_error(error_text(KeyboardInterrupt())), KeyboardInterrupt)
    for text in (b"\x80\x04", "[]", '{"class": 1}', "3", '{"class": "EngineError"}', "[" * 9999):
        assert read_error(text).code == "DIST0612"


class Store:
    """A store of torch in memory."""

    def __init__(self):
        self.values = {}

    def set(self, key, value):
        self.values[key] = value.encode()

    def get(self, key):
        return self.values[key]

    def check(self, keys):
        return all(key in self.values for key in keys)

    def compare_set(self, key, expected, value):
        return self.values.setdefault(key, value.encode())


def test_what_is_written_without_the_secret_is_no_failure(monkeypatch):
    monkeypatch.setenv(SECRET_VARIABLE, "secret")
    store, error = Store(), EngineError("DIST0602", "the cause")
    ours = FailureStore(store, 0, [0, 1], "place", 5.0, "run/0")
    other = FailureStore(store, 1, [0, 1], "place", 5.0, "run/0")
    monkeypatch.setenv(SECRET_VARIABLE, "guess")
    foreign = FailureStore(store, 1, [0, 1], "place", 5.0, "run/0")
    try:
        assert ours.reported() is None
        for text in (pickle.dumps(error).hex(), error_text(error), "", "x" * 64):
            store.set("failure", text)
            assert ours.reported() is None
            ours.check()
        foreign.report(EngineError("DIST0602", "forged"))
        ours.check()
        assert str(ours.report(error)) == str(error)
        assert str(other.reported()) == str(error)
        assert str(other.report(EngineError("DIST0602", "later"))) == str(error)
    finally:
        for each in (ours, other, foreign):
            each.close()


def test_pickles_are_read_from_job_folders_alone():
    package = Path(tvm_distir.__file__).parent
    reading = set()
    for path in package.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Attribute) and ast.unparse(node) in (
                *("pickle.loads", "pickle.load", "pickle.Unpickler", "marshal.loads"),
            ):
                reading.add(path.as_posix().partition("/engines/")[2] or path.as_posix())
    assert reading == JOB_FOLDERS
    with tempfile.TemporaryDirectory() as folder:  # made as those of jobs are
        assert stat.S_IMODE(Path(folder).stat().st_mode) == 0o700


def test_listening_sockets_are_found():
    """The check of ports sees a socket on all addresses, and tells it from loopback."""
    import socket

    for host, loopback in (("127.0.0.1", True), ("0.0.0.0", False)):
        with socket.socket() as server:
            server.bind((host, 0))
            server.listen()
            where = f"{host}:{server.getsockname()[1]}"
            assert where in listening_sockets().values()
            assert is_loopback(where) == loopback
