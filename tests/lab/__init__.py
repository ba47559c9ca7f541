"""A laboratory on one machine: nodes made of namespaces, programs, and the ways to move them."""
