"""Tells `tools/test` how each test ended, a line of JSON each, by the pipe that VPMU_TEST_PROGRESS names."""

import json
import os

import pytest

from bed import RunAgain
from paths import PIPE


def tell(**what):
    os.write(int(os.environ[PIPE]), json.dumps(what).encode() + b"\n")


class Progress:
    def __init__(self):
        self.told = False

    def collected(self, names):
        """Each worker collects the same."""
        if not self.told:
            self.told = True
            tell(collected=[bare(name) for name in names])

    @pytest.hookimpl(optionalhook=True)
    def pytest_xdist_node_collection_finished(self, node, ids):
        self.collected(ids)

    def pytest_runtest_logreport(self, report):
        properties = dict(report.user_properties) if report.when == "teardown" else {}
        reason = report.longrepr[2].removeprefix("Skipped: ") if report.skipped and isinstance(report.longrepr, tuple) else ""
        tell(test=bare(report.nodeid), when=report.when, outcome=report.outcome, seconds=report.duration, text=report.longreprtext if report.failed else reason,
             output="\n".join(content for _, content in report.sections) if report.failed else "", **properties)

    def pytest_warning_recorded(self, warning_message, nodeid):
        if issubclass(warning_message.category, RunAgain):
            tell(warned=bare(nodeid), text=str(warning_message.message))

    def pytest_collectreport(self, report):
        if report.failed:
            tell(broken=report.nodeid, text=report.longreprtext)


def bare(name):
    """Without the group that xdist adds."""
    return name.rsplit("@", 1)[0] if name.rfind("@") > name.rfind("]") else name


def pytest_configure(config):
    if PIPE in os.environ and not hasattr(config, "workerinput"):
        config.pluginmanager.register(Progress(), "progress-of-tests")


@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_protocol(item):
    """The CPU time of a test and its children, but not of kept beds, of which elapsed time says less while others run."""
    item.cpu_before = sum(os.times()[:4])
    yield


@pytest.hookimpl(trylast=True)
def pytest_runtest_teardown(item):
    item.user_properties.append(("cpu", sum(os.times()[:4]) - item.cpu_before))
