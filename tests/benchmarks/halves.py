"""A measurement that takes no time, in a module that a child process imports quickly."""


def half():
    """Return the values of a cell."""
    return {"area": 0.5}
