"""Plan a study and carry out its runs.

``design`` reads the settings and checks them, once. ``plan`` says what will be done. ``worker`` trains one run, or
measures gradient variance, in a process of its own; it is handed everything that it needs.
"""
