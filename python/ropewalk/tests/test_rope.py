"""RoPE methods, against the program."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from conftest import Cli

import ropewalk


def test_methods_are_those_of_the_program(cli: Cli) -> None:
    assert ropewalk.rope.methods() == cli("rope", "--list")["methods"]


@pytest.mark.parametrize("spec", ["plain", "yarn:factor=4", "harpe", "ntk+self-extend:window=128,group=4"])
def test_plans_are_those_of_the_program(model: ropewalk.Model, path: Path, cli: Cli, spec: str) -> None:
    said = cli("rope", spec, "-m", path, "--ctx", 2048)
    plan = ropewalk.rope.inspect(path, spec, 2048)
    assert (plan.spec, plan.n_ctx, plan.n_ctx_orig) == (said["rope"], 2048, said["n_ctx_orig"])
    np.testing.assert_array_equal(plan.frequencies, said["freqs"])
    assert plan.mscale == said["mscale"] and plan.notes == said["notes"]
    bases = None if plan.bases is None else plan.bases.tolist()
    assert bases == said["bases"]
    assert plan.to_dict()["kinds"][0]["branches"] == said["branches"]
    of_session = model.session(2048, rope=spec, n_threads=1).plan
    assert of_session.to_dict() == plan.to_dict() == model.plan(spec, 2048).to_dict()


def test_distances_follow_the_method(path: Path) -> None:
    positions = np.arange(0, 1024, 7)
    query, key = np.meshgrid(positions, positions, indexing="ij")
    causal = np.where(key <= query, query - key, np.nan)
    plain = ropewalk.rope.inspect(path, "plain", 1024)
    np.testing.assert_array_equal(plain.distances(positions, range(0, 1024, 7)), causal)
    extended = ropewalk.rope.inspect(path, "self-extend:window=128,group=4", 1024).distances(positions, positions)
    near = query - key < 128
    np.testing.assert_array_equal(extended[near], causal[near])
    assert np.nanmax(extended) < 512 and np.isnan(extended[key > query]).all()


def test_factors_on_queries_follow_the_method(path: Path) -> None:
    plan = ropewalk.rope.inspect(path, "ntk:temperature=logn", 2048)
    positions = np.array([0, 511, 512, 2047])
    expected = np.maximum(1, np.log(positions + 1) / np.log(512))
    np.testing.assert_allclose(plan.query_scale(positions), expected, rtol=1e-12)
    np.testing.assert_array_equal(plan.query_scale(positions, layer=1), plan.query_scale(positions))
    np.testing.assert_array_equal(plan.distances([9], [2], layer=1), [[7.0]])
    with pytest.raises(ropewalk.ArgumentError, match="layer: expected a layer with attention, found 2"):
        plan.distances([9], [2], layer=2)
