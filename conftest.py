"""Modules that cannot be imported here, because a framework is not installed."""

from importlib.util import find_spec

NEEDS = {
    "axolotl": ["apportion/trl/axolotl"],
    "unsloth": ["tests/trl/scripts/unsloth_itself.py"],
    "verl": ["tests/test_doc_commands.py"],
    "torch": [
        "apportion/engines",
        "tests/engines",
        "tests/golden/drivers.py",
        "tests/hostile.py",
        "tests/policies.py",
        "tests/test_bias.py",
        "tests/test_loaded_files.py",
        "tests/test_paper_pages.py",
        "tests/vote/test_served_model.py",
    ],
}
collect_ignore = [path for framework, paths in NEEDS.items() if find_spec(framework) is None for path in paths]
