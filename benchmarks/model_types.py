"""Which model types of transformers run as a backbone: each is tried with a tiny random model of its class.

    python benchmarks/model_types.py                # all types, a quarter of an hour; each result on stderr
    python benchmarks/model_types.py mamba2 opt     # some types, each with its result
    python benchmarks/model_types.py --known        # only the known backbones, with their parameters by group

A type runs if its model is loaded with all blocks, loaded with its own input (text or images, if it has one) and one
block, and drawn at random; the tests of `reservoir.backbones.generic_checks` run every time. A result names the model's
own input, and the part that runs if not all of it does. Some types that are counted as refused run at their published
sizes, because none of the tiny configurations suits them.
"""

from __future__ import annotations

import argparse
import re
import signal
import sys
import tempfile
import warnings
from collections import Counter
from collections.abc import Collection, Iterable, Iterator
from copy import deepcopy
from dataclasses import dataclass
from typing import Any

import torch
import transformers

from reservoir.backbone_names import KNOWN_BACKBONES
from reservoir.backbones import GROUPS, Backbone, families, find, load_backbone, load_native
from reservoir.backbones.backbone import group_counts, parameter_count
from reservoir.backbones.family import HubLoader
from reservoir.errors import InputError, first_line

SECONDS = 200  # for each type; one took 47 beside other work
MOST_PARAMETERS = 1e8

# Settings of a tiny model, for every configuration that has them.
SMALL = {
    **dict.fromkeys(
        ("num_hidden_layers", "num_layers", "encoder_layers", "decoder_layers", "depth", "n_layers"), 2
    ),
    **dict.fromkeys(
        ("num_encoder_layers", "num_decoder_layers", "encoder_num_layers", "decoder_num_layers"), 2
    ),
    **dict.fromkeys(
        ("hidden_size", "d_model", "embed_dim", "embedding_size", "word_embed_proj_dim", "n_embd"), 64
    ),
    **dict.fromkeys(
        ("intermediate_size", "ffn_dim", "d_ff", "encoder_ffn_dim", "decoder_ffn_dim", "d_inner"), 64
    ),
    **dict.fromkeys(("num_attention_heads", "num_key_value_heads", "num_heads", "n_head"), 4),
    **dict.fromkeys(("encoder_attention_heads", "decoder_attention_heads", "encoder_num_heads"), 4),
    **dict.fromkeys(("head_dim", "global_head_dim", "attention_head_dim", "d_kv"), 16),
    **dict.fromkeys(("moe_intermediate_size", "shared_expert_intermediate_size", "projection_dim"), 32),
    **dict.fromkeys(("q_lora_rank", "kv_lora_rank", "o_lora_rank", "state_size", "time_step_rank"), 16),
    **dict.fromkeys(("qk_rope_head_dim", "qk_nope_head_dim", "rotary_dim"), 8),
    **dict.fromkeys(("v_head_dim",), 16),
    **dict.fromkeys(("num_experts", "num_local_experts", "n_routed_experts"), 4),
    **dict.fromkeys(("num_experts_per_tok", "num_experts_per_token", "moe_topk", "top_k"), 1),
    **dict.fromkeys(("n_group", "topk_group"), 1),
    **dict.fromkeys(("vocab_size", "audio_vocab_size", "codebook_size", "vocab_size_per_layer_input"), 256),
    "entity_vocab_size": 256,
    "max_position_embeddings": 128,
    "image_size": 32,
    "patch_size": 8,
    "max_source_positions": 50,
}
TOKENS = (
    "pad_token_id",
    "bos_token_id",
    "eos_token_id",
    "decoder_start_token_id",
    "sep_token_id",
    "cls_token_id",
)
# Reasons that are the same for every size.
FINAL = (
    "without a head",
    "contains another",
    "it takes ",
    "has no list",
    "how wide",
    "library",
    "TimeoutError",
)
# What some types need in addition.
EXPERTS = {
    "n_routed_experts": 4,
    "num_experts_per_tok": 2,
    "n_group": 1,
    "topk_group": 1,
    "n_shared_experts": 1,
}
MORE = {
    "mamba2": {"num_heads": 8},
    "gpt_neo": {"attention_types": [[["global", "local"], 1]]},
    "nemotron": {"num_key_value_heads": 4},
    "chameleon": {"vocabulary_map": {"<image>": 5}},
    "emu3": {"vocabulary_map": {"<image>": 5}},
    "deepseek_v2": EXPERTS,
    "dots1": EXPERTS,
    "kyutai_speech_to_text": {"audio_pad_token_id": 1},
    "lfm2_moe": {"layer_types": ["conv", "full_attention"]},
}


