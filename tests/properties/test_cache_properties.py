"""Properties of the cache: rounding is bounded, the canonical text well defined, the disk gives back what it got."""

import json
import tempfile
from pathlib import Path

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from reservoir_cache import Entry, FeatureStore, Layout, Spec, verify, write_block, write_targets
from reservoir_cache.shard import decode, encode
from reservoir_cache.spec import canonical_json

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=12,
)
SHAPES = st.tuples(st.integers(1, 7), st.integers(1, 3), st.integers(1, 5))
STORES = st.sampled_from(["float16", "bfloat16", "float32"])


@st.composite
def arrays(draw, shape=SHAPES):
    """Draw features: per-channel offsets up to 1e4 plus values of any size float16 can hold, subnormals included."""
    size = draw(shape)
    values = hnp.arrays(np.float32, size, elements=st.floats(-3e4, 3e4, width=32))
    small = hnp.arrays(np.float32, size, elements=st.floats(-(2.0**-14), 2.0**-14, width=32, allow_subnormal=True))
    offsets = hnp.arrays(np.float32, size[2], elements=st.floats(-1e4, 1e4, width=32))
    return draw(values | small) + draw(offsets)


def half_ulp(residual, store):
    """Return half the spacing of the stored type at the residual, with float64 arithmetic of its own."""
    digits, smallest = {"float16": (10, -24), "bfloat16": (7, -133), "float32": (23, -149)}[store]
    exponent = np.frexp(np.abs(residual))[1] - 1
    return np.ldexp(0.5, np.maximum(exponent - digits, smallest))


@given(arrays(), STORES)
def test_error_is_at_most_half_an_ulp_of_the_residual(x, store):
    encoded = encode(x, store, column="c")
    if store == "float32":
        assert encoded.offset is None
        assert decode(encoded, store).tobytes() == x.tobytes()
        return
    offset = encoded.offset.astype(np.float64)
    residual = x.astype(np.float64) - offset
    # The subtraction and the addition are in float32; what they round is bounded by their results' size.
    float32_rounding = 2.0**-23 * (np.abs(residual) + np.abs(x)) + 2.0**-148
    bound = half_ulp(residual * (1 + 2.0**-23), store) + float32_rounding
    assert (np.abs(decode(encoded, store).astype(np.float64) - x) <= bound).all()
    assert (np.abs(offset - x.astype(np.float64).mean(axis=(0, 1))) <= 2.0**-23 * np.abs(x).max() + 2.0**-148).all()


@given(JSON)
def test_canonical_text_survives_json_and_reordering(value):
    text = canonical_json(value)
    assert canonical_json(json.loads(text)) == text
    assert canonical_json(reverse(value)) == text
    assert json.loads(text) == value


def reverse(value):
    if isinstance(value, dict):
        return {key: reverse(value[key]) for key in reversed(list(value))}
    return [reverse(item) for item in value] if isinstance(value, list) else value


@settings(max_examples=10, deadline=None)
@given(data=st.data(), store=STORES, rows=st.integers(1, 9), block_rows=st.integers(1, 4))
def test_the_disk_gives_back_what_it_got(data, store, rows, block_rows):
    tokens, width = data.draw(st.integers(1, 3)), data.draw(st.integers(1, 4))
    spec = Spec(
        task={"name": "toy"},
        data={"digest": "d", "rows": {"train": rows}},
        backbone={"family": "gpt2", "digest": "b"},
        init={"kind": "random", "seed": 0},
        input={"kind": "orthogonal", "seed": 0, "gain": 1.41, "patch": 1, "stride": 1},
        padding="mask",
        compute="float32",
        store=store,
    )
    with tempfile.TemporaryDirectory() as folder:
        entry = Entry.create(Path(folder), "gpt2-random", spec, Layout(batch_rows=1, block_rows=block_rows), {})
        blocks = entry.blocks("train")
        columns = ["embed/mean", "final/all"]
        made = {
            name: [data.draw(arrays(st.just((high - low, tokens, width)))) for low, high in blocks] for name in columns
        }
        order = data.draw(st.permutations([(block, name) for block in range(len(blocks)) for name in columns]))
        for block, name in order:
            write_block(entry, "train", block, {name: made[name][block]})
        assert not entry.missing("train", columns)
        assert [problem.path.name for problem in verify(entry)] == ["train"]  # the labels are still to come
        index = np.arange(rows)
        write_targets(entry, "train", {"y": index.reshape(rows, 1, 1), "lengths": index, "index": index})
        assert not verify(entry)
        train = FeatureStore(entry)["train"]
        for name in columns:
            meant = np.concatenate([decode(encode(x, store, column=name), store) for x in made[name]])
            np.testing.assert_array_equal(train[name], meant[:, 0] if tokens == 1 else meant)
            np.testing.assert_array_equal(np.concatenate(list(train.blocks(name))), meant)
