# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Find systems and kernel profiles that other packages provide through entry points."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from types import ModuleType
from typing import Any

from tvm_distir.support import Offer, offers

GROUP = "tvm_distir.systems"
"""The group of entry points that provide systems: a package or folder that holds ``NAME.json``,
such a file, its content, or a function that returns any of these."""


PROFILES = "tvm_distir.kernels"
"""The group of entry points that provide kernel profiles, in the same forms."""
_KINDS = {GROUP: "system", PROFILES: "kernel profile"}


def offered_names(group: str = GROUP) -> tuple[str, ...]:
    """Return the names of the systems of other packages; nothing is imported for it."""
    return tuple(offer.name for offer in offers(group))


def offered(name: str, group: str = GROUP) -> tuple[Any, str] | Path:
    """Return the system that another package provides: plain data and its place, or a JSON file.

    ``group`` is :data:`GROUP`, or :data:`PROFILES` for kernel profiles.

    Raises
    ------
    DependencyError
        DIST0114 where that package cannot be loaded, or has no such thing.
    """
    offer = next(entry for entry in offers(group) if entry.name == name)
    content = offer.load()
    if callable(content):
        try:
            content = content()
        except Exception as error:  # whatever the package's own code raises
            raise offer.fault(f"it raised {type(error).__name__}: {error}") from error
    if isinstance(content, Mapping):
        return content, f"{offer.package}, {_KINDS[group]} {name}"
    return _file(offer, content, _KINDS[group])


def _file(offer: Offer, content: Any, kind: str) -> Path:
    if isinstance(content, ModuleType):
        folders = list(getattr(content, "__path__", ())) or [Path(str(content.__file__)).parent]
        content = Path(folders[0], f"{offer.name}.json")
    if not isinstance(content, str | Path):
        raise offer.fault(f"it is not a file, folder or description of a {kind} but {content!r}")
    path = Path(content)
    path = path / f"{offer.name}.json" if path.is_dir() else path
    if not path.is_file():
        raise offer.fault(f"there is no file {path}")
    return path
