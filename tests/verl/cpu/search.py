"""A search tool with a state: each question brings its own passages, by ``tools_kwargs`` of its ``extra_info``."""

import os
from pathlib import Path

from verl.tools.base_tool import BaseTool
from verl.tools.schemas import ToolResponse


class Search(BaseTool):
    """Returns the question's passages, in an instance for each call. A line in ``searches`` tells when one ends."""

    def __init__(self, config, tool_schema):
        super().__init__(config, tool_schema)
        self.passages = {}

    async def create(self, instance_id=None, create_kwargs=None, **rest):
        name, response = await super().create(instance_id)
        self.passages[name] = create_kwargs["passages"]
        return name, response

    async def execute(self, instance_id, parameters, **rest):
        return ToolResponse(text=f"{parameters['query']}: {' '.join(self.passages[instance_id])}"), 0.0, {}

    async def release(self, instance_id, **rest):
        with Path(os.environ["VERL_TEST_RECORDS"], "searches").open("a", encoding="utf-8") as lines:
            lines.write(" ".join(self.passages.pop(instance_id)) + "\n")
