"""Plans of the PostgreSQL store, whatever the server knows of its tables."""
