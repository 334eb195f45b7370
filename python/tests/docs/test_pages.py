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


#: Files of the source tree that a page names in code font, such as ``core/plan/plan.py``.
SOURCE_PATH = re.compile(r"`((?:\w+/)+\w+\.(?:py|cc|h|json|md))`")

#: Folders of projects that pages name as examples: vTrain's sources, and a project of the reader.
FOREIGN_FOLDERS = ("src/", "include/", "python/tvm/", "rfc/", "my_project/")


def test_source_files_that_pages_name_exist() -> None:
    root = DOCS.parent
    pages = [root / "README.md", root / "CONTRIBUTING.md", *DOCS.rglob("*.md")]
    paths = {
        (page.relative_to(root).as_posix(), path)
        for page in pages
        if "_build" not in page.parts
        for path in SOURCE_PATH.findall(page.read_text())
    }
    assert len(paths) > 30
    missing = [
        (page, path)
        for page, path in sorted(paths)
        if not path.startswith(FOREIGN_FOLDERS)
        and not (root / path).exists()
        and not (root / "tvm_distir" / path).exists()
    ]
    assert missing == []


#: Pages that are lists, or that include a file.
WITHOUT_COMMAND = {"glossary", "dev/changelog", "dev/contributing", "dev/reference"}

#: A fence of what a reader can run.
RUNNABLE = re.compile(r"^```(console|bash|python)$", re.MULTILINE)


def test_each_page_begins_with_what_a_reader_can_run() -> None:
    heads = {
        page.relative_to(DOCS).with_suffix("").as_posix(): page.read_text().partition("\n## ")[0]
        for page in DOCS.rglob("*.md")
        if "_build" not in page.parts
    }
    assert set(heads) >= WITHOUT_COMMAND
    without = {name for name, head in heads.items() if RUNNABLE.search(head) is None}
    assert without == WITHOUT_COMMAND
