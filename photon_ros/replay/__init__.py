"""Recordings in and out, scoring against truth, and the report."""
