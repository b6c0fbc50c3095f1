"""Servers for the tests: found or started when the first test asks, and gone with the process that started them."""
