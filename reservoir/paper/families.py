"""Registers the families of models that Lu et al. (2021) compare with."""

from reservoir.backbones.registry import register
from reservoir.paper.cnn import CNN
from reservoir.paper.linformer import LINFORMER
from reservoir.paper.lstm import LSTM

for family in (LSTM, LINFORMER, CNN):
    register(family)
