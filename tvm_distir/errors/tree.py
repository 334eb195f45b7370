# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Error classes that keep their code, place and remedy even through TVM's FFI.

An exception raised in a Python pass reaches the caller rebuilt from its class name and
text alone, so the fields are part of the text and are read back from it.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable
from typing import ClassVar

_TEXT = re.compile(
    r"^(?P<code>DIST\d{4})(?: (?P<place>\S[^\n]*?))?: (?P<what>.*?)(?: \[(?P<remedy>[^\[\]]*)\])?$",
    re.DOTALL,
)


def nearest(name: str, known: Iterable[str]) -> str:
    """Return ``; did you mean "x"?`` for the known name nearest to ``name``, or the list.

    Parameters
    ----------
    name : str
        The unknown name.
    known : iterable of str
        What would have been right.
    """
    names = sorted(known)
    close = difflib.get_close_matches(name, names, n=1, cutoff=0.6)
    if close:
        return f'Did you mean "{close[0]}"?'
    return f"Known: {', '.join(names)}." if names else "None is known."


class DistIRError(Exception):
    """Base of all errors of the plugin.

    Parameters
    ----------
    code : str
        ``DISTnnnn`` of :data:`tvm_distir.errors.CODES`; or, alone, a whole text as ``str(error)``
        gives it (that is how the FFI rebuilds an error).
    what : str, optional
        What is wrong, as one sentence without the final stop being needed.
    place : str
        Where: ``function/binding (op)``, a file, a key of a plan.
    remedy : str
        What the user can do.
    """

    exit_code: ClassVar[int] = 1

    def __init__(
        self, code: str, what: str | None = None, *, place: str = "", remedy: str = ""
    ) -> None:
        if what is None:
            match = _TEXT.match(code)
            self.code = match["code"] if match else "DIST0901"
            self.what = match["what"] if match else code
            self.place = (match["place"] or "") if match else ""
            self.remedy = (match["remedy"] or "") if match else ""
            super().__init__(code)
            return
        self.code, self.place = code, place
        self.what = what.strip()
        self.remedy = remedy.strip().replace("[", "(").replace("]", ")")
        head = f"{code} {place}" if place else code
        tail = f" [{self.remedy}]" if self.remedy else ""
        super().__init__(f"{head}: {self.what}{tail}")

    def __str__(self) -> str:
        return str(self.args[0])


class EnvironmentError_(DistIRError):
    """A dependency or the native library is missing or wrong."""


class UsageError(DistIRError):
    """The command line or an option is wrong."""

    exit_code = 2


class MeshError(DistIRError):
    """A mesh or a placement is wrong."""


class PlanError(DistIRError):
    """A plan or a strategy is wrong or does not fit the model."""


class ModelError(DistIRError):
    """A model cannot be read or imported."""


class PropagationError(DistIRError):
    """No rule, or no placement, for a call."""


class LevelError(DistIRError):
    """A module is not at the level a pass or checker needs."""


class LoweringError(DistIRError):
    """A distributed module cannot be lowered."""


class RuntimeError_(DistIRError):
    """A lowered module cannot be run."""


class MismatchError(DistIRError):
    """The distributed program gives another result than the original."""

    exit_code = 70


class SystemError_(DistIRError):
    """A system description is missing or wrong."""


class SimulationError(DistIRError):
    """A program cannot be simulated."""


class InfeasibleError(DistIRError):
    """What was asked for cannot be done, e.g. it does not fit in memory."""

    exit_code = 3


class InternalError(DistIRError):
    """A bug of the plugin."""

    exit_code = 70


_TREE = (
    DistIRError,
    EnvironmentError_,
    UsageError,
    MeshError,
    PlanError,
    ModelError,
    PropagationError,
    LevelError,
    LoweringError,
    RuntimeError_,
    MismatchError,
    SystemError_,
    SimulationError,
    InfeasibleError,
    InternalError,
)


def register_with_ffi() -> None:
    """Make the classes survive a trip through the FFI. Called when TVM is imported by us."""
    import tvm_ffi

    for cls in _TREE:
        tvm_ffi.register_error(f"tvm_distir.{cls.__name__}")(cls)
