"""The specification of an entry: everything that changes a number in it, from which its key is computed."""

from collections.abc import Mapping
from typing import Any

from reservoir_cache import BackboneSpec, DataSpec, InitSpec, InputSpec, Spec
from torch import nn

from reservoir import devices
from reservoir.loaded_model import LoadedModel
from reservoir.tasks.task import Tokens

PADDING = "right, masked"  # how rows of a batch are brought to one length, on which the last bits depend


def model_spec(model: LoadedModel, task: Mapping[str, Any], data: DataSpec, store: str) -> Spec:
    """Return the specification of an entry of a frozen model.

    ``task`` describes the rows, ``data`` says which rows they are, and ``store`` is the data type on disk.
    """
    settings, backbone = model.settings, model.fpt.backbone
    # `gelu` names the way in which the tanh form of GELU is computed, because another way changes the last bits of
    # features. For other models it is None, which does not enter the key.
    has_tanh = any(isinstance(part, nn.GELU) and part.approximate == "tanh" for part in backbone.modules())
    return Spec(
        task=task,
        data=data,
        backbone=BackboneSpec(
            family=backbone.family.name,
            digest=model.digest,
            gelu="one step" if has_tanh else None,
            device="cuda" if devices.on_gpu(model.device) else None,
            compiled="blocks" if model.compiled else None,
        ),
        init=InitSpec(kind=settings.init, seed=0 if settings.init == "pretrained" else settings.seed),
        input=_input_spec(model),
        padding=PADDING,
        compute=model.compute,
        store=store,
    )


def _input_spec(model: LoadedModel) -> InputSpec:
    """Return how a model's input is cut into tokens and embedded; fields that are None do not enter the key."""
    settings, windows = model.settings, model.windows
    if model.reader:
        # The model's own files decide its input; the options of a drawn input layer have no effect.
        return InputSpec(
            kind="native",
            seed=0,
            gain=1.0,
            patch=1,
            stride=1,
            tokenizer=model.input_digests.get("tokenizer"),
            processor=model.input_digests.get("processor"),
            embeddings=model.input_digests.get("embeddings"),
            template=model.input_digests.get("template"),
            long=None if settings.long == "cut" else settings.long,
        )
    # Tokens that are symbols get Gaussian embeddings with every ``--input`` but the counter of brackets.
    draws_embeddings = isinstance(model.fpt.task.form, Tokens) and settings.input != "counter"
    return InputSpec(
        kind="gaussian" if draws_embeddings else settings.input,
        seed=settings.seed,
        gain=settings.gain,
        patch=settings.patch,
        stride=settings.stride,
        dilations=tuple(windows.dilations),
        pad=windows.pad,
        normalise=windows.normalise,
    )
