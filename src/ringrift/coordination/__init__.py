"""The vocabulary of the documents that has no other home: one file for each of their modules.

Every name here is a handle on the machine: it reads the store or the running manager, or asks them to do
something. None keeps state of its own, and of the machine only the control process imports this one.
"""
