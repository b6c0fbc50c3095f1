"""What every store must do: one suite, run for each of them."""
