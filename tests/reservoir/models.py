"""Tiny models of every family, saved by transformers, and a direct computation of each family's layers."""

from __future__ import annotations

import functools
import json
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import torch
from torch import nn

from reservoir.fpt import FPT
from reservoir.inputs.input_layers import draw_layer
from reservoir.tasks.windows import Windows

WIDTH = 16

_BERT = {"num_hidden_layers": 3, "hidden_size": WIDTH, "num_attention_heads": 2, "intermediate_size": 24}
_BERT |= {"vocab_size": 20, "max_position_embeddings": 24, "initializer_range": 0.3}
_LLAMA = {"num_hidden_layers": 3, "hidden_size": WIDTH, "num_attention_heads": 2, "num_key_value_heads": 1}
_LLAMA |= {"intermediate_size": 24, "vocab_size": 20, "max_position_embeddings": 32, "initializer_range": 0.3}
_LLAMA |= {"head_dim": 8, "pad_token_id": None, "bos_token_id": 1, "eos_token_id": 1}
_T5 = {"num_layers": 3, "d_model": WIDTH, "num_heads": 2, "d_kv": 8, "d_ff": 24, "vocab_size": 20}
_VIT = {"num_hidden_layers": 3, "hidden_size": WIDTH, "num_attention_heads": 2, "intermediate_size": 24}
_DINOV2 = {"num_hidden_layers": 3, "hidden_size": WIDTH, "num_attention_heads": 2, "mlp_ratio": 2}
_DINOV2 |= {"image_size": 12, "patch_size": 4, "initializer_range": 0.3, "layerscale_value": 0.7}
_WAV = {"num_hidden_layers": 3, "hidden_size": WIDTH, "num_attention_heads": 2, "intermediate_size": 24}
_WAV |= {"conv_dim": [8, 8], "conv_kernel": [10, 3], "conv_stride": [5, 2], "num_conv_pos_embeddings": 6}
_WAV |= {"num_conv_pos_embedding_groups": 2, "num_feat_extract_layers": 2, "vocab_size": 20}
_LARGE = {"feat_extract_norm": "layer", "do_stable_layer_norm": True, "conv_bias": True}
_GPT2 = {"n_layer": 3, "n_embd": WIDTH, "n_head": 2, "n_positions": 32, "vocab_size": 20}

_ESM = _BERT | {"position_embedding_type": "rotary", "token_dropout": True, "pad_token_id": 1, "mask_token_id": 19}

