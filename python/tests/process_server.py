# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Forks processes of tests from one that has imported TVM and the package.

An import of both takes longer than most programs that tests run. ``process_client.py`` stands for
the interpreter: it sends what a new process would inherit, and the process that is forked here
takes it over. A request is refused, and run by the usual interpreter, if a new process would
differ: by options of the interpreter, by variables that Python, TVM or libraries read when they
start, or by another copy of the package on its path.
"""

from __future__ import annotations

import contextlib
import ctypes
import fcntl
import gc
import importlib.util
import marshal
import multiprocessing.process
import multiprocessing.spawn
import os
import random
import runpy
import selectors
import shutil
import signal
import socket
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType

PRELOADED = (
    "tvm.relax", "tvm.script", "numpy.ma", "numpy.random", "pydantic.dataclasses", "tvm_distir",
    "tvm_distir.interface.command.app", "tvm_distir.interface.analysis",
    "tvm_distir.execution.runtime.engines.job_launch", "tvm_distir.hardware.auto_sharding.labeller",
    "tvm_distir.execution.runtime.engines.threads.engine", "tvm_distir.models.zoo.building",
    "tvm_distir.execution.runtime.engines.virtual.engine",
    "tvm_distir.interface.report.verification", "tvm_distir.planning.strategies.megatron_lm",
    "tvm_distir.transforms.axis_orders.passes",
)  # fmt: skip
RUNTIME_ALONE = (
    "numpy.random", "mpi4py", "tvm_distir", "tvm_distir.execution.runtime.engines.mpi.engine",
    "tvm_distir.interface.command.job", "tvm_distir.interface.command.run",
    "tvm_distir.execution.serving.folder_runs", "tvm_distir.execution.deployment.checkpoint",
)  # fmt: skip
"""What is imported where processes load TVM's runtime without its compiler."""
ROOT = Path(__file__).resolve().parents[2]
"""The source of the package, from which that of the environment was installed."""
READ_AT_START = ("PYTHON", "LD_", "TVM", "OMP_", "MKL_", "LC_", "LANG", "HOME", "XDG_")
"""Beginnings of variables that are read once, when a process starts or imports."""
READ_LATER = {"PYTHONPATH", "TVM_DISTIR_DEBUG", "TVM_DISTIR_JOB_SECRET"}
"""Variables among them that are set in the process that is forked."""
REFUSED = (-1).to_bytes(4, "little", signed=True)


def settings(environment: Mapping[str, str]) -> dict[str, str]:
    """Return the variables of an environment that a process reads when it starts."""
    return {
        name: value
        for name, value in environment.items()
        if name.startswith(READ_AT_START) and name not in READ_LATER
    }


@dataclass
class Request:
    """What a new process inherits.

    Attributes
    ----------
    arguments : list of str
        Those of the interpreter.
    folder : str
    environment : dict
    files : list of int
        The numbers that open files have in the process.
    received : list of int
        The same files here.
    ignored : list of int
        Signals that are ignored.
    """

    arguments: list[str]
    folder: str
    environment: dict[bytes, bytes]
    files: list[int]
    ignored: list[int]
    received: list[int]

    @classmethod
    def read(cls, connection: socket.socket) -> Request:
        """Read a request of a client; one without arguments if it ended meanwhile."""
        head, received, _, _ = socket.recv_fds(connection, 8, 250)
        missing, text = int.from_bytes(head, "little"), b""
        while len(text) < missing:
            part = connection.recv(missing - len(text))
            if not part:
                return cls([], "", {}, [], [], received)
            text += part
        return cls(*marshal.loads(text), received=received)


