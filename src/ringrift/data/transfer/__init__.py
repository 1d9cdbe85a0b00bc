"""How sealed files get from one node to another: transports behind one contract, and what limits them."""
