"""Samples of sounds as the tokens of a pretrained model, by its own convolutions."""

from typing import Any

import numpy as np
import torch
from torch import nn

from reservoir.inputs.trusted_files import settings_digest
from reservoir.tasks.task import Vectors

MAX_SAMPLES = 2**18  # samples in a batch of sounds; the first convolution makes 400 bytes of each


class SoundReader:
    """Passes stored samples through the convolutions of a model, with sounds of one length together."""

    kind = "processor"
    has_cls = False
    note = ""
    special = 0, 0

    convolutions: nn.Module
    """The convolutions of the model; set after the model is loaded."""

    def __init__(self, extractor: Any, config: Any, most_samples: int) -> None:
        self._extractor = extractor
        self._steps = list(zip(config.conv_kernel, config.conv_stride, strict=True))
        self.form = Vectors(config.conv_dim[-1])
        self._least = 1  # samples of the shortest sound with a token
        for kernel, stride in reversed(self._steps):
            self._least = (self._least - 1) * stride + kernel
        self.max_tokens = self.row_tokens = self._tokens(most_samples)
        self.rate = int(extractor.sampling_rate)
        self.digest = settings_digest(extractor)
        self.description = f"the model's own convolutions, as up to {self.max_tokens:,} tokens"

    @torch.inference_mode()
    def __call__(self, x: np.ndarray, lengths: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return vectors (rows, tokens, channels) of samples (rows, samples, 1), and each row's number of tokens."""
        device = next(self.convolutions.parameters()).device
        tokens = np.array([self._tokens(int(n)) for n in lengths], np.int32)
        features = np.zeros((len(x), tokens.max(), self.form.dim), np.float32)
        # The first convolution of the base models is normalised over the whole sound: padding would change every token.
        for length in np.unique(lengths):
            same_length = np.flatnonzero(lengths == length)
            batches = -(-len(same_length) * length // MAX_SAMPLES)
            for rows in np.array_split(same_length, batches):
                samples = list(x[rows, :length, 0])
                inputs = self._extractor(samples, sampling_rate=self.rate, return_tensors="np")
                # Sounds that are shorter than one token are padded with silence.
                pad = (0, 0), (0, max(0, self._least - length))
                padded = np.pad(inputs["input_values"], pad).astype(np.float32)
                vectors = self.convolutions(torch.from_numpy(padded).to(device)).transpose(1, 2)
                features[rows, : vectors.shape[1]] = vectors.float().cpu().numpy()
        return features, tokens

    def _tokens(self, samples: int) -> int:
        """Return the number of tokens for a number of samples, at least one."""
        samples = max(samples, self._least)
        for kernel, stride in self._steps:
            samples = (samples - kernel) // stride + 1
        return samples
