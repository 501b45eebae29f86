"""Benches of the loop itself: what it hides, what it wastes, what it costs the host.

Nothing here measures a model; see ``photon-ros bench``.
"""
