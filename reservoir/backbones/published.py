"""Families of models that transformers builds: BERT, MPNet, ESM, T5, ViT, DINOv2, wav2vec 2.0, HuBERT, Llama."""

import inspect
from functools import cache
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from reservoir.backbones.family import Family, HubLoader, Shape, draw_normal, run

_WORDS = "embeddings.word_embeddings"  # path of the token embeddings of BERT and ESM

# BERT (Devlin et al. 2019) and models of its form are post-norm, and each token attends to the tokens
# on both sides. Longformer (Beltagy et al. 2020) attends inside a sliding window, for thousands of
# tokens, and its sequences are padded to whole windows. No token attends globally, because the choice
# of such tokens depends on a model's own task.


# The first position of these families is the number of the padding token plus one.
_AFTER_PADDING = ("roberta", "xlm-roberta", "longformer", "mpnet")


def _bert_shape(config: Any) -> Shape:
    """Return the shape of a BERT, or of a model of its form."""
    # Longformer has a window, or one for each block; sequences are padded to a multiple of the widest. All other models
    # have none, which is the same as a window of one token.
    window = getattr(config, "attention_window", 1)
    if not isinstance(window, int):
        window = max(window)
    first_position = config.pad_token_id + 1 if config.model_type in _AFTER_PADDING else 0
    positions = config.max_position_embeddings - first_position
    return Shape(
        depth=config.num_hidden_layers,
        width=config.hidden_size,
        max_tokens=positions - positions % window,  # whole windows
        causal=getattr(config, "is_decoder", False),
        multiple=window,
    )


_BERT_GROUPS = {
    # The constant vector of the first token type is added with the positions, so it is counted with them.
    "positions": ("position_embeddings", "token_type_embeddings"),
    "layernorm": ("LayerNorm", "layer_norm"),
    "attention": (".attention.",),
    "feedforward": (".intermediate.", ".output.", ".ffn."),
}


def _bert(name: str, **differences: Any) -> Family:
    """Return a family of the form of BERT; ``differences`` are the fields of `Family` in which it differs from BERT."""
    fields: dict[str, Any] = {
        "loader": HubLoader(options={"add_pooling_layer": False}),
        "shape": _bert_shape,
        "blocks": "encoder.layer",
        "groups": _BERT_GROUPS,
        "unused": (_WORDS,),
        "native_input": _WORDS,
        "reads": "text",
        "heads": ("cls.", "lm_head.", "vocab_", "pooler.", "pre_classifier.", "classifier.", "qa_outputs."),
        "attention": "attention.self",
        "feedforward": ("intermediate", "output"),
        "takes_pair_mask": True,
        "queries": "attention.self.query",
        "keys": "attention.self.key",
        "compiles": True,
    }
    return Family(name=name, **(fields | differences))


# ESM (Rives et al. 2021, Lin et al. 2023), models of protein sequences, is pre-norm and
# bidirectional. ESM-2 has rotary positions. The embeddings keep the scale that compensates for the
# 12% of letters that were masked in training.


def _esm_shape(config: Any) -> Shape:
    """Return the shape of an ESM."""
    # Absolute positions start at the number of the padding token plus one, rotary ones at 0.
    first_position = config.pad_token_id + 1 if config.position_embedding_type == "absolute" else 0
    return Shape(
        depth=config.num_hidden_layers,
        width=config.hidden_size,
        max_tokens=config.max_position_embeddings - first_position,
        causal=False,
    )


def _adapt_esm(model: nn.Module, config: Any) -> nn.Module:
    """Scale the embeddings of letters in place as the model does when no letter is masked, and return the model."""
    if config.token_dropout:
        embeddings = model.get_submodule(_WORDS).get_parameter("weight")
        # In training, 15% of the letters were chosen, and 80% of these masked.
        embeddings.data = embeddings.data.float() * (1 - 0.15 * 0.8)
    return model


def _run_esm(model: Any, embeds: Tensor, mask: Tensor | None) -> Tensor:
    """Return the last hidden states; run the module ``embeddings`` here, because the model skips it for vectors."""
    # The module takes a mask of tokens (batch, tokens); in one of pairs (batch, 1, queries, keys), each query has it.
    token_mask = mask if mask is None or mask.ndim == 2 else mask[:, 0, 0]
    return run(model, model.embeddings(inputs_embeds=embeds, attention_mask=token_mask), mask)


# The encoder of T5 (Raffel et al. 2020) is pre-norm with RMSNorm and bidirectional, for sequences of
# any length. The input enters the first block as it is: positions are relative, biases of the
# attention that all blocks share.


