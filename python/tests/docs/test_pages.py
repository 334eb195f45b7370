# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Every page of the docs becomes a page of the site, and no other takes its place."""

from __future__ import annotations

import re
from pathlib import Path

DOCS = Path(__file__).resolve().parents[3] / "docs"

#: Pages that Sphinx's HTML builder makes by itself, last, over any of the same name: the search,
#: the index (of letters too), indices of domains such as ``py-modindex``, OpenSearch.
MADE_BY_SPHINX = re.compile(r"search|searchindex|opensearch|genindex(-.+)?|\w+-modindex|_.+")


def test_no_page_has_the_name_of_one_that_sphinx_makes() -> None:
    pages = [p.relative_to(DOCS).with_suffix("").as_posix() for p in DOCS.rglob("*.md")]
    pages = [page for page in pages if not page.startswith("_build/")]
    assert len(pages) > 20
    assert [page for page in pages if MADE_BY_SPHINX.fullmatch(page)] == []
