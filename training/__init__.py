"""The renderer and the trainer of the nano model. Not installed with the package."""