# For each family, the class in transformers with a head, as in published checkpoints, and its settings.
MODELS = {
    "gpt2": ("GPT2LMHeadModel", _GPT2 | {"initializer_range": 0.3, "bos_token_id": 0, "eos_token_id": 0}),
    "bert": ("BertForPreTraining", _BERT),
    "roberta": ("RobertaForMaskedLM", _BERT | {"pad_token_id": 1}),
    "xlm-roberta": ("XLMRobertaForMaskedLM", _BERT | {"pad_token_id": 1}),
    "distilbert": ("DistilBertForMaskedLM", _BERT | {"hidden_dim": 24}),
    "t5": ("T5ForConditionalGeneration", _T5 | {"feed_forward_proj": "gated-gelu"}),
    "longformer": ("LongformerForMaskedLM", _BERT | {"pad_token_id": 1, "attention_window": [4, 4, 4]}),
    "mpnet": ("MPNetForMaskedLM", _BERT | {"pad_token_id": 1}),
    "vit": ("ViTForImageClassification", _VIT | {"image_size": 8, "patch_size": 4, "initializer_range": 0.3}),
    "dinov2": ("Dinov2ForImageClassification", _DINOV2),
    "wav2vec2": ("Wav2Vec2ForCTC", _WAV),
    "hubert": ("HubertForCTC", _WAV | _LARGE),
    "esm": ("EsmForMaskedLM", _ESM),
    "llama": ("LlamaForCausalLM", _LLAMA),
    "smollm3": ("SmolLM3ForCausalLM", _LLAMA | {"layer_types": None}),
    "mistral": ("MistralForCausalLM", _LLAMA | {"sliding_window": 4}),
    "qwen2": ("Qwen2ForCausalLM", _LLAMA),
    "qwen3": ("Qwen3ForCausalLM", _LLAMA),
    "gemma": ("GemmaForCausalLM", _LLAMA | {"pad_token_id": 0}),
    "gemma2": ("Gemma2ForCausalLM", _LLAMA | {"pad_token_id": 0, "sliding_window": 4}),
    "gemma3_text": ("Gemma3ForCausalLM", _LLAMA | {"pad_token_id": 0, "sliding_window": 4}),
}
# Models of images that no family describes.
OTHER_VISION = {
    "dinov3_vit": ("DINOv3ViTModel", _VIT | {"image_size": 8, "patch_size": 4, "num_register_tokens": 2}),
    "siglip": (
        "SiglipModel",
        {"vision_config": _VIT | {"image_size": 8, "patch_size": 4}, "text_config": _VIT | {"vocab_size": 20}},
    ),
}
RECURRENT = {
    "lstm": {"model_type": "lstm", "depth": 3, "width": WIDTH},
    "lstm-star": {"model_type": "lstm", "depth": 3, "width": WIDTH, "residual": True, "positions": 20},
    "esn": {"model_type": "esn", "units": WIDTH, "rc_connectivity": 0.5, "lr": 0.4, "sr": 1.1, "input_scaling": 2.0},
}
BUILT_HERE = RECURRENT | {
    "linformer": {"model_type": "linformer", "width": WIDTH, "heads": 2, "tokens": 20, "rank": 6},
    "cnn": {"model_type": "cnn", "depth": 3, "width": WIDTH, "kernel": 4},
}
KINDS = (*MODELS, *BUILT_HERE)
PIXELS = ("vit", "dinov2")
SOUNDS = ("wav2vec2", "hubert")
WORDS = ["the", "cat", "sat", "a", "dog", "and", "cow", "on", "mat"]


def make_fpt(task, backbone, seed=0):
    """Return a model with an orthogonal input layer, or Gaussian embeddings, of the published gain."""
    return FPT(task, backbone, draw_layer("orthogonal", task, Windows(), backbone.width, seed=seed), seed)


def save(kind: str, folder: Path) -> Path:
    """Write a tiny model in which every weight, including norms and biases, differs from its initial value."""
    torch.manual_seed(0)  # so that a test draws the same numbers, whether the model was built before or not
    folder.mkdir(exist_ok=True)
    for name, content in _files_of_model(kind).items():
        (folder / name).write_bytes(content)
    return folder


@functools.cache  # most kinds are saved by ten tests or more, and building a model takes longer than writing it
def _files_of_model(kind: str) -> dict[str, bytes]:
    """Return the content of each file of a model's folder by its name."""
    with TemporaryDirectory() as folder:
        _build_and_save(kind, Path(folder) / kind)
        return {path.name: path.read_bytes() for path in (Path(folder) / kind).iterdir()}


def _build_and_save(kind: str, folder: Path) -> None:
    generator = torch.Generator().manual_seed(1)
    if kind in BUILT_HERE:
        from safetensors.torch import save_file

        from reservoir.backbones import load_backbone

        folder.mkdir()
        (folder / "config.json").write_text(json.dumps(BUILT_HERE[kind]))
        model = load_backbone(str(folder), "random").model
        _stir(model, generator)
        save_file(model.state_dict(), folder / "model.safetensors")
        return
    import transformers

    name, settings = (MODELS | OTHER_VISION)[kind]
    model_class = getattr(transformers, name)
    torch.manual_seed(0)
    model = model_class(model_class.config_class(**settings))
    _stir(model, generator)
    model.save_pretrained(folder)


