"""Report a finished study.

``results`` reads the metrics of each run, and ``measures`` summarises the runs of an arm over seeds. ``with_labels``
and ``without_labels`` list the measures of a report and put them into sentences and panels of the ``picture``.
"""
