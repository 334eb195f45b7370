#!/usr/bin/env python3
# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Kill, restart and damage runs with checkpoints in 1,000 ways: nothing is lost, nothing is silent.

Usage: scripts/checks/checkpoint_schedules.py [--schedules 1000] [--seed 0]
Needs gcc. Two ranks run a small step with a state that is sharded unevenly, by the loop of
``tvm-distir run --job``; their processes are forks that meet over sockets. Schedules are

- a kill of a rank at every system call of a run that changes files, before it, after it, or after
  half of a write, with a folder of checkpoints that is shared, or one for each of two hosts; then a
  restart as a scheduler does it;
- a restart after the end, a new run in the folder, a second job beside the first, other weights
  with ``--resume``, other, fewer and more steps, and another mesh;
- a flipped or truncated file, ten zeroed bytes, a missing file of a checkpoint, then a restart.

After each, every complete checkpoint has the state of the uninterrupted run bit for bit, and a run
ends with that state, or is refused with a code. Prints a line per kind. Exits 1 when one is lost.
"""

from __future__ import annotations

import argparse
import collections
import ctypes
import json
import os
import random
import shutil
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import types
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

import numpy as np

from tvm_distir.core.ir import parse_placement
from tvm_distir.execution import ServeOptions
from tvm_distir.execution.deployment.checkpoint_files import complete_steps
from tvm_distir.execution.deployment.checkpoint_reading import read_checkpoint
from tvm_distir.execution.runtime.program.io_layout import EntryFunction, Port
from tvm_distir.execution.serving.folder_runs import _ServedRun
from tvm_distir.support import DistIRError

STEPS, EVERY, ROWS = 7, 2, 7
SHAPES = {"x": (), "w": (ROWS, 3), "m": (ROWS, 3), "count": ()}
MODES = ("before", "after", "half")
_LENGTH = struct.Struct("<I")


# The program -------------------------------------------------------------------------------------


def entry(ranks: int) -> EntryFunction:
    """Return the entry function of a step on a mesh of a single axis."""
    labels = {"w": "S[0]", "m": "S[0]"}
    inputs = tuple(
        Port(i, name, shape, "float32", parse_placement(labels.get(name, "R")))
        for i, (name, shape) in enumerate(SHAPES.items())
    )
    outputs = tuple(
        Port(p.index, "loss" if p.name == "x" else p.name, p.shape, p.dtype, p.labels)
        for p in inputs
    )
    return EntryFunction("main", 0, (ranks,), tuple(range(ranks)), inputs, outputs)


def program(ranks: int) -> Any:
    """Return what a deployed folder says of the step."""
    state = types.SimpleNamespace(inputs={1: 1, 2: 2, 3: 3}, zeros=(2, 3))
    manifest = types.SimpleNamespace(state=state, hosts=1)
    return types.SimpleNamespace(
        entries=(entry(ranks),), stored={}, fingerprint="step", manifest=manifest
    )


class Tensor:
    """An array as a tensor of a session."""

    def __init__(self, array: Any) -> None:
        self._array = array

    def numpy(self) -> Any:
        """Return the array."""
        return self._array


class Session:
    """The step: momentum, weights and a counter, element by element."""

    def tensor(self, array: Any) -> Tensor:
        """Return a tensor with a copy of an array."""
        return Tensor(np.array(array))

    def call(self, inputs: Sequence[Tensor]) -> list[Tensor]:
        """Run a step."""
        x, w, m, count = (t.numpy() for t in inputs)
        m = m * np.float32(0.9) + x * (w + np.float32(1))
        return [Tensor(a) for a in (x + count, w - m / np.float32(7), m, count + np.float32(1))]


class Member:
    """A process of a job whose processes meet over sockets."""

    location = "schedule"

    def __init__(self, channel: socket.socket, rank: int, ranks: int) -> None:
        self._channel, self.rank, self.size = channel, rank, ranks
        self.ranks = list(range(ranks))

    def exchange_texts(self, text: bytes, describe: Callable[[list[int]], str]) -> list[bytes]:
        """Send a text, and wait for those of all."""
        send(self._channel, text)
        return [receive(self._channel) for _ in range(self.size)]

    def executed(self, rank: int) -> list[Any]:
        """Return no collectives."""
        return []

    received = executed


def send(channel: socket.socket, text: bytes) -> None:
    """Send a text with its length."""
    channel.sendall(_LENGTH.pack(len(text)) + text)


def receive(channel: socket.socket) -> bytes:
    """Wait for a text."""
    (size,) = _LENGTH.unpack(_exactly(channel, _LENGTH.size))
    return _exactly(channel, size)


def _exactly(channel: socket.socket, size: int) -> bytes:
    data = b""
    while len(data) < size:
        part = channel.recv(size - len(data))
        if not part:
            raise ConnectionError("another process ended")
        data += part
    return data


# Jobs --------------------------------------------------------------------------------------------


@dataclass
class Ended:
    """How a job ended: per rank its error code, or None; and calls that change files."""

    codes: list[str | None]
    calls: list[int]
    steps: list[list[float]]

    @property
    def is_right(self) -> bool:
        """Return whether all ranks ended without an error."""
        return not any(self.codes)

    @property
    def refused(self) -> bool:
        """Return whether a rank was refused with a code, and no process ended otherwise."""
        return any(str(code).startswith("DIST") for code in self.codes)


@dataclass
class Job:
    """A job: its folders by rank, its files, and where a rank is killed."""

    folders: list[Path | None]
    inputs: Path
    steps: Path
    resume: bool = False
    fatal: tuple[int, int, int] | None = None  # rank, call, mode

    def start(self) -> list[tuple[int, socket.socket]]:
        """Fork the processes; returns their ids and channels."""
        processes = []
        pairs = [socket.socketpair() for _ in self.folders]
        for rank, (_, theirs) in enumerate(pairs):
            pid = os.fork()
            if pid == 0:
                for mine, other in pairs:
                    mine.close()
                    if other is not theirs:
                        other.close()
                self._work(rank, theirs)
            processes.append((pid, pairs[rank][0]))
        for _, theirs in pairs:
            theirs.close()
        return processes

    def _work(self, rank: int, channel: socket.socket) -> None:
        code, calls, losses = None, 0, []
        shim = ctypes.CDLL(None)
        try:
            member = Member(channel, rank, len(self.folders))
            hosts = len(set(self.folders))
            run = types.SimpleNamespace(
                member=member,
                process=rank,
                local_rank=0 if hosts > 1 else rank,
                prepare=lambda: None,
                session=lambda *_: Session(),
                end=lambda: None,
            )
            folder = self.folders[rank]
            options = ServeOptions(
                inputs=self.inputs,
                steps=self.steps,
                checkpoints=folder,
                every=EVERY,
                resume=folder if self.resume else None,
                sharded=True,
            )
            _, number, mode = self.fatal or (-1, -1, 0)
            is_fatal = self.fatal is not None and self.fatal[0] == rank
            shim.kill_at_begin(ctypes.c_long(number if is_fatal else -1), mode)
            result = _ServedRun(run, program(member.size), options).run(None)
            losses = [float(a) for a in result.outputs.get(0, [])]
        except DistIRError as error:
            code = error.code
        except ConnectionError:
            code = "peer"
        except BaseException as error:
            code = f"{type(error).__name__}: {error}"
        calls = shim.kill_at_end()
        send(channel, b"end" + json.dumps([code, calls, losses]).encode())
        os._exit(0)


def finish(processes: list[tuple[int, socket.socket]]) -> Ended:
    """Pass texts between the processes of a job until all have ended."""
    channels = [channel for _, channel in processes]
    ends: list[list[Any] | None] = [None] * len(channels)
    open_now = set(range(len(channels)))
    while open_now:
        texts: dict[int, bytes] = {}
        for rank in sorted(open_now):
            try:
                text = receive(channels[rank])
            except (ConnectionError, struct.error):
                text = b""
                open_now.discard(rank)
                channels[rank].close()
                ends[rank] = ends[rank] or ["killed", 0, []]
                continue
            if text.startswith(b"end"):
                ends[rank] = json.loads(text[3:])
                open_now.discard(rank)
                channels[rank].close()
            else:
                texts[rank] = text
        if len(texts) == len(channels):
            for channel in channels:
                for rank in range(len(channels)):
                    send(channel, texts[rank])
        elif texts:
            for rank in texts:
                channels[rank].shutdown(socket.SHUT_WR)
    for pid, _ in processes:
        os.waitpid(pid, 0)
    done = [end or ["killed", 0, []] for end in ends]
    return Ended([d[0] for d in done], [d[1] for d in done], [d[2] for d in done])


def run(*words: Any, **options: Any) -> Ended:
    """Run a job to its end."""
    return finish(Job(*words, **options).start())


# Schedules ---------------------------------------------------------------------------------------


def states(count: int) -> list[dict[str, Any]]:
    """Return the state of the uninterrupted run after each step, on one device."""
    x, w = data(0)
    result, session = [], Session()
    tensors = [Tensor(w), Tensor(np.zeros_like(w)), Tensor(np.float32(0))]
    for step in range(count):
        _, *tensors = session.call([Tensor(x[step]), *tensors])
        result.append(dict(zip(("w", "m", "count"), (np.asarray(t.numpy()) for t in tensors))))
    return result


def data(seed: int) -> tuple[Any, Any]:
    """Return the data of 20 steps, and the first weights."""
    rng = np.random.default_rng(seed)
    return rng.normal(size=20).astype("float32"), rng.normal(size=SHAPES["w"]).astype("float32")


@dataclass
class Schedules:
    """The files of all schedules, and what they found."""

    root: Path
    counts: collections.Counter[str] = field(default_factory=collections.Counter)
    bad: list[str] = field(default_factory=list)
    expected: list[dict[str, Any]] = field(default_factory=lambda: states(20))

    def __post_init__(self) -> None:
        for name, seed in (("right", 0), ("other", 1)):
            x, w = data(seed)
            np.savez(self.root / f"{name}-w.npz", w=w)
            for steps in (3, STEPS, 10):
                np.savez(self.root / f"{name}-{steps}.npz", x=x[:steps])

    def files(self, inputs: str = "right", steps: str = "right", count: int = STEPS) -> Any:
        """Return the files of inputs and steps."""
        return self.root / f"{inputs}-w.npz", self.root / f"{steps}-{count}.npz"

    def folders(self, hosts: int, ranks: int = 2) -> list[Path | None]:
        """Return new folders of checkpoints, by rank."""
        place = Path(tempfile.mkdtemp(dir=self.root))
        return [place / f"host{rank if hosts > 1 else 0}" for rank in range(ranks)]

    def check(self, kind: str, right: bool, words: str) -> None:
        """Count a schedule, and note what is wrong."""
        self.counts[kind] += 1
        if not right:
            self.bad.append(f"{kind}: {words}")

    def intact(self, folders: Sequence[Path | None]) -> bool:
        """Return whether all complete checkpoints have the state of the uninterrupted run."""
        for folder in {f for f in folders if f is not None}:
            for step, path in complete_steps(folder).items():
                checkpoint = read_checkpoint(path)
                for name, array in checkpoint.arrays.items():
                    full = self.expected[step - 1][name]
                    for box, file in array.parts:
                        part = file.read(tuple((0, n) for n in file.shape))
                        if (part != full[tuple(slice(a, b) for a, b in box)]).any():
                            return False
                if checkpoint.head.step != step:
                    return False
        return True

    def last(self, folders: Sequence[Path | None]) -> int:
        """Return the last step that all folders have; 0 without one."""
        steps = [set(complete_steps(f)) for f in {f for f in folders if f is not None}]
        return max(set.intersection(*steps), default=0)

    def restart(self, kind: str, folders: list[Path | None], words: str) -> None:
        """Restart a job as a scheduler does, and check its end."""
        first = self.last(folders)
        any_there = any(complete_steps(f) for f in folders if f is not None)
        ended = run(folders, *self.files(), resume=first > 0)
        if first == 0 and any_there:  # one of two hosts has the first checkpoint: the user decides
            self.check(kind, ended.refused and self.intact(folders), f"{words}: {ended}")
            return
        right = ended.is_right and self.last(folders) == STEPS and self.intact(folders)
        right = right and all(len(steps) == STEPS - first for steps in ended.steps)
        self.check(kind, right, f"{words}: {ended}, last {self.last(folders)}")

    # Kinds

    def kill(self, hosts: int, fatal: tuple[int, int, int], twice: int | None) -> None:
        """Kill a rank, perhaps another time after a restart, then restart."""
        folders, kind = self.folders(hosts), f"killed, {hosts} file systems"
        ended = run(folders, *self.files(), fatal=fatal)
        words = f"{fatal} of {MODES[fatal[2]]}"
        if not self.intact(folders):
            self.check(kind, False, f"{words}: a checkpoint is damaged")
            return
        if twice is not None and self.last(folders):
            ended = run(folders, *self.files(), resume=True, fatal=(fatal[0], twice, fatal[2]))
        if not self.intact(folders):
            self.check(kind, False, f"{words}, again at {twice}: a checkpoint is damaged: {ended}")
            return
        self.restart(kind, folders, words)

    def finished(self) -> list[Path | None]:
        """Return the folders of a run that has ended."""
        folders = self.folders(1)
        if not run(folders, *self.files()).is_right:
            raise SystemExit("a run without faults fails")
        return folders

    def repeat(self, kind: str) -> None:
        """Restart after the end, with the same or other files, or as a new run."""
        folders = self.finished()
        if kind == "resumed after the end":
            ended = run(folders, *self.files(), resume=True)
            right = ended.is_right and not any(ended.steps)
        elif kind == "new run in the folder":
            ended = run(folders, *self.files())
            right = "DIST0160" in ended.codes
        elif kind == "second job":
            first = Job(folders, *self.files(), resume=True, fatal=None)
            self._second(first)
            return
        else:
            shutil.rmtree(Path(str(folders[0])) / f"step-{STEPS:08d}")
            inputs, steps, count = {
                "other weights": ("other", "right", STEPS),
                "other steps": ("right", "other", STEPS),
                "fewer steps": ("right", "right", 3),
                "more steps": ("right", "right", 10),
                "another mesh": ("right", "right", STEPS),
            }[kind]
            if kind == "another mesh":
                folders = folders[:1] * random.choice((1, 3))
            ended = run(folders, *self.files(inputs, steps, count), resume=True)
            if kind in ("other steps", "fewer steps"):
                right = ended.refused
            else:
                right = ended.is_right and self.last(folders) == count
        self.check(kind, right and self.intact(folders), f"{ended}")

    def _second(self, first: Job) -> None:
        folder = Path(str(first.folders[0]))
        shutil.rmtree(folder)
        first.resume = False
        processes = first.start()
        os.kill(processes[1][0], signal.SIGSTOP)  # the first job waits, perhaps with the lock
        second = run(first.folders, *self.files())
        os.kill(processes[1][0], signal.SIGCONT)
        ended = finish(processes)
        right = (ended.is_right or ended.refused) and (second.is_right or second.refused)
        right = right and ended.is_right + second.is_right >= 1 and self.intact(first.folders)
        self.check("second job", right, f"{ended}, {second}")

    def damage(self, rng: random.Random) -> None:
        """Damage a file of the last checkpoint, then restart."""
        folders = self.finished()
        folder = Path(str(folders[0]))
        shutil.rmtree(folder / f"step-{STEPS:08d}")
        files = sorted((folder / f"step-{STEPS - 1:08d}").iterdir())
        path = rng.choice(files)
        content = bytearray(path.read_bytes())
        how, at = rng.choice(("flip", "zeros", "truncate", "remove")), rng.randrange(len(content))
        if how == "flip":
            content[at] ^= 1 << rng.randrange(8)
        elif how == "zeros":
            content[at : at + 10] = bytes(len(content[at : at + 10]))
        path.write_bytes(content[:at] if how == "truncate" else content)
        if how == "remove":
            path.unlink()
        ended = run(folders, *self.files(), resume=True)
        right = ended.refused
        if ended.is_right:
            arrays = read_checkpoint(folder).arrays
            right = all(
                (arrays[k].read(tuple((0, n) for n in v.shape)) == v).all()
                for k, v in self.expected[STEPS - 1].items()
            )
        self.check(f"damaged: {how}", right, f"{path.name} at {at}: {ended}")


def preload(folder: Path) -> None:
    """Start this script again with the library that kills."""
    library = folder / "kill_at.so"
    source = Path(__file__).with_name("kill_at.c")
    command = ["gcc", "-shared", "-fPIC", "-O1", "-o", str(library), str(source), "-ldl"]
    subprocess.run(command, check=True)
    os.environ["LD_PRELOAD"] = str(library)
    os.execv(sys.executable, [sys.executable, *sys.argv])


def main() -> int:
    """Run the schedules; returns the exit code."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--schedules", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    if "kill_at" not in os.environ.get("LD_PRELOAD", ""):
        preload(Path(tempfile.mkdtemp(prefix="kill-at-")))
    library = Path(os.environ["LD_PRELOAD"])
    rng = random.Random(options.seed)
    random.seed(options.seed)
    with tempfile.TemporaryDirectory(prefix="schedules-") as root:
        schedules = Schedules(Path(root))
        kills = []
        for hosts in (1, 2):
            calls = run(schedules.folders(hosts), *schedules.files()).calls
            for rank, count in enumerate(calls):
                for call in range(count):
                    kills += [(hosts, (rank, call, mode)) for mode in range(len(MODES))]
        rng.shuffle(kills)
        repeats = ("resumed after the end", "new run in the folder", "second job", "other weights")
        repeats += ("other steps", "fewer steps", "more steps", "another mesh")
        rest = options.schedules // 3
        for hosts, fatal in kills[: options.schedules - rest]:
            schedules.kill(hosts, fatal, rng.choice((None, rng.randrange(80))))
        rest = options.schedules - sum(schedules.counts.values())
        for number in range(rest):
            if number % 2:
                schedules.damage(rng)
            else:
                schedules.repeat(repeats[number // 2 % len(repeats)])
        print(f"{len(kills)} places to be killed at")
        for kind, count in sorted(schedules.counts.items()):
            print(f"{count:5d}  {kind}")
        for words in schedules.bad[:20]:
            print(f"LOST {words}")
    print(f"{sum(schedules.counts.values())} schedules, {len(schedules.bad)} lost or silent")
    shutil.rmtree(library.parent)
    return bool(schedules.bad)


if __name__ == "__main__":
    sys.exit(main())