def save_with_tokenizer(kind: str, folder: Path) -> Path:
    """Write a tiny model, and a tokenizer of its words with the special tokens of its family."""
    from tokenizers import Tokenizer, models, pre_tokenizers, processors
    from transformers import PreTrainedTokenizerFast

    save(kind, folder)
    if kind == "esm":
        letters = ["<cls>", "<pad>", "<eos>", "<unk>", *"LAGVSERTIDPK", "<mask>"]
        (folder / "vocab.txt").write_text("\n".join(letters))
        (folder / "tokenizer_config.json").write_text('{"tokenizer_class": "EsmTokenizer"}')
        return folder
    first, last = {
        "bert": ("[CLS]", "[SEP]"), "distilbert": ("[CLS]", "[SEP]"), "roberta": ("<s>", "</s>"),
        "xlm-roberta": ("<s>", "</s>"), "longformer": ("<s>", "</s>"), "mpnet": ("<s>", "</s>"),
        "t5": ("", "</s>"), "gpt2": ("", ""),
    }.get(kind, ("<s>", ""))  # fmt: skip
    special = ["<pad>", "<one>", "<unk>", *filter(None, (first, last))]
    numbers = {word: number for number, word in enumerate([*special, *WORDS])}
    made = Tokenizer(models.WordLevel(numbers, unk_token="<unk>"))
    made.pre_tokenizer = pre_tokenizers.Whitespace()
    pieces = " ".join(filter(None, (first, "$A", last)))
    made.post_processor = processors.TemplateProcessing(
        single=pieces, special_tokens=[(token, numbers[token]) for token in filter(None, (first, last))]
    )
    # Settings for padding and truncation, which sentence-transformers leaves in its files, must have no effect.
    made.enable_truncation(3)
    made.enable_padding(length=50)
    more = {"cls_token": first} if first in ("[CLS]", "<s>") and last else {}
    PreTrainedTokenizerFast(
        tokenizer_object=made, pad_token="<one>" if "roberta" in kind or kind in ("longformer", "mpnet") else "<pad>",
        unk_token="<unk>", padding_side="left", **more,
    ).save_pretrained(folder)  # fmt: skip
    return folder


CHAT_TEMPLATE = (
    "{{ bos_token }}{% for message in messages %}<|{{ message.role }}|>"
    "{% if message.role == 'assistant' %}{% generation %}{{ message.content | trim }}{% endgeneration %}"
    "{% else %}{{ message.content | trim }}{% endif %}<|end|>{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>{% endif %}"
)


def save_with_chat_template(folder: Path, template: str = CHAT_TEMPLATE) -> Path:
    """Write a tiny Llama whose tokenizer has a chat template and its special tokens."""
    from transformers import AutoTokenizer

    save_with_tokenizer("llama", folder)
    tokenizer = AutoTokenizer.from_pretrained(folder)
    tokenizer.bos_token = "<s>"
    tokenizer.add_special_tokens({"additional_special_tokens": ["<|user|>", "<|assistant|>", "<|end|>"]})
    tokenizer.chat_template = template
    tokenizer.save_pretrained(folder)
    return folder


def save_with_letters(folder: Path, *, lower: bool = False) -> Path:
    """Write a tiny BERT of amino acids: the vocabulary of its tokenizer is single letters, as AntiBERTy's is."""
    save("bert", folder)
    (folder / "vocab.txt").write_text("\n".join(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *"LAGVSERTIDPK"]))
    settings = {"tokenizer_class": "BertTokenizer", "do_lower_case": lower}
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))
    return folder


def save_as_gguf(folder: Path, file: Path) -> None:
    """Write the weights of a folder's tiny Llama as GGUF, without a tokenizer."""
    import gguf
    from safetensors.torch import load_file

    writer = gguf.GGUFWriter(file, "llama")
    settings = {"block_count": 3, "context_length": 32, "embedding_length": 16, "feed_forward_length": 24}
    settings |= {"head_count": 2, "head_count_kv": 1, "layer_norm_rms_eps": 1e-6, "vocab_size": 20}
    settings |= {"rope_dimension_count": 8, "rope_freq_base": 10000.0, "key_length": 8, "value_length": 8}
    for name, value in settings.items():
        getattr(writer, f"add_{name}")(value)
    names = gguf.get_tensor_name_map(gguf.MODEL_ARCH.LLAMA, 3)
    for name, tensor in load_file(folder / "model.safetensors").items():
        values = tensor.numpy()
        if "q_proj" in name or "k_proj" in name:  # in GGUF the values of a rotary pair are adjacent
            values = values.reshape(-1, 2, 4, 16).swapaxes(1, 2).reshape(values.shape)
        writer.add_tensor(names.get_name(name, (".weight",)), np.ascontiguousarray(values))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def save_with_processor(kind: str, folder: Path, **settings: object) -> Path:
    import transformers

    save(kind, folder)
    processors = {"vit": "ViTImageProcessorPil", "dinov2": "BitImageProcessorPil"}
    processors |= {"dinov3_vit": "ViTImageProcessorPil", "siglip": "SiglipImageProcessorPil"}
    getattr(transformers, processors[kind])(**settings).save_pretrained(folder)
    return folder


