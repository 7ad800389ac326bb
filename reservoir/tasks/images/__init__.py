"""Images as sequences of patches, from scikit-learn or the publishers' files."""

from reservoir.tasks.images.cifar import Cifar10, Cifar10Lra
from reservoir.tasks.images.mnist import Digits, FashionMnist, Mnist

__all__ = ["Cifar10", "Cifar10Lra", "Digits", "FashionMnist", "Mnist"]
