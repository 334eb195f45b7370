# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Define the configuration of a serving step: new tokens of requests, and their paged caches."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any, ClassVar

from tvm_distir.support import ModelError

from .configs import Config, indivisible, with_keys
from .decoder_config import DecoderConfig

ENTRY, SERVE = "entry", "serve"
"""The key that asks for another step than the model forward, and its value."""
CACHE_DTYPES = ("", "float32", "float16", "bfloat16", "float8_e4m3fn", "float8_e5m2")


@dataclass(frozen=True)
class CacheConfig(Config):
    """Configuration of the caches of a serving step, ``entry=serve`` of a decoder.

    The step works on ``seq`` new tokens of each of ``batch`` requests.

    Attributes
    ----------
    past : int
        Tokens of a request that its cache may hold before the step.
    page : int
        Positions of a page.
    pools : int
        Independent sets of pages, each for an equal part of the requests, in order: as many as
        data parallelism has parts, or a multiple. Experts take tokens of a pool together.
    pages : int
        Pages of a pool; 0: as many as its requests need.
    kv_dtype : str
        The dtype of caches; empty: that of the model.
    """

    MAY_BE_ZERO = frozenset({"past", "pages"})
    WORDS: ClassVar = {"kv_dtype": CACHE_DTYPES}

    past: int = 0
    page: int = 16
    pools: int = 1
    pages: int = 0
    kv_dtype: str = ""

    def columns(self, config: DecoderConfig) -> int:
        """Return the pages of a request."""
        return -(-(self.past + config.seq) // self.page)

    def pool_pages(self, config: DecoderConfig) -> int:
        """Return the pages of a pool."""
        return self.pages or config.batch // self.pools * self.columns(config)


def split_serve_keys(
    location: str, keys: Mapping[str, object]
) -> tuple[dict[str, Any], CacheConfig | None]:
    """Separate the keys of a serving step from those of the model.

    Returns
    -------
    keys : dict
        The keys of the model.
    caches : CacheConfig or None
        None without ``entry=serve``.

    Raises
    ------
    ModelError
        DIST0331 an unknown entry; DIST0332 a value that makes no step.
    """
    rest = dict(keys)
    entry = str(rest.pop(ENTRY, ""))
    if not entry:
        return rest, None
    if entry != SERVE:
        remedy = f"Use {ENTRY}={SERVE}, or remove the key."
        raise ModelError("DIST0331", f'unknown entry "{entry}"', location=location, remedy=remedy)
    values = {f.name: rest.pop(f.name) for f in fields(CacheConfig) if f.name in rest}
    return rest, with_keys(location, CacheConfig(), values)


def serving_config(location: str, config: DecoderConfig, caches: CacheConfig) -> DecoderConfig:
    """Return the configuration of a decoder whose requests and positions fit the caches.

    Raises
    ------
    ModelError
        DIST0332 for pools that do not divide the requests, and for more tokens than there are
        learned positions.
    """
    tokens = caches.past + config.seq
    if 0 < config.positions < tokens:
        problem = f"past + seq = {tokens} exceeds positions={config.positions}"
        raise ModelError("DIST0332", problem, location=location, remedy=f"Add positions={tokens}.")
    for problem, remedy in indivisible("batch", config.batch, "pools", caches.pools):
        raise ModelError("DIST0332", problem, location=location, remedy=remedy)
    return config
