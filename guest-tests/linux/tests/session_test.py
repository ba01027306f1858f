"""guests that end while qemu-session migrates them"""

import importlib.machinery
import importlib.util
import pathlib
import subprocess
import tempfile
import types
import unittest

import pytest

import qemu_vmm

pytestmark = pytest.mark.quick
HERE = pathlib.Path(__file__).resolve().parent.parent



LOADER = importlib.machinery.SourceFileLoader("qemu_session", str(HERE / "qemu-session"))
qemu_session = importlib.util.module_from_spec(importlib.util.spec_from_loader(LOADER.name, LOADER))
LOADER.exec_module(qemu_session)


class SessionTest(unittest.TestCase):
    def migrate(self, wait):
        """Whether the guest has migrated, and whether the other QEMU was ended; `wait` is what becomes of the one that has gone."""
        def fail(_):
            raise qemu_vmm.QemuError("migrate: QEMU has gone")

        ended = []
        other = types.SimpleNamespace(process=types.SimpleNamespace(kill=lambda: ended.append(True)))
        with tempfile.TemporaryDirectory() as directory:
            session = qemu_session.Session.__new__(qemu_session.Session)
            session.directory, session.started, session.start = pathlib.Path(directory), 1, lambda **_: other
            session.qemu = types.SimpleNamespace(make_disk=lambda _: None, monitor=types.SimpleNamespace(do=lambda _: None), migrate_to=fail,
                                                 process=types.SimpleNamespace(wait=wait))
            return session.migrate(), bool(ended)

    def test_a_guest_that_has_powered_off_does_not_migrate(self):
        self.assertEqual(self.migrate(lambda timeout: 0), (False, True))

    def test_all_else_is_a_failure(self):
        def never(timeout):
            raise subprocess.TimeoutExpired("qemu", timeout)

        for wait in (lambda timeout: 1, never):
            with self.assertRaises(qemu_vmm.QemuError):
                self.migrate(wait)