def save_with_extractor(kind: str, folder: Path, **settings: object) -> Path:
    from transformers import Wav2Vec2FeatureExtractor

    save(kind, folder)
    Wav2Vec2FeatureExtractor(**settings).save_pretrained(folder)
    return folder


def _stir(model: nn.Module, generator: torch.Generator) -> None:
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn(parameter.shape, generator=generator), alpha=0.1)


def layer_names(kind: str) -> list[str]:
    return ["embed", "block01", *(["block02", "block03"] if kind != "esn" else []), "final"]


@torch.no_grad()
def hand_run(kind: str, folder: Path, embeds: torch.Tensor, positions: torch.Tensor | None) -> dict[str, np.ndarray]:
    """Return every layer's hidden states (tokens, width) of one unpadded sequence (tokens, width), without `Backbone`.

    ``positions`` are the positions of a ViT for vectors, which its checkpoint lacks.
    """
    if kind in PIXELS:
        states = _vit(folder, embeds + positions[: len(embeds)])
    elif kind in SOUNDS:
        states = _encoder(folder, embeds)
    elif kind in BUILT_HERE:
        states = {"esn": _esn, "cnn": _cnn, "linformer": _linformer}.get(kind, _lstm)(folder, embeds)
    else:
        states = [state[0, : len(embeds)] for state in hidden_states(kind, folder, inputs_embeds=embeds[None])]
    return dict(zip(layer_names(kind), [state.numpy() for state in states], strict=True))


def hidden_states(
    kind: str, folder: Path, dtype: torch.dtype = torch.float32, **inputs: torch.Tensor
) -> list[torch.Tensor]:
    """Return every layer's hidden states (rows, tokens, width), computed with only transformers."""
    from transformers import AutoModel, T5EncoderModel

    model = (T5EncoderModel if kind == "t5" else AutoModel).from_pretrained(folder, dtype=dtype).eval()
    model.to(next(iter(inputs.values())).device)
    (blocks,) = [m for m in model.modules() if isinstance(m, nn.ModuleList) and len(m) == 3]
    last: list[torch.Tensor] = []
    # In some families output_hidden_states applies the final norm to the last block; a hook returns it before the norm.
    blocks[-1].register_forward_hook(lambda _m, _i, o: last.append(o[0] if isinstance(o, tuple) else o))
    out = model(**inputs, output_hidden_states=True)
    return [*out.hidden_states[:3], last[0], out.last_hidden_state]


def _vit(folder: Path, hidden: torch.Tensor) -> list[torch.Tensor]:
    from transformers import AutoModel

    model, states = AutoModel.from_pretrained(folder).eval(), [hidden[None]]
    for layer in getattr(model, "layers", None) or model.encoder.layer:
        states.append(layer(states[-1], None))
    return [state[0] for state in (*states, model.layernorm(states[-1]))]


def _encoder(folder: Path, hidden: torch.Tensor) -> list[torch.Tensor]:
    from transformers import AutoModel

    model = AutoModel.from_pretrained(folder).eval()
    encoder, before = model.encoder, not model.config.do_stable_layer_norm
    hidden = hidden[None] + encoder.pos_conv_embed(hidden[None])
    states = [encoder.layer_norm(hidden) if before else hidden]
    for layer in encoder.layers:
        states.append(layer(states[-1]))
    return [state[0] for state in (*states, states[-1] if before else encoder.layer_norm(states[-1]))]


