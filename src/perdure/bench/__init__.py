"""Measurements of a store and of the engine on it: what `perdure bench` runs. Each module has one of them.

All of them speak to the store through what users hold and the verbs of the store contract, on queues of their own.
"""
