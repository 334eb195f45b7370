# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Starts and asks the processes of peers: Shardy and XLA:CPU, torch DTensor."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from typing_extensions import Self


class Peer:
    """A process that answers questions, a JSON line each; its script says which.

    A process of its own, because it may live in another environment, and because a wrong shard
    ends XLA with a signal instead of an exception.

    Parameters
    ----------
    python : str
        An interpreter that can import the peer's package.
    script : str
        File beside this one.
    """

    def __init__(self, python: str, script: str) -> None:
        hidden = ("PYTHONPATH", "PYTHONHOME", "VIRTUAL_ENV")
        self._process = subprocess.Popen(
            [python, str(Path(__file__).with_name(script))],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            env={key: value for key, value in os.environ.items() if key not in hidden},
        )
        self.versions = self._read()

    def ask(self, do: str, **question: Any) -> dict[str, Any]:
        """Ask one question and wait for the answer."""
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps({"do": do, **question}) + "\n")
        self._process.stdin.flush()
        return self._read()

    def _read(self) -> dict[str, Any]:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise SystemExit(f"{self._process.args} ended with {self._process.wait()}")
        return dict(json.loads(line))

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait()


class JaxPeer(Peer):
    """The process of ``jax_peer.py``."""

    def __init__(self, python: str) -> None:
        super().__init__(python, "jax_peer.py")


class TorchPeer(Peer):
    """The process of ``torch_peer.py``."""

    def __init__(self, python: str) -> None:
        super().__init__(python, "torch_peer.py")
