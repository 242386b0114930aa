"""Every claim of the four papers: the paper's figure beside ours, with a verdict. ``make reproduce`` runs this package.

1. ``claim``: what a claim, a finding and a verdict are.
2. ``cell``: one measurement of a few minutes, in a process of its own, kept under ``runs/evidence``.
3. ``learning``: runs of the lab, from which cells read learning curves.
4. One module for each group of claims. It has ``CELLS`` (what is measured) and ``CLAIMS`` (what is made of it).
5. ``registry``: all of them, by paper.
6. ``page``: writes ``docs/evidence.md``, and ``measured/``, the committed values that it is written from.
"""
