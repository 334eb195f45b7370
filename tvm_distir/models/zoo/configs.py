# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Read and check the keys of the zoo's models."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import TYPE_CHECKING, Any, ClassVar, TypeVar

from tvm_distir.support import MAX_INT, ModelError, nearest, shortened

DTYPES = ("float32", "float16", "bfloat16")

Fault = tuple[str, str]
"""The fault of a configuration, and its remedy."""


@dataclass(frozen=True)
class Config:
    """Base class of all configurations.

    A field whose default is 0 or 1 and that is listed in ``FLAGS`` takes these two values only;
    every other number must be positive, or may be zero too when it is listed in ``MAY_BE_ZERO``.
    ``WORDS`` lists the values of texts.
    """

    FLAGS: ClassVar[frozenset[str]] = frozenset({"nested"})
    MAY_BE_ZERO: ClassVar[frozenset[str]] = frozenset()
    WORDS: ClassVar[Mapping[str, Sequence[str]]] = {"dtype": DTYPES}
    LIMITS: ClassVar[Mapping[str, int]] = dict.fromkeys(("layers", "decoder_layers", "depth"), 1024)
    """The most of what is built individually; other integers may be up to ``MAX_INT``."""

    def faults(self) -> Iterator[Fault]:
        """Yield faults and remedies, the values of single fields first."""
        for field in fields(self):
            value = getattr(self, field.name)
            if field.name in self.FLAGS:
                if value not in (0, 1):
                    yield f"{field.name}={value}", "Give 0 or 1."
            elif field.name in self.WORDS:
                if value not in self.WORDS[field.name]:
                    fault = f'unknown {field.name} "{value}"'
                    yield fault, nearest(value, self.WORDS[field.name])
            elif not isinstance(value, str) and (
                not value >= 0 or (value == 0 and field.name not in self.MAY_BE_ZERO)
            ):
                yield f"{field.name}={shortened(value)} is not positive", "Give a positive number."
            elif isinstance(value, int) and value > self.LIMITS.get(field.name, MAX_INT):
                limit = self.LIMITS.get(field.name, MAX_INT)
                yield f"{field.name}={shortened(value)} is too large", f"Give at most {limit}."


def indivisible(subject: str, size: int, by: str, count: int) -> Iterator[Fault]:
    """Yield a fault when ``count`` does not divide ``size``."""
    if size % count:
        yield (
            f"{subject}={size} is not divisible by {by}={count}",
            f"Choose {by} such that it divides {subject}.",
        )


class FourfoldFfn(Config):
    """Config with ``ffn`` defaulting to four times ``hidden``."""

    MAY_BE_ZERO = frozenset({"ffn"})

    if TYPE_CHECKING:
        ffn: int
        hidden: int

    @property
    def ffn_dim(self) -> int:
        """Return the width of the hidden layer of the feed-forward block."""
        return self.ffn or 4 * self.hidden


AnyConfig = TypeVar("AnyConfig", bound=Config)


def configure(name: str, presets: Mapping[str, AnyConfig], keys: Mapping[str, object]) -> AnyConfig:
    """Return a preset with single keys overridden.

    Parameters
    ----------
    name : str
        The name of the model, for messages.
    presets : mapping of str to config
        The sizes, the first for ``keys`` that name none.
    keys : mapping
        ``size`` and any field; values may be texts (as in a ``zoo:`` string).

    Raises
    ------
    ModelError
        DIST0331 unknown key or size, DIST0332 a value that makes no model.
    """
    rest = dict(keys)
    size = str(rest.pop("size", next(iter(presets)))).lower()
    if size not in presets:
        problem = f'the zoo\'s {name} has no size "{size}"'
        raise ModelError("DIST0331", problem, location=f"zoo:{name}", remedy=nearest(size, presets))
    base = presets[size]
    known = [field.name for field in fields(base)]
    for key in rest:
        if key not in known:
            problem = f'the zoo\'s {name} has no key "{key}"'
            remedy = nearest(key, [*known, "size"])
            raise ModelError("DIST0331", problem, location=f"zoo:{name}", remedy=remedy)
    return with_keys(f"zoo:{name}", base, rest)


def with_keys(location: str, base: AnyConfig, keys: Mapping[str, Any]) -> AnyConfig:
    """Return a configuration with single keys overridden (ModelError DIST0332 for a value)."""
    values = {k: convert_key(location, k, v, type(getattr(base, k))) for k, v in keys.items()}
    config = replace(base, **values)
    for problem, remedy in config.faults():
        raise ModelError("DIST0332", problem, location=location, remedy=remedy)
    return config


def convert_key(location: str, key: str, value: Any, kind: type) -> Any:
    """Convert the value of a key, which may be text (ModelError DIST0332)."""
    if kind is str:
        return str(value)
    try:
        number = kind(value) if not isinstance(value, float) else kind(str(value))
    except (TypeError, ValueError) as error:
        word = "an integer" if kind is int else "a number"
        problem = f"{key}={shortened(value)!r} is not {word}"
        raise ModelError("DIST0332", problem, location=location, remedy="Fix it.") from error
    return number
