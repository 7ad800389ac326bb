"""Tests of a generic backbone when it is loaded: what its layers are, and how its tokens see each other and padding."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor, nn

from reservoir.backbones.backbone import MATRICES, Backbone
from reservoir.backbones.generic import refusal, without_cache
from reservoir.backbones.vector_model import StandIn, VectorModel, stand_ins
from reservoir.errors import InputError, as_input_error

CHECKED_TOKENS = 6  # of the random sequences on which a model is tested
# Largest error as a share of the largest value. Other orders of summation differ by about 1e-6, and an attention
# that sees padding by 1e-2 or more.
TOLERANCE = 1e-4
# What a block adds to its input shows the order of the tokens if it differs by more than both: a share of its largest
# value, at least 0.004 in a DINOv3 of width 32 with drawn weights, and a share of the largest hidden state, which
# rounding changes by up to 1e-6.
ADDED_TOLERANCE = 1e-3
ROUNDING = 3e-6
DEFAULT_VOCABULARY = 100  # tokens, if the input module of a model does not state its vocabulary
# Largest error of half precision, as a share of the root mean square of a layer's hidden states. Rounding to bfloat16
# changes a value by up to 0.4%, and the errors of the blocks add up, to 1.5% in six blocks of a Llama that is in
# bfloat16 as a whole; a model that breaks is off by 100%.
HALF_TOLERANCE = 0.05


def check_backbone(backbone: Backbone) -> None:
    """Test the layers of a generic backbone, and set `Backbone.causal` and `Backbone.can_pad` by tests.

    Matrices in half precision stay so if all layers are almost those of float32 (`HALF_TOLERANCE`); otherwise the
    backbone becomes float32.

    Raises
    ------
    InputError
        If it cannot run on vectors, or if a layer is not what transformers calls so.
    """
    half_matrices = _half_matrices(backbone)
    problem = f"model type {backbone.config.model_type!r}: it does not run"
    with as_input_error(problem, "choose another model"), torch.no_grad():
        if half_matrices:
            if _runs_in_half(backbone, half_matrices):
                return  # the layers have also been tested in float32
            for module in half_matrices:
                module.float()
            backbone.allows_bfloat16 = False
        _check_and_describe(backbone)


def convert_to_bfloat16(backbone: Backbone) -> None:
    """Convert all of a generic backbone to bfloat16, unless it does not allow this precision.

    Raises
    ------
    InputError
        If its layers are then not almost those of float32 (`HALF_TOLERANCE`).
    """
    if not backbone.allows_bfloat16:
        return
    embeds = _random_embeds(backbone)
    problem = f"model type {backbone.config.model_type!r}: it does not run in bfloat16"
    remedy = "pass --compute bfloat16, or float32"
    with as_input_error(problem, remedy), torch.no_grad():
        with _in_float32(_half_matrices(backbone)):
            exact = _recorded_layers(backbone, embeds)
        backbone.set_compute("bfloat16-all")
        rounded = _recorded_layers(backbone, embeds)
    if not _are_almost_equal(rounded, exact):
        raise InputError(f"{problem} as it does in float32", remedy)


def _half_matrices(backbone: Backbone) -> list[nn.Module]:
    """Return the modules of the blocks' matrices that are in half precision."""
    matrices = [module for module in backbone.blocks.modules() if isinstance(module, MATRICES)]
    return [
        module
        for module in matrices
        if any(parameter.dtype != torch.float32 for parameter in module.parameters())
    ]


def _check_and_describe(backbone: Backbone) -> None:
    """Test a backbone whose products are in float32, and set the attributes that say what the tests found.

    A test that fails raises an error.

    | attribute | meaning |
    |---|---|
    | `Backbone.causal` | a token sees only itself and those before it |
    | `Backbone.can_pad` | rows of several lengths can be in one batch |
    | `Backbone.min_tokens` | 2 if it does not run on a single token, else 1 |
    | `VectorModel.stand_in` | shape of the zeros in place of the model's own input, whose tokens the vectors replace |
    | `VectorModel.adds_positions` | the `VectorModel` adds positions to vectors |
    """
    # An earlier call, in another precision, may have set other values than the tests need. `_is_safe_to_pad` needs a
    # backbone that does not refuse padding.
    may_pad, backbone.can_pad = backbone.can_pad, True
    backbone.min_tokens = 1
    if isinstance(backbone.model, VectorModel):
        model = backbone.model
        # With positions, the layers would not be those of transformers, and any blocks would seem to see the order of
        # the tokens. Only blocks that do not see it need positions.
        model.adds_positions = False
        _choose_stand_in(backbone, model)
        model.adds_positions = not _sees_order(backbone)
    else:
        _check_embeddings(backbone)
    backbone.causal = _is_causal(backbone)
    backbone.can_pad = may_pad and (backbone.causal or _is_safe_to_pad(backbone))
    backbone.min_tokens = 1 if _runs_on_one_token(backbone) else 2


