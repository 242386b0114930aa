"""Every claim of the four papers: the paper's figure beside ours, with a verdict. ``make reproduce`` runs this package.

1. ``claims.toml``: a row for each claim: the place, the claim, the printed figure, whose it is, our setting.
2. ``rules``: how a verdict follows from figures, the same for everybody.
3. ``measures``: for each row, from the values of cells to figures with intervals. ``printed``: from printed tables.
4. ``cells`` and ``cells_model``: every measurement of a few minutes. Other modules have the functions that measure.
5. ``cell``: runs one in a process of its own, and keeps its values under ``runs/evidence``.
6. ``canaries``: whether what a value depends on still decides and computes the same.
7. ``page``: writes ``docs/evidence.md``, the details for the site, and ``measured/``, the committed values.
"""
