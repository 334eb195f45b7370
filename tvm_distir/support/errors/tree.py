# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Define the error classes, whose code, message, place and remedy are fields.

An error is reported to people by its text, and to programs by its fields: pickled, copied, written
down (:meth:`DistIRError.to_dict`) or thrown through TVM's FFI (:mod:`.ffi`) it is rebuilt from
the fields. Nothing reads them back from a text.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass
from typing import Any, ClassVar, TypeVar

_SHOWN = 20
"""Maximum number of violations in the text of an error; its fields hold all."""

Self = TypeVar("Self", bound="DistIRError")


@dataclass(frozen=True)
class Violation:
    """A fault of an error with several; the fields are those of :class:`DistIRError`."""

    code: str
    what: str
    location: str = ""
    remedy: str = ""

    def __str__(self) -> str:
        head = f"{self.code} {self.location}" if self.location else self.code
        return f"{head}: {self.what}{f' [{self.remedy}]' if self.remedy else ''}"


class DistIRError(Exception):
    """Base of all errors of the plugin.

    Parameters
    ----------
    code : str
        ``DISTnnnn`` of :data:`tvm_distir.support.errors.codes.CODES`.
    what : str
        The fault as a sentence, which may lack the final stop.
    location : str
        The place: ``function/binding (op)``, a file, a key of a plan.
    remedy : str
        The remedy that the user has.
    violations : sequence of Violation
        The single faults, where ``what`` tells of several.

    Attributes
    ----------
    violations : tuple of Violation
        The single faults; the error itself is the only fault where none were given.
    """

    exit_code: ClassVar[int] = 1

    def __init__(
        self,
        code: str,
        what: str,
        *,
        location: str = "",
        remedy: str = "",
        violations: Iterable[Violation] = (),
    ) -> None:
        super().__init__(code, what)
        self.code, self.location = code, location
        self.what, self.remedy = what.strip(), remedy.strip()
        self._listed = tuple(violations)
        self._carrier: object = None

    def __str__(self) -> str:
        violation = Violation(self.code, self.what, self.location, self.remedy)
        lines = [str(entry) for entry in (violation, *self._listed[:_SHOWN])]
        if len(self._listed) > _SHOWN:
            lines.append(f"... and {len(self._listed) - _SHOWN} more")
        return "\n  ".join(lines)

    @property
    def violations(self) -> tuple[Violation, ...]:
        """Return the single faults, of which there is at least one."""
        return self._listed or (Violation(self.code, self.what, self.location, self.remedy),)

    def placed(self: Self, where: Callable[[str], str]) -> Self:
        """Return the same error with its places mapped by ``where``."""
        fields = self.to_dict()
        for entry in (fields, *fields["violations"]):
            entry["location"] = where(entry["location"])
        return _rebuilt(type(self), fields)

    def to_dict(self) -> dict[str, Any]:
        """Return the class's name and the fields, of which JSON can be made."""
        return {
            "class": type(self)._registered().__name__,
            "code": self.code,
            "what": self.what,
            "location": self.location,
            "remedy": self.remedy,
            "violations": [asdict(violation) for violation in self._listed],
        }

    @staticmethod
    def from_dict(fields: Mapping[str, Any]) -> DistIRError:
        """Return the error that :meth:`to_dict` wrote; an unknown class becomes the base class."""
        return _rebuilt(_BY_NAME.get(str(fields["class"]), DistIRError), fields)

    def restore(self, fields: Mapping[str, Any]) -> None:
        """Restore the fields that :meth:`to_dict` wrote."""
        text = {key: str(fields[key]) for key in ("code", "what", "location", "remedy")}
        listed = fields.get("violations", ())
        DistIRError.__init__(
            self,
            text.pop("code"),
            text.pop("what"),
            **text,
            violations=[Violation(**{k: str(v) for k, v in entry.items()}) for entry in listed],
        )

    def __reduce__(self) -> tuple[object, ...]:
        extra = {k: v for k, v in vars(self).items() if k not in _FIELDS}
        return _rebuilt, (type(self), self.to_dict()), extra

    @classmethod
    def _registered(cls) -> type[DistIRError]:
        """Return the class itself, or the nearest base that every process knows."""
        return next(base for base in cls.__mro__ if base in _TREE)

    # TVM's FFI asks an exception that leaves Python for its ``__tvm_ffi_error__``, and sets it on
    # the error that it makes where the error comes back.

    @property
    def __tvm_ffi_error__(self) -> object:
        """Return the error as the FFI carries it, with the fields."""
        from .ffi import pack

        if self._carrier is not None:
            return self._carrier
        return pack(self, type(self)._registered(), DistIRError)

    @__tvm_ffi_error__.setter
    def __tvm_ffi_error__(self, carrier: object) -> None:
        from .ffi import unpack

        unpack(self, carrier)
        self._carrier = carrier


_FIELDS = ("code", "what", "location", "remedy", "_listed", "_carrier")


def _rebuilt(cls: type[Self], fields: Mapping[str, object]) -> Self:
    """Return an error of a class from its fields, whatever arguments the class itself takes."""
    error = cls.__new__(cls)
    error.restore(fields)
    return error


class DependencyError(DistIRError):
    """A dependency or the native library is missing or wrong."""


class UsageError(DistIRError):
    """The command line or an option is wrong."""

    exit_code = 2


class OutputError(DistIRError):
    """A file of the user would be replaced."""


class MeshError(DistIRError):
    """A mesh or a placement is wrong."""


class PlanError(DistIRError):
    """A plan or a strategy is wrong or does not fit the model."""


class ModelError(DistIRError):
    """A model cannot be read or imported."""


class PropagationError(DistIRError):
    """A call has no propagation rule or no placement."""


class LevelError(DistIRError):
    """A module is not at the level a pass or checker needs."""


class LoweringError(DistIRError):
    """A distributed module cannot be lowered."""


class EngineError(DistIRError):
    """A lowered module cannot be run."""


class MismatchError(DistIRError):
    """The distributed program gives another result than the original."""

    exit_code = 70


class WrongProgramError(MismatchError):
    """A program that others distributed gives another result than its reference."""

    exit_code = 1


class HardwareError(DistIRError):
    """A system description is missing or wrong."""


class SimulationError(DistIRError):
    """A program cannot be simulated."""


class InfeasibleError(DistIRError):
    """The request is infeasible, for example because it does not fit in memory.

    ``least_bytes`` is what it needs on a device at least, 0 where that is not known.
    """

    exit_code = 3
    least_bytes: int = 0


class InternalError(DistIRError):
    """A bug of the plugin."""

    exit_code = 70


_TREE: tuple[type[DistIRError], ...] = tuple(
    kind
    for kind in list(globals().values())
    if isinstance(kind, type) and issubclass(kind, DistIRError)
)
REFUSALS = tuple(kind for kind in _TREE if kind not in (DistIRError, InternalError))
"""The errors that refuse an input: all but :class:`InternalError`, which is a bug."""
_BY_NAME = {cls.__name__: cls for cls in _TREE}


def register_with_ffi() -> None:
    """Make the classes survive a trip through the FFI. Called when TVM is imported by us."""
    from .ffi import register

    register(_TREE)