HEADS = (
    "head_dim",
    "global_head_dim",
    "attention_head_dim",
    "qk_rope_head_dim",
    "qk_nope_head_dim",
    "v_head_dim",
)
DEPTHS = ("num_hidden_layers", "num_layers", "encoder_layers", "decoder_layers", "depth", "n_layers")


@dataclass(frozen=True)
class Variant:
    """How the sizes of a tiny model are chosen, where the small ones do not fit together."""

    published: Collection[str] = ()  # settings that keep their published value
    rotations: tuple[int, ...] = ()  # channels of half a head that are rotated by time, height and width


VARIANTS = (
    Variant(),
    Variant(rotations=(2, 3, 3)),
    Variant(rotations=(1, 1, 2)),
    Variant(HEADS),
    Variant(
        (
            "num_attention_heads",
            "num_key_value_heads",
            "num_heads",
            "n_head",
            "head_dim",
            "hidden_size",
            "d_model",
        )
    ),
    Variant(frozenset(SMALL) - {*DEPTHS}),
)


def tiny_config(config_class: Any, variant: Variant) -> Any:
    """Return a small configuration of a class, those inside it included."""
    default = config_class()
    settings: dict[str, Any] = {
        name: value
        for name, value in SMALL.items()
        if name not in variant.published and isinstance(_setting(default, name), int)
    }
    if "head_dim" in vars(default) and default.head_dim is None and "head_dim" not in variant.published:
        settings["head_dim"] = SMALL["head_dim"]
    if "qk_rope_head_dim" in settings and "head_dim" in settings:  # the heads' rotated part alone
        settings["head_dim"] = settings["qk_rope_head_dim"]
    for name in ("layer_types", "mlp_layer_types"):
        if isinstance(values := _setting(default, name), list):
            settings[name] = [*dict.fromkeys(values), *values][:2]  # of different types, if there are any
    for name in TOKENS:
        number = getattr(default, name, None)
        if isinstance(number, int) and number >= SMALL["vocab_size"]:
            settings[name] = 1
    rope = getattr(default, "rope_parameters", None)
    if isinstance(rope, dict) and variant.rotations:
        settings["rope_parameters"] = rope | {"mrope_section": list(variant.rotations)}
    for name, inner in vars(default).items():
        if isinstance(inner, transformers.PreTrainedConfig):
            settings[name] = tiny_config(type(inner), variant)
    return config_class(**(settings | MORE.get(config_class.model_type, {})))


def _setting(config: Any, name: str) -> Any:
    """Return a setting; None if it is computed or differs between blocks, so that it cannot be set."""
    if isinstance(getattr(type(config), config.attribute_map.get(name, name), None), property):
        return None
    try:
        return vars(config).get(name, getattr(config, name, None))
    except Exception:  # of a setting that each block may have otherwise
        return None


def result_of(kind: str) -> str:
    """Return whether a model type runs, or the reason why it was not tried or is refused."""
    if kind in families():
        return "own family"
    results: list[str] = []
    for variant in VARIANTS:
        try:
            results.append(run(tiny_config(transformers.CONFIG_MAPPING[kind], variant)))
        # The classes of transformers raise many types of errors for sizes that do not fit.
        except Exception as error:
            # Messages of imports end with the path of the package on this machine.
            message = first_line(error).partition(" from '/")[0]
            results.append(f"no tiny model: {type(error).__name__}: {message}")
        if results[-1].startswith(("runs", "own")):
            return results[-1]
        if any(reason in results[-1] for reason in FINAL):
            break
    return min(results, key=lambda result: result.startswith("no tiny"))  # a refusal says more


