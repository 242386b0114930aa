"""Modules that doctest cannot import here, because a framework is not installed."""

from importlib.util import find_spec

NEEDS = {
    "axolotl": "apportion/trl/axolotl",
    "unsloth": "tests/trl/scripts/unsloth_itself.py",
    "verl": "tests/test_doc_commands.py",
}
collect_ignore = [folder for framework, folder in NEEDS.items() if find_spec(framework) is None]
