"""Tables of rows for the loss: concatenate, select and pad the tensors that TRL makes of rollouts.

A table is the dictionary that ``_generate_and_score_completions`` returns, one row per rollout, without the keys of
the whole batch: the advantages and the number of tokens. Prompts are padded on the left, completions on the right.
"""

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor
from torch.nn.functional import pad

from apportion.trl import unsloth
from apportion.trl.settings import Divisor

Table = dict[str, Tensor]

BATCH_KEYS = ("advantages", "num_items_in_batch")
"""Keys of the whole batch, which are computed again once it is complete."""
LEFT = ("prompt_ids", "prompt_mask")
MASKS = ("completion_mask", "tool_mask")
PACKED = dict.fromkeys(("prompt_mask", *MASKS), torch.bool) | dict.fromkeys(
    ("prompt_ids", "completion_ids"), torch.int32
)
"""Types of the columns in rows that are stored for later steps."""


def make_table(output: Mapping[str, object]) -> Table:
    """Return the rows of TRL's ``output``. Raises NotImplementedError if it has images: these are not one per row."""
    table: Table = {}
    for key, value in output.items():
        if key in BATCH_KEYS or value is None:
            continue
        if not isinstance(value, Tensor) or value.ndim not in (1, 2):
            raise NotImplementedError(
                f"rows must hold text alone, got {key!r} in TRL's output; leave images out of prompts and tools"
            )
        table[key] = value
    width = table["completion_ids"].size(1)
    for key in table.keys() & set(unsloth.WINDOWED):
        table[key] = unsloth.aligned(table[key], table["prompt_mask"], width)
    return table


def size(table: Table) -> int:
    """Return the number of rows."""
    return len(table["completion_ids"])


def concatenate(tables: Sequence[Table], pad_token: int) -> Table:
    """Return the rows of ``tables`` in order, padded to one width. All tables must have the same keys."""
    if len(tables) == 1:
        return tables[0]
    return {key: _joined([table[key] for table in tables], key, pad_token) for key in tables[0]}


def select(table: Table, indices: Sequence[int]) -> Table:
    """Return the rows at ``indices`` in that order."""
    return {key: value[torch.tensor(indices, dtype=torch.long, device=value.device)] for key, value in table.items()}


def masked_rows(table: Table, count: int) -> Table:
    """Return ``count`` rows that do not enter the loss: copies of the first row with a masked completion."""
    copies = select(table, [0] * count)
    return {key: torch.zeros_like(value) if key in MASKS else value for key, value in copies.items()}


def split_table(table: Table) -> list[Table]:
    """Return every row as a table of its own on the CPU, without padding and without memory of other rows."""
    table, width, found = to_device(table, "cpu"), table["completion_ids"].size(1), []
    for i in range(size(table)):
        row = select(table, [i])
        first = int(row["prompt_mask"].argmax())
        ends = row["completion_mask"][0].nonzero()
        last = int(ends[-1]) + 1 if len(ends) else 1
        for key, value in row.items():
            if key in LEFT:
                row[key] = value[:, first:].clone()
            elif value.ndim == 2 and value.size(1) == width:
                row[key] = value[:, :last].clone()
        found.append(row)
    return found


def pack_row(row: Table) -> Table:
    """Return a row in less memory, without any loss: ids in 32 bits, masks in 8."""
    return {key: value.to(PACKED.get(key, value.dtype)) for key, value in row.items()}


def spread_masked_rows(chunks: Sequence[Table]) -> list[Table]:
    """Return the micro-batches with their masked rows spread evenly, so that as few as possible are all masked."""
    tables, rest = zip(*(_rows_and_rest(chunk) for chunk in chunks), strict=True)
    whole = {key: torch.cat([table[key] for table in tables]) for key in tables[0]}
    return [{**rows, **rest[i]} for i, rows in enumerate(_deal(whole, len(chunks)))]