def _runs_in_half(backbone: Backbone, half_matrices: Sequence[nn.Module]) -> bool:
    """Check and describe a backbone in float32, and return whether its layers are almost the same in half precision."""
    embeds = _random_embeds(backbone)
    try:
        with _in_float32(half_matrices):
            _check_and_describe(backbone)
            exact = _recorded_layers(backbone, embeds)
        # The matrices are in half precision again. Set directly, because `set_compute` would convert the matrices, too.
        backbone.compute = "bfloat16"
        rounded = _recorded_layers(backbone, embeds)
    except Exception:
        # The model may look at the type of its matrices, or break for another reason. `check_backbone` then tests it
        # with all matrices in float32, and that test tells what is wrong.
        return False
    finally:
        backbone.compute = "float32"
    return _are_almost_equal(rounded, exact)


def _are_almost_equal(rounded: Mapping[str, Tensor], exact: Mapping[str, Tensor]) -> bool:
    """Return whether layers in half precision are within `HALF_TOLERANCE` of those in float32, by name."""
    for layer, hidden in exact.items():
        error = (rounded[layer] - hidden).norm()
        if not error <= HALF_TOLERANCE * hidden.norm():  # also if a value is NaN
            return False
    return True


@contextmanager
def _in_float32(half_matrices: Sequence[nn.Module]) -> Iterator[None]:
    """Convert each of these modules to float32 while it runs, and back afterwards, within the context.

    So only one of them takes the memory of float32 at a time.
    """
    handles: list[Any] = []
    for module in half_matrices:
        stored_dtype = next(module.parameters()).dtype
        handles.append(module.register_forward_pre_hook(partial(_convert, torch.float32)))
        # The module is converted back even if it raises an error.
        convert_back = partial(_convert, stored_dtype)
        handles.append(module.register_forward_hook(convert_back, always_call=True))
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


def _convert(dtype: torch.dtype, module: nn.Module, *_inputs_and_output: object) -> None:
    """Convert a module in place; a hook of torch, which also gets the inputs and the output of the module."""
    module.to(dtype)


def check_native(model: nn.Module, config: Any, embeddings: nn.Module) -> None:
    """Raise `InputError` unless a text enters a model as its token ``embeddings``, and in no other way.

    A `VectorModel` notes instead that it has a native input, and `check_backbone` tests this input.
    """
    if isinstance(model, VectorModel):
        model.has_native_input = True
        return
    tokens = _random_tokens(getattr(embeddings, "num_embeddings", None), (2, CHECKED_TOKENS))
    options = without_cache(model)
    problem = f"model type {config.model_type!r}: it does not run"
    with as_input_error(problem, "choose another model"), torch.no_grad():
        by_number: Any = model(input_ids=tokens, **options).last_hidden_state
        by_vector: Any = model(inputs_embeds=embeddings(tokens), **options).last_hidden_state
    if not _are_close(by_vector.float(), by_number.float()):
        raise refusal(config, "its texts enter in another way than by token embeddings")


def _check_embeddings(backbone: Backbone) -> None:
    """Compare the layers of random vectors with the hidden states that transformers returns for them."""
    embeds = _random_embeds(backbone)
    model: Any = backbone.model
    output = model(inputs_embeds=embeds, output_hidden_states=True, **without_cache(model))
    _check_layers(backbone, _recorded_layers(backbone, embeds), output)


def _choose_stand_in(backbone: Backbone, model: VectorModel) -> None:
    """Set the first stand-in with which vectors run, and with which own input has the same layers as in transformers.

    ``model`` is that of the backbone. If no stand-in works, raise the error of the first one, which is the most likely.
    """
    problems: list[Exception] = []
    for stand_in in stand_ins(model.model, model.input_name):
        model.stand_in = stand_in
        try:
            if not torch.isfinite(backbone(_random_embeds(backbone))).all():
                raise refusal(backbone.config, "it returns NaN")
            _check_own_input(backbone, model, stand_in)
            return
        except Exception as problem:  # a model raises any type of error for a shape that it does not expect
            problems.append(problem)
    raise problems[0]


def _check_own_input(backbone: Backbone, model: VectorModel, stand_in: StandIn) -> None:
    """Compare the layers of random own input, which enters as vectors, with its hidden states in transformers."""
    row_shape = stand_in.shape(CHECKED_TOKENS)
    if model.input_name == "input_ids":
        native = _random_tokens(model.front_end.num_embeddings, (2, *row_shape))
    else:
        native = torch.randn((2, *row_shape), generator=torch.Generator().manual_seed(0))
    with _stand_in_of_shape(model, row_shape):
        recorded = _recorded_layers(backbone, model.embed(native))
    _check_layers(backbone, recorded, model.run_native(native, output_hidden_states=True))


@contextmanager
def _stand_in_of_shape(model: VectorModel, shape: tuple[int, ...]) -> Iterator[None]:
    """Let the stand-in of a model have rows of this shape for any number of tokens, within the context."""
    # Positions that are relative to an image need a stand-in of the size of the image.
    stand_in = model.stand_in
    model.stand_in = replace(stand_in, shape=lambda _tokens: shape)
    try:
        yield
    finally:
        model.stand_in = stand_in


