"""A pytest plugin for llama.cpp's server tests. It skips checks that depend on the model, and
reports why a test does not apply.
"""

import fnmatch
import json
import os
import pathlib
import re

import pytest

# Lists of words that depend on the text of the tests' own model of 260,000 parameters.
WORDS = re.compile(r"[\w ^.'()|+]*")


class AnyCount(int):
    """Equal to every number, because the number of tokens of a text depends on the model."""

    def __eq__(self, other):
        return isinstance(other, int)

    def __ne__(self, other):
        return not self == other

    __hash__ = int.__hash__


class CountUpTo(AnyCount):
    """Equal to every number from 1 to this one, because the length of a sampled answer depends on
    the processor's arithmetic.
    """

    def __eq__(self, other):
        return isinstance(other, int) and 1 <= other <= int(self)

    __hash__ = int.__hash__


def exceptions():
    """Patterns of tests that do not apply, with reasons."""
    found, reason = [], ""
    for line in pathlib.Path(os.environ["EXCEPTIONS"]).read_text().splitlines():
        if line.startswith("# "):
            reason = line[2:]
        elif line.strip():
            found.append((line.strip(), reason))
    return found


def pytest_configure(config):
    import utils

    strict = utils.match_regex
    utils.match_regex = lambda regex, text: WORDS.fullmatch(regex) is not None or strict(regex, text)
    utils.ServerPreset.load_all = staticmethod(lambda: None)
    config.rows = []


def pytest_collection_modifyitems(items):
    patterns = exceptions()
    used = set()
    for item in items:
        if hasattr(item, "callspec") and "n_prompt" in item.callspec.params:
            item.callspec.params["n_prompt"] = AnyCount(item.callspec.params["n_prompt"])
        if hasattr(item, "callspec") and isinstance(item.callspec.params.get("n_predicted"), int):
            item.callspec.params["n_predicted"] = CountUpTo(item.callspec.params["n_predicted"])
        name = item.nodeid.removeprefix("unit/")
        for pattern, reason in patterns:
            # Brackets enclose the parameters of a test.
            if fnmatch.fnmatchcase(name, pattern.replace("[", "[[]")):
                used.add(pattern)
                if not os.environ.get("ALL"):
                    item.add_marker(pytest.mark.skip(reason=reason))
                break
    for pattern, _ in patterns:
        if pattern not in used:
            raise pytest.UsageError(f"{os.environ['EXCEPTIONS']}: no test is named {pattern}")


@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_makereport(item, call):
    outcome = yield
    report = outcome.get_result()
    if call.excinfo is not None and "return code 64" in str(call.excinfo.value):
        report.outcome = "skipped"
        report.longrepr = ("", 0, pathlib.Path(os.environ["SHIM_REASON"]).read_text())


def pytest_runtest_logreport(report):
    if report.when == "call" or report.outcome != "passed":
        reason = ""
        if report.outcome == "skipped" and isinstance(report.longrepr, tuple):
            reason = report.longrepr[2].removeprefix("Skipped: ")
        elif report.outcome == "failed":
            reason = str(getattr(report.longrepr, "reprcrash", "") or report.longrepr).splitlines()[0][:300]
        with open(os.environ["OUTCOMES"], "a") as file:
            file.write(json.dumps([report.nodeid.removeprefix("unit/"), report.outcome, reason]) + "\n")
