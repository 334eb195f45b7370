# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0

from .candidates import Candidate as Candidate
from .candidates import Constraints as Constraints
from .driver import search as search
from .folder import Folder as Folder
from .labelling import Labelling as Labelling
from .labelling import label as label
from .result import Found as Found
from .result import Row as Row
from .result import SearchResult as SearchResult
from .second import Second as Second
