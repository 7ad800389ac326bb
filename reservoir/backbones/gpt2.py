r"""GPT-2 (Radford et al. 2019, section 2.3), a causal pre-norm transformer with learned positions.

.. math::

    h \leftarrow h + \mathrm{Attention}(\mathrm{LN}(h)), \quad h \leftarrow h + W_2 \,
    \mathrm{GELU}(W_1 \mathrm{LN}(h))

Its modules have the names of its published weights. The default backbones are of this family, so this
package implements it: importing transformers takes three times as long as everything else that a
prediction needs.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, fields, replace
from functools import cache
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from reservoir.backbones.family import (
    Config,
    Family,
    FolderLoader,
    LoadedModule,
    Shape,
    StoredTensors,
    draw_normal,
    run_unmasked,
)
from reservoir.private_torch import gelu_of_linear

TANH_GELU = ("gelu_new", "gelu_pytorch_tanh")  # names of the tanh approximation of GELU in transformers


@dataclass
class GPT2Config(Config):
    """The configuration of a GPT-2, with the names and defaults of its published ``config.json``."""

    n_layer: int = 12
    n_embd: int = 768
    n_head: int = 12
    n_positions: int = 1024
    n_inner: int | None = None
    activation_function: str = "gelu_new"
    layer_norm_epsilon: float = 1e-5
    initializer_range: float = 0.02
    embd_pdrop: float = 0.1
    attn_pdrop: float = 0.1
    resid_pdrop: float = 0.1
    scale_attn_weights: bool = True
    scale_attn_by_inverse_layer_idx: bool = False
    vocab_size: int = 50257
    model_type: str = "gpt2"

    # A key of `ATTENTION`. It has no annotation, so it is no field, that is, no setting.
    _attn_implementation = "sdpa"

    @property
    def num_attention_heads(self) -> int:
        """Number of attention heads of a block, under the name that other families use."""
        return self.n_head


def read_config(**values: Any) -> GPT2Config:
    """Return the configuration in a ``config.json``; its other settings belong to task heads, and are ignored."""
    names = {field.name for field in fields(GPT2Config)}
    return GPT2Config(**{name: value for name, value in values.items() if name in names})


class Projection(nn.Module):
    """A linear map whose weight has the shape (inputs, outputs)."""

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(inputs, outputs))
        self.bias = nn.Parameter(torch.zeros(outputs))

    def forward(self, x: Tensor) -> Tensor:
        """Map (..., inputs) to (..., outputs)."""
        # addmm takes matrices: all leading axes become one, and are restored afterwards.
        return torch.addmm(self.bias, x.flatten(0, -2), self.weight).unflatten(0, x.shape[:-1])


def sdpa(
    _module: nn.Module, query: Tensor, key: Tensor, value: Tensor, *, dropout: float, scaling: float
) -> tuple[Tensor, None]:
    """Return causal attention by torch's fused kernel, which does not compute the map: it is None (see `ATTENTION`)."""
    mixed = nn.functional.scaled_dot_product_attention(
        query, key, value, attn_mask=None, dropout_p=dropout, is_causal=True, scale=scaling
    )
    return mixed.transpose(1, 2), None  # (batch, tokens, heads, width of a head)


def eager(
    module: nn.Module, query: Tensor, key: Tensor, value: Tensor, *, dropout: float, scaling: float
) -> tuple[Tensor, Tensor]:
    """Return causal attention and its map (see `ATTENTION`)."""
    scores = query @ key.transpose(-1, -2) * scaling  # (batch, heads, queries, keys)
    # A query does not see the keys of later tokens, which are above the diagonal.
    is_later = torch.ones(scores.shape[-2:], dtype=torch.bool, device=scores.device).triu(1)
    attention_map = scores.masked_fill(is_later, float("-inf")).softmax(-1).to(value.dtype)
    attention_map = nn.functional.dropout(attention_map, dropout, module.training)
    return (attention_map @ value).transpose(1, 2), attention_map  # (batch, tokens, heads, width of a head)


ATTENTION: dict[str, Callable[..., tuple[Tensor, Tensor | None]]] = {"sdpa": sdpa, "eager": eager}
"""Attention functions, under the names that transformers gives them.

``attend(module, query, key, value, dropout, scaling)``, with inputs (batch, heads, tokens, width of a
head), returns the mixed values (batch, tokens, heads, width), and the map (batch, heads, queries,
keys) or None.
"""


