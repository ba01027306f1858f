"""the documentation as a site

It builds without a link that leads nowhere, and each CPU's events have a page.
"""

import subprocess

import pytest

from paths import ROOT, models

pytestmark = [pytest.mark.full, pytest.mark.seconds(40)]
PACKAGES = ("mkdocs", "mkdocs-material")


@pytest.fixture(scope="module")
def site():
    done = subprocess.run(["tools/docs"], cwd=ROOT, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False)
    assert done.returncode == 0, done.stdout
    return ROOT / "build/docs/site"


@pytest.mark.parametrize("model", models())
def test_events_of(site, model):
    assert "INST_RETIRED" in (site / f"events/{model}/index.html").read_text(encoding="utf-8")
