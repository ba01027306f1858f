"""judge of rr

On a good log, and on logs with one thing wrong each.
"""

import unittest

import pytest

from good_logs import boot, failing, gdb_lines

pytestmark = pytest.mark.quick
GOOD = "\n".join((*boot(), "vpmu-guest: begin rr", "vpmu-guest: rr rounds 2",
                  "vpmu-guest: rr record 1 0 31 81cc 3773", "vpmu-guest: rr buffered 1 18", "vpmu-guest: rr replay 1 0 81cc 3773",
                  "vpmu-guest: rr record 2 0 30 3e0a f36a", "vpmu-guest: rr buffered 2 17", "vpmu-guest: rr replay 2 0 3e0a f36a",
                  "vpmu-guest: end rr 0", *gdb_lines(), "vpmu-guest: done", "vpmu-host: exit 0"))


class RrTest(unittest.TestCase):
    def failing(self, text):
        return failing("rr", text)

    def test_a_good_log_passes_every_check(self):
        self.assertEqual(self.failing(GOOD), set())

    def test_what_is_wrong_fails(self):
        for old, new in (
            ("replay 1 0 81cc", "replay 1 0 81cd"),
            ("replay 1 0 81cc 3773", "replay 1 1"),
            ("record 2 0 30", "record 2 0 9"),
            ("buffered 2 17", "buffered 2 0"),
            ("vpmu-guest: rr buffered 1 18\n", ""),
            ("record 2 0 30 3e0a f36a", "record 2 1 30"),
            ("vpmu-guest: rr replay 2 0 3e0a f36a\n", ""),
            ("rounds 2", "rounds 3"),
            ("rounds 2", "rounds 0"),
            ("vpmu-guest: rr rounds 2\n", ""),
        ):
            self.assertIn(old, GOOD)
            self.assertEqual(self.failing(GOOD.replace(old, new)), {"rr-same-each-time"}, new)

    def test_gdb_stops_where_it_has_to(self):
        for old, new, failing in (
            ("stepi 959999200 0 902", "stepi 959999200 0 903", "gdb-stepi"),
            ("stepi 959999200 0", "stepi 959999199 3", "gdb-stepi"),
            ("break 959999200 24 1001", "break 959999200 24 1000", "gdb-break"),
            ("break 959999200 24 1001", "break 959999200 24", "gdb-break"),
        ):
            self.assertIn(old, GOOD)
            self.assertEqual(self.failing(GOOD.replace(old, new)), {failing}, new)
        self.assertEqual(self.failing(GOOD.replace("24 1001", "24 901")), set())

