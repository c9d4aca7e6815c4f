"""The examples in docstrings of public names run."""

import doctest
import os

import pytest
import torch

import evenstep

EXAMPLES = doctest.DocTestFinder().find(evenstep.Job, "Job") + [
    test
    for name in evenstep.__all__
    if name != "Job"
    for test in doctest.DocTestFinder(recurse=False).find(getattr(evenstep, name), name)
]
WITH_EXAMPLES = [test for test in EXAMPLES if test.examples]


def test_the_main_names_have_examples() -> None:
    assert {"Job", "Step", "init", "measure_costs", "profile"} <= {test.name for test in WITH_EXAMPLES}


@pytest.mark.parametrize("example", WITH_EXAMPLES, ids=lambda example: str(example.name))
def test_an_example_runs(example: doctest.DocTest, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in os.environ if name.startswith("EVENSTEP_")]:
        monkeypatch.delenv(name)
    # One process starts no predictor in any case.
    monkeypatch.setenv("EVENSTEP_SERVER", "off")
    example.globs = {"evenstep": evenstep, "torch": torch}
    runner = doctest.DocTestRunner(optionflags=doctest.IGNORE_EXCEPTION_DETAIL)
    said: list[str] = []
    assert runner.run(example, out=said.append).failed == 0, "".join(said)
