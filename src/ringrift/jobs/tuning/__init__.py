"""Searching for better parameters: of the heuristic player, of training, of the network's size."""
