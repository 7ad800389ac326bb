"""Symbols with their level in brackets, and their counts by the first symbol: structure that is given, not learned."""

import numpy as np
import pytest
import torch
from reservoir_pipelines import extract, fit, predict

from reservoir.errors import InputError
from reservoir.hidden_states import HiddenStates
from reservoir.inputs.counter import LEVELS, BracketCounter, Brackets
from reservoir.pooling import find_pooling
from reservoir.tasks import task_named
from reservoir.tasks.listops import SYMBOLS
from reservoir.tasks.task import Task, Tokens, Vectors

SMALL = {"train_rows": 300, "valid_rows": 60, "test_rows": 60, "min_length": 8, "max_length": 30}


def levels_by_hand(symbols):
    """Return the level of each symbol of an expression."""
    depth, levels = 0, []
    for symbol in symbols:
        depth += symbol.startswith(("[", "(", "{"))
        levels.append(min(max(depth, 1), LEVELS))
        depth -= symbol.endswith(("]", ")", "}"))
    return levels


def test_each_symbol_of_an_expression_stands_at_its_level():
    words = ["[MAX", "4", "[MIN", "2", "[SM", "1", "[MED", "3", "[MAX", "9", "0", "]", "]", "5", "]", "]", "7", "]"]
    brackets = Brackets.of(task_named("listops").task)
    tokens = torch.tensor([[SYMBOLS.index(word) for word in words]])
    hidden = BracketCounter(brackets, 72, gain=2.0)(tokens)[0]
    assert hidden.shape == (len(words), 72) and torch.equal(hidden.sum(dim=1), torch.full((len(words),), 2.0))
    level, symbol = np.divmod(hidden.argmax(dim=1).numpy(), len(SYMBOLS))
    assert symbol.tolist() == tokens[0].tolist() and (level + 1).tolist() == levels_by_hand(words)


def test_brackets_of_own_texts_come_in_pairs_and_other_symbols_are_refused():
    text = Task(name="mine.csv", form=Tokens(8), max_tokens=20, classes=2, alphabet="ab()<[]>")
    assert Brackets.of(text) == Brackets(8, (2, 5, 4), (3, 6, 7))
    values = torch.tensor([[0, 2, 0, 3, 3, 1]])  # a(a))b: the sum never counts below the first level
    level = BracketCounter(Brackets.of(text), 32, gain=1.0)(values)[0].argmax(dim=1) // 8
    assert level.tolist() == [0] * 6
    for form, alphabet in ((Tokens(3), "a(b"), (Tokens(2), ""), (Vectors(2), "")):
        with pytest.raises(InputError, match="no pairs of brackets"):
            Brackets.of(Task(name="mine.csv", form=form, max_tokens=20, classes=2, alphabet=alphabet))
    with pytest.raises(InputError, match="kernels:width=32"):
        BracketCounter(Brackets.of(text), 24, gain=1.0)


def test_counts_are_sums_and_maxima_alone_and_for_each_first_symbol():
    symbols, lengths = np.array([[1, 0, 2, 2], [0, 2, 0, 0]]), torch.tensor([4, 2])
    hidden = torch.from_numpy(np.eye(3, dtype=np.float32)[symbols])
    hidden[1, 2:] = float("nan")  # padding
    pooled = find_pooling("counts2").of(HiddenStates(hidden, lengths))[:, 0].reshape(2, 3, 6)
    assert find_pooling("counts2").shape(3, 4, 1) == (1, 18)
    counts = [[1, 1, 2, 1, 1, 1], [1, 0, 1, 1, 0, 1]]
    assert pooled[:, 0].tolist() == counts
    assert pooled[:, 1].tolist() == [[0] * 6, counts[1]] and pooled[:, 2].tolist() == [counts[0], [0] * 6]
    with pytest.raises(InputError, match="the layer has 3 channels"):
        find_pooling("counts4").shape(3, 4, 1)


def test_listops_is_read_by_the_counter_and_predicted_from_a_saved_readout(tmp_path):
    features = extract("listops", input="counter", pool="counts16", parameters=SMALL, cache=tmp_path)
    spec = features.store.entry.spec
    assert (spec.input.kind, spec.backbone.family, spec.input.gain) == ("counter", "kernels", 1.0)
    with pytest.raises(InputError, match="it reads symbols, not windows"):
        extract("listops", input="counter", patch=3, pool="counts16", parameters=SMALL, cache=tmp_path)
    fitted = fit(features, select="valid")
    file = tmp_path / "new.npz"
    x = np.array([[SYMBOLS.index(word) for word in ["[MAX", "2", "[MIN", "9", "8", "]", "3", "]"]]])
    np.savez(file, x=x, lengths=[x.shape[1]])
    (row,) = predict(fitted.saved, file)
    assert row.label in range(10)
