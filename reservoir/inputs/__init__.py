"""Input layers: the native input of pretrained models, and `edges` for windows of images."""