class GPT2Attention(nn.Module):
    """Causal multi-head attention of the block ``number``, from 0.

    It returns its output, and its map if the attention function computes it.
    """

    def __init__(self, config: GPT2Config, number: int) -> None:
        super().__init__()
        if config.n_head < 1 or config.n_embd % config.n_head:
            raise ValueError(f"width {config.n_embd} is not a multiple of {config.n_head} heads")
        self.heads = config.n_head
        # The factor on the scores: 1 / sqrt(width of a head), and in some models also 1 / (number of the block from 1).
        head_width = config.n_embd // config.n_head
        self.scaling = head_width**-0.5 if config.scale_attn_weights else 1.0
        if config.scale_attn_by_inverse_layer_idx:
            self.scaling /= number + 1
        self.config = config
        self.c_attn = Projection(config.n_embd, 3 * config.n_embd)
        self.c_proj = Projection(config.n_embd, config.n_embd)
        self.attn_dropout = nn.Dropout(config.attn_pdrop)
        self.resid_dropout = nn.Dropout(config.resid_pdrop)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor | None]:
        """Map (batch, tokens, width) to the same shape; also return the attention map or None."""
        # One product gives queries, keys and values, each then (batch, heads, tokens, width of a head).
        query, key, value = (
            vectors.unflatten(-1, (self.heads, -1)).transpose(1, 2)
            for vectors in self.c_attn(x).chunk(3, -1)
        )
        rate = self.attn_dropout.p if self.training else 0.0
        attend = ATTENTION[self.config._attn_implementation]
        mixed, attention_map = attend(self, query, key, value, dropout=rate, scaling=self.scaling)
        heads_joined = mixed.flatten(2)  # (batch, tokens, width)
        return self.resid_dropout(self.c_proj(heads_joined)), attention_map


