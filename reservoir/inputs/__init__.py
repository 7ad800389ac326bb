"""Inputs that a pretrained model was trained with, in place of a random input layer."""
