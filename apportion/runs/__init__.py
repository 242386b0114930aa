"""What every long run needs: a folder of its own, files that are written whole, progress, and tables as text."""