def gelu_of_product(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """Return GELU (tanh approximation) of ``x @ weight + bias``, bfloat16 (..., outputs), by a single kernel.

    It works only on machines with this kernel, see `has_joined_kernel`. Computed separately, GELU takes longer than the
    product.
    """
    return gelu_of_linear(x, weight.t(), bias)


@cache
def has_joined_kernel() -> bool:
    """Return whether this torch has a kernel for `gelu_of_product` that computes GELU on this processor."""
    if not torch.backends.mkldnn.is_available():
        return False
    # A product with the identity leaves the values as they are, so the result is their GELU.
    x = torch.linspace(-2, 2, 32).bfloat16()[None]
    identity = torch.eye(32).bfloat16()
    try:
        joined = gelu_of_product(x, identity, torch.zeros(32).bfloat16())
    except (AttributeError, RuntimeError, TypeError):  # torch or the processor has no such kernel
        return False
    # Rounding to bfloat16 changes values below 2 by less than 0.01; a kernel that leaves out GELU is off by up to 2.
    return torch.allclose(joined, torch.nn.functional.gelu(x, approximate="tanh"), atol=0.02)


class Feedforward(nn.Module):
    """Two projections with an activation between them, applied to each token."""

    def __init__(self, config: GPT2Config) -> None:
        super().__init__()
        inner_width = config.n_inner or 4 * config.n_embd
        self.c_fc = Projection(config.n_embd, inner_width)
        self.c_proj = Projection(inner_width, config.n_embd)
        self.act: nn.Module = nn.GELU(approximate="tanh")
        if config.activation_function not in TANH_GELU:
            # Imported only for the rare models with another activation, because it takes long.
            from transformers.activations import ACT2FN

            self.act = ACT2FN[config.activation_function]
        self.dropout = nn.Dropout(config.resid_pdrop)

    def forward(self, x: Tensor) -> Tensor:
        """Map (batch, tokens, width) to the same shape."""
        # One kernel computes product and GELU where there is one: on CPUs, for the tanh approximation, in bfloat16, and
        # without gradients. A compiled or exported model may run on a machine without this kernel.
        is_tanh_gelu = isinstance(self.act, nn.GELU) and self.act.approximate == "tanh"
        is_bfloat16 = self.c_fc.weight.dtype == torch.bfloat16
        is_plain_pass = not torch.is_grad_enabled() and not torch.compiler.is_compiling()
        may_join = is_tanh_gelu and is_bfloat16 and is_plain_pass and x.device.type == "cpu"
        if may_join and has_joined_kernel():
            inner = gelu_of_product(x.to(torch.bfloat16), self.c_fc.weight, self.c_fc.bias)
        else:
            inner = self.act(self.c_fc(x))
        return self.dropout(self.c_proj(inner))


class GPT2Block(nn.Module):
    """The transformer block ``number``, from 0."""

    def __init__(self, config: GPT2Config, number: int) -> None:
        super().__init__()
        self.ln_1 = nn.LayerNorm(config.n_embd, eps=config.layer_norm_epsilon)
        self.attn = GPT2Attention(config, number)
        self.ln_2 = nn.LayerNorm(config.n_embd, eps=config.layer_norm_epsilon)
        self.mlp = Feedforward(config)

    def forward(self, hidden: Tensor) -> Tensor:
        """Map hidden states (batch, tokens, width) to those of the next layer."""
        attended, _map = self.attn(self.ln_1(hidden))
        hidden = attended + hidden
        return hidden + self.mlp(self.ln_2(hidden))


class GPT2Model(nn.Module):
    """GPT-2 without a head."""

    base_model_prefix = "transformer"

    def __init__(self, config: GPT2Config) -> None:
        super().__init__()
        # A copy, because `set_attn_implementation` changes it.
        config = replace(config)
        self.config = config
        self.wte = nn.Embedding(config.vocab_size, config.n_embd)
        self.wpe = nn.Embedding(config.n_positions, config.n_embd)
        self.drop = nn.Dropout(config.embd_pdrop)
        self.h = nn.ModuleList([GPT2Block(config, number) for number in range(config.n_layer)])
        self.ln_f = nn.LayerNorm(config.n_embd, eps=config.layer_norm_epsilon)

    def set_attn_implementation(self, name: str) -> None:
        """Use the attention function of this name in `ATTENTION`; models of transformers have this method, too."""
        self.config._attn_implementation = name

    def forward(self, embeds: Tensor) -> Tensor:
        """Return the hidden states of (batch, tokens, width) vectors after the last norm."""
        hidden = self.drop(embeds + self.wpe.weight[: embeds.shape[1]])
        for block in self.h:
            hidden = block(hidden)
        return self.ln_f(hidden)


class GPT2Loader(FolderLoader):
    """Builds the models of this file."""

    def lean(self, config: GPT2Config, depth: int | None, *, with_token_embeddings: bool) -> GPT2Config:
        """Return the configuration of the model that is built: its first ``depth`` blocks, or all with None.

        Unless ``with_token_embeddings``, the model has the embedding of a single token.
        """
        vocabulary = config.vocab_size if with_token_embeddings else 1
        return replace(config, n_layer=depth or config.n_layer, vocab_size=vocabulary)

    def load(self, config: GPT2Config, tensors: StoredTensors, dtype: torch.dtype) -> LoadedModule:
        """Return a model with these tensors in ``dtype``, and a report on them."""
        # In a model that was saved with a head, the names of all other tensors have a prefix.
        prefix = f"{GPT2Model.base_model_prefix}."
        # Old files also hold the causal masks, which are not weights.
        mask_names = (".attn.bias", ".attn.masked_bias")
        weights = {
            name.removeprefix(prefix): tensor
            for name, tensor in tensors.items()
            if not name.endswith(mask_names)
        }
        return super().load(config, weights, dtype)


def _draw(
    name: str, shape: tuple[int, ...], config: Any, generator: np.random.Generator
) -> np.ndarray | None:
    """Draw as `draw_normal` does; divide projections into the residual stream by the square root of their number."""
    # They are called c_proj, and each block has two of them.
    divisor = math.sqrt(2 * config.n_layer) if "c_proj" in name else 1.0
    return draw_normal(name, shape, config, generator, divisor)


GPT2 = Family(
    name="gpt2",
    loader=GPT2Loader(GPT2Model),
    config=read_config,
    shape=lambda config: Shape(
        depth=config.n_layer, width=config.n_embd, max_tokens=config.n_positions, causal=True
    ),
    run=run_unmasked,
    blocks="h",
    groups={
        "positions": ("wpe.",),
        "layernorm": ("ln_",),
        "attention": (".attn.",),
        "feedforward": (".mlp.",),
    },
    draw=_draw,
    scheme="normal with standard deviation initializer_range, for c_proj divided by sqrt(2 x blocks)",
    final_norm="ln_f",
    unused=("wte",),
    native_input="wte",
    reads="text",
    heads=("lm_head.", "score.", "multiple_choice_head."),
    attention="attn",
    feedforward=("mlp",),
    queries="attn.c_attn",
    keys="attn.c_attn",
    compiles=True,
)
