"""Which tests run, on which worker, and in which order.

Tests that share a fixture of their module (a guest that has booted, say), with the same parameters of it, are a *unit*: they run one after the other on one worker. The mark `sample(n)` leaves n units, `sample_tests(n)`
n tests of each unit, and `some_of(n, among=NAME)` n of the files that have it. The seed chooses them: the same seed, the same tests. The longest units begin first.
"""

import collections
import hashlib
import json

import pytest

from paths import TIMES, step_of

UNKNOWN_SECONDS = 5


def pytest_addoption(parser):
    group = parser.getgroup("vpmu")
    group.addoption("--size", choices=["quick", "usual", "full"], default="usual", help="how much of the tests (usual)")
    group.addoption("--seed", help="what the mark `sample` leaves follows from it; without one, all tests run")
    group.addoption("--named", action="store_true", help="the files are those that were asked for: the mark `some_of` leaves all of them")
    group.addoption("--accel", choices=["soft", "kvm"], default="soft", help="what runs the guests of the tests that take either (soft)")


def shared_fixtures(item):
    return {name for name, found in item._fixtureinfo.name2fixturedefs.items() if found[-1].scope == "module"}


def unit_of(item):
    """The module and the parameters of its shared fixtures, or the test itself."""
    shared = shared_fixtures(item)
    if not shared:
        return item.nodeid
    given = item.callspec.params if hasattr(item, "callspec") else {}
    chosen = [str(given[name]) for name in sorted(shared) if name in given]
    return "-".join([step_of(item.path), *chosen])


def order_of(seed, name):
    return hashlib.sha256(f"{seed} {name}".encode()).hexdigest()


def sampled(items, config):
    """Those that the marks `sample`, `sample_tests` and `some_of` leave."""
    if config.option.size == "full" or config.option.seed is None:
        return list(items)
    choices = collections.defaultdict(set)  # of each mark: units, the tests of a unit, or files
    choice_of = {}
    for item in items:
        if item.get_closest_marker("always"):
            continue
        for name in ("sample", "sample_tests", *(() if config.option.named else ("some_of",))):
            if found := next(item.iter_markers_with_node(name), None):
                node, mark = found
                # The mark of a function is found at each of its tests.
                place = f"{item.parent.nodeid}::{item.originalname}" if node is item else node.nodeid
                among, choice = {"sample": (place, unit_of(item)), "sample_tests": (f"{place} {unit_of(item)}", item.nodeid), "some_of": (mark.kwargs.get("among"), step_of(item.path))}[name]
                choices[among, mark.args[0]].add(choice)
                choice_of.setdefault(item, []).append(((among, mark.args[0]), choice))
    left = {key: set(sorted(names, key=lambda name: order_of(config.option.seed, name))[: key[1]]) for key, names in choices.items()}
    return [item for item in items if all(choice in left[key] for key, choice in choice_of.get(item, ()))]


def of_size(item, size):
    if size == "quick":
        return item.get_closest_marker("quick") is not None
    return size == "full" or item.get_closest_marker("full") is None


@pytest.hookimpl(tryfirst=True)  # before xdist reads the groups
def pytest_collection_modifyitems(config, items):
    chosen = sampled([item for item in items if of_size(item, config.option.size)], config)
    if len(chosen) < len(items):
        config.hook.pytest_deselected(items=[item for item in items if item not in set(chosen)])
    times = json.loads(TIMES.read_text(encoding="utf-8")) if TIMES.exists() else {}
    cost = collections.Counter()
    for item in chosen:
        unit = unit_of(item)
        if shared_fixtures(item):
            item.add_marker(pytest.mark.xdist_group(unit))
        known = item.get_closest_marker("seconds")
        if item.nodeid in times:
            cost[unit] += times[item.nodeid]
        else:
            cost[unit] = max(cost[unit], known.args[0] if known else UNKNOWN_SECONDS)
    items[:] = sorted(chosen, key=lambda item: (-cost[unit_of(item)], unit_of(item)))
