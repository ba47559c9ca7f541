"""The chapters of ./run, the storage of their rows, and the report."""
