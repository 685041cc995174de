"""Whole conversations with a scripted server, as data: what the model says, what the layers do, what must come of it."""
