"""Runs an action right after a module is imported, for registries in modules that cannot be imported yet."""

import importlib.abc
import importlib.util
import sys


class _After(importlib.abc.MetaPathFinder):
    def __init__(self, name, action):
        self.name, self.action = name, action

    def find_spec(self, name, path, target=None):
        if name != self.name:
            return None
        sys.meta_path.remove(self)  # once; and the search below must not find this again
        spec = importlib.util.find_spec(name)
        execute = spec.loader.exec_module

        def execute_and_act(module):
            execute(module)
            self.action(module)

        spec.loader.exec_module = execute_and_act
        return spec


def after(name):
    """Decorates an action of the module ``name``: it runs once that is imported, at once where it is already."""

    def decorate(action):
        if name in sys.modules:
            action(sys.modules[name])
        else:
            sys.meta_path.insert(0, _After(name, action))
        return action

    return decorate
