"""Every public entry point, tried with what it was not made for: a clear error of ours, before anything happened."""
