"""Which model types of transformers run as a backbone: each is tried with a tiny random model of its class.

    python benchmarks/model_types.py                # all types, about four minutes
    python benchmarks/model_types.py mamba2 opt     # some types, each with its result

A type runs if its model is loaded with all blocks, loaded with its own input and one block, and drawn at random; the
tests of `reservoir.backbones.generic` run every time. Some types that are counted as refused run at their published
sizes, because a tiny configuration that suits most types does not suit them.
"""

from __future__ import annotations

import argparse
import inspect
import signal
import tempfile
import warnings
from collections import Counter
from typing import Any

import torch
import transformers

from reservoir.backbones import families, load_backbone, load_native
from reservoir.errors import InputError

SECONDS = 40  # for each type
MOST_PARAMETERS = 6e7

SMALL = {
    "num_hidden_layers": 2,
    "hidden_size": 64,
    "intermediate_size": 64,
    "num_attention_heads": 4,
    "num_key_value_heads": 4,
    "head_dim": 16,
    "vocab_size": 200,
    "max_position_embeddings": 128,
    "embedding_size": 64,
    "moe_intermediate_size": 32,
    "q_lora_rank": 16,
    "kv_lora_rank": 16,
    "state_size": 16,
    "time_step_rank": 16,
    **dict.fromkeys(("num_experts", "num_local_experts", "n_routed_experts"), 4),
    **dict.fromkeys(("num_experts_per_tok", "num_experts_per_token", "moe_topk", "top_k"), 1),
}
MORE = {"mamba2": {"num_heads": 8}}  # what some types need in addition
INNER = ("text_config", "vision_config", "audio_config")


def tiny_config(config_class: Any) -> Any:
    """Return a small configuration of a class, those inside it included."""
    default = config_class()
    settings: dict[str, Any] = {
        name: value
        for name, value in SMALL.items()
        if isinstance(vars(default).get(name, getattr(default, name, None)), int)
    }
    settings |= MORE.get(config_class.model_type, {})
    for name in ("layer_types", "mlp_layer_types"):
        values = getattr(default, name, None)
        if isinstance(values, list) and not isinstance(getattr(config_class, name, None), property):
            settings[name] = values[:2]
    for name in ("pad_token_id", "bos_token_id", "eos_token_id"):
        number = getattr(default, name, None)
        if isinstance(number, int) and number >= SMALL["vocab_size"]:
            settings[name] = 1
    for name in INNER:
        if isinstance(inner := getattr(default, name, None), transformers.PreTrainedConfig):
            settings[name] = tiny_config(type(inner))
    return config_class(**settings)


def result_of(kind: str) -> str:
    """Return whether a model type runs, or the reason why it was not tried or is refused."""
    config_class = transformers.CONFIG_MAPPING[kind]
    if kind in families():
        return "own family"
    if config_class not in transformers.MODEL_MAPPING:
        return "no model without a head"
    classes: Any = transformers.MODEL_MAPPING[config_class]
    model_class: Any = classes[0] if isinstance(classes, tuple | list) else classes
    if "inputs_embeds" not in inspect.signature(model_class.forward).parameters:
        return "takes no input embeddings"
    try:
        config = tiny_config(config_class)
        with torch.device("meta"):
            count = sum(tensor.numel() for tensor in model_class(config).parameters())
    except Exception:  # transformers' classes raise many types of errors for sizes that do not fit
        count = MOST_PARAMETERS
    if count >= MOST_PARAMETERS:
        return "no tiny model"
    return run(model_class, config)


def run(model_class: Any, config: Any) -> str:
    """Load a model in three ways, and return how it runs."""
    with tempfile.TemporaryDirectory() as folder:
        torch.manual_seed(0)
        model_class(config).save_pretrained(folder)
        try:
            backbone = load_backbone(folder, "pretrained")
            load_native(folder, depth=1)
            drawn = load_backbone(folder, "random", seed=1, depth=1)
        except InputError as error:
            return f"refused: {str(error).replace(folder, 'folder')}"
    with torch.inference_mode():
        is_finite = drawn(torch.randn(2, 5, drawn.width)).isfinite().all()
    if not is_finite:
        return "refused: drawn at random, it returns NaN"
    return "runs" if backbone.can_pad else "runs, rows of equal length in a batch"


def main() -> None:
    """Print the table, or the results of some types."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("types", nargs="*")
    arguments = parser.parse_args()
    warnings.filterwarnings("ignore")
    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    torch.set_num_threads(1)

    def too_long(*_: object) -> None:
        raise TimeoutError(f"it takes more than {SECONDS} seconds")

    signal.signal(signal.SIGALRM, too_long)
    results = dict[str, str]()
    for kind in arguments.types or sorted(transformers.CONFIG_MAPPING.keys()):
        signal.alarm(SECONDS)
        try:
            results[kind] = result_of(kind)
        except (
            Exception
        ) as error:  # a class that needs a package, or code that does not fit its own configuration
            # Messages of imports end with the path of the package on this machine.
            message = str(error).splitlines()[0].partition(" from '/")[0]
            results[kind] = f"refused: {type(error).__name__}: {message}"
        finally:
            signal.alarm(0)
        if arguments.types:
            print(f"{kind}: {results[kind]}", flush=True)
    if not arguments.types:
        print_tables(results)


def print_tables(results: dict[str, str]) -> None:
    """Print how many types have each result, and the reason of each refusal."""
    print("| result | model types |")
    print("|---|--:|")
    for result, count in Counter(text.partition(":")[0] for text in results.values()).most_common():
        print(f"| {result} | {count} |")
    print("\n| refused | reason |\n|---|---|")
    for kind, text in results.items():
        result, _, reason = text.partition(": ")
        if result == "refused":
            print(f"| {kind} | {' '.join(reason.split())[:150].replace('|', '/')} |")


if __name__ == "__main__":
    main()
