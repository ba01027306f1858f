"""The system tests' options, fixtures and order: tools/dev/test."""

pytest_plugins = ["selection", "rig"]
