"""precompiled headers by ccache"""

import os
import subprocess
import time

import pytest

from paths import ROOT

pytestmark = [pytest.mark.quick, pytest.mark.seconds(10)]

HEADER = "#pragma once\n// {}\nstruct A {{ int a; }};\n"
HAS_JUST_BEEN_WRITTEN = 2  # seconds for which ccache does not trust a file


def test_a_header_that_differs_in_a_comment_is_compiled_again(tmp_path):
    def compile(*arguments):
        command = [ROOT / "tools/dev/cmake/cached_compiler", "ccache", "c++", "-Winvalid-pch", "-Werror", *arguments]
        return subprocess.run(command, cwd=tmp_path, env=os.environ | {"CCACHE_DIR": str(tmp_path / "cache")}, capture_output=True, text=True)

    (tmp_path / "all.hpp").write_text('#include "a.hpp"\n')
    (tmp_path / "user.cpp").write_text('#include "a.hpp"\nint f(A a) { return a.a; }\n')
    for words in ("one word", "other words"):
        (tmp_path / "a.hpp").write_text(HEADER.format(words))
        time.sleep(HAS_JUST_BEEN_WRITTEN)
        made = compile("-x", "c++-header", "-MD", "-MF", "all.d", "-o", "all.hpp.gch", "-c", "all.hpp")
        assert made.returncode == 0, made.stderr
    used = compile("-include", "all.hpp", "-c", "user.cpp", "-o", "user.o")
    assert used.returncode == 0, used.stderr
    hits = subprocess.run(["ccache", "--print-stats"], env=os.environ | {"CCACHE_DIR": str(tmp_path / "cache")}, capture_output=True, text=True, check=True)
    assert "cache_miss\t0\n" not in hits.stdout, "ccache was not asked"
