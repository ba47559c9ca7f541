"""A laboratory on one machine: nodes made of namespaces, programs that get moved between them, and the ways to move them."""