def split_micro_batch(chunk: Table, most: int, divisor: Divisor) -> list[Table]:
    """Return a micro-batch in parts of at most ``most`` rows, whose losses add up to the loss of the whole.

    Each part has ``loss_share``, the factor of its loss, and ``entropy_share``, that of its entropy bonus beyond it.
    ``divisor`` is what the loss divides by, see ``settings.LOSSES``.
    """
    total = size(chunk)
    if total <= most:
        return [chunk]
    rows, rest = _rows_and_rest(chunk)
    all_tokens, found = loss_mask(rows).sum().item(), []
    for part in _deal(rows, -(-total // most)):
        of_rows, tokens = size(part) / total, loss_mask(part).sum().item()
        of_tokens = tokens / all_tokens if all_tokens else of_rows
        share = of_rows if divisor == "row" else of_tokens
        scales = {"loss_share": share, "entropy_share": of_tokens / share if share else 1.0}
        part |= rest | {key: torch.tensor(scale) for key, scale in scales.items()}
        if divisor == "token" and share:  # the loss divides by it, and is then multiplied by the share
            part["num_items_in_batch"] = part["num_items_in_batch"] * share
        found.append(part)
    return found


def _rows_and_rest(chunk: Table) -> tuple[Table, Table]:
    """Return the columns of a micro-batch with a value for each row, and its other values."""
    rows = {key: value for key, value in chunk.items() if isinstance(value, Tensor) and value.ndim}
    return rows, {key: value for key, value in chunk.items() if key not in rows}


def _deal(table: Table, count: int) -> list[Table]:
    """Return the rows in ``count`` tables, dealt out in turn; rows that are not masked come first."""
    if count == 1:
        return [table]
    masked = ~table["completion_mask"].any(dim=1)
    order = torch.cat([torch.nonzero(~masked), torch.nonzero(masked)]).flatten().tolist()
    return [select(table, order[i::count]) for i in range(count)]


def to_device(table: Table, device: torch.device | str) -> Table:
    """Return ``table`` on ``device``. A value of a micro-batch that is not a tensor stays as it is."""
    return {key: value.to(device) if isinstance(value, Tensor) else value for key, value in table.items()}


def sequences(table: Table) -> tuple[Tensor, Tensor]:
    """Return the model's input: token ids and attention mask of prompts and completions, each [N, P + T]."""
    ids = torch.cat([table["prompt_ids"], table["completion_ids"]], dim=1)
    return ids, torch.cat([table["prompt_mask"], table["completion_mask"]], dim=1)


def loss_mask(table: Table) -> Tensor:
    """Return an integer mask [N, T] of the completion tokens in the loss: those that the policy wrote, not a tool."""
    own = table["completion_mask"]
    return own * table["tool_mask"] if "tool_mask" in table else own


def policy_tokens(table: Table, completions: Sequence[Sequence[int]]) -> list[int]:
    """Return the number of tokens [N] of each completion that the policy wrote, without those of tools."""
    lengths = [len(ids) for ids in completions]
    if "tool_mask" not in table:
        return lengths
    by_tools = (table["tool_mask"] == 0).sum(1).tolist()  # the mask is 1 after the end of a completion
    width = table["tool_mask"].size(1)  # a truncated completion may be masked as a whole: then all are 0
    return [length - (count if count < width else 0) for length, count in zip(lengths, by_tools, strict=True)]


def _joined(columns: Sequence[Tensor], key: str, pad_token: int) -> Tensor:
    """Return the rows of ``columns`` of this ``key``, padded to one width as TRL pads them."""
    if columns[0].ndim == 1:
        return torch.cat(list(columns))
    padding = pad_token if key.endswith("_ids") else float(key in ("tool_mask", "importance_sampling_ratio"))
    gaps = [max(each.size(1) for each in columns) - column.size(1) for column in columns]
    sides = [(gap, 0) if key in LEFT else (0, gap) for gap in gaps]
    return torch.cat([pad(column, side, value=padding) for column, side in zip(columns, sides, strict=True)])
