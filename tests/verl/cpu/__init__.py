"""What verl needs to train on a CPU, for tests only: no part of the product. ``plugin`` says how it is loaded.

Nothing here is imported with this package, so that a test may import a module of it without verl.
"""