def _random_tokens(vocabulary: int | None, shape: tuple[int, ...]) -> Tensor:
    """Return random token numbers of this shape; ``vocabulary`` is None if the model does not state its size."""
    # Low numbers are often those of special tokens, such as the padding token, which may have no position. So draw from
    # the upper half.
    size = vocabulary or DEFAULT_VOCABULARY
    return torch.randint(size // 2, size, shape, generator=torch.Generator().manual_seed(0))


def _recorded_layers(backbone: Backbone, embeds: Tensor) -> dict[str, Tensor]:
    """Return the hidden states of all layers, float32 (batch, tokens, width), by name."""
    states = backbone.run_layers(embeds, layers=backbone.layers)
    # Copies, because a block may write into the hidden states that it is given.
    return {layer: hidden.float().clone() for layer, hidden in states}


def _check_layers(backbone: Backbone, recorded: Mapping[str, Tensor], output: Any) -> None:
    """Raise `InputError` unless the recorded layers are the hidden states in the ``output`` of transformers."""
    if recorded["final"].shape[-1] != backbone.width:
        raise refusal(backbone.config, "its last hidden states are not as wide as its blocks")
    states = getattr(output, "hidden_states", None)
    if states is None or len(states) != backbone.depth + 1:
        raise refusal(backbone.config, "it does not return the hidden states of its blocks")
    # The last state has usually passed the last norm: in its place, ``last_hidden_state`` is compared with ``final``.
    # The others are, in most models, the input of the first block and the outputs of all blocks but the last; in some,
    # such as Mamba, the outputs of all blocks.
    blocks = backbone.layers[1:-1]  # without "embed" and "final"
    with_embed = dict(zip(("embed", *blocks), states[:-1], strict=False))
    without_embed = dict(zip(blocks, states[:-1], strict=True))
    final = {"final": output.last_hidden_state}
    if not any(_agree(recorded, expected | final) for expected in (with_embed, without_embed)):
        raise refusal(backbone.config, "its layers are not what transformers calls its hidden states")


def _agree(recorded: Mapping[str, Tensor], expected: Mapping[str, Tensor]) -> bool:
    """Return whether the recorded hidden states have all layers that are expected, and are close to them."""
    return all(
        layer in recorded and _are_close(recorded[layer], hidden.float())
        for layer, hidden in expected.items()
    )


def _sees_order(backbone: Backbone) -> bool:
    """Return whether the hidden state of a token depends on the order of the tokens."""
    embeds = _random_embeds(backbone)
    states = _recorded_layers(backbone, embeds)
    of_reversed = _recorded_layers(backbone, embeds.flip(1))
    # In the order of the tokens again.
    reordered = {layer: hidden.flip(1) for layer, hidden in of_reversed.items()}
    # Blocks of a small model that is not trained add little to their input, and that shows little of the order.
    blocks = backbone.layers[:-1]  # with "embed", without "final"
    for before, after in pairwise(blocks):
        added = states[after] - states[before]
        largest_difference = (reordered[after] - reordered[before] - added).abs().max()
        differs = largest_difference > ADDED_TOLERANCE * added.abs().max()
        if differs and largest_difference > ROUNDING * states[after].abs().max():
            return True
    return not _are_close(reordered["final"], states["final"])


def _is_causal(backbone: Backbone) -> bool:
    """Return whether the hidden states of the tokens before the last one are the same for another last token."""
    embeds = _random_embeds(backbone)
    changed = embeds.clone()
    changed[:, -1] = -changed[:, -1]  # any other vector would do
    return _are_close(backbone(changed)[:, :-1], backbone(embeds)[:, :-1])


def _is_safe_to_pad(backbone: Backbone) -> bool:
    """Return whether padding leaves the hidden states of the real tokens as they are."""
    embeds = _random_embeds(backbone)
    shorter = CHECKED_TOKENS // 2
    unpadded = backbone(embeds[:, :shorter])
    # The same real tokens; those after them are padding with other values.
    lengths = torch.full((len(embeds),), shorter)
    padded = backbone(embeds, lengths)[:, :shorter]
    return _are_close(padded, unpadded)


def _runs_on_one_token(backbone: Backbone) -> bool:
    """Return whether a model runs on a single token, which an audio spectrogram transformer does not.

    Its own input always has two special tokens, both of which it pools after the last block.
    """
    try:
        backbone(_random_embeds(backbone)[:1, :1])
    except Exception:  # of any type, see `_choose_stand_in`
        return False
    return True


def _random_embeds(backbone: Backbone) -> Tensor:
    """Return two random sequences of vectors (2, tokens, width), the same in each call."""
    generator = torch.Generator().manual_seed(0)
    return torch.randn(2, CHECKED_TOKENS, backbone.width, generator=generator)


def _are_close(values: Tensor, expected: Tensor) -> bool:
    """Return whether values have the expected shape, and differ by at most `TOLERANCE` of the largest one."""
    if values.shape != expected.shape:
        return False
    largest_error = (values - expected).abs().max()
    return bool(largest_error <= TOLERANCE * expected.abs().max())
