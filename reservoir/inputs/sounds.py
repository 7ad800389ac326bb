"""Sounds as an audio model reads them: scaled by its own preprocessor, then passed through its own convolutions."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import nn

from reservoir.backbones.hub import local_files_only
from reservoir.errors import InputError
from reservoir.inputs.pixels import settings_digest, usable
from reservoir.tasks.own.sounds import RATE
from reservoir.tasks.task import Task, Vectors


class SoundReader:
    """Passes stored samples through the convolutions of a model, one sound at a time.

    The first convolution of the base models is normalised over the whole sound, so padding would change every token.
    """

    kind, has_cls, note = "processor", False, ""

    convolutions: nn.Module
    """The convolutions of the model; set after the model is loaded."""

    def __init__(self, extractor: Any, config: Any, most_samples: int) -> None:
        self._extractor = extractor
        self._steps = list(zip(config.conv_kernel, config.conv_stride, strict=True))
        self.form = Vectors(config.conv_dim[-1])
        self._least = 1
        for kernel, stride in reversed(self._steps):
            self._least = (self._least - 1) * stride + kernel
        self.max_tokens = self.row_tokens = self._tokens(most_samples)
        self.rate = int(extractor.sampling_rate)
        self.digest = settings_digest(extractor)

    @property
    def description(self) -> str:
        """A description for the user."""
        return f"the model's own convolutions, as up to {self.max_tokens:,} tokens"

    @torch.inference_mode()
    def __call__(self, x: np.ndarray, lengths: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return vectors (rows, tokens, channels) of samples (rows, samples, 1), and the tokens of each row."""
        device = next(self.convolutions.parameters()).device
        tokens = np.array([self._tokens(int(n)) for n in lengths], np.int32)
        found = np.zeros((len(x), tokens.max(), self.form.dim), np.float32)
        for row, (samples, length, count) in enumerate(zip(x[:, :, 0], lengths, tokens, strict=True)):
            scaled = self._extractor(samples[:length], sampling_rate=self.rate, return_tensors="np")["input_values"]
            # A sound that is shorter than one token is padded with silence.
            padded = np.pad(scaled, ((0, 0), (0, max(0, self._least - length)))).astype(np.float32)
            vectors = self.convolutions(torch.from_numpy(padded).to(device))
            found[row, :count] = vectors[0].T.float().cpu().numpy()
        return found, tokens

    def _tokens(self, samples: int) -> int:
        """Return the number of tokens for a number of samples, at least one."""
        samples = max(samples, self._least)
        for kernel, stride in self._steps:
            samples = (samples - kernel) // stride + 1
        return samples


def open_sounds(task: Task, name: str, config: Any) -> SoundReader:
    """Return the reader of an audio model for the sounds of a task, which must have the model's sampling rate."""
    from transformers import Wav2Vec2FeatureExtractor

    with usable(name, instead="kernels"):
        extractor = Wav2Vec2FeatureExtractor.from_pretrained(name, local_files_only=local_files_only(name))
        if extractor.feature_size != 1:
            raise InputError(f"it gives {extractor.feature_size} values per sample")
    reader = SoundReader(extractor, config, task.max_tokens)
    rate = task.parameters.get("rate", RATE)
    if reader.rate != rate:
        raise InputError(
            f"backbone {name!r}: it reads {reader.rate} samples per second, not {rate}; pass --rate {reader.rate}"
        )
    return reader