def _draw_t5(
    name: str, shape: tuple[int, ...], config: Any, generator: np.random.Generator
) -> np.ndarray | None:
    """Draw a weight; its scale keeps activations near one although attention does not divide its scores.

    Norms keep their value: for them, return None.
    """
    if "layer_norm" in name:
        return None
    # The scale is 1 / sqrt(fan-in): the number of inputs, which is the width except for two matrices. For queries it is
    # also divided by the root of a head's width, in place of the scores.
    fan_ins = {
        ".q.": config.d_model * config.d_kv,
        ".o.": config.num_heads * config.d_kv,
        ".wo.": config.d_ff,
    }
    fan_in = config.d_model
    for name_part, other_fan_in in fan_ins.items():
        if name_part in name:
            fan_in = other_fan_in
    return generator.standard_normal(shape, dtype=np.float32) * (config.initializer_factor * fan_in**-0.5)


_T5 = Family(
    name="t5",
    loader=HubLoader(model="T5EncoderModel"),
    shape=lambda config: Shape(config.num_layers, config.d_model, max_tokens=None, causal=False),
    takes_pair_mask=True,
    blocks="encoder.block",
    groups={
        "positions": ("relative_attention_bias",),
        "layernorm": ("layer_norm",),
        "attention": (".SelfAttention.",),
        "feedforward": (".DenseReluDense.",),
    },
    draw=_draw_t5,
    scheme="normal with standard deviation initializer_factor / sqrt(fan-in), for queries / sqrt(fan-in x head width)",
    final_norm="encoder.final_layer_norm",
    unused=("shared", "encoder.embed_tokens"),
    native_input="shared",
    reads="text",
    heads=("decoder.", "lm_head."),
    attention="layer.0.SelfAttention",
    feedforward=("layer.1",),
    queries="layer.0.SelfAttention.q",
    keys="layer.0.SelfAttention.k",
    compiles=True,
    divides_scores=False,
)

# The Vision Transformer (Dosovitskiy et al. 2021) and DINOv2 (Oquab et al. 2023) run over any
# sequence of vectors, as in Lu et al. 2021 (appendix D.2): no patch embedding, no class token, and
# new positions. Their positions start at zero and are trained. A frozen model needs positions that
# differ between tokens, so here they are drawn from the seed, like those of an untrained GPT-2, with
# pretrained weights as well as with random ones.

VIT_POSITIONS = 1024  # as many as GPT-2 has


class SequenceEmbeddings(nn.Module):
    """Takes the place of the patch embeddings: it returns the vectors themselves, with positions added.

    ``width`` is that of the vectors. ``pictures`` are the model's own embeddings of patches, which vectors do not use.
    The model keeps them for native input (`Family.native_input`), which is looked up before `Backbone` drops them.
    """

    def __init__(self, pictures: nn.Module, width: int) -> None:
        super().__init__()
        self.pictures = pictures
        self.position_embeddings = nn.Parameter(torch.zeros(VIT_POSITIONS, width))

    @property
    def patch_embeddings(self) -> SimpleNamespace:
        """What `ViTModel` asks for the type to which it converts its input: ``projection.weight``.

        The positions take the place of this weight, because they have the type of the other weights, too. They are
        looked up in each call, because `Backbone.set_positions` replaces them.
        """
        return SimpleNamespace(projection=SimpleNamespace(weight=self.position_embeddings))

    def forward(self, embeds: Tensor, **_images_only: Any) -> Tensor:
        """Return (batch, tokens, width) vectors with positions."""
        return embeds + self.position_embeddings[: embeds.shape[1]]


def _adapt_vit(model: Any, config: Any) -> nn.Module:
    """Let a model take vectors in place of images, and return it."""
    model.embeddings = SequenceEmbeddings(model.embeddings, config.hidden_size)
    return model


def _run_vit(model: nn.Module, embeds: Tensor, mask: Tensor | None) -> Tensor:
    """Return the last hidden states of vectors, which enter by the argument of images (see `SequenceEmbeddings`)."""
    return model(pixel_values=embeds, attention_mask=mask).last_hidden_state


def _vit(name: str, blocks: str, **options: Any) -> Family:
    """Return a family of vision transformers, whose list of blocks has the path ``blocks`` inside the model.

    ``options`` are arguments of the class of the model.
    """
    return Family(
        name=name,
        loader=HubLoader(options=options, adapt=_adapt_vit),
        shape=lambda config: Shape(
            config.num_hidden_layers, config.hidden_size, max_tokens=VIT_POSITIONS, causal=False
        ),
        run=_run_vit,
        takes_pair_mask=True,  # `run` may also get a mask of pairs, (batch, 1, queries, keys)
        blocks=blocks,
        stored_blocks="encoder.layer",  # the path of the blocks in files, also if the model has another
        groups={
            "positions": ("position_embeddings",),
            "layernorm": ("norm",),
            "attention": (".attention.", ".layer_scale1."),
            "feedforward": (".mlp.", ".layer_scale2."),
        },
        final_norm="layernorm",
        unused=("embeddings.pictures",),
        native_input="embeddings.pictures",
        reads="pixels",
        heads=("classifier.", "pooler."),
        # The positions of `SequenceEmbeddings` are in no file, so they are drawn with pretrained weights, too. The
        # prefix also covers ``embeddings.pictures``, which are in files; but `Backbone` drops these before the draw.
        unsaved=("embeddings.",),
        attention="attention",
        feedforward=("mlp",),
        queries="attention.q_proj",
        keys="attention.k_proj",
        compiles=True,
    )


