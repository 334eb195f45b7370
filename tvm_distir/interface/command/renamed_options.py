# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Name the commands and options that replace those of earlier versions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from tvm_distir.support import UsageError

_COMMANDS: Mapping[str, str] = {"serve": "tvm-distir run FOLDER --job"}
"""What replaces a command."""
_OPTIONS: Mapping[str, Mapping[str, str]] = {
    "search": {
        "--serve": "tvm-distir serve-search",
        "--micro-batch": "--micro-batch-sizes",
        "--fix": "--fixed",
        "--jobs": "--workers",
    },
    "sweep": {"--jobs": "--workers"},
    "calibrate": {"--jobs": "--workers"},
    "convert": {"--to": "--level"},
    "serve-search": {"--kv-dtypes": "--kv-dtype"},
}
"""What replaces an option, by command."""


def check_renamed(words: Sequence[str]) -> None:
    """Refuse (UsageError DIST0150) earlier names, naming what replaces them.

    Parameters
    ----------
    words : sequence of str
        The arguments of the command line.
    """
    if not words:
        return
    command = words[0]
    renamed = _COMMANDS if command in _COMMANDS else _OPTIONS.get(command, {})
    for word in words:
        old = word.partition("=")[0]
        if old in renamed:
            raise UsageError(
                "DIST0150", f"{old} has another name now", location=f"tvm-distir {command}",
                remedy=f"Write {renamed[old]}.",
            )  # fmt: skip
