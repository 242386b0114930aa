"""The tool of the questions that call one: verl loads this file by ``multi_turn.function_tool_path``."""

from verl.tools.function_tool import function_tool


@function_tool
def successor(number: int) -> str:
    """The number after a number.

    Args:
        number: The number.
    """
    return f"after {number} comes {number + 1}"
