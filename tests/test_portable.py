"""What the package asks of the platform: nothing that only POSIX has, no default encoding, and classifiers that hold.

CI runs on Linux. These tests stand in for other systems as far as imports and encodings go.
"""

import ast
import tomllib

from tests.test_house import MODULES, ROOT, SOURCES, tree_of

UNPORTABLE = """
    fcntl grp pty pwd resource syslog termios tty
    cgi cgitb crypt imghdr nntplib pipes sndhdr telnetlib uu audioop imp
"""
"""Modules that only POSIX has, and those that Python 3.13 has removed."""
ATTRIBUTES = "fork forkpty getuid uname killpg setsid SIGKILL SIGHUP SIGALRM SIGUSR1"


def test_no_module_imports_what_only_posix_has_or_python_3_13_has_removed():
    found = {}
    for module, path in MODULES.items():
        nodes = list(ast.walk(tree_of(path)))
        names = {alias.name for node in nodes if isinstance(node, ast.Import) for alias in node.names}
        names |= {node.module for node in nodes if isinstance(node, ast.ImportFrom)}
        used = {node.attr for node in nodes if isinstance(node, ast.Attribute)}
        found[module] = names & {*UNPORTABLE.split()} | used & {*ATTRIBUTES.split()}
    assert not {module: names for module, names in found.items() if names}, "Windows, or Python 3.13, has none of these"


def test_every_text_file_is_opened_as_utf_8():
    """The default encoding of Windows is another one."""
    missing = []
    for module, path in SOURCES.items():
        for node in ast.walk(tree_of(path)):
            if isinstance(node, ast.Call) and opens_text(node) and not says_encoding(node):
                missing.append(f"{module}:{node.lineno}")
    assert not missing, "give encoding='utf-8'"


def says_encoding(call):
    """Return whether the encoding is given, by name or as text."""
    given = {value.value for value in call.args if isinstance(value, ast.Constant)}
    return "encoding" in {keyword.arg for keyword in call.keywords} or bool(given & {"utf-8", "utf-8-sig"})


def opens_text(call):
    """Return whether this reads or writes text: a file that is not opened with "b", or a process with text=True."""
    name = getattr(call.func, "attr", getattr(call.func, "id", ""))
    if name in ("read_text", "write_text"):
        return True
    if name in ("run", "Popen", "check_output"):
        return any(keyword.arg == "text" for keyword in call.keywords)
    modes = [value.value for value in call.args if isinstance(value, ast.Constant) and isinstance(value.value, str)]
    modes = [mode for mode in modes if mode and set(mode) <= set("rwaxbt+")]
    return name == "open" and bool(modes) and "b" not in modes[-1]


def test_classifiers_name_the_pythons_that_the_whole_suite_ran_on():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert project["requires-python"] == ">=3.11"
    named = {line.rsplit(" ", 1)[1] for line in project["classifiers"] if "Python :: 3." in line}
    assert named == {"3.11"}
