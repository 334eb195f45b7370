# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0

from .auto_sharding import ShardedCandidate as ShardedCandidate
from .auto_sharding import auto_shard as auto_shard
from .constraints import Constraints as Constraints
from .driver import search as search
from .folder import Folder as Folder
from .result import SearchResult as SearchResult
from .trainer_search import TrainerSearch as TrainerSearch