def _lstm(folder: Path, x: torch.Tensor) -> list[torch.Tensor]:
    """Run the equations of each layer token by token."""
    from safetensors.torch import load_file

    weights = load_file(folder / "model.safetensors")
    config = json.loads((folder / "config.json").read_text())
    if "positions" in weights:
        x = x + weights["positions"][: len(x)]
    states = [x]
    for number in range(3):
        w = {k.split(".cell.")[1]: v for k, v in weights.items() if k.startswith(f"blocks.{number}.")}
        h, c = (w.pop(f"first_{state}") for state in ("hidden", "cell"))
        outputs = []
        for token in states[-1]:
            h, c = _released_cell(w, token, h, c)
            outputs.append(h + token if config.get("residual") else h)
        states.append(torch.stack(outputs))
    return [*states, states[-1]]


def _released_cell(w: dict, x: torch.Tensor, h: torch.Tensor, c: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    def norm(name: str, a: torch.Tensor) -> torch.Tensor:
        return (a - a.mean()) / (a.var(correction=1) + 1e-6).sqrt() * w[f"{name}.weight"] + w[f"{name}.bias"]

    gates = norm("hidden_norm", w["hidden.weight"] @ h + w["hidden.bias"])
    gates = gates + norm("input_norm", w["input.weight"] @ x + w["input.bias"])
    i, f, o, g = gates.reshape(4, WIDTH)
    c = norm("cell_norm", torch.sigmoid(f) * c + torch.sigmoid(i) * torch.tanh(g))
    return torch.sigmoid(o) * torch.tanh(c), c


def _esn(folder: Path, x: torch.Tensor) -> list[torch.Tensor]:
    from safetensors.torch import load_file

    matrix = load_file(folder / "model.safetensors")["blocks.0.recurrent.weight"]
    config = json.loads((folder / "config.json").read_text())
    state, states = torch.zeros(WIDTH), []
    for token in x:
        new = torch.tanh(config["input_scaling"] * token + matrix @ state)
        state = (1 - config["lr"]) * state + config["lr"] * new
        states.append(state)
    return [x, torch.stack(states), torch.stack(states)]


def _norm(w: dict, name: str, x: torch.Tensor) -> torch.Tensor:
    return nn.functional.layer_norm(x, (WIDTH,), w[f"{name}.weight"], w[f"{name}.bias"])


def _linformer(folder: Path, x: torch.Tensor) -> list[torch.Tensor]:
    """Run each head by itself: softmax(Q (E K)^T / sqrt(d)) F V."""
    from safetensors.torch import load_file

    w, n = load_file(folder / "model.safetensors"), len(x)

    def affine(name: str, x: torch.Tensor) -> torch.Tensor:
        return x @ w[f"{name}.weight"] + w[f"{name}.bias"]

    states = [x + w["wpe.weight"][:n]]
    for block in ("h.0", "h.1", "h.2"):
        parts = affine(f"{block}.attn.c_attn", _norm(w, f"{block}.ln_1", states[-1])).reshape(n, 3, 2, WIDTH // 2)
        e, f = w[f"{block}.attn.E"][:, :n], w[f"{block}.attn.F"][:, :n]
        heads = [(q @ (e @ k).T / (WIDTH // 2) ** 0.5).softmax(1) @ f @ v for q, k, v in parts.permute(2, 1, 0, 3)]
        x = states[-1] + affine(f"{block}.attn.c_proj", torch.cat(heads, dim=1))
        inner = nn.functional.gelu(affine(f"{block}.mlp.c_fc", _norm(w, f"{block}.ln_2", x)), approximate="tanh")
        states.append(x + affine(f"{block}.mlp.c_proj", inner))
    return [*states, _norm(w, "ln_f", states[-1])]


def _cnn(folder: Path, x: torch.Tensor) -> list[torch.Tensor]:
    from safetensors.torch import load_file

    w, states = load_file(folder / "model.safetensors"), [x]
    for number, dilation in enumerate((1, 2, 4)):
        normed = _norm(w, f"blocks.{number}.norm", states[-1])
        padded = nn.functional.pad(normed.T, (3 * dilation, 0))
        taps = w[f"blocks.{number}.convolution.weight"]
        states.append(states[-1] + nn.functional.gelu(nn.functional.conv1d(padded, taps, dilation=dilation).T))
    return [*states, _norm(w, "norm", states[-1])]
