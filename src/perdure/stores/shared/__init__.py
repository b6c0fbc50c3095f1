"""What stores decide and tell alike: pure, whatever the store."""
