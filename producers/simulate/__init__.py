"""Simulated nodes: a model of jobs and pods that share ports, for demos and tests.

What is modelled, and nothing else: synchronous jobs that compute, then move a fixed number of bytes each iteration
over one port a node, at the pace of their slowest node; ports of a fixed capacity, shared by queue pairs as max-min
fair as RoCE's congestion control is at best; pods with a demand in bytes a second; 1 % noise on compute times; a late
rank. Not modelled: switches, receivers, caches, PCIe, protocols, loss. A result on this is evidence about our code,
never about hardware, and every record says `source=simulated`.
"""
