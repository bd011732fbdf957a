"""Engines, which run clients in this process, in worker processes or on ranks."""