# wav2vec 2.0 (Baevski et al. 2020) and HuBERT (Hsu et al. 2021), models of speech, are bidirectional.
# Positions come from a convolution over the tokens. The base models normalise after each residual
# addition and before the first block, the large models before each branch and at the end.


class AudioFrontEnd(nn.Module):
    """The convolutions over samples, and the projection of their outputs to the width of the blocks."""

    def __init__(self, model: Any) -> None:
        super().__init__()
        self.convolutions = model.feature_extractor
        self.projection = model.feature_projection

    def forward(self, x: Tensor) -> Tensor:
        """Map the output of `convolutions`, (batch, tokens, channels), to (batch, tokens, width)."""
        projected = self.projection(x)  # wav2vec 2.0 also returns its normalised input
        return projected[0] if isinstance(projected, tuple) else projected


def _adapt_audio(model: Any, config: Any) -> nn.Module:
    """Collect the audio front end in one module, name the last norm ``final``, and return the model."""
    # The front end is a module of its own, so the model has no parts of it left.
    model.front_end = AudioFrontEnd(model)
    model.feature_extractor = None
    model.feature_projection = None
    # The adapter shortens sequences after the last block, which hidden states do not need.
    model.adapter = None
    # With stable layer norm, the norm of the encoder follows the last block: it becomes ``final``, which `_run_audio`
    # applies, and an identity takes its place. Other models normalise before the first block, where the norm stays.
    model.final = nn.Identity()
    if config.do_stable_layer_norm:
        model.final = model.encoder.layer_norm
        model.encoder.layer_norm = nn.Identity()
    if hasattr(model, "masked_spec_embed"):  # only training uses it
        del model.masked_spec_embed
    return model


def _run_audio(model: Any, embeds: Tensor, mask: Tensor | None) -> Tensor:
    """Return the last hidden states; the convolution that gives positions reads zeros at padding."""
    is_real = None if mask is None else mask.bool()  # (batch, tokens)
    if is_real is not None:
        # In a copy, because transformers also writes zeros at padding, into the vectors that it is given.
        embeds = embeds.masked_fill(~is_real[:, :, None], 0)
    hidden = model.encoder(embeds, attention_mask=is_real).last_hidden_state
    return model.final(hidden)


def _audio_shape(config: Any) -> Shape:
    """Return the shape of a model of sounds; raise ValueError for a batch norm among its positions."""
    if getattr(config, "conv_pos_batch_norm", False):
        raise ValueError(
            "conv_pos_batch_norm is not supported, because padding would change the real tokens"
        )
    # Positions come from a convolution, so they have no limit.
    return Shape(config.num_hidden_layers, config.hidden_size, max_tokens=None, causal=False)


def _draw_audio(
    name: str, shape: tuple[int, ...], config: Any, generator: np.random.Generator
) -> np.ndarray | None:
    """Draw a weight; the positional convolution is drawn as in fairseq, with its weight norms at their expectation."""
    is_positional = "pos_conv_embed" in name and not name.endswith("bias")
    if not is_positional:
        return draw_normal(name, shape, config, generator)
    kernel_width = config.num_conv_pos_embeddings  # in tokens
    deviation = 2 * (kernel_width * config.hidden_size) ** -0.5
    # torch stores the norms of the weights, one for each place of the kernel, in ``original0``, and their directions in
    # ``original1``. A norm is that of (width * inputs) weights, where inputs are those of a group of channels.
    if name.endswith("original0"):
        inputs = config.hidden_size // config.num_conv_pos_embedding_groups
        return np.full(shape, deviation * (config.hidden_size * inputs) ** 0.5, np.float32)
    return generator.standard_normal(shape, dtype=np.float32) * deviation


