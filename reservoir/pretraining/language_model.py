"""Language models for pretraining: a backbone with token embeddings and a head that predicts tokens."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from reservoir.backbones import find
from reservoir.backbones.family import silence_transformers
from reservoir.backbones.weights import draw_parameters
from reservoir.errors import InputError, first_line
from reservoir.random import generator

MASKED = 0.15
"""Share of the tokens that a masked model predicts (Devlin et al. 2019, section 3.1)."""

CAUSAL = ("gpt2", "llama", "smollm3", "mistral", "qwen2", "qwen3", "gemma", "gemma2", "gemma3_text")
BOTH_WAYS = ("bert", "roberta", "xlm-roberta", "distilbert")


class LanguageModel(nn.Module):
    """A randomly initialised language model in the shape of a backbone; compilers can fuse ``eager`` attention."""

    def __init__(self, backbone: str, vocabulary: int, seed: int = 0, *, eager: bool = False) -> None:
        from transformers import AutoConfig, AutoModelForCausalLM, AutoModelForMaskedLM

        super().__init__()
        silence_transformers()
        family, config = find(backbone)
        if family.name not in (*CAUSAL, *BOTH_WAYS):
            raise InputError(
                f"--backbone {backbone}: {family.name} models cannot be pretrained; use one of "
                f"{', '.join((*CAUSAL, *BOTH_WAYS))}"
            )
        if family.name == "gpt2":  # transformers has a GPT-2 with token embeddings and a head
            config = AutoConfig.for_model(**config.to_dict())
        self.causal = family.name in CAUSAL
        self.mask_token = vocabulary
        config.vocab_size = vocabulary if self.causal else vocabulary + 1
        for token in ("bos_token_id", "eos_token_id", "pad_token_id"):
            setattr(config, token, None)
        self._positions, self._first_position = family.groups.get("positions", ()), 0
        if family.name in ("roberta", "xlm-roberta"):
            config.pad_token_id = 1  # these families count their positions from it
            self._first_position = 2
        for name in config.to_dict():
            if name.endswith(("dropout", "pdrop", "dropout_prob")):
                setattr(config, name, 0.0)  # no text is read twice, so nothing overfits
        self.max_tokens = family.shape(config).max_tokens
        kind = AutoModelForCausalLM if self.causal else AutoModelForMaskedLM
        # By default transformers uses torch's own kernel if the family supports it.
        attention = "eager" if eager else None
        try:
            self.model: Any = kind.from_config(config, dtype=torch.float32, attn_implementation=attention)
        except (ValueError, TypeError, LookupError, AssertionError, RuntimeError, ZeroDivisionError) as error:
            raise InputError(f"--backbone {backbone}: its configuration does not work ({first_line(error)})") from error
        draw_parameters(self.model, family.draw, config, seed)
        self.model.tie_weights()

    @property
    def extra(self) -> int:
        """Tokens of a window beyond those the model reads: one for a causal model, the last target."""
        return 1 if self.causal else 0

    def forward(self, tokens: Tensor) -> Tensor:
        """Return float32 logits (windows, tokens, vocabulary) of the next or the masked tokens."""
        more: dict[str, Any] = {"use_cache": False} if self.causal else {}
        if self._first_position:
            # By default these models treat the number of the padding token, here a real token, as padding.
            places = torch.arange(tokens.shape[1], device=tokens.device)
            more["position_ids"] = (self._first_position + places).expand_as(tokens)
        return self.model(input_ids=tokens, **more).logits.float()

    @torch.no_grad()
    def repeat_positions(self, count: int) -> None:
        """Set the positions from ``count`` on to the learned values of the first positions, repeated."""
        for name, parameter in self.model.named_parameters():
            # The embeddings of token types belong to the same group, and are fewer.
            if any(piece in name for piece in self._positions) and len(parameter) >= (self.max_tokens or 0):
                places = torch.arange(len(parameter) - self._first_position, device=parameter.device)
                parameter[self._first_position :] = parameter[self._first_position + places % count]

    def hide(self, windows: Tensor, *parts: object) -> tuple[Tensor, Tensor]:
        """Return windows (windows, tokens) with some tokens masked, and the mask; ``parts`` key the random draw."""
        drawn = generator("mask", *parts).random(tuple(windows.shape), dtype="float32")
        hidden = torch.from_numpy(drawn).to(windows.device) < MASKED
        return windows.masked_fill(hidden, self.mask_token), hidden
