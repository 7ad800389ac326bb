"""What only Lu et al. (2021) need: their LSTM, Linformer and a convolutional network, and the rules of their code.

`reservoir.backbones.registry` loads `families`, which register themselves, and `reservoir.tasks` loads
`variants`. Commands that show the paper's numbers import `paper_counts`; nothing else outside imports from this folder.
"""
