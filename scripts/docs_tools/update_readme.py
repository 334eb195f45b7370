#!/usr/bin/env python3
# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Run the examples of the README and of the docs, and put their true output in place.

A slot is what stands between ``<!-- example:start -->`` and ``<!-- example:end -->``: a fenced
block whose lines ``$ command`` are run, each followed by what it printed::

    .venv/bin/python scripts/docs_tools/update_readme.py           # rewrite the slots
    .venv/bin/python scripts/docs_tools/update_readme.py --check   # exit 1: out of date

Wall-clock times differ from run to run: ``--check`` ignores the seconds in the block that a command
ends with (``Time of this run``, ``Time of this analysis``).
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

from slots import rewrite_pages

ROOT = Path(__file__).resolve().parents[2]
FILES = (
    "README.md",
    "docs/quickstart.md",
    "docs/forum_example.md",
    "docs/explain.md",
    "docs/errors.md",
    "docs/tasks/fit.md",
    "docs/tasks/gpu.md",
    "docs/tasks/plan.md",
)
READER_CLOSED = 141
"""Exit code of a pipeline whose last command, such as `head`, did not read everything."""
COMMAND_LIMIT_S = 600.0

_SLOT = re.compile(r"(?<=<!-- example:start -->\n)(.*?)(?=<!-- example:end -->)", re.DOTALL)
_TIMINGS = re.compile(r"^Time of this (?:run|analysis)\n(?:  .*\n)+", re.MULTILINE)
_SECONDS = re.compile(r" +[\d.]+ s$", re.MULTILINE)


def run(command: str) -> str:
    """Run a command of a slot in the root of the repository.

    Parameters
    ----------
    command : str
        As a person types it in the environment ``.venv``.

    Returns
    -------
    output : str
        What it wrote to stdout, without trailing blanks.

    Raises
    ------
    RuntimeError
        It failed.
    """
    environment = dict(os.environ, NO_COLOR="1", COLUMNS="100", PYTHONHASHSEED="0")
    environment["PATH"] = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    done = subprocess.run(
        ["bash", "-euo", "pipefail", "-c", command],
        cwd=ROOT,
        env=environment,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=COMMAND_LIMIT_S,
    )
    if done.returncode not in (0, READER_CLOSED):
        raise RuntimeError(f"$ {command}\nexit {done.returncode}\n{done.stderr}")
    return "\n".join(line.rstrip() for line in done.stdout.strip("\n").splitlines())


def _commands(block: str) -> list[str]:
    """Commands of a slot; a line that ends in a backslash goes on in the next."""
    return [match[1] for match in re.finditer(r"^\$ ((?:[^\n]*\\\n)*[^\n]*)$", block, re.MULTILINE)]


def regenerate(text: str) -> str:
    """Return a file's text with every slot run anew."""

    def rewrite(match: re.Match[str]) -> str:
        commands = _commands(match[1])
        if not commands:
            return match[1]
        parts = [f"$ {command}\n{run(command)}".rstrip() for command in commands]
        return "```console\n" + "\n\n".join(parts) + "\n```\n"

    return _SLOT.sub(rewrite, text)


def without_timings(text: str) -> str:
    """Return a text with the seconds of its timing blocks blanked."""
    return _TIMINGS.sub(lambda match: _SECONDS.sub(" _ s", match[0]), text)


def main() -> int:
    """Rewrite or check the slots of all files."""
    description = (__doc__ or "").splitlines()[0]
    return rewrite_pages(description, ROOT, FILES, regenerate, without_timings)


if __name__ == "__main__":
    sys.exit(main())
