"""Which cases of a sweep stand in the suite, and which only in ``make soak``."""

import pytest


def case(*values, suite, id=None):
    """Return a case of a parametrised test. Unless it is in the ``suite``, only ``make soak`` runs it."""
    return pytest.param(*values, marks=() if suite else pytest.mark.soak, id=id)
