"""The mutation run: remove each safety edge of the engine in turn, and see a test object."""