def _audio(name: str) -> Family:
    """Return a family of models of speech."""
    return Family(
        name=name,
        loader=HubLoader(adapt=_adapt_audio),
        shape=_audio_shape,
        run=_run_audio,
        blocks="encoder.layers",
        groups={
            "positions": ("pos_conv_embed",),
            "layernorm": ("layer_norm", "final."),
            "attention": (".attention.",),
            "feedforward": (".feed_forward.", ".adapter_layer."),
        },
        draw=_draw_audio,
        scheme="normal with standard deviation initializer_range, for the convolution 2 / sqrt(kernel x width)",
        final_norm="final",
        unused=("front_end", "masked_spec_embed", "adapter"),
        native_input="front_end",
        reads="sounds",
        heads=("lm_head.", "quantizer.", "project_", "projector.", "classifier.", "layer_weights", "tdnn."),
        attention="attention",
        feedforward=("feed_forward",),
        queries="attention.q_proj",
        keys="attention.k_proj",
        compiles=True,
        reads_values=True,  # those of the mask
    )


# Llama (Touvron et al. 2023) is causal and pre-norm with RMSNorm, rotary positions and gated units.
# SmolLM, Mistral, Qwen and Gemma differ from it in details that transformers handles.


def _llama_shape(config: Any) -> Shape:
    """Return the shape of a model of the form of Llama."""
    # Only variants of Gemma have the first setting. Any configuration may have the second, which transformers obeys.
    is_bidirectional = getattr(config, "use_bidirectional_attention", None)
    is_causal = getattr(config, "is_causal", True)
    return Shape(
        depth=config.num_hidden_layers,
        width=config.hidden_size,
        max_tokens=config.max_position_embeddings,
        causal=is_causal and not is_bidirectional,
    )


@cache
def _no_memory(model_class: type[nn.Module]) -> dict[str, Any]:
    """Return the argument that gives a causal model of transformers a cache which remembers nothing.

    Without a cache, transformers reads from the positions whether a row holds several sequences, which waits for a GPU.
    """
    from transformers.cache_utils import Cache

    class NoMemory(Cache):
        """A cache without layers, which gives attention the keys and values of the current call alone."""

        @property
        def is_compileable(self) -> bool:
            """Whether the cache can be compiled; a property of transformers."""
            # With True, transformers would make a mask for rows of a single token.
            return False

        def update(
            self, key_states: Tensor, value_states: Tensor, *_layer: Any, **_options: Any
        ) -> tuple[Tensor, Tensor]:
            """Return the keys and values of the current call, and store nothing."""
            return key_states, value_states

    parameters = inspect.signature(model_class.forward).parameters
    name = "cache" if "cache" in parameters else "past_key_values"  # its name before transformers 5.24
    return {name: NoMemory(layers=[])}


def _run_llama(model: nn.Module, embeds: Tensor, mask: Tensor | None) -> Tensor:
    """Return the last hidden states; the cache remembers nothing (see `_no_memory`)."""
    return run(model, embeds, mask, use_cache=False, **_no_memory(type(model)))


def _llama(name: str) -> Family:
    """Return a family of the form of Llama."""
    return Family(
        name=name,
        loader=HubLoader(),
        shape=_llama_shape,
        run=_run_llama,
        blocks="layers",
        groups={"layernorm": ("norm",), "attention": (".self_attn.",), "feedforward": (".mlp.",)},
        final_norm="norm",
        unused=("embed_tokens",),
        native_input="embed_tokens",
        reads="text",
        heads=("lm_head.", "score.", "classifier."),
        attention="self_attn",
        feedforward=("mlp",),
        queries="self_attn.q_proj",
        keys="self_attn.k_proj",
        compiles=True,
    )


FAMILIES = (
    *(_bert(name) for name in ("bert", "roberta", "xlm-roberta")),
    _bert(
        "distilbert",
        loader=HubLoader(),
        blocks="transformer.layer",
        attention="attention",
        feedforward=("ffn",),
        queries="attention.q_lin",
        keys="attention.k_lin",
    ),
    _bert("longformer", attention="", takes_pair_mask=False, reads_values=True, compiles=False),
    # MPNet (Song et al. 2020) is BERT with relative and absolute positions. It returns maps only block by block.
    _bert(
        "mpnet",
        attention="",
        groups=_BERT_GROUPS | {"positions": ("position_embeddings", "relative_attention_bias")},
        queries="attention.attn.q",
        keys="attention.attn.k",
    ),
    _T5,
    _vit("vit", "layers", add_pooling_layer=False),
    _audio("wav2vec2"),
    _audio("hubert"),
    _vit("dinov2", "encoder.layer"),
    _bert(
        "esm",
        loader=HubLoader(options={"add_pooling_layer": False}, adapt=_adapt_esm),
        shape=_esm_shape,
        run=_run_esm,
        final_norm="encoder.emb_layer_norm_after",
        unused=(_WORDS, "contact_head"),
        reads="letters",
    ),
    *(
        _llama(name)
        for name in ("llama", "smollm3", "mistral", "qwen2", "qwen3", "gemma", "gemma2", "gemma3_text")
    ),
)