class Server:
    """The process that is forked.

    Parameters
    ----------
    address : str
        The path of its socket.
    path : list of str
        The folders from which it imports before those of every process.
    """

    def __init__(self, address: str, path: list[str]) -> None:
        self.settings = settings(os.environ)
        self.base = sys.path[1:]
        sys.path[1:1] = path
        is_runtime = self.settings.get("TVM_USE_RUNTIME_LIB", "0") == "1"
        for name in RUNTIME_ALONE if is_runtime else PRELOADED:
            if importlib.util.find_spec(name.partition(".")[0]) is not None:
                importlib.import_module(name)
        package = sys.modules["tvm_distir"]
        for name in () if is_runtime else package.__all__:
            getattr(package, name)
        self.package = Path(package.__file__ or "").parents[1]
        self.listener = socket.socket(socket.AF_UNIX)
        self.listener.bind(address)
        self.listener.listen(64)
        self.events = selectors.DefaultSelector()
        self.events.register(self.listener, selectors.EVENT_READ, None)
        self.running: dict[socket.socket, int] = {}
        gc.collect()
        gc.freeze()

    def serve(self) -> Request | None:
        """Serve until the starter ends, whose end closes standard input.

        Returns
        -------
        request : Request or None
            In a process that was forked, what it has to do.
        """
        self.events.register(0, selectors.EVENT_READ, None)
        while True:
            for key, _ in self.events.select():
                if key.fileobj == 0:
                    return None
                if key.fileobj is self.listener:
                    request = self._accept()
                    if request is not None:
                        return request
                elif isinstance(key.data, socket.socket):
                    self._ended(key.data, key.fd)
                elif isinstance(key.fileobj, socket.socket):
                    self._signal(key.fileobj)

    def _accept(self) -> Request | None:
        connection, _ = self.listener.accept()
        request = Request.read(connection)
        if not self._is_usual(request):
            with contextlib.suppress(OSError):  # the client was killed
                connection.sendall(REFUSED)
            connection.close()
        else:
            child = os.fork()
            if child == 0:
                return request
            self.running[connection] = child
            self.events.register(connection, selectors.EVENT_READ, None)
            self.events.register(os.pidfd_open(child), selectors.EVENT_READ, connection)
        for number in request.received:
            os.close(number)
        return None

    def _is_usual(self, request: Request) -> bool:
        """Return whether a forked process equals a new one."""
        first = request.arguments[:1]
        names = {os.fsdecode(k): os.fsdecode(v) for k, v in request.environment.items()}
        if not first or (first[0].startswith("-") and first[0] not in ("-c", "-m")):
            return False
        if not {0, 1, 2} <= set(request.files) or settings(names) != self.settings:
            return False
        return self._finds_package(self.path_of(request))

    def _finds_package(self, path: list[str]) -> bool:
        """Return whether a process finds this copy of the package, or its source first."""
        found = (Path(folder) for folder in path if Path(folder, "tvm_distir").is_dir())
        return next(found, Path()).resolve() in (self.package.resolve(), ROOT)

    def path_of(self, request: Request) -> list[str]:
        """Return ``sys.path`` of a new process, whose first entry ``""`` is its folder."""
        kind = request.arguments[0]
        here = "" if kind == "-c" else request.folder
        if kind not in ("-c", "-m"):
            here = str(Path(request.folder, kind).resolve().parent)
        first = os.fsdecode(request.environment.get(b"PYTHONPATH", b"")).split(os.pathsep)
        more = [str(Path(request.folder, folder)) for folder in first if folder]
        return list(dict.fromkeys([here, *more, *self.base]))

    def _ended(self, connection: socket.socket, descriptor: int) -> None:
        status = os.waitpid(self.running.pop(connection), 0)[1]
        self.events.unregister(descriptor)
        os.close(descriptor)
        if connection in self.events.get_map():
            self.events.unregister(connection)
            with contextlib.suppress(OSError):  # the client was killed
                connection.sendall(status.to_bytes(4, "little"))
        connection.close()

    def _signal(self, connection: socket.socket) -> None:
        """Send the signals that a client got to its process, and kill that with the client."""
        try:
            numbers = connection.recv(64)
        except OSError:
            numbers = b""
        if not numbers:
            self.events.unregister(connection)
        for number in numbers or [signal.SIGKILL]:
            os.kill(self.running[connection], number)


def take_over(request: Request, path: list[str], executable: str) -> Callable[[], object]:
    """Let this process be the one that a client asked for, and return its program."""
    os.setpgid(0, 0)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    for number in request.ignored:
        signal.signal(number, signal.SIG_IGN)
    _open_files(request)
    os.environ.clear()
    os.environ.update({os.fsdecode(k): os.fsdecode(v) for k, v in request.environment.items()})
    os.chdir(request.folder)
    _show(request.arguments)
    sys.executable, sys.path[:] = executable, path
    sys.path_importer_cache.clear()
    importlib.invalidate_caches()
    random.seed()
    multiprocessing.process.ORIGINAL_DIR = request.folder
    multiprocessing.set_executable(executable)
    main = ModuleType("__main__")
    sys.modules["__main__"] = main
    kind, *words = request.arguments
    if kind == "-c":
        sys.argv = ["-c", *words[1:]]
        return lambda: exec(compile(words[0], "<string>", "exec"), main.__dict__)
    if kind == "-m":
        sys.argv = ["-m", *words[1:]]
        return lambda: runpy.run_module(words[0], run_name="__main__", alter_sys=True)
    sys.argv = [kind, *words]
    return lambda: runpy.run_path(kind, run_name="__main__")


def _show(arguments: list[str]) -> None:
    """Let the system list this process with arguments, as far as there is room for them."""
    fields = Path("/proc/self/stat").read_text().rpartition(")")[2].split()
    start, end = int(fields[45]), int(fields[46])
    text = b"\0".join(map(os.fsencode, [sys.executable, *arguments])) + b"\0"
    ctypes.memmove(start, text[: end - start].ljust(end - start, b"\0"), end - start)


def _open_files(request: Request) -> None:
    """Give open files the numbers that they have in the client, and close all others."""
    above = 1 + max(request.files + request.received)
    moved = [fcntl.fcntl(number, fcntl.F_DUPFD, above) for number in request.received]
    os.closerange(0, above)
    for source, number in zip(moved, request.files, strict=True):
        os.dup2(source, number)
    highest = max(int(name) for name in os.listdir("/proc/self/fd"))
    os.closerange(above, highest + 1)


def main(address: str, executable: str, *path: str) -> None:
    """Serve at an address; ``executable`` is the client, ``path`` where this process imports."""
    server = Server(address, list(path))
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    print("ready", flush=True)
    request = server.serve()
    if request is None:
        shutil.rmtree(Path(address).parent)
    else:
        take_over(request, server.path_of(request), executable)()


if __name__ == "__main__":
    main(*sys.argv[1:])
