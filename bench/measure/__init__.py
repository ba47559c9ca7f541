"""What ./run measures, how its figures are kept, and how they are told."""
