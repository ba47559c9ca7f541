"""A laboratory of two virtual machines with RDMA devices, joined by a link that can be cut. README.md says how it is used."""