def run(config: Any) -> str:
    """Load a model in three ways, and return how it runs."""
    with tempfile.TemporaryDirectory() as folder:
        config.save_pretrained(folder)
        try:
            family, config = find(folder)
        except InputError as error:
            return f"refused: {str(error).replace(folder, 'folder')}"
        loader = family.loader
        if not family.is_generic:
            return "own family"
        assert isinstance(loader, HubLoader) and isinstance(loader.model, type)
        with torch.device("meta"):
            count = sum(tensor.numel() for tensor in loader.model(deepcopy(config)).parameters())
        if count >= MOST_PARAMETERS:
            return f"no tiny model: {count:,} parameters"
        torch.manual_seed(0)
        model: Any = loader.model(config)
        model.save_pretrained(folder)
        try:
            backbone = load_backbone(folder, "pretrained")
            if family.reads:
                load_native(folder, depth=1)
            drawn = load_backbone(folder, "random", seed=1, depth=1)
        except InputError as error:
            return f"refused: {str(error).replace(folder, 'folder')}"
    with torch.inference_mode():
        is_finite = drawn(torch.randn(2, 5, drawn.width)).isfinite().all()
    if not is_finite:
        return "refused: drawn at random, it returns NaN"
    part = f", {loader.part}" if loader.part else ""
    return f"runs{'' if backbone.can_pad else ', rows of equal length in a batch'}: {family.reads or 'vectors'}{part}"


def results_of(kinds: Iterable[str]) -> Iterator[tuple[str, str]]:
    """Yield each model type with its result, in the main thread, of which a type may use `SECONDS`."""
    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()

    def too_long(*_: object) -> None:
        raise TimeoutError(f"it takes more than {SECONDS} seconds")

    signal.signal(signal.SIGALRM, too_long)
    for kind in kinds:
        signal.alarm(SECONDS)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            result = result_of(kind)
        signal.alarm(0)
        yield kind, result


def main() -> None:
    """Print the table, or the results of some types."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("types", nargs="*")
    parser.add_argument("--known", action="store_true", help="Print the table of known backbones instead.")
    arguments = parser.parse_args()
    if arguments.known:
        print_known()
        return
    torch.set_num_threads(1)
    results = dict[str, str]()
    for kind, result in results_of(arguments.types or sorted(transformers.CONFIG_MAPPING.keys())):
        results[kind] = result
        print(f"{kind}: {result}", file=sys.stdout if arguments.types else sys.stderr, flush=True)
    if not arguments.types:
        print_tables(results)


def backbone_row(name: str) -> list[str]:
    """Return the cells of one backbone: its shape, whole size, and parameters by group."""
    family, config = find(name)
    with torch.device("meta"):
        backbone = Backbone(family.loader.build(config), family, config)
    longest = f"{backbone.max_tokens:,}" if backbone.max_tokens else "any"
    reads = "causal" if backbone.causal else "both ways"
    shape = [f"`{name}`", family.name, reads, str(backbone.depth), str(backbone.width), longest]
    counts = [parameter_count(backbone), *group_counts(backbone).values()]
    return [*shape, *(f"{count:,}" if count else "" for count in counts)]


def print_known() -> None:
    """Print the known backbones with their parameters by group, as Markdown, without creating weights."""
    heads = ["backbone", "family", "reads", "blocks", "width", "tokens", "whole model", *GROUPS]
    print("| " + " | ".join(heads) + " |")
    print("|" + "---|" * 3 + "--:|" * (len(heads) - 3))
    for name in KNOWN_BACKBONES:
        print("| " + " | ".join(backbone_row(name)) + " |")


def print_tables(results: dict[str, str]) -> None:
    """Print how many types have each result, what runs of them, and which types are refused for each reason."""
    print("| result | model types |")
    print("|---|--:|")
    for result, count in Counter(text.partition(":")[0] for text in results.values()).most_common():
        print(f"| {result} | {count} |")
    for title, ending in (("reason", "refused"), ("why there is no tiny model", "no tiny model")):
        kinds_by_reason: dict[str, list[str]] = {}
        for kind, text in results.items():
            result, _, reason = text.partition(": ")
            if result == ending:
                reason = re.sub(r"^model type '[^']*': |; choose another model$", "", reason)
                short = " ".join(reason.split())[:150].replace("|", "/")
                kinds_by_reason.setdefault(short, []).append(kind)
        print(f"\n| {title} | model types |\n|---|---|")
        for reason, kinds in sorted(kinds_by_reason.items(), key=lambda item: (-len(item[1]), item[0])):
            print(f"| {reason} | {', '.join(kinds)} |")


if __name__ == "__main__":
    main()
