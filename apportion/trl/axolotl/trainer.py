"""axolotl's GRPO trainer with the allocator of its configuration."""

from typing import Any

from axolotl.core.trainers.grpo.trainer import AxolotlGRPOTrainer

from apportion.trl.axolotl.section import read_allocation
from apportion.trl.trainer import allocated

_Allocated: Any = allocated(AxolotlGRPOTrainer)


class AllocatedAxolotlTrainer(_Allocated):  # type: ignore[misc]
    """``AxolotlGRPOTrainer`` whose allocation is the section ``apportion`` of its arguments."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **vars(read_allocation(kwargs["args"].apportion)), **kwargs)
