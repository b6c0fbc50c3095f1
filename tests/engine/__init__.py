"""Parts of the engine, each by itself, with nothing real behind it."""
