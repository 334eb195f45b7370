# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Look up plugins by name: those of this package, of entry points and of this process.

Names are known without an import; the target of a name is imported when it is requested.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from importlib import import_module, metadata
from typing import Any

from tvm_distir.support.errors.tree import DependencyError, UsageError


@dataclass(frozen=True)
class Offer:
    """An entry point of an installed package.

    Attributes
    ----------
    name : str
    target : str
        ``package.module:attribute``, or a module.
    package : str
        The distribution that offers it.
    """

    name: str
    target: str
    package: str

    def load(self) -> Any:
        """Import the target of the entry point.

        Raises
        ------
        DependencyError
            DIST0114 where it cannot be imported.
        """
        try:
            return _attribute(self.target)
        except Exception as error:  # whatever the package's own code raises at import
            raise self.fault(f"it cannot be loaded: {type(error).__name__}: {error}") from error

    def fault(self, problem: str) -> DependencyError:
        """Return the error of a faulty entry point."""
        return DependencyError(
            "DIST0114",
            problem,
            location=f"{self.package}, entry point {self.name} = {self.target}",
            remedy="Repair this package, or uninstall it.",
        )


@dataclass(frozen=True)
class ProcessOffer(Offer):
    """A target that this process registered, as a script or a notebook does."""

    item: object

    def load(self) -> object:
        """Return the target."""
        return self.item

    def fault(self, problem: str) -> DependencyError:
        """Return the error of a faulty registration."""
        where, remedy = f'the registration of "{self.name}"', "Correct it, and register it anew."
        return DependencyError("DIST0114", problem, location=where, remedy=remedy)


_registrations: dict[tuple[str, str], ProcessOffer] = {}
"""By group and name."""


def all_offers(group: str) -> tuple[Offer, ...]:
    """Return the entry points of a group, sorted by name, and what this process registered.

    Names may repeat.
    """
    additions = (offer for (of, _), offer in _registrations.items() if of == group)
    return (*_offers(group, tuple(sys.path)), *additions)


def offers(group: str) -> tuple[Offer, ...]:
    """Return the entry points of a group, each name once, in order.

    Raises
    ------
    DependencyError
        DIST0114 where two packages offer the same name.
    """
    by_name: dict[str, Offer] = {}
    for offer in all_offers(group):
        other = by_name.setdefault(offer.name, offer)
        if other.target != offer.target:
            raise offer.fault(f"{other.package} provides the same name in {group}")
    return tuple(by_name.values())


@functools.lru_cache(maxsize=8)
def _offers(group: str, path: tuple[str, ...]) -> tuple[Offer, ...]:
    """Read the metadata of all installed packages on ``path``, which is searched once."""
    result = []
    for entry in metadata.entry_points(group=group):
        package = str(entry.dist.name) if entry.dist is not None else "an installed package"
        result.append(Offer(entry.name, entry.value, package))
    return tuple(sorted(result, key=lambda offer: offer.name))


def _attribute(target: str) -> object:
    module, _, attribute = target.partition(":")
    loaded = import_module(module)
    return functools.reduce(getattr, attribute.split("."), loaded) if attribute else loaded


@dataclass(frozen=True)
class Registry:
    """A registry of targets by name.

    Attributes
    ----------
    group : str
        Entry points of this group add names.
    builtin : mapping of str to str
        Names of this package: where each is, as ``package.module:attribute``. They win over those
        that others offer.
    """

    group: str
    builtin: Mapping[str, str]

    def names(self) -> tuple[str, ...]:
        """Return all names: the built-in names in order, then those of entry points."""
        return (*self.builtin, *(offer.name for offer in self.offered().values()))

    def offered(self) -> dict[str, Offer]:
        """Return the entries of other packages, by name."""
        return {offer.name: offer for offer in offers(self.group) if offer.name not in self.builtin}

    def register(self, name: str, item: object) -> None:
        """Add a target to this process, in place of an earlier one that was registered so.

        Raises
        ------
        UsageError
            DIST0152 for a name that is no identifier, or one of this package.
        """
        if not name.isidentifier() or name in self.builtin:
            problem = f'"{name}" is a name of this package, or no identifier'
            remedy = "Choose another name."
            raise UsageError("DIST0152", problem, location=self.group, remedy=remedy)
        _registrations[self.group, name] = ProcessOffer(name, repr(item), "this process", item)

    def __contains__(self, name: object) -> bool:
        return name in self.builtin or name in self.offered()

    def load(self, name: str) -> Any:
        """Import the target of a known name.

        Raises
        ------
        KeyError
            Where the name is not known: ask with ``in`` first.
        DependencyError
            DIST0114 where what another package offers cannot be imported.
        """
        return (
            _attribute(self.builtin[name]) if name in self.builtin else self.offered()[name].load()
        )
