"""A framework that is installed but cannot be imported."""
