# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Name the sizes of the zoo that are published models: ``hf:Qwen/Qwen3-8B``."""

from __future__ import annotations

from collections.abc import Mapping

from tvm_distir.support import ModelError, nearest

HUB = "hf:"

PUBLISHED: Mapping[str, str] = {
    "allenai/OLMo-2-0325-32B": "olmo?size=2-32b",
    "allenai/OLMo-2-1124-13B": "olmo?size=2-13b",
    "allenai/OLMo-2-1124-7B": "olmo?size=2-7b",
    "deepseek-ai/DeepSeek-R1": "deepseek?size=v3",
    "deepseek-ai/DeepSeek-V2": "deepseek?size=v2",
    "deepseek-ai/DeepSeek-V2-Lite": "deepseek?size=v2-lite",
    "deepseek-ai/DeepSeek-V3": "deepseek?size=v3",
    "google-bert/bert-base-uncased": "bert?size=bert-base",
    "google-bert/bert-large-uncased": "bert?size=bert-large",
    "google-t5/t5-11b": "t5?size=11b",
    "google-t5/t5-3b": "t5?size=3b",
    "google-t5/t5-base": "t5?size=base",
    "google-t5/t5-large": "t5?size=large",
    "google-t5/t5-small": "t5?size=small",
    "google/flan-t5-base": "t5?size=flan-base",
    "google/flan-t5-large": "t5?size=flan-large",
    "google/flan-t5-xl": "t5?size=flan-xl",
    "google/flan-t5-xxl": "t5?size=flan-xxl",
    "google/gemma-2-27b": "gemma?size=2-27b",
    "google/gemma-2-9b": "gemma?size=2-9b",
    "google/gemma-3-27b-pt": "gemma?size=3-27b",
    "google/vit-base-patch16-224": "vit?size=vit-b16",
    "google/vit-large-patch16-224": "vit?size=vit-l16",
    "meta-llama/Llama-2-13b-hf": "llama?size=13b",
    "meta-llama/Llama-2-70b-hf": "llama?size=70b",
    "meta-llama/Llama-2-7b-hf": "llama?size=7b",
    "meta-llama/Llama-3.1-405B": "llama3?size=3.1-405b",
    "meta-llama/Llama-3.1-70B": "llama3?size=3.1-70b",
    "meta-llama/Llama-3.1-8B": "llama3?size=3.1-8b",
    "meta-llama/Llama-3.2-1B": "llama3?size=3.2-1b",
    "meta-llama/Llama-3.2-3B": "llama3?size=3.2-3b",
    "meta-llama/Llama-3.3-70B-Instruct": "llama3?size=3.1-70b",
    "meta-llama/Meta-Llama-3-70B": "llama3?size=3-70b",
    "meta-llama/Meta-Llama-3-8B": "llama3?size=3-8b",
    "microsoft/Phi-3-mini-4k-instruct": "phi?size=3-mini",
    "microsoft/phi-4": "phi?size=4",
    "mistralai/Mistral-7B-v0.3": "mistral?size=7b",
    "mistralai/Mistral-Nemo-Base-2407": "mistral?size=nemo-12b",
    "mistralai/Mixtral-8x22B-v0.1": "mixtral?size=8x22b",
    "mistralai/Mixtral-8x7B-v0.1": "mixtral?size=8x7b",
    "openai-community/gpt2": "gpt?size=gpt2",
    "openai-community/gpt2-large": "gpt?size=gpt2-large",
    "openai-community/gpt2-medium": "gpt?size=gpt2-medium",
    "openai-community/gpt2-xl": "gpt?size=gpt2-xl",
    "openai/gpt-oss-120b": "gpt_oss?size=120b",
    "openai/gpt-oss-20b": "gpt_oss?size=20b",
    "openai/whisper-base": "whisper?size=base",
    "openai/whisper-large-v2": "whisper?size=large-v2",
    "openai/whisper-large-v3": "whisper?size=large-v3",
    "openai/whisper-medium": "whisper?size=medium",
    "openai/whisper-small": "whisper?size=small",
    "openai/whisper-tiny": "whisper?size=tiny-39m",
    "Qwen/Qwen2.5-32B": "qwen2?size=32b",
    "Qwen/Qwen2.5-72B": "qwen2?size=72b",
    "Qwen/Qwen2.5-7B": "qwen2?size=7b",
    "Qwen/Qwen3-235B-A22B": "qwen3?size=235b-a22b",
    "Qwen/Qwen3-30B-A3B": "qwen3?size=30b-a3b",
    "Qwen/Qwen3-32B": "qwen3?size=32b",
    "Qwen/Qwen3-8B": "qwen3?size=8b",
    "tiiuae/falcon-40b": "falcon?size=40b",
    "tiiuae/falcon-7b": "falcon?size=7b",
}
"""The model of the zoo of each published name. Names are read in any case, with or without the
publisher."""


def published_names() -> dict[str, str]:
    """Return the names of the hub by what a MODEL string may write: lowercase, owner optional."""
    names = {full.lower(): full for full in PUBLISHED}
    names.update({full.lower().partition("/")[2]: full for full in PUBLISHED})
    return names


def zoo_spec(spec: str) -> str:
    """Return the MODEL string of the zoo for ``hf:NAME?key=value,...``; others unchanged.

    Raises
    ------
    ModelError
        DIST0330 for a name that is not in the list.
    """
    if not spec.startswith(HUB):
        return spec
    name, mark, keys = spec.removeprefix(HUB).partition("?")
    names = published_names()
    if name.lower() not in names:
        problem = "the list of published models does not have this name"
        remedy = f"{nearest(name.lower(), names)} Or give the path of its config.json."
        raise ModelError("DIST0330", problem, location=f"{HUB}{name}", remedy=remedy)
    model = PUBLISHED[names[name.lower()]]
    return f"zoo:{model},{keys}" if mark else f"zoo:{model}"
