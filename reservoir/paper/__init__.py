"""What only Lu et al. (2021) need: their LSTM, Linformer and a convolutional network, and the rules of their code.

Nothing outside this folder imports from it. `reservoir.backbones.registry` and `reservoir.tasks.variants` load
`families` and `protocol`, which register themselves.
"""
