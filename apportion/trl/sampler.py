"""The train sampler of a run with a selection: rows that a selector chooses, in the repetition of TRL's sampler.

A batch is chosen when the loader asks for its first row. transformers reads the micro-batches of an optimizer step at
once, and accelerate one more. With the usual settings a batch is therefore chosen just before the batch ahead of it is
sampled, so a rule knows the outcomes of all batches but the last.
"""

from collections.abc import Callable, Iterator

from torch.utils.data import Sampler


class SelectedRows(Sampler[int]):
    """Yields the rows of ``batches`` generation batches per epoch, each of ``count`` prompts by ``choose``.

    Every row comes ``generations`` times in a row, and every batch ``repeats`` times, as from TRL's ``RepeatSampler``.
    ``chosen`` are the batches of the present epoch so far. Batches that are put there before an epoch begins are
    replayed, so that a resumed run skips the rows that it was trained on.

    >>> sampler = SelectedRows(lambda count: [3, 1][:count], batches=1, count=2, generations=2, repeats=2)
    >>> list(sampler), len(sampler)
    ([3, 3, 1, 1, 3, 3, 1, 1], 8)
    """

    def __init__(
        self, choose: Callable[[int], list[int]], *, batches: int, count: int, generations: int, repeats: int
    ) -> None:
        self.choose, self.batches, self.count = choose, batches, count
        self.generations, self.repeats = generations, repeats
        self.chosen: list[list[int]] = []

    def __iter__(self) -> Iterator[int]:
        for batch in range(self.batches):
            if batch == len(self.chosen):
                self.chosen.append(self.choose(self.count))
            for _ in range(self.repeats):
                for row in self.chosen[batch]:
                    yield from [row] * self.generations
        self.chosen.clear()

    def __len__(self) -> int:
        return self.batches * self.count * self.generations * self.repeats

    def replay(self, chosen: list[list[int]], rows: int) -> None:
        """Begin the next epoch with the batches ``chosen`` of a data set with ``rows``.

        Raises ValueError if they are not batches of this data set.
        """
        if any(len(batch) != self.count for batch in chosen) or len(chosen) > self.batches:
            sizes = ", ".join(map(str, sorted({len(batch) for batch in chosen})))
            raise ValueError(
                f"a checkpoint in the middle of an epoch must be resumed with batches of {sizes} prompts, got "
                f"{self.count}, and {self.batches} of them in an epoch; keep generation_batch_size, num_generations "
                "and the data set, or resume a checkpoint between two epochs"
            )
        if any(not 0 <= row < rows for batch in chosen for row in batch):
            raise ValueError(f"chosen rows must be of the data set with {rows} rows; resume with the same data set")
        self.chosen[:] = [list(batch) for batch in chosen]
