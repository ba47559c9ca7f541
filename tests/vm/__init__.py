"""A laboratory of two virtual machines with RDMA devices, joined by a link that can be cut. See
README.md."""
