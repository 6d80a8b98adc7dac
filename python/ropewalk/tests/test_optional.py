"""Modules for other packages: without them, an error names the extra that installs them."""

from __future__ import annotations

from importlib import import_module

import pytest


@pytest.mark.parametrize(("module", "package", "extra"), [("lm_eval", "lm_eval", "lm-eval"), ("transformers", "torch", "transformers")])
def test_an_error_names_the_extra(module: str, package: str, extra: str) -> None:
    with pytest.raises(ModuleNotFoundError) as e:
        import_module(f"ropewalk.{module}")
    assert str(e.value) == (
        f"{package} is not installed: expected ropewalk[{extra}], as `pip install 'ropewalk[{extra}]'` installs it"
    )
