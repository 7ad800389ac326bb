"""The doctor finds what is planted, and names the command that fixes it."""

import json

from reservoir_pipelines import extract

SHAPE = {"backbone": "gpt2:n_layer=1,n_embd=16,n_head=2,n_positions=64", "init": "random", "layers": "final"}


def test_a_sound_machine_is_told_so(cache, call):
    code, out, _ = call("doctor", "--json")
    found = {finding["what"]: finding for finding in json.loads(out)}
    assert code == 0
    assert {"python", "device", "precision", "cache", "disk", "entries", "data", "extras"} <= found.keys()
    assert not any(finding["remedy"] for finding in found.values())


def test_what_is_broken_is_found_and_its_remedy_works(cache, call):
    entry = extract("digits", **SHAPE, limit=20).entry
    manifest = entry / "train" / "manifest.json"
    manifest.write_bytes(manifest.read_bytes()[:-9])
    code, out, _ = call("doctor", "--json")
    wrong = [finding for finding in json.loads(out) if finding["remedy"]]
    assert code == 1
    assert len(wrong) == 1
    assert str(manifest) in wrong[0]["found"]
    assert call(*wrong[0]["remedy"].split()[1:])[0] == 0
    extract("digits", **SHAPE, limit=20)
    assert call("doctor")[0] == 0
    (entry / "spec.json").write_text("{")
    code, out, _ = call("doctor")
    assert code == 1
    assert f"reservoir cache remove {entry}" in out


def test_a_cache_that_is_a_file_is_found(call, tmp_path):
    (tmp_path / "file").write_text("")
    code, _, err = call("doctor", "--cache", tmp_path / "file")
    assert code in (1, 2)
    assert len(err.splitlines()) <= 1
