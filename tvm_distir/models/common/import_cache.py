# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Cache imported modules on disk, by the content of their files and the version of the importer."""

from __future__ import annotations

import gzip
import hashlib
import importlib.metadata
import json
import zipfile
import zlib
from collections.abc import Callable, Mapping
from pathlib import Path

import tvm
from tvm import ir

from tvm_distir.support import CACHE, CacheFile, sources_digest

LARGE_BYTES = 1 << 16
"""Tensors of an archive that are larger have no influence on the module: they stay weights."""
_LATER_WINGS = ("transforms/", "performance/", "planning/", "execution/", "interface/")
_PACKAGES = ("apache-tvm", "torch", "transformers")


def cached_import(
    path: str | Path,
    batch: int | None,
    dims: Mapping[str, int] | None,
    outputs: str,
    make: Callable[[], ir.IRModule],
) -> ir.IRModule:
    """Return the module of an archive, read from :data:`.cache.CACHE` if it is there.

    Parameters
    ----------
    path : str or Path
        A ``.pt2`` archive that can be read.
    batch, dims, outputs
        The options of the import.
    make : callable
        Imports the archive. Its errors are not cached.
    """
    options = json.dumps([batch, sorted((dims or {}).items()), outputs], default=repr)
    try:
        digest = archive_digest(path)
    except (OSError, ValueError, RuntimeError, zipfile.BadZipFile, zlib.error):
        return make()  # its error says what is wrong with the archive
    return cached_content(options, make, digest)


def cached_content(
    content: str, make: Callable[[], ir.IRModule], digest: bytes = b""
) -> ir.IRModule:
    """Return the module that a text and a digest determine, cached as that of an archive is."""
    versions = [f"{name} {_version(name)}" for name in _PACKAGES]
    key = hashlib.sha256(repr((sources_digest(_LATER_WINGS), versions, content)).encode())
    key.update(digest)
    file = CacheFile(CACHE / "imports" / f"{key.hexdigest()[:32]}.json.gz")
    mod = file.read(_decoded)
    if mod is None:
        mod = make()
        file.write(gzip.compress(tvm.ir.save_json(mod).encode(), 4))
    return mod


def archive_digest(path: str | Path) -> bytes:
    """Return a digest of all that the module of an archive depends on.

    These are the members of at most :data:`LARGE_BYTES` and the JSON of programs. Of large
    tensors, which can have hundreds of GB and whose values the import does not read, the name, the
    size and the checksum of the archive's directory count.
    """
    digest = hashlib.sha256()
    with zipfile.ZipFile(path) as archive:
        for item in archive.infolist():
            _, _, name = item.filename.partition("/")  # the first folder is named after the file
            digest.update(repr((name, item.file_size, item.CRC)).encode())
            if item.file_size <= LARGE_BYTES or name.endswith(".json"):
                digest.update(archive.read(item))
    return digest.digest()


def _decoded(content: bytes) -> ir.IRModule:
    """Return the module of a cached file (ValueError if it holds none)."""
    try:
        mod = tvm.ir.load_json(gzip.decompress(content).decode())
    except (AttributeError, LookupError, RuntimeError) as error:
        raise ValueError(f"it is no module of TVM ({type(error).__name__})") from error
    if not isinstance(mod, ir.IRModule):
        raise ValueError(f"it is a {type(mod).__name__}, not a module")
    return mod


def _version(package: str) -> str:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return ""
